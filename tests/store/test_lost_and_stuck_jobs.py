"""Regressions: ways in which a job was once lost or held for ever, or all claims were stopped."""

from __future__ import annotations

import pytest

from tests.store.kit import (
    BROKEN,
    FAR_FUTURE,
    AddWorker,
    ByHand,
    Enqueue,
    RefusedByHand,
    claim_one,
    claimed_ids,
    end_job,
    gate_codes,
    jobs_with_ids,
    status_of,
    undo,
)
from worker_service.jobs.job import NewJob, Status
from worker_service.store import job_control, settling
from worker_service.store.database import Database
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")


def test_a_retry_revives_one_of_two_dependents_with_one_key(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    need = enqueue()
    first = enqueue(unique_key="u", after=(need,))
    end_job(store, claim_one(store).lease, Status.FAILED)
    second = enqueue(unique_key="u", after=(need,))
    assert claimed_ids(store) == []

    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {need}")

    assert claimed_ids(store) == [need]
    assert sorted([status_of(store, first), status_of(store, second)]) == [Status.FAILED, Status.PENDING]


def test_an_interrupted_undo_can_be_continued(
    store: Store, enqueue: Enqueue, worker: AddWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(cpu=2000)
    store.intake.enqueue_many([NewJob("ocr_pages")] * 600)
    cancelled = store.job_control.cancel(jobs_with_ids(*range(1, 601)), actor="ann").action_id
    cut = iter([None, OSError("the power went")])

    def settle(database: Database) -> None:
        settling.settle(database)
        if (error := next(cut, None)) is not None:
            raise error

    monkeypatch.setattr(job_control, "settle", settle)
    with pytest.raises(OSError, match="power"):
        undo(store, cancelled)
    monkeypatch.undo()
    done = claimed_ids(store, most=1000)
    assert len(done) == 500
    for job_id in done:
        store.leases.complete(store.job_queries.get(job_id).lease)

    undo(store, cancelled)

    assert claimed_ids(store, most=1000) == list(range(501, 601))
    assert all(store.job_queries.get(job_id).status is Status.COMPLETED for job_id in done)


def test_an_id_cannot_be_chosen_by_hand(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    job_id = enqueue()
    end_job(store, claim_one(store).lease, Status.COMPLETED)
    store.job_control.delete(jobs_with_ids(job_id), actor="ann")

    for chosen in (job_id, 9223372036854775807, -5):
        with pytest.raises(RefusedByHand, match="leave it out"):
            by_hand(f"INSERT INTO worker_job_queue (id, job_type, platform) VALUES ({chosen}, 'ocr_pages', 'x')")

    assert enqueue() == job_id + 1


def test_a_job_that_no_worker_can_run_does_not_block_other_jobs_of_its_key(store: Store, enqueue: Enqueue) -> None:
    stuck = enqueue("nobody_knows_it", concurrency_key="k", priority=1)
    paused = enqueue("assemble", concurrency_key="k", priority=2)
    store.job_control.pause("type", "assemble")
    good = enqueue("ocr_pages", concurrency_key="k", priority=9)

    assert gate_codes(store, good) == []
    assert claimed_ids(store) == [good]
    assert gate_codes(store, stuck)[0] == "KEY_BUSY"
    assert "KEY_BUSY" in gate_codes(store, paused)


def test_a_claim_of_many_takes_one_job_of_each_key(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(cpu=10)
    for owner in ("ann", "bob", "cid"):
        enqueue("ocr_pages", owner=owner, concurrency_key="k")
        enqueue("assemble", owner=owner, concurrency_key="k")

    for _ in range(6):
        [job_id] = claimed_ids(store, most=10)
        store.leases.complete(store.job_queries.get(job_id).lease)

    assert claimed_ids(store, most=10) == []


def test_a_hold_in_an_insert_is_the_tables_own_affair(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    by_hand(
        "INSERT INTO worker_job_queue (job_type, platform, held, concurrency_key) VALUES ('ocr_pages', 'x', 8, 'k')"
    )
    by_hand("INSERT INTO worker_job_queue (job_type, platform, held) VALUES ('ocr_pages', 'x', 7)")

    assert claimed_ids(store) == [1, 2]


def test_a_dependency_cannot_be_changed_by_hand_but_deleted(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    need, other = enqueue(), enqueue()
    waiting = enqueue(after=(need,))

    with pytest.raises(RefusedByHand, match="delete the row"):
        by_hand(f"UPDATE worker_job_dependency SET needs_id = {other}")
    by_hand("DELETE FROM worker_job_dependency")

    assert waiting in claimed_ids(store)


def test_an_open_attempt_cannot_be_deleted_by_hand(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    job_id = enqueue()
    claim_one(store)

    with pytest.raises(RefusedByHand, match="running job"):
        by_hand("DELETE FROM worker_job_attempt")

    assert [job.id for job in store.leases.requeue("w1")] == [job_id]


def test_cancelling_a_job_after_it_completed_once_fails_no_dependent(store: Store, enqueue: Enqueue) -> None:
    need = enqueue()
    dependent = enqueue(after=(need,))
    end_job(store, claim_one(store).lease, Status.COMPLETED)
    store.leases.fail(claim_one(store).lease, BROKEN, retry_at=FAR_FUTURE)

    store.job_control.retry(jobs_with_ids(need), actor="ann")
    store.job_control.cancel(jobs_with_ids(need), actor="ann")

    assert status_of(store, dependent) is Status.PENDING


def test_many_dependents_are_freed_in_several_steps(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(cpu=5000)
    need = enqueue()
    store.intake.enqueue_many([NewJob("ocr_pages", after=(need,))] * 2500)
    end_job(store, claim_one(store).lease, Status.COMPLETED)

    assert store.leases.next_deadline() is not None, "the daemon has to know that there is more to free"
    claimed: list[int] = []
    while more := claimed_ids(store, most=5000):
        claimed += more

    assert len(claimed) == 2500
    assert store.leases.next_deadline() is None
