"""A batch stopped, gone on with and worked off by processes that are killed at each of their statements in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full_length import short
from tests.store.kit import ByHand, lay_out
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.documents import DeferredAction, DocumentRequest
from worker_service.jobs.job import NewJob
from worker_service.store.opening import open_store

ROOT = Path(__file__).resolve().parents[2]
FILES = short(1, full=2)


def a_batch(place: Path, state: str = "active") -> Path:
    """Documents that something follows, in a batch that something follows; and a job that has failed before."""
    database = place / "pagemill.db"
    lay_out(database)
    (place / "own.toml").write_text("")
    store = open_store(database)
    follows = [DeferredAction("action", '{"read":"{document_id}"}')]
    wishes = [DocumentRequest(f"/{number}.pdf", f"{number}.pdf", actions=follows) for number in range(FILES)]
    ends = json.dumps([{"job_type": "action", "payload": {"ended": "{batch_id}"}}])
    jobs = [NewJob("ingest", document=wish) for wish in wishes]
    store.batches.add(NewBatch("ann", "reports", actions=ends), [*jobs, NewJob("download")])
    store.close()
    if state != "active":
        ByHand(database)(f"UPDATE batch SET state = '{state}' WHERE id = 1")
    return database


def killed(deed: str, base: Path) -> Iterator[ByHand]:
    """What each has left that was killed at another statement, once somebody has done it again."""
    driver = [
        sys.executable,
        "-m",
        "tests.services.kill_points",
        deed,
        str(base.with_name("own.toml")),
        str(base),
    ]
    number = int(subprocess.run(driver, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    # BEGIN and COMMIT.
    assert number >= 2
    for each in range(1, number + 1):
        yield ByHand(base.with_name(f"{base.stem}-{each}.db"))


@pytest.mark.parametrize(
    ("deed", "before", "after", "held", "notice"),
    [("stop", "active", "stopped", 16, "batch.stopped"), ("resume", "stopped", "active", 0, "batch.resumed")],
)
def test_a_stop_or_resume_that_is_killed_at_any_statement_holds_all_jobs_or_none_and_can_be_repeated(
    deed: str, before: str, after: str, held: int, notice: str, tmp_path: Path
) -> None:
    for left in killed(deed, a_batch(tmp_path, before)):
        jobs = f"(SELECT count(*) FROM worker_job_queue WHERE held = {held}) AS jobs"
        assert left(f"SELECT state, {jobs} FROM batch") == [{"state": after, "jobs": FILES + 1}]
        assert left(f"SELECT count(*) AS n FROM notice WHERE kind = '{notice}'") == [{"n": 1}]


def test_whoever_is_killed_at_any_statement_each_action_fires_once(tmp_path: Path) -> None:
    for left in killed("work", a_batch(tmp_path)):
        fired = Counter(
            str(row["payload"]) for row in left("SELECT payload FROM worker_job_queue WHERE job_type = 'action'")
        )
        assert fired == Counter(['{"ended":1}', *(f'{{"read":{number}}}' for number in range(1, FILES + 1))])
        assert left("SELECT status, count(*) AS n FROM worker_job_queue GROUP BY 1") == [
            {"status": "completed", "n": 2 * FILES + 2}
        ]
        assert left("SELECT state, round FROM batch") == [{"state": "done", "round": 1}]
        assert left("SELECT count(*) AS n FROM notice WHERE kind = 'action.fired'") == [{"n": FILES + 1}]
