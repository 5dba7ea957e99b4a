"""Scheduler status, health, statistics, metrics, workers, pauses and actions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.responses import Response

from worker_service.jobs.counts import PlatformCount
from worker_service.jobs.history import Action
from worker_service.jobs.job import Job, Pause
from worker_service.services import job_control
from worker_service.services.health import Health, check_health
from worker_service.services.overview import Overview, Statistics, running_jobs
from worker_service.services.undo import undo_action
from worker_service.services.work_rates import HOURS_MOST, WorkRate, work_rates
from worker_service.web.api.endpoint import ApiRequest, ApiResponse, Items, endpoint
from worker_service.web.api.jobs import ChangedJobs, changed_jobs
from worker_service.web.api.metrics import MEDIA_TYPE
from worker_service.web.cached_value import CachedValue
from worker_service.web.parameters import DryRunQuery, about
from worker_service.web.resources import system as resource
from worker_service.web.resources.system import WorkersAndNodes

PauseScope = Annotated[Literal["type", "owner", "all"], about("all has no name.")]
PauseName = Annotated[str, about("Name of the type or owner.")]


class SchedulerStatus(Struct, frozen=True):
    running: Sequence[Job]
    pending_counts: Sequence[PlatformCount]
    worker_healthy: bool


class PauseBody(Struct, frozen=True, forbid_unknown_fields=True, rename={"length": "for"}):
    scope: PauseScope
    name: PauseName = ""
    length: Annotated[str, about("1h, 30m; default: until it is lifted.")] = ""
    reason: Annotated[str, about("Shown to users.")] = ""


class RatesQuery(Struct, frozen=True):
    hours: Annotated[int, Meta(ge=1, le=HOURS_MOST, description="How far back; default 24.")] = 24


class SlotsBody(Struct, frozen=True, forbid_unknown_fields=True):
    slots: Annotated[int, Meta(ge=1, le=job_control.SLOTS_MOST, description="Documents read at once.")]


class SlotsOfWorker(Struct, frozen=True):
    worker: str
    slots: int


class UnpauseQuery(Struct, frozen=True):
    scope: PauseScope
    name: PauseName = ""


class UnpausedScope(Struct, frozen=True):
    scope: str
    name: str


class PausedScope(UnpausedScope, frozen=True):
    until: datetime | None


class ActionsQuery(Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of actions; default 20.")] = 20


@endpoint("GET", "/api/scheduler/status", is_time_dependent=True)
def scheduler_status(call: ApiRequest) -> SchedulerStatus:
    """Return the running jobs by start, the number of pending jobs by platform, and whether a worker is alive."""
    owner = call.visitor.owner
    pending = call.session.overview.pending_by_platform(owner)
    return SchedulerStatus(running_jobs(call.session, owner), pending, Overview(call.session).has_recent_heartbeat)


@endpoint("GET", "/api/status", is_time_dependent=True, needs_all_owners=True)
def status(call: ApiRequest) -> Health:
    """Return the health for monitoring: the level is ok, warning, critical or unknown."""
    return check_health(Overview(call.session))


@endpoint("GET", "/api/stats", is_time_dependent=True, needs_all_owners=True)
def stats(call: ApiRequest) -> Statistics:
    """Return the number of jobs by type and status, of pending ones by platform, and what each owner stores."""
    # It counts all jobs, so concurrent requests share one result.
    cached_statistics: CachedValue[Statistics] = call.request.app.state.statistics
    return cached_statistics.get(call.session)


@endpoint("GET", "/api/rates", is_time_dependent=True, needs_all_owners=True)
def rates(call: ApiRequest, query: RatesQuery) -> Items[WorkRate]:
    """Return how many jobs of each type ended in the last hours, how long they waited, and how long they took."""
    return Items(work_rates(call.session, hours=query.hours))


@endpoint("GET", "/metrics", media="text/plain", is_time_dependent=True, needs_all_owners=True)
def metrics(call: ApiRequest) -> Response:
    """Return metrics for Prometheus, computed from the database."""
    cached_text: CachedValue[str] = call.request.app.state.metrics
    return Response(cached_text.get(call.session), media_type=MEDIA_TYPE)


@endpoint("GET", "/api/workers", is_time_dependent=True, needs_all_owners=True)
def workers(call: ApiRequest) -> WorkersAndNodes:
    """List the daemons on this database, whether each is alive, and the nodes of the cluster."""
    return resource.list_workers(call.session)


@endpoint("POST", "/api/workers/{name}/slots", needs_all_owners=True)
def set_slots(call: ApiRequest, body: SlotsBody) -> SlotsOfWorker:
    """Change how many documents a worker reads at once. Its next start resets it to the settings."""
    return SlotsOfWorker(job_control.set_slots(call.session, body.slots, call.path("name")), body.slots)


# ── Pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("GET", "/api/pauses", is_time_dependent=True)
def list_pauses(call: ApiRequest) -> Items[Pause]:
    """List the pauses."""
    return Items(job_control.list_pauses(call.session, call.visitor.owner))


@endpoint("POST", "/api/pauses", statuses=(201,))
def pause(call: ApiRequest, body: PauseBody) -> ApiResponse[PausedScope]:
    """Start no more jobs of a type, of an owner, or at all. Running jobs continue."""
    paused = resource.pause(
        call.session, call.visitor, body.scope, body.name, length=body.length or None, reason=body.reason or None
    )
    return ApiResponse(PausedScope(body.scope, body.name, paused.until), 201)


@endpoint("DELETE", "/api/pauses")
def unpause(call: ApiRequest, query: UnpauseQuery) -> UnpausedScope:
    """Lift a pause."""
    resource.unpause(call.session, call.visitor, query.scope, query.name)
    return UnpausedScope(query.scope, query.name)


# ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("GET", "/api/actions")
def list_actions(call: ApiRequest, query: ActionsQuery) -> Items[Action]:
    """List what users have changed, newest first."""
    return Items(resource.list_actions(call.session, call.visitor, query.limit))


@endpoint("POST", "/api/actions/{id}/undo")
def undo(call: ApiRequest, query: DryRunQuery) -> ChangedJobs | Action:
    """Undo an action for every job that has not changed since.

    Undoing another user's action needs the scope admin.
    """
    action = resource.undoable_action(call.session, call.visitor, call.id)
    if query.dry_run:
        return action
    done = undo_action(call.session, action)
    return replace(changed_jobs(done), batch=done.batch_id)
