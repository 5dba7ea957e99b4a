"""Files and directories of this machine as a source. WORKER_DOWNLOAD_ROOTS limits what jobs may read."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from mimetypes import guess_type
from pathlib import Path

from job_handlers.fetch.error_rules import FetchError, Timeouts
from job_handlers.fetch.partial_file import FileFacts, PartialFile
from job_handlers.fetch.sources import FileRequest, IsStopping, Reference
from job_handlers.fetch.sources.tree import Entry, ItemError, Listing, ListingExpired, TreeChanges
from job_handlers.settings import HandlersSettings, value_of
from worker_service.handlers import FILE_URL, Retryable, display_path, path_of, path_to_text

PLATFORM = "local"
ADDRESSES = "a full path that begins with a slash (or its file: URL)"
FOLDERS = "the full path of a directory"
IS_FOR_ANY_HOST = False
ROOTS = HandlersSettings.download_roots
ENVIRONMENT: Sequence[str] = (ROOTS.variable, "WORKER_WORKSPACE")
CREDENTIALS: Sequence[str] = ()

_BLOCK_BYTES = 1 << 20
_REPLACED_SECONDS = 5.0  # Wait before the next attempt, because the file may be replaced again at once.
_PAGE_ENTRIES = 1000
_HIDDEN_BY_SYSTEMD = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
_PSEUDO_FILE_SYSTEMS = ("proc", "sys", "dev")


def parse_reference(text: str) -> Reference | None:
    if text.startswith("/"):
        return Reference(PLATFORM, text)
    return Reference(PLATFORM, path_to_text(path_of(text))) if text.startswith(FILE_URL) else None


def source_of_jobs(credential: str) -> str:
    return ""


def files_to_read(reference: Reference, credential: str) -> Sequence[Path]:
    return readable_paths(reference.key)


def open_file(reference: Reference, request: FileRequest, timeouts: Timeouts, is_stopping: IsStopping) -> LocalFile:
    return LocalFile(reference.key, timeouts)


def open_tree(
    reference: Reference, credential: str, timeouts: Timeouts, is_stopping: IsStopping
) -> AbstractContextManager[LocalTree]:
    return nullcontext(LocalTree(path_of(reference.key)))


def revision_of(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def readable_paths(path: str) -> list[Path]:
    try:
        return [resolve_path(path)]
    except FetchError:
        return []


def resolve_path(text: str) -> Path:
    """Resolve symbolic links. Raise `FetchError` if jobs may not read the result."""
    path = path_of(text)
    if not path.is_absolute() or "\0" in str(path):
        raise FetchError("PATH_REFUSED", what=text[:200])
    try:
        actual = Path(os.path.realpath(path))
    except OSError as error:
        raise _unreadable(text, error) from error
    workspace = os.environ.get("WORKER_WORKSPACE")
    secret_places = [os.environ.get("CREDENTIALS_DIRECTORY"), workspace and f"{workspace}/passwords"]
    roots = value_of(ROOTS)
    is_secret = any(actual.is_relative_to(os.path.realpath(place)) for place in secret_places if place)
    is_below_roots = not roots or any(actual.is_relative_to(os.path.realpath(root)) for root in roots)
    # Files of /proc, /sys and /dev expose other processes, or never end.
    is_pseudo_file = len(actual.parts) > 1 and actual.parts[1] in _PSEUDO_FILE_SYSTEMS
    if is_secret or is_pseudo_file or not is_below_roots:
        raise FetchError("PATH_REFUSED", what=text)
    return actual


def _unreadable(text: str, error: OSError) -> FetchError:
    path, reason, remedy = path_of(text), error.strerror or f"error {error.errno}", ""
    if any(path.is_relative_to(place) for place in _HIDDEN_BY_SYSTEMD):
        reason += "; homes and /tmp are hidden from a worker under systemd"
        remedy = "move it elsewhere, such as /srv, or make it visible to the service as pagemill.service explains"
    elif error.errno in (errno.EACCES, errno.EPERM):
        file = shlex.quote(display_path(path))
        reason += " to the user of this worker"
        remedy = f"chgrp pagemill {file} && chmod g+r {file}, then retry"
    return FetchError("UNREADABLE", what=text, reason=reason, remedy=remedy)


# --- one file -----------------------------------------------------------------------------------------


class LocalFile:
    def __init__(self, path: str, timeouts: Timeouts) -> None:
        self._path = path
        self._actual = resolve_path(path)
        self._timeouts = timeouts
        self._opened_at = time.time()

    def facts(self) -> FileFacts:
        try:
            status = self._actual.stat()
        except OSError as error:
            raise self._fetch_error(error) from error
        if not stat.S_ISREG(status.st_mode):
            raise FetchError("NO_FILE", what=self._path)
        age_seconds = time.time() - status.st_mtime
        if 0 <= age_seconds < self._timeouts.stable_seconds:
            wait_seconds = min(self._timeouts.stable_seconds - age_seconds, self._timeouts.longest_wait_seconds)
            raise FetchError("STILL_WRITTEN", after=wait_seconds, what=self._path)
        return FileFacts(
            name=display_path(path_of(self._path).name),
            mime="",
            size=status.st_size,
            revision=revision_of(status),
            is_of_this_machine=True,
            is_settled=max(status.st_mtime, status.st_ctime) < self._opened_at - self._timeouts.settled_seconds,
        )

    def download_into(self, part: PartialFile, facts: FileFacts, length: int | None) -> Iterator[int]:
        left = length if length is not None else facts.size or 0
        try:
            descriptor = os.open(self._actual, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                while left > 0:
                    block = os.pread(file.fileno(), min(left, _BLOCK_BYTES), part.length)
                    if not block:
                        raise FetchError("CHANGED")  # it is shorter than before
                    left -= len(block)
                    yield part.append(block)
        except OSError as error:
            raise self._fetch_error(error) from error

    def close(self) -> None:
        pass

    def _fetch_error(self, error: OSError) -> FetchError | Retryable:
        # The sandbox lets the process open only the file that had this path when the attempt began, but does not change
        # what access() answers. So the two disagree if the file was replaced.
        if error.errno == errno.EACCES and os.access(self._actual, os.R_OK, effective_ids=True):
            return Retryable(f"{self._path} was replaced by another file", after=_REPLACED_SECONDS, code="CHANGED")
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
            return _unreadable(self._path, error)
        return FetchError("CONNECTION_LOST", host=self._path, reason=error.strerror)


# --- a directory --------------------------------------------------------------------------------------


class LocalTree:
    """A directory, without its symbolic links and hidden names."""

    platform = PLATFORM
    source = ""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(os.path.normpath(directory))
        self.root_name = path_to_text(self._directory)

    def root(self) -> Entry:
        try:
            actual = resolve_path(self.root_name)
        except FetchError as error:
            raise ItemError(error.detail, error.remedy) from error
        if not actual.is_dir():
            raise ItemError(f"{self._directory} is not a directory that the daemon can see")
        return Entry(self.root_name, display_path(self._directory.name) or "/", "folder")

    def entry(self, item_id: str, key: str) -> Entry:
        raise ItemError(f"{item_id}: a directory has no shortcuts")

    def children(self, folder_id: str, key: str, corpus: str, page: str) -> Listing:
        """`page` is the last name of the previous page, in hex."""
        after = bytes.fromhex(page)
        try:
            names = os.listdir(os.fsencode(path_of(folder_id)))  # noqa: PTH208  names in bytes: they need not be UTF-8
        except OSError as error:
            raise ItemError(f"it cannot be read: {error.strerror}") from error
        remaining = sorted(name for name in names if name > after and not name.startswith(b"."))
        page_names = remaining[:_PAGE_ENTRIES]
        entries = [entry for name in page_names if (entry := _entry_at(folder_id, name)) is not None]
        return Listing(entries, page_names[-1].hex() if len(remaining) > _PAGE_ENTRIES else "")

    def change_token(self, corpus: str) -> str:
        return ""

    def changes(self, corpus: str, token: str) -> TreeChanges:
        raise ListingExpired("a directory has no list of changes")


def _entry_at(parent_id: str, raw_name: bytes) -> Entry | None:
    path = path_of(parent_id) / os.fsdecode(raw_name)
    if parent_id == "/" and path.name in _PSEUDO_FILE_SYSTEMS:
        return None
    item_id, name = path_to_text(path), display_path(path.name)
    try:
        status = path.lstat()
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return Entry(item_id, name, "folder", [parent_id])
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(
        item_id,
        name,
        "file",
        [parent_id],
        guess_type(name)[0] or "",
        status.st_size,
        revision_of(status),
        modified=datetime.fromtimestamp(status.st_mtime, UTC).isoformat(),
    )
