"""Writes of a worker with a lease, and of one that has lost it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest

from tests.store.kit import (
    BROKEN,
    ENDINGS,
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
    new_worker,
    requeue,
    status_of,
)
from worker_service.base.clock import as_text, from_text
from worker_service.base.errors import CancelRequested, LeaseLost, PagemillError, WorkerUnknown
from worker_service.jobs.attempts import ChildProcess, Completion, Count, Failure, Report, Usage
from worker_service.jobs.job import Lease, NewJob, Status
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

pytestmark = pytest.mark.usefixtures("worker_is_there")


def _outcomes(store: Store, job_id: int) -> list[str | None]:
    return [attempt.outcome for attempt in store.history.attempts(job_id)]


# ── P1: at most one lease of a job is alive; a running row has exactly one open attempt ─────────────────────────────


def test_p1_a_claim_opens_one_attempt_under_the_next_fence(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    clock.advance(5)

    job = claim_one(store)

    assert (job.id, job.status, job.fence, job.worker_id) == (job_id, Status.RUNNING, 1, "w1")
    assert job.started_at == job.heartbeat_at == clock.text
    assert job.lease == Lease(job_id, 1, "w1")
    assert store.job_queries.get(job_id) == job
    (attempt,) = store.history.attempts(job_id)
    assert (attempt.fence, attempt.worker_id, attempt.started_at, attempt.ended_at) == (1, "w1", clock.text, None)


def test_p1_each_end_closes_the_attempt(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue(max_retries=9)

    store.leases.release(claim_one(store).lease)
    store.leases.snooze(claim_one(store).lease, _now(store, job_id))
    store.leases.fail(claim_one(store).lease, BROKEN, retry_at=_now(store, job_id))
    claim_one(store)
    store.leases.requeue("w1")
    store.workers.register(new_worker())
    store.leases.fail(claim_one(store).lease, BROKEN, retry_at=None)
    store.job_control.retry(jobs_with_ids(job_id), actor="ann")
    end_job(store, claim_one(store).lease, Status.CANCELLED)
    store.job_control.retry(jobs_with_ids(job_id), actor="ann")
    store.leases.complete(claim_one(store).lease)

    wanted = ["released", "snoozed", "retry", "requeued", "failed", "cancelled", "completed"]
    assert _outcomes(store, job_id) == wanted
    assert [attempt.fence for attempt in store.history.attempts(job_id)] == [1, 2, 3, 4, 5, 6, 7]
    assert all(attempt.ended_at for attempt in store.history.attempts(job_id))


def _now(store: Store, job_id: int) -> datetime:
    """Return a time in the past: when the job was inserted."""
    return from_text(store.job_queries.get(job_id).created_at)


def test_an_attempt_records_its_process_usage_and_error(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease
    clock.advance(30)
    reports = [Report(lease, child=ChildProcess(4711, 123456, "landlock 6")), Report(lease, lines=["a line"])]
    assert store.leases.report(reports) == []
    usage = Usage(cpu_seconds=1.5, memory_peak_bytes=1000, signal="SIGKILL")

    store.leases.fail(lease, Failure("OOM", "out of memory", usage), retry_at=None)

    assert store.leases.report([Report(lease, child=ChildProcess(1, 1, "none"))]) == [lease]
    (attempt,) = store.history.attempts(job_id)
    assert (attempt.error_code, attempt.error_message, attempt.signal) == ("OOM", "out of memory", "SIGKILL")
    assert (attempt.cpu_seconds, attempt.memory_peak_bytes, attempt.heard_at) == (1.5, 1000, clock.text)
    assert (attempt.pid, attempt.pid_started, attempt.sandbox) == (4711, 123456, "landlock 6")


# ── P2: where the fence has moved on, or the row has ended, nothing is written ──────────────────────────────────────

Loss = Callable[[Store, Lease], object]


def _ended_and(then: Callable[[Store, Selector], object]) -> Loss:
    def lose(store: Store, lease: Lease) -> None:
        store.leases.complete(lease)
        assert then(store, jobs_with_ids(lease.job_id))

    return lose


def _and_claimed_again(lose: Loss, worker_id: str = "slow") -> Loss:
    def lose_and_claim_again(store: Store, lease: Lease) -> None:
        lose(store, lease)
        if worker_id != lease.worker_id:
            store.workers.register(new_worker(worker_id))
        claim_one(store, worker_id)

    return lose_and_claim_again


LOSSES: dict[str, Loss] = {
    **ENDINGS,
    "requeue, and claimed by another": _and_claimed_again(requeue, "other"),
    "requeue, and claimed again by the same": _and_claimed_again(requeue),
    "release, and claimed again": _and_claimed_again(ENDINGS["release"]),
    "deleted": _ended_and(lambda store, selector: store.job_control.delete(selector, actor="ann")),
    "pruned": _ended_and(lambda store, selector: store.pruning.prune(selector)),
    "retried and claimed again": _and_claimed_again(
        _ended_and(lambda store, selector: store.job_control.retry(selector, actor="ann"))
    ),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_p2_a_lost_lease_writes_nothing(
    store: Store, enqueue: Enqueue, worker: AddWorker, by_hand: ByHand, clock: MovableClock, lose: Loss
) -> None:
    worker("slow")
    enqueue()
    lease = claim_one(store, "slow").lease
    store.leases.report([Report(lease, 20, "two of ten", ["begun"])])
    lose(store, lease)
    before = by_hand.dump()
    follow_ups = [NewJob("assemble", unique_key="late")]

    late: list[Callable[[], None]] = [
        lambda: store.leases.complete(lease, '{"late":true}', follow_ups),
        lambda: store.leases.fail(lease, BROKEN, retry_at=None),
        lambda: store.leases.fail(lease, BROKEN, retry_at=clock.after(5)),
        lambda: store.leases.release(lease),
        lambda: store.leases.snooze(lease, clock.after(5)),
        lambda: store.leases.confirm_cancel(lease),
    ]
    for write in late:
        with pytest.raises(LeaseLost):
            write()
        assert by_hand.dump() == before

    assert store.leases.complete_many([Completion(lease, "{}", follow_ups)]) == [lease]
    assert store.leases.report([Report(lease, 99, "late", ["late"])]) == [lease]
    assert list(store.leases.beat("slow", [lease]).lost) == [lease]
    assert by_hand.dump() == before


def test_p2_a_lease_of_another_worker_or_fence_writes_nothing(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue()
    lease = claim_one(store).lease
    before = by_hand.dump()

    forged = [
        Lease(lease.job_id, 0, "w1"),
        Lease(lease.job_id, 2, "w1"),
        Lease(lease.job_id, 1, "w2"),
        Lease(9, 1, "w1"),
    ]
    for wrong in forged:
        with pytest.raises(LeaseLost):
            store.leases.complete(wrong)
        with pytest.raises(LeaseLost):
            store.leases.fail(wrong, BROKEN, retry_at=None)
        with pytest.raises(LeaseLost):
            store.leases.release(wrong)
    assert store.leases.report([Report(wrong, 50, "x", ["x"]) for wrong in forged]) == forged

    assert by_hand.dump() == before


def test_p2_a_report_of_several_writes_the_live_ones_and_names_the_lost(store: Store, enqueue: Enqueue) -> None:
    first, second = enqueue(), enqueue()
    ended, old = (job.lease for job in store.leases.claim("w1", 2))
    store.leases.complete(ended)
    store.leases.release(old)
    new = claim_one(store).lease

    lost = store.leases.report([Report(lease, 60, name, [name]) for lease, name in ((ended, "a"), (old, "b"))])
    lost += store.leases.report([Report(old, 90, "old", ["old"]), Report(new, 10, "new", ["new"])])

    assert lost == [ended, old, old]
    assert store.history.logs(first) == []
    assert [line.line for line in store.history.logs(second)] == ["new"]
    assert (store.job_queries.get(second).progress_percent, store.job_queries.get(second).progress_message) == (
        10,
        "new",
    )


def test_p2_complete_many_completes_the_live_ones_and_names_the_lost(store: Store, enqueue: Enqueue) -> None:
    first, second, third = enqueue(), enqueue(), enqueue()
    a, old, c = (job.lease for job in store.leases.claim("w1", 3))
    store.leases.release(old)
    new = claim_one(store).lease

    lost = store.leases.complete_many(
        [Completion(lease, f'"{lease.fence}"', [NewJob("assemble", account=str(lease))]) for lease in (a, old, new, c)]
    )

    assert lost == [old]
    assert [store.job_queries.get(job_id).result for job_id in (first, second, third)] == ['"1"', '"2"', '"1"']
    followers = [job for job in all_jobs(store).values() if job.job_type == "assemble"]
    assert {(job.account, job.parent_id) for job in followers} == {(str(lease), lease.job_id) for lease in (a, new, c)}
    assert len(followers) == 3


def test_p5_the_same_completion_twice_in_one_batch_lands_once(store: Store, enqueue: Enqueue) -> None:
    enqueue()
    done = Completion(claim_one(store).lease, '"x"', [NewJob("assemble")])

    store.leases.complete_many([done, done])

    assert [job.job_type for job in all_jobs(store).values()].count("assemble") == 1


@pytest.mark.parametrize("percent", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_p10_a_percentage_that_is_not_finite_is_ignored(store: Store, enqueue: Enqueue, percent: float) -> None:
    first, second = enqueue(), enqueue()
    a, b = (job.lease for job in store.leases.claim("w1", 2))

    assert store.leases.report([Report(a, percent, "odd"), Report(b, 50)]) == []

    assert 0 <= store.job_queries.get(first).progress_percent <= 100
    assert store.job_queries.get(second).progress_percent == 50


# ── P5: result and follow-up jobs land with the completion or not at all ────────────────────────────────────────────


def test_p5_follow_ups_land_with_the_completion(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()

    store.leases.complete(claim_one(store).lease, '{"pages":3}', [NewJob("assemble"), NewJob("download", priority=2)])

    parent, *children = sorted(all_jobs(store).values(), key=lambda job: job.id)
    assert (parent.status, parent.result, parent.progress_percent) == (Status.COMPLETED, '{"pages":3}', 100)
    assert [(job.job_type, job.priority, job.parent_id) for job in children] == [
        ("assemble", 5, job_id),
        ("download", 2, job_id),
    ]


@pytest.mark.parametrize(
    ("result", "bad"),
    [
        ("{}", NewJob("a", priority=11)),
        ("{}", NewJob("a", payload="{")),
        ("{}", NewJob("a", after=(999,))),
        ("not json", NewJob("a")),
    ],
    ids=["priority", "payload", "after", "result"],
)
def test_p5_a_bad_follow_up_or_result_refuses_the_whole_completion(
    store: Store, enqueue: Enqueue, by_hand: ByHand, result: str, bad: NewJob
) -> None:
    enqueue()
    lease = claim_one(store).lease
    before = by_hand.dump()

    with pytest.raises(PagemillError):
        store.leases.complete(lease, result, [NewJob("assemble"), bad])

    assert by_hand.dump() == before
    store.leases.complete(lease)


def test_p5_a_follow_up_whose_unique_key_is_live_is_that_live_job(store: Store, enqueue: Enqueue) -> None:
    job_id, live = enqueue(priority=1), enqueue("assemble", unique_key="doc-1")

    store.leases.complete(claim_one(store).lease, None, [NewJob("assemble", unique_key="doc-1")])

    assert status_of(store, job_id) is Status.COMPLETED
    assert set(all_jobs(store)) == {job_id, live}


def test_p5_a_follow_up_may_have_the_unique_key_of_the_job_that_ends(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue(unique_key="crawl")

    store.leases.complete(claim_one(store).lease, None, [NewJob("ocr_pages", unique_key="crawl")])

    assert status_of(store, job_id) is Status.COMPLETED
    assert len(all_jobs(store)) == 2


# ── P6: attempts, crashes and requeues are each capped; a release is not counted ────────────────────────────────────


def test_p6_a_job_fails_for_good_after_max_retries(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue(max_retries=2)

    for number in (1, 2):
        store.leases.fail(claim_one(store).lease, BROKEN, retry_at=clock.after(10))
        job = store.job_queries.get(job_id)
        assert (job.status, job.retry_count) == (Status.PENDING, number)
        assert gate_codes(store, job_id) == ["BACKOFF"]
        assert claimed_ids(store) == []
        clock.advance(10)
        assert gate_codes(store, job_id) == []
    store.leases.fail(claim_one(store).lease, BROKEN, retry_at=clock.after(10))

    job = store.job_queries.get(job_id)
    assert (job.status, job.retry_count, job.error_code, job.error_message) == (Status.FAILED, 2, "BROKEN", "it broke")
    assert job.completed_at == clock.text
    assert claimed_ids(store) == []


def test_p6_a_release_and_a_snooze_cost_no_retry(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue(max_retries=0)

    for _ in range(10):
        store.leases.release(claim_one(store).lease)
        store.leases.snooze(claim_one(store).lease, clock.after(60))
        assert gate_codes(store, job_id) == ["NOT_YET"]
        assert claimed_ids(store) == []
        clock.advance(60)
        store.leases.beat("w1", [])

    job = store.job_queries.get(job_id)
    assert (job.status, job.retry_count, job.requeue_count) == (Status.PENDING, 0, 0)


def test_p6_requeues_are_capped(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    job_id = enqueue()

    for number in range(1, REQUEUES_MAX + 1):
        worker("w1")
        claim_one(store)
        (job,) = store.leases.requeue("w1")
        assert (job.status, job.requeue_count) == (Status.PENDING, number)
    worker("w1")
    claim_one(store)
    (last,) = store.leases.requeue("w1")

    assert last.status is Status.FAILED
    assert last.error_code
    assert last.error_message
    assert last.requeue_count <= REQUEUES_MAX + 1
    assert last == store.job_queries.get(job_id)
    assert last.retry_count == 0


def test_requeue_takes_every_job_of_the_worker_and_its_row(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker("gone")
    worker("here")
    lost = [enqueue(), enqueue("download")]
    claimed_ids(store, "gone")
    claimed_ids(store, "gone", job_class="io")
    kept = enqueue()
    assert claimed_ids(store, "here") == [kept]

    back = store.leases.requeue("gone")

    assert sorted(job.id for job in back) == lost
    assert all(job.status is Status.PENDING and job.worker_id is None for job in back)
    assert status_of(store, kept) is Status.RUNNING
    with pytest.raises(WorkerUnknown):
        store.leases.beat("gone", [])
    assert store.leases.requeue("gone") == []


def test_p1_a_worker_that_has_beaten_again_keeps_its_jobs(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    [seen] = store.overview.workers()
    clock.advance(600)
    store.leases.beat("w1", [])
    job_id = enqueue()
    lease = claim_one(store).lease

    assert store.leases.requeue("w1", last_beat=seen.heartbeat_at) == []

    assert status_of(store, job_id) is Status.RUNNING
    store.leases.complete(lease)
    [now] = store.overview.workers()
    assert store.leases.requeue("w1", last_beat=now.heartbeat_at) == []
    assert store.overview.workers() == []


def test_an_orphan_that_may_run_at_most_once_fails(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(at_most_once=True)
    job_id = enqueue()
    claim_one(store)

    (job,) = store.leases.requeue("w1")

    assert (job.id, job.status, job.error_code) == (job_id, Status.FAILED, "MAY_HAVE_RUN")
    assert _outcomes(store, job_id) == ["failed"]


def test_a_requeued_job_keeps_its_place(store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock) -> None:
    first = enqueue()
    clock.advance(1)
    enqueue()
    claim_one(store)

    store.leases.requeue("w1")
    worker("w2")

    job = claim_one(store, "w2")
    assert (job.id, job.fence) == (first, 2)


# ── P7: cancel is monotonic until a person retries ──────────────────────────────────────────────────────────────────


def test_p7_after_a_request_to_cancel_only_the_confirmation_is_written(
    store: Store, enqueue: Enqueue, by_hand: ByHand, clock: MovableClock
) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease
    changed = store.job_control.cancel(jobs_with_ids(job_id), actor="ann")
    before = by_hand.dump()

    late: list[Callable[[], None]] = [
        lambda: store.leases.complete(lease, "{}", [NewJob("assemble")]),
        lambda: store.leases.fail(lease, BROKEN, retry_at=None),
        lambda: store.leases.fail(lease, BROKEN, retry_at=clock.after(5)),
        lambda: store.leases.release(lease),
        lambda: store.leases.snooze(lease, clock.after(5)),
    ]
    for write in late:
        with pytest.raises(CancelRequested):
            write()
        assert by_hand.dump() == before
    assert store.leases.complete_many([Completion(lease)]) == [lease]
    assert by_hand.dump() == before

    assert list(changed.asked) == [job_id]
    assert status_of(store, job_id) is Status.RUNNING
    store.leases.confirm_cancel(lease, Usage(signal="SIGTERM"))
    assert status_of(store, job_id) is Status.CANCELLED
    assert _outcomes(store, job_id) == ["cancelled"]


def test_p7_a_beat_returns_the_leases_to_cancel(store: Store, enqueue: Enqueue) -> None:
    first, _ = enqueue(), enqueue()
    a, b = (job.lease for job in store.leases.claim("w1", 2))
    store.job_control.cancel(jobs_with_ids(first), actor="ann")

    beat = store.leases.beat("w1", [a, b])

    assert (list(beat.to_cancel), list(beat.lost)) == ([a], [])


def test_p7_a_job_asked_to_stop_whose_worker_dies_ends_cancelled(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    claim_one(store)
    store.job_control.cancel(jobs_with_ids(job_id), actor="ann")

    (job,) = store.leases.requeue("w1")

    assert job.status is Status.CANCELLED
    assert status_of(store, job_id) is Status.CANCELLED
    assert _outcomes(store, job_id) == ["cancelled"]


def test_p7_a_complete_that_committed_first_stands(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    store.leases.complete(claim_one(store).lease)

    changed = store.job_control.cancel(jobs_with_ids(job_id), actor="ann")

    assert status_of(store, job_id) is Status.COMPLETED
    assert list(changed.job_ids) == []


def test_p7_a_cancel_without_a_request_cannot_be_confirmed(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue()
    lease = claim_one(store).lease
    before = by_hand.dump()

    with pytest.raises(PagemillError):
        store.leases.confirm_cancel(lease)

    assert by_hand.dump() == before


# ── P10: progress never falls; log lines are appended ───────────────────────────────────────────────────────────────


def test_p10_progress_never_falls(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease

    seen = []
    for percent in (10, 40, 20, 40.9, 39, -5, 80, 300, 50):
        assert store.leases.report([Report(lease, percent, f"at {percent}")]) == []
        seen.append(store.job_queries.get(job_id).progress_percent)

    assert seen == sorted(seen)
    assert seen[:3] == [10, 40, 40]
    assert seen[6] == 80
    assert seen[-1] == 100


def test_p10_a_message_alone_moves_no_progress(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease
    store.leases.report([Report(lease, 30, "page 3")])

    store.leases.report([Report(lease, None, "page 4"), Report(lease, None, None, ["still here"])])

    job = store.job_queries.get(job_id)
    assert (job.progress_percent, job.progress_message) == (30, "page 4")


def test_each_report_replaces_the_counted_progress(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease

    def report(*reported: Report) -> tuple[object, ...]:
        store.leases.report(reported)
        job = store.job_queries.get(job_id)
        return job.progress_done, job.progress_total, job.progress_unit, job.progress_rate

    assert report(Report(lease, 10, "", count=Count(500, None, "bytes", 12.5))) == (500, None, "bytes", 12.5)
    first_at = store.job_queries.get(job_id).progress_at
    clock.advance(20)
    assert report(Report(lease, 10, "", count=Count(500, 900, "bytes", 0.0))) == (
        500, 900, "bytes", 0.0,
    )  # fmt: skip
    # The same count does not move progress_at; a log line does.
    assert store.job_queries.get(job_id).progress_at == first_at
    store.leases.report([Report(lease, lines=["a line"])])
    assert store.job_queries.get(job_id).progress_at == as_text(clock())
    assert report(Report(lease, 80, "thumbnail")) == (None, None, None, None)

    store.leases.release(lease)
    job = store.job_queries.get(job_id)
    assert (job.progress_percent, job.progress_done, job.progress_at) == (0, None, None)


@pytest.mark.parametrize("how", [Status.FAILED, Status.CANCELLED])
def test_a_failed_or_cancelled_job_has_no_progress_message(store: Store, enqueue: Enqueue, how: Status) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease
    store.leases.report([Report(lease, 30, "0.3 of 1.0 MB, 0.1 MB/s, 7 s left")])

    end_job(store, lease, how)

    job = store.job_queries.get(job_id)
    assert (job.status, job.progress_percent, job.progress_message) == (how, 30, None)


def test_p10_log_lines_are_appended_and_the_newest_3000_kept(store: Store, enqueue: Enqueue) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease

    for part in range(4):
        store.leases.report([Report(lease, lines=[f"line {part * 1000 + number}" for number in range(1000)])])

    lines = store.history.logs(job_id, most=10_000)
    assert [line.line for line in lines] == [f"line {number}" for number in range(1000, 4000)]
    assert [line.id for line in lines] == sorted(line.id for line in lines)
    page = store.history.logs(job_id, after_id=lines[99].id, most=10)
    assert list(page) == list(lines[100:110])


# ── Beats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_beat_marks_the_worker_and_its_leases(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    lease = claim_one(store).lease
    clock.advance(299)

    store.leases.beat("w1", [lease])
    clock.advance(200)

    [worker] = store.overview.workers()
    assert store.job_queries.get(job_id).heartbeat_at == worker.heartbeat_at == "2026-11-18 10:04:59.000"


def test_p2_a_beat_for_a_lost_lease_marks_no_other_attempt(store: Store, enqueue: Enqueue, clock: MovableClock) -> None:
    job_id = enqueue()
    old = claim_one(store).lease
    store.leases.release(old)
    claim_one(store)
    before = store.job_queries.get(job_id)
    clock.advance(30)

    assert list(store.leases.beat("w1", [old]).lost) == [old]

    assert store.job_queries.get(job_id) == before


def test_a_worker_without_a_row_may_neither_beat_nor_claim(store: Store, enqueue: Enqueue, by_hand: ByHand) -> None:
    enqueue()
    before = by_hand.dump()

    with pytest.raises(WorkerUnknown):
        store.leases.beat("nobody", [])
    with pytest.raises(WorkerUnknown):
        store.leases.claim("nobody", 1)

    assert by_hand.dump() == before


def test_registering_a_worker_again_replaces_its_handlers(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker(types=["assemble"])
    job_id = enqueue("ocr_pages")
    assert gate_codes(store, job_id) == ["UNKNOWN_TYPE"]

    worker(types=["ocr_pages"])

    assert gate_codes(store, job_id) == []
    assert gate_codes(store, enqueue("assemble", priority=1)) == ["UNKNOWN_TYPE"]
