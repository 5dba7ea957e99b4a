"""All of it together: the pages and endpoints, what guards them, and the server that they stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from worker_service import events
from worker_service.config import Settings
from worker_service.errors import PagemillError
from worker_service.web import system
from worker_service.web.access import Access
from worker_service.web.api import jobs
from worker_service.web.api import system as state
from worker_service.web.changes import Changes
from worker_service.web.guard import Forms, Guard
from worker_service.web.pages import STATIC
from worker_service.web.problems import confess, refuse, refuse_http
from worker_service.web.sessions import Sessions

THREADS = 8
"""As many answers are made at once, each with a session of its own."""

# Each module ends with its routes.
MODULES = (system, jobs, state)


def app(settings: Settings, *, log: events.Log | None = None) -> Starlette:
    made = Starlette(
        routes=routes(),
        middleware=[Middleware(Guard), Middleware(Access), Middleware(Forms)],
        exception_handlers={PagemillError: refuse, HTTPException: refuse_http, Exception: confess},
        lifespan=_lifespan,
    )
    made.state.settings, made.state.sessions = settings, Sessions(settings)
    made.state.changes = Changes(settings)
    made.state.log = log or events.begin_logging(settings.log_format)
    return made


def routes() -> Sequence[BaseRoute]:
    gathered = [route for module in MODULES for route in module.routes]
    return [*gathered, Mount("/static", StaticFiles(directory=STATIC), name="static")]


@asynccontextmanager
async def _lifespan(made: Starlette) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = THREADS
    try:
        yield
    finally:
        made.state.changes.close()
        made.state.sessions.close()
