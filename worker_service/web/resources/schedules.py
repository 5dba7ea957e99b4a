"""Schedules: which a visitor may see, and what they may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from worker_service.services import schedules
from worker_service.services.schedule_ticks import StartedSchedule
from worker_service.services.schedules import ScheduleState
from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.resources.jobs import owner_for, refuse_hidden_job, refuse_server_files


def list_schedules(session: Session, visitor: Visitor) -> Sequence[ScheduleState]:
    """Return the visitor's schedules, without a last job or batch of another owner."""
    visible = [schedule for schedule in schedules.list_schedules(session) if visitor.may_see(schedule.owner)]
    return [_limited(visitor, schedule) for schedule in visible]


def _limited(visitor: Visitor, schedule: ScheduleState) -> ScheduleState:
    if not visitor.may_see(None if schedule.job is None else schedule.job.owner):
        schedule = replace(schedule, job=None, job_id=None)
    if not visitor.may_see(None if schedule.batch is None else schedule.batch.owner):
        schedule = replace(schedule, batch=None, batch_id=None)
    return schedule


def run_schedule(session: Session, visitor: Visitor, name: str) -> StartedSchedule:
    started = schedules.start_schedule_now(session, name, owner=visitor.owner)
    if started.job_id and started.existing:
        refuse_hidden_job(session, visitor, started.job_id)
    return started


def add_schedule(
    session: Session, visitor: Visitor, name: str, definition: Mapping[str, Any], owner: str | None
) -> ScheduleState:
    refuse_server_files(visitor, definition)
    return schedules.add_schedule(session, name, definition, owner=owner_for(visitor, owner))


def change_schedule(session: Session, visitor: Visitor, name: str, definition: Mapping[str, Any]) -> ScheduleState:
    refuse_server_files(visitor, definition)
    return schedules.change_schedule(session, name, definition, owner=visitor.owner)
