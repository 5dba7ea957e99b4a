"""Statements, clock and write transactions, for all parts of the store.

Connections open on first use, so that reading needs no write access.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
from msgspec import Struct

from worker_service.base.clock import Clock, as_text
from worker_service.store.connection import BusyHandler, OnLongWait, connect, connect_to_read, is_unused
from worker_service.store.errors import DRIVER_ERRORS, raise_translated, rule_of, translate_errors

if TYPE_CHECKING:
    from worker_service.jobs.retries import RetryRule
    from worker_service.store.store import Store

T = TypeVar("T")

Row = tuple[Any, ...]
Values = Sequence[Any] | dict[str, Any]

_PAUSE_SECONDS_MIN = 0.001
# Writes within this time of the first one follow each other without a pause.
_BURST_SECONDS = 0.01
# Length of a pause as a share of the time that the lock was held.
_PAUSE_SHARE = 1 / 3
# A longer write gets a pause as long as itself, because waiting programs retry at growing intervals.
_LONG_WRITE_SECONDS = 0.005


class WriteOptions(Struct, frozen=True):
    is_durable: bool = True
    """False: a power cut may undo the last commits."""
    on_long_wait: OnLongWait | None = None
    pauses: WritePauses | None = None


class Database:
    def __init__(
        self,
        path: Path,
        statements: dict[str, str],
        clock: Clock,
        *,
        orphan_after_seconds: int = 300,
        retries: Mapping[str, RetryRule] = MappingProxyType({}),
        writing: WriteOptions | None = None,
    ) -> None:
        self.path = path
        self.retries = retries
        self.write_options = writing or WriteOptions()
        self.statements = statements
        self.clock = clock
        self._orphan_after = timedelta(seconds=orphan_after_seconds)
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._before_commit: Callable[[], None] | None = None

    def close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def now(self) -> str:
        return as_text(self.clock())

    def stale_before(self) -> str:
        """Return the time since which a live worker must have beaten."""
        return as_text(self.clock() - self._orphan_after)

    @property
    def writer(self) -> apsw.Connection:
        if self._writer is None:
            options = self.write_options
            self._writer = connect(self.path, is_durable=options.is_durable, on_long_wait=options.on_long_wait)
        return self._writer

    @property
    def reader(self) -> apsw.Connection:
        # An immutable connection does not see later commits, so open another one once the database is in use.
        if self._reader is not None and self._reader.open_flags & apsw.SQLITE_OPEN_URI and not is_unused(self.path):
            self._reader.close()
            self._reader = None
        if self._reader is None:
            self._reader = connect_to_read(self.path)
        return self._reader

    def change_counter(self) -> int:
        # The number changes when another connection commits.
        try:
            # Ask the write connection, if any, so that this process's own commits do not count.
            [(counter,)] = (self._writer or self.reader).execute("PRAGMA data_version").fetchall()
        except DRIVER_ERRORS as error:
            raise_translated(error, self.path)
        return int(str(counter))

    def write(self, name: str, row: Row | None = None, /, **named: object) -> list[Row]:
        """Run a statement on the write connection.

        Where text is not UTF-8, RETURNING raises `UnicodeDecodeError` after the write.
        """
        return _run(self.writer, self.statements[name], named if row is None else row)

    def read_locked(self, name: str, /, **values: object) -> list[Row]:
        """Run a SELECT on the write connection, so that it sees the transaction's own changes.

        Where text is not UTF-8, it has replacement characters.
        """
        return _run(self.writer, self.statements[name], values)

    def write_rows(self, name: str, rows: Sequence[Row], *other_values: object) -> list[Row]:
        """Run a statement once for all rows, with its VALUES row repeated; `other_values` are bound after them."""
        row = placeholders(len(rows[0]))
        sql = self.statements[name].replace(row, ", ".join([row] * len(rows)))
        return self.writer.execute(sql, [*(value for values in rows for value in values), *other_values]).fetchall()

    def try_to_write(self, name: str, values: Values) -> str | None:
        """Return None, or the sentence of the constraint that refused the write. The transaction stays open."""
        try:
            self.writer.execute(self.statements[name], values).fetchall()
        except apsw.ConstraintError as error:
            return rule_of(str(error))
        return None

    def write_each(self, name: str, /, values: Iterable[Values]) -> list[Row]:
        return self.writer.executemany(self.statements[name], values).fetchall()

    def read(self, name: str, /, **values: object) -> list[Row]:
        return self.read_sql(self.statements[name], values)

    def read_value(self, name: str, /, **values: object) -> Any:
        [(value,)] = self.read(name, **values)
        return value

    def read_flag(self, name: str, /, **values: object) -> bool:
        """Run a query of one condition. No row means False."""
        return self.read(name, **values) == [(1,)]

    def read_flag_locked(self, name: str, /, **values: object) -> bool:
        return self.read_locked(name, **values) == [(1,)]

    def read_sql(self, sql: str, values: Values) -> list[Row]:
        try:
            return _run(self.reader, sql, values)
        except DRIVER_ERRORS as error:
            raise_translated(error, self.path)

    def transaction(self) -> Transaction:
        # Takes the write lock at once: SQLite refuses to upgrade a read transaction without waiting.
        return Transaction(lambda: self.writer, self.path, self.write_options.pauses, self._before_commit)

    def relaxed_durability(self) -> Database:
        """Return this database with `synchronous = NORMAL`, for writes that a power cut may undo."""
        return _RelaxedDatabase(self)

    @contextmanager
    def with_before_commit(self, write: Callable[[], None]) -> Iterator[None]:
        """Call `write` at the end of each transaction in this block."""
        self._before_commit = write
        try:
            yield
        finally:
            self._before_commit = None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with translate_errors(self.path):
            self.reader.execute("BEGIN")
            try:
                yield
            finally:
                self.reader.execute("ROLLBACK")

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Roll the block back at its end. Raise `StoreBusy` at once if another program holds the lock."""
        with translate_errors(self.path):
            connection = self.writer
            connection.set_busy_timeout(0)
            try:
                connection.execute("BEGIN IMMEDIATE")
            finally:
                connection.set_busy_handler(BusyHandler(self.path, self.write_options.on_long_wait))
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


class _RelaxedDatabase(Database):
    # Shares the connections of `durable`: commits of another one would wake up the main loop and drop its page cache.

    def __init__(self, durable: Database) -> None:
        super().__init__(durable.path, durable.statements, durable.clock, writing=durable.write_options)
        self._durable = durable

    def close(self) -> None:
        pass

    @property
    def writer(self) -> apsw.Connection:
        return self._durable.writer

    @property
    def reader(self) -> apsw.Connection:
        return self._durable.reader

    def transaction(self) -> Transaction:
        return _RelaxedTransaction(lambda: self.writer, self.path, self.write_options.pauses)


class StorePart:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._db = store.database


# ── Rows ──


def placeholders(width: int) -> str:
    return f"({', '.join('?' * width)})"


def _run(connection: apsw.Connection, sql: str, values: Values) -> list[Row]:
    try:
        # A half-read RETURNING keeps the write lock, so fetch every row.
        return connection.execute(sql, values).fetchall()
    except UnicodeDecodeError:
        # Imported only for this rare case, because the module imports many others.
        from apsw.ext import query_info

        query = query_info(connection, sql, values)
        if not query.is_readonly:
            raise
        return _read_with_replacement(connection, sql, values, len(query.description))


def _read_with_replacement(connection: apsw.Connection, sql: str, values: Values, width: int) -> list[Row]:
    # For each column, read the type and the value, text as bytes. Python decodes them with replacement characters.
    names = [f"c{number}" for number in range(width)]
    columns = ", ".join(f"typeof({name}), iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in names)
    sql = f"WITH found({', '.join(names)}) AS MATERIALIZED ({sql}) SELECT {columns} FROM found"
    rows: list[Row] = connection.execute(sql, values).fetchall()
    return [
        tuple(
            bytes(value).decode(errors="replace") if kind == "text" else value
            for kind, value in zip(row[::2], row[1::2], strict=True)
        )
        for row in rows
    ]


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


# ── Write transactions ──


class Transaction:
    # A class instead of a `contextmanager`, whose generator would slow down every claim.

    def __init__(
        self,
        connection: Callable[[], apsw.Connection],
        path: Path,
        pauses: WritePauses | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        self._connect = connection
        self._path = path
        self._pauses = pauses
        self._before_commit = before_commit

    def __enter__(self) -> None:
        if self._pauses is not None:
            self._pauses.begin_write()
        try:
            self._connection = self._connect()
            self._connection.execute("BEGIN IMMEDIATE")
        except DRIVER_ERRORS as error:
            raise_translated(error, self._path)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._commit()
                return
            self._roll_back()
            if isinstance(error, DRIVER_ERRORS):
                raise_translated(error, self._path)
        finally:
            if self._pauses is not None:
                self._pauses.end_write()

    def _commit(self) -> None:
        try:
            if self._before_commit is not None:
                self._before_commit()
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, DRIVER_ERRORS):
                raise_translated(error, self._path)
            raise

    def _roll_back(self) -> None:
        # After some errors SQLite has rolled back already.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


class _RelaxedTransaction(Transaction):
    def __enter__(self) -> None:
        try:
            _set_synchronous(self._connect(), "NORMAL")
        except DRIVER_ERRORS as error:
            raise_translated(error, self._path)
        try:
            super().__enter__()
        except BaseException:
            _set_synchronous(self._connect(), "FULL")
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            _set_synchronous(self._connection, "FULL")


def _set_synchronous(connection: apsw.Connection, level: str) -> None:
    # The PRAGMA takes effect when it is prepared, so a cached statement would do nothing.
    connection.execute(f"PRAGMA synchronous = {level}", can_cache=False)


class WritePauses:
    """Pauses between write transactions. SQLite's lock is not fair: without pauses, other programs wait for seconds."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._write_began_at = 0.0
        self._seconds_held_in_burst = 0.0
        self._pause_until = 0.0
        self._burst_until = 0.0

    def end_burst(self) -> None:
        self._burst_until = 0.0

    def begin_write(self) -> None:
        now = self._monotonic()
        if now >= self._burst_until:
            seconds_left = self._pause_until - now
            if seconds_left > 0:
                self._sleep(seconds_left)
                now += seconds_left
            self._seconds_held_in_burst, self._burst_until = 0.0, now + _BURST_SECONDS
        self._write_began_at = now

    def end_write(self) -> None:
        now = self._monotonic()
        seconds = now - self._write_began_at
        self._seconds_held_in_burst += seconds
        self._pause_until = now + max(
            _PAUSE_SECONDS_MIN,
            self._seconds_held_in_burst * _PAUSE_SHARE,
            seconds if seconds > _LONG_WRITE_SECONDS else 0.0,
        )
