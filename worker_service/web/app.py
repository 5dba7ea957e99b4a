"""The ASGI application: routes, middleware, background chores and the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
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
from worker_service.base.errors import PagemillError, ProgramAbsent
from worker_service.base.sd_notify import Notifier
from worker_service.services import tokens
from worker_service.services.overview import statistics
from worker_service.services.page_images import PageRenderer
from worker_service.services.server_address import published_address
from worker_service.services.session import open_session
from worker_service.settings.config import Settings
from worker_service.settings.value_types import LISTEN
from worker_service.web import incoming_files, sign_in
from worker_service.web.access import ASSISTANT_PATH, AuthenticationMiddleware, SignInFailures
from worker_service.web.api import converters, openapi
from worker_service.web.api.events import EventStreams
from worker_service.web.api.metrics import metrics_text
from worker_service.web.cached_value import CachedValue
from worker_service.web.database_sessions import DatabaseVersion, SessionPool
from worker_service.web.error_responses import respond_to_error, respond_to_http_exception, respond_to_unexpected_error
from worker_service.web.http_server import create_server, open_socket, run_until_signal
from worker_service.web.middleware import WRITE_SLOTS, CsrfMiddleware, EdgeMiddleware
from worker_service.web.signing import load_signing_key
from worker_service.web.views import (
    STATIC,
    batches,
    document,
    document_actions,
    document_changes,
    document_files,
    documents,
    failures,
    home,
    jobs,
    keywords,
    queue,
    schedules,
    search,
    system,
    tags,
    workers,
)
from worker_service.web.views import uploads as upload_page

THREADS = 8
"""Threads that answer requests; each uses one database session at a time."""

_RENDERING_THREADS = 3
"""Requests that draw a page image or a workbook, outside `THREADS`."""

_TOKEN_USES_INTERVAL_SECONDS = 60.0

_SWEEP_INTERVAL_SECONDS = 600.0

# Each module ends with its routes.
MODULES = (
    sign_in,
    openapi,
    home,
    search,
    documents,
    document,
    document_actions,
    document_changes,
    document_files,
    tags,
    upload_page,
    batches,
    jobs,
    keywords,
    queue,
    schedules,
    workers,
    failures,
    system,
)


def app(settings: Settings, *, log: events.Log | None = None, on_ready: Callable[[], None] = lambda: None) -> Starlette:
    application = Starlette(
        routes=[*converters.routes(settings), *routes()],
        middleware=[
            *_cross_origin(settings),
            Middleware(EdgeMiddleware),
            Middleware(AuthenticationMiddleware),
            Middleware(CsrfMiddleware),
        ],
        exception_handlers={
            PagemillError: respond_to_error,
            HTTPException: respond_to_http_exception,
            Exception: respond_to_unexpected_error,
        },
        lifespan=_lifespan,
    )
    state = application.state
    state.settings = settings
    state.log = log or events.begin_logging(settings.log_format)
    state.sessions = SessionPool(settings)
    state.database_version = DatabaseVersion(settings)
    state.signing_key = load_signing_key(settings.database)
    state.sign_in_failures = SignInFailures()
    state.token_used_at_by_id = {}
    state.renderer = PageRenderer(settings)
    state.write_slots = asyncio.Semaphore(WRITE_SLOTS)
    state.parse_slots = asyncio.Semaphore(converters.PARSED_AT_ONCE)
    state.streams = EventStreams(application)
    state.metrics = CachedValue(metrics_text)
    state.statistics = CachedValue(statistics)
    state.assistant = _add_assistant(application, settings)
    state.on_ready = on_ready
    state.is_stopping = lambda: False  # `create_server` replaces it
    return application


def _add_assistant(application: Starlette, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Add `/mcp` if `web_endpoints` names it, and return the context in which it runs."""
    if "mcp" not in settings.web_endpoints:
        return nullcontext()
    try:
        from worker_service.web.api.assistant import AssistantEndpoint
    except ImportError as error:
        raise ProgramAbsent("the package mcp is not installed", "pip install 'pagemill[mcp]'") from error
    endpoint = AssistantEndpoint(application)
    application.routes.append(Route(ASSISTANT_PATH, endpoint, methods=["POST"]))
    return endpoint.running()


def _cross_origin(settings: Settings) -> Sequence[Middleware]:
    """Let pages of `web_origins` read responses to requests with a token; cookies do not work."""
    if not settings.web_origins:
        return ()
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.web_origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    ]


def routes() -> Sequence[BaseRoute]:
    return [
        Route("/healthz", _healthz),
        Route("/readyz", _readyz),
        *(route for module in MODULES for route in module.routes),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]


async def _healthz(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok\n")


def _readyz(request: Request) -> PlainTextResponse:
    with request.app.state.sessions.borrow("web"):
        return PlainTextResponse("ready\n")


@asynccontextmanager
async def _lifespan(application: Starlette) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = THREADS
    application.state.rendering = CapacityLimiter(_RENDERING_THREADS)
    chores = [
        asyncio.create_task(_repeat(_TOKEN_USES_INTERVAL_SECONDS, _write_token_uses, application)),
        asyncio.create_task(_repeat(_SWEEP_INTERVAL_SECONDS, _sweep_uploads, application)),
    ]
    notifier = Notifier()
    try:
        # The socket listens already: requests that arrive before `yield` wait in its backlog.
        application.state.on_ready()
        notifier.ready()
        async with application.state.assistant:
            yield
    finally:
        notifier.stopping()
        for chore in chores:
            chore.cancel()
        await run_in_threadpool(_write_token_uses, application)
        application.state.renderer.close()
        application.state.database_version.close()
        application.state.sessions.close()


async def _repeat(seconds: float, chore: Callable[[Starlette], None], application: Starlette) -> None:
    while True:
        await asyncio.sleep(seconds)
        await run_in_threadpool(chore, application)


def _write_token_uses(application: Starlette) -> None:
    # If the database is busy, these times are lost: nothing depends on them.
    used_at_by_id, application.state.token_used_at_by_id = application.state.token_used_at_by_id, {}
    if used_at_by_id:
        with suppress(PagemillError), application.state.sessions.borrow("web") as session:
            tokens.note_use(session, used_at_by_id)


def _sweep_uploads(application: Starlette) -> None:
    # After an error, the next sweep finds the same files.
    with suppress(PagemillError, OSError), application.state.sessions.borrow("web") as session:
        incoming_files.sweep(session)


def serve(settings: Settings, on_ready: Callable[[], None]) -> int:
    log = events.begin_logging(settings.log_format)
    open_session(settings).close()  # refuse to start without a database
    # Requests to read files are parsed in this process, so it needs the handlers' settings as the daemon does.
    settings.export_handler_settings()
    server = create_server(app(settings, log=log, on_ready=on_ready))
    with open_socket(settings.web_listen) as listener:
        # Where stdout is no terminal, the command prints no link: the log says how to get one.
        log.info(
            events.WEB_STARTED,
            address=LISTEN.format(settings.web_listen),
            database=str(settings.database),
            sign_in="pagemill token link",
        )
        with published_address(settings):
            run_until_signal(server, listener)
    if isinstance(settings.web_listen, Path):
        settings.web_listen.unlink(missing_ok=True)
    log.info(events.WEB_STOPPED)
    return 0
