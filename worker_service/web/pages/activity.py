"""Who changed what in bulk, and how to take it back."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.operations import steer
from worker_service.operations.steer import DONE
from worker_service.plurals import counted
from worker_service.web.access import Power, visitor_of
from worker_service.web.pages import page
from worker_service.web.pages.asking import back_to, number, posted, told
from worker_service.web.sessions import opened

_MOST = 100


def activity(request: Request) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        found = steer.actions(session, most=_MOST)
        said = [
            counted(one.documents, "document") + " removed"
            if one.verb == "remove"
            else f"{counted(one.jobs, 'job')} {DONE.get(one.verb, one.verb)}"
            for one in found
        ]
        return page(
            request,
            "activity.html",
            title="Activity",
            told=told(session, request),
            rows=list(zip(found, said, strict=True)),
        )


def undo(request: Request, form: FormData) -> Response:
    visitor = visitor_of(request)
    with opened(request) as session:
        action = steer.undoable(session, number(request.path_params["action_id"], "the number of an action"))
        if action.actor != visitor.name:
            visitor.must_be_of_all()
            visitor.must(Power.ADMIN)
        steer.undo(session, action)
        return back_to("/jobs" if visitor.owner else "/activity", said="undone")


routes = [Route("/activity", activity), Route("/activity/{action_id}/undo", posted(undo), methods=["POST"])]
