"""Run schedules. Several ticks may run at once, for instance from cron, a timer and the daemon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import as_text
from worker_service.base.errors import (
    BadInput,
    BadPayload,
    BatchNotFound,
    PagemillError,
    Refused,
    RuleBroken,
    StoreError,
    did_you_mean,
)
from worker_service.base.humanize import counted
from worker_service.jobs.batches import Batch, BatchOfJobs, NewBatch, OwnerPolicy
from worker_service.jobs.job import Job, NewJob
from worker_service.jobs.selector import Selector
from worker_service.services.database import Session
from worker_service.services.enqueue import with_lost_files_forced
from worker_service.services.notifications import send_due_notifications
from worker_service.settings.schedules import LATE, Schedule, choose_slots, fill_slot, next_slot, slots_between

TICKS = (
    "systemctl enable --now pagemill-schedule.timer; or write schedule_in_daemon = true above the first [table] of the "
    "settings, and restart the daemon"
)


class ScheduleState(Struct, frozen=True):
    name: str
    what: str
    cron: str
    zone: str
    owner: str
    missed: str
    next_at: str | None
    last_at: str | None
    last_slot: str | None
    """None if a user started it, or if it never ran."""
    job_id: int | None
    job: Job | None
    """None if there was no run, it was a batch, or the job has been removed."""
    batch_id: int | None
    batch: Batch | None
    is_waiting: bool
    """No tick has run for minutes, or ever."""
    trouble: str | None


class StartedSchedule(Struct, frozen=True):
    schedule: str
    slot: str | None
    """UTC; None if a user started it."""
    job_id: int | None
    batch_id: int | None
    existing: bool


class MissedSlots(Struct, frozen=True):
    schedule: str
    slots: int
    """Number of slots that were seen too late."""
    is_all: bool
    """False if there were more."""
    until: str

    @property
    def sentence(self) -> str:
        number = counted(self.slots, "slot") if self.is_all else f"more than {counted(self.slots, 'slot')}"
        return f"{self.schedule}: missed {number}, up to {self.until.partition('.')[0]} UTC"


class ScheduleFault(Struct, frozen=True):
    schedule: str
    why: str


class Tick(Struct, frozen=True):
    items: Sequence[StartedSchedule]
    missed: Sequence[MissedSlots]
    troubles: Sequence[ScheduleFault]
    told: int


def list_schedules(session: Session) -> Sequence[ScheduleState]:
    return [_state(session, one) for one in session.settings.schedule]


def overdue_schedules(session: Session) -> list[str]:
    """Return the names of schedules with an overdue slot or without a first tick."""
    return [one.name for one in session.settings.schedule if _is_waiting(session, one)]


def run_tick(session: Session) -> Tick:
    """Enqueue what is due, and send due notifications. The next tick retries a schedule that fails."""
    started: list[StartedSchedule] = []
    missed: list[MissedSlots] = []
    faults: list[ScheduleFault] = []
    for schedule in session.settings.schedule:
        try:
            _start_due_slots(session, schedule, started, missed)
        except PagemillError as error:
            if isinstance(error, StoreError) and not isinstance(error, RuleBroken | BadPayload):
                raise
            faults.append(ScheduleFault(schedule.name, str(error)))
    return Tick(started, missed, faults, send_due_notifications(session))


def start_schedule_now(session: Session, name: str) -> StartedSchedule:
    """Run a schedule now, without affecting its slots."""
    schedule = _find_schedule(session, name)
    work = session.store.schedules.run_now(name, work_of(session, schedule, session.clock()))
    if work is None:
        raise Refused(f"{name!r} is being started at this moment", "`pagemill schedule ls` shows its job")
    return StartedSchedule(name, None, work.job_id, work.batch_id, work.existing)


def seconds_to_next(session: Session) -> float:
    """Return infinity if no schedule has another slot."""
    now = session.clock()
    slots = (next_slot(one, now) for one in session.settings.schedule)
    return min(((slot - now).total_seconds() for slot in slots if slot is not None), default=float("inf"))


def work_of(session: Session, schedule: Schedule, slot: datetime) -> NewJob | BatchOfJobs:
    if (job := schedule.job) is not None:
        return replace(job, payload=fill_slot(job, slot, schedule.zone), name=job.name or schedule.name)
    from job_handlers.crawl import requests  # not needed for plain jobs

    owner, priority = schedule.owner, schedule.priority
    try:
        if schedule.crawl is not None:
            return replace(requests.scheduled_crawl(schedule.crawl, owner=owner), priority=priority)
        jobs = [replace(job, priority=priority) for job in requests.scheduled_batch(schedule.batch, owner=owner)]
    except PagemillError as error:
        raise BadInput(f"schedule {schedule.name}: {schedule.word}: {error}") from error
    asked = json.dumps({"schedule": schedule.name, "batch": schedule.batch}, ensure_ascii=False, default=str)
    # No user waits for a scheduled batch, so it must not replace a user's batch.
    policy = OwnerPolicy.OFF if session.settings.owner_policy == OwnerPolicy.OFF else OwnerPolicy.QUEUE
    new = NewBatch(owner, schedule.name, priority, asked)
    return BatchOfJobs(new, with_lost_files_forced(session, jobs, owner=owner), policy)


def _start_due_slots(
    session: Session, schedule: Schedule, started: list[StartedSchedule], missed: list[MissedSlots]
) -> None:
    store, plan, now = session.store.schedules, schedule.plan, session.clock()
    after = store.seen_until(schedule.name, plan)
    if after is None:
        store.begin(schedule.name, plan)
        return
    due, is_all = slots_between(schedule, after, now)
    chosen = choose_slots(schedule, due, now)
    skipped = due[: len(due) - len(chosen)]
    lost = MissedSlots(schedule.name, len(skipped), is_all, as_text(skipped[-1])) if skipped else None
    if (
        lost is not None
        and not chosen
        and store.pass_over(schedule.name, plan, skipped[-1], lost.sentence, schedule.owner)
    ):
        missed.append(lost)
    for slot in chosen:
        work = work_of(session, schedule, slot)
        taken = store.take(schedule.name, plan, slot, work, "" if lost is None else lost.sentence)
        if taken is None:  # a concurrent tick has taken the slot
            continue
        started.append(StartedSchedule(schedule.name, as_text(slot), taken.job_id, taken.batch_id, taken.existing))
        if lost is not None:
            missed.append(lost)
            lost = None


def _find_schedule(session: Session, name: str) -> Schedule:
    known = {one.name: one for one in session.settings.schedule}
    if name in known:
        return known[name]
    names = f"the schedules are {', '.join(known)}" if known else "there are none: pagemill schedule example"
    raise BadInput(f"there is no schedule {name!r}", did_you_mean(name, known, names))


def _state(session: Session, schedule: Schedule) -> ScheduleState:
    now, last = session.clock(), session.store.schedules.last_run(schedule.name)
    next_at = next_slot(schedule, now)
    job_id, batch_id = (None, None) if last is None else (last.job_id, last.batch_id)
    trouble: str | None = None
    batch: Batch | None = None
    try:
        work_of(session, schedule, now)
    except PagemillError as error:
        trouble = str(error)
    if batch_id is not None:
        with suppress(BatchNotFound):
            batch = session.store.batches.get(batch_id)
    jobs = () if job_id is None else session.reading.list(Selector(ids=(job_id,)))
    return ScheduleState(
        name=schedule.name,
        what=schedule.what,
        cron=schedule.cron,
        zone=schedule.zone,
        owner=schedule.owner,
        missed=schedule.missed,
        next_at=None if next_at is None else as_text(next_at),
        last_at=None if last is None else last.at,
        last_slot=None if last is None else last.slot,
        job_id=job_id,
        job=next(iter(jobs), None),
        batch_id=batch_id,
        batch=batch,
        is_waiting=_is_waiting(session, schedule),
        trouble=trouble,
    )


def _is_waiting(session: Session, schedule: Schedule) -> bool:
    seen = session.store.schedules.seen_until(schedule.name, schedule.plan)
    due = None if seen is None else next_slot(schedule, seen)
    return seen is None or (due is not None and session.clock() - due > LATE)
