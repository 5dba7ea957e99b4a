"""The Workers page: daemons, remote nodes, missing programs and pauses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.services.overview import title_of_pause
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import form_of
from worker_service.web.resources.system import list_pauses, list_workers, pause, unpause
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of, redirect


def workers_page(request: Request) -> Response:
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
            lacking=reading.handlers_lacking(),
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


routes = [
    Route("/workers", workers_page),
    Route("/workers/pause", add_pause, methods=["POST"]),
    Route("/workers/unpause", lift_pause, methods=["POST"]),
]
