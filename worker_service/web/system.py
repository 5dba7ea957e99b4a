"""Whether this process lives, and whether it can answer: for those who watch it. Anybody may ask."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def healthz(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok\n")


def readyz(request: Request) -> PlainTextResponse:
    """The database can be read, and its tables are those of this version."""
    with request.app.state.sessions.opened("web"):
        return PlainTextResponse("ready\n")


routes = [Route("/healthz", healthz), Route("/readyz", readyz)]
