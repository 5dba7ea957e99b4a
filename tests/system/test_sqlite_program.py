from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job_handlers.reading.documents import digital, prose
from tests.kit.system import System, wait_until
from tests.system.test_reading import ReadingSystem
from worker_service.store.opening import open_store

TABLES = """
SELECT l.name FROM pragma_table_list l
 WHERE l.schema = 'main' AND l.type IN ('table', 'shadow') AND l.name <> 'sqlite_schema' ORDER BY l.name
"""


def typed(database: Path, *lines: str) -> str:
    """Type lines at the prompt of `sqlite3`, which ends at the first error."""
    script = "\n".join((".bail on", ".timeout 5000", *lines))
    done = subprocess.run(["sqlite3", str(database)], input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def counts(database: Path) -> dict[str, int]:
    """Count the rows of every table."""
    names = typed(database, TABLES + ";").split()
    sql = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM \"{name}\"" for name in names)
    rows = [line.split("|") for line in typed(database, sql + ";").splitlines()]
    return {name: int(number) for name, number in rows}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadingSystem]:
    """A daemon that has run jobs and read a document, and still runs."""
    reader = ReadingSystem(tmp_path_factory.mktemp("sqlite"))
    try:
        reader.start()
        path = reader.papers / "report.pdf"
        digital(path, [prose(1), prose(2)])
        reader.add_and_read(path)
        wait_until(lambda: counts(reader.system.database)["link_due"] == 0, "the names of its files are made")
        reader.run("enqueue", "ingest", "--run-at", "2099-01-01", "--payload", '{"path": "/srv/other.pdf"}')
        yield reader
    finally:
        reader.system.close()


@pytest.mark.parametrize("pragma", ["integrity_check", "quick_check", "foreign_key_check"])
def test_the_checks_of_sqlite_find_nothing(reader: ReadingSystem, pragma: str) -> None:
    assert typed(reader.system.database, f"PRAGMA {pragma};").split() == (
        [] if pragma == "foreign_key_check" else ["ok"]
    )


@pytest.mark.parametrize("way", [".dump", ".backup", "VACUUM INTO"])
def test_a_copy_has_every_row_and_can_be_opened(reader: ReadingSystem, tmp_path: Path, way: str) -> None:
    source, copy = reader.system.database, tmp_path / "copy.db"

    if way == ".dump":
        typed(copy, *typed(source, ".dump").splitlines())
    else:
        typed(source, f".backup '{copy}'" if way == ".backup" else f"VACUUM INTO '{copy}';")

    assert counts(copy) == counts(source)
    assert all(
        counts(copy)[name] for name in ("worker", "handler", "worker_job_queue", "document", "page_result", "file")
    )
    assert typed(copy, "PRAGMA integrity_check;") == "ok\n"
    store = open_store(copy)
    assert store.integrity.audit() == []
    assert [check.detail for check in store.integrity.check() if check.name == "integrity" and not check.is_good] == []
    store.close()


def test_a_daemon_puts_its_database_into_wal_mode(system: System) -> None:
    mode = "PRAGMA journal_mode"
    system.store.close()
    assert system.sqlite3(f"{mode} = DELETE").stdout == "delete\n"
    system.store = open_store(system.database)
    assert [
        check.detail for check in system.store.integrity.check() if check.name == "journal mode" and not check.is_good
    ] == ["delete mode, in which readers and writers wait for each other"]

    system.start()

    assert system.sqlite3(mode).stdout == "wal\n"
    assert [check.is_good for check in system.store.integrity.check() if check.name == "journal mode"] == [True]
