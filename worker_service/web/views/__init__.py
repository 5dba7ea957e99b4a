"""Shared by all pages: templates, navigation, routes with a session.

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
from worker_service.services.session import Session
from worker_service.web.database_sessions import session_of
from worker_service.web.views.flash_messages import flash_of
from worker_service.web.views.template_filters import register_filters

STATIC = Path(__file__).with_name("static")

NAVIGATION = (("/documents", "Documents"), ("/batches", "Batches"), ("/keywords", "Keywords"), ("/queue", "Queue"))

QUEUE_TABS = (
    ("/queue", "Now"),
    ("/failures", "Failures"),
    ("/schedules", "Schedules"),
    ("/workers", "Workers"),
    ("/activity", "Activity"),
    ("/jobs", "All jobs"),
)

_TABS_FOR_ALL_OWNERS = ("/workers",)


class NavigationLink(Struct, frozen=True):
    path: str
    label: str
    current: str
    """Value of aria-current."""
    count: int = 0


@cache
def templates() -> Environment:
    loader = PackageLoader("worker_service.web.views")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    register_filters(environment)
    return environment


def render(
    request: Request,
    template: str,
    /,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: object,
) -> HTMLResponse:
    """Read the database only for a page without an error, which may be the database's."""
    visitor = request.scope.get("state", {}).get("visitor")
    path = request.url.path
    documents_being_read, failure_count, flash = 0, 0, None
    if visitor is not None and status < HTTPStatus.BAD_REQUEST:
        with session_of(request) as session:
            documents_being_read = session.library.count(IndexStatus.INDEXING, owner=visitor.owner)
            if _is_queue_tab(path):
                failure_count = sum(session.job_queries.count_failures(visitor.owner).values())
            flash = flash_of(session, request)
    shared = {
        "request": request,
        "visitor": visitor,
        "navigation": _navigation(path),
        "queue_tabs": _queue_tabs(path, failure_count, has_all_owners=visitor is None or visitor.owner is None),
        "documents_being_read": documents_being_read,
        "version": VERSION,
        "flash": flash,
    }
    return HTMLResponse(templates().get_template(template).render(shared | values), status, dict(headers or {}))


def _navigation(path: str) -> list[NavigationLink]:
    return [NavigationLink(target, label, _aria_current(target, path)) for target, label in NAVIGATION]


def _aria_current(target: str, path: str) -> str:
    if target == "/queue":
        return "true" if any(_is_at_or_below(tab, path) for tab, _ in QUEUE_TABS) else ""
    if path == target:
        return "page"
    return "true" if _is_at_or_below(target, path) else ""


def _is_at_or_below(target: str, path: str) -> bool:
    return path == target or path.startswith(f"{target}/")


def _is_queue_tab(path: str) -> bool:
    return path in dict(QUEUE_TABS)


def _queue_tabs(path: str, failure_count: int, *, has_all_owners: bool) -> list[NavigationLink]:
    if not _is_queue_tab(path):
        return []
    return [
        NavigationLink(tab, label, "page" if path == tab else "", failure_count if tab == "/failures" else 0)
        for tab, label in QUEUE_TABS
        if has_all_owners or tab not in _TABS_FOR_ALL_OWNERS
    ]


def page_route(path: str, respond: Callable[[Request, Session], Response], methods: Sequence[str] = ("GET",)) -> Route:
    def respond_in_session(request: Request) -> Response:
        with session_of(request) as session:
            return respond(request, session)

    return Route(path, respond_in_session, methods=list(methods))


def in_rendering_thread(respond: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Run `respond` in the few threads for slow work, so that others stay free for fast requests."""

    async def respond_later(request: Request) -> Response:
        return await to_thread.run_sync(respond, request, limiter=request.app.state.rendering)

    return respond_later
