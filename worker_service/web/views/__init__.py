"""The web pages.

Templates escape every value; scripts and styles are files, since the Content-Security-Policy allows no others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path

from anyio import to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from worker_service import VERSION
from worker_service.jobs.documents import IndexStatus
from worker_service.services.database import Session
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.views.flash import Flash, flash_of
from worker_service.web.views.template_filters import register_filters

STATIC = Path(__file__).with_name("static")

NAVIGATION = (("/documents", "Documents"), ("/batches", "Batches"), ("/keywords", "Keywords"), ("/queue", "Queue"))

QUEUE = (
    ("/queue", "Now"),
    ("/failures", "Failures"),
    ("/schedules", "Schedules"),
    ("/workers", "Workers"),
    ("/activity", "Activity"),
    ("/jobs", "All jobs"),
)

FOR_ALL_OWNERS = ("/workers", "/system")


class Place(Struct, frozen=True):
    path: str
    label: str
    current: str
    """Value of aria-current."""
    count: int = 0


@cache
def templates() -> Environment:
    loader = PackageLoader("worker_service.web.views")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    register_filters(made)
    return made


def render(
    request: Request,
    template: str,
    /,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: object,
) -> HTMLResponse:
    """Blocks: it counts the documents being read, unless the page shows an error, which may be the database's."""
    visitor = request.scope.get("state", {}).get("visitor")
    path = request.url.path
    is_fine = visitor is not None and status < HTTPStatus.BAD_REQUEST
    being_read, failures, flash = _news(request, in_queue=_is_tab(path)) if is_fine else (0, 0, None)
    shared = {
        "request": request,
        "visitor": visitor,
        "places": _places(path),
        "queue_tabs": _queue_tabs(path, failures, has_all_owners=visitor is None or visitor.owner is None),
        "being_read": being_read,
        "version": VERSION,
        "flash": flash,
    }
    return HTMLResponse(templates().get_template(template).render(shared | values), status, dict(headers or {}))


def _places(path: str) -> list[Place]:
    queue = tuple(one for one, _ in QUEUE)
    return [
        Place(place, label, "" if not _contains(queue if place == "/queue" else (place,), path)
              else "page" if path == place and place != "/queue" else "true")
        for place, label in NAVIGATION
    ]  # fmt: skip


def _contains(places: Sequence[str], path: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _is_tab(path: str) -> bool:
    return path in [one for one, _ in QUEUE]


def _queue_tabs(path: str, failures: int, *, has_all_owners: bool) -> list[Place]:
    if not _is_tab(path):
        return []
    return [
        Place(tab, label, "page" if path == tab else "", failures if tab == "/failures" else 0)
        for tab, label in QUEUE
        if has_all_owners or tab not in FOR_ALL_OWNERS
    ]


def _news(request: Request, *, in_queue: bool) -> tuple[int, int, Flash | None]:
    """Return the documents being read, in the Queue the failures that need attention, and what was just done."""
    owner = visitor_of(request).owner
    with session_of(request) as session:
        failures = sum(session.reading.count_failures(owner).values()) if in_queue else 0
        return session.library.count(IndexStatus.INDEXING, owner=owner), failures, flash_of(session, request)


def page(path: str, respond: Callable[[Request, Session], Response], methods: Sequence[str] = ("GET",)) -> Route:
    """Return a route whose function gets a session for the visitor."""

    def respond_in_session(request: Request) -> Response:
        with session_of(request) as session:
            return respond(request, session)

    return Route(path, respond_in_session, methods=list(methods))


def in_rendering_thread(respond: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Answer in a thread of those that draw pages and write workbooks, so that others are answered meanwhile."""

    async def respond_later(request: Request) -> Response:
        return await to_thread.run_sync(respond, request, limiter=request.app.state.rendering)

    return respond_later
