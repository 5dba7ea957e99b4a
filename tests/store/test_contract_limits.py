"""P8 and P9: limits hold at every commit, and every owner is served."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from tests.store.kit import (
    ENDINGS,
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    claim_one,
    claimed_ids,
    gate_codes,
    jobs_with_ids,
    status_of,
)
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")

# ── P8: limits (owner, type, concurrency key) hold at every commit ──────────────────────────────────────────────────


def test_p8_one_running_job_for_each_concurrency_key(store: Store, enqueue: Enqueue) -> None:
    first, second, other = enqueue(concurrency_key="k"), enqueue(concurrency_key="k"), enqueue(concurrency_key="l")

    taken = store.leases.claim("w1", 10)

    assert [job.id for job in taken] == [first, other]
    assert gate_codes(store, second) == ["KEY_BUSY"]
    store.leases.complete(taken[0].lease)
    assert gate_codes(store, second) == []
    assert claimed_ids(store) == [second]


@pytest.mark.parametrize("ending", ENDINGS)
def test_p8_each_end_of_the_running_job_of_a_key_frees_the_next(store: Store, enqueue: Enqueue, ending: str) -> None:
    holder, following = enqueue(concurrency_key="k", priority=5), enqueue(concurrency_key="k", priority=9)
    lease = claim_one(store).lease
    assert lease.job_id == holder
    store.job_control.priority(jobs_with_ids(following), 1, actor="ann")

    ENDINGS[ending](store, lease)

    assert gate_codes(store, following) == []
    assert claimed_ids(store) == [following]


def test_p8_a_removed_or_delayed_job_passes_its_turn_on(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    heads = [enqueue(concurrency_key="k") for _ in range(5)]

    store.job_control.cancel(jobs_with_ids(heads[0]), actor="ann")
    assert gate_codes(store, heads[1]) == []
    store.job_control.delete(jobs_with_ids(heads[1]), actor="ann")
    assert gate_codes(store, heads[2]) == []
    by_hand(f"UPDATE worker_job_queue SET run_at = '2099-01-01' WHERE id = {heads[2]}")
    assert gate_codes(store, heads[3]) == []
    by_hand(f"DELETE FROM worker_job_queue WHERE id = {heads[3]}")
    assert gate_codes(store, heads[4]) == []
    assert claimed_ids(store) == [heads[4]]


def test_p8_a_due_job_with_a_key_has_its_turn_by_priority(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    enqueue(concurrency_key="k", priority=5)
    later = enqueue(concurrency_key="k", priority=1, run_at=clock.after(10))
    clock.advance(10)

    assert claimed_ids(store) == [later]


def test_p8_a_key_job_given_a_better_priority_goes_first(store: Store, enqueue: Enqueue) -> None:
    first, second = enqueue(concurrency_key="k"), enqueue(concurrency_key="k")

    store.job_control.priority(jobs_with_ids(second), 1, actor="ann")

    assert gate_codes(store, second) == []
    assert gate_codes(store, first) != []
    assert claimed_ids(store) == [second]


def test_p8_no_more_jobs_of_an_owner_than_the_owners_limit(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(cpu=20)
    store.workers.set_limits("owner", {"ann": 1, "*": 2})
    ann = [enqueue(owner="ann") for _ in range(3)]
    bob = [enqueue(owner="bob") for _ in range(3)]
    nobody = [enqueue() for _ in range(4)]

    taken = store.leases.claim("w1", 20)

    assert Counter(job.owner for job in taken) == {"ann": 1, "bob": 2, "": 4}
    assert len(nobody) == 4
    assert "OWNER_BUSY" in gate_codes(store, ann[1])
    assert "OWNER_BUSY" in gate_codes(store, bob[2])
    store.leases.complete(next(job for job in taken if job.owner == "ann").lease)
    assert claimed_ids(store, most=20) == [ann[1]]


def test_p8_no_more_jobs_of_a_type_than_the_types_limit(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker("w1")
    worker("w2")
    store.workers.set_limits("type", {"ocr_pages": 2})
    read = [enqueue("ocr_pages", owner=owner) for owner in ("ann", "bob", "cid", "")]
    build = [enqueue("assemble") for _ in range(3)]

    taken = [*store.leases.claim("w1", 8), *store.leases.claim("w2", 8)]

    assert Counter(job.job_type for job in taken) == {"ocr_pages": 2, "assemble": 3}
    assert len(build) == 3
    waiting = next(job_id for job_id in read if status_of(store, job_id) is Status.PENDING)
    assert "TYPE_FULL" in gate_codes(store, waiting)


def test_p8_no_more_jobs_of_a_class_than_the_classs_limit(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker("w1")
    worker("w2")
    store.workers.set_limits("class", {"cpu": 3})
    jobs = [enqueue(job_type) for job_type in ("ocr_pages", "assemble") for _ in range(3)]
    loads = [enqueue("download") for _ in range(2)]

    taken = [*store.leases.claim("w1", 2), *store.leases.claim("w2", 8), *store.leases.claim("w1", 8)]

    assert len(taken) == 3
    assert gate_codes(store, jobs[-1])
    assert claimed_ids(store, "w1", job_class="io") == loads


def test_p8_a_limit_of_zero_starts_nothing_until_it_is_removed(store: Store, enqueue: Enqueue) -> None:
    store.workers.set_limits("type", {"ocr_pages": 0})
    job_id = enqueue()
    assert gate_codes(store, job_id) == ["TYPE_FULL"]
    assert claimed_ids(store) == []

    store.workers.set_limits("type", {})

    assert gate_codes(store, job_id) == []
    assert claimed_ids(store) == [job_id]


# ── P9: with k owners waiting, each is served within k × slots claims ───────────────────────────────────────────────


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (4, 1), (4, 4), (3, 2)])
def test_p9_each_owner_is_served_within_owners_times_slots(
    store: Store, worker: AddWorker, slots: int, most: int
) -> None:
    worker(cpu=slots)
    owners = {"ann": 90, "bob": 12, "cid": 9, "": 30}
    store.intake.enqueue_many([NewJob("ocr_pages", owner=owner, priority=1) for owner in ("ann",) for _ in range(90)])
    store.intake.enqueue_many(
        [
            NewJob("ocr_pages", owner=owner, priority=9)
            for owner, many in owners.items()
            if owner != "ann"
            for _ in range(many)
        ]
    )
    waiting = Counter(owners)
    unserved, rivals = Counter[str](), dict.fromkeys(owners, len(owners))
    running: deque[Job] = deque()

    while waiting.total():
        taken = store.leases.claim("w1", most)
        assert taken or running, f"nothing runs and nothing is claimed, though {waiting} wait"
        for job in taken:
            for owner in +waiting:
                unserved[owner] += 1
            # k of P9: the owners that waited when the wait of this owner began.
            assert unserved[job.owner] <= rivals[job.owner] * slots
            unserved[job.owner], rivals[job.owner] = 0, len(+waiting)
            waiting[job.owner] -= 1
            running.append(job)
        store.leases.complete(running.popleft().lease)

    assert waiting.total() == 0


def test_p9_a_new_owner_does_not_wait_for_a_backlog(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(cpu=1)
    store.intake.enqueue_many([NewJob("ocr_pages", owner="ann", priority=1) for _ in range(500)])
    for _ in range(20):
        store.leases.complete(claim_one(store).lease)

    newcomer = enqueue(owner="bob", priority=10)
    taken = []
    for _ in range(2):
        job = claim_one(store)
        taken.append(job.id)
        store.leases.complete(job.lease)

    assert newcomer in taken


def test_p9_within_an_owner_the_order_is_priority_then_age(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(cpu=20)
    late = enqueue(owner="ann", priority=9)
    first = enqueue("assemble", owner="ann", priority=1)
    middle = enqueue(owner="ann", priority=5, source="drive")

    assert claimed_ids(store, most=1) == [first]
    assert claimed_ids(store, most=5) == [middle, late]
