"""Migrate an older database.

`adopt.sql` copies version 0, the original proposal's table; `0002_subject.sql` would lead to version 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from worker_service.base.errors import StoreAbsent
from worker_service.store.connection import (
    SCHEMA_VERSION,
    Connection,
    OnLongWait,
    connect,
    create,
    newer_schema_error,
    schema_version_of,
)
from worker_service.store.database import Transaction
from worker_service.store.errors import SqlError
from worker_service.store.opening import schema_sql

STEPS = Path(__file__).parent


def migrate(
    path: Path, *, dry_run: bool = False, on_long_wait: OnLongWait | None = None, steps: Path = STEPS
) -> list[str]:
    """Return one sentence for each change."""
    if not path.exists():
        raise StoreAbsent(f"there is no database at {path}", "make one with `pagemill init`")
    # A dry run must not change the journal mode either.
    opened = connect(path, on_long_wait=on_long_wait) if dry_run else create(path, on_long_wait)
    with closing(opened) as connection, Transaction(lambda: connection, path):
        version = schema_version_of(connection)
        if version is None:
            raise StoreAbsent(f"{path} has no pagemill tables yet", "make them with `pagemill init`")
        if version > SCHEMA_VERSION:
            raise newer_schema_error(path, version)
        changes = _adopt_plain_table(connection) if version == 0 else _run_steps(connection, version, steps)
        if dry_run:
            connection.execute("ROLLBACK; BEGIN")  # leaves nothing to commit
    return changes


def step_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (resulting version, file), in order."""
    names = sorted(path for path in folder.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", path.name))
    return [(int(path.name[:4]), path) for path in names]


def _run_steps(connection: Connection, version: int, folder: Path) -> list[str]:
    done = []
    # Otherwise renaming a table would rewrite the views and triggers that name it.
    connection.execute("PRAGMA legacy_alter_table = ON")
    for number, path in step_files(folder):
        if number > version:
            connection.execute(path.read_text("utf-8")).fetchall()
            connection.execute("UPDATE pagemill_schema SET version = ?", (number,))
            done.append(f"bring the tables to version {number} ({path.stem})")
    return done


# ── From the original proposal's plain table ──────────────────────────────────────────────────────────────────────────

_PLAIN_TABLE = "worker_job_queue_before_pagemill"

# Triggers and indexes that users have created on the plain table. Automatic indexes have no SQL in sqlite_schema.
_ATTACHED = """
SELECT type, name, sql FROM sqlite_schema
 WHERE type IN ('index', 'trigger') AND tbl_name = 'worker_job_queue' COLLATE NOCASE AND sql IS NOT NULL
   AND name NOT IN ('idx_job_queue_status', 'idx_job_queue_priority', 'idx_job_queue_platform')
 ORDER BY rowid
"""


def _adopt_plain_table(connection: Connection) -> list[str]:
    attached = [(str(kind), str(name), str(sql)) for kind, name, sql in connection.execute(_ATTACHED)]
    for kind, name, _ in attached:
        quoted_name = name.replace('"', '""')
        connection.execute(f'DROP {kind} "{quoted_name}"')
    # Otherwise the views and triggers that name the table would follow it to its new name.
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute(f"{_read('adopt_begin.sql')}\n{schema_sql()}").fetchall()
    # The guard refuses rows that are not new, and these rows are not.
    [(guard,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'job_insert_guard'").fetchall()
    connection.execute("DROP TRIGGER job_insert_guard")
    connection.execute(f"{_read('adopt.sql')}\n{guard}").fetchall()
    return [
        *(str(sentence) for (sentence,) in connection.execute(_read("adopt_summary.sql"))),
        *_left_behind(connection),
        *(_attach_again(connection, kind, name, sql) for kind, name, sql in attached),
    ]


def _left_behind(connection: Connection) -> Iterator[str]:
    adopted = set(_columns(connection, "worker_job_queue"))
    if left := [column for column in _columns(connection, _PLAIN_TABLE) if column not in adopted]:
        yield f"leave the columns that pagemill does not have in {_PLAIN_TABLE}: {', '.join(left)}"


def _attach_again(connection: Connection, kind: str, name: str, sql: str) -> str:
    """Leave out a trigger or index that would make writes fail."""
    connection.execute("SAVEPOINT attach")
    try:
        connection.execute(sql)
        # SQLite checks the body of a trigger when it prepares a statement that fires it.
        assignments = ", ".join(f"{column} = {column}" for column in _columns(connection, "worker_job_queue"))
        for statement in ("DELETE FROM worker_job_queue", f"UPDATE worker_job_queue SET {assignments}",
                          "INSERT INTO worker_job_queue DEFAULT VALUES"):  # fmt: skip
            connection.execute(f"EXPLAIN {statement}").fetchall()
    except SqlError as error:
        connection.execute("ROLLBACK TO attach; RELEASE attach")
        return f"leave out {kind} {name}, which does not fit today's table ({error}): {sql}"
    connection.execute("RELEASE attach")
    return f"carry over {kind} {name}"


def _columns(connection: Connection, table: str) -> list[str]:
    return [str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _read(name: str) -> str:
    return (STEPS / name).read_text("utf-8")
