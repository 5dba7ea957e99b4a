"""A database in memory and open stores, which one history after another uses.

Opening a store and preparing its statements takes longer than a history. After a sound history only the rows are
removed; after any other the database is created anew.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path

import apsw

from tests.simulation.watched_store import Surroundings, WatchedStore
from worker_service.store.opening import initialise
from worker_service.store.statements import sqlite_statements

ORPHAN_AFTER_SECONDS = 300
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_KEPT = ("pagemill_schema", "worker_job_queue")


@cache
def statements() -> dict[str, str]:
    return sqlite_statements()


class StorePool:
    """`texts` are the statements, changed if a mutant is tried."""

    def __init__(self, texts: dict[str, str] | None = None) -> None:
        self._texts = texts or statements()
        self._stores: list[WatchedStore] = []
        self._create_database()

    def __enter__(self) -> StorePool:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def lend(self, world: Surroundings, clock: Callable[[], datetime]) -> WatchedStore:
        """Return a store that is not in use."""
        store = self._free.pop() if self._free else self._open_store()
        store.database.enter(world, clock)
        return store

    def take_back(self, store: WatchedStore) -> None:
        store.database.leave()
        self._free.append(store)

    def tidy(self, *, is_sound: bool) -> None:
        """Take back all stores after a history and empty the database."""
        for store in self._stores:
            store.database.leave()
        self._free = list(reversed(self._stores))
        if is_sound:
            self._empty()
        else:
            self._clear()
            self._create_database()

    def _create_database(self) -> None:
        self.place = Path(tempfile.mkdtemp(dir=_MEMORY))
        self._stores, self._free = [], []
        initialise(self.place / "pagemill.db")

    def _clear(self) -> None:
        for store in self._stores:
            store.close()
        shutil.rmtree(self.place)

    def _open_store(self) -> WatchedStore:
        store = WatchedStore(self.place / "pagemill.db", self._texts, ORPHAN_AFTER_SECONDS)
        self._stores.append(store)
        return store

    def _empty(self) -> None:
        """Delete the rows: after restoring a file, every statement would have to be prepared again."""
        connection = apsw.Connection(str(self.place / "pagemill.db"))
        try:
            made = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
            indexes = tuple(name for name, sql in made.items() if sql.startswith("CREATE VIRTUAL"))
            # The tables behind a full-text index are its own; nothing here fills it.
            tables = [name for name in made if name not in _KEPT and not name.startswith(("sqlite_", *indexes))]
            with connection:
                for name in ("worker_job_queue", *tables):
                    connection.execute(f"DELETE FROM {name}")
                connection.execute("DELETE FROM sqlite_sequence")
        finally:
            connection.close()
