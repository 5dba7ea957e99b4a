"""Scheduler status, health, statistics, errors, workers, pauses, schedules and actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from worker_service.base.errors import BadInput, Refused
from worker_service.jobs.counts import ErrorCount
from worker_service.jobs.history import Action
from worker_service.jobs.job import Pause
from worker_service.services import health, job_control, overview, schedules
from worker_service.services.health import Health
from worker_service.services.overview import CheckedWorker, Overview, SchedulerStatus, Statistics
from worker_service.services.schedules import Begun, ScheduleState
from worker_service.web.access import Power, Visitor
from worker_service.web.api.endpoint import TEXT, Answer, Call, Endpoint, Field, Param, Schema, endpoint
from worker_service.web.api.jobs import DONE
from worker_service.web.api.metrics import Kept
from worker_service.web.api.selecting import DRY_RUN
from worker_service.web.error_responses import NotAllowed

_SCOPES = ("type", "owner", "all")
_SCOPE: Schema = {**TEXT, "enum": list(_SCOPES)}


def _items(kind: Any) -> Any:
    return {"type": "object", "properties": {"items": Sequence[kind]}, "required": ["items"]}


@endpoint(
    "GET",
    "/api/scheduler/status",
    "What runs, in the order in which it began; how many wait, by platform; whether a worker lives.",
    answer=SchedulerStatus,
    is_of_the_moment=True,
)
def scheduler_status(call: Call) -> SchedulerStatus:
    return overview.scheduler_status(call.session, call.visitor.owner)


@endpoint(
    "GET",
    "/api/status",
    "Whether all is well, for monitoring: level is ok, warning, critical or unknown.",
    answer=Health,
    is_of_the_moment=True,
    is_of_all=True,
)
def status(call: Call) -> Any:
    return health.check_health(Overview(call.session))


@endpoint(
    "GET",
    "/api/stats",
    "How many jobs there are, by type and status; pending ones by platform; what each owner keeps.",
    answer=Statistics,
    is_of_the_moment=True,
    is_of_all=True,
)
def stats(call: Call) -> Statistics:
    # It counts all jobs, so concurrent requests share one result.
    numbers: Kept[Statistics] = call.request.app.state.numbers
    return numbers.value(call.session)


@endpoint(
    "GET",
    "/api/errors",
    "What has failed, by code and type, the most frequent first.",
    query=(Param("since", "2h (ago), or 2026-11-18 10:00 (UTC); 1d unless given"),),
    answer=_items(ErrorCount),
    refusals=(400,),
    is_of_the_moment=True,
)
def errors(call: Call) -> Any:
    return {"items": overview.errors(call.session, since=call.query.get("since", "1d"), owner=call.visitor.owner)}


@endpoint(
    "GET",
    "/api/workers",
    "The daemons on this database: what they run, and whether they live.",
    answer=_items(CheckedWorker),
    is_of_the_moment=True,
    is_of_all=True,
)
def workers(call: Call) -> Any:
    found = Overview(call.session)
    return {"items": found.workers, "nodes": found.nodes}


# ── Pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("GET", "/api/pauses", "What starts no more.", answer=_items(Pause), is_of_the_moment=True)
def list_pauses(call: Call) -> Any:
    found = call.session.reading.pauses()
    return {"items": [one for one in found if one.scope != "owner" or call.visitor.may_see(one.name)]}


@endpoint(
    "POST",
    "/api/pauses",
    "Start no more jobs of a type, of an owner, or at all. What runs goes on.",
    body={
        "scope": Field(_SCOPE, "all has no name", is_needed=True),
        "name": Field(TEXT, "of the type, or the owner"),
        "for": Field(TEXT, "1h, 30m; else until somebody lifts it"),
        "reason": Field(TEXT, "shown to everybody who asks why"),
    },
    answer={
        "type": "object",
        "properties": {"scope": TEXT, "name": TEXT, "until": {"type": ["string", "null"]}},
        "required": ["scope", "name", "until"],
    },
    statuses=(201,),
    refusals=(400, 403),
)
def pause(call: Call) -> Answer:
    scope, name = _scope(call.visitor, call.body["scope"], call.body.get("name", ""))
    length = call.body.get("for") or None
    paused = job_control.pause(call.session, scope, name, length=length, reason=call.body.get("reason"))
    return Answer({"scope": scope, "name": name, "until": paused.until}, 201)


@endpoint(
    "DELETE",
    "/api/pauses",
    "Lift a pause.",
    query=(Param("scope", "all has no name", _SCOPE, is_needed=True), Param("name", "of the type, or the owner")),
    answer={"type": "object", "properties": {"scope": TEXT, "name": TEXT}, "required": ["scope", "name"]},
    refusals=(400, 403, 409),
)
def unpause(call: Call) -> Any:
    scope, name = _scope(call.visitor, call.query["scope"], call.query.get("name", ""))
    job_control.unpause(call.session, scope, name)
    return {"scope": scope, "name": name}


def _scope(visitor: Visitor, scope: str, name: str) -> tuple[str, str]:
    if (scope == "all") == bool(name):
        raise BadInput("a pause needs the scope all, or the name of a type or an owner")
    if visitor.owner is not None and (scope, name) != ("owner", visitor.owner):
        raise NotAllowed(visitor.limit)
    return scope, name


# ── Schedules ───────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint(
    "GET",
    "/api/schedules",
    "What is begun at which times, and how each stands.",
    answer=_items(ScheduleState),
    is_of_the_moment=True,
)
def list_schedules(call: Call) -> Any:
    mine = [one for one in schedules.list_schedules(call.session) if call.visitor.may_see(one.owner)]
    return {"items": [_seen(call.visitor, one) for one in mine]}


def _seen(visitor: Visitor, one: ScheduleState) -> ScheduleState:
    """Hide the last job and batch if they belong to another owner."""
    job = one.job if one.job is not None and visitor.may_see(one.job.owner) else None
    batch = one.batch if one.batch is not None and visitor.may_see(one.batch.owner) else None
    return replace(one, job=job, batch=batch)


@endpoint(
    "POST",
    "/api/schedules/{name}/run",
    "Begin it now, beside its times.",
    answer=Begun,
    statuses=(201,),
    refusals=(400, 409),
)
def run_schedule(call: Call) -> Answer:
    name = call.path("name")
    states = {one.name: one for one in schedules.list_schedules(call.session)}
    if call.visitor.owner is not None and (name not in states or states[name].owner != call.visitor.owner):
        raise BadInput(f"there is no schedule {name!r}")
    return Answer(schedules.run_now(call.session, name), 201)


# ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint(
    "GET",
    "/api/actions",
    "What people have changed, the newest first: who, and what.",
    query=(Param("limit", "20 unless given", {"type": "integer", "minimum": 1, "maximum": 1000}),),
    answer=_items(Action),
)
def list_actions(call: Call) -> Any:
    most = call.query.get("limit", 20)
    if call.visitor.owner is None:
        return {"items": call.session.reading.actions(most=most)}
    # Other users' actions may concern other owners' jobs, so only the visitor's own are listed.
    mine = [one for one in call.session.reading.actions(most=1000) if one.actor == call.visitor.name]
    return {"items": mine[:most]}


@endpoint(
    "POST",
    "/api/actions/{id}/undo",
    "Do the opposite to every job that has not moved since. What others did is undone with the scope admin.",
    query=(DRY_RUN,),
    answer={"anyOf": [DONE, Action]},
    refusals=(403, 409),
)
def undo(call: Call) -> Any:
    visitor = call.visitor
    is_theirs = any(one.id == call.id and one.actor == visitor.name for one in call.session.reading.actions(most=1000))
    if not is_theirs and visitor.owner is not None:
        raise Refused(f"there is no action {call.id} to undo", "see pagemill undo --list")
    if not is_theirs:
        visitor.must(Power.ADMIN)
    action = job_control.undoable(call.session, call.id)
    if call.query.get("dry_run"):
        return action
    done = job_control.undo(call.session, action)
    refused = [{"id": job_id, "reason": reason} for job_id, reason in done.refused.items()]
    return {
        "action": done.action_id,
        "items": done.job_ids,
        "asked": done.asked,
        "refused": refused,
        "batch": done.batch_id,
    }


ENDPOINTS: Sequence[Endpoint] = (
    scheduler_status, status, stats, errors, workers, list_pauses, pause, unpause, list_schedules, run_schedule,
    list_actions, undo,
)  # fmt: skip
routes = [one.route for one in ENDPOINTS]
