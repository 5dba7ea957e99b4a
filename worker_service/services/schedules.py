"""List schedules, and change those in the database. With `owner`, only schedules of this owner are found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.clock import as_text
from worker_service.base.errors import BadInput, BatchNotFound, PagemillError, Refused
from worker_service.base.path_text import FILE_URL
from worker_service.base.suggestions import did_you_mean
from worker_service.jobs.batches import Batch
from worker_service.jobs.job import Job, StoredSchedule
from worker_service.services.jobs import each_job
from worker_service.services.schedule_ticks import (
    ScheduleEntry,
    StartedSchedule,
    read_definition,
    read_stored,
    schedule_entries,
    work_of,
)
from worker_service.services.session import Session
from worker_service.settings.cron_schedules import LATE, cron_every, next_slot

HOW_TO_RUN_TICKS = (
    "systemctl enable --now pagemill-schedule.timer; or write schedule_in_daemon = true above the first [table] of the "
    "settings, and restart the daemon"
)
_INVALID_IN_NAME = re.compile(r"[^\w .-]+")
_FOLDER_NAME_CHARACTERS_MAX = 80
_WATCH_DIRECTORY_EVERY, _WATCH_ADDRESS_EVERY = "5m", "15m"


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


def list_schedules(session: Session) -> Sequence[ScheduleState]:
    return [_state_of(session, entry) for entry in schedule_entries(session)]


def overdue_schedules(session: Session) -> list[str]:
    """Include schedules that no tick has seen."""
    return [entry.schedule.name for entry in schedule_entries(session) if _is_overdue(session, entry)]


def start_schedule_now(session: Session, name: str, *, owner: str | None = None) -> StartedSchedule:
    schedule = _find_schedule(session, name, owner).schedule
    work = session.store.schedules.run_now(name, work_of(session, schedule, session.clock()))
    if work is None:
        raise Refused(f"{name!r} is being started at this moment", "`pagemill schedules ls` shows its job")
    return StartedSchedule(name, None, work.job_id, work.batch_id, work.existing)


def _find_schedule(session: Session, name: str, owner: str | None = None) -> ScheduleEntry:
    entry_by_name = {
        entry.schedule.name: entry for entry in schedule_entries(session) if owner in (None, entry.schedule.owner)
    }
    if name in entry_by_name:
        return entry_by_name[name]
    remedy = "there are none: pagemill schedules add"
    if entry_by_name:
        remedy = did_you_mean(name, entry_by_name, f"the schedules are {', '.join(entry_by_name)}")
    raise BadInput(f"there is no schedule {name!r}", remedy)


def _state_of(session: Session, entry: ScheduleEntry) -> ScheduleState:
    schedule, stored = entry.schedule, entry.stored
    now, last_run = session.clock(), session.store.schedules.last_run(schedule.name)
    next_at = None if entry.is_paused else next_slot(schedule, now)
    trouble: str | None = entry.fault or None
    try:
        work_of(session, schedule, now)
    except PagemillError as error:
        trouble = trouble or str(error)
    job: Job | None = None
    batch: Batch | None = None
    if last_run is not None and last_run.job_id is not None:
        job = next(each_job(session, [last_run.job_id]), None)
    if last_run is not None and last_run.batch_id is not None:
        with suppress(BatchNotFound):
            batch = session.store.batches.get(last_run.batch_id)
    return ScheduleState(
        name=schedule.name,
        what=schedule.what,
        when=schedule.when,
        cron=schedule.cron,
        zone=schedule.zone,
        owner=schedule.owner,
        missed=schedule.missed,
        next_at=None if next_at is None else as_text(next_at),
        last_at=None if last_run is None else last_run.at,
        last_slot=None if last_run is None else last_run.slot,
        job_id=None if last_run is None else last_run.job_id,
        job=job,
        batch_id=None if last_run is None else last_run.batch_id,
        batch=batch,
        is_waiting=_is_overdue(session, entry),
        trouble=trouble,
        paused_at=None if stored is None else stored.paused_at,
        definition=None if stored is None else json.loads(stored.definition),
    )


def _is_overdue(session: Session, entry: ScheduleEntry) -> bool:
    if entry.is_paused:
        return False
    schedule = entry.schedule
    last_slot = session.store.schedules.last_handled_slot(schedule.name, schedule.plan)
    if last_slot is None:
        return True  # no tick has seen it
    first_unhandled = next_slot(schedule, last_slot)
    return first_unhandled is not None and session.clock() - first_unhandled > LATE


# ── Schedules in the database ───────────────────────────────────────────────────────────────────────────────────────


def add_schedule(session: Session, name: str, definition: Mapping[str, Any], *, owner: str = "") -> ScheduleState:
    if name in _schedule_names(session):
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
        schedule = read_definition(session, stored).schedule
        # Mark the slots of the pause as handled, or they would count as missed.
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
) -> tuple[ScheduleState, StartedSchedule]:
    """Change the schedule that crawls the folder, or add one, and start it."""
    is_directory = "://" not in folder or folder.startswith(FILE_URL)
    every = every or (_WATCH_DIRECTORY_EVERY if is_directory else _WATCH_ADDRESS_EVERY)
    definition = {"cron": cron_every(every), "crawl": {"folder": folder, **(options or {})}}
    names = [entry.schedule.name for entry in schedule_entries(session) if _is_stored_crawl(entry, folder, owner)]
    if names:
        state = change_schedule(session, names[0], definition)
    else:
        state = add_schedule(session, _new_name_for(session, folder), definition, owner=owner)
    return state, start_schedule_now(session, state.name)


def _is_stored_crawl(entry: ScheduleEntry, folder: str, owner: str) -> bool:
    crawl = entry.schedule.crawl  # a folder, or a table with `folder` and options
    crawled_folder = crawl.get("folder") if isinstance(crawl, Mapping) else crawl
    return entry.stored is not None and entry.schedule.owner == owner and crawled_folder == folder


def _new_name_for(session: Session, folder: str) -> str:
    last_part = folder.rstrip("/").rpartition("/")[2]
    base = _INVALID_IN_NAME.sub("-", last_part).lstrip(" .-")[:_FOLDER_NAME_CHARACTERS_MAX] or "folder"
    taken = _schedule_names(session)
    names = (base if number == 1 else f"{base} {number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _schedule_names(session: Session) -> set[str]:
    return {entry.schedule.name for entry in schedule_entries(session)}


def _find_stored(session: Session, name: str, owner: str | None) -> StoredSchedule:
    stored = _find_schedule(session, name, owner).stored
    if stored is None:
        raise Refused(f"{name!r} is defined in the settings file", "change it there")
    return stored


def _save(session: Session, before: StoredSchedule | None, after: StoredSchedule) -> ScheduleState:
    entry = read_definition(session, after)
    # Refuse now what a tick could not start, such as a folder that does not exist.
    work_of(session, entry.schedule, session.clock())
    if before != after:
        session.store.schedules.change(before, after, actor=session.actor)
        session.store.schedules.begin_plan(after.name, entry.schedule.plan)
    return _state_of(session, entry)


def begin_restored_schedules(session: Session) -> None:
    """Begin the schedules that an undo has restored; their earlier slots are not missed."""
    for stored in session.store.schedules.stored():
        plan = read_stored(session, stored).schedule.plan
        if session.store.schedules.last_handled_slot(stored.name, plan) is None:
            session.store.schedules.begin_plan(stored.name, plan)


def definition_as_json(definition: Mapping[str, Any]) -> str:
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"))
