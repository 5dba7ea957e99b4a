"""The SQLite store: the sum of its parts, and the statements they share.

Connections → Reading, Leases → Explaining → Steering → Upkeep; the promises are in `base.py`.
"""

from __future__ import annotations

from worker_service.store.sqlite_forgetting import Forgetting
from worker_service.store.sqlite_intake import NEW_JOB_COLUMNS, ROWS_AT_ONCE
from worker_service.store.sqlite_library import Library
from worker_service.store.sqlite_linking import Linking
from worker_service.store.sqlite_reading import JOB_COLUMNS
from worker_service.store.sqlite_upkeep import Upkeep
from worker_service.store.statements import load

_RESTORED = tuple(name for name in JOB_COLUMNS if name not in ("id", "fence", "held"))


def _from_json(name: str) -> str:
    return f"json_extract(:before, '$.{name}')"


def sqlite_statements() -> dict[str, str]:
    names_and_values = ", ".join(f"'{name}', {name}" for name in JOB_COLUMNS)
    return (
        load("documents.sql")
        | load("library.sql", job_columns=", ".join(JOB_COLUMNS))
        | load(
            "sqlite.sql",
            new_rows=", ".join([f"({', '.join('?' * NEW_JOB_COLUMNS)})"] * ROWS_AT_ONCE),
            job_columns=", ".join(JOB_COLUMNS),
            row_json=f"json_object({names_and_values})",
            restored_columns=", ".join(f"{name} = {_from_json(name)}" for name in _RESTORED),
            restored_names=", ".join((*_RESTORED, "fence")),
            restored_values=", ".join(map(_from_json, (*_RESTORED, "fence"))),
        )
    )


class SqliteStore(Upkeep, Library, Forgetting, Linking):
    """For one thread; another thread opens a store of its own."""
