"""From any earlier schema to today's. The daemon never does this by itself; `pagemill db migrate` does.

Version 0 is the original proposal's plain table: it goes straight to today's schema (`adopt.sql`), because its columns
are kept. From version 1 on, ``0002_what_it_does.sql`` and so on lead from each schema to the next.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from worker_service.errors import SchemaMismatch, StoreAbsent
from worker_service.store.sqlite_connection import Connection, connect, create, spoken_errors

SCHEMA_VERSION = 2


def schema_sql() -> str:
    """The wheel carries schema.sql inside the package; a checkout has it at its root."""
    carried = files("worker_service").joinpath("schema.sql")
    if carried.is_file():
        return carried.read_text("utf-8")
    return (Path(__file__).parents[3] / "schema.sql").read_text("utf-8")


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


def steps_from(version: int) -> list[tuple[str, str]]:
    """Names and statements of the steps that lead from a version to today's."""
    if version == 0:
        return [
            ("adopt the original worker_job_queue", f"{_read('adopt_begin.sql')}\n{schema_sql()}\n{_read('adopt.sql')}")
        ]
    numbered = sorted(
        entry.name for entry in files(__package__).iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", entry.name)
    )
    return [(name.removesuffix(".sql"), _read(name)) for name in numbered if int(name[:4]) > version]


def migrate(path: Path, *, dry_run: bool = False) -> list[str]:
    """Bring a database to today's schema, in one transaction; return the names of the steps."""
    if not path.exists():
        raise StoreAbsent(f"there is no database at {path}: make one with `pagemill init`")
    # A dry run leaves even the journal mode as it is.
    connection = connect(path) if dry_run else create(path)
    try:
        with spoken_errors(path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = schema_version_of(connection)
                if version is None:
                    raise StoreAbsent(f"{path} has no pagemill tables yet: make them with `pagemill init`")
                if version > SCHEMA_VERSION:
                    raise SchemaMismatch(newer(path, version))
                steps = steps_from(version)
                for _, statements in steps:
                    connection.execute(statements).fetchall()
                connection.execute("ROLLBACK" if dry_run else "COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    finally:
        connection.close()
    return [name for name, _ in steps]


def newer(path: Path, version: int) -> str:
    return f"{path} has schema {version}, newer than this pagemill knows ({SCHEMA_VERSION}): upgrade pagemill"


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
