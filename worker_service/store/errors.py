"""Translate errors of the SQLite driver into errors with a detail and a remedy."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import apsw

from worker_service.base.errors import (
    BadPayload,
    DiskFull,
    FileSystemReadOnly,
    RuleBroken,
    StoreAbsent,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForbidden,
    StoreReadOnly,
    StoreUnusable,
)

SqlError = apsw.Error

BUSY_SECONDS = 30.0
# OverflowError: an integer that does not fit into 64 bits.
DRIVER_ERRORS = (apsw.Error, OverflowError)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as error:
        raise_translated(error, path)


def raise_translated(error: apsw.Error | OverflowError, path: Path) -> NoReturn:
    if isinstance(error, OverflowError):
        raise RuleBroken("a number or a time is greater than a row can hold, or less") from error
    translated = _translate(error, path)
    if translated is None:
        raise error
    raise translated from error


def _translate(error: apsw.Error, path: Path) -> Exception | None:
    match error:
        case apsw.ReadOnlyError() | apsw.IOError() | apsw.CantOpenError() if (
            read_only := read_only_error(path)
        ) is not None:
            return read_only
        case apsw.ConstraintError():
            return rule_broken(rule_of(str(error)))
        case apsw.BusyError():
            from worker_service.store.lock_owner import lock_owner_of

            holder = lock_owner_of(path) or "another program"
            return StoreBusy(
                f"{path} has been locked by {holder} for {BUSY_SECONDS:.0f} s", "end its transaction, or try again"
            )
        case apsw.ReadOnlyError():
            return StoreReadOnly(f"{path} may not be written by you", access_hint(path))
        case apsw.FullError():
            return DiskFull(f"the disk that holds {path} is full", "free some space and try again; nothing was changed")
        case apsw.NotADBError():
            return StoreUnusable(f"{path} is not a SQLite database", "set WORKER_DATABASE to another file")
        case apsw.CorruptError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_CORRUPT_VTAB:
            return StoreDamaged(f"the search index of {path} is damaged ({error})", "run `pagemill db rebuild-search`")
        case apsw.CorruptError():
            return StoreDamaged(f"{path} is damaged ({error})", "run `pagemill db check`, then restore a backup")
        case apsw.CantOpenError():
            return _cannot_open(error, path)
        case apsw.IOError():
            return StoreError(f"{path} cannot be read or written ({error})", "look at the disk and at free space")
        case _:
            return None


def read_only_error(path: Path) -> FileSystemReadOnly | None:
    with suppress(OSError):
        if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            return FileSystemReadOnly(
                f"the file system of {path} is read-only", "look at `dmesg`, check the disk, and mount it again"
            )
    return None


def unreadable_error(path: Path, error: apsw.Error) -> Exception:
    if not os.access(path, os.R_OK):
        return _cannot_open(error, path)
    return StoreReadOnly(
        f"{path} cannot be read: its last changes are in {path.name}-wal, and only a user with write access can "
        f"recover them, as the daemon does when it starts; or {access_hint(path)}"
    )


def _cannot_open(error: apsw.Error, path: Path) -> Exception:
    try:
        path.stat()
    except PermissionError:
        return StoreForbidden(f"{path} may not be read by you", access_hint(path))
    except OSError:
        return StoreAbsent(f"there is no database at {path}", "make one with `pagemill init`")
    if not os.access(path, os.R_OK):
        return StoreForbidden(f"{path} may not be read by you", access_hint(path))
    return StoreReadOnly(
        f"{path} cannot be opened by you ({error}), for that needs to write the folder", access_hint(path)
    )


def access_hint(path: Path) -> str:
    import grp
    import pwd

    with suppress(OSError, KeyError):
        folder = path.parent.stat()
        group, user = grp.getgrgid(folder.st_gid), pwd.getpwuid(os.geteuid()).pw_name
        if folder.st_mode & stat.S_IWGRP and folder.st_gid != 0:
            if folder.st_gid in (os.getegid(), *os.getgroups()):
                return "it is not open to its own group: chmod g+rw"
            if user in group.gr_mem:
                return f"you joined the group {group.gr_name} after you had logged in, so log in again"
            return f"join the group {group.gr_name} by `sudo usermod -aG {group.gr_name} {user}`, then log in again"
    return "use sudo, or ask who owns it"


PAYLOAD_RULES: Mapping[str, tuple[str, str]] = {
    "payload is JSON": ("the payload is not JSON", ""),
    "payload is too large: put the data into a file and its path into the payload (the limit is payload_bytes_max, "
    "1 MiB unless set)": (
        "the payload is larger than payload_bytes_max, 1 MiB unless set",
        "put the data into a file and its path into the payload",
    ),
}


def rule_broken(rule: str) -> RuleBroken | BadPayload:
    return BadPayload(*PAYLOAD_RULES[rule]) if rule in PAYLOAD_RULES else RuleBroken(rule)


def rule_of(message: str) -> str:
    """Constraints in schema.sql have sentences as names."""
    if message.startswith("NOT NULL constraint failed: "):
        return f"{message.rpartition('.')[2]} is missing: it must be given"
    # SQLite reports an index on an expression by its name, which is a sentence in schema.sql.
    if message.startswith("UNIQUE constraint failed: index '"):
        return message.removeprefix("UNIQUE constraint failed: index '").removesuffix("'")
    return message.removeprefix("CHECK constraint failed: ")
