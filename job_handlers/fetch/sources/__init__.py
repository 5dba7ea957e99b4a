"""Sources of documents. Entry points of the group `worker_service.sources` name a module for each platform."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from worker_service.handlers import Permanent, find_entry_points

if TYPE_CHECKING:
    from job_handlers.fetch.error_rules import Timeouts
    from job_handlers.fetch.partial_file import FileFacts, PartialFile
    from job_handlers.fetch.sources.tree import Tree

GROUP = "worker_service.sources"

IsStopping = Callable[[], bool]


class Reference(Struct, frozen=True):
    platform: str
    key: str
    """A Drive id, a URL, or an absolute path."""
    resource_key: str = ""
    is_folder: bool = False


class FileRequest(Struct, frozen=True):
    credential: str = ""
    resource_key: str = ""
    export: str = ""
    acknowledge_abuse: bool = False
    md5: str = ""
    """The expected digest in lower case; empty if the job expects none."""
    sha256: str = ""
    bytes_max: int = 4 << 30


class SourceFile(Protocol):
    """Each method may raise `FetchError`."""

    def facts(self) -> FileFacts: ...

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        """Append up to `length` bytes to `part`, and yield the size of each block."""

    def close(self) -> None: ...


class Source(Protocol):
    """A module. `credential` names a file in $CREDENTIALS_DIRECTORY; empty uses the source's default."""

    PLATFORM: str
    ADDRESSES: str
    """Description of its addresses, for messages."""
    FOLDERS: str
    """Description of its folders; empty if the source has none."""
    IS_FOR_ANY_HOST: bool
    """True if an address that no other source knows belongs to it."""
    ENVIRONMENT: Sequence[str]
    CREDENTIALS: Sequence[str]

    def parse_reference(self, text: str) -> Reference | None:
        """Return None if the address belongs to another source."""

    def source_of_jobs(self, credential: str) -> str:
        """Return the name under which jobs pause together, or '' if they never do."""

    def files_to_read(self, reference: Reference, credential: str) -> Sequence[Path]:
        """Return files, beside credentials, that the sandbox must allow."""

    def open_file(
        self, reference: Reference, request: FileRequest, timeouts: Timeouts, is_stopping: IsStopping
    ) -> SourceFile: ...

    def open_tree(
        self, reference: Reference, credential: str, timeouts: Timeouts, is_stopping: IsStopping
    ) -> AbstractContextManager[Tree]: ...


@cache
def sources() -> Sequence[Source]:
    loaded: list[Any] = [entry_point.load() for entry_point in find_entry_points(group=GROUP)]
    # Sources without credentials come first, so that the common path is not parsed as an address of Drive.
    return sorted(loaded, key=lambda source: (source.IS_FOR_ANY_HOST, len(source.CREDENTIALS), source.PLATFORM))


def read_reference(address: str) -> tuple[Source, Reference]:
    text = address.strip()
    for source in sources():
        if (reference := source.parse_reference(text)) is not None:
            return source, reference
    raise Permanent("SOURCE_UNKNOWN", f"a source is {_list_choices(source.ADDRESSES for source in _by_platform())}")


def read_folder(address: str) -> tuple[Source, Reference]:
    source, reference = read_reference(address)
    if not source.FOLDERS:
        raise Permanent("FOLDER_UNKNOWN", f"a folder is {folders_in_words()}")
    return source, reference


def folders_in_words() -> str:
    return _list_choices(source.FOLDERS for source in _by_platform() if source.FOLDERS)


def environment() -> list[str]:
    return [name for source in sources() for name in source.ENVIRONMENT]


def credentials() -> list[str]:
    return [pattern for source in sources() for pattern in source.CREDENTIALS]


def import_sources_before_fork() -> None:
    for source in sources():
        package: Any = source
        for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
            import_module(module.name)


def _by_platform() -> list[Source]:
    return sorted(sources(), key=lambda source: source.PLATFORM)


def _list_choices(choices: Iterable[str]) -> str:
    *first, last = choices
    return f"{', '.join(first)}, or {last}" if first else last
