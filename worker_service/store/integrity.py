"""SQLite's own integrity check, with the faults of the full-text index apart: the index can be built again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from worker_service.base.errors import StoreDamaged
from worker_service.store.errors import SqlError
from worker_service.store.mending import Row

FAULTS_MOST = 5


class Faults(NamedTuple):
    tables: Sequence[str]
    search_index: Sequence[str]


def faults_of(run: Callable[[str], list[Row]]) -> Faults:
    """Check a database; `run` executes a statement and returns its rows."""
    has_index = bool(run("SELECT 1 FROM sqlite_schema WHERE name = 'page_text'"))
    if has_index:
        # A connection remembers the structure of the index. A query looks whether others have changed it; a check
        # does not, and would find faults that are not there.
        with suppress(StoreDamaged, SqlError):
            run("SELECT 1 FROM page_text WHERE rowid = 0")
    found = _check(run, f"integrity_check({FAULTS_MOST})")
    if not found or not has_index:
        return Faults(found, [])
    # Since SQLite 3.44 the check of a virtual table is FTS5's own.
    of_index = _check(run, "integrity_check(page_text)")
    return Faults([fault for fault in found if fault not in of_index], of_index)


def _check(run: Callable[[str], list[Row]], pragma: str) -> list[str]:
    return [str(fault) for (fault,) in run(f"PRAGMA {pragma}") if fault != "ok"]
