"""One SQLite file: what all parts of a store do with it, and how it is shared with others. Alone in knowing the driver.

A store has two connections: a writer (short ``BEGIN IMMEDIATE`` transactions) and a reader that never writes. Both are
opened when they are first needed, so that a person who may only read can still look. No file API touches the database
file while it is open here: closing any descriptor of it would drop SQLite's locks.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import apsw

from worker_service.clock import Clock, as_text
from worker_service.errors import (
    BadPayload,
    DiskFull,
    RuleBroken,
    StoreAbsent,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForbidden,
    StoreReadOnly,
    StoreUnusable,
)
from worker_service.jobs.retries import RetryRule
from worker_service.store.holding import Holder, holder_of

T = TypeVar("T")

Row = tuple[Any, ...]

Values = tuple[Any, ...] | list[Any] | dict[str, Any]

Connection = apsw.Connection

SqlError = apsw.Error

OnLongWait = Callable[[float, Holder | None], None]
"""Told once in each wait for the write lock: for how long already, and for whom, if that can be known."""

BUSY_SECONDS = 30.0
_LONG_WAIT_SECONDS = 1.0
"""Ours hold the lock for milliseconds: who waits so long waits for somebody else."""

# Below the 1,000 pages at which other programs' SQLite checkpoints: theirs may have the WAL-reset bug, ours has not.
_CHECKPOINT_PAGES = 900

# The driver forgets a statement after so many others; each job of a batch counts, and preparing a claim takes 1.5 ms.
_STATEMENTS_KEPT = 512

# Filled only as far as somebody reads; a search goes through many pages of its index.
_READER_CACHE_KIB = 32 * 1024

# A walk over 300 lanes touches a page or two of each: with SQLite's usual 2 MB it read them again at every claim.
_WRITER_CACHE_KIB = 16 * 1024

SQLITE_VERSION = apsw.sqlite_lib_version()

_RETURNING = re.compile(r"\bRETURNING\s")


class Database:
    """What the parts of a store share: connections, statements, clock. For one thread."""

    def __init__(
        self,
        path: Path,
        statements: dict[str, str],
        clock: Clock,
        *,
        orphan_after_seconds: int = 300,
        is_durable: bool = True,
        on_long_wait: OnLongWait | None = None,
        pauses: WritePauses | None = None,
        retries: Mapping[str, RetryRule] = MappingProxyType({}),
    ) -> None:
        self.path = path
        self.retries = retries
        """How the jobs of each type are tried again, where they do not say it."""
        self.pauses = pauses
        self._on_long_wait = on_long_wait
        self.statements = statements
        self.clock = clock
        self._orphan_after = timedelta(seconds=orphan_after_seconds)
        self._is_durable = is_durable
        self.writing: apsw.Connection | None = None
        self._reading: apsw.Connection | None = None
        self.is_mending = False
        self._together: Callable[[], None] | None = None

    def close(self) -> None:
        for connection in (self._reading, self.writing):
            if connection is not None:
                connection.close()
        self._reading = self.writing = None

    def now(self) -> str:
        return as_text(self.clock())

    def stale_before(self) -> str:
        """A worker that has not beaten since then counts as silent."""
        return as_text(self.clock() - self._orphan_after)

    @property
    def writer(self) -> apsw.Connection:
        if self.writing is None:
            self.writing = connect(self.path, is_durable=self._is_durable, on_long_wait=self._on_long_wait)
        return self.writing

    @property
    def reader(self) -> apsw.Connection:
        if self._reading is not None and is_frozen(self._reading, self.path):
            self._reading.close()
            self._reading = None
        if self._reading is None:
            self._reading = connect_to_read(self.path)
        return self._reading

    def write(self, name: str, row: Row | None = None, /, **named: object) -> list[Row]:
        """Of what RETURNING gives, text that is not UTF-8 is a `UnicodeDecodeError`: see `mending`."""
        sql, values = self.statements[name], named if row is None else row
        if self.is_mending:
            return mended_rows(self.writer, sql, values)
        try:
            # Fetch every row: a half-read RETURNING keeps the write lock.
            return self.writer.execute(sql, values).fetchall()
        except UnicodeDecodeError:
            if _RETURNING.search(sql):
                raise
            return mended_rows(self.writer, sql, values)

    def look(self, name: str, /, **named: object) -> list[Row]:
        """By the writer. As of `write` with RETURNING, text that is not UTF-8 is a `UnicodeDecodeError`."""
        sql = self.statements[name]
        return mended_rows(self.writer, sql, named) if self.is_mending else self.writer.execute(sql, named).fetchall()

    @contextmanager
    def mending(self) -> Iterator[None]:
        """For a transaction that ended with a `UnicodeDecodeError`, once more. Slower, so never the first time."""
        self.is_mending = True
        try:
            yield
        finally:
            self.is_mending = False

    def try_to_write(self, name: str, values: Values) -> str | None:
        """Write, or say which rule of the table forbids it. The transaction goes on."""
        try:
            self.writer.execute(self.statements[name], values).fetchall()
        except apsw.ConstraintError as error:
            return _rule(str(error))
        return None

    def write_each(self, name: str, /, values: Iterable[Values]) -> list[Row]:
        return self.writer.executemany(self.statements[name], values).fetchall()

    def read(self, name: str, /, **values: object) -> list[Row]:
        return self.read_sql(self.statements[name], values)

    def read_sql(self, sql: str, values: Sequence[Any] | dict[str, Any]) -> list[Row]:
        with spoken_errors(self.path):
            try:
                return self.reader.execute(sql, values).fetchall()
            except UnicodeDecodeError:
                return mended_rows(self.reader, sql, values)

    def transaction(self) -> Transaction:
        """One short write transaction. IMMEDIATE: a reader that turns writer is refused whatever the time-out."""
        return Transaction(lambda: self.writer, self.path, self.pauses, self._together)

    def hurried(self) -> Database:
        """The same by the same connections, whose own transactions may be lost in a power cut."""
        return _Hurried(self)

    @contextmanager
    def together_with(self, write: Callable[[], None]) -> Iterator[None]:
        """Each transaction that is begun in here writes this as well, as its last."""
        self._together = write
        try:
            yield
        finally:
            self._together = None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read in here is read of one moment."""
        with spoken_errors(self.path):
            self.reader.execute("BEGIN")
            try:
                yield
            finally:
                self.reader.execute("ROLLBACK")

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """A write transaction that leaves no trace: what would happen if it were for real. It waits for nobody."""
        with spoken_errors(self.path):
            connection = self.writer
            connection.set_busy_timeout(0)
            try:
                connection.execute("BEGIN IMMEDIATE")
            finally:
                connection.set_busy_handler(_wait_a_millisecond(self.path, self._on_long_wait))
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


class _Hurried(Database):
    """Not by a connection of its own: what that commits would look like another program's, at which the loop looks, and
    for which SQLite forgets all pages that it holds."""

    def __init__(self, durable: Database) -> None:
        super().__init__(durable.path, durable.statements, durable.clock, pauses=durable.pauses)
        self._durable = durable

    def close(self) -> None:
        """It has nothing of its own."""

    @property
    def writer(self) -> apsw.Connection:
        return self._durable.writer

    @property
    def reader(self) -> apsw.Connection:
        return self._durable.reader

    def transaction(self) -> Transaction:
        return _HurriedTransaction(lambda: self.writer, self.path, self.pauses)


class Mended(str):
    """Text of a row that was not UTF-8, with the replacement character where it was not."""

    __slots__ = ()


def mended_rows(connection: apsw.Connection, sql: str, values: Sequence[Any] | dict[str, Any]) -> list[Row]:
    """The rows of a statement whose text the driver cannot read: it comes as bytes, and is read here."""
    if returning := _RETURNING.search(sql):
        columns = _divided(sql[returning.end() :])
        sql = sql[: returning.end()] + ", ".join(map(_as_bytes, columns))
    elif names := [f"c{number}" for number in range(_width(connection, sql, values))]:
        read = ", ".join(map(_as_bytes, names))
        sql = f"WITH found({', '.join(names)}) AS MATERIALIZED ({sql}) SELECT {read} FROM found"
    rows: list[Row] = connection.execute(sql, values).fetchall()
    return [
        tuple(_read_text(value) if kind == "text" else value for kind, value in zip(row[::2], row[1::2], strict=True))
        for row in rows
    ]


def _as_bytes(column: str) -> str:
    return f"typeof({column}), CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END"


def _read_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Mended(value.decode("utf-8", "replace"))


def _divided(columns: str) -> list[str]:
    """At the commas that stand in no brackets."""
    parts, depth = [""], 0
    for one in columns:
        depth += (one == "(") - (one == ")")
        if one == "," and not depth:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def _width(connection: apsw.Connection, sql: str, values: Sequence[Any] | dict[str, Any]) -> int:
    """Of the rows of a statement, which is not run for that."""
    found: list[int] = []

    def look(cursor: apsw.Cursor, sql: str, values: object) -> bool:
        found.append(len(cursor.get_description()))
        return False

    cursor = connection.cursor()
    cursor.exec_trace = look
    with suppress(apsw.ExecTraceAbort):
        cursor.execute(sql, values)
    return found[0]


def connect(path: Path, *, is_durable: bool = True, on_long_wait: OnLongWait | None = None) -> apsw.Connection:
    """For writing. `is_durable`: what is committed survives a power cut."""
    _keep_the_heap()
    with spoken_errors(path):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=_STATEMENTS_KEPT)
        try:
            _set_up(connection, path, on_long_wait)
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            # Else what takes back a statement of a hundred rows is a file of its own, for each such statement.
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
            connection.wal_autocheckpoint(_CHECKPOINT_PAGES)
        except BaseException:
            connection.close()
            raise
        return connection


def _keep_the_heap() -> None:
    """Six sevenths of a claim's time was glibc giving SQLite's scratch memory back to the kernel and asking again.

    To free one large block raises its threshold for that, for the life of the process; untouched, it costs nothing.
    """
    block = bytes(16 * 1024 * 1024)
    del block


def connect_to_read(path: Path) -> apsw.Connection:
    with spoken_errors(path):
        try:
            return _reader(str(path), path, apsw.SQLITE_OPEN_READWRITE)
        except (apsw.ReadOnlyError, apsw.CantOpenError) as error:
            if not _is_at_rest(path):
                raise _no_look(path, error) from error
        # Who may not write cannot make the files by which a database is shared; while nobody has it open, nothing has
        # to be shared. `is_frozen` tells, for it sees nothing of what is written from now on.
        return _reader(f"file:{quote(str(path))}?immutable=1", path, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def is_frozen(connection: apsw.Connection, path: Path) -> bool:
    """Whether somebody may have written since this connection was opened, and it would not see that."""
    return bool(connection.open_flags & apsw.SQLITE_OPEN_URI) and not _is_at_rest(path)


def _is_at_rest(path: Path) -> bool:
    """Whether nobody has it open, and nothing of it is left in the log beside it."""
    return os.access(path, os.R_OK) and not os.path.exists(f"{path}-wal")  # noqa: PTH110  no error where one may not look


def _reader(name: str, path: Path, flags: int) -> apsw.Connection:
    connection = apsw.Connection(name, flags=flags)
    try:
        _set_up(connection, path)
        connection.execute("PRAGMA query_only = 1")
        connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
        # A look, which tells whether there can be one.
        connection.execute("PRAGMA schema_version").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def teach_to_count(connection: Connection) -> None:
    """SQL gets `occurrences(table)`: how often a search matched in the row that it found."""
    connection.register_fts5_function("occurrences", _occurrences)


def _occurrences(found: apsw.FTS5ExtensionApi, /, *_: Any) -> int:
    return found.inst_count


def create(path: Path, on_long_wait: OnLongWait | None = None) -> apsw.Connection:
    """Open a file that may not be there yet, in WAL mode."""
    with spoken_errors(path):
        connection = apsw.Connection(str(path))
        try:
            _set_up(connection, path, on_long_wait)
            turn_to_wal(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


def turn_to_wal(connection: apsw.Connection, path: Path) -> None:
    """Put the database into WAL mode. Here, unlike elsewhere, SQLite does not ask the busy handler."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError as error:
            if time.monotonic() > until:
                raise StoreBusy(
                    f"{path} is not in WAL mode, and cannot be put into it while another program reads or writes it: "
                    "end that program's transaction, then start again"
                ) from error
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise StoreUnusable(
                f"{path} stays in {mode} mode, where readers and writers wait for each other: set WORKER_DATABASE to a "
                "disk on which SQLite can use WAL mode"
            )
        return


def _set_up(connection: apsw.Connection, path: Path, on_long_wait: OnLongWait | None = None) -> None:
    connection.set_busy_handler(_wait_a_millisecond(path, on_long_wait))
    connection.wal_autocheckpoint(0)
    # Plans must not hang on bound values: else each new value prepares the claim anew, 1.5 ms instead of 0.06.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # Rows and triggers may come from anyone who can write the file.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


class _wait_a_millisecond:
    """SQLite's own busy handler sleeps up to 100 ms and starves; asking every millisecond shares the lock fairly."""

    def __init__(self, path: Path, on_long_wait: OnLongWait | None = None) -> None:
        self._path = path
        self._on_long_wait = on_long_wait
        self._begun = 0.0
        self._is_told = False

    def __call__(self, calls: int) -> bool:
        now = time.monotonic()
        if calls == 0:
            self._begun, self._is_told = now, False
        waited = now - self._begun
        if waited >= _LONG_WAIT_SECONDS and not self._is_told and self._on_long_wait is not None:
            self._is_told = True
            self._on_long_wait(waited, holder_of(self._path))
        time.sleep(0.001)
        return waited < BUSY_SECONDS


class spoken_errors:
    """The driver's errors as ours, in a sentence that says what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OverflowError):
            raise RuleBroken("a number or a time is greater than a row can hold, or less") from error
        if isinstance(error, apsw.Error) and (spoken := _spoken(error, self._path)) is not None:
            raise spoken from error


class Transaction:
    """A class and not a generator, because this is around every claim."""

    def __init__(
        self,
        connection: Callable[[], apsw.Connection],
        path: Path,
        pauses: WritePauses | None = None,
        last: Callable[[], None] | None = None,
    ) -> None:
        self._connect = connection
        self._errors = spoken_errors(path)
        self._pauses = pauses
        self._last = last

    def __enter__(self) -> None:
        if self._pauses is not None:
            self._pauses.begin()
        with self._errors:
            self._connection = self._connect()
            self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._end(kind, error, traceback)
        finally:
            if self._pauses is not None:
                self._pauses.end()

    def _end(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._roll_back()
            self._errors.__exit__(kind, error, traceback)
            return
        with self._errors:
            try:
                if self._last is not None:
                    self._last()
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        # After some errors SQLite has done so itself.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


class _HurriedTransaction(Transaction):
    def __enter__(self) -> None:
        with self._errors:
            _synchronise(self._connect(), "NORMAL")
        try:
            super().__enter__()
        except BaseException:
            _synchronise(self._connect(), "FULL")
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            _synchronise(self._connection, "FULL")


def _synchronise(connection: apsw.Connection, how: str) -> None:
    # It takes effect when it is prepared.
    connection.execute(f"PRAGMA synchronous = {how}", can_cache=False)


def _spoken(error: apsw.Error, path: Path) -> Exception | None:
    match error:
        case apsw.ConstraintError():
            return rule_broken(_rule(str(error)))
        case apsw.BusyError():
            holder = holder_of(path) or "another program"
            return StoreBusy(
                f"{path} has been locked by {holder} for {BUSY_SECONDS:.0f} s: end its transaction, or try again"
            )
        case apsw.ReadOnlyError():
            return StoreReadOnly(f"{path} may not be written by you: {way_in(path)}")
        case apsw.FullError():
            return DiskFull(f"the disk that holds {path} is full: free some space and try again; nothing was changed")
        case apsw.NotADBError():
            return StoreUnusable(f"{path} is not a SQLite database: set WORKER_DATABASE to another file")
        case apsw.CorruptError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_CORRUPT_VTAB:
            return StoreDamaged(f"the search index of {path} is damaged ({error}): run `pagemill db rebuild-search`")
        case apsw.CorruptError():
            return StoreDamaged(f"{path} is damaged ({error}): run `pagemill db check`, then restore a backup")
        case apsw.CantOpenError():
            return _not_opened(error, path)
        case apsw.IOError():
            return StoreError(f"{path} cannot be read or written ({error}): look at the disk and at free space")
        case _:
            return None


def _no_look(path: Path, error: apsw.Error) -> Exception:
    if not os.access(path, os.R_OK):
        return _not_opened(error, path)
    return StoreReadOnly(
        f"{path} cannot be looked into: what was written last is in {path.name}-wal, which only somebody who may write "
        f"can bring in, as the daemon does when it starts; or {way_in(path)}"
    )


def _not_opened(error: apsw.Error, path: Path) -> Exception:
    try:
        path.stat()
    except PermissionError:
        return StoreForbidden(f"{path} may not be read by you: {way_in(path)}")
    except OSError:
        return StoreAbsent(f"there is no database at {path}: make one with `pagemill init`")
    if not os.access(path, os.R_OK):
        return StoreForbidden(f"{path} may not be read by you: {way_in(path)}")
    return StoreReadOnly(
        f"{path} cannot be opened by you ({error}), for that needs to write the folder: {way_in(path)}"
    )


def way_in(path: Path) -> str:
    """What somebody does who may not open it, and should."""
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


_PAYLOAD_RULES = (
    "payload is JSON",
    "payload is too large: put the data into a file and its path into the payload (the limit is payload_bytes_max, "
    "1 MiB unless set)",
)
"""The names by which schema.sql refuses a payload: SQLite hands over the name of a rule, and nothing else of it."""


def rule_broken(rule: str) -> RuleBroken | BadPayload:
    return BadPayload(rule) if rule in _PAYLOAD_RULES else RuleBroken(rule)


def _rule(message: str) -> str:
    """SQLite's sentence without its preamble: the constraints are named in words."""
    if message.startswith("NOT NULL constraint failed: "):
        return f"{message.rpartition('.')[2]} is missing: it must be given"
    # Of an index with an expression SQLite says the name; the others that may be violated are not for people.
    if message.startswith("UNIQUE constraint failed: index '"):
        return message.removeprefix("UNIQUE constraint failed: index '").removesuffix("'")
    return message.removeprefix("CHECK constraint failed: ")


def chunks(things: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(things)
    while chunk := list(islice(rest, size)):
        yield chunk


# ── Room for others between two writes ────────────────────────────────────────────────────────────────────────────────

_PAUSE_SECONDS = 0.001
_IN_A_ROW_SECONDS = 0.01
"""So long the writes of one turn may follow each other at once."""
_PAUSE_SHARE = 1 / 3
"""Of the time that they kept others out for: so long the door is open."""
_LONG_SECONDS = 0.005
"""After one write that takes longer it is open for as long: who waits at SQLite's lock tries again ever more rarely."""


class WritePauses:
    """A pause between two writes of ours, so that others get in: around each write transaction of the stores that
    share it, in one thread.

    SQLite's lock is not fair: a daemon that writes without a pause lets a person's INSERT wait for seconds. What passes
    between two writes anyway (a child runs, somebody is waited for) counts as the pause.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._entered = 0.0
        self._held_seconds = 0.0
        self._rest_until = 0.0
        self._busy_until = 0.0

    def turn(self) -> None:
        """A loop begins its next turn. Its writes follow each other at once: the pause comes before the first."""
        self._busy_until = 0.0

    def begin(self) -> None:
        now = self._monotonic()
        if now >= self._busy_until:
            left = self._rest_until - now
            if left > 0:
                self._sleep(left)
                now += left
            self._held_seconds, self._busy_until = 0.0, now + _IN_A_ROW_SECONDS
        self._entered = now

    def end(self) -> None:
        now = self._monotonic()
        own = now - self._entered
        self._held_seconds += own
        self._rest_until = now + max(
            _PAUSE_SECONDS, self._held_seconds * _PAUSE_SHARE, own if own > _LONG_SECONDS else 0.0
        )


# ── What others commit, and whether these are still our files ─────────────────────────────────────────────────────────

_MODIFY, _CREATE, _DELETE, _MOVED, _OVERFLOW = 0x2, 0x100, 0x200, 0xC0, 0x4000
_EVENT = struct.Struct("iIII")

_FIRST_LOOK_SECONDS = 0.0005
_LAST_LOOK_SECONDS = 0.5


class FileWatch:
    """Know within milliseconds that somebody has committed, at next to no cost.

    inotify on the database's folder is the hint: cheap, but every write triggers it, our own included, and it comes
    before the commit can be seen (the log is written first, then flushed). The change counter decides: it is asked
    again at growing distances after a hint, until it has moved. Whoever waits also polls now and then, so a lost hint
    costs little.

    If somebody deletes or replaces the database or its write-ahead log, our commits go on answering "done" and are
    lost. SQLite does not notice; the descriptors of this process do. Only names and numbers are looked at.
    """

    def __init__(
        self,
        database: Path,
        change_counter: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        begins_turn: Callable[[], None] = lambda: None,
    ) -> None:
        # As /proc spells it.
        self._path = database.resolve()
        self._identity = _identity(self._path)
        self._log_name = f"{database.name}-wal"
        self._names = {database.name, self._log_name, f"{database.name}-shm"}
        self._change_counter = change_counter
        self._monotonic = monotonic
        self._begins_turn = begins_turn
        self._seen: int | None = None
        self._gap = _FIRST_LOOK_SECONDS
        self.look_at: float | None = None
        """When to ask again, because a hint was not followed by a commit yet."""
        self.is_doubtful = False
        """A file of the database was deleted, moved or made anew: `fault` tells whether that is bad."""
        # Subscribed before the first read of the counter, or a commit in between would be missed.
        self._watch = _watch(database.parent)

    def fileno(self) -> int | None:
        """None: this system gives no hints."""
        return self._watch

    def has_changed(self) -> bool:
        """Whether anybody has committed since the last call. Who asks begins a turn, and writes after that."""
        self._begins_turn()
        is_hinted, now = self._hinted(), self._monotonic()
        if is_hinted:
            self._gap, self.look_at = _FIRST_LOOK_SECONDS, now + _FIRST_LOOK_SECONDS
        counter = self._change_counter()
        if counter != self._seen:
            self._seen = counter
            if not is_hinted:
                # Else what was hinted at may be the commit after this one.
                self.look_at = None
            return True
        if self.look_at is not None and now >= self.look_at:
            self._gap *= 2
            self.look_at = now + self._gap if self._gap <= _LAST_LOOK_SECONDS else None
        return False

    def fault(self) -> str | None:
        """What is wrong with the files, in a sentence; None: nothing."""
        self.is_doubtful = False
        identity = _identity(self._path)
        if identity is None:
            return f"{self._path} was deleted while it was in use"
        if identity != self._identity:
            return f"{self._path} was replaced by another file while it was in use"
        for name in _open_names():
            for suffix in ("", "-wal"):
                if name == f"{self._path}{suffix} (deleted)":
                    return f"{self._path}{suffix} was deleted while it was in use"
        return None

    def close(self) -> None:
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None

    def _hinted(self) -> bool:
        if self._watch is None:
            return False
        is_hinted = False
        while True:
            try:
                data = os.read(self._watch, 65536)
            except BlockingIOError:
                return is_hinted
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode("utf-8", "replace")
                at += _EVENT.size + length
                is_hinted |= name == self._log_name or bool(mask & _OVERFLOW)
                if (name in self._names and mask & (_CREATE | _DELETE | _MOVED)) or mask & _OVERFLOW:
                    self.is_doubtful = True


def _watch(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    watch = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if watch < 0:
        return None
    if libc.inotify_add_watch(watch, os.fsencode(folder), _MODIFY | _CREATE | _DELETE | _MOVED) < 0:
        os.close(watch)
        return None
    return watch


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _open_names() -> list[str]:
    names = []
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                names.append(os.readlink(entry.path))  # noqa: PTH115  a Path would cost more than the call
    return names
