"""Jobs that wait for other jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.store.kit import (
    ByHand,
    Enqueue,
    MovableClock,
    claim_one,
    claimed_ids,
    end_job,
    gate_codes,
    jobs_with_ids,
    settle,
    status_of,
)
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")

PENDING, COMPLETED, FAILED, CANCELLED = Status.PENDING, Status.COMPLETED, Status.FAILED, Status.CANCELLED


def _run(store: Store, job_id: int, how: Status) -> None:
    job = _take(store, job_id)
    end_job(store, job.lease, how)


def _take(store: Store, job_id: int) -> Job:
    job = claim_one(store)
    assert job.id == job_id
    return job


def test_a_job_waits_until_all_jobs_it_needs_have_completed(store: Store, enqueue: Enqueue) -> None:
    first, second = enqueue(), enqueue()
    last = enqueue(after=(first, second), priority=1)

    (gate,) = store.gates.explain(last)
    assert gate.code == "WAITS_FOR"
    assert f"{first}" in gate.detail
    assert list(store.job_queries.waits_for(last)) == [(first, "pending"), (second, "pending")]
    assert claimed_ids(store, most=1) == [first]
    store.leases.complete(store.job_queries.get(first).lease)
    assert gate_codes(store, last) == ["WAITS_FOR"]
    _run(store, second, COMPLETED)

    assert gate_codes(store, last) == []
    assert claimed_ids(store) == [last]
    assert list(store.job_queries.waits_for(last)) == [(first, "completed"), (second, "completed")]


def test_a_job_that_waits_for_a_completed_job_is_ready_at_once(store: Store, enqueue: Enqueue) -> None:
    first = enqueue()
    _run(store, first, COMPLETED)

    after = enqueue(after=(first,))

    assert gate_codes(store, after) == []
    assert claimed_ids(store) == [after]


Fate = Callable[[Store, int, ByHand], object]
FATES: dict[str, Fate] = {
    "completed": lambda store, need, by_hand: _run(store, need, COMPLETED),
    "failed": lambda store, need, by_hand: _run(store, need, FAILED),
    "cancelled": lambda store, need, by_hand: _run(store, need, CANCELLED),
    "cancelled by hand": lambda store, need, by_hand: by_hand(
        f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {need}"
    ),
    "deleted": lambda store, need, by_hand: store.job_control.delete(jobs_with_ids(need), actor="ann"),
    "deleted by hand": lambda store, need, by_hand: by_hand(f"DELETE FROM worker_job_queue WHERE id = {need}"),
    "pruned": lambda store, need, by_hand: store.pruning.prune(jobs_with_ids(need)),
}
UNMET = ["failed", "cancelled", "cancelled by hand", "deleted", "deleted by hand"]


@pytest.mark.parametrize("fate", UNMET)
def test_a_job_fails_when_a_needed_one_cannot_complete(
    store: Store, enqueue: Enqueue, by_hand: ByHand, fate: str
) -> None:
    first = enqueue()
    waiting = enqueue(after=(first,), priority=9)

    FATES[fate](store, first, by_hand)
    assert claimed_ids(store) == []

    job = store.job_queries.get(waiting)
    assert (job.status, job.error_code) == (FAILED, "DEPENDENCY_FAILED")
    assert str(first) in (job.error_message or "")
    assert job.completed_at
    if "deleted" not in fate:
        late = enqueue(after=(first,))
        assert claimed_ids(store) == []
        assert store.job_queries.get(late).error_code == "DEPENDENCY_FAILED"
        by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {first}")
        assert claimed_ids(store) == [first]
        assert status_of(store, waiting) is PENDING


@pytest.mark.parametrize("fate", ["completed", *UNMET])
def test_after_any_lets_a_job_run_after_any_end(store: Store, enqueue: Enqueue, by_hand: ByHand, fate: str) -> None:
    first = enqueue()
    waiting = enqueue(after=(first,), after_any=True)
    assert gate_codes(store, waiting) == ["WAITS_FOR"]

    FATES[fate](store, first, by_hand)

    assert gate_codes(store, waiting) == []
    assert claimed_ids(store) == [waiting]


def test_a_released_job_does_not_fail_its_dependents(store: Store, enqueue: Enqueue) -> None:
    first = enqueue()
    waiting = enqueue(after=(first,))
    lease = claim_one(store).lease

    store.leases.release(lease)
    settle(store)

    assert status_of(store, waiting) is PENDING
    assert gate_codes(store, waiting) == ["WAITS_FOR"]


@pytest.mark.parametrize("fate", ["deleted", "deleted by hand", "pruned"])
def test_a_met_need_stays_met_when_its_job_is_removed(
    store: Store, enqueue: Enqueue, by_hand: ByHand, fate: str
) -> None:
    first, second = enqueue(), enqueue()
    waiting = enqueue(after=(first, second))
    _run(store, first, COMPLETED)

    FATES[fate](store, first, by_hand)
    assert gate_codes(store, waiting) == ["WAITS_FOR"]
    _run(store, second, COMPLETED)

    assert gate_codes(store, waiting) == []
    assert claimed_ids(store) == [waiting]


def test_a_failed_job_fails_its_whole_chain_and_its_retry_revives_it(store: Store, enqueue: Enqueue) -> None:
    chain = [enqueue()]
    for _ in range(4):
        chain.append(enqueue(after=(chain[-1],)))

    _run(store, chain[0], FAILED)
    settle(store)
    assert [status_of(store, job_id) for job_id in chain] == [FAILED] * 5
    assert {store.job_queries.get(job_id).error_code for job_id in chain[1:]} == {"DEPENDENCY_FAILED"}

    store.job_control.retry(jobs_with_ids(chain[0]), actor="ann")
    settle(store)
    assert [status_of(store, job_id) for job_id in chain] == [PENDING] * 5
    for job_id in chain:
        _run(store, job_id, COMPLETED)
    assert [status_of(store, job_id) for job_id in chain] == [COMPLETED] * 5


def test_a_diamond_whose_one_side_failed_is_revived_by_the_retry_of_that_side(store: Store, enqueue: Enqueue) -> None:
    top = enqueue()
    left, right = enqueue(after=(top,)), enqueue(after=(top,))
    bottom = enqueue(after=(left, right))
    _run(store, top, COMPLETED)
    _run(store, left, FAILED)
    _run(store, right, COMPLETED)
    assert status_of(store, bottom) is FAILED

    store.job_control.retry(jobs_with_ids(left), actor="ann")
    _run(store, left, COMPLETED)

    assert claimed_ids(store) == [bottom]


def test_a_job_with_two_failed_needs_is_revived_only_when_both_are_wanted_again(store: Store, enqueue: Enqueue) -> None:
    first, second = enqueue(), enqueue()
    last = enqueue(after=(first, second))
    _run(store, first, FAILED)
    _run(store, second, FAILED)

    store.job_control.retry(jobs_with_ids(first), actor="ann")
    settle(store)
    assert status_of(store, last) is FAILED
    store.job_control.retry(jobs_with_ids(second), actor="ann")
    settle(store)

    assert status_of(store, last) is PENDING
    _run(store, first, COMPLETED)
    _run(store, second, COMPLETED)
    assert claimed_ids(store) == [last]


def test_a_job_that_failed_by_itself_is_not_revived_by_its_need(store: Store, enqueue: Enqueue) -> None:
    first = enqueue()
    after = enqueue(after=(first,))
    _run(store, first, COMPLETED)
    _run(store, after, FAILED)

    store.job_control.retry(jobs_with_ids(first), actor="ann")
    settle(store)

    assert status_of(store, after) is FAILED
    assert store.job_queries.get(after).error_code == "BROKEN"


def test_retrying_a_failed_job_and_its_dependent_runs_both(store: Store, enqueue: Enqueue) -> None:
    first = enqueue()
    after = enqueue(after=(first,))
    _run(store, first, FAILED)
    settle(store)

    store.job_control.retry(Selector(statuses=(FAILED,)), actor="ann")

    assert claimed_ids(store) == [first]
    assert gate_codes(store, after) == ["WAITS_FOR"]
    store.leases.complete(store.job_queries.get(first).lease)
    assert claimed_ids(store) == [after]


def test_a_waiting_job_can_be_cancelled_and_retried_and_waits_on(store: Store, enqueue: Enqueue) -> None:
    first = enqueue()
    waiting = enqueue(after=(first,))

    store.job_control.cancel(jobs_with_ids(waiting), actor="ann")
    assert status_of(store, waiting) is CANCELLED
    store.job_control.retry(jobs_with_ids(waiting), actor="ann")

    assert gate_codes(store, waiting) == ["WAITS_FOR"]
    _run(store, first, COMPLETED)
    assert claimed_ids(store) == [waiting]


def test_a_follow_up_may_wait_for_the_job_that_asks_for_it(store: Store, enqueue: Enqueue) -> None:
    first = enqueue()

    store.leases.complete(claim_one(store).lease, None, [NewJob("assemble", after=(first,))])

    (follow_up,) = store.leases.claim("w1", 5)
    assert (follow_up.job_type, follow_up.parent_id) == ("assemble", first)


def test_time_and_need_both_hold_a_job(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    first = enqueue()
    waiting = enqueue(after=(first,))
    by_hand(f"UPDATE worker_job_queue SET run_at = '2099-01-01' WHERE id = {waiting}")

    assert gate_codes(store, waiting) == ["NOT_YET", "WAITS_FOR"]
    _run(store, first, COMPLETED)
    assert gate_codes(store, waiting) == ["NOT_YET"]
    by_hand(f"UPDATE worker_job_queue SET run_at = NULL WHERE id = {waiting}")
    assert claimed_ids(store) == [waiting]


def test_a_revived_job_keeps_its_time(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    first = enqueue()
    waiting = enqueue(after=(first,), run_at=clock.after(3600))
    _run(store, first, FAILED)
    settle(store)
    assert status_of(store, waiting) is FAILED

    store.job_control.retry(jobs_with_ids(first), actor="ann")
    _run(store, first, COMPLETED)

    assert gate_codes(store, waiting) == ["NOT_YET"]
    assert claimed_ids(store) == []


def test_key_and_need_both_hold_a_job(store: Store, enqueue: Enqueue) -> None:
    first = enqueue(concurrency_key="k")
    waiting = enqueue(after=(first,), concurrency_key="k", priority=1)
    last = enqueue(concurrency_key="k", priority=9)

    assert claimed_ids(store) == [first]
    store.leases.complete(store.job_queries.get(first).lease)

    assert claimed_ids(store) == [waiting]
    store.leases.complete(store.job_queries.get(waiting).lease)
    assert claimed_ids(store) == [last]
