"""Checks of Host, body, origin and CSRF token; security headers.

`EdgeMiddleware` is outermost; `CsrfMiddleware` runs after authentication.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext, suppress
from typing import NamedTuple, cast
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worker_service.base.errors import PagemillError
from worker_service.web.access import (
    ASSISTANT_PATH,
    CONVERTER_PATHS,
    PARSER_PATH,
    SAFE_METHODS,
    needs_no_sign_in,
    settings_of,
    visitor_of,
)
from worker_service.web.connections import connection_of
from worker_service.web.error_responses import BodyTooLarge, HttpProblem, respond_to_error, respond_to_unexpected_error
from worker_service.web.hosts import is_own_host, origin_of

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Unless `payload_bytes_max` needs more."""
FIELDS_MAX = 20_000
WRITE_SLOTS = 4
"""Requests that may write at once: half of `THREADS` is left for reading."""
BODY_PAUSE_SECONDS = 30.0
BODY_SECONDS = 60.0
"""Longest time between two pieces, and for the whole body."""
SIGN_IN_BYTES_MAX = 4096
SIGN_IN_SECONDS = 5.0
"""Longest time for the body of a client that is not signed in."""
LEFT_OVER_SECONDS = 2.0
"""Time to read the rest of a refused body."""

UPLOAD_PATHS = ("/api/uploads", "/upload", *CONVERTER_PATHS)

Form = ImmutableMultiDict[str, str]

_FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"

_HEADERS = {
    # No inline scripts or styles, nothing from other sites, no framing.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class HostRefused(HttpProblem, code="host_refused", status=421):
    """DNS rebinding: the name of another site points at this machine."""


class OriginRefused(HttpProblem, code="origin_refused", status=403):
    """CSRF: a page of another origin sent the request."""


class FormOutdated(HttpProblem, code="form_outdated", status=403): ...


class BodyTooSlow(HttpProblem, code="body_too_slow", status=408): ...


class AmbiguousLength(HttpProblem, code="ambiguous_length", status=400, headers={"Connection": "close"}):
    """A proxy may see another end of the request (RFC 9112, section 6.1)."""


class EdgeMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        body = _LimitedBody(request, receive)
        safe_response = _SafeResponse(body, send)
        with connection_of(request).answering():
            try:
                refuse_host(request)
                refuse_ambiguous_length(request)
                await self._app(scope, body.receive, safe_response.send)
            except ClientDisconnect:
                # The client closed the connection. That is normal, so it is not logged.
                return
            except Exception as error:
                # Starlette's handlers respond to errors of routes, but not of middleware.
                if safe_response.has_begun:
                    raise
                respond = respond_to_error if isinstance(error, PagemillError) else respond_to_unexpected_error
                response = await respond(request, error)
                await response(scope, body.receive, safe_response.send)


class CsrfMiddleware:
    """Refuses cross-site changes; reads the body before the handler starts, so a slow client holds no session."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        # Check this before reading the body, which may be large.
        refuse_other_origin(request)
        scope["state"]["form"] = Form()
        if scope["path"] in UPLOAD_PATHS:
            refuse_without_csrf_token(request)
            await self._app(scope, receive, send)
            return
        is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM_MEDIA_TYPE
        if not is_form:
            refuse_without_csrf_token(request)
        body = await request.body()
        if is_form:
            scope["state"]["form"] = _parse_form(body)
            refuse_without_csrf_token(request)
        # An assistant mostly reads, and may wait long for the image of a page, so it takes no slot.
        async with nullcontext() if scope["path"] == ASSISTANT_PATH else write_slot_of(request):
            await self._app(scope, _receive_again(body, receive), send)


def write_slot_of(request: Request) -> asyncio.Semaphore:
    """Hold it while waiting for the write lock, but not while receiving a file."""
    return cast(asyncio.Semaphore, request.app.state.write_slots)


def form_of(request: Request) -> Form:
    return cast(Form, request.state.form)


# ── Host and origin checks ──────────────────────────────────────────────────────────────────────────────────────────


def refuse_host(request: HTTPConnection) -> None:
    host = request.headers.get("host", "")
    if not is_own_host(host, request):
        raise HostRefused(
            f"{host[:200]!r} is not a host name of this server",
            "if it should be, add its address to web_urls in the settings",
        )


def refuse_ambiguous_length(request: HTTPConnection) -> None:
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        raise AmbiguousLength("the request has both a Content-Length and a Transfer-Encoding", "send one of them")


def refuse_other_origin(request: HTTPConnection) -> None:
    """Refuse other origins, except `web_origins` with a token."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if origin in settings_of(request).web_origins and "authorization" in request.headers:
        return
    if origin is not None and origin.lower() != origin_of(request):
        raise OriginRefused(f"the request comes from a page of another site, {origin[:200]!r}")
    if site not in (None, "same-origin", "none"):
        raise OriginRefused("the request comes from a page of another site")


def refuse_without_csrf_token(request: Request) -> None:
    """Raise `FormOutdated` if a browser sends no CSRF token.

    A form with files sends it as `?csrf=`, because its fields are read later.
    """
    if needs_no_sign_in(request.url.path):
        return
    visitor = visitor_of(request)
    if not visitor.csrf:
        return
    token = request.headers.get("x-csrf-token") or form_of(request).get("csrf") or request.query_params.get("csrf")
    if not token or not visitor.has_csrf_token(token):
        raise FormOutdated("this form is out of date", "reload the page and try again")


def _parse_form(body: bytes) -> Form:
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise HttpProblem(f"the form cannot be read: {error}") from error
    for name, text in fields:
        if "\0" in text:
            raise HttpProblem(f"{name[:50]!r} holds a NUL byte")
    return Form(fields)


# ── Bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def announced_bytes(request: HTTPConnection) -> int:
    announced = request.headers.get("content-length", "")
    return int(announced) if announced.isascii() and announced.isdigit() else 0


class _BodyLimits(NamedTuple):
    size_max: int
    pause_seconds: float
    total_seconds: float


class _LimitedBody:
    def __init__(self, request: Request, receive: Receive) -> None:
        self._receive = receive
        self._announced = announced_bytes(request)
        self.has_ended = not self._announced and "transfer-encoding" not in request.headers
        self._limits = _limits(request)
        self._received_bytes = 0
        self._deadline: float | None = None

    async def receive(self) -> Message:
        if self.has_ended:
            # The next message says that the client has disconnected.
            return await self._receive()
        self._refuse_large(self._announced)
        message = await self._receive_in_time()
        self._received_bytes += len(message.get("body", b""))
        self._refuse_large(self._received_bytes)
        self.has_ended = not message.get("more_body", False)
        return message

    async def _receive_in_time(self) -> Message:
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._limits.total_seconds
        try:
            async with asyncio.timeout(min(self._limits.pause_seconds, self._deadline - now)):
                return await self._receive()
        except TimeoutError:
            raise BodyTooSlow("the body did not arrive in time", "send it again") from None

    def _refuse_large(self, size: int) -> None:
        if size > self._limits.size_max:
            raise BodyTooLarge(f"the request is larger than the limit of {self._limits.size_max} bytes")

    async def drain(self) -> None:
        """Drop the rest: a client that is still sending would miss the response."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEFT_OVER_SECONDS):
                while (await self._receive()).get("more_body", False):
                    pass


def _limits(request: Request) -> _BodyLimits:
    settings, path = settings_of(request), request.url.path
    if needs_no_sign_in(path):
        return _BodyLimits(SIGN_IN_BYTES_MAX, SIGN_IN_SECONDS, SIGN_IN_SECONDS)
    if path in UPLOAD_PATHS:
        # A PDF in JSON is held in memory and occupies one of `PARSED_AT_ONCE` slots, so its time is limited.
        seconds = BODY_SECONDS if path == PARSER_PATH else math.inf
        return _BodyLimits(settings.upload_bytes_max + BODY_BYTES_MAX, BODY_PAUSE_SECONDS, seconds)
    # JSON quoted inside JSON can take two bytes per character.
    return _BodyLimits(max(BODY_BYTES_MAX, 2 * settings.payload_bytes_max), BODY_PAUSE_SECONDS, BODY_SECONDS)


def _receive_again(body: bytes, receive: Receive) -> Receive:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


# ── Responses ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _SafeResponse:
    """Adds the security headers, and `no-store` unless the response says otherwise."""

    def __init__(self, body: _LimitedBody, send: Send) -> None:
        self._body = body
        self._send = send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if not self._body.has_ended:
                headers["Connection"] = "close"
        elif not self._body.has_ended and not message.get("more_body", False):
            # The response is sent. Drain the request body before ending the response, which closes the connection.
            await self._send({**message, "more_body": True})
            await self._body.drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)
