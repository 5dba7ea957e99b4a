"""`POST /mcp`: the tools of AI assistants, stateless, with the rights of each visitor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from worker_service.services import batches
from worker_service.services.assistant_tools import AssistantTools, Caller, make_server
from worker_service.web.access import TokenScope, Visitor, visitor_of
from worker_service.web.resources.jobs import owner_for
from worker_service.web.resources.read_requests import source_jobs

_visitor: ContextVar[Visitor] = ContextVar("visitor")


class AssistantEndpoint:
    def __init__(self, app: Starlette) -> None:
        self._app = app
        tools = AssistantTools(app.state.settings, app.state.renderer, self._caller, _add_source)
        self._read_only_server = make_server(tools, may_add=False)
        self._full_server = make_server(tools, may_add=True)
        for server in (self._read_only_server, self._full_server):
            # `EdgeMiddleware` has checked the Host.
            server.streamable_http_app(
                json_response=True,
                stateless_http=True,
                transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._read_only_server.session_manager.run(), self._full_server.session_manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor = visitor_of(Request(scope))
        server = self._full_server if visitor.may(TokenScope.OPERATE) else self._read_only_server
        # The tools that this request calls read it in `_caller` and `_add_source`.
        _visitor.set(visitor)
        await server.session_manager.handle_request(scope, receive, send)

    @contextmanager
    def _caller(self) -> Iterator[Caller]:
        visitor = _visitor.get()
        with self._app.state.sessions.borrow(visitor.name) as session:
            yield Caller(session, visitor.owner)


def _add_source(caller: Caller, source: str) -> dict[str, Any]:
    visitor = _visitor.get()
    owner = owner_for(visitor, None)
    batch_jobs = source_jobs(caller.session, visitor, [source], {}, owner=owner)
    added = batches.add_batch(caller.session, batch_jobs.jobs, batches.BatchRequest(owner, asked={"sources": [source]}))
    return {"batch": added.batch.id, "jobs": len(added.jobs), "left_out": dict(batch_jobs.left_out)}
