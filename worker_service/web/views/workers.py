"""The Workers page, with pauses, and the Activity page, with undo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from worker_service.jobs.history import Action
from worker_service.services.job_control import list_pauses
from worker_service.services.overview import title_of_pause
from worker_service.services.session import Session
from worker_service.services.undo import undo_action
from worker_service.web.access import visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.resources.system import list_actions, list_workers, pause, undoable_action, unpause
from worker_service.web.sign_in import safe_path
from worker_service.web.views import page_route, render
from worker_service.web.views.flash_messages import describe_action, redirect

_ACTIONS_MAX = 100


# ── Workers and pauses ──────────────────────────────────────────────────────────────────────────────────────────────


def workers(request: Request, session: Session) -> Response:
    visitor_of(request).require_all_owners()
    listing = list_workers(session)
    # Without any registered handler, offer the types of the jobs that exist.
    types = session.job_queries.names("handler", prefix="") or session.job_queries.names("job_type", prefix="")
    return render(
        request,
        "workers.html",
        title="Workers",
        workers=listing.items,
        nodes=listing.nodes,
        pauses=[(pause, title_of_pause(pause.scope, pause.name)) for pause in list_pauses(session)],
        missing_handlers=session.overview.missing_handlers(),
        types=types,
    )


def add_pause(request: Request, session: Session) -> Response:
    form = {name: text.strip() for name, text in form_of(request).items()}
    pause(
        session,
        visitor_of(request),
        form.get("scope", ""),
        form.get("name", ""),
        length=form.get("length") or None,
        reason=form.get("reason") or None,
    )
    return redirect(safe_path(form.get("back"), "/workers"), message="paused")


def lift_pause(request: Request, session: Session) -> Response:
    form = form_of(request)
    unpause(session, visitor_of(request), form.get("scope", ""), form.get("name", ""))
    return redirect(safe_path(form.get("back"), "/workers"), message="unpaused")


# ── Activity ────────────────────────────────────────────────────────────────────────────────────────────────────────


def activity(request: Request, session: Session) -> Response:
    actions = list_actions(session, visitor_of(request), _ACTIONS_MAX)
    return render(request, "activity.html", title="Activity", rows=_activity_rows(actions))


class ActivityRow(NamedTuple):
    newest_action: Action
    description: str
    times: int = 1


def _activity_rows(actions: Sequence[Action]) -> Sequence[ActivityRow]:
    """Return one row for consecutive equal actions that cannot be undone."""
    rows: list[ActivityRow] = []
    for action in actions:
        row = ActivityRow(action, describe_action(action))
        if rows and _is_repeat(rows[-1], row):
            rows[-1] = rows[-1]._replace(times=rows[-1].times + 1)
        else:
            rows.append(row)
    return rows


def _is_repeat(newer: ActivityRow, row: ActivityRow) -> bool:
    can_undo = newer.newest_action.opposite is not None
    return not can_undo and (newer.newest_action.actor, newer.description) == (row.newest_action.actor, row.description)


def undo(request: Request, session: Session) -> Response:
    undo_action(session, undoable_action(session, visitor_of(request), request.path_params["action_id"]))
    return redirect(safe_path(form_of(request).get("back"), "/activity"), message="undone")


routes = [
    page_route("/workers", workers),
    page_route("/workers/pause", add_pause, methods=["POST"]),
    page_route("/workers/unpause", lift_pause, methods=["POST"]),
    page_route("/activity", activity),
    page_route("/activity/{action_id:id}/undo", undo, methods=["POST"]),
]
