"""The ASGI application: routes, middleware, background chores and the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from anyio import CapacityLimiter
from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from worker_service.base import events
from worker_service.base.errors import PagemillError
from worker_service.services import tokens, uploads
from worker_service.services.database import open_session
from worker_service.services.overview import statistics
from worker_service.services.page_images import Drawer
from worker_service.services.server_address import told_where
from worker_service.settings.config import Settings
from worker_service.settings.value_types import LISTEN
from worker_service.web import sign_in
from worker_service.web.access import Access, Failures, Uses
from worker_service.web.api import openapi
from worker_service.web.api.events import Feed
from worker_service.web.api.metrics import Kept, kept
from worker_service.web.changes import Changes
from worker_service.web.database_sessions import Sessions
from worker_service.web.error_responses import confess, refuse, refuse_http
from worker_service.web.http_server import open_socket, server
from worker_service.web.middleware import CHANGES_AT_ONCE, Guard, Sent
from worker_service.web.signing import key_beside
from worker_service.web.views import (
    STATIC,
    activity,
    batches,
    documents,
    errors,
    home,
    jobs,
    keywords,
    schedules,
    workers,
)
from worker_service.web.views import uploads as upload_page

THREADS = 8
"""Threads that answer requests; each uses one database session at a time."""

DRAWN_AT_ONCE = 3
"""Requests that may wait for a page image or a workbook, in threads outside `THREADS`."""

NOTED_SECONDS = 60.0
"""Interval at which the last use of each token is written."""

SWEPT_SECONDS = 600.0
"""Interval at which unused uploads are removed. Each sweep reads all documents."""

# Each module ends with its routes.
PAGES = (home, documents, upload_page, batches, jobs, errors, workers, schedules, keywords, activity)
MODULES = (sign_in, *openapi.MODULES, *PAGES)


def app(settings: Settings, *, log: events.Log | None = None) -> Starlette:
    made = Starlette(
        routes=routes(),
        middleware=[*_cross_origin(settings), Middleware(Guard), Middleware(Access), Middleware(Sent)],
        exception_handlers={PagemillError: refuse, HTTPException: refuse_http, Exception: confess},
        lifespan=_lifespan,
    )
    made.state.settings, made.state.sessions = settings, Sessions(settings)
    made.state.changes, made.state.key = Changes(settings), key_beside(settings.database)
    made.state.failures, made.state.uses = Failures(), Uses()
    made.state.drawer, made.state.turns = Drawer(settings), asyncio.Semaphore(CHANGES_AT_ONCE)
    made.state.feed, made.state.metrics, made.state.numbers = Feed(made), kept(), Kept(statistics)
    made.state.log = log or events.begin_logging(settings.log_format)
    return made


def _cross_origin(settings: Settings) -> Sequence[Middleware]:
    """Allow pages of `web_origins` to read responses to requests with a token. Cookies do not work for them."""
    if not settings.web_origins:
        return ()
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.web_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    ]


def routes() -> Sequence[BaseRoute]:
    gathered = [route for module in MODULES for route in module.routes]
    return [
        Route("/healthz", _healthz),
        Route("/readyz", _readyz),
        *gathered,
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]


async def _healthz(_: Request) -> PlainTextResponse:
    """Answer that this process is alive. Needs no token."""
    return PlainTextResponse("ok\n")


def _readyz(request: Request) -> PlainTextResponse:
    """Answer once the database can be opened at this version's schema. Needs no token."""
    with request.app.state.sessions.opened("web"):
        return PlainTextResponse("ready\n")


@asynccontextmanager
async def _lifespan(made: Starlette) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = THREADS
    made.state.drawing = CapacityLimiter(DRAWN_AT_ONCE)
    chores = [
        asyncio.create_task(_again_and_again(NOTED_SECONDS, _note_used, made)),
        asyncio.create_task(_again_and_again(SWEPT_SECONDS, _sweep, made)),
    ]
    try:
        yield
    finally:
        for chore in chores:
            chore.cancel()
        await run_in_threadpool(_note_used, made)
        made.state.drawer.close()
        made.state.changes.close()
        made.state.sessions.close()


async def _again_and_again(seconds: float, chore: Callable[[Starlette], None], made: Starlette) -> None:
    while True:
        await asyncio.sleep(seconds)
        await run_in_threadpool(chore, made)


def _note_used(made: Starlette) -> None:
    if used := made.state.uses.taken():
        with suppress(PagemillError), made.state.sessions.opened("web") as session:
            tokens.note_use(session, used)


def _sweep(made: Starlette) -> None:
    with suppress(PagemillError, OSError), made.state.sessions.opened("web") as session:
        uploads.sweep(session)


def serve(settings: Settings, told: Callable[[], None]) -> int:
    """Serve until a signal stops the server. Calls `told` once it accepts requests."""
    log = events.begin_logging(settings.log_format)
    open_session(settings).close()  # refuse to start without a database
    # Requests to read files are parsed in this process, so it needs the handlers' settings as the daemon does.
    settings.hand_to_handlers()
    made = app(settings, log=log)
    with open_socket(settings.web_listen) as listening:
        log.info(events.WEB_STARTED, address=LISTEN.write(settings.web_listen), database=str(settings.database))
        with told_where(settings):
            server(made, told).run(sockets=[listening])
    if isinstance(settings.web_listen, Path):
        settings.web_listen.unlink(missing_ok=True)
    log.info(events.WEB_STOPPED)
    return 0
