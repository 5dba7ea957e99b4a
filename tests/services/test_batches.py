"""Batches: what users can do with them, and their progress in numbers and in words."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from worker_service.base.errors import BadInput, Refused, WaitTimedOut
from worker_service.jobs.batches import Batch, BatchFacts, BatchState
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import NewJob, Status
from worker_service.services import batches
from worker_service.services.batches import BatchDetails, BatchRequest, describe_progress, progress_of
from worker_service.services.serialize import as_object
from worker_service.services.session import Session
from worker_service.settings.loading import load_settings
from worker_service.store.opening import open_store

FACTS = BatchFacts(
    jobs={Status.COMPLETED: 70, Status.PENDING: 50},
    documents={IndexStatus.SUCCESS: 29, IndexStatus.FAILED: 1, IndexStatus.INDEXING: 1, IndexStatus.QUEUED: 89},
    files_on_the_way=0,
    files_not_brought_in=0,
    files_cancelled=0,
    documents_cancelled=0,
    may_find_more=False,
    pages=5280,
    pages_read=4664,
    pages_left=616,
    uncounted=0,
    size=10**9,
    pages_lately=220,
    lately_seconds=300,
    current=("report.pdf", 8, 44),
)
COUNTING = "still counting pages"
BATCH = Batch(7, "ann", "reports", 3, BatchState.ACTIVE, 1, None, "{}", "[]", "2026-11-18 10:00:00.000", None)


@pytest.mark.parametrize(
    ("state", "facts", "line"),
    [
        ("active", {}, "30 of 120 files, 1 failed · 4,664 pages · 44 pages/min · 14 min left"),
        ("active", {"uncounted": 3}, f"30 of 120 files, 1 failed · 4,664 pages · 44 pages/min · {COUNTING}"),
        ("active", {"may_find_more": True, "pages_lately": 0},
         f"30 of 120 files found so far, 1 failed · 4,664 pages · {COUNTING}"),
        ("active", {"files_on_the_way": 2}, f"30 of 122 files, 1 failed · 4,664 pages · 44 pages/min · {COUNTING}"),
        ("active", {"pages_left": 20}, "30 of 120 files, 1 failed · 4,664 pages · 44 pages/min · 27 s left"),
        ("active", {"documents_cancelled": 1, "pages_left": 10_000},
         "30 of 120 files, 1 cancelled · 4,664 pages · 44 pages/min · 3 h 47 min left"),
        ("active", {"documents": {}, "pages_read": 0, "pages_lately": 0}, "70 of 120 jobs"),
        ("stopped", {}, "stopped · 30 of 120 files, 1 failed · 4,664 pages"),
        ("waiting", {}, "waiting · 30 of 120 files, 1 failed · 4,664 pages"),
        ("failed", {"documents": {IndexStatus.SUCCESS: 119, IndexStatus.FAILED: 1}},
         "finished, 1 failed · 120 files · 4,664 pages"),
        ("done", {"documents": {}, "jobs": {Status.COMPLETED: 5}}, "done · 5 jobs"),
    ],
)  # fmt: skip
def test_a_line_describes_the_progress_of_a_batch(state: str, facts: dict[str, Any], line: str) -> None:
    batch = replace(BATCH, state=BatchState(state))

    assert describe_progress(BatchDetails(batch, progress_of(batch, replace(FACTS, **facts)))) == line


def test_pace_and_time_left_are_estimated_only_from_enough_facts() -> None:
    progress = progress_of(BATCH, FACTS)
    assert (progress.pages_left, progress.seconds_left, progress.pages_a_minute) == (616, 840, 44)

    for facts in ({"uncounted": 1}, {"files_on_the_way": 1}, {"may_find_more": True}):
        assert progress_of(BATCH, replace(FACTS, **facts)).seconds_left is None
    assert progress_of(BATCH, replace(FACTS, pages_lately=1)).pages_a_minute is None
    for state in BatchState:
        seconds_left = progress_of(replace(BATCH, state=state), FACTS).seconds_left
        assert seconds_left == (840 if state is BatchState.ACTIVE else None)


def test_a_batch_starts_stops_and_resumes_and_is_shown_as_json(session: Session) -> None:
    asked = {"sources": ["/srv/a.pdf"], "lang": ["eng"]}
    added = batches.add_batch(session, [NewJob("ocr_pages")] * 3, BatchRequest("ann", " reports ", asked=asked))

    stopped = batches.stop_batch(session, added.batch.id)
    resumed = batches.resume_batch(session, added.batch.id)
    shown = as_object(batches.get_batch_details(session, added.batch.id))

    assert (added.batch.name, stopped.note, resumed.batch.state) == ("reports", "stopped by ann", BatchState.ACTIVE)
    assert shown["batch"]["asked"] == asked
    assert shown["progress"]["by_job_status"] == {"pending": 3}
    assert json.loads(json.dumps(shown)) == shown
    assert session.job_queries.get(1).priority == batches.PRIORITY


def test_the_owner_policy_decides_about_a_second_batch_of_an_owner(session: Session, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "WORKER_OWNER_POLICY": "queue"}
    session = replace(session, settings=load_settings(environ=environ, directory=tmp_path))
    first, second = (batches.add_batch(session, [NewJob("ocr_pages")], BatchRequest("ann")).batch for _ in range(2))

    assert (first.state, second.state) == (BatchState.ACTIVE, BatchState.WAITING)
    page = batches.list_batches(session, owners=["ann"], states=["waiting"], limit=1)
    assert ([details.batch.id for details in page.items], page.next) == ([second.id], None)
    with pytest.raises(BadInput, match="there is no status 'wating': did you mean waiting"):
        batches.list_batches(session, states=["wating"])


@pytest.mark.parametrize("name", ["a\nb", "x" * 201])
def test_the_name_of_a_batch_is_one_line(session: Session, name: str) -> None:
    with pytest.raises(BadInput, match="the name of a batch is one line"):
        batches.add_batch(session, [], BatchRequest(name=name))


def test_waiting_for_a_batch_includes_follow_up_jobs(session: Session) -> None:
    batch = batches.add_batch(session, [NewJob("ocr_pages")], BatchRequest("ann")).batch
    lines: list[str] = []

    def work() -> None:
        worker = replace(session, store=open_store(session.settings.database, clock=session.clock))
        [first] = worker.store.leases.claim("w1", 1)
        worker.store.leases.complete(first.lease, None, [NewJob("assemble")])
        [second] = worker.store.leases.claim("w1", 1)
        worker.store.leases.complete(second.lease)
        worker.close()

    thread = threading.Thread(target=work)
    thread.start()
    ended = batches.wait_for_batch(
        session, batch.id, timeout="60s", watch=lambda details: lines.append(describe_progress(details))
    )
    thread.join()

    assert (ended.batch.state, ended.progress.jobs_ended) == (BatchState.DONE, 2)
    assert lines[-1] == "done · 2 jobs"


def test_waiting_for_a_batch_ends_when_it_is_stopped_and_after_the_timeout(session: Session) -> None:
    batch = batches.add_batch(session, [NewJob("ocr_pages")], BatchRequest("ann")).batch
    with pytest.raises(WaitTimedOut, match="after 0s, batch 1 had not ended: 0 of 1"):
        batches.wait_for_batch(session, batch.id, timeout="0s")

    batches.stop_batch(session, batch.id)

    with pytest.raises(Refused, match="batch 1 was stopped by ann: `pagemill batch resume 1`"):
        batches.wait_for_batch(session, batch.id)
