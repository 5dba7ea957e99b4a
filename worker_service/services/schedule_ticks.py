"""Ticks: start the work of due slots, the times of schedules. Of several ticks at a time, only one takes a slot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import as_text
from worker_service.base.errors import BadInput, BadPayload, ConfigError, PagemillError, RuleBroken, StoreError
from worker_service.base.humanize import counted
from worker_service.jobs.batches import BatchOfJobs, NewBatch, OwnerPolicy
from worker_service.jobs.job import NewJob, StoredSchedule
from worker_service.services.enqueue import with_lost_files_forced
from worker_service.services.notifications import send_due_notifications
from worker_service.services.session import Session
from worker_service.settings.cron_schedules import (
    Schedule,
    choose_slots,
    fill_slot,
    next_slot,
    read_schedule,
    slots_between,
)


class ScheduleEntry(Struct, frozen=True):
    schedule: Schedule
    stored: StoredSchedule | None = None
    """None if the schedule is defined in the settings file."""
    fault: str = ""
    """Why the stored definition cannot be read."""

    @property
    def is_paused(self) -> bool:
        return self.stored is not None and self.stored.paused_at is not None


class StartedSchedule(Struct, frozen=True):
    schedule: str
    slot: str | None
    """None if a user started it."""
    job_id: int | None
    batch_id: int | None
    existing: bool


class MissedSlots(Struct, frozen=True):
    schedule: str
    slots: int
    is_all: bool
    """False: more slots were missed."""
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
    """Number of notification jobs that were enqueued."""


def run_tick(session: Session, *, includes_settings_file: bool = True) -> Tick:
    """Start the work of all due slots. Report a schedule that fails; the next tick tries it again."""
    started: list[StartedSchedule] = []
    missed: list[MissedSlots] = []
    faults: list[ScheduleFault] = []
    for entry in schedule_entries(session, includes_settings_file=includes_settings_file):
        name = entry.schedule.name
        if entry.is_paused:
            continue
        if entry.fault:
            faults.append(ScheduleFault(name, entry.fault))
            continue
        try:
            _start_due_slots(session, entry.schedule, started, missed)
        except PagemillError as error:
            # A database that fails ends the tick. A job that the database refuses is a fault of its schedule.
            if isinstance(error, StoreError) and not isinstance(error, RuleBroken | BadPayload):
                raise
            faults.append(ScheduleFault(name, str(error)))
    return Tick(started, missed, faults, send_due_notifications(session))


def seconds_to_next_slot(session: Session, *, includes_settings_file: bool = True) -> float:
    now = session.clock()
    entries = schedule_entries(session, includes_settings_file=includes_settings_file)
    slots = [next_slot(entry.schedule, now) for entry in entries if not entry.is_paused]
    return min(((slot - now).total_seconds() for slot in slots if slot is not None), default=float("inf"))


def schedule_entries(session: Session, *, includes_settings_file: bool = True) -> Sequence[ScheduleEntry]:
    from_settings = session.settings.schedule
    # A schedule of the settings file replaces a stored one of the same name.
    names = {schedule.name for schedule in from_settings}
    stored = [read_stored(session, row) for row in session.store.schedules.stored() if row.name not in names]
    return [*map(ScheduleEntry, from_settings if includes_settings_file else ()), *stored]


def read_stored(session: Session, stored: StoredSchedule) -> ScheduleEntry:
    """Return an entry with a `fault`, which starts nothing, if the definition cannot be read."""
    try:
        return read_definition(session, stored)
    except BadInput as error:
        placeholder = Schedule(stored.name, "@yearly", "UTC", stored.owner)
        return ScheduleEntry(placeholder, stored, str(error))


def read_definition(session: Session, stored: StoredSchedule) -> ScheduleEntry:
    table = {**json.loads(stored.definition), "name": stored.name, "owner": stored.owner}
    try:
        schedule = read_schedule(table, "schedule")
    except ConfigError as error:
        raise BadInput(error.detail, error.remedy) from error
    return ScheduleEntry(replace(schedule, zone=schedule.zone or session.settings.zone), stored)


def work_of(session: Session, schedule: Schedule, slot: datetime) -> NewJob | BatchOfJobs:
    if (job := schedule.job) is not None:
        return replace(job, payload=fill_slot(job, slot, schedule.zone), name=job.name or schedule.name)
    from job_handlers.crawl import requests  # not needed for plain jobs

    owner, priority = schedule.owner, schedule.priority
    try:
        if schedule.crawl is not None:
            return replace(requests.crawl_of_request(schedule.crawl, owner=owner), priority=priority)
        jobs = [replace(job, priority=priority) for job in requests.scheduled_batch(schedule.batch, owner=owner)]
    except PagemillError as error:
        raise BadInput(f"schedule {schedule.name}: {schedule.kind_of_work}: {error}") from error
    asked = json.dumps({"schedule": schedule.name, "batch": schedule.batch}, ensure_ascii=False, default=str)
    # No user waits for a scheduled batch, so it must not replace a user's batch.
    policy = OwnerPolicy.OFF if session.settings.owner_policy == OwnerPolicy.OFF else OwnerPolicy.QUEUE
    new = NewBatch(owner, schedule.name, priority, asked)
    return BatchOfJobs(new, with_lost_files_forced(session, jobs, owner=owner), policy)


def _start_due_slots(
    session: Session, schedule: Schedule, started: list[StartedSchedule], missed: list[MissedSlots]
) -> None:
    """Append to the lists after each transaction, so that they are complete even after an error."""
    store, plan, now = session.store.schedules, schedule.plan, session.clock()
    last_slot = store.last_handled_slot(schedule.name, plan)
    if last_slot is None:
        store.begin_plan(schedule.name, plan)
        return
    due, is_all = slots_between(schedule, last_slot, now)
    chosen = choose_slots(schedule, due, now)
    skipped = due[: len(due) - len(chosen)]
    unreported = MissedSlots(schedule.name, len(skipped), is_all, as_text(skipped[-1])) if skipped else None
    if unreported is not None and not chosen:
        if store.skip_slots(schedule.name, plan, skipped[-1], unreported.sentence, schedule.owner):
            missed.append(unreported)
        return
    for slot in chosen:
        work = work_of(session, schedule, slot)
        taken = store.run_slot(schedule.name, plan, slot, work, "" if unreported is None else unreported.sentence)
        if taken is None:  # a concurrent tick has taken the slot
            continue
        started.append(StartedSchedule(schedule.name, as_text(slot), taken.job_id, taken.batch_id, taken.existing))
        if unreported is not None:
            missed.append(unreported)
            unreported = None
