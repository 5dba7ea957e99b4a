"""The pages Workers and Activity (changes, and undo)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from worker_service.jobs.history import Action
from worker_service.services.database import Session
from worker_service.services.overview import title_of_pause
from worker_service.services.undo import undo_action
from worker_service.web.access import visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.resources.system import (
    list_actions,
    list_pauses,
    list_workers,
    pause,
    undoable_action,
    unpause,
)
from worker_service.web.sign_in import safe_path
from worker_service.web.views import page, render
from worker_service.web.views.flash import describe_action, redirect

_ACTIONS_MAX = 100


# ── Workers and pauses ──────────────────────────────────────────────────────────────────────────────────────────────


def workers(request: Request, session: Session) -> Response:
    visitor = visitor_of(request)
    visitor.must_see_all_owners()
    found, reading = list_workers(session), session.reading
    return render(
        request,
        "workers.html",
        title="Workers",
        workers=found.items,
        nodes=found.nodes,
        pauses=[(one, title_of_pause(one.scope, one.name)) for one in list_pauses(session, visitor)],
        lacking=session.overview.missing_handlers(),
        types=reading.names("handler", "") or reading.names("job_type", ""),
    )


def add_pause(request: Request, session: Session) -> Response:
    form = {name: word.strip() for name, word in form_of(request).items()}
    scope, name = form.get("scope", ""), form.get("name", "")
    length, reason = form.get("length") or None, form.get("reason") or None
    pause(session, visitor_of(request), scope, name, length=length, reason=reason)
    return redirect(safe_path(form.get("back"), "/workers"), message="paused")


def lift_pause(request: Request, session: Session) -> Response:
    form = form_of(request)
    unpause(session, visitor_of(request), form.get("scope", ""), form.get("name", ""))
    return redirect(safe_path(form.get("back"), "/workers"), message="unpaused")


# ── Activity ────────────────────────────────────────────────────────────────────────────────────────────────────────


def activity(request: Request, session: Session) -> Response:
    actions = list_actions(session, visitor_of(request), _ACTIONS_MAX)
    return render(
        request,
        "activity.html",
        title="Activity",
        actions=_without_repeats([(one, describe_action(one)) for one in actions]),
    )


def _without_repeats(described: Sequence[tuple[Action, str]]) -> list[tuple[Action, str, int]]:
    """Join neighbours that say the same and cannot be undone into the newest and a count."""
    found: list[tuple[Action, str, int]] = []
    for action, description in described:
        newest, same, count = found[-1] if found else (None, "", 0)
        if newest and same == description and newest.actor == action.actor and not newest.opposite:
            found[-1] = (newest, same, count + 1)
        else:
            found.append((action, description, 1))
    return found


def undo(request: Request, session: Session) -> Response:
    undo_action(session, undoable_action(session, visitor_of(request), request.path_params["action_id"]))
    return redirect(safe_path(form_of(request).get("back", "/activity")), message="undone")


routes = [
    page("/workers", workers),
    page("/workers/pause", add_pause, methods=["POST"]),
    page("/workers/unpause", lift_pause, methods=["POST"]),
    page("/activity", activity),
    page("/activity/{action_id:id}/undo", undo, methods=["POST"]),
]
