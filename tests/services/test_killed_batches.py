"""A batch is stopped, resumed and worked off by processes that are killed at each of their statements in turn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full_length import short
from tests.services.kill_points import count_kills
from tests.store.kit import ByHand, lay_out
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.documents import DeferredAction, DocumentRequest
from worker_service.jobs.job import NewJob
from worker_service.store.opening import open_store

FILES = short(1, full=2)


def make_batch(directory: Path, state: str = "active") -> Path:
    """Return a database with a batch: documents with a follow-up action, another job, and an action at the end."""
    database = directory / "pagemill.db"
    lay_out(database)
    (directory / "own.toml").write_text("")
    store = open_store(database)
    follow_ups = [DeferredAction("action", '{"read":"{document_id}"}')]
    requests = [DocumentRequest(f"/{number}.pdf", f"{number}.pdf", actions=follow_ups) for number in range(FILES)]
    actions_at_end = json.dumps([{"job_type": "action", "payload": {"ended": "{batch_id}"}}])
    jobs = [NewJob("ingest", document=request) for request in requests]
    store.batches.add(NewBatch("ann", "reports", actions=actions_at_end), [*jobs, NewJob("download")])
    store.close()
    if state != "active":
        ByHand(database)(f"UPDATE batch SET state = '{state}' WHERE id = 1")
    return database


def kill_at_each_statement(action: str, base: Path) -> Iterator[ByHand]:
    """Yield a database for each statement at which a process was killed, after another process repeated the action."""
    kills = count_kills(action, base)
    # BEGIN and COMMIT.
    assert kills >= 2
    for number in range(1, kills + 1):
        yield ByHand(base.with_name(f"{base.stem}-{number}.db"))


@pytest.mark.parametrize(
    ("action", "before", "after", "held", "notice"),
    [("stop", "active", "stopped", 16, "batch.stopped"), ("resume", "stopped", "active", 0, "batch.resumed")],
)
def test_a_killed_stop_or_resume_holds_all_jobs_or_none_and_can_be_repeated(
    action: str, before: str, after: str, held: int, notice: str, tmp_path: Path
) -> None:
    for query in kill_at_each_statement(action, make_batch(tmp_path, before)):
        jobs = f"(SELECT count(*) FROM worker_job_queue WHERE held = {held}) AS jobs"
        assert query(f"SELECT state, {jobs} FROM batch") == [{"state": after, "jobs": FILES + 1}]
        assert query(f"SELECT count(*) AS n FROM notice WHERE kind = '{notice}'") == [{"n": 1}]


def test_each_action_fires_once_even_if_workers_are_killed(tmp_path: Path) -> None:
    for query in kill_at_each_statement("work", make_batch(tmp_path)):
        fired = Counter(
            str(row["payload"]) for row in query("SELECT payload FROM worker_job_queue WHERE job_type = 'action'")
        )
        assert fired == Counter(['{"ended":1}', *(f'{{"read":{number}}}' for number in range(1, FILES + 1))])
        assert query("SELECT status, count(*) AS n FROM worker_job_queue GROUP BY 1") == [
            {"status": "completed", "n": 2 * FILES + 2}
        ]
        assert query("SELECT state, round FROM batch") == [{"state": "done", "round": 1}]
        assert query("SELECT count(*) AS n FROM notice WHERE kind = 'action.fired'") == [{"n": FILES + 1}]
