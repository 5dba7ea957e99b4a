"""Where documents come from: a folder for each kind of source, and the registry that tells whose an address is.

A source is a package that the entry points `worker_service.sources` name by its platform; what it is to the others
stands in `Source`. To look at an address costs no library: what takes a second to import is imported by who fetches or
crawls, and before his children are forked from him (`prepare`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from worker_service.handlers import Permanent, find

if TYPE_CHECKING:
    from job_handlers.fetch.download import DownloadPayload
    from job_handlers.fetch.errors import Timeouts
    from job_handlers.fetch.sources.tree import Tree
    from job_handlers.fetch.transfer import FileWanted, SourceFile

GROUP = "worker_service.sources"

IsStopping = Callable[[], bool]


class Reference(Struct, frozen=True):
    """What an address means to its source."""

    platform: str
    key: str
    """A Drive id, a URL, an absolute path: names it for ever."""
    resource_key: str = ""
    """What has to be shown beside it."""
    is_folder: bool = False


class Source(Protocol):
    """A package of this kind. `credential` is the name of a file in $CREDENTIALS_DIRECTORY; empty: the usual one."""

    PLATFORM: str
    ADDRESSES: str
    """What a person may write, in words."""
    FOLDERS: str
    """What a person may write for a folder; empty: it has none."""
    IS_FOR_ANY_HOST: bool
    """It takes whatever URL no other source knows better."""
    ENVIRONMENT: Sequence[str]
    """The variables of the service that it looks at."""
    CREDENTIALS: Sequence[str]
    """Patterns of the credentials that it takes."""

    def reference(self, text: str) -> Reference | None:
        """None: this is no address of its. Raises `Permanent` for one that it should be, and is not."""

    def rests_with(self, credential: str) -> str:
        """Who may ask for a rest, and whose jobs then rest together; empty: nobody does."""

    def reads(self, reference: Reference, credential: str) -> Sequence[Path]:
        """The files that have to be readable, beside credentials."""

    def open_file(
        self,
        reference: Reference,
        payload: DownloadPayload,
        wanted: FileWanted,
        timeouts: Timeouts,
        is_stopping: IsStopping,
    ) -> SourceFile: ...

    def open_tree(
        self, reference: Reference, credential: str, timeouts: Timeouts, is_stopping: IsStopping
    ) -> AbstractContextManager[Tree]:
        """Of a source that has folders."""


@cache
def sources() -> Sequence[Source]:
    found: list[Any] = [point.load() for point in find(group=GROUP)]
    return sorted(found, key=lambda source: (source.IS_FOR_ANY_HOST, source.PLATFORM))


def read_reference(address: str) -> tuple[Source, Reference]:
    """Of anything that a person may paste."""
    text = address.strip()
    for source in sources():
        if (found := source.reference(text)) is not None:
            return source, found
    raise Permanent("SOURCE_UNKNOWN", f"a source is {_choice(source.ADDRESSES for source in _by_name())}")


def read_folder(address: str) -> tuple[Source, Reference]:
    source, found = read_reference(address)
    if not source.FOLDERS:
        raise Permanent("FOLDER_UNKNOWN", f"a folder is {folders_in_words()}")
    return source, found


def folders_in_words() -> str:
    return _choice(source.FOLDERS for source in _by_name() if source.FOLDERS)


def environment() -> list[str]:
    return [name for source in sources() for name in source.ENVIRONMENT]


def credentials() -> list[str]:
    return [pattern for source in sources() for pattern in source.CREDENTIALS]


def prepare() -> None:
    """Import all of them, once for all children."""
    for source in sources():
        package: Any = source
        for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
            import_module(module.name)


def _by_name() -> list[Source]:
    return sorted(sources(), key=lambda source: source.PLATFORM)


def _choice(words: Any) -> str:
    *some, last = words
    return f"{', '.join(some)}, or {last}" if some else str(last)
