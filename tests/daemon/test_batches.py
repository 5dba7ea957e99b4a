"""Stopped batches, and the log of notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, context_in
from tests.store.kit import MovableClock
from worker_service.daemon.chores import LogNotices
from worker_service.daemon.heartbeat import Heartbeat, Ownership
from worker_service.jobs.attempts import Failure
from worker_service.jobs.batches import NewBatch
from worker_service.jobs.job import NewJob
from worker_service.store.store import Store


@pytest.mark.parametrize("is_at_most_once", [False, True])
def test_attempts_of_a_stopped_batch_are_released_unless_they_may_run_only_once(
    tmp_path: Path, store: Store, make_attempt: MakeAttempt, log: Any, is_at_most_once: bool
) -> None:
    context = context_in(tmp_path, store, log)
    running, other = make_attempt(batch_id=7), make_attempt()
    running.is_at_most_once = is_at_most_once
    context.slots.add(running)
    context.slots.add(other)
    ownership = Ownership(context, Heartbeat(lambda: store, "w1", log, 600))

    def are_stopped() -> list[bool]:
        ownership.compare_leases()
        return [running.is_batch_stopped, other.is_batch_stopped]

    assert are_stopped() == [False, False]
    store.batches.stop(7, actor="ann")
    assert are_stopped() == [not is_at_most_once, False]
    store.batches.resume(7, actor="ann")
    assert are_stopped() == [False, False]


def test_notices_of_batches_and_of_jobs_that_never_ran_are_logged(
    tmp_path: Path, store: Store, make_attempt: MakeAttempt, log: Any, clock: MovableClock
) -> None:
    store.batches.add(NewBatch("bob"), [])
    chore = LogNotices(context_in(tmp_path, store, log))
    batch = store.batches.add(NewBatch("ann", "reports"), []).batch
    ran = make_attempt()
    waits = store.intake.enqueue(NewJob("ocr_pages", after=(ran.job.id,))).job_id

    store.leases.fail(ran.lease, Failure("BROKEN", "it broke"), retry_at=None)
    chore.run()
    chore.run()

    assert log.events == ["batch.started", "batch.done", "job.failed"]
    assert log.fields[1] == {"owner": "ann", "batch_id": batch.id, "generation": 1}
    assert log.fields[2] == {"job_id": waits, "code": "DEPENDENCY_FAILED"}


def test_notices_are_pruned_with_the_logs(store: Store, clock: MovableClock) -> None:
    store.batches.add(NewBatch("ann"), [])
    clock.advance(1)

    assert store.notices.prune(clock.now, most=1) == 1
    assert [notice.kind for notice in store.notices.after(0)] == ["batch.done"]
