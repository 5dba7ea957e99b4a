"""The write connection, the read connection, the statements and the clock that all parts of a store share.

The write connection runs short ``BEGIN IMMEDIATE`` transactions; the read connection never writes. Both are opened on
first use, so that a user with read access only can still read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import apsw

from worker_service.base.clock import Clock, as_text
from worker_service.jobs.retries import RetryRule
from worker_service.store.connection import (
    BusyHandler,
    OnLongWait,
    RelaxedTransaction,
    Transaction,
    connect,
    connect_to_read,
    is_frozen,
)
from worker_service.store.errors import rule_of, translate_errors
from worker_service.store.mending import RETURNING, Row, read_with_replacement
from worker_service.store.write_pauses import WritePauses

T = TypeVar("T")

Values = tuple[Any, ...] | list[Any] | dict[str, Any]


class Database:
    """Connections and statements of one store. Use it in one thread only."""

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
        """Job type → retry settings, for jobs without settings of their own."""
        self.pauses = pauses
        self._on_long_wait = on_long_wait
        self.statements = statements
        self.clock = clock
        self._orphan_after = timedelta(seconds=orphan_after_seconds)
        self._is_durable = is_durable
        self.writing: apsw.Connection | None = None
        self._reading: apsw.Connection | None = None
        self.is_replacing = False
        self._last_write: Callable[[], None] | None = None

    def close(self) -> None:
        for connection in (self._reading, self.writing):
            if connection is not None:
                connection.close()
        self._reading = self.writing = None

    def now(self) -> str:
        return as_text(self.clock())

    def stale_before(self) -> str:
        """Return the time since which a live worker must have sent a heartbeat."""
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
        """Run a statement and return its rows.

        Raise `UnicodeDecodeError` if a RETURNING clause returns text that is not UTF-8: see `replacing_invalid_text`.
        """
        sql, values = self.statements[name], named if row is None else row
        if self.is_replacing:
            return read_with_replacement(self.writer, sql, values)
        try:
            # A half-read RETURNING keeps the write lock, so fetch every row.
            return self.writer.execute(sql, values).fetchall()
        except UnicodeDecodeError:
            if RETURNING.search(sql):
                raise
            return read_with_replacement(self.writer, sql, values)

    def query(self, name: str, /, **named: object) -> list[Row]:
        """Run a query on the write connection. Raise `UnicodeDecodeError` if it returns text that is not UTF-8."""
        sql = self.statements[name]
        return (
            read_with_replacement(self.writer, sql, named)
            if self.is_replacing
            else self.writer.execute(sql, named).fetchall()
        )

    @contextmanager
    def replacing_invalid_text(self) -> Iterator[None]:
        """Return invalid text as `ReplacedText` within this block.

        Reading is slower, so use it only to repeat a transaction that ended with a `UnicodeDecodeError`.
        """
        self.is_replacing = True
        try:
            yield
        finally:
            self.is_replacing = False

    def try_to_write(self, name: str, values: Values) -> str | None:
        """Run a statement. Return the broken rule if a constraint refuses it; the transaction stays open."""
        try:
            self.writer.execute(self.statements[name], values).fetchall()
        except apsw.ConstraintError as error:
            return rule_of(str(error))
        return None

    def write_each(self, name: str, /, values: Iterable[Values]) -> list[Row]:
        return self.writer.executemany(self.statements[name], values).fetchall()

    def read(self, name: str, /, **values: object) -> list[Row]:
        return self.read_sql(self.statements[name], values)

    def read_sql(self, sql: str, values: Sequence[Any] | dict[str, Any]) -> list[Row]:
        with translate_errors(self.path):
            try:
                return self.reader.execute(sql, values).fetchall()
            except UnicodeDecodeError:
                return read_with_replacement(self.reader, sql, values)

    def transaction(self) -> Transaction:
        """Return a context manager for one short write transaction.

        It is IMMEDIATE, because SQLite refuses to upgrade a read transaction to a write transaction without waiting.
        """
        return Transaction(lambda: self.writer, self.path, self.pauses, self._last_write)

    def relaxed_durability(self) -> Database:
        """Return this database on the same connections, with `synchronous = NORMAL` in its transactions.

        A power cut may lose their last commits.
        """
        return _RelaxedDatabase(self)

    @contextmanager
    def with_last_write(self, write: Callable[[], None]) -> Iterator[None]:
        """Call `write` at the end of each transaction that is started within this block."""
        self._last_write = write
        try:
            yield
        finally:
            self._last_write = None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Run all reads within this block on one snapshot of the database."""
        with translate_errors(self.path):
            self.reader.execute("BEGIN")
            try:
                yield
            finally:
                self.reader.execute("ROLLBACK")

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Run the block in a write transaction and roll it back. Does not wait for the write lock."""
        with translate_errors(self.path):
            connection = self.writer
            connection.set_busy_timeout(0)
            try:
                connection.execute("BEGIN IMMEDIATE")
            finally:
                connection.set_busy_handler(BusyHandler(self.path, self._on_long_wait))
            try:
                yield
            finally:
                connection.execute("ROLLBACK")


class _RelaxedDatabase(Database):
    """Database with reduced durability on the connections of another one.

    A separate connection's commits would look like another program's: the main loop would wake up, and SQLite would
    drop the page caches.
    """

    def __init__(self, durable: Database) -> None:
        super().__init__(durable.path, durable.statements, durable.clock, pauses=durable.pauses)
        self._durable = durable

    def close(self) -> None:
        """Do nothing: the connections belong to the other object."""

    @property
    def writer(self) -> apsw.Connection:
        return self._durable.writer

    @property
    def reader(self) -> apsw.Connection:
        return self._durable.reader

    def transaction(self) -> Transaction:
        return RelaxedTransaction(lambda: self.writer, self.path, self.pauses)


def chunks(things: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(things)
    while chunk := list(islice(rest, size)):
        yield chunk
