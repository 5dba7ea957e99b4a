"""Inserting jobs, and the order in which they are claimed."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.store.kit import (
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    all_jobs,
    claim_one,
    claimed_ids,
    gate_codes,
    open_at,
)
from worker_service.base.errors import JobNotFound, PagemillError
from worker_service.jobs.documents import DocumentRequest
from worker_service.jobs.job import NewJob, Status
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")

# ── Intake ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_job_keeps_every_field_it_was_given(store: Store, clock: MovableClock) -> None:
    store.intake.enqueue(NewJob("ingest", document=DocumentRequest("report.pdf", "report")))
    new_job = NewJob(
        "ocr_pages",
        platform="gdrive",
        account="user123",
        payload='{"pages": [1, 2]}',
        priority=2,
        owner="ann",
        source="drive:ann",
        run_at=clock.after(60),
        max_retries=7,
        timeout_seconds=90,
        unique_key="u",
        concurrency_key="k",
        batch_id=3,
        document_id=1,
        generation=1,
    )

    job = store.job_queries.get(store.intake.enqueue(new_job).job_id)

    names = (
        "job_type platform account payload priority owner source max_retries timeout_seconds unique_key "
        "concurrency_key batch_id document_id generation"
    ).split()
    assert {name: getattr(job, name) for name in names} == {name: getattr(new_job, name) for name in names}
    assert job.status is Status.PENDING
    assert job.created_at == "2026-11-18 10:00:00.000"
    assert job.run_at == "2026-11-18 10:01:00.000"
    assert (job.fence, job.retry_count, job.requeue_count, job.progress_percent) == (0, 0, 0, 0)


def test_p3_an_enqueued_job_is_there_when_the_store_is_opened_again(
    store: Store, enqueue: Enqueue, path: Path, clock: MovableClock
) -> None:
    job_id = enqueue(payload='{"a":1}')

    store.close()
    with closing(open_at(path, clock)) as reopened:
        assert reopened.job_queries.get(job_id).payload == '{"a":1}'


def test_enqueue_many_returns_the_jobs_in_the_given_order(store: Store) -> None:
    added = store.intake.enqueue_many([NewJob("ocr_pages", account=str(number)) for number in range(50)])

    assert [store.job_queries.get(enqueued.job_id).account for enqueued in added] == [
        str(number) for number in range(50)
    ]
    assert not any(enqueued.existing for enqueued in added)


@pytest.mark.parametrize(
    "job",
    [
        NewJob("ocr_pages"),
        NewJob("ocr_pages", platform="gdrive", account="a", payload="[1]", priority=2, owner="ann"),
        NewJob(
            "ocr_pages",
            source="s",
            run_at=datetime(2099, 1, 1, tzinfo=UTC),
            max_retries=1,
            timeout_seconds=9,
            name="n",
            source_key="k",
        ),
    ],
)
def test_a_job_inserted_alone_or_with_others_has_the_same_row(store: Store, job: NewJob) -> None:
    first = store.intake.enqueue(job)
    alone = store.job_queries.get(first.job_id)

    among = [store.job_queries.get(enqueued.job_id) for enqueued in store.intake.enqueue_many([job] * 51)]

    assert {job._replace(id=alone.id) for job in among} == {alone}


def test_follow_ups_have_their_parent_however_many_they_are(store: Store, enqueue: Enqueue) -> None:
    parent = enqueue(owner="ann", priority=3)

    store.leases.complete(claim_one(store).lease, None, [NewJob("ocr_pages")] * 51)

    born = [store.job_queries.get(parent + number) for number in range(1, 52)]
    assert {(job.parent_id, job.owner, job.priority) for job in born} == {(parent, "ann", 3)}


@pytest.mark.parametrize(
    "bad",
    [
        NewJob("ocr_pages", priority=0),
        NewJob("ocr_pages", priority=11),
        NewJob("ocr_pages", payload="not json"),
        NewJob("", payload="{}"),
        NewJob("ocr_pages", max_retries=-1),
        NewJob("ocr_pages", timeout_seconds=0),
        NewJob("ocr_pages", after=(12345,)),
        NewJob("ocr_pages", payload='"' + "x" * 1_048_576 + '"'),
        NewJob("ocr_pages", payload='"' + "ä" * 600_000 + '"'),
    ],
    ids=lambda job: "-".join(f"{k}={str(getattr(job, k))[:10]}" for k in ("job_type", "priority", "payload", "after")),
)
def test_enqueue_many_inserts_all_or_none(store: Store, by_hand: ByHand, bad: NewJob) -> None:
    before = by_hand.dump()

    with pytest.raises(PagemillError) as refusal:
        store.intake.enqueue_many([NewJob("ocr_pages"), bad, NewJob("ocr_pages")])

    assert len(str(refusal.value)) > 10
    assert by_hand.dump() == before
    store.intake.enqueue(NewJob("ocr_pages", payload='"' + "x" * 1_048_574 + '"'))


def test_a_second_live_job_with_the_unique_key_is_the_first_one(store: Store) -> None:
    first = store.intake.enqueue(NewJob("ocr_pages", unique_key="page-7"))

    again = store.intake.enqueue(NewJob("assemble", unique_key="page-7", priority=1))
    claim_one(store)
    while_running = store.intake.enqueue(NewJob("ocr_pages", unique_key="page-7"))

    assert not first.existing
    assert again.job_id == while_running.job_id == first.job_id
    assert again.existing
    assert while_running.existing
    assert len(all_jobs(store)) == 1


def test_once_the_holder_of_a_unique_key_has_ended_the_key_is_free(store: Store, enqueue: Enqueue) -> None:
    first = enqueue(unique_key="u")
    store.leases.complete(claim_one(store).lease)

    second = store.intake.enqueue(NewJob("ocr_pages", unique_key="u"))

    assert second.job_id != first
    assert not second.existing


def test_a_unique_key_twice_in_one_batch_makes_one_job(store: Store) -> None:
    added = store.intake.enqueue_many(
        [NewJob("ocr_pages", unique_key="u"), NewJob("a"), NewJob("ocr_pages", unique_key="u")]
    )

    assert [enqueued.existing for enqueued in added] == [False, False, True]
    assert added[0].job_id == added[2].job_id
    assert len(all_jobs(store)) == 2


def test_a_job_that_is_not_there_is_job_not_found(store: Store) -> None:
    with pytest.raises(JobNotFound):
        store.job_queries.get(42)
    with pytest.raises(JobNotFound):
        store.gates.explain(42)


# ── Order ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unowned_jobs_come_in_the_order_of_priority_then_age_then_id(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker(cpu=100)
    made: list[tuple[int, int, int]] = []
    for number in range(40):
        if number % 3 == 0:
            clock.advance(1)
        job_type = ("ocr_pages", "assemble", "scrape_account")[number % 3]
        source = ("", "drive:a", "drive:b")[number // 3 % 3]
        priority = number * 7 % 10 + 1
        made.append((priority, number // 3, enqueue(job_type, priority=priority, source=source)))

    taken = [claim_one(store).id for _ in range(20)] + claimed_ids(store, most=7) + claimed_ids(store)

    assert taken == [job_id for _, _, job_id in sorted(made)]


@pytest.mark.parametrize("most", [1, 4])
def test_the_age_of_a_job_is_its_created_at_and_not_its_id(store: Store, by_hand: ByHand, most: int) -> None:
    for job_type, hour in (("ocr_pages", "09"), ("assemble", "08"), ("ocr_pages", "07"), ("scrape_account", "06")):
        by_hand(
            "INSERT INTO worker_job_queue (job_type, platform, created_at) "
            f"VALUES ('{job_type}', 'x', '2026-11-18 {hour}:00')"
        )

    assert [job_id for _ in range(4) for job_id in claimed_ids(store, most=most)] == [4, 3, 2, 1]


def test_the_next_of_a_key_is_the_oldest_and_not_the_first_inserted(store: Store, by_hand: ByHand) -> None:
    for job_type, hour in (("ocr_pages", "09"), ("assemble", "08"), ("ocr_pages", "07")):
        by_hand(
            "INSERT INTO worker_job_queue (job_type, platform, concurrency_key, created_at) "
            f"VALUES ('{job_type}', 'x', 'k', '2026-11-18 {hour}:00')"
        )

    taken = []
    for _ in range(3):
        (job,) = store.leases.claim("w1", 3)
        taken.append(job.id)
        store.leases.complete(job.lease)

    assert taken == [3, 2, 1]


def test_a_claim_takes_its_own_class_only(store: Store, enqueue: Enqueue) -> None:
    read, load = enqueue("ocr_pages"), enqueue("download", priority=1)

    assert claimed_ids(store, job_class="cpu") == [read]
    assert claimed_ids(store, job_class="io") == [load]


# ── Held rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_waits_for_its_run_at_and_then_takes_its_turn(
    store: Store, enqueue: Enqueue, clock: MovableClock
) -> None:
    later, now = enqueue(run_at=clock.after(60), priority=1), enqueue(priority=9)

    assert gate_codes(store, later) == ["NOT_YET"]
    assert claimed_ids(store) == [now]
    clock.advance(59.999)
    assert claimed_ids(store) == []
    clock.advance(0.001)
    assert gate_codes(store, later) == []
    assert claimed_ids(store) == [later]


def test_a_job_whose_run_at_has_passed_is_ready_at_once(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue(run_at=clock.after(-60))

    assert gate_codes(store, job_id) == []
    assert claimed_ids(store) == [job_id]


def test_jobs_due_at_the_same_time_are_freed_by_priority(store: Store, clock: MovableClock) -> None:
    store.intake.enqueue_many([NewJob("ocr_pages", run_at=clock.after(10), priority=9) for _ in range(2500)])
    best = store.intake.enqueue(NewJob("ocr_pages", run_at=clock.after(20), priority=1)).job_id
    clock.advance(30)

    assert gate_codes(store, best) == []
    assert claimed_ids(store, most=1) == [best]


def test_only_jobs_of_this_worker_that_wait_for_their_time_alone_come_due(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker(types=["download"])
    worker("without", types=["download"], missing="a program")
    soon, other = clock.after(30), enqueue()
    enqueue(run_at=soon)
    enqueue("download", run_at=soon, after=(other,))
    enqueue("download", run_at=clock.after(61))
    assert not store.leases.comes_due("w1", clock.after(60))

    enqueue("download", run_at=soon, priority=9)

    assert [store.leases.comes_due(worker_id, clock.after(60)) for worker_id in ("w1", "without")] == [True, False]


def test_next_deadline_is_the_next_time_that_frees_a_job(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    assert store.leases.next_deadline() is None

    enqueue(run_at=clock.after(600))
    assert store.leases.next_deadline() == clock.after(600)
    store.job_control.pause("type", "assemble", until=clock.after(500))
    assert store.leases.next_deadline() == clock.after(500)
    store.leases.rest_source("drive", clock.after(400), "quota")
    assert store.leases.next_deadline() == clock.after(400)
    enqueue(run_at=clock.after(100), priority=10)
    assert store.leases.next_deadline() == clock.after(100)


# ── Capabilities and workers ────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_has_no_more_running_jobs_than_slots(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(cpu=2, io=1)
    many = [enqueue() for _ in range(4)]
    load = enqueue("download")

    assert claimed_ids(store, most=10) == many[:2]
    assert claimed_ids(store, most=10) == []
    assert "SLOTS_FULL" in gate_codes(store, many[2])
    assert claimed_ids(store, most=10, job_class="io") == [load]


def test_a_silent_worker_claims_nothing_until_it_beats_again(
    store: Store, enqueue: Enqueue, clock: MovableClock
) -> None:
    job_id = enqueue()
    clock.advance(301)

    assert gate_codes(store, job_id) == ["WORKER_DOWN"]
    assert claimed_ids(store) == []
    store.leases.beat("w1", [])
    assert gate_codes(store, job_id) == []
    assert claimed_ids(store) == [job_id]


def test_a_second_live_worker_keeps_a_job_claimable(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker("w1")
    worker("w2")
    job_id = enqueue()

    store.workers.set_worker_state("w1", draining=True, disk_low=False)

    assert gate_codes(store, job_id) == []
    assert claimed_ids(store, "w1") == []
    assert claimed_ids(store, "w2") == [job_id]


def test_a_worker_that_holds_nothing_can_deregister(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()

    store.workers.deregister("w1")

    assert store.overview.workers() == []
    assert gate_codes(store, job_id) == ["WORKER_DOWN"]


def test_a_worker_that_holds_a_lease_is_not_forgotten(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    claim_one(store)

    with pytest.raises(PagemillError):
        store.workers.deregister("w1")

    assert store.job_queries.get(job_id).worker_id == "w1"
    assert [job.id for job in store.leases.requeue("w1")] == [job_id]
