"""SQLite's integrity check. Faults of the full-text index are listed separately, because the index can be rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from worker_service.base.errors import StoreDamaged
from worker_service.store.database import Row
from worker_service.store.errors import SqlError

FAULTS_MOST = 5


class Faults(NamedTuple):
    tables: Sequence[str]
    search_index: Sequence[str]


def faults_of(run: Callable[[str], list[Row]]) -> Faults:
    """Check a database; `run` executes a statement and returns its rows."""
    has_index = bool(run("SELECT 1 FROM sqlite_schema WHERE name = 'page_text'"))
    if has_index:
        # A connection caches the structure of the index. A query refreshes the cache after another connection's change;
        # integrity_check does not, and would report faults that do not exist.
        with suppress(StoreDamaged, SqlError):
            run("SELECT 1 FROM page_text WHERE rowid = 0")
    found = _check(run, f"integrity_check({FAULTS_MOST})")
    if not found or not has_index:
        return Faults(found, [])
    # Since SQLite 3.44, integrity_check of a virtual table calls FTS5's own check.
    of_index = _check(run, "integrity_check(page_text)")
    return Faults([fault for fault in found if fault not in of_index], of_index)


def _check(run: Callable[[str], list[Row]], pragma: str) -> list[str]:
    return [str(fault) for (fault,) in run(f"PRAGMA {pragma}") if fault != "ok"]
