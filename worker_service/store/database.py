"""What the parts of a store share: a writer, a reader, statements and a clock.

A store has two connections: a writer (short ``BEGIN IMMEDIATE`` transactions) and a reader that never writes. Both are
opened when they are first needed, so that a person who may only read can still look.
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
    HurriedTransaction,
    OnLongWait,
    Transaction,
    connect,
    connect_to_read,
    is_frozen,
)
from worker_service.store.errors import rule_of, spoken_errors
from worker_service.store.mending import RETURNING, Row, mended_rows
from worker_service.store.write_pauses import WritePauses

T = TypeVar("T")

Values = tuple[Any, ...] | list[Any] | dict[str, Any]


class Database:
    """Shared by all parts of a store. For one thread."""

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
            if RETURNING.search(sql):
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
            return rule_of(str(error))
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
                connection.set_busy_handler(BusyHandler(self.path, self._on_long_wait))
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
        return HurriedTransaction(lambda: self.writer, self.path, self.pauses)


def chunks(things: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(things)
    while chunk := list(islice(rest, size)):
        yield chunk
