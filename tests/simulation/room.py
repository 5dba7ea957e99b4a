"""A database in memory, and stores that are open on it, for one history after another.

To open a store and to prepare its statements takes longer than a history does. So both are kept: after a history that
ended well its rows are removed; after any other the room is furnished anew.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path

import apsw

from tests.simulation.watching import Surroundings, WatchedStore
from worker_service.store.opening import initialise
from worker_service.store.store import sqlite_statements

ORPHAN_AFTER_SECONDS = 300
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_KEPT = ("pagemill_schema", "worker_job_queue")


@cache
def statements() -> dict[str, str]:
    return sqlite_statements()


class Room:
    """`texts`: the statements of its stores, changed where a mutant is tried."""

    def __init__(self, texts: dict[str, str] | None = None) -> None:
        self._texts = texts or statements()
        self._stores: list[WatchedStore] = []
        self._furnish()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def lend(self, world: Surroundings, clock: Callable[[], datetime]) -> WatchedStore:
        """A store that nobody has now. Whoever is dead needs none."""
        store = self._free.pop() if self._free else self._open()
        store.database.enter(world, clock)
        return store

    def take_back(self, store: WatchedStore) -> None:
        store.database.leave()
        self._free.append(store)

    def tidy(self, *, is_sound: bool) -> None:
        """After a history: all stores are free again, and the database is as it was at first."""
        for store in self._stores:
            store.database.leave()
        self._free = list(reversed(self._stores))
        if is_sound:
            self._empty()
        else:
            self._clear()
            self._furnish()

    def _furnish(self) -> None:
        self.place = Path(tempfile.mkdtemp(dir=_MEMORY))
        self._stores, self._free = [], []
        initialise(self.place / "pagemill.db")

    def _clear(self) -> None:
        for store in self._stores:
            store.close()
        shutil.rmtree(self.place)

    def _open(self) -> WatchedStore:
        store = WatchedStore(self.place / "pagemill.db", self._texts, ORPHAN_AFTER_SECONDS)
        self._stores.append(store)
        return store

    def _empty(self) -> None:
        """Row by row, through the table's own guards: to restore a file would prepare every statement anew."""
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
