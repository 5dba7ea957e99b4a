"""From schema 1, without documents, to today's: every job stays as it is, and both ways end in the same place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.kit import ByHand, MovableClock, claimed_ids, everything, new_worker, status_of
from tests.store.papers import publish, work_as
from worker_service.errors import SchemaMismatch
from worker_service.jobs.model import Status
from worker_service.store.opening import initialise, migrate, open_store, schema_version
from worker_service.store.sqlite_connection import create

SCHEMA_1 = Path(__file__).parent / "earlier" / "schema_1.sql"

# A job in every state: waiting in each way, running, ended in each way, in an action that can be undone.
ROWS = """
INSERT INTO worker (id, host, boot_id, pid, version, cpu_slots, io_slots, started_at, heartbeat_at)
VALUES ('w1', 'here', 'boot', 1, '0', 8, 8, '2026-11-18 10:00:00.000', '2026-11-18 10:00:00.000');
INSERT INTO worker_job_queue (job_type, platform) SELECT 'ocr_pages', 'local' FROM json_each('[1,2,3,4,5,6]');
INSERT INTO worker_job_queue (job_type, platform, run_at) VALUES ('ocr_pages', 'local', '2099-01-01');
INSERT INTO worker_job_queue (job_type, platform, concurrency_key, document_id, generation)
VALUES ('ocr_pages', 'local', 'k', 3, 1);
INSERT INTO worker_job_dependency (job_id, needs_id) VALUES (8, 7);
UPDATE worker_job_queue SET status = 'running', fence = 1, worker_id = 'w1', started_at = '2026-11-18 10:00:01.000',
       heartbeat_at = '2026-11-18 10:00:01.000' WHERE id IN (2, 3, 4);
UPDATE worker_job_attempt SET outcome = 'completed', ended_at = '2026-11-18 10:00:02.000' WHERE job_id = 3;
UPDATE worker_job_attempt SET outcome = 'failed', ended_at = '2026-11-18 10:00:02.000' WHERE job_id = 4;
UPDATE worker_job_queue SET status = 'completed', completed_at = '2026-11-18 10:00:02.000', result = '{}' WHERE id = 3;
UPDATE worker_job_queue SET status = 'failed', completed_at = '2026-11-18 10:00:02.000', error_code = 'X' WHERE id = 4;
UPDATE worker_job_queue SET status = 'cancelled' WHERE id IN (2, 5);
INSERT INTO worker_action (at, actor, verb) VALUES ('2026-11-18 10:00:03.000', 'ann', 'delete');
INSERT INTO worker_action_item (action_id, job_id, before)
SELECT 1, id, json_object('job_type', job_type, 'platform', platform, 'status', status, 'fence', fence, 'priority', 5,
       'owner', '', 'source', '', 'created_at', created_at, 'retry_count', 0, 'max_retries', 3, 'requeue_count', 0,
       'progress_percent', 0) FROM worker_job_queue WHERE id = 6;
DELETE FROM worker_job_queue WHERE id = 6;
"""
TABLES = ("worker_job_queue", "worker_job_attempt", "worker_job_event", "worker_job_dependency", "worker_action_item")


@pytest.fixture
def first(path: Path) -> ByHand:
    """A database of schema 1, filled as the pagemill of its day did it."""
    connection = create(path)
    connection.execute(SCHEMA_1.read_text() + ROWS).fetchall()
    connection.close()
    return ByHand(path)


def rows(hand: ByHand) -> list[list[dict[str, object]]]:
    return [hand(f"SELECT * FROM {table}") for table in TABLES]


def schema(hand: ByHand) -> list[dict[str, object]]:
    return hand("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")


def test_schema_1_is_not_opened_before_it_is_migrated(first: ByHand, path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="pagemill db migrate"):
        open_store(path)


def test_every_row_stays_as_it_is(first: ByHand, path: Path) -> None:
    before = rows(first)

    assert migrate(path) == ["0002_documents"]

    assert rows(first) == before
    assert {row["status"] for row in before[0]} == {str(status) for status in Status}
    assert (schema_version(path), migrate(path)) == (2, [])


def test_both_ways_end_in_the_same_schema(first: ByHand, path: Path, tmp_path: Path) -> None:
    initialise(tmp_path / "fresh.db")

    migrate(path)

    assert schema(first) == schema(ByHand(tmp_path / "fresh.db"))


def test_the_jobs_go_on_where_they_were(first: ByHand, path: Path, clock: MovableClock) -> None:
    migrate(path)

    store = open_store(path, clock=clock)
    assert store.audit() == []
    assert store.undo(None, actor="ann").job_ids == [6]
    assert [job.id for job in store.requeue("w1")] == [2]
    assert status_of(store, 2) is Status.CANCELLED
    store.register(new_worker())
    first("UPDATE worker_job_queue SET status = 'pending' WHERE id = 4")
    assert claimed_ids(store) == [1, 4, 6]
    for job in everything(store).values():
        if job.status is Status.RUNNING:
            store.complete(job.lease)
    work_as(store)
    publish(store, "report.pdf", "text")
    assert [hit.number for hit in store.search("text").hits] == [1]
    store.close()


def test_a_dry_run_changes_nothing(first: ByHand, path: Path) -> None:
    before = first.dump()

    assert migrate(path, dry_run=True) == ["0002_documents"]

    assert first.dump() == before
