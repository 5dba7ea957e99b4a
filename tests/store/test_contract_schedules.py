"""Runs of schedules: each slot once."""

from __future__ import annotations

from datetime import timedelta

from tests.store.kit import EVERY_JOB, START, MovableClock
from worker_service.jobs.batches import BatchOfJobs, BatchState, NewBatch, OwnerPolicy
from worker_service.jobs.job import NewJob, ScheduleRun, StartedWork
from worker_service.jobs.selector import Selector
from worker_service.store.store import Store

PLAN = "0 2 * * * UTC"
HOUR = timedelta(hours=1)
JOB = NewJob("ocr_pages")
UNIQUE = NewJob("ocr_pages", unique_key="nightly")


def ids(store: Store) -> list[int]:
    return [*store.job_queries.ids(EVERY_JOB)]


def test_a_schedule_begins_when_first_seen_and_again_when_its_plan_changes(store: Store, clock: MovableClock) -> None:
    assert store.schedules.last_handled_slot("nightly", PLAN) is None

    store.schedules.begin_plan("nightly", PLAN)
    clock.advance(60)
    store.schedules.begin_plan("nightly", PLAN)
    assert store.schedules.last_handled_slot("nightly", PLAN) == START

    assert store.schedules.last_handled_slot("nightly", "another") is None
    store.schedules.begin_plan("nightly", "another")
    assert store.schedules.last_handled_slot("nightly", "another") == clock.now


def test_a_slot_is_taken_once_with_its_job(store: Store) -> None:
    store.schedules.begin_plan("nightly", PLAN)

    first = store.schedules.run_slot("nightly", PLAN, START + HOUR, JOB)
    again = store.schedules.run_slot("nightly", PLAN, START + HOUR, JOB)

    assert first is not None
    assert (again, ids(store)) == (None, [first.job_id])
    assert store.schedules.last_handled_slot("nightly", PLAN) == START + HOUR
    assert store.schedules.last_run("nightly") == ScheduleRun("2026-11-18 11:00:00.000", "2026-11-18 10:00:00.000", 1)


def test_no_slot_before_a_taken_one_or_of_another_plan_can_be_taken(store: Store) -> None:
    store.schedules.begin_plan("nightly", PLAN)
    store.schedules.run_slot("nightly", PLAN, START + 2 * HOUR, JOB)

    assert store.schedules.run_slot("nightly", PLAN, START + HOUR, JOB) is None
    assert store.schedules.run_slot("nightly", "another", START + 3 * HOUR, JOB) is None
    assert len(ids(store)) == 1


def test_a_slot_stays_taken_after_its_job_was_deleted_or_the_plan_changed(store: Store, clock: MovableClock) -> None:
    store.schedules.begin_plan("nightly", PLAN)
    store.schedules.run_slot("nightly", PLAN, START + HOUR, JOB)
    store.job_control.delete(Selector(ids=(1,)), actor="ann")
    store.schedules.begin_plan("nightly", "another")

    assert store.schedules.run_slot("nightly", "another", START + HOUR, JOB) is None
    assert ids(store) == []


def test_skipped_slots_start_nothing_and_cannot_be_taken_later(store: Store) -> None:
    store.schedules.begin_plan("nightly", PLAN)

    assert store.schedules.skip_slots("nightly", PLAN, START + HOUR, "missed 1 slot", "ann")
    assert not store.schedules.skip_slots("nightly", PLAN, START + HOUR, "missed 1 slot", "ann")
    assert store.schedules.run_slot("nightly", PLAN, START + HOUR, JOB, "missed 1 slot") is None
    assert ids(store) == []
    [notice] = store.notices.after(0)
    assert (notice.kind, notice.owner, notice.message) == ("schedule.missed", "ann", "missed 1 slot")


def test_a_taken_slot_writes_the_notice_about_missed_ones(store: Store) -> None:
    store.schedules.begin_plan("nightly", PLAN)

    store.schedules.run_slot("nightly", PLAN, START + HOUR, NewJob("ocr_pages", owner="ann"), "missed 3 slots")
    store.schedules.run_slot("nightly", PLAN, START + 2 * HOUR, JOB)

    assert [(notice.kind, notice.owner, notice.message) for notice in store.notices.after(0)] == [
        ("schedule.missed", "ann", "missed 3 slots")
    ]


def test_a_slot_whose_job_is_live_under_its_key_is_taken_with_that_job(store: Store) -> None:
    store.schedules.begin_plan("nightly", PLAN)
    store.schedules.run_slot("nightly", PLAN, START + HOUR, UNIQUE)

    taken = store.schedules.run_slot("nightly", PLAN, START + 2 * HOUR, UNIQUE)

    assert taken is not None
    assert (taken.existing, taken.job_id, ids(store)) == (True, 1, [1])


def test_a_slot_may_begin_a_batch_and_stays_taken_with_it(store: Store) -> None:
    store.schedules.begin_plan("nightly", PLAN)
    work = BatchOfJobs(NewBatch("ann", "nightly", 7), [JOB, JOB], OwnerPolicy.QUEUE)

    first = store.schedules.run_slot("nightly", PLAN, START + HOUR, work)
    again = store.schedules.run_slot("nightly", PLAN, START + HOUR, work)
    second = store.schedules.run_slot("nightly", PLAN, START + 2 * HOUR, work)

    assert (first, again, second) == (StartedWork(None, 1), None, StartedWork(None, 2))
    assert [(job.owner, job.batch_id, job.priority) for job in map(store.job_queries.get, ids(store))] == [
        ("ann", 1, 7), ("ann", 1, 7), ("ann", 2, 7), ("ann", 2, 7),
    ]  # fmt: skip
    assert [store.batches.get(batch_id).state for batch_id in (1, 2)] == [BatchState.ACTIVE, BatchState.WAITING]
    last = store.schedules.last_run("nightly")
    assert last is not None
    assert (last.job_id, last.batch_id) == (None, 2)


def test_a_user_can_start_a_schedule_without_taking_a_slot(store: Store, clock: MovableClock) -> None:
    store.schedules.begin_plan("nightly", PLAN)

    started = store.schedules.run_now("nightly", JOB)
    at_once_again = store.schedules.run_now("nightly", JOB)

    assert started is not None
    assert (at_once_again, ids(store)) == (None, [started.job_id])
    assert store.schedules.last_run("nightly") == ScheduleRun(None, clock.text, 1)
    assert store.schedules.run_slot("nightly", PLAN, START + HOUR, JOB) is not None


def test_a_key_is_enqueued_once_in_its_period_even_if_its_job_has_ended(store: Store) -> None:
    first = store.schedules.enqueue_once("nightly", "day 2026-11-18", UNIQUE)
    store.job_control.cancel(Selector(ids=(1,)), actor="ann")

    again = store.schedules.enqueue_once("nightly", "day 2026-11-18", UNIQUE)
    next_day = store.schedules.enqueue_once("nightly", "day 2026-11-19", UNIQUE)

    assert (first.existing, again.existing, next_day.existing) == (False, True, False)
    assert (again.job_id, ids(store)) == (1, [1, 2])


def test_a_live_job_of_yesterday_does_not_use_up_the_key_for_today(store: Store) -> None:
    store.schedules.enqueue_once("nightly", "day 2026-11-18", UNIQUE)

    next_day = store.schedules.enqueue_once("nightly", "day 2026-11-19", UNIQUE)
    store.job_control.cancel(Selector(ids=(1,)), actor="ann")
    after_its_end = store.schedules.enqueue_once("nightly", "day 2026-11-19", UNIQUE)

    assert (next_day.existing, next_day.job_id) == (True, 1)
    assert (after_its_end.existing, after_its_end.job_id) == (False, 2)


def test_old_runs_are_deleted_except_the_newest_and_never_repeated(store: Store, clock: MovableClock) -> None:
    store.schedules.begin_plan("nightly", PLAN)
    slots = [START + hours * HOUR for hours in (1, 2, 3)]
    for slot in slots:
        store.schedules.run_slot("nightly", PLAN, slot, JOB)
    store.schedules.enqueue_once("key", "month 2026-11", UNIQUE)
    clock.advance(61 * 86_400)
    store.pruning.prune(Selector(older_than="2020-01-01 00:00:00.000"))
    assert len(runs(store)) == 4

    clock.advance(2 * 86_400)
    store.pruning.prune(Selector(older_than="2020-01-01 00:00:00.000"))

    assert runs(store) == [("nightly", "2026-11-18 13:00:00.000"), ("once:key", "month 2026-11")]
    assert [store.schedules.run_slot("nightly", PLAN, slot, JOB) for slot in slots] == [None] * 3


def runs(store: Store) -> list[tuple[object, ...]]:
    return store.database.read_sql("SELECT schedule, slot FROM schedule_run ORDER BY schedule, slot", [])
