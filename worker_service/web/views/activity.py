"""The Activity page: who changed what, with undo."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.services import job_control
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.resources.system import list_actions, undoable_action
from worker_service.web.views import render
from worker_service.web.views.flash import describe_action, flash_of, redirect

_ACTIONS_MAX = 100


def activity(request: Request) -> Response:
    with session_of(request) as session:
        actions = list_actions(session, visitor_of(request), _ACTIONS_MAX)
        return render(
            request,
            "activity.html",
            title="Activity",
            flash=flash_of(session, request),
            actions=[(one, describe_action(one)) for one in actions],
        )


def undo(request: Request) -> Response:
    with session_of(request) as session:
        job_control.undo(session, undoable_action(session, visitor_of(request), request.path_params["action_id"]))
    return redirect("/activity", message="undone")


routes = [Route("/activity", activity), Route("/activity/{action_id:id}/undo", undo, methods=["POST"])]
