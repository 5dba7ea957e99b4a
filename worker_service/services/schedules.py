"""List, change and run schedules. Several ticks may run at the same time: each slot is taken once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import as_text
from worker_service.base.errors import (
    BadInput,
    BadPayload,
    BatchNotFound,
    ConfigError,
    PagemillError,
    Refused,
    RuleBroken,
    StoreError,
)
from worker_service.base.humanize import counted
from worker_service.base.path_text import FILE_URL
from worker_service.base.suggestions import did_you_mean
from worker_service.jobs.batches import Batch, BatchOfJobs, NewBatch, OwnerPolicy
from worker_service.jobs.job import Job, NewJob, StoredSchedule
from worker_service.jobs.selector import Selector
from worker_service.services.enqueue import with_lost_files_forced
from worker_service.services.notifications import send_due_notifications
from worker_service.services.session import Session
from worker_service.settings.cron_schedules import (
    LATE,
    Schedule,
    choose_slots,
    cron_every,
    fill_slot,
    next_slot,
    read_schedule,
    slots_between,
)

HOW_TO_RUN_TICKS = (
    "systemctl enable --now pagemill-schedule.timer; or write schedule_in_daemon = true above the first [table] of the "
    "settings, and restart the daemon"
)
_INVALID_IN_NAME = re.compile(r"[^\w .-]+")

_FOLDER_NAME_MAX = 80
"""Characters of the name, with room for a number in a schedule's name."""

WATCH_DIRECTORY, WATCH_ADDRESS = "5m", "15m"
"""Default times between crawls of a local directory and of a folder at an address."""


class KnownSchedule(Struct, frozen=True):
    schedule: Schedule
    stored: StoredSchedule | None = None
    """None if the schedule is defined in the settings file."""
    fault: str = ""
    """Why the stored definition cannot be read."""


class ScheduleState(Struct, frozen=True):
    name: str
    what: str
    when: str
    cron: str
    zone: str
    owner: str
    missed: str
    next_at: str | None
    last_at: str | None
    last_slot: str | None
    """None if the last run was started by a user, or if there was none."""
    job_id: int | None
    job: Job | None
    """None if nothing has run, if the run was a batch, or if the job was removed."""
    batch_id: int | None
    batch: Batch | None
    is_waiting: bool
    """A slot is overdue: no tick has run for minutes."""
    trouble: str | None
    paused_at: str | None
    definition: Mapping[str, Any] | None
    """None if the schedule is defined in the settings file, where alone it can be changed."""


class StartedSchedule(Struct, frozen=True):
    schedule: str
    slot: str | None
    job_id: int | None
    batch_id: int | None
    existing: bool


class MissedSlots(Struct, frozen=True):
    schedule: str
    slots: int
    is_all: bool
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


def list_schedules(session: Session) -> Sequence[ScheduleState]:
    return [_state_of(session, one) for one in known_schedules(session)]


def known_schedules(session: Session, *, with_settings: bool = True) -> Sequence[KnownSchedule]:
    of_settings = session.settings.schedule
    names = {schedule.name for schedule in of_settings}
    stored = [_read_stored(session, row) for row in session.store.schedules.stored() if row.name not in names]
    return [*map(KnownSchedule, of_settings if with_settings else ()), *stored]


def overdue_schedules(session: Session) -> list[str]:
    """Include schedules that no tick has seen."""
    return [known.schedule.name for known in known_schedules(session) if _is_overdue(session, known)]


def run_tick(session: Session, *, with_settings: bool = True) -> Tick:
    """Start the work of all due slots. Report a schedule that fails; the next tick tries it again."""
    started: list[StartedSchedule] = []
    missed: list[MissedSlots] = []
    faults: list[ScheduleFault] = []
    for known in known_schedules(session, with_settings=with_settings):
        schedule = known.schedule
        if _is_paused(known):
            continue
        if known.fault:
            faults.append(ScheduleFault(schedule.name, known.fault))
            continue
        try:
            _start_due_slots(session, schedule, started, missed)
        except PagemillError as error:
            # A failing database ends the tick, but a job that breaks a rule is a fault of its schedule.
            if isinstance(error, StoreError) and not isinstance(error, RuleBroken | BadPayload):
                raise
            faults.append(ScheduleFault(schedule.name, str(error)))
    return Tick(started, missed, faults, send_due_notifications(session))


def start_schedule_now(session: Session, name: str, *, owner: str | None = None) -> StartedSchedule:
    schedule = _find_schedule(session, name, owner).schedule
    work = session.store.schedules.run_now(name, work_of(session, schedule, session.clock()))
    if work is None:
        raise Refused(f"{name!r} is being started at this moment", "`pagemill schedules ls` shows its job")
    return StartedSchedule(name, None, work.job_id, work.batch_id, work.existing)


def seconds_to_next(session: Session, *, with_settings: bool = True) -> float:
    now = session.clock()
    schedules = known_schedules(session, with_settings=with_settings)
    slots = [next_slot(known.schedule, now) for known in schedules if not _is_paused(known)]
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
    last_slot = store.last_handled_slot(schedule.name, plan)
    if last_slot is None:
        store.begin(schedule.name, plan)
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
        taken = store.take(schedule.name, plan, slot, work, "" if unreported is None else unreported.sentence)
        if taken is None:  # a concurrent tick has taken the slot
            continue
        started.append(StartedSchedule(schedule.name, as_text(slot), taken.job_id, taken.batch_id, taken.existing))
        if unreported is not None:
            missed.append(unreported)
            unreported = None


def _find_schedule(session: Session, name: str, owner: str | None = None) -> KnownSchedule:
    visible = [known for known in known_schedules(session) if owner in (None, known.schedule.owner)]
    by_name = {known.schedule.name: known for known in visible}
    if name in by_name:
        return by_name[name]
    names = f"the schedules are {', '.join(by_name)}" if by_name else "there are none: pagemill schedules add"
    raise BadInput(f"there is no schedule {name!r}", did_you_mean(name, by_name, names))


def _state_of(session: Session, known: KnownSchedule) -> ScheduleState:
    schedule, stored = known.schedule, known.stored
    now, last = session.clock(), session.store.schedules.last_run(schedule.name)
    next_at = None if _is_paused(known) else next_slot(schedule, now)
    job_id, batch_id = (None, None) if last is None else (last.job_id, last.batch_id)
    trouble: str | None = known.fault or None
    batch: Batch | None = None
    try:
        work_of(session, schedule, now)
    except PagemillError as error:
        trouble = trouble or str(error)
    if batch_id is not None:
        with suppress(BatchNotFound):
            batch = session.store.batches.get(batch_id)
    jobs = () if job_id is None else session.job_queries.list(Selector(ids=(job_id,)))
    return ScheduleState(
        name=schedule.name,
        what=schedule.what,
        when=schedule.when,
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
        is_waiting=_is_overdue(session, known),
        trouble=trouble,
        paused_at=None if stored is None else stored.paused_at,
        definition=None if stored is None else json.loads(stored.definition),
    )


def _is_paused(known: KnownSchedule) -> bool:
    return known.stored is not None and known.stored.paused_at is not None


def _is_overdue(session: Session, known: KnownSchedule) -> bool:
    if _is_paused(known):
        return False
    schedule = known.schedule
    last_slot = session.store.schedules.last_handled_slot(schedule.name, schedule.plan)
    if last_slot is None:
        return True
    due = next_slot(schedule, last_slot)
    return due is not None and session.clock() - due > LATE


# ── Schedules in the database ───────────────────────────────────────────────────────────────────────────────────────
# `owner` limits what the user may see and change to the schedules of this owner; None is for all schedules.


def add_schedule(session: Session, name: str, definition: Mapping[str, Any], *, owner: str = "") -> ScheduleState:
    if name in _known_names(session):
        raise Refused(f"there is a schedule {name!r}", "choose another name")
    return _save(session, None, StoredSchedule(name, owner, definition_as_json(definition)))


def change_schedule(
    session: Session, name: str, definition: Mapping[str, Any], *, owner: str | None = None
) -> ScheduleState:
    stored = _find_stored(session, name, owner)
    return _save(session, stored, replace(stored, definition=definition_as_json(definition)))


def pause_schedule(session: Session, name: str, *, owner: str | None = None) -> ScheduleState:
    stored = _find_stored(session, name, owner)
    return _save(session, stored, replace(stored, paused_at=stored.paused_at or as_text(session.clock())))


def resume_schedule(session: Session, name: str, *, owner: str | None = None) -> ScheduleState:
    stored = _find_stored(session, name, owner)
    if stored.paused_at is not None:
        schedule = _read_definition(session, stored).schedule
        # Otherwise the slots of the pause would count as missed.
        session.store.schedules.skip_slots(name, schedule.plan, session.clock(), "")
    return _save(session, stored, replace(stored, paused_at=None))


def remove_schedule(session: Session, name: str, *, owner: str | None = None) -> None:
    session.store.schedules.change(_find_stored(session, name, owner), None, actor=session.actor)


def watch_folder(
    session: Session,
    folder: str,
    options: Mapping[str, Any] | None = None,
    *,
    owner: str = "",
    every: str | None = None,
    name: str | None = None,
) -> tuple[ScheduleState, StartedSchedule]:
    """Change the schedule that crawls the folder, or add one, and start it."""
    is_directory = "://" not in folder or folder.startswith(FILE_URL)
    every = every or (WATCH_DIRECTORY if is_directory else WATCH_ADDRESS)
    definition = {"cron": cron_every(every), "crawl": {"folder": folder, **(options or {})}}
    existing = [known.schedule.name for known in known_schedules(session) if _crawls(known, folder, owner)]
    if existing:
        state = change_schedule(session, existing[0], definition)
    else:
        state = add_schedule(session, name or _new_name_for(session, folder), definition, owner=owner)
    return state, start_schedule_now(session, state.name)


def _crawls(known: KnownSchedule, folder: str, owner: str) -> bool:
    crawl = known.schedule.crawl
    crawled = crawl.get("folder") if isinstance(crawl, Mapping) else crawl
    return known.stored is not None and known.schedule.owner == owner and crawled == folder


def _new_name_for(session: Session, folder: str) -> str:
    last_part = folder.rstrip("/").rpartition("/")[2]
    base = _INVALID_IN_NAME.sub("-", last_part).lstrip(" .-")[:_FOLDER_NAME_MAX] or "folder"
    taken = _known_names(session)
    names = (base if number == 1 else f"{base} {number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _known_names(session: Session) -> set[str]:
    return {known.schedule.name for known in known_schedules(session)}


def _find_stored(session: Session, name: str, owner: str | None) -> StoredSchedule:
    stored = _find_schedule(session, name, owner).stored
    if stored is None:
        raise Refused(f"{name!r} is defined in the settings file", "change it there")
    return stored


def _save(session: Session, before: StoredSchedule | None, after: StoredSchedule) -> ScheduleState:
    known = _read_definition(session, after)
    # Refuse now what a tick could not start, such as a folder that does not exist.
    work_of(session, known.schedule, session.clock())
    if before != after:
        session.store.schedules.change(before, after, actor=session.actor)
        session.store.schedules.begin(after.name, known.schedule.plan)
    return _state_of(session, known)


def begin_restored_schedules(session: Session) -> None:
    """Handle the slots of schedules that an undo has restored, from now on."""
    for stored in session.store.schedules.stored():
        plan = _read_stored(session, stored).schedule.plan
        if session.store.schedules.last_handled_slot(stored.name, plan) is None:
            session.store.schedules.begin(stored.name, plan)


def definition_as_json(definition: Mapping[str, Any]) -> str:
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"))


def _read_stored(session: Session, stored: StoredSchedule) -> KnownSchedule:
    """Return a schedule with a `fault`, which starts nothing, if the definition cannot be read."""
    try:
        return _read_definition(session, stored)
    except BadInput as error:
        return KnownSchedule(Schedule(stored.name, "@yearly", "UTC", stored.owner), stored, str(error))


def _read_definition(session: Session, stored: StoredSchedule) -> KnownSchedule:
    table = {**json.loads(stored.definition), "name": stored.name, "owner": stored.owner}
    try:
        schedule = read_schedule(table, "schedule")
    except ConfigError as error:
        raise BadInput(error.detail, error.remedy) from error
    return KnownSchedule(replace(schedule, zone=schedule.zone or session.settings.zone), stored)
