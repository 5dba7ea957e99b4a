"""What a daemon does about batches: what runs of one that is stopped is held up, and what happened is logged."""

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
def test_what_runs_of_a_stopped_batch_is_held_up_until_it_goes_on_unless_it_may_run_only_once(
    tmp_path: Path, store: Store, attempt: MakeAttempt, log: Any, is_at_most_once: bool
) -> None:
    context = context_in(tmp_path, store, log)
    running, other = attempt(batch_id=7), attempt()
    running.is_at_most_once = is_at_most_once
    for each in (running, other):
        context.slots.add(each)
    ownership = Ownership(context, Heartbeat(lambda: store, "w1", log, 600))

    def held_up() -> list[bool]:
        ownership.compare_leases()
        return [running.is_batch_stopped, other.is_batch_stopped]

    assert held_up() == [False, False]
    store.batches.stop(7, actor="ann")
    assert held_up() == [not is_at_most_once, False]
    store.batches.resume(7, actor="ann")
    assert held_up() == [False, False]


def test_what_happened_to_documents_and_batches_is_logged_and_what_failed_without_having_run(
    tmp_path: Path, store: Store, attempt: MakeAttempt, log: Any, clock: MovableClock
) -> None:
    store.batches.add(NewBatch("bob"), [])
    chore = LogNotices(context_in(tmp_path, store, log))
    batch = store.batches.add(NewBatch("ann", "reports"), []).batch
    ran = attempt()
    waits = store.intake.enqueue(NewJob("ocr_pages", after=(ran.job.id,))).job_id

    store.leases.fail(ran.lease, Failure("BROKEN", "it broke"), retry_at=None)
    chore.run()
    chore.run()

    assert log.heard == ["batch.started", "batch.done", "job.failed"]
    assert log.told[1] == {"owner": "ann", "batch_id": batch.id, "generation": 1}
    assert log.told[2] == {"job_id": waits, "code": "DEPENDENCY_FAILED"}


def test_notices_are_forgotten_with_the_logs(store: Store, clock: MovableClock) -> None:
    store.batches.add(NewBatch("ann"), [])
    clock.advance(1)

    assert store.notices.prune(clock.now, most=1) == 1
    assert [notice.kind for notice in store.notices.after(0)] == ["batch.done"]
