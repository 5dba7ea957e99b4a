"""The pages about the service: errors, workers and pauses, schedules, and the history of changes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.humanize import counted
from worker_service.jobs.counts import ErrorCount
from worker_service.jobs.history import Action
from worker_service.services import schedules
from worker_service.services.overview import title_of_pause
from worker_service.services.undo import undo_action
from worker_service.settings.schedules import EXAMPLE
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.schedules import list_schedules, run_schedule
from worker_service.web.resources.system import (
    ErrorsQuery,
    list_actions,
    list_errors,
    list_pauses,
    list_workers,
    pause,
    undoable_action,
    unpause,
)
from worker_service.web.views import render
from worker_service.web.views.flash import describe_action, flash_of, redirect

_ACTIONS_MAX = 100
PERIODS = (("1h", "Last hour"), ("1d", "Last 24 hours"), ("7d", "Last 7 days"), ("30d", "Last 30 days"))


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ErrorGroup(Struct, frozen=True):
    code: str
    jobs: int
    types: Sequence[str]
    """Number of jobs of each type."""
    newest: ErrorCount
    filters: Sequence[tuple[str, str]]
    """Job filters that select these failures."""


def errors(request: Request) -> Response:
    query = read_known(request.query_params.multi_items(), ErrorsQuery)
    with session_of(request) as session:
        found = list_errors(session, visitor_of(request), query)
        return render(
            request,
            "errors.html",
            title="Errors",
            flash=flash_of(session, request),
            since=query.since,
            periods=PERIODS,
            groups=_grouped_by_code(found, query.since),
            total=counted(sum(one.jobs for one in found), "job"),
        )


def _grouped_by_code(found: Sequence[ErrorCount], since: str) -> Sequence[ErrorGroup]:
    by_code: dict[str, list[ErrorCount]] = {}
    for one in found:
        by_code.setdefault(one.code or "", []).append(one)
    groups = [_group(code, counts, since) for code, counts in by_code.items()]
    return sorted(groups, key=lambda group: -group.jobs)


def _group(code: str, counts: Sequence[ErrorCount], since: str) -> ErrorGroup:
    filters = [("status", "failed"), ("since", since), *([("error", code)] if code else [])]
    types = [f"{one.jobs:,} {one.job_type}" for one in counts]
    newest = max(counts, key=lambda one: one.newest_at)
    return ErrorGroup(code, sum(one.jobs for one in counts), types, newest, filters)


# ── Workers and pauses ──────────────────────────────────────────────────────────────────────────────────────────────


def workers(request: Request) -> Response:
    visitor = visitor_of(request)
    visitor.must_see_all_owners()
    with session_of(request) as session:
        found, reading = list_workers(session), session.reading
        return render(
            request,
            "workers.html",
            title="Workers",
            flash=flash_of(session, request),
            workers=found.items,
            nodes=found.nodes,
            pauses=[(one, title_of_pause(one.scope, one.name)) for one in list_pauses(session, visitor)],
            lacking=session.overview.handlers_lacking(),
            types=reading.names("handler", "") or reading.names("job_type", ""),
        )


def add_pause(request: Request) -> Response:
    form = {name: word.strip() for name, word in form_of(request).items()}
    scope, name = form.get("scope", ""), form.get("name", "")
    length, reason = form.get("length") or None, form.get("reason") or None
    with session_of(request) as session:
        pause(session, visitor_of(request), scope, name, length=length, reason=reason)
    return redirect("/workers", message="paused")


def lift_pause(request: Request) -> Response:
    form = form_of(request)
    with session_of(request) as session:
        unpause(session, visitor_of(request), form.get("scope", ""), form.get("name", ""))
    return redirect("/workers", message="unpaused")


# ── Schedules ───────────────────────────────────────────────────────────────────────────────────────────────────────


def schedules_page(request: Request) -> Response:
    with session_of(request) as session:
        found = list_schedules(session, visitor_of(request))
        return render(
            request,
            "schedules.html",
            title="Schedules",
            flash=flash_of(session, request),
            schedules=found,
            is_scheduler_off=any(one.is_waiting for one in found),
            how_to_start=schedules.TICKS,
            example=EXAMPLE,
            settings_file=str(session.settings.file or ""),
        )


def run_schedule_now(request: Request) -> Response:
    with session_of(request) as session:
        started = run_schedule(session, visitor_of(request), form_of(request).get("name", ""))
    if started.batch_id is not None:
        return redirect(f"/batches/{started.batch_id}", message="started")
    return redirect(f"/jobs/{started.job_id}", message="existing" if started.existing else "started")


# ── Activity ────────────────────────────────────────────────────────────────────────────────────────────────────────


def activity(request: Request) -> Response:
    with session_of(request) as session:
        actions = list_actions(session, visitor_of(request), _ACTIONS_MAX)
        return render(
            request,
            "activity.html",
            title="Activity",
            flash=flash_of(session, request),
            actions=_without_repeats([(one, describe_action(one)) for one in actions]),
        )


def _without_repeats(described: Sequence[tuple[Action, str]]) -> list[tuple[Action, str, int]]:
    """Join neighbours that say the same and cannot be undone, such as sign-in links, into the newest and a count."""
    found: list[tuple[Action, str, int]] = []
    for action, description in described:
        newest, same, count = found[-1] if found else (None, "", 0)
        if newest and same == description and newest.actor == action.actor and not newest.opposite:
            found[-1] = (newest, same, count + 1)
        else:
            found.append((action, description, 1))
    return found


def undo(request: Request) -> Response:
    with session_of(request) as session:
        undo_action(session, undoable_action(session, visitor_of(request), request.path_params["action_id"]))
    return redirect("/activity", message="undone")


routes = [
    Route("/errors", errors),
    Route("/workers", workers),
    Route("/workers/pause", add_pause, methods=["POST"]),
    Route("/workers/unpause", lift_pause, methods=["POST"]),
    Route("/schedules", schedules_page),
    Route("/schedules/run-now", run_schedule_now, methods=["POST"]),
    Route("/activity", activity),
    Route("/activity/{action_id:id}/undo", undo, methods=["POST"]),
]
