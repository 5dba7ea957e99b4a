"""Schedules: list, make, change and run them. Those of the settings file are only listed and run."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from worker_service.services import schedules
from worker_service.services.schedule_ticks import StartedSchedule
from worker_service.services.schedules import ScheduleState
from worker_service.web.api.endpoint import ApiRequest, ApiResponse, Items, endpoint
from worker_service.web.parameters import FilledText, about
from worker_service.web.resources import schedules as resource

Definition = Annotated[
    dict[str, Any],
    about("The fields of a [[schedule]] table: cron, zone, priority, missed, and one of crawl, job and batch."),
]


class NewSchedule(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[FilledText, about("Unique.")]
    definition: Definition
    owner: Annotated[str, about("Owner of what it starts.")] | None = None


class ScheduleChange(Struct, frozen=True, forbid_unknown_fields=True):
    definition: Definition


class RemovedSchedule(Struct, frozen=True):
    removed: str


@endpoint("GET", "/api/schedules", is_time_dependent=True)
def list_schedules(call: ApiRequest) -> Items[ScheduleState]:
    """List the schedules with their last and next runs."""
    return Items(resource.list_schedules(call.session, call.visitor))


@endpoint("POST", "/api/schedules", statuses=(201,))
def add_schedule(call: ApiRequest, body: NewSchedule) -> ApiResponse[ScheduleState]:
    """Make a schedule. With `crawl`, it reads what is new in a folder each time."""
    return ApiResponse(resource.add_schedule(call.session, call.visitor, body.name, body.definition, body.owner), 201)


@endpoint("POST", "/api/schedules/{name}")
def change_schedule(call: ApiRequest, body: ScheduleChange) -> ScheduleState:
    """Replace the definition of a schedule."""
    return resource.change_schedule(call.session, call.visitor, call.path("name"), body.definition)


@endpoint("DELETE", "/api/schedules/{name}")
def remove_schedule(call: ApiRequest) -> RemovedSchedule:
    """Remove a schedule. Undo brings it back."""
    schedules.remove_schedule(call.session, call.path("name"), owner=call.visitor.owner)
    return RemovedSchedule(call.path("name"))


@endpoint("POST", "/api/schedules/{name}/pause")
def pause_schedule(call: ApiRequest) -> ScheduleState:
    """Start nothing until it is resumed."""
    return schedules.pause_schedule(call.session, call.path("name"), owner=call.visitor.owner)


@endpoint("POST", "/api/schedules/{name}/resume")
def resume_schedule(call: ApiRequest) -> ScheduleState:
    """Run a paused schedule again. What was missed meanwhile is not made up for."""
    return schedules.resume_schedule(call.session, call.path("name"), owner=call.visitor.owner)


@endpoint("POST", "/api/schedules/{name}/run", statuses=(201,))
def run_schedule(call: ApiRequest) -> ApiResponse[StartedSchedule]:
    """Run a schedule now. Its next runs stay as they are."""
    return ApiResponse(resource.run_schedule(call.session, call.visitor, call.path("name")), 201)
