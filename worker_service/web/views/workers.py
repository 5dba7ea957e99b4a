"""The Workers page: daemons, remote nodes, missing programs and pauses."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.services import job_control
from worker_service.services.overview import Overview, title_of_pause
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import opened
from worker_service.web.views import page
from worker_service.web.views.forms import back_to, posted, said, told


def list_workers(request: Request) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        overview = Overview(session)
        lacking = [(one.job_type, one.missing or "", one.missing_remedy) for one in session.reading.handlers_lacking()]
        return page(
            request,
            "workers.html",
            title="Workers",
            told=told(session, request),
            workers=overview.workers,
            nodes=overview.nodes,
            pauses=[(one, title_of_pause(one.scope, one.name)) for one in overview.pauses],
            lacking=lacking,
            types=session.reading.names("handler", "") or session.reading.names("job_type", ""),
        )


def pause(request: Request, form: FormData) -> Response:
    visitor_of(request).must_be_of_all()
    scope, name = said(form, "scope"), said(form, "name").strip()
    if scope not in ("all", "type", "owner"):
        raise BadInput(f"{scope!r} is not a scope: choose all, type or owner")
    if scope == "all" and name:
        raise BadInput("a pause of everything has no name", "leave the name empty")
    if scope != "all" and not name:
        raise BadInput(f"enter the name of the {scope} to pause")
    with opened(request) as session:
        reason, length = said(form, "reason").strip() or None, said(form, "length").strip() or None
        job_control.pause(session, scope, name, length=length, reason=reason)
        return back_to("/workers", said="paused")


def unpause(request: Request, form: FormData) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        job_control.unpause(session, said(form, "scope"), said(form, "name"))
        return back_to("/workers", said="unpaused")


routes = [
    Route("/workers", list_workers),
    Route("/workers/pause", posted(pause), methods=["POST"]),
    Route("/workers/unpause", posted(unpause), methods=["POST"]),
]
