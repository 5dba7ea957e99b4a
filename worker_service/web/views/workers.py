"""The Workers page: daemons, remote nodes, missing programs and pauses."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.jobs.model import Pause
from worker_service.services import job_control, overview
from worker_service.services.jobs import names
from worker_service.services.overview import title_of_pause, workers
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import opened
from worker_service.web.views import page
from worker_service.web.views.forms import back_to, posted, said, told
from worker_service.web.views.template_filters import command

_FLAGS = {"all": "--all", "owner": "--owner"}


class Paused(Struct, frozen=True):
    pause: Pause
    title: str
    command: str


def list_workers(request: Request) -> Response:
    visitor_of(request).must_be_of_all()
    with opened(request) as session:
        found = workers(session)
        lacking = [(one.job_type, one.missing or "", one.missing_remedy) for one in overview.lacking(session)]
        return page(
            request,
            "workers.html",
            title="Workers",
            told=told(session, request),
            workers=found,
            nodes=overview.nodes(session, found),
            pauses=_pauses(overview.pauses(session)),
            lacking=lacking,
            types=names(session, "handler", "") or names(session, "job_type", ""),
        )


def _pauses(pauses: Sequence[Pause]) -> Sequence[Paused]:
    found = []
    for one in pauses:
        words = [_FLAGS[one.scope]] if one.scope in _FLAGS else []
        title = title_of_pause(one.scope, one.name)
        found.append(Paused(one, title, command("unpause", *words, *([one.name] if one.name else []))))
    return found


def pause(request: Request, form: FormData) -> Response:
    visitor_of(request).must_be_of_all()
    scope, name = said(form, "scope"), said(form, "name").strip()
    if scope not in ("all", "type", "owner"):
        raise BadInput(f"{scope!r} cannot be paused: it is all, type or owner")
    if scope == "all" and name:
        raise BadInput("everything has no name", "leave it empty")
    if scope != "all" and not name:
        raise BadInput(f"say which {scope} to pause")
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
