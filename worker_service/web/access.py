"""Find the visitor of each request: by token, browser session, trusted proxy or Unix socket.

A visitor of one owner sees only that owner's data: lists apply `limit_selector`, single rows `may_see`.
"""

from __future__ import annotations

import hmac
import os
import pwd
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from worker_service.base import events
from worker_service.base.clock import as_text, wall_clock
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.jobs.tokens import Token, scopes_up_to_highest
from worker_service.jobs.tokens import TokenScope as TokenScope
from worker_service.services import tokens
from worker_service.settings.config import Settings
from worker_service.web.connections import connection_of
from worker_service.web.error_responses import HttpProblem, NotAllowed, SignInRequired, wants_page
from worker_service.web.hosts import is_loopback, origin_of
from worker_service.web.signing import SigningKey

S = TypeVar("S", Selector, DocumentSelector)

SIGN_IN_PATH = "/session"
PARSER_PATH = "/parse/"
CONVERTER_PATHS = ("/process", "/v1/convert/file", "/tika/text", "/tika/json/md", PARSER_PATH)
# POST needs only the scope to read here. The tools check for more.
ASSISTANT_PATH = "/mcp"
OPEN_PATHS = ("/healthz", "/readyz", SIGN_IN_PATH, "/static/")
"""Paths that need no sign-in; one that ends in a slash stands for all paths below it."""
_OPEN_FOLDERS = tuple(path for path in OPEN_PATHS if path.endswith("/"))

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

FAILURES_MAX = 10
"""Unknown tokens per address and minute. More get 429."""
_WINDOW_SECONDS = 60.0
_COUNTED_ADDRESSES_MAX = 4096
"""All counts start again if there are more."""
OPEN_REQUESTS_MAX = 200
OPEN_REQUESTS_PER_VISITOR_MAX = 64
"""Includes event streams, of which a visitor may have 40."""

# A proxy or a browser sends them: the user who opened the Unix socket is then not the author of the request.
_PROXY_AND_BROWSER_HEADERS = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-user", "x-real-ip", "via",
    "origin", "sec-fetch-site", "sec-fetch-mode",
)  # fmt: skip


class TooManySignInFailures(HttpProblem, code="too_many_failures", status=429):
    def __init__(self, seconds: float) -> None:
        super().__init__("too many unknown tokens", f"wait for {seconds:.0f} seconds")
        self.headers = {"Retry-After": f"{seconds:.0f}"}


class TooManyRequests(HttpProblem, code="too_many_requests", status=503): ...


class VisitorTooBusy(HttpProblem, code="too_many_requests", status=429): ...


class Visitor(Struct, frozen=True):
    name: str
    scopes: frozenset[TokenScope]
    owner: str | None = None
    """None: all owners."""
    csrf: str = ""
    """Token that forms must carry; empty for visitors without a browser."""
    has_session: bool = False

    def has_csrf_token(self, csrf: str) -> bool:
        return hmac.compare_digest(csrf.encode(), self.csrf.encode())

    def may(self, scope: TokenScope) -> bool:
        return scope in self.scopes

    def require(self, scope: TokenScope) -> None:
        if scope not in self.scopes:
            raise NotAllowed(f"this needs the scope {scope}, which {self.name} does not have")

    def require_all_owners(self) -> None:
        if self.owner is not None:
            raise NotAllowed(self.limit_in_words)

    @property
    def limit_in_words(self) -> str:
        return f"{self.name} only has access to the jobs and documents of {self.owner}"

    def may_see(self, owner: str | None) -> bool:
        """If not, the caller answers as for an unknown id."""
        return self.owner is None or owner == self.owner

    def limit_selector(self, selector: S) -> S:
        if self.owner is None:
            return selector
        limited = replace(selector, owners=(self.owner,))
        if not selector.owners or self.owner in selector.owners:
            return limited
        # The selector asks only for other owners, so it must match nothing: no row has the id 0.
        if isinstance(limited, Selector):
            # A selector of jobs also matches the jobs of its batches and documents.
            return replace(limited, ids=(0,), batch_ids=(), document_ids=())
        return replace(limited, ids=(0,))


def settings_of(request: HTTPConnection) -> Settings:
    return cast(Settings, request.app.state.settings)


def visitor_of(request: HTTPConnection) -> Visitor:
    return cast(Visitor, request.state.visitor)


def signing_key_of(request: HTTPConnection) -> SigningKey:
    return cast(SigningKey, request.app.state.signing_key)


def needs_no_sign_in(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


class AuthenticationMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open_requests: Counter[tuple[str, str | None]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or needs_no_sign_in(scope["path"]):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            visitor = await run_in_threadpool(find_visitor, request)
        except SignInRequired:
            if not wants_page(request) or request.method not in SAFE_METHODS or "authorization" in request.headers:
                raise
            await _sign_in_redirect(request)(scope, receive, send)
            return
        # Signing out, too, needs only the scope to read.
        path = scope["path"]
        is_reading = scope["method"] in SAFE_METHODS or path == ASSISTANT_PATH or path.startswith(f"{SIGN_IN_PATH}/")
        visitor.require(TokenScope.READ if is_reading else TokenScope.OPERATE)
        scope["state"]["visitor"] = visitor
        with self._limit_requests(visitor), connection_of(request).admitted():
            await self._app(scope, receive, send)

    @contextmanager
    def _limit_requests(self, visitor: Visitor) -> Iterator[None]:
        key = visitor.name, visitor.owner
        if self._open_requests[key] >= OPEN_REQUESTS_PER_VISITOR_MAX:
            raise VisitorTooBusy(
                f"{visitor.name} has {OPEN_REQUESTS_PER_VISITOR_MAX} requests open", "wait for one to end"
            )
        if self._open_requests.total() >= OPEN_REQUESTS_MAX:
            raise TooManyRequests("the server is busy", "try again in a second")
        self._open_requests[key] += 1
        try:
            yield
        finally:
            self._open_requests[key] -= 1
            if not self._open_requests[key]:
                del self._open_requests[key]


def _sign_in_redirect(request: Request) -> RedirectResponse:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(SIGN_IN_PATH if target == "/" else f"{SIGN_IN_PATH}?next={quote(target)}", 303)


def find_visitor(request: HTTPConnection) -> Visitor:
    """Return the visitor, or raise `SignInRequired`. Reads the database, so call it only in a thread."""
    token_text = _sent_token(request)
    if token_text is not None:
        return _visitor_by_token(request, token_text)
    visitor = _visitor_by_proxy(request) or _visitor_by_session(request) or _visitor_by_unix_socket(request)
    if visitor is None:
        raise SignInRequired(
            "sign-in required",
            "open the link that `pagemill token link` prints, or send a token (`pagemill token make`) in the header "
            "Authorization: Bearer",
        )
    return visitor


# ── Tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sent_token(request: HTTPConnection) -> str | None:
    """Return None without any credentials, "" with credentials of another kind.

    Only converters accept a password: a browser sends it with requests of other sites, too.
    """
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials
    if request.url.path in CONVERTER_PATHS:
        if scheme.lower() == "basic":
            return _basic_password(credentials)
        if "x-api-key" in request.headers:
            return request.headers["x-api-key"]
    return "" if "authorization" in request.headers else None


def _basic_password(credentials: str) -> str:
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _visitor_by_token(request: HTTPConnection, token_text: str) -> Visitor:
    token = _find_token(request, tokens.find_token, token_text) if token_text else None
    if token is None:
        note_sign_in_failure(request)
        raise SignInRequired("this token is unknown or has expired", "`pagemill token ls` lists the valid ones")
    return Visitor(token.name, token.scope_set, token.owner)


def note_sign_in_failure(request: HTTPConnection) -> None:
    """Raise `TooManySignInFailures` after `FAILURES_MAX` of an address. Its valid tokens are still accepted."""
    failures: SignInFailures = request.app.state.sign_in_failures
    address = request.client.host if request.client else ""
    count, seconds = failures.note(address)
    if count in (1, FAILURES_MAX + 1):
        # Log only the first failure and the first refusal, so that a flood of tokens does not flood the log.
        request.app.state.log.warning(events.VISITOR_REFUSED, address=address, failures=count)
    if count > FAILURES_MAX:
        raise TooManySignInFailures(seconds)


class SignInFailures:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._minute_ends_at = 0.0

    def note(self, address: str) -> tuple[int, float]:
        """Count a failure. Return the count of this minute, and the seconds left of it."""
        now = time.monotonic()
        if now >= self._minute_ends_at or len(self._counts) > _COUNTED_ADDRESSES_MAX:
            self._counts.clear()
            self._minute_ends_at = now + _WINDOW_SECONDS
        self._counts[address] += 1
        return self._counts[address], max(1.0, self._minute_ends_at - now)


# ── Sessions of browsers ────────────────────────────────────────────────────────────────────────────────────────────


def cookie_name(request: HTTPConnection) -> str:
    """Return a name unique to this instance: browsers do not separate cookies by port."""
    name = f"pagemill-{signing_key_of(request).sign('name', '')[:8]}"
    return f"__Host-{name}" if is_secure(request) else name


def is_secure(request: HTTPConnection) -> bool:
    return origin_of(request).startswith("https:")


def signed_cookie(request: HTTPConnection, token_text: str) -> str:
    return f"{token_text}.{signing_key_of(request).sign('session', token_text)}"


def _visitor_by_session(request: HTTPConnection) -> Visitor | None:
    token_text, _, signature = request.cookies.get(cookie_name(request), "").rpartition(".")
    signing_key = signing_key_of(request)
    if not token_text or not signing_key.verify("session", token_text, signature):
        return None
    token = _find_token(request, tokens.find_browser_session, token_text)
    if token is None:
        return None
    return Visitor(token.name, token.scope_set, token.owner, signing_key.sign("form", token_text), has_session=True)


def _find_token(request: HTTPConnection, find: Callable[[Any, str], Token | None], token_text: str) -> Token | None:
    with request.app.state.sessions.borrow("web") as session:
        token = find(session, token_text)
    if token is not None:
        request.app.state.token_used_at_by_id[token.id] = as_text(wall_clock())
    return token


# ── A proxy that signs users in ─────────────────────────────────────────────────────────────────────────────────────


def _visitor_by_proxy(request: HTTPConnection) -> Visitor | None:
    proxy = settings_of(request).proxy
    if proxy is None or _peer_of(request) not in proxy.address:
        return None
    names = {name.strip() for name in request.headers.getlist(proxy.header)}
    if len(names) != 1:
        # Of two different names, one may come from the client, so neither counts.
        return None
    [name] = names
    if not name or not name.isprintable():
        return None
    user = proxy.find_user(name)
    if user is None:
        raise NotAllowed(f"{name[:200]} may not use pagemill", "ask the administrator for an entry in [proxy.users]")
    scopes = frozenset(map(TokenScope, scopes_up_to_highest([TokenScope(user.role)]).split()))
    return Visitor(name, scopes, user.owner, signing_key_of(request).sign("form", f"{proxy.header} {name}"))


def _peer_of(request: HTTPConnection) -> str:
    """Return the other end of the connection as the setting `proxy.address` names it."""
    connection = connection_of(request)
    return "socket" if connection.user_id is not None else connection.address


# ── The Unix socket ─────────────────────────────────────────────────────────────────────────────────────────────────


def _visitor_by_unix_socket(request: HTTPConnection) -> Visitor | None:
    """Return an admin for programs of root and of the server's own user."""
    user_id = connection_of(request).user_id
    if user_id not in (0, os.geteuid()):
        return None
    if settings_of(request).web_urls or not is_loopback(request.headers.get("host", "")):
        return None
    if any(name in request.headers for name in _PROXY_AND_BROWSER_HEADERS):
        return None
    return Visitor(_user_name(user_id), frozenset(TokenScope))


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
