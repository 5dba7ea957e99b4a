"""Changes by users: cancel, retry, delete, priority, undo, pause, prune."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.kit import (
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    all_jobs,
    change,
    claim_one,
    claimed_ids,
    end_job,
    gate_codes,
    jobs_with_ids,
    status_of,
    undo,
)
from worker_service.base.clock import as_text
from worker_service.base.errors import JobNotFound, PagemillError, Refused, RuleBroken
from worker_service.jobs.attempts import Failure, Report
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
ENDS = [COMPLETED, FAILED, CANCELLED]


def _ended(store: Store, enqueue: Enqueue, how: Status, **fields: Any) -> int:
    job_id = enqueue(priority=1, **fields)
    end_job(store, claim_one(store).lease, how)
    return job_id


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_ends_pending_jobs_and_asks_running_ones(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    running = enqueue(priority=1)
    claim_one(store)
    pending, held = enqueue(), enqueue(run_at=clock.after(60))

    changed = store.job_control.cancel(Selector(job_types=("ocr_pages",)), actor="ann")

    assert sorted(changed.job_ids) == [pending, held] or sorted(changed.job_ids) == [running, pending, held]
    assert list(changed.asked) == [running]
    assert [status_of(store, job_id) for job_id in (pending, held, running)] == [CANCELLED, CANCELLED, RUNNING]
    assert store.job_queries.get(running).cancel_requested_at == clock.text
    assert store.job_queries.get(pending).completed_at == clock.text
    assert claimed_ids(store) == []


@pytest.mark.parametrize("how", ENDS)
def test_p4_cancel_and_priority_leave_an_ended_job_as_it_is(store: Store, enqueue: Enqueue, how: Status) -> None:
    job_id = _ended(store, enqueue, how)
    before = store.job_queries.get(job_id)

    cancelled = store.job_control.cancel(jobs_with_ids(job_id), actor="ann")
    moved = store.job_control.priority(jobs_with_ids(job_id), 9, actor="ann")

    assert store.job_queries.get(job_id) == before
    assert (list(cancelled.job_ids), list(moved.job_ids)) == ([], [])
    assert cancelled.action_id is None or job_id in cancelled.refused


def test_cancelling_twice_asks_once(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    claim_one(store)
    store.job_control.cancel(jobs_with_ids(job_id), actor="ann")
    asked_at = store.job_queries.get(job_id).cancel_requested_at
    clock.advance(5)

    store.job_control.cancel(jobs_with_ids(job_id), actor="bob")

    assert store.job_queries.get(job_id).cancel_requested_at == asked_at


# ── retry ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_by_hand", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_p4_a_retry_gives_an_ended_job_a_fresh_budget_and_keeps_its_fence(
    store: Store, enqueue: Enqueue, clock: MovableClock, by_hand: ByHand, how: Status, is_by_hand: bool
) -> None:
    job_id = enqueue(max_retries=3)
    store.leases.fail(claim_one(store).lease, Failure("X", "x"), retry_at=clock.now)
    lease = claim_one(store).lease
    store.leases.report([Report(lease, 50, "half")])
    end_job(store, lease, how)

    if is_by_hand:
        by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {job_id}")
    else:
        assert list(store.job_control.retry(jobs_with_ids(job_id), actor="ann").job_ids) == [job_id]

    job = store.job_queries.get(job_id)
    assert (job.status, job.fence, job.retry_count, job.requeue_count) == (PENDING, 2, 0, 0)
    assert (job.error_code, job.error_message, job.result, job.cancel_requested_at) == (None, None, None, None)
    assert (job.run_at, job.started_at, job.completed_at, job.worker_id) == (None, None, None, None)
    assert (job.progress_percent, job.progress_message) == (0, None)
    assert [attempt.fence for attempt in store.history.attempts(job_id)] == [1, 2]
    assert claim_one(store).fence == 3


def test_a_retry_keeps_a_start_that_is_still_to_come_and_not_when_the_job_was_to_be_tried_again(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock, by_hand: ByHand
) -> None:
    worker(cpu=1)
    tonight = clock.after(3600)
    tried, snoozed = enqueue(), enqueue()
    store.leases.fail(claim_one(store).lease, Failure("X", "x"), retry_at=tonight)
    store.leases.snooze(claim_one(store).lease, tonight)
    scheduled = [enqueue(run_at=tonight) for _ in range(2)]
    ran = enqueue(run_at=clock.now)
    end_job(store, claim_one(store).lease, FAILED)
    store.job_control.cancel(jobs_with_ids(tried, snoozed, *scheduled), actor="ann")

    store.job_control.retry(jobs_with_ids(tried, snoozed, scheduled[0], ran), actor="ann")
    by_hand(f"UPDATE worker_job_queue SET status = 'pending' WHERE id = {scheduled[1]}")

    assert [store.job_queries.get(job_id).run_at for job_id in (tried, snoozed, ran)] == [None] * 3
    assert [(store.job_queries.get(job_id).run_at, gate_codes(store, job_id)) for job_id in scheduled] == [
        (as_text(tonight), ["NOT_YET"])
    ] * 2


def test_a_job_that_has_not_ended_is_not_retried(store: Store, enqueue: Enqueue) -> None:
    running, pending = enqueue(), enqueue()
    claim_one(store)
    before = all_jobs(store)

    changed = store.job_control.retry(jobs_with_ids(running, pending), actor="ann")

    assert list(changed.job_ids) == []
    assert all_jobs(store) == before


def test_a_retry_is_refused_while_another_job_with_the_unique_key_is_live(store: Store, enqueue: Enqueue) -> None:
    first = _ended(store, enqueue, FAILED, unique_key="u")
    live = enqueue(unique_key="u")

    changed = store.job_control.retry(jobs_with_ids(first), actor="ann")

    assert status_of(store, first) is FAILED
    assert list(changed.job_ids) == []
    assert str(live) in changed.refused[first]


def test_a_bulk_retry_runs_one_of_two_jobs_with_the_same_unique_key(store: Store, enqueue: Enqueue) -> None:
    both = [_ended(store, enqueue, FAILED, unique_key="u") for _ in range(2)]

    changed = store.job_control.retry(Selector(statuses=(FAILED,)), actor="ann")

    assert len(changed.job_ids) == 1
    assert sorted([*changed.job_ids, *changed.refused]) == both
    assert sorted(status_of(store, job_id) for job_id in both) == [FAILED, PENDING]


# ── delete ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_delete_removes_what_is_not_running(store: Store, enqueue: Enqueue) -> None:
    done = _ended(store, enqueue, COMPLETED)
    running = enqueue(priority=1)
    claim_one(store)
    pending = enqueue()

    changed = store.job_control.delete(jobs_with_ids(done, running, pending), actor="ann")

    assert sorted(changed.job_ids) == [done, pending]
    assert list(changed.refused) == [running]
    assert "running" in changed.refused[running]
    assert set(all_jobs(store)) == {running}
    with pytest.raises(JobNotFound):
        store.job_queries.get(pending)


# ── priority ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_priority_reaches_pending_jobs_and_later_follow_ups(store: Store, enqueue: Enqueue) -> None:
    ended, running = enqueue(priority=1), enqueue(priority=1)
    store.leases.complete(claim_one(store).lease)
    lease = claim_one(store).lease
    first, second = enqueue(), enqueue()

    changed = store.job_control.priority(jobs_with_ids(ended, running, second), 2, actor="ann")
    store.leases.complete(lease, None, [NewJob("assemble")])

    assert (list(changed.job_ids), list(changed.asked)) == ([running, second], [])
    assert list(changed.refused) == [ended]
    assert store.job_queries.get(running).priority == 2
    assert claimed_ids(store) == [second, second + 1, first]


@pytest.mark.parametrize("priority", [0, 11, -1])
def test_an_impossible_priority_is_refused_and_changes_nothing(store: Store, enqueue: Enqueue, priority: int) -> None:
    job_id = enqueue()

    with pytest.raises(RuleBroken, match="priority is 1"):
        store.job_control.priority(jobs_with_ids(job_id), priority, actor="ann")

    assert (store.job_queries.get(job_id).priority, list(store.history.actions())) == (5, [])


# ── Actions and undo ────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_bulk_change_is_one_action_with_its_actor(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    first, second = enqueue(), enqueue()

    store.job_control.priority(jobs_with_ids(first, second), 3, actor="ann")
    store.job_control.cancel(jobs_with_ids(first), actor="bob")
    store.job_control.retry(jobs_with_ids(first), actor="cid")
    store.job_control.delete(jobs_with_ids(second), actor="dan")

    assert [
        (action.verb, action.actor, action.jobs, action.at, action.undone_at) for action in store.history.actions()
    ] == [
        ("delete", "dan", 1, clock.text, None),
        ("retry", "cid", 1, clock.text, None),
        ("cancel", "bob", 1, clock.text, None),
        ("priority", "ann", 2, clock.text, None),
    ]


def test_a_verb_that_changes_no_job_records_no_action(store: Store, enqueue: Enqueue) -> None:
    enqueue()

    changed = store.job_control.cancel(Selector(owners=("nobody",)), actor="ann")

    assert changed.action_id is None
    assert list(store.history.actions()) == []


UNDONE_BY = [("cancel", PENDING, PENDING), ("priority", PENDING, PENDING), *(("retry", how, CANCELLED) for how in ENDS)]


def _in_state(store: Store, enqueue: Enqueue, status: Status) -> int:
    """Insert a job with an attempt, a log line, a dependency and every field that an undo keeps."""
    needed = _ended(store, enqueue, COMPLETED)
    job_id = enqueue(
        priority=2,
        owner="ann",
        payload='{"a":1}',
        unique_key="u",
        concurrency_key="k",
        after=(needed,),
    )
    lease = claim_one(store).lease
    store.leases.report([Report(lease, 40, "page 4", ["begun"])])
    if status is PENDING:
        store.leases.release(lease)
    else:
        end_job(store, lease, status)
    return job_id


@pytest.mark.parametrize(("verb", "status", "becomes"), UNDONE_BY)
def test_undo_does_the_opposite_and_keeps_all_else_of_the_job(
    store: Store, enqueue: Enqueue, clock: MovableClock, verb: str, status: Status, becomes: Status
) -> None:
    job_id = _in_state(store, enqueue, status)
    before = store.job_queries.get(job_id)
    kept = (store.history.attempts(job_id), store.history.logs(job_id), store.job_queries.waits_for(job_id))
    changed = change(store, verb, jobs_with_ids(job_id))
    assert list(changed.job_ids) == [job_id]
    clock.advance(1)

    undone = undo(store, changed.action_id)

    job = store.job_queries.get(job_id)
    assert (list(undone.job_ids), dict(undone.refused)) == ([job_id], {})
    assert (job.status, job.fence, job.priority, job.owner, job.payload) == (becomes, 1, 2, "ann", '{"a":1}')
    assert (job.unique_key, job.concurrency_key, job.created_at) == ("u", "k", before.created_at)
    assert (store.history.attempts(job_id), store.history.logs(job_id), store.job_queries.waits_for(job_id)) == kept
    assert store.history.actions()[0].undone_at == clock.text
    assert claimed_ids(store) == ([job_id] if becomes is PENDING else [])


@pytest.mark.parametrize("how", [PENDING, *ENDS])
def test_a_delete_removes_all_rows_for_good(store: Store, enqueue: Enqueue, by_hand: ByHand, how: Status) -> None:
    job_id = _in_state(store, enqueue, how)

    changed = store.job_control.delete(jobs_with_ids(job_id), actor="ann")

    for table in ("worker_job_attempt", "worker_job_event", "worker_job_log", "worker_job_dependency"):
        assert by_hand(f"SELECT * FROM {table} WHERE job_id = {job_id}") == [], table
    with pytest.raises(Refused):
        undo(store, changed.action_id)
    assert job_id not in all_jobs(store)
    assert store.history.actions()[0].undone_at is None
    assert by_hand(f"SELECT item_id, left_as FROM worker_action_item WHERE action_id = {changed.action_id}") == [
        {"item_id": job_id, "left_as": "ocr_pages"}
    ]


def test_actions_are_kept_for_a_week(store: Store, enqueue: Enqueue, clock: MovableClock, by_hand: ByHand) -> None:
    old, young = enqueue(), enqueue()
    changed = store.job_control.priority(jobs_with_ids(old), 3, actor="ann")
    clock.advance(8 * 86_400)
    store.job_control.priority(jobs_with_ids(young), 3, actor="ann")

    store.pruning.prune(Selector())

    assert by_hand("SELECT item_id FROM worker_action_item") == [{"item_id": young}]
    assert [action.jobs for action in store.history.actions()] == [1]
    with pytest.raises(Refused):
        undo(store, changed.action_id)


def test_p7_undo_of_a_cancel_runs_the_job_again_only_after_it_has_ended(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease
    changed = store.job_control.cancel(jobs_with_ids(job_id), actor="ann")

    early = undo(store, changed.action_id)

    assert (list(early.job_ids), list(early.refused)) == ([], [job_id])
    assert store.job_queries.get(job_id).cancel_requested_at is not None
    store.leases.confirm_cancel(lease)
    assert status_of(store, job_id) is CANCELLED
    assert list(undo(store, changed.action_id).job_ids) == [job_id]
    assert claimed_ids(store) == [job_id]


def test_actions_are_undone_one_after_the_other(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue(priority=5)
    actions = [store.job_control.priority(jobs_with_ids(job_id), level, actor="ann").action_id for level in (3, 1)]
    actions += [store.job_control.cancel(jobs_with_ids(job_id), actor="ann").action_id]
    actions += [store.job_control.retry(jobs_with_ids(job_id), actor="ann").action_id]

    found = []
    for action_id in reversed(actions):
        assert action_id is not None
        assert list(undo(store, action_id).job_ids) == [job_id]
        found.append((status_of(store, job_id), store.job_queries.get(job_id).priority))

    assert found == [(CANCELLED, 1), (PENDING, 1), (PENDING, 3), (PENDING, 5)]


def test_an_undone_or_unknown_action_cannot_be_undone(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    changed = store.job_control.priority(jobs_with_ids(job_id), 3, actor="ann")
    undo(store, changed.action_id)

    for action_id in (changed.action_id, 12345):
        with pytest.raises(Refused):
            undo(store, action_id)

    assert store.job_queries.get(job_id).priority == 5


def test_undo_of_a_cancel_brings_back_the_hold_of_the_row(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    first = enqueue(concurrency_key="k")
    claim_one(store)
    held = [enqueue(run_at=clock.after(60)), enqueue(after=(first,)), enqueue(concurrency_key="k")]
    gates = [gate_codes(store, job_id) for job_id in held]
    before = [store.job_queries.get(job_id) for job_id in held]
    changed = store.job_control.cancel(jobs_with_ids(*held), actor="ann")

    undo(store, changed.action_id)

    assert [store.job_queries.get(job_id) for job_id in held] == before
    assert [gate_codes(store, job_id) for job_id in held] == gates == [["NOT_YET"], ["WAITS_FOR"], ["KEY_BUSY"]]


# ── pause ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("scope", "name"), [("all", ""), ("type", "ocr_pages"), ("owner", "ann")])
def test_a_pause_holds_the_jobs_of_its_scope(store: Store, enqueue: Enqueue, scope: str, name: str) -> None:
    held, other = enqueue("ocr_pages", owner="ann"), enqueue("assemble", owner="bob")

    store.job_control.pause(scope, name, reason="the scanner is dirty")

    (gate,) = store.gates.explain(held)
    assert gate.code == "PAUSED"
    assert "the scanner is dirty" in gate.detail
    assert claimed_ids(store) == ([] if scope == "all" else [other])
    assert [(pause.scope, pause.name, pause.until, pause.reason) for pause in store.job_queries.pauses()] == [
        (scope, name, None, "the scanner is dirty")
    ]
    assert store.job_control.unpause(scope, name)
    assert not store.job_control.unpause(scope, name)
    assert held in claimed_ids(store)
    assert list(store.job_queries.pauses()) == []


def test_a_running_job_continues_during_a_pause(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease

    store.job_control.pause("all")

    assert list(store.leases.beat("w1", [lease]).lost) == []
    store.leases.complete(lease)
    assert status_of(store, job_id) is COMPLETED


def test_a_pause_with_an_end_ends_by_itself(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    store.job_control.pause("all", until=clock.after(60))
    assert gate_codes(store, job_id) == ["PAUSED"]
    assert store.leases.next_deadline() == clock.after(60)

    clock.advance(60)

    assert gate_codes(store, job_id) == []
    assert list(store.job_queries.pauses()) == []
    assert store.leases.next_deadline() is None
    assert claimed_ids(store) == [job_id]


def test_a_second_pause_replaces_the_first(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    store.job_control.pause("type", "ocr_pages", until=clock.after(60), reason="first")

    store.job_control.pause("type", "ocr_pages", reason="second")

    (pause,) = store.job_queries.pauses()
    assert (pause.until, pause.reason) == (None, "second")


@pytest.mark.parametrize(("scope", "name"), [("all", "x"), ("type", ""), ("owner", ""), ("nonsense", "x")])
def test_a_pause_of_nothing_is_refused(store: Store, by_hand: ByHand, scope: str, name: str) -> None:
    before = by_hand.dump()

    with pytest.raises(PagemillError):
        store.job_control.pause(scope, name)

    assert by_hand.dump() == before


# ── A source that rests ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_resting_source_holds_its_jobs_and_no_others(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    held, other = enqueue(source="drive:ann"), enqueue(source="drive:bob")

    store.leases.rest_source("drive:ann", clock.after(60), "quota")

    (gate,) = store.gates.explain(held)
    assert (gate.code, "quota" in gate.detail) == ("SOURCE_RESTING", True)
    assert claimed_ids(store) == [other]
    store.leases.rest_source("drive:ann", clock.after(30), "a shorter wish")
    clock.advance(30)
    assert claimed_ids(store) == []
    clock.advance(30)
    assert claimed_ids(store) == [held]


# ── prune ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_p4_prune_deletes_ended_jobs_with_all_their_rows(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    ended = []
    for how in ENDS:
        job_id = enqueue(priority=1)
        lease = claim_one(store).lease
        store.leases.report([Report(lease, 10, "x", ["a line"])])
        end_job(store, lease, how)
        ended.append(job_id)
    running = enqueue(priority=1)
    claim_one(store)
    pending = enqueue()

    removed = store.pruning.prune(Selector())

    assert removed == 3
    assert set(all_jobs(store)) == {running, pending}
    for table in ("worker_job_attempt", "worker_job_event", "worker_job_log"):
        assert by_hand(f"SELECT job_id FROM {table} WHERE job_id IN ({', '.join(map(str, ended))})") == [], table
    assert store.pruning.prune(Selector()) == 0


def test_prune_goes_in_steps_until_nothing_is_left(store: Store) -> None:
    store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(25)])
    store.job_control.cancel(Selector(), actor="ann")

    assert [store.pruning.prune(Selector(), most=10) for _ in range(4)] == [10, 10, 5, 0]


def test_prune_deletes_only_selected_jobs(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    old = _ended(store, enqueue, COMPLETED)
    old_failed = _ended(store, enqueue, FAILED)
    clock.advance(100)
    cut = clock.text
    store.leases.beat("w1", [])
    young = _ended(store, enqueue, COMPLETED)

    assert store.pruning.prune(Selector(older_than=cut, statuses=(COMPLETED,))) == 1
    assert set(all_jobs(store)) == {old_failed, young}
    assert old not in all_jobs(store)
