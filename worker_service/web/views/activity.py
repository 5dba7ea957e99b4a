"""The Activity page: who changed what, with undo."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.services import job_control
from worker_service.web.access import Power, visitor_of
from worker_service.web.database_sessions import opened
from worker_service.web.views import page
from worker_service.web.views.forms import back_to, number, posted, sentence, told

_MOST = 100


def activity(request: Request) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        found = session.reading.actions(most=_MOST)
        return page(
            request,
            "activity.html",
            title="Activity",
            told=told(session, request),
            rows=[(one, sentence(one)) for one in found],
        )


def undo(request: Request, form: FormData) -> Response:
    visitor = visitor_of(request)
    with opened(request) as session:
        action = job_control.undoable(session, number(request.path_params["action_id"], "the number of an action"))
        if action.actor != visitor.name:
            visitor.must_be_of_all()
            visitor.must(Power.ADMIN)
        job_control.undo(session, action)
        return back_to("/jobs" if visitor.owner else "/activity", said="undone")


routes = [Route("/activity", activity), Route("/activity/{action_id}/undo", posted(undo), methods=["POST"])]
