"""What every store promises about batches: who is held by one, what comes of one, when one has ended, who is told."""

from __future__ import annotations

import pytest

from tests.store.kit import (
    START,
    AddWorker,
    ByHand,
    Enqueue,
    RefusedByHand,
    claim_one,
    claimed_ids,
    codes,
    end,
    everything,
    ids,
    new_worker,
    status_of,
)
from worker_service.jobs.documents import Decision, DocumentRequest
from worker_service.jobs.model import Completion, Failure, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.base import Store

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
BROKEN = Failure("BROKEN", "it broke")


@pytest.fixture(autouse=True)
def _a_worker(worker: AddWorker) -> None:
    worker()


def states(by_hand: ByHand) -> dict[object, object]:
    return {row["id"]: row["state"] for row in by_hand("SELECT id, state FROM batch")}


def told(by_hand: ByHand, of: str = "") -> list[object]:
    return [row["kind"] for row in by_hand(f"SELECT kind FROM notice WHERE kind GLOB '{of}*' ORDER BY id")]


def settle(store: Store) -> None:
    """What a claim does first; this one takes nothing."""
    store.steering.pause("all")
    assert store.leases.claim("w1", 5) == []
    store.steering.unpause("all")


def wish(source_key: str, *, owner: str = "ann", batch_id: int | None = None) -> NewJob:
    return NewJob("ingest", owner=owner, batch_id=batch_id, document=DocumentRequest(source_key, f"{source_key}.pdf"))


# ── Held ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_a_hand_stops_holds_its_jobs_and_one_that_goes_on_frees_them(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    first, second = enqueue(batch_id=7), enqueue(batch_id=7)
    other = enqueue(batch_id=8)

    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    late = enqueue(batch_id=7)

    assert [codes(store, each) for each in (first, second, late)] == [["BATCH_STOPPED"]] * 3
    assert claimed_ids(store) == [other]
    assert {row["state"] for row in by_hand("SELECT state FROM v_jobs WHERE id <> 3")} == {"stopped"}
    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    assert claimed_ids(store) == [first, second, late]


@pytest.mark.parametrize("how", ["release", "snooze", "fail", "requeue", "retry"])
def test_a_job_that_comes_back_to_a_stopped_batch_waits_there(
    store: Store, enqueue: Enqueue, by_hand: ByHand, how: str
) -> None:
    job_id = enqueue(batch_id=7)
    lease = claim_one(store).lease
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")

    match how:
        case "release":
            store.leases.release(lease)
        case "snooze":
            store.leases.snooze(lease, START)
        case "fail":
            store.leases.fail(lease, BROKEN, retry_at=START)
        case "requeue":
            store.leases.requeue("w1")
            store.leases.register(new_worker())
        case _:
            store.leases.fail(lease, BROKEN, retry_at=None)
            store.steering.retry(ids(job_id), actor="ann")

    assert (status_of(store, job_id), "BATCH_STOPPED" in codes(store, job_id)) == (PENDING, True)
    assert claimed_ids(store) == []
    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    assert claimed_ids(store) == [job_id]


def test_why_names_the_batch_who_stopped_it_and_what_it_waits_for(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    by_hand("INSERT INTO batch (id, owner, name) VALUES (6, 'ann', 'first'), (7, 'ann', 'reports')")
    job_id = enqueue(batch_id=7, owner="ann")

    by_hand("UPDATE batch SET state = 'stopped', note = 'stopped by bob' WHERE id = 7")
    [stopped] = store.reading.explain(job_id)
    by_hand("UPDATE batch SET state = 'waiting' WHERE id = 7")
    enqueue(batch_id=6, owner="ann")
    [waiting] = store.reading.explain(job_id)

    assert (stopped.code, stopped.detail) == ("BATCH_STOPPED", "batch 7 (reports) was stopped by bob")
    assert (waiting.code, waiting.detail) == ("BATCH_WAITING", "batch 7 (reports) waits for batch 6 of the same owner")


def test_of_jobs_with_one_key_those_of_a_stopped_batch_hold_up_no_other(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    first = enqueue(batch_id=7, concurrency_key="k")
    other = enqueue(concurrency_key="k")
    assert codes(store, first) == []

    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")

    assert claimed_ids(store) == [other]
    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    assert codes(store, first) == ["KEY_BUSY"]
    store.leases.complete(store.reading.get(other).lease)
    assert claimed_ids(store) == [first]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE batch SET state = 'done' WHERE id = 7", "a batch ends by itself"),
        ("UPDATE batch SET state = 'paused' WHERE id = 7", "state is active, waiting, stopped, done or failed"),
        ("UPDATE batch SET id = 8 WHERE id = 7", "the id of a batch never changes"),
        ("INSERT OR REPLACE INTO batch (id) VALUES (7)", "there is a batch with this id"),
        ("DELETE FROM batch WHERE id = 7", "this batch has jobs that have not ended"),
        ("UPDATE worker_job_queue SET held = 0", "the batch of this job is stopped or waits"),
    ],
)
def test_what_would_break_a_batch_is_refused_in_words(
    store: Store, enqueue: Enqueue, by_hand: ByHand, statement: str, sentence: str
) -> None:
    enqueue(batch_id=7)
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    before = by_hand.dump()

    with pytest.raises(RefusedByHand, match=sentence):
        by_hand(statement)

    assert by_hand.dump() == before


def test_a_job_replaces_no_batch(store: Store, by_hand: ByHand) -> None:
    by_hand("INSERT INTO batch (id, name) VALUES (7, 'reports')")

    by_hand("INSERT OR REPLACE INTO worker_job_queue (job_type, platform, batch_id) VALUES ('ocr_pages', 'x', 7)")

    assert by_hand.one("SELECT name FROM batch") == "reports"


# ── What comes of it ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_job_asks_for_is_of_its_batch_and_as_urgent(store: Store, enqueue: Enqueue) -> None:
    enqueue(batch_id=7, priority=2)
    store.leases.complete(claim_one(store).lease, None, [NewJob("assemble"), NewJob("assemble", priority=9)])

    first, second = (store.reading.get(job_id) for job_id in (2, 3))

    assert [(job.batch_id, job.priority) for job in (first, second)] == [(7, 2), (7, 9)]


def test_the_priority_of_a_batch_reaches_what_runs_and_so_what_is_still_to_come(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    enqueue(batch_id=7)
    waiting = enqueue(batch_id=7)
    other = enqueue()
    lease = claim_one(store).lease

    changed = store.steering.priority(Selector(batch_ids=(7,)), 1, actor="ann")
    store.leases.complete(lease, None, [NewJob("assemble")])

    assert sorted(changed.job_ids) == [lease.job_id, waiting]
    assert {job.id: job.priority for job in everything(store).values()} == {1: 1, waiting: 1, other: 5, 4: 1}
    assert by_hand.one("SELECT priority FROM batch") == 1


def test_what_is_named_adds_up_and_the_rest_narrows_it_down(store: Store, enqueue: Enqueue) -> None:
    one = enqueue(batch_id=7)
    two = enqueue("assemble", batch_id=7)
    document = store.intake.enqueue(wish("a"))
    alone = enqueue()
    enqueue()
    assert document.document_id is not None

    named = Selector(ids=(alone,), batch_ids=(7,), document_ids=(document.document_id,))
    narrowed = Selector(batch_ids=(7,), document_ids=(document.document_id,), job_types=("assemble",))

    assert list(store.reading.ids(named)) == [one, two, document.job_id, alone]
    assert list(store.reading.ids(narrowed)) == [two]


# ── Its end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_done_once_the_last_of_its_jobs_has_completed_follow_ups_included(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    enqueue(batch_id=7)
    store.leases.complete(claim_one(store).lease, None, [NewJob("assemble")])
    assert states(by_hand) == {7: "active"}

    store.leases.complete(claim_one(store).lease)

    assert states(by_hand) == {7: "done"}
    assert told(by_hand) == ["batch.started", "batch.done"]
    assert by_hand.one("SELECT ended_at IS NOT NULL FROM batch") == 1


@pytest.mark.parametrize("how", [FAILED, CANCELLED])
def test_a_batch_fails_with_one_of_its_jobs_and_begins_again_when_that_is_retried(
    store: Store, enqueue: Enqueue, by_hand: ByHand, how: Status
) -> None:
    job_id = enqueue(batch_id=7)
    end(store, claim_one(store).lease, how)
    assert states(by_hand) == {7: "failed"}

    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {job_id}")
    assert by_hand("SELECT state, round, ended_at FROM batch") == [{"state": "active", "round": 2, "ended_at": None}]
    store.leases.complete(claim_one(store).lease)

    assert states(by_hand) == {7: "done"}
    assert told(by_hand, "batch") == ["batch.started", "batch.failed", "batch.resumed", "batch.done"]


def test_what_a_hand_does_to_the_last_job_ends_the_batch_with_our_next_transaction(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    cancelled, deleted = enqueue(batch_id=7), enqueue(batch_id=8)

    by_hand(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {cancelled}")
    by_hand(f"DELETE FROM worker_job_queue WHERE id = {deleted}")
    assert states(by_hand) == {7: "active", 8: "active"}
    settle(store)

    assert states(by_hand) == {7: "failed", 8: "done"}


def test_a_stopped_batch_whose_last_job_ends_stays_stopped_and_ends_when_it_goes_on(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    enqueue(batch_id=7)
    lease = claim_one(store).lease
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    store.leases.complete(lease)
    assert states(by_hand) == {7: "stopped"}

    by_hand("UPDATE batch SET state = 'active' WHERE id = 7")
    settle(store)

    assert states(by_hand) == {7: "done"}


def test_a_batch_waits_for_its_documents_whoever_reads_them(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest", "download"])
    reading = store.intake.enqueue(wish("a"))
    also = store.intake.enqueue(wish("a", batch_id=7))
    store.intake.enqueue(NewJob("download", batch_id=7, owner="ann"))
    assert (also.decision, also.existing) == (Decision.UNDER_WAY, True)
    store.leases.complete(claim_one(store, job_class="io").lease)
    assert states(by_hand) == {7: "active"}

    lease = claim_one(store).lease
    assert lease.job_id == reading.job_id
    store.leases.complete_many([Completion(lease, publishes=True)])

    assert states(by_hand) == {7: "done"}
    assert told(by_hand, "document") == ["document.started", "document.ready"]


def test_a_batch_fails_with_one_of_its_documents_and_people_are_told_of_both(
    store: Store, by_hand: ByHand, worker: AddWorker
) -> None:
    worker(types=["ingest"])
    store.intake.enqueue(wish("a", batch_id=7))

    end(store, claim_one(store).lease, FAILED)

    assert states(by_hand) == {7: "failed"}
    assert told(by_hand) == [
        "batch.started", "document.started", "job.failed", "document.failed", "batch.failed"
    ]  # fmt: skip
    rows = by_hand("SELECT owner, document_id, batch_id, generation, code FROM notice WHERE kind = 'document.failed'")
    assert rows == [{"owner": "ann", "document_id": 1, "batch_id": 7, "generation": 1, "code": "BROKEN"}]


def test_what_a_newer_wish_made_stale_fails_no_batch(store: Store, by_hand: ByHand, worker: AddWorker) -> None:
    worker(types=["ingest"])
    store.intake.enqueue(wish("a", batch_id=7))

    store.intake.enqueue(NewJob("ingest", owner="ann", document=DocumentRequest("a", "a", settings='{"dpi":300}')))
    store.leases.complete_many([Completion(claim_one(store).lease, publishes=True)])

    assert states(by_hand) == {7: "done"}


def test_of_an_owner_with_no_active_batch_the_one_that_has_waited_longest_begins(
    store: Store, enqueue: Enqueue, by_hand: ByHand
) -> None:
    by_hand("INSERT INTO batch (id, owner) VALUES (6, 'ann')")
    by_hand("INSERT INTO batch (id, owner, state) VALUES (7, 'ann', 'waiting'), (8, 'ann', 'waiting')")
    jobs = [enqueue(batch_id=batch_id, owner="ann") for batch_id in (6, 7, 8)]

    for job_id in jobs:
        settle(store)
        assert [list(claimed_ids(store))] == [[job_id]]
        store.leases.complete(store.reading.get(job_id).lease)

    assert set(states(by_hand).values()) == {"done"}


# ── Documents of a batch that is stopped ────────────────────────────────────────────────────────────────────────────


def test_a_document_that_stands_in_a_stopped_batch_is_taken_over_at_once(
    store: Store, by_hand: ByHand, worker: AddWorker
) -> None:
    worker(types=["ingest"])
    store.intake.enqueue(wish("a", batch_id=7))
    assert store.intake.enqueue(wish("a")).decision is Decision.UNDER_WAY

    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")
    taken = store.intake.enqueue(wish("a"))

    assert taken.decision is Decision.TAKEN_OVER
    assert claimed_ids(store) == [taken.job_id]
    assert "document.taken_over" in told(by_hand)


def test_a_stopped_batch_does_not_take_over_its_own_document(store: Store, by_hand: ByHand) -> None:
    store.intake.enqueue(wish("a", batch_id=7))
    by_hand("UPDATE batch SET state = 'stopped' WHERE id = 7")

    assert store.intake.enqueue(wish("a", batch_id=7)).decision is Decision.UNDER_WAY
