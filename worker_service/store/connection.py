"""Open the database file. Never open it in another way: closing any descriptor of it drops SQLite's locks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import apsw

from worker_service.base.errors import SchemaMismatch, StoreBusy, StoreUnusable
from worker_service.store.errors import BUSY_SECONDS, translate_errors, unreadable_error

if TYPE_CHECKING:
    from worker_service.store.lock_owner import LockOwner

Connection = apsw.Connection

# Called once in each long wait for the write lock, with the seconds and the holder.
OnLongWait = Callable[[float, "LockOwner | None"], None]

# Transactions of pagemill take milliseconds.
_LONG_WAIT_SECONDS = 1.0

# Below the default of 1,000 pages, so that checkpoints are made here and not by another program, whose SQLite may have
# the WAL-reset bug.
_CHECKPOINT_PAGES = 900

# The driver's cache must hold the claim while all jobs of a batch are inserted: preparing a claim takes 1.5 ms.
_STATEMENTS_KEPT = 512

# A search reads many pages of its index. Memory is used only as pages are read.
_READER_CACHE_KIB = 32 * 1024

# A walk over 300 lanes reads one or two pages of each; SQLite's default of 2 MB made every claim read them again.
_WRITER_CACHE_KIB = 16 * 1024

SCHEMA_VERSION = 1

SQLITE_VERSION = apsw.sqlite_lib_version()


def connect(path: Path, *, is_durable: bool = True, on_long_wait: OnLongWait | None = None) -> apsw.Connection:
    # Commits of an `is_durable` connection survive a power cut.
    _raise_heap_threshold()
    with translate_errors(path), _open(str(path), path, apsw.SQLITE_OPEN_READWRITE, on_long_wait) as connection:
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
        # Otherwise each statement of a hundred rows creates a temporary file for its rollback.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        connection.wal_autocheckpoint(_CHECKPOINT_PAGES)
        return connection


@cache
def _raise_heap_threshold() -> None:
    # Once a block of this size was freed, glibc keeps freed memory. Returning it to the kernel took six sevenths of a
    # claim's time.
    block = bytes(16 * 1024 * 1024)
    del block


def connect_to_read(path: Path) -> apsw.Connection:
    with translate_errors(path):
        try:
            return _reader(str(path), path, apsw.SQLITE_OPEN_READWRITE)
        except (apsw.ReadOnlyError, apsw.CantOpenError) as error:
            if not is_unused(path):
                raise unreadable_error(path, error) from error
        # A user without write access cannot create the -wal and -shm files. They are not needed while no other process
        # has the database open. An immutable connection does not see later commits.
        return _reader(f"file:{quote(str(path))}?immutable=1", path, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def is_in_wal_mode(connection: apsw.Connection, path: Path) -> bool:
    if connection.open_flags & apsw.SQLITE_OPEN_URI:
        # An immutable connection always reports "delete", so read bytes 18 and 19 of the file, which are 2 in WAL mode.
        # Closing the file would drop the locks of this process, but an immutable connection has none.
        with path.open("rb") as file:
            return file.read(20)[18:] == b"\x02\x02"
    return connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def is_unused(path: Path) -> bool:
    # The last process to close a database deletes its -wal file.
    return os.access(path, os.R_OK) and not os.path.exists(f"{path}-wal")  # noqa: PTH110  raises no error without access


def _reader(file: str, path: Path, flags: int) -> apsw.Connection:
    with _open(file, path, flags) as connection:
        connection.execute("PRAGMA query_only = 1")
        connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
        # Fails here if the database cannot be read.
        connection.execute("PRAGMA schema_version").fetchall()
        return connection


def register_occurrences_function(connection: Connection) -> None:
    connection.register_fts5_function("occurrences", _occurrences)


def _occurrences(match: apsw.FTS5ExtensionApi, /, *_: Any) -> int:
    return match.inst_count


def create(path: Path, on_long_wait: OnLongWait | None = None) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with translate_errors(path), _open(str(path), path, flags, on_long_wait) as connection:
        set_wal_mode(connection, path)
        connection.execute("PRAGMA synchronous = FULL")
        return connection


def set_wal_mode(connection: apsw.Connection, path: Path) -> None:
    # SQLite does not call the busy handler for this statement, so retry it here.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError as error:
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"{path} is not in WAL mode, and cannot be put into it while another program reads or writes it: "
                    "end that program's transaction, then start again"
                ) from error
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise StoreUnusable(
                f"{path} stays in {mode} mode, where readers and writers wait for each other",
                "set WORKER_DATABASE to a disk on which SQLite can use WAL mode",
            )
        return


@contextmanager
def _open(file: str, path: Path, flags: int, on_long_wait: OnLongWait | None = None) -> Iterator[apsw.Connection]:
    """Open a file name or URI, and close the connection only if the block fails."""
    connection = apsw.Connection(file, flags=flags, statementcachesize=_STATEMENTS_KEPT)
    try:
        connection.set_busy_handler(BusyHandler(path, on_long_wait))
        connection.wal_autocheckpoint(0)
        # Keep query plans independent of bound values. Otherwise each new value prepares the claim again: 1.5 ms
        # instead of 0.06.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # Any user who can write the file may have added rows and triggers.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        yield connection
    except BaseException:
        connection.close()
        raise


def schema_version_of(connection: Connection) -> int | None:
    """Return 0 if there is only the table of the original proposal, None if there are no pagemill tables."""
    sql = "SELECT name FROM sqlite_schema WHERE name IN ('pagemill_schema', 'worker_job_queue')"
    tables = {name for (name,) in connection.execute(sql)}
    if "pagemill_schema" in tables:
        [(version,)] = connection.execute("SELECT max(version) FROM pagemill_schema").fetchall()
        return int(str(version))
    return 0 if "worker_job_queue" in tables else None


def newer_schema_error(path: Path, version: int) -> SchemaMismatch:
    return SchemaMismatch(
        f"{path} has schema {version}, newer than this pagemill knows ({SCHEMA_VERSION}): upgrade pagemill"
    )


class BusyHandler:
    # Retries every millisecond; SQLite's own handler sleeps up to 100 ms.

    def __init__(self, path: Path, on_long_wait: OnLongWait | None = None) -> None:
        self._path = path
        self._on_long_wait = on_long_wait
        self._started = 0.0
        self._has_reported = False

    def __call__(self, earlier_calls_in_this_wait: int) -> bool:
        now = time.monotonic()
        if earlier_calls_in_this_wait == 0:
            self._started, self._has_reported = now, False
        waited = now - self._started
        if waited >= _LONG_WAIT_SECONDS and not self._has_reported and self._on_long_wait is not None:
            from worker_service.store.lock_owner import lock_owner_of

            self._has_reported = True
            self._on_long_wait(waited, lock_owner_of(self._path))
        time.sleep(0.001)
        return waited < BUSY_SECONDS
