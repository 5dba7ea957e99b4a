"""Read the .sql files: ``-- name: claim`` starts a statement, ``-- fragment: lanes`` text that replaces ``{lanes}``."""

from __future__ import annotations

import re
from pathlib import Path

from worker_service.jobs.job import Job, NewJob
from worker_service.store.database import placeholders

# Fields that are not stored unchanged in a column of the same name.
_CONVERTED_FIELDS = (
    "run_at", "max_retries", "name", "after", "after_any", "after_earlier", "on_failure", "document", "adds_document",
)  # fmt: skip
PLAIN_FIELDS = tuple(name for name in NewJob.__struct_fields__ if name not in _CONVERTED_FIELDS)
_NEW_COLUMNS = (*PLAIN_FIELDS, "run_at", "created_at", "max_retries", "parent_id", "name")
# Most jobs set only these fields. Binding the defaults of the others would cost a tenth of an INSERT
# (`enqueue_many` in benchmarks).
COMMON_FIELDS = ("job_type", "platform", "account", "payload", "priority", "owner")
_COMMON_COLUMNS = (*COMMON_FIELDS, "created_at", "max_retries", "parent_id")

_HEADING = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_PLACE = re.compile(r"\{(\w+)\}")


def sqlite_statements() -> dict[str, str]:
    # Fragments made from Python constants.
    fragments = {
        "new_columns": ", ".join(_NEW_COLUMNS),
        "new_row": placeholders(len(_NEW_COLUMNS)),
        "common_columns": ", ".join(_COMMON_COLUMNS),
        "common_row": placeholders(len(_COMMON_COLUMNS)),
        "job_columns": ", ".join(Job._fields),
        "job_columns_as_bytes": ", ".join(f"CAST({name} AS BLOB)" for name in Job._fields),
        # Rows of the statements close_completed and complete.
        "closing_row": placeholders(10),
        "completed_row": placeholders(4),
    }
    statements: dict[str, str] = {}
    for file in sorted(Path(__file__).parent.glob("*.sql")):
        pieces = _HEADING.split(file.read_text("utf-8"))
        for kind, name, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            # Two empty lines end a section; the heading of the next one follows them.
            sql = text.split("\n\n\n")[0].strip().removesuffix(";")
            (fragments if kind == "fragment" else statements)[name] = sql

    def fill(sql: str) -> str:
        return _PLACE.sub(lambda place: fill(fragments[place[1]]), sql)

    return {name: fill(sql) for name, sql in statements.items()}
