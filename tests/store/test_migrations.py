"""Migrations: from the original proposal's plain table, and step by step from one released schema to the next."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.store.kit import ByHand, MovableClock, all_jobs, claim_one, claimed_ids, new_worker
from worker_service.base.errors import SchemaMismatch, StoreAbsent, StoreUnusable
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.store.connection import SCHEMA_VERSION
from worker_service.store.migrations import STEPS, migrate, step_files
from worker_service.store.opening import initialise, open_store, schema_version
from worker_service.store.store import Store

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
CANONICAL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")

# Verbatim from the proposal.
ORIGINAL = """
CREATE TABLE IF NOT EXISTS worker_job_queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_type TEXT NOT NULL,          -- 'scrape', 'download', 'sync', etc.
    platform TEXT NOT NULL,          -- 'instagram', 'paid_content', 'tiktok', etc.
    account TEXT,                    -- username or null for system tasks
    priority INTEGER DEFAULT 5,      -- 1=highest, 10=lowest
    status TEXT DEFAULT 'pending',   -- 'pending', 'running', 'completed', 'failed', 'cancelled'
    payload TEXT,                    -- JSON blob with job-specific data
    error_message TEXT,              -- Error details if failed
    retry_count INTEGER DEFAULT 0,
    max_retries INTEGER DEFAULT 3,
    created_at DATETIME DEFAULT CURRENT_TIMESTAMP,
    started_at DATETIME,
    completed_at DATETIME,
    worker_id TEXT,                  -- ID of worker process handling this job
    progress_percent INTEGER DEFAULT 0,
    progress_message TEXT
);

CREATE INDEX idx_job_queue_status ON worker_job_queue(status);
CREATE INDEX idx_job_queue_priority ON worker_job_queue(priority, created_at);
CREATE INDEX idx_job_queue_platform ON worker_job_queue(platform, account);
"""

ROWS: dict[str, dict[str, object]] = {
    "plain": {"account": "user123", "payload": '{"scrape_type": "full"}'},
    "bare": {},
    "urgent": {"priority": 1},
    "running": {
        "status": "running",
        "started_at": "2026-11-18 09:00:00",
        "worker_id": "host-77",
        "progress_percent": 40,
    },
    "running without a start": {"status": "running"},
    "completed": {
        "status": "completed",
        "started_at": "2026-11-18 09:00:00",
        "completed_at": "2026-11-18 09:05:00",
        "worker_id": "host-77",
        "progress_percent": 100,
        "progress_message": "done",
    },
    "completed without a time": {"status": "completed"},
    "failed": {"status": "failed", "error_message": "timeout", "retry_count": 3, "completed_at": "2026-11-18 09:06:00"},
    "cancelled": {"status": "cancelled", "completed_at": "2026-11-18T09:07:00"},
    "retried": {"retry_count": 2, "error_message": "timeout"},
    "retried too often": {"retry_count": 9},
    "empty payload": {"payload": ""},
    "payload that is not JSON": {"payload": "{'scrape_type': 'full'}"},
    "payload that is not JSON, completed": {"payload": "oops", "status": "completed"},
    "large payload": {"payload": json.dumps("x" * 1_200_000)},
    "priority 99": {"priority": 99},
    "priority 0": {"priority": 0},
    "nulls": dict.fromkeys(
        ("priority", "status", "retry_count", "max_retries", "created_at", "progress_percent", "account", "payload")
    ),
    "unknown status": {"status": "paused", "error_message": "by hand"},
    "time that is no time": {"created_at": "yesterday", "started_at": "soon", "completed_at": ""},
    "time with T": {"created_at": "2026-11-18T08:00:00"},
    "time with a fraction": {"created_at": "2026-11-18 08:00:00.123456"},
    "negative numbers": {"retry_count": -1, "max_retries": -5, "progress_percent": -3},
    "percent 250": {"status": "completed", "progress_percent": 250},
    "empty type": {"job_type": ""},
    "numbers without end": {"retry_count": 10**18, "max_retries": 10**18},
    "time before time is kept": {"created_at": "0000-01-01 00:00:00"},
    "text without end": dict.fromkeys(("account", "error_message", "progress_message"), "x" * 400_000),
    "text for a number": {"priority": "high", "max_retries": "many"},
}


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


@pytest.fixture
def original(path: Path) -> ByHand:
    return write_original_table(path)


@pytest.fixture
def adopted(original: ByHand, path: Path, clock: MovableClock) -> Iterator[Store]:
    assert migrate(path)[0] == f"adopt the original worker_job_queue: {len(ROWS)} rows"
    store = open_store(path, clock=clock)
    yield store
    store.close()


def by_name(store: Store) -> dict[str, Job]:
    return {name: store.job_queries.get(number) for number, name in enumerate(ROWS, 1)}


def schema_of(by_hand: ByHand) -> list[dict[str, object]]:
    """Return all tables, indexes, triggers and views except the original table, which stays under another name."""
    rows = by_hand("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
    return [row for row in rows if "before_pagemill" not in str(row["tbl_name"])]


def write_original_table(path: Path) -> ByHand:
    """Write a database with the plain table and a row of each kind."""
    path.write_bytes(_original_bytes())
    return ByHand(path)


@cache
def _original_bytes() -> bytes:
    inserts = []
    for fields in ROWS.values():
        row: dict[str, object] = {"job_type": "scrape_account", "platform": "instagram", **fields}
        inserts.append(
            f"INSERT INTO worker_job_queue ({', '.join(row)}) VALUES ({', '.join(map(_literal, row.values()))});"
        )
    with TemporaryDirectory() as folder:
        script, path = Path(folder, "original.sql"), Path(folder, "original.db")
        script.write_text(ORIGINAL + "\n".join(inserts))
        ByHand(path).run(f".read {script}")
        return path.read_bytes()


def test_every_row_of_the_original_table_is_adopted_with_its_id(adopted: Store) -> None:
    assert sorted(all_jobs(adopted)) == list(range(1, len(ROWS) + 1))
    assert all(CANONICAL.fullmatch(job.created_at) for job in all_jobs(adopted).values())
    assert all(check.is_good for check in adopted.integrity.check() if check.name in {"integrity", "consistency"})


def test_an_adopted_row_keeps_the_values_of_the_original(adopted: Store) -> None:
    jobs = by_name(adopted)

    plain = jobs["plain"]
    assert (plain.job_type, plain.platform, plain.account, plain.payload, plain.priority, plain.status) == (
        "scrape_account", "instagram", "user123", '{"scrape_type": "full"}', 5, PENDING,
    )  # fmt: skip
    assert [jobs[name].status for name in ("bare", "urgent", "retried", "nulls", "priority 99")] == [PENDING] * 5
    assert [jobs[name].status for name in ("running", "running without a start")] == [PENDING] * 2
    assert [jobs[name].status for name in ("completed", "failed", "cancelled")] == [COMPLETED, FAILED, CANCELLED]
    assert jobs["completed"].completed_at == "2026-11-18 09:05:00.000"
    assert (jobs["completed"].worker_id, jobs["completed"].progress_message) == ("host-77", "done")
    assert jobs["cancelled"].completed_at == "2026-11-18 09:07:00.000"
    assert jobs["completed without a time"].completed_at
    assert (jobs["failed"].error_message, jobs["failed"].retry_count) == ("timeout", 3)
    assert jobs["retried"].retry_count == 2
    assert (jobs["empty payload"].payload, jobs["empty payload"].status) == (None, PENDING)
    assert [jobs[name].priority for name in ("urgent", "priority 99", "priority 0", "nulls")] == [1, 10, 1, 5]
    assert jobs["time with T"].created_at == "2026-11-18 08:00:00.000"
    assert jobs["time with a fraction"].created_at == "2026-11-18 08:00:00.123"
    assert jobs["large payload"].payload == json.dumps("x" * 1_200_000)


def test_an_unreadable_row_is_adopted_as_failed_with_its_text(adopted: Store) -> None:
    jobs = by_name(adopted)

    unreadable, paused = jobs["payload that is not JSON"], jobs["unknown status"]
    assert (unreadable.status, unreadable.error_code) == (FAILED, "PAYLOAD_INVALID")
    assert "{'scrape_type': 'full'}" in (json.dumps(json.loads(unreadable.payload or "null")))
    assert (paused.status, bool(paused.error_code)) == (FAILED, True)
    assert "paused" in (paused.error_message or "")
    assert "by hand" in (paused.error_message or "")
    assert jobs["payload that is not JSON, completed"].status is COMPLETED
    assert "oops" in (jobs["payload that is not JSON, completed"].payload or "")


def test_adopted_jobs_are_claimed_in_their_order_and_complete(adopted: Store) -> None:
    adopted.workers.register(new_worker("w1", types=["scrape_account", "unknown"], cpu=100))
    pending = [job.id for job in all_jobs(adopted).values() if job.status is PENDING]

    taken = adopted.leases.claim("w1", 100)

    assert sorted(job.id for job in taken) == sorted(pending)
    assert [job.priority for job in taken] == sorted(job.priority for job in taken)
    assert adopted.leases.complete_many([]) == []
    for job in taken:
        adopted.leases.complete(job.lease)
    assert {job.status for job in all_jobs(adopted).values()} == {COMPLETED, FAILED, CANCELLED}


def test_an_original_table_without_its_index_is_adopted(original: ByHand, path: Path, clock: MovableClock) -> None:
    original("DROP INDEX idx_job_queue_status")

    migrate(path)

    store = open_store(path, clock=clock)
    assert len(all_jobs(store)) == len(ROWS)
    store.close()


@pytest.mark.parametrize("column", ["payload", "account", "error_message", "worker_id", "progress_message", "status"])
def test_a_value_kept_as_a_blob_is_adopted_as_text(path: Path, clock: MovableClock, column: str) -> None:
    by_hand = ByHand(path)
    by_hand.run(ORIGINAL)
    by_hand(f"INSERT INTO worker_job_queue (job_type, platform, {column}) VALUES ('t', 'p', {_literal(b'[1]')})")

    migrate(path)

    store = open_store(path, clock=clock)
    job = store.job_queries.get(1)
    assert job.payload == ("[1]" if column == "payload" else None)
    assert job.account == ("[1]" if column == "account" else None)
    assert job.status is (FAILED if column == "status" else PENDING)
    store.close()


def test_an_empty_original_table_is_adopted(path: Path, clock: MovableClock) -> None:
    ByHand(path).run(ORIGINAL)

    migrate(path)

    store = open_store(path, clock=clock)
    store.workers.register(new_worker())
    job_id = store.intake.enqueue(NewJob("ocr_pages")).job_id
    assert claimed_ids(store) == [job_id]
    store.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was(original: ByHand, path: Path) -> None:
    original("CREATE TABLE worker_job_log (mine TEXT)")
    before = original.run(".dump")

    with pytest.raises(Exception, match="worker_job_log"):
        migrate(path)

    assert original.run(".dump") == before


def test_both_ways_end_in_the_same_schema(original: ByHand, path: Path, tmp_path: Path) -> None:
    initialise(tmp_path / "fresh.db")

    migrate(path)

    assert schema_of(original) == schema_of(ByHand(tmp_path / "fresh.db"))
    assert migrate(path) == []


def test_an_id_that_was_used_before_is_not_used_again(original: ByHand, path: Path) -> None:
    original("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    original(f"DELETE FROM worker_job_queue WHERE id = {len(ROWS) + 1}")

    migrate(path)

    original("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    assert original.value("SELECT max(id) FROM worker_job_queue") == len(ROWS) + 2


def test_a_dry_run_changes_nothing_and_returns_the_changes_of_a_run(original: ByHand, path: Path) -> None:
    before, content = original.dump(), path.read_bytes()

    changes = migrate(path, dry_run=True)

    assert original.dump() == before
    for sentence in (
        "2 of them were running", "1 of them ended failed (PAYLOAD_INVALID)", "1 of them ended failed (STATUS_UNKNOWN)",
        "3 priorities", "1 of them had no valid created_at",
    ):  # fmt: skip
        assert sentence in " ".join(changes[1:])
    assert path.read_bytes() == content
    assert migrate(path) == changes


# ── What a person has made on the plain table ─────────────────────────────────────────────────────────────────────────

DIARY = """
CREATE TABLE diary (entry TEXT);
CREATE INDEX my_index ON worker_job_queue (platform, job_type);
CREATE VIEW my_view AS SELECT count(*) AS count FROM worker_job_queue;
CREATE TRIGGER my_trigger AFTER INSERT ON Worker_Job_Queue BEGIN INSERT INTO diary VALUES (NEW.id); END;
CREATE TRIGGER my_other_trigger AFTER INSERT ON diary BEGIN
    UPDATE worker_job_queue SET progress_message = 'in the diary' WHERE id = NEW.entry;
END;
"""


def test_triggers_indexes_and_views_of_a_person_work_on_the_new_table(original: ByHand, path: Path) -> None:
    original.run(DIARY)

    changes = migrate(path)

    assert {"carry over index my_index", "carry over trigger my_trigger"} <= set(changes)
    assert original.value("SELECT tbl_name FROM sqlite_schema WHERE name = 'my_index'") == "worker_job_queue"
    assert original("SELECT * FROM diary") == []
    original("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    new = len(ROWS) + 1
    assert original("SELECT entry FROM diary") == [{"entry": str(new)}]
    assert original.value(f"SELECT progress_message FROM worker_job_queue WHERE id = {new}") == "in the diary"
    assert original.value("SELECT count FROM my_view") == new


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX mine ON worker_job_queue (shade)",
        "CREATE TRIGGER mine AFTER UPDATE ON worker_job_queue BEGIN INSERT INTO diary VALUES (NEW.shade); END",
        "CREATE TRIGGER mine AFTER DELETE ON worker_job_queue BEGIN DELETE FROM not_there; END",
        "CREATE INDEX job_by_status ON worker_job_queue (status, id)",
        "CREATE UNIQUE INDEX mine ON worker_job_queue (requeue_count, id % 2)",
    ],
)
def test_unfit_triggers_and_indexes_are_left_out_and_named(original: ByHand, path: Path, statement: str) -> None:
    original.run("CREATE TABLE diary (entry TEXT); ALTER TABLE worker_job_queue ADD COLUMN shade TEXT;")
    if "requeue_count" in statement:
        original("ALTER TABLE worker_job_queue ADD COLUMN requeue_count INTEGER")
    original(statement)

    changes = migrate(path)

    [sentence] = [change for change in changes if change.startswith("leave out")]
    assert sentence.endswith(statement)
    assert any("before_pagemill: shade" in change for change in changes)
    original("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    original("UPDATE worker_job_queue SET priority = 1 WHERE job_type = 't'")
    original("DELETE FROM worker_job_queue WHERE job_type = 't'")
    assert original.value("PRAGMA integrity_check") == "ok"


# ── From one released schema to the next ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Migration steps as in a release: a new column, and a table that is created again with its rows."""
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "0001_of_long_ago.sql").write_text("DROP TABLE worker_job_queue;")
    (folder / "0002_shades.sql").write_text(
        "ALTER TABLE worker_job_queue ADD COLUMN shade TEXT NOT NULL DEFAULT 'grey';"
        "CREATE TABLE pause_2 (scope TEXT NOT NULL, name TEXT NOT NULL, reason TEXT) STRICT;"
        "INSERT INTO pause_2 SELECT scope, name, reason FROM pause;"
        "DROP TABLE pause; ALTER TABLE pause_2 RENAME TO pause;"
    )
    return folder


def test_a_step_leads_to_the_next_version_and_keeps_the_rows(path: Path, steps: Path) -> None:
    initialise(path)
    by_hand = ByHand(path)
    by_hand("INSERT INTO worker_job_queue (job_type, platform) VALUES ('t', 'p')")
    by_hand("INSERT INTO pause (scope, name) VALUES ('type', 't')")
    before = by_hand.dump()

    assert migrate(path, dry_run=True, steps=steps) == ["bring the tables to version 2 (0002_shades)"]
    assert by_hand.dump() == before
    assert migrate(path, steps=steps) == ["bring the tables to version 2 (0002_shades)"]

    assert schema_version(path) == 2
    assert by_hand("SELECT job_type, shade FROM worker_job_queue") == [{"job_type": "t", "shade": "grey"}]
    assert by_hand("SELECT name FROM pause") == [{"name": "t"}]
    with pytest.raises(SchemaMismatch, match="upgrade pagemill"):
        open_store(path)


def test_a_step_that_fails_leaves_the_database_as_it_was(path: Path, steps: Path) -> None:
    initialise(path)
    before = ByHand(path).dump()
    (steps / "0003_wrong.sql").write_text("DROP TABLE batch_document; DROP TABLE nothing;")

    with pytest.raises(Exception, match="nothing"):
        migrate(path, steps=steps)

    assert ByHand(path).dump() == before


def test_the_version_is_that_of_the_newest_step_and_of_schema_sql(path: Path) -> None:
    initialise(path)

    assert max([1, *(version for version, _ in step_files(STEPS))]) == SCHEMA_VERSION == schema_version(path)


# ── Which databases are opened at all ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "attempt", "sentence"),
    [
        (99, open_store, "upgrade pagemill"),
        (99, migrate, "upgrade pagemill"),
        (99, initialise, "upgrade pagemill"),
        (0, open_store, "pagemill db migrate"),
    ],
)
def test_a_schema_of_another_version_is_refused_with_what_to_do(
    path: Path, version: int, attempt: Callable[[Path], object], sentence: str
) -> None:
    initialise(path)
    by_hand = ByHand(path)
    by_hand(f"UPDATE pagemill_schema SET version = {version}")
    before = by_hand.dump()

    with pytest.raises(SchemaMismatch, match=sentence):
        attempt(path)

    assert by_hand.dump() == before


def test_a_missing_file_is_absent_and_is_not_made(path: Path) -> None:
    for attempt in (open_store, migrate):
        with pytest.raises(StoreAbsent, match="pagemill init"):
            attempt(path)

    assert not path.exists()


def test_a_text_file_is_not_a_database_and_stays_as_it_is(path: Path) -> None:
    path.write_text("Dear diary, " * 500)

    for attempt in (open_store, migrate, initialise):
        with pytest.raises(StoreUnusable, match="not a SQLite database"):
            attempt(path)

    assert path.read_text() == "Dear diary, " * 500


def test_a_database_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    by_hand = ByHand(path)
    by_hand("CREATE TABLE diary (entry TEXT)")
    before = by_hand.run(".dump")

    for attempt in (open_store, migrate):
        with pytest.raises(StoreAbsent):
            attempt(path)

    assert by_hand.run(".dump") == before


def test_initialising_twice_keeps_the_jobs(path: Path, clock: MovableClock) -> None:
    initialise(path)
    store: Store = open_store(path, clock=clock)
    store.workers.register(new_worker())
    store.intake.enqueue(NewJob("ocr_pages"))
    job = claim_one(store)
    store.close()

    initialise(path)

    again = open_store(path, clock=clock)
    assert again.job_queries.get(job.id) == job
    again.close()
