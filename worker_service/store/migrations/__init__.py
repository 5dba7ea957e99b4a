"""From any earlier schema to today's. The daemon never does this by itself; `pagemill db migrate` does.

`schema.sql` alone says what today's schema is: what differs from it is made anew, and what stands in the tables is
carried over, column by column. Only what that cannot do has a file, ``0003_what_it_does.sql`` for the step to version
3, which runs first, while no trigger is there to object: bounds that older rows break, names that are gone.
`batches.sql` makes the batches that jobs named while batches had no table. Version 0 is the original proposal's plain
table, whose rows `adopt.sql` takes over.
"""

from __future__ import annotations

import re
from pathlib import Path

from worker_service.errors import SchemaMismatch, StoreAbsent
from worker_service.store.database import Connection, OnLongWait, Transaction, connect, create, in_memory

SCHEMA_VERSION = 7

# What an earlier schema had and today's has not. Whatever else hangs on our tables is somebody's own, and stays.
_GONE: tuple[str, ...] = tuple(
    """
    job_unique_live job_payload_guard job_starts job_waits_again job_cancel_by_hand job_retry_by_hand
    job_document_insert_guard job_document_guard job_stale_guard dependency_holds document_insert_guard
    document_guard document_generation document_delete_guard document_deleted document_links document_follows
    document_loses_job document_regains_job file_insert_guard file_guard file_tied file_deleted file_back
    page_result_guard page_result_delete_guard page_result_added page_result_deleted page_insert_guard page_guard
    page_delete_guard page_added page_deleted page_changed checkpoint_guard checkpoint_done checkpoint_deleted
    crawl_item_moved schema_insert_guard job_delete_guard action_item_by_job v_undo v_undo_of_delete
    attempt_guard attempt_insert_guard event_guard event_insert_guard log_guard log_insert_guard action_guard
    """.split()
)

_FILLED_BY = {"batch": "batches.sql", "deferred_action": "actions.sql"}
"""Of a table that is new: what fills it from rows that were there before."""

_HERE = Path(__file__).parent
_BOUND = re.compile(r"length\(CAST\((\w+) AS BLOB\)\) <= (\d+)")

_ONE_OF_A_KIND = ("unique_key", "concurrency_key", "source_key", "digest")

_Made = dict[str, tuple[str, str, str]]
"""By name: what kind of thing it is, the table that it hangs on, and the statement that makes it."""


def schema_sql() -> str:
    """The wheel carries schema.sql inside the package; a checkout has it at its root."""
    carried = _HERE.parents[1] / "schema.sql"
    if carried.is_file():
        return carried.read_text("utf-8")
    return (_HERE.parents[2] / "schema.sql").read_text("utf-8")


def schema_version_of(connection: Connection) -> int | None:
    """None: no pagemill tables; 0: the original proposal's table."""
    tables = {
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE name IN ('pagemill_schema', 'worker_job_queue')"
        )
    }
    if "pagemill_schema" in tables:
        [(version,)] = connection.execute("SELECT max(version) FROM pagemill_schema").fetchall()
        return int(str(version))
    return 0 if "worker_job_queue" in tables else None


def migrate(path: Path, *, dry_run: bool = False, on_long_wait: OnLongWait | None = None) -> list[str]:
    """Bring a database to today's schema, in one transaction; return what was done, a sentence each."""
    if not path.exists():
        raise StoreAbsent(f"there is no database at {path}: make one with `pagemill init`")
    # A dry run leaves even the journal mode as it is.
    connection = connect(path, on_long_wait=on_long_wait) if dry_run else create(path, on_long_wait)
    try:
        with Transaction(lambda: connection, path):
            version = schema_version_of(connection)
            if version is None:
                raise StoreAbsent(f"{path} has no pagemill tables yet: make them with `pagemill init`")
            if version > SCHEMA_VERSION:
                raise SchemaMismatch(newer(path, version))
            done = _bring_to_today(connection, version)
            if dry_run:
                connection.execute("ROLLBACK; BEGIN")  # so that nothing is committed
    finally:
        connection.close()
    return done


def newer(path: Path, version: int) -> str:
    return f"{path} has schema {version}, newer than this pagemill knows ({SCHEMA_VERSION}): upgrade pagemill"


def _bring_to_today(connection: Connection, version: int) -> list[str]:
    if version == SCHEMA_VERSION:
        return []
    if version == 0:
        connection.execute(f"{_read('adopt_begin.sql')}\n{schema_sql()}").fetchall()
        # These rows have a history, and no hand has made it up.
        _, _, guard = _made_of(connection)["job_insert_guard"]
        connection.execute("DROP TRIGGER job_insert_guard")
        connection.execute(f"{_read('adopt.sql')}\n{guard}").fetchall()
        return [str(sentence) for (sentence,) in connection.execute(_read("adopt_told.sql"))]
    today = _made_of(in_memory(schema_sql()))
    hanging = _take_off_what_hangs(connection, today)
    done = []
    present = _made_of(connection)
    for name, pieces in _steps_from(version):
        for table, statements in pieces:
            if table in present:
                connection.execute(statements).fetchall()
        done.append(name)
    _cut_off_what_is_too_long(connection, today)
    for name, (kind, _, sql) in today.items():
        if kind == "table" and (sentence := _bring_table(connection, name, sql)):
            done.append(sentence)
    for table, file in _FILLED_BY.items():
        if table not in present:
            connection.execute(_read(file)).fetchall()
    theirs = {name: made for name, made in hanging.items() if name not in today and name not in _GONE}
    present = _made_of(connection)
    for name, (_, _, sql) in (today | theirs).items():
        if name not in present:
            connection.execute(sql)
    connection.execute("UPDATE pagemill_schema SET version = ?", (SCHEMA_VERSION,))
    return [*done, f"bring indexes, triggers and views to schema {SCHEMA_VERSION}"]


def _made_of(connection: Connection) -> _Made:
    """All that a person sees, in the order in which it was made."""
    return {
        name: (kind, table, sql)
        for name, kind, table, sql in connection.execute(
            "SELECT name, type, tbl_name, sql FROM sqlite_schema"
            " WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'"
            "   AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow')"
            " ORDER BY rowid"
        )
    }


def _take_off_what_hangs(connection: Connection, today: _Made) -> _Made:
    """Drop the indexes and triggers of our tables, and our views, so that nothing fires or refers while rows move."""
    tables = {name for name, (kind, _, _) in today.items() if kind == "table"}
    hanging = {
        name: made
        for name, made in _made_of(connection).items()
        if made[0] != "table" and (made[1] in tables or name in today or name in _GONE)
    }
    for name, (kind, _, _) in hanging.items():
        connection.execute(f"DROP {kind} {_quoted(name)}")
    return hanging


def _cut_off_what_is_too_long(connection: Connection, today: _Made) -> None:
    """By the bounds that today's tables have. A character has up to four bytes; what is one of a kind stays so by its
    number, and a row that goes by such a name was nobody's."""
    for table, (_, _, sql) in today.items():
        there, names = _columns(connection, table), _columns(connection, table, "pk > 0")
        for column, most in _BOUND.findall(sql):
            cut = f"substr({column}, 1, {int(most) // 4})"
            if column in _ONE_OF_A_KIND:
                cut = f"substr({column}, 1, {int(most) // 4 - 100}) || ' (cut off) ' || id"
            change = f"DELETE FROM {table}" if column in names else f"UPDATE {table} SET {column} = {cut}"
            if column in there:
                connection.execute(f"{change} WHERE length(CAST({column} AS BLOB)) > {most}")


def _bring_table(connection: Connection, name: str, sql: str) -> str | None:
    """Make the table, or make it anew with the rows that it has; what was done."""
    present = _made_of(connection).get(name)
    if present is None:
        connection.execute(sql)
        return f"make table {name}"
    if present[2] == sql:
        return None
    before, table = _quoted(f"{name}_before"), _quoted(name)
    # Else the views that somebody made over the table would follow it to its other name.
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute(f"ALTER TABLE {table} RENAME TO {before}")
    connection.execute(sql)
    shared = [
        _quoted(column) for column in _columns(connection, name) if column in _columns(connection, f"{name}_before")
    ]
    columns = ", ".join(shared)
    connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {before}")
    # An id that was used before is not used again, deleted rows included.
    connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
    connection.execute("UPDATE sqlite_sequence SET name = ? WHERE name = ?", (name, f"{name}_before"))
    connection.execute(f"DROP TABLE {before}")
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    return f"make table {name} anew, with its rows ({count})"


def _columns(connection: Connection, table: str, condition: str = "1") -> list[str]:
    sql = f"SELECT name FROM pragma_table_info(?) WHERE {condition}"
    return [str(name) for (name,) in connection.execute(sql, (table,))]


def _steps_from(version: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """Names of the files that lead from a version to today's, and their statements, table by table."""
    names = sorted(entry.name for entry in _HERE.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", entry.name))
    return [(name.removesuffix(".sql"), _pieces(_read(name))) for name in names if int(name[:4]) > version]


def _pieces(text: str) -> list[tuple[str, str]]:
    """``-- table: pause`` begins what is about that table: an earlier schema may not have it."""
    found = re.split(r"^-- table: (\w+)\n", text, flags=re.MULTILINE)
    return list(zip(found[1::2], found[2::2], strict=True))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _read(name: str) -> str:
    return (_HERE / name).read_text("utf-8")
