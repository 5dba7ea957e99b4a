"""Batches: the jobs that they hold, their follow-up jobs, their ends, and notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.store.kit import (
    BROKEN,
    ENDINGS,
    START,
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    all_jobs,
    claim_one,
    claimed_ids,
    end_job,
    gate_codes,
    jobs_with_ids,
    settle,
    status_of,
)
from worker_service.base.errors import BatchNotFound, Refused, RuleBroken
from worker_service.jobs.attempts import Completion
from worker_service.jobs.batches import Batch, BatchState, NewBatch, OwnerPolicy
from worker_service.jobs.documents import Decision, DocumentFacts, DocumentRequest, IndexStatus, PageResult
from worker_service.jobs.job import Lease, NewJob, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.store import job_control, settling
from worker_service.store.database import Database
from worker_service.store.store import Store

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status

pytestmark = pytest.mark.usefixtures("worker_is_there")


def states(by_hand: ByHand) -> dict[object, object]:
    return {row["id"]: row["state"] for row in by_hand("SELECT id, state FROM batch")}


def notice_kinds(by_hand: ByHand, of: str = "") -> list[object]:
    return [row["kind"] for row in by_hand(f"SELECT kind FROM notice WHERE kind GLOB '{of}*' ORDER BY id")]


def reading_job(source_key: str, *, owner: str = "ann", batch_id: int | None = None) -> NewJob:
    return NewJob("ingest", owner=owner, batch_id=batch_id, document=DocumentRequest(source_key, f"{source_key}.pdf"))


# ── Held ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_stopped_by_hand_holds_its_jobs(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    first, second = enqueue(batch_id=7), enqueue(batch_id=7)
    other = enqueue(batch_id=8)

    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    late = enqueue(batch_id=7)

    assert [gate_codes(store, job_id) for job_id in (first, second, late)] == [["BATCH_STOPPED"]] * 3
    assert claimed_ids(store) == [other]
    assert {row["state"] for row in by_hand("SELECT state FROM v_jobs WHERE id <> 3")} == {"stopped"}
    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    assert claimed_ids(store) == [first, second, late]


@pytest.mark.parametrize("how", ["release", "snooze", "fail", "requeue", "retry", "cancel"])
def test_a_job_put_back_into_a_stopped_batch_is_held(store: Store, enqueue: Enqueue, by_hand: ByHand, how: str) -> None:
    job_id = enqueue(batch_id=7)
    lease = claim_one(store).lease
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")

    if how == "snooze":
        store.leases.snooze(lease, START)
    elif how == "retry":
        store.leases.fail(lease, BROKEN, retry_at=START)
    else:
        ENDINGS[how](store, lease)
        store.job_control.retry(jobs_with_ids(job_id), actor="ann")

    assert (status_of(store, job_id), "BATCH_STOPPED" in gate_codes(store, job_id)) == (PENDING, True)
    assert claimed_ids(store) == []
    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    assert claimed_ids(store) == [job_id]


def test_the_gate_of_a_batch_names_it_and_the_reason(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    by_hand("INSERT INTO batch (id, owner, name) VALUES (6, 'ann', 'first'), (7, 'ann', 'reports')")
    job_id = enqueue(batch_id=7, owner="ann")

    by_hand("UPDATE batch SET state = 'stopped', note = 'stopped by bob' WHERE id = 7")
    [stopped] = store.gates.explain(job_id)
    by_hand("UPDATE batch SET state = 'waiting' WHERE id = 7")
    enqueue(batch_id=6, owner="ann")
    [waiting] = store.gates.explain(job_id)

    assert (stopped.code, stopped.detail) == ("BATCH_STOPPED", "batch 7 (reports) was stopped by bob")
    assert (waiting.code, waiting.detail) == ("BATCH_WAITING", "batch 7 (reports) waits for batch 6 of the same owner")


def test_a_job_of_a_stopped_batch_does_not_block_its_key(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    first = enqueue(batch_id=7, concurrency_key="k")
    other = enqueue(concurrency_key="k")
    assert gate_codes(store, first) == []

    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")

    assert claimed_ids(store) == [other]
    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    assert gate_codes(store, first) == ["KEY_BUSY"]
    store.leases.complete(store.job_queries.get(other).lease)
    assert claimed_ids(store) == [first]


def test_a_bad_change_of_a_batch_is_refused_with_a_sentence(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue(batch_id=7)
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    assert store.batches.add(NewBatch("carol"), []).batch.state is BatchState.DONE
    before = by_hand.dump()
    refused = {
        "UPDATE batch SET state = 'stopped' WHERE id = 8": "has ended",
        "INSERT INTO worker_job_queue (job_type, platform, owner, batch_id) VALUES ('x', 'local', 'eve', 8)":
            "belongs to another owner",
        "UPDATE batch SET state = 'done' WHERE id = 7": "a batch ends by itself",
        "UPDATE batch SET state = 'paused' WHERE id = 7": "state is active, waiting, stopped, done or failed",
        "UPDATE batch SET id = 8 WHERE id = 7": "the id of a batch never changes",
        "INSERT OR REPLACE INTO batch (id) VALUES (7)": "there is a batch with this id",
        "DELETE FROM batch WHERE id = 7": "this batch has jobs that have not ended",
        "UPDATE worker_job_queue SET held = 0": "the batch of this job is stopped or waits",
    }  # fmt: skip

    for sentence, refusal in zip(refused.values(), by_hand.refusals(list(refused)), strict=True):
        assert sentence in refusal
    assert by_hand.dump() == before


def test_a_job_replaces_no_batch(store: Store, by_hand: ByHand) -> None:
    by_hand("INSERT INTO batch (id, name) VALUES (7, 'reports')")

    by_hand("INSERT OR REPLACE INTO worker_job_queue (job_type, platform, batch_id) VALUES ('ocr_pages', 'x', 7)")

    assert by_hand.value("SELECT name FROM batch") == "reports"


# ── What comes of it ────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_batch_has_its_own_unique_keys_of_follow_up_jobs(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    for batch_id in (7, 8):
        enqueue(batch_id=batch_id)
        # In one batch, the same unique_key twice makes one job.
        store.leases.complete(claim_one(store).lease, None, [NewJob("assemble", unique_key="u")] * 2)
        by_hand(f"UPDATE batch SET state = 'stopped' WHERE id = {batch_id}")

    follow_ups = store.job_queries.list(Selector(job_types=("assemble",)))

    assert [job.batch_id for job in follow_ups] == [8, 7]


def test_the_priority_of_a_batch_reaches_running_jobs(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue(batch_id=7)
    waiting = enqueue(batch_id=7)
    other = enqueue()
    lease = claim_one(store).lease

    changed = store.job_control.priority(Selector(batch_ids=(7,)), 1, actor="ann")
    store.leases.complete(lease, None, [NewJob("assemble")])

    assert sorted(changed.job_ids) == [lease.job_id, waiting]
    assert {job.id: job.priority for job in all_jobs(store).values()} == {1: 1, waiting: 1, other: 5, 4: 1}
    assert by_hand.value("SELECT priority FROM batch") == 1


def test_a_selector_unites_named_items_and_intersects_other_conditions(store: Store, enqueue: Enqueue) -> None:
    first = enqueue(batch_id=7)
    second = enqueue("assemble", batch_id=7)
    document = store.intake.enqueue(reading_job("a"))
    alone = enqueue()
    enqueue()
    assert document.document_id is not None

    named = Selector(ids=(alone,), batch_ids=(7,), document_ids=(document.document_id,))
    narrowed = Selector(batch_ids=(7,), document_ids=(document.document_id,), job_types=("assemble",))

    assert list(store.job_queries.ids(named)) == [first, second, document.job_id, alone]
    assert list(store.job_queries.ids(narrowed)) == [second]


# ── Its end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_done_when_its_last_follow_up_job_completes(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue(batch_id=7)
    store.leases.complete(claim_one(store).lease, None, [NewJob("assemble")])
    assert states(by_hand) == {7: "active"}

    store.leases.complete(claim_one(store).lease)

    assert states(by_hand) == {7: "done"}
    assert notice_kinds(by_hand) == ["batch.started", "batch.done"]
    assert by_hand.value("SELECT ended_at IS NOT NULL FROM batch") == 1


@pytest.mark.parametrize("how", [FAILED, CANCELLED])
def test_a_failed_job_fails_its_batch_until_a_retry(
    store: Store, enqueue: Enqueue, by_hand: ByHand, how: Status
) -> None:
    job_id = enqueue(batch_id=7)
    end_job(store, claim_one(store).lease, how)
    assert states(by_hand) == {7: "failed"}

    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {job_id}")
    assert by_hand("SELECT state, round, ended_at FROM batch") == [{"state": "active", "round": 2, "ended_at": None}]
    store.leases.complete(claim_one(store).lease)

    assert states(by_hand) == {7: "done"}
    assert notice_kinds(by_hand, "batch") == ["batch.started", "batch.failed", "batch.resumed", "batch.done"]


def test_the_next_transaction_ends_a_batch_changed_by_hand(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    cancelled, deleted = enqueue(batch_id=7), enqueue(batch_id=8)

    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {cancelled}")
    by_hand(f"DELETE FROM worker_job_queue WHERE id = {deleted}")
    assert states(by_hand) == {7: "active", 8: "active"}
    settle(store)

    assert states(by_hand) == {7: "failed", 8: "done"}


def test_a_stopped_batch_ends_only_when_it_is_active_again(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue(batch_id=7)
    lease = claim_one(store).lease
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    store.leases.complete(lease)
    assert states(by_hand) == {7: "stopped"}

    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    settle(store)

    assert states(by_hand) == {7: "done"}


def test_a_batch_waits_for_documents_that_another_job_reads(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest", "download"])
    reading = store.intake.enqueue(reading_job("a"))
    also = store.intake.enqueue(reading_job("a", batch_id=7))
    store.intake.enqueue(NewJob("download", batch_id=7, owner="ann"))
    assert (also.decision, also.existing) == (Decision.UNDER_WAY, True)
    store.leases.complete(claim_one(store, job_class="io").lease)
    assert states(by_hand) == {7: "active"}

    lease = claim_one(store).lease
    assert lease.job_id == reading.job_id
    store.leases.complete_many([Completion(lease, publishes=True)])

    assert states(by_hand) == {7: "done"}
    assert notice_kinds(by_hand, "document") == ["document.started", "document.ready"]


def test_a_failed_document_fails_its_batch_with_notices(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest"])
    store.intake.enqueue(reading_job("a", batch_id=7))

    end_job(store, claim_one(store).lease, FAILED)

    assert states(by_hand) == {7: "failed"}
    assert notice_kinds(by_hand) == [
        "batch.started", "document.started", "job.failed", "document.failed", "batch.failed"
    ]  # fmt: skip
    rows = by_hand("SELECT owner, document_id, batch_id, generation, code FROM notice WHERE kind = 'document.failed'")
    assert rows == [{"owner": "ann", "document_id": 1, "batch_id": 7, "generation": 1, "code": "BROKEN"}]


def test_stale_jobs_fail_no_batch(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest"])
    store.intake.enqueue(reading_job("a", batch_id=7))

    store.intake.enqueue(NewJob("ingest", owner="ann", document=DocumentRequest("a", "a", settings='{"dpi":300}')))
    store.leases.complete_many([Completion(claim_one(store).lease, publishes=True)])

    assert states(by_hand) == {7: "done"}


def test_the_longest_waiting_batch_of_an_owner_starts_next(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    by_hand("INSERT INTO batch (id, owner) VALUES (6, 'ann')")
    by_hand("INSERT INTO batch (id, owner, state) VALUES (7, 'ann', 'waiting'), (8, 'ann', 'waiting')")
    jobs = [enqueue(batch_id=batch_id, owner="ann") for batch_id in (6, 7, 8)]

    for job_id in jobs:
        settle(store)
        assert [list(claimed_ids(store))] == [[job_id]]
        store.leases.complete(store.job_queries.get(job_id).lease)

    assert set(states(by_hand).values()) == {"done"}


HALTS: dict[str, Callable[[Store, ByHand, int], object]] = {
    "stop": lambda store, by_hand, batch_id: store.batches.stop(batch_id, actor="ann"),
    "cancel": lambda store, by_hand, batch_id: store.batches.cancel(batch_id, actor="ann"),
    "stop by hand": lambda store, by_hand, batch_id: by_hand(
        f"UPDATE batch SET state = 'stopped' WHERE id = {batch_id}"
    ),
    "remove": lambda store, by_hand, batch_id: (
        by_hand(f"DELETE FROM worker_job_queue WHERE batch_id = {batch_id}"),
        store.batches.remove(batch_id, actor="ann"),
    ),
    "delete by hand": lambda store, by_hand, batch_id: by_hand(
        f"DELETE FROM worker_job_queue WHERE batch_id = {batch_id}; DELETE FROM batch WHERE id = {batch_id}"
    ),
}


# ── Documents of a batch that is stopped ────────────────────────────────────────────────────────────────────────────


def test_a_document_of_a_stopped_batch_is_taken_over_at_once(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest"])
    store.intake.enqueue(reading_job("a", batch_id=7))
    assert store.intake.enqueue(reading_job("a")).decision is Decision.UNDER_WAY

    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    taken = store.intake.enqueue(reading_job("a"))

    assert taken.decision is Decision.TAKEN_OVER
    assert claimed_ids(store) == [taken.job_id]
    assert "document.taken_over" in notice_kinds(by_hand)


@pytest.mark.parametrize("how", ["stop", "cancel", "stop by hand"])
def test_an_active_batch_takes_over_documents_of_a_stopped_one(
    store: Store, by_hand: ByHand, worker: AddWorker, how: str
) -> None:
    worker(types=["ingest"])
    first, second = (
        store.batches.add(
            NewBatch("ann", priority=priority), [reading_job("a"), reading_job("b")], policy=OwnerPolicy.OFF
        )
        for priority in (3, 2)
    )
    assert [job.decision for job in second.jobs] == [Decision.UNDER_WAY] * 2
    running = claim_one(store).lease

    HALTS[how](store, by_hand, first.batch.id)
    settle(store)
    store.leases.confirm_cancel(running)

    for lease in [store.job_queries.get(job_id).lease for job_id in claimed_ids(store)]:
        job = store.job_queries.get(lease.job_id)
        assert (job.batch_id, job.priority, job.generation, job.name) == (
            second.batch.id,
            2,
            2,
            f"{'ab'[job.id - 3]}.pdf",
        )
        store.leases.complete_many([Completion(lease, publishes=True)])
    assert store.batches.get(second.batch.id).state is BatchState.DONE


def end_all(store: Store) -> None:
    """Complete all jobs, follow-up jobs included."""
    while jobs := [store.job_queries.get(job_id) for job_id in claimed_ids(store)]:
        store.leases.complete_many([Completion(job.lease, publishes=job.generation is not None) for job in jobs])


def test_a_resumed_batch_takes_back_the_documents_of_its_replacement(store: Store, worker: AddWorker) -> None:
    worker(types=["ingest"])
    first = store.batches.add(NewBatch("ann"), [reading_job("a")]).batch
    second = store.batches.add(NewBatch("ann"), [reading_job("a")]).batch

    moved = store.batches.resume(first.id, actor="ann")
    end_all(store)

    assert list(moved.replaced) == [second.id]
    assert store.batches.get(first.id).state is BatchState.DONE


def test_a_queued_batch_takes_over_documents_of_the_stopped_batch_before_it(store: Store, worker: AddWorker) -> None:
    worker(types=["ingest"])
    first, second = (
        store.batches.add(NewBatch("ann"), [reading_job("a")], policy=OwnerPolicy.QUEUE).batch for _ in range(2)
    )

    store.batches.stop(first.id, actor="ann")
    store.batches.resume(first.id, actor="ann", policy=OwnerPolicy.QUEUE)
    end_all(store)

    assert [store.batches.get(batch.id).state for batch in (first, second)] == [BatchState.DONE] * 2


def test_a_resumed_batch_takes_over_documents_of_a_waiting_batch(store: Store, worker: AddWorker) -> None:
    worker(types=["ingest"])
    first = store.batches.add(NewBatch("ann"), [NewJob("ingest")], policy=OwnerPolicy.QUEUE).batch
    store.batches.add(NewBatch("ann"), [NewJob("ingest")], policy=OwnerPolicy.QUEUE)
    store.batches.stop(first.id, actor="ann")
    third = store.batches.add(NewBatch("ann"), [reading_job("a")], policy=OwnerPolicy.QUEUE).batch
    assert [job.decision for job in store.batches.extend(first.id, [reading_job("a")]).jobs] == [Decision.UNDER_WAY]

    store.batches.resume(first.id, actor="ann", policy=OwnerPolicy.OFF)
    end_all(store)

    assert [store.batches.get(batch.id).state for batch in (first, third)] == [BatchState.DONE] * 2


def test_a_failed_download_fails_no_batch_if_a_newer_one_completed(store: Store, enqueue: Enqueue) -> None:
    batch = store.batches.add(NewBatch("ann"), [NewJob("ocr_pages", source_key="/a.pdf")]).batch
    failing = claim_one(store).lease
    store.batches.extend(batch.id, [NewJob("ocr_pages", source_key="/a.pdf")])
    store.leases.fail(failing, BROKEN, retry_at=None)

    store.leases.complete(claim_one(store).lease)

    assert store.batches.get(batch.id).state is BatchState.DONE


def test_a_stopped_batch_does_not_take_over_its_own_document(store: Store, by_hand: ByHand) -> None:
    store.intake.enqueue(reading_job("a", batch_id=7))
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")

    assert store.intake.enqueue(reading_job("a", batch_id=7)).decision is Decision.UNDER_WAY


# ── Begun ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def add(store: Store, jobs: int = 1, *, owner: str = "ann", policy: OwnerPolicy = OwnerPolicy.REPLACE) -> Batch:
    new = NewBatch(owner, f"of {owner}", priority=3)
    return store.batches.add(new, [NewJob("ocr_pages")] * jobs, policy=policy).batch


def jobs_of(store: Store, batch: Batch) -> list[int]:
    return list(store.job_queries.ids(Selector(batch_id=batch.id)))


def test_a_batch_begins_with_all_its_jobs_which_are_its_owners_and_as_urgent(store: Store) -> None:
    new = NewBatch("ann", "reports", priority=3, asked='{"sources":["/srv"]}')
    added = store.batches.add(new, [NewJob("ocr_pages", unique_key="u"), NewJob("assemble", priority=1)])

    jobs = [store.job_queries.get(job.job_id or 0) for job in added.jobs]

    assert [(job.owner, job.batch_id, job.priority) for job in jobs] == [("ann", 1, 3), ("ann", 1, 1)]
    assert store.batches.get(1) == added.batch
    assert (added.batch.state, added.batch.title, added.batch.asked) == (
        BatchState.ACTIVE, "batch 1 (reports)", '{"sources":["/srv"]}'
    )  # fmt: skip


def test_batches_are_listed_by_owner_and_state_the_newest_first(store: Store) -> None:
    first, second, other = add(store), add(store), add(store, owner="bob")

    def listed(**chosen: Any) -> list[int]:
        return [batch.id for batch in store.batches.list(**chosen)]

    assert listed() == [other.id, second.id, first.id]
    assert listed(owners=["ann"]) == [second.id, first.id]
    assert listed(states=[BatchState.ACTIVE]) == [other.id, second.id]
    assert listed(most=1, before_id=other.id) == [second.id]
    with pytest.raises(BatchNotFound, match="no batch 9"):
        store.batches.get(9)


# ── One active batch of an owner ────────────────────────────────────────────────────────────────────────────────────


def test_a_new_batch_replaces_only_the_active_batch_of_its_owner(store: Store, by_hand: ByHand) -> None:
    first, other, nobodys = add(store), add(store, owner="bob"), add(store, owner="")

    second = store.batches.add(NewBatch("ann"), [NewJob("ocr_pages")])

    assert list(second.replaced) == [first.id]
    assert states(by_hand) == {first.id: "waiting", other.id: "active", nobodys.id: "active", second.batch.id: "active"}
    replaced = store.batches.get(first.id)
    assert (replaced.replaced_by, replaced.note) == (second.batch.id, f"replaced by batch {second.batch.id}")
    [gate] = store.gates.explain(jobs_of(store, first)[0])
    assert (gate.code, gate.detail) == (
        "BATCH_WAITING",
        f"batch {first.id} (of ann) was replaced by batch {second.batch.id} of the same owner, "
        "and resumes when that ends",
    )


def complete_jobs_of(store: Store, batch: Batch) -> None:
    """Complete the jobs of this batch; no other batch may run."""
    for job_id in jobs_of(store, batch):
        lease = claim_one(store).lease
        assert lease.job_id == job_id
        store.leases.complete(lease)


def test_a_replaced_batch_resumes_in_the_transaction_that_ends_the_newer_one(store: Store, by_hand: ByHand) -> None:
    first = add(store, 2)
    done = claim_one(store)
    second = add(store)
    store.leases.release(done.lease)

    complete_jobs_of(store, second)

    resumed = store.batches.get(first.id)
    assert (resumed.state, resumed.replaced_by, resumed.note) == (
        BatchState.ACTIVE,
        None,
        f"resumed after batch {second.id}",
    )
    assert store.job_queries.get(done.id).retry_count == 0
    complete_jobs_of(store, first)
    assert set(states(by_hand).values()) == {"done"}
    kinds = by_hand(f"SELECT kind FROM notice WHERE batch_id = {first.id} ORDER BY id")
    assert [row["kind"] for row in kinds] == ["batch.started", "batch.waiting", "batch.resumed", "batch.done"]


def test_a_chain_of_replaced_batches_resumes_the_newest_first(store: Store) -> None:
    chain = [add(store) for _ in range(4)]
    assert [store.batches.get(batch.id).replaced_by for batch in chain] == [2, 3, 4, None]

    for batch in reversed(chain):
        complete_jobs_of(store, batch)

    assert {store.batches.get(batch.id).state for batch in chain} == {BatchState.DONE}


def test_a_replaced_batch_that_a_user_resumes_replaces_the_newer_one(store: Store) -> None:
    first, second, third = (add(store) for _ in range(3))

    moved = store.batches.resume(first.id, actor="ann")

    assert (list(moved.replaced), moved.batch.state, moved.batch.replaced_by) == ([third.id], BatchState.ACTIVE, None)
    for batch in (first, third, second):
        complete_jobs_of(store, batch)


@pytest.mark.parametrize("how", HALTS)
def test_a_replaced_batch_resumes_when_the_newer_one_is_halted(store: Store, by_hand: ByHand, how: str) -> None:
    first, second = add(store), add(store)

    HALTS[how](store, by_hand, second.id)

    assert list(claimed_ids(store)) == list(jobs_of(store, first))
    assert store.batches.get(first.id).state is BatchState.ACTIVE


@pytest.mark.parametrize("how", ["stop", "cancel", "stop by hand"])
def test_a_replaced_batch_that_a_user_stopped_stays_stopped(store: Store, by_hand: ByHand, how: str) -> None:
    first, second = add(store), add(store)

    HALTS[how](store, by_hand, first.id)
    complete_jobs_of(store, second)

    stopped = store.batches.get(first.id)
    assert (stopped.state, stopped.replaced_by) == (BatchState.STOPPED, None)
    assert claimed_ids(store) == []


def test_a_replaced_batch_activated_by_hand_runs_beside_the_newer_one(store: Store, by_hand: ByHand) -> None:
    first, second = add(store), add(store)

    by_hand(f"UPDATE batch SET state = 'active' WHERE id = {first.id}")

    assert by_hand.value(f"SELECT replaced_by FROM batch WHERE id = {first.id}") is None
    assert sorted(claimed_ids(store)) == sorted([*jobs_of(store, first), *jobs_of(store, second)])


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        (OwnerPolicy.REPLACE, BatchState.ACTIVE, BatchState.WAITING),
        (OwnerPolicy.QUEUE, BatchState.WAITING, BatchState.ACTIVE),
        (OwnerPolicy.OFF, BatchState.ACTIVE, BatchState.ACTIVE),
    ],
)
def test_a_retried_job_that_starts_an_ended_batch_again_follows_the_owner_policy(
    store: Store, policy: OwnerPolicy, first: BatchState, second: BatchState
) -> None:
    ended = store.batches.add(NewBatch("ann"), [NewJob("ocr_pages")]).batch
    end_job(store, claim_one(store).lease, FAILED)
    other = store.batches.add(NewBatch("ann"), [NewJob("ocr_pages")]).batch
    retried = store.job_control.retry(jobs_with_ids(1), actor="ann").job_ids

    waiting = store.batches.apply_policy(retried, policy, actor="ann")

    found = [store.batches.get(batch.id) for batch in (ended, other)]
    assert [batch.state for batch in found] == [first, second]
    assert list(waiting) == [batch.id for batch in found if batch.state is BatchState.WAITING]


def test_batches_that_name_each_other_as_replacement_by_hand_still_resume(store: Store, by_hand: ByHand) -> None:
    first, second, third = (add(store) for _ in range(3))
    by_hand(f"UPDATE batch SET replaced_by = {second.id} WHERE id = {first.id}")
    by_hand(f"UPDATE batch SET replaced_by = {first.id} WHERE id = {second.id}")

    for _ in range(3):
        [job_id] = claimed_ids(store)
        store.leases.complete(store.job_queries.get(job_id).lease)

    assert {store.batches.get(batch.id).state for batch in (first, second, third)} == {BatchState.DONE}


def test_a_replaced_batch_without_live_jobs_ends_at_once(store: Store) -> None:
    first = add(store)
    last = claim_one(store)
    second = add(store)

    store.leases.complete(last.lease)

    assert [store.batches.get(batch.id).state for batch in (first, second)] == [BatchState.DONE, BatchState.ACTIVE]


def test_a_replaced_batch_resumes_before_one_that_waits_for_its_first_turn(store: Store) -> None:
    first, queued = add(store), add(store, policy=OwnerPolicy.QUEUE)
    newest = add(store)

    for batch in (newest, first, queued):
        complete_jobs_of(store, batch)


def test_queue_lets_the_newer_batch_wait_until_the_older_one_has_ended_or_is_stopped(store: Store) -> None:
    first, second, third = (add(store, policy=OwnerPolicy.QUEUE) for _ in range(3))
    assert [batch.state for batch in (first, second, third)] == [
        BatchState.ACTIVE,
        BatchState.WAITING,
        BatchState.WAITING,
    ]
    assert gate_codes(store, jobs_of(store, second)[0]) == ["BATCH_WAITING"]

    [job_id] = claimed_ids(store)
    store.leases.complete(store.job_queries.get(job_id).lease)
    assert [store.batches.get(batch.id).state for batch in (second, third)] == [BatchState.ACTIVE, BatchState.WAITING]
    store.batches.stop(second.id, actor="ann")

    assert store.batches.get(third.id).state is BatchState.ACTIVE
    assert store.batches.resume(second.id, actor="ann", policy=OwnerPolicy.QUEUE).batch.state is BatchState.WAITING
    assert claimed_ids(store) == jobs_of(store, third)


def test_all_jobs_or_none_are_added_to_a_batch_that_has_not_ended(store: Store) -> None:
    batch = store.batches.add(NewBatch("ann", priority=2), [NewJob("ocr_pages")]).batch
    store.intake.enqueue(NewJob("ocr_pages", unique_key="a"))

    added = store.batches.extend(
        batch.id, [NewJob("ocr_pages", owner="bob", unique_key="a"), NewJob("ocr_pages", priority=9)]
    )

    of_batch = store.job_queries.list(Selector(batch_id=batch.id))
    assert [(job.owner, job.priority) for job in of_batch] == [("ann", 9), ("ann", 2), ("ann", 2)]
    assert ([job.existing for job in added.jobs], added.batch.state) == ([False, False], BatchState.ACTIVE)
    with pytest.raises(RuleBroken):
        store.batches.extend(batch.id, [NewJob("ocr_pages"), NewJob("ocr_pages", priority=11)])
    store.batches.stop(batch.id, actor="ann")
    [held] = store.batches.extend(batch.id, [NewJob("ocr_pages")]).jobs
    assert gate_codes(store, held.job_id or 0) == ["BATCH_STOPPED"]
    store.batches.cancel(batch.id, actor="ann")
    ended = store.batches.add(NewBatch("ann"), []).batch
    with pytest.raises(Refused, match=f"batch {ended.id} is done, and takes nothing more"):
        store.batches.extend(ended.id, [NewJob("ocr_pages")])
    assert store.job_queries.count(Selector()) == 5


def test_changing_the_batch_of_one_owner_changes_no_row_of_another(store: Store, by_hand: ByHand) -> None:
    mine, others = add(store, 1000), add(store, 1000, owner="bob")
    rows = "SELECT * FROM worker_job_queue WHERE owner = 'bob'; SELECT * FROM batch WHERE owner = 'bob'"
    taken = claimed_ids(store, most=8)
    for job_id in taken:
        end_job(store, store.job_queries.get(job_id).lease, FAILED if job_id % 4 else COMPLETED)
    before = by_hand.run(rows)

    store.batches.stop(mine.id, actor="ann")
    resumed = store.batches.resume(mine.id, actor="ann")
    replacing = add(store, 1000)
    store.batches.cancel(replacing.id, actor="ann")

    assert by_hand.run(rows) == before
    assert before.count("\n") == 1001
    assert {store.job_queries.get(job_id).owner for job_id in resumed.job_ids} == {"ann"}
    assert store.batches.get(others.id).state is BatchState.ACTIVE


# ── Stopped and gone on with ────────────────────────────────────────────────────────────────────────────────────────


def test_a_resumed_batch_runs_its_pending_failed_and_cancelled_jobs_only(store: Store) -> None:
    batch = add(store, 5)
    completed, failed, cancelled, running, pending = jobs_of(store, batch)
    for job_id, how in ((completed, COMPLETED), (failed, FAILED), (cancelled, CANCELLED)):
        assert claim_one(store).id == job_id
        end_job(store, store.job_queries.get(job_id).lease, how)
    lease = claim_one(store).lease

    assert store.batches.stop(batch.id, actor="bob").note == "stopped by bob"
    store.leases.release(lease)
    assert claimed_ids(store) == []
    moved = store.batches.resume(batch.id, actor="ann")

    assert list(moved.job_ids) == [failed, cancelled]
    assert sorted(claimed_ids(store)) == [failed, cancelled, running, pending]
    assert store.job_queries.get(running).retry_count == 0


def test_a_retry_of_a_failed_batch_runs_its_failed_jobs_in_a_new_round(store: Store, by_hand: ByHand) -> None:
    batch = add(store, 2)
    failed, _ = jobs_of(store, batch)
    end_job(store, claim_one(store).lease, FAILED)
    end_job(store, claim_one(store).lease, CANCELLED)
    assert store.batches.get(batch.id).state is BatchState.FAILED

    moved = store.batches.retry(batch.id, actor="ann")

    assert (list(moved.job_ids), moved.batch.state, moved.batch.round) == ([failed], BatchState.ACTIVE, 2)
    assert notice_kinds(by_hand, "batch") == ["batch.started", "batch.failed", "batch.resumed"]


def test_a_batch_whose_jobs_all_failed_stays_active_while_it_is_resumed(store: Store, by_hand: ByHand) -> None:
    batch = add(store, 1200)
    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE batch_id = {batch.id}")
    settle(store)
    assert store.batches.get(batch.id).state is BatchState.FAILED

    moved = store.batches.resume(batch.id, actor="ann")

    assert (len(moved.job_ids), moved.batch.state, moved.batch.round) == (1200, BatchState.ACTIVE, 2)
    assert notice_kinds(by_hand, "batch") == ["batch.started", "batch.failed", "batch.resumed"]


def test_a_resumed_batch_skips_work_that_newer_jobs_have_done(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest", "download"])
    batch = store.batches.add(
        NewBatch("ann"), [NewJob("download", source_key="a"), NewJob("download", source_key="b"), reading_job("c")]
    ).batch
    first, second, third = jobs_of(store, batch)
    for job_id in (first, second):
        assert claim_one(store, job_class="io").id == job_id
        end_job(store, store.job_queries.get(job_id).lease, FAILED)
    end_job(store, claim_one(store).lease, FAILED)
    store.intake.enqueue(NewJob("download", source_key="a", owner="ann"))
    store.leases.complete(claim_one(store, job_class="io").lease)
    store.intake.enqueue(reading_job("c"))
    store.leases.complete_many([Completion(claim_one(store).lease, publishes=True)])

    moved = store.batches.resume(batch.id, actor="ann")

    assert list(moved.job_ids) == [second]
    assert third not in moved.job_ids


@pytest.mark.parametrize("verb", ["stop", "resume", "retry", "cancel"])
def test_an_ended_batch_cannot_be_stopped_or_restarted(store: Store, by_hand: ByHand, verb: str) -> None:
    batch = add(store)
    store.leases.complete(claim_one(store).lease)
    before = by_hand.dump()

    with pytest.raises(Refused, match=r"batch 1 \(of ann\) is done"):
        getattr(store.batches, verb)(batch.id, actor="ann")

    assert by_hand.dump() == before


def test_a_stopped_batch_can_be_resumed_but_not_retried(store: Store) -> None:
    batch = add(store)
    store.batches.stop(batch.id, actor="ann")

    with pytest.raises(Refused, match="pagemill batch resume 1"):
        store.batches.retry(batch.id, actor="ann")


def test_cancelling_a_batch_stops_it_and_ends_its_live_jobs(store: Store) -> None:
    batch = add(store, 3)
    lease = claim_one(store).lease

    moved = store.batches.cancel(batch.id, actor="ann")
    store.leases.confirm_cancel(lease)

    assert store.batches.get(batch.id).note == "cancelled by ann"
    assert (len(moved.job_ids), list(moved.asked)) == (2, [lease.job_id])
    assert {status_of(store, job_id) for job_id in jobs_of(store, batch)} == {CANCELLED}
    assert store.batches.get(batch.id).state is BatchState.STOPPED
    assert len(store.batches.resume(batch.id, actor="ann").job_ids) == 3


def test_a_cancel_of_a_batch_includes_jobs_inserted_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = add(store, 2)
    lease = claim_one(store).lease
    late_jobs = iter([NewJob("ocr_pages", batch_id=batch.id, owner="ann")])

    def settle_and_insert(database: Database) -> None:
        store.intake.insert_many([*late_jobs])
        settling.settle(database)

    monkeypatch.setattr(job_control, "settle", settle_and_insert)

    moved = store.batches.cancel(batch.id, actor="ann")

    assert (list(moved.job_ids), list(moved.asked)) == ([2, 3], [lease.job_id])
    assert [status_of(store, job_id) for job_id in (1, 2, 3)] == [RUNNING, CANCELLED, CANCELLED]


def test_a_batch_without_live_jobs_can_be_removed_and_its_jobs_stay(store: Store, by_hand: ByHand) -> None:
    batch = add(store)
    with pytest.raises(Refused, match="1 live job: `pagemill batch cancel 1`"):
        store.batches.remove(batch.id, actor="ann")
    store.leases.complete(claim_one(store).lease)

    store.batches.remove(batch.id, actor="ann")

    assert (store.batches.list(), len(all_jobs(store))) == ([], 1)
    assert add(store).id == 2


def test_follow_up_jobs_do_not_create_a_removed_batch_again(store: Store, worker: AddWorker) -> None:
    worker(types=["ingest", "ocr_pages"])
    batch = store.batches.add(NewBatch("ann"), [NewJob("ocr_pages")]).batch
    store.leases.complete(claim_one(store).lease)
    store.batches.remove(batch.id, actor="ann")

    store.job_control.retry(Selector(batch_id=batch.id), actor="ann")
    follow_ups = [NewJob("ocr_pages"), NewJob("ingest", document=DocumentRequest("a", "a.pdf"))]
    store.leases.complete_many([Completion(claim_one(store).lease, follow_ups=follow_ups)])

    assert store.batches.list() == []


# ── How far it is ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_facts_of_a_batch_show_its_progress(store: Store, worker: AddWorker, clock: MovableClock) -> None:
    worker(types=["ingest", "download", "crawl"])
    sources = [NewJob("download", source_key=name) for name in "de"]
    batch = store.batches.add(
        NewBatch("ann"), [reading_job("a"), reading_job("b"), reading_job("c"), *sources, NewJob("crawl")]
    ).batch
    read, reading = claim_one(store).lease, claim_one(store).lease

    def count_pages(lease: Lease, pages: int) -> Completion:
        return Completion(lease, document=DocumentFacts("pdf", pages), publishes=lease is read)

    store.attempts.save_pages([(read, PageResult(n, f"a{n}", "text", "layer")) for n in (1, 2)])
    clock.advance(30)
    store.attempts.save_pages([(reading, PageResult(n, f"b{n}", "text", "layer")) for n in (1, 2, 3)])
    store.leases.complete_many([count_pages(read, 2)])
    store.leases.complete_many([Completion(reading, follow_ups=[NewJob("ingest")], document=DocumentFacts("pdf", 10))])
    end_job(store, claim_one(store, job_class="io").lease, FAILED)
    clock.advance(30)

    facts = store.batches.facts(batch.id)

    assert dict(facts.documents) == {IndexStatus.SUCCESS: 1, IndexStatus.INDEXING: 1, IndexStatus.QUEUED: 1}
    assert (facts.files_on_the_way, facts.files_not_brought_in, facts.may_find_more) == (1, 1, True)
    assert (facts.pages, facts.pages_read, facts.pages_left, facts.uncounted) == (12, 5, 7, 1)
    assert facts.jobs == {COMPLETED: 2, FAILED: 1, PENDING: 4}
    assert (facts.pages_lately, round(facts.lately_seconds)) == (5, 60)
    assert facts.current == ("b.pdf", 3, 10)


def test_cancelled_files_and_documents_are_counted_apart_from_failed_ones(store: Store, worker: AddWorker) -> None:
    worker(types=["ingest", "download"])
    sources = [NewJob("download", source_key=name) for name in "cde"]
    batch = store.batches.add(NewBatch("ann"), [reading_job("a"), reading_job("b"), *sources])
    cancelled_document, _, cancelled_file, failed_file, _ = (job.job_id or 0 for job in batch.jobs)
    store.job_control.cancel(jobs_with_ids(cancelled_document, cancelled_file), actor="ann")
    end_job(store, claim_one(store).lease, FAILED)
    end_job(store, next(job.lease for job in store.leases.claim("w1", 2, "io") if job.id == failed_file), FAILED)

    facts = store.batches.facts(batch.batch.id)

    assert (facts.documents_cancelled, facts.documents[IndexStatus.FAILED]) == (1, 2)
    assert (facts.files_cancelled, facts.files_not_brought_in, facts.files_on_the_way) == (1, 2, 1)


def test_the_documents_of_a_batch_are_those_it_has_requested(store: Store, worker: AddWorker) -> None:
    worker(types=["download"])
    store.intake.enqueue(reading_job("a"))
    store.intake.enqueue(reading_job("b"))
    batch = store.batches.add(NewBatch("ann"), [reading_job("a"), NewJob("download", source_key="c")]).batch
    store.intake.enqueue(NewJob("download", source_key="d", owner="ann"))
    for _ in range(2):
        end_job(store, claim_one(store, job_class="io").lease, FAILED)

    mine = DocumentSelector(batch_ids=(batch.id,))

    assert [document.source_key for document in store.library.documents(mine)] == ["a"]
    assert [job.source_key for job in store.library.not_brought_in(mine)] == ["c"]
    assert list(store.library.documents(DocumentSelector(batch_ids=(99,)))) == []


# ── Undo ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_undoing_the_cancel_of_a_batch_activates_it(store: Store) -> None:
    batch = add(store, 3)
    done = claim_one(store)
    store.leases.complete(done.lease)
    cancelled = store.batches.cancel(batch.id, actor="ann")
    [action] = store.history.actions()
    assert (action.verb, action.batch_id, action.jobs) == ("cancel", batch.id, len(cancelled.job_ids))

    undone = store.job_control.undo(action.id, actor="bob")
    again = store.batches.undo_cancel(action.id, actor="bob")

    assert again is not None
    assert (again.state, again.note) == (BatchState.ACTIVE, "cancel undone by bob")
    assert sorted(claimed_ids(store)) == sorted(undone.job_ids) == sorted(cancelled.job_ids)
    store.batches.stop(batch.id, actor="ann")
    assert store.batches.undo_cancel(action.id, actor="ann") is None, "it has been stopped since"


def test_an_undone_cancel_follows_the_owner_policy(store: Store) -> None:
    batch = add(store, 2)
    store.batches.cancel(batch.id, actor="ann")
    [action] = store.history.actions()
    other = add(store, 1)

    again = store.batches.undo_cancel(action.id, actor="ann", policy=OwnerPolicy.QUEUE)

    assert again is not None
    assert [again.state, store.batches.get(other.id).state] == [BatchState.WAITING, BatchState.ACTIVE]


def test_changes_of_a_batch_are_recorded_with_their_actor(store: Store) -> None:
    batch = add(store, 1)
    store.batches.stop(batch.id, actor="ann")
    store.batches.resume(batch.id, actor="bob")
    end_job(store, claim_one(store).lease, FAILED)
    store.batches.retry(batch.id, actor="cid")
    store.batches.cancel(batch.id, actor="dan")
    store.batches.remove(batch.id, actor="eve")

    assert [(action.verb, action.actor, action.batch_id) for action in reversed(store.history.actions())] == [
        ("stop_batch", "ann", batch.id),
        ("resume_batch", "bob", batch.id),
        ("retry_batch", "cid", batch.id),
        ("cancel", "dan", batch.id),
        ("forget_batch", "eve", batch.id),
    ]
