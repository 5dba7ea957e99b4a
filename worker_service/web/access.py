"""Who asks, and what they may: nobody gets further than this without a name.

A visitor is told once for each request, before any page or endpoint runs. To look needs the scope `read`, everything
else `operate`; what needs `admin` says so itself (`must`). A visitor of one owner sees that owner's things and nothing
else: whatever lists asks `only`, whatever shows one thing asks `may_see`.

Somebody comes in by a token, by the cookie of a session, or, as long as no token was ever made, from this machine: as
the user that the kernel names, if that user may write the database, and neither a proxy nor another name stands
between.
"""

from __future__ import annotations

import hmac
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from worker_service import events
from worker_service.clock import as_text, wall_clock
from worker_service.config import Settings
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.jobs.values import dataclass
from worker_service.operations import tokens
from worker_service.tokens import Power as Power
from worker_service.tokens import Token
from worker_service.web.hosts import is_loopback, origin_of
from worker_service.web.keys import Key
from worker_service.web.peers import may_write, name_of
from worker_service.web.problems import HttpProblem, NobodyKnown, NotAllowed, wants_page

S = TypeVar("S", Selector, DocumentSelector)

LOGIN = "/session"
OPEN = ("/healthz", "/readyz", LOGIN, "/static/")
"""What anybody may ask for."""

SAFE = ("GET", "HEAD", "OPTIONS")
"""They change nothing."""

FAILURES_MOST = 10
"""So many of one address in a minute; what is wrong after them is not even looked up."""
_WINDOW_SECONDS = 60.0
_ADDRESSES_MOST = 4096
# What only a proxy says. It asks for somebody else, whoever that is.
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


class TooManyFailures(HttpProblem):
    code = "too_many_failures"
    exit_code = 75
    status = 429

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many tokens that nobody knows: wait for {seconds:.0f} seconds")
        self.headers = {"Retry-After": f"{seconds:.0f}"}


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str
    """The actor of every action."""
    powers: frozenset[Power]
    owner: str | None = None
    """Whose things are seen; None: everybody's."""
    csrf: str = ""
    """What a form of theirs has to carry; empty: no browser stands between us."""
    has_session: bool = False

    def has_made(self, csrf: str) -> bool:
        return hmac.compare_digest(csrf.encode(), self.csrf.encode())

    def may(self, power: Power) -> bool:
        return power in self.powers

    def must(self, power: Power) -> None:
        if power not in self.powers:
            raise NotAllowed(f"this needs the scope {power}, which {self.name} has not")

    def must_be_of_all(self) -> None:
        """For what is of no owner, or of all: workers, settings, pauses."""
        if self.owner is not None:
            raise NotAllowed(f"{self.name} is for the things of {self.owner} only")

    def may_see(self, owner: str | None) -> bool:
        """False: answer as if it were not there."""
        return self.owner is None or owner == self.owner

    def only(self, selector: S) -> S:
        """What it selects of what this visitor may see."""
        if self.owner is None:
            return selector
        mine = replace(selector, owners=(self.owner,))
        if not selector.owners or self.owner in selector.owners:
            return mine
        # Of both at once there is nothing.
        nothing: dict[str, Any] = {name: () for name in ("batch_ids", "document_ids") if hasattr(mine, name)}
        return replace(mine, **nothing | {"ids": (0,)})


def settings_of(request: HTTPConnection) -> Settings:
    return cast(Settings, request.app.state.settings)


def visitor_of(request: HTTPConnection) -> Visitor:
    return cast(Visitor, request.state.visitor)


def key_of(request: HTTPConnection) -> Key:
    return cast(Key, request.app.state.key)


def is_open(path: str) -> bool:
    return any(path == one or (one.endswith("/") and path.startswith(one)) for one in OPEN)


class Access:
    """Lets nobody pass who is nobody."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            request = Request(scope)
            try:
                visitor = await run_in_threadpool(who, request)
            except NobodyKnown:
                if not wants_page(request) or request.method not in SAFE or "authorization" in request.headers:
                    raise
                await _to_login(request)(scope, receive, send)
                return
            # Whoever may look may also go out.
            is_looking = scope["method"] in SAFE or scope["path"].startswith(f"{LOGIN}/")
            visitor.must(Power.READ if is_looking else Power.OPERATE)
            scope.setdefault("state", {})["visitor"] = visitor
        await self._app(scope, receive, send)


def _to_login(request: Request) -> RedirectResponse:
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(LOGIN if wanted == "/" else f"{LOGIN}?next={quote(wanted)}", 303)


def who(request: HTTPConnection) -> Visitor:
    """In a thread: the database is asked."""
    if "authorization" in request.headers:
        return _by_token(request)
    visitor = _by_session(request) or _from_here(request)
    if visitor is None:
        raise NobodyKnown(
            "say who you are: in a browser by the address that `pagemill token link` prints, else by a token "
            "(`pagemill token make`) in the header Authorization: Bearer"
        )
    return visitor


# ── Tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _by_token(request: HTTPConnection) -> Visitor:
    kind, _, word = request.headers["authorization"].partition(" ")
    token = _found(request, tokens.known, word) if kind.lower() == "bearer" else None
    if token is None:
        note_failure(request)
        raise NobodyKnown("nobody here knows this token, or it is good no more: `pagemill token ls` shows which are")
    return Visitor(token.name, token.powers, token.owner)


def note_failure(request: HTTPConnection) -> None:
    """Who shows what nobody knows, again and again, is not answered any more. A token that is good is: who guesses
    may not keep out who knows."""
    failures: Failures = request.app.state.failures
    address = request.client.host if request.client else ""
    count, seconds = failures.note(address)
    if count in (1, FAILURES_MOST + 1):
        # Once in a while: a flood of tokens is no flood of the log.
        request.app.state.log.warning(events.VISITOR_REFUSED, address=address, failures=count)
    if count > FAILURES_MOST:
        raise TooManyFailures(seconds)


class Failures:
    """Of each address, in the last minute."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = {}

    def note(self, address: str) -> tuple[int, float]:
        """How many there were with this one, and in how many seconds the oldest is forgotten."""
        now = time.monotonic()
        at = self._at.pop(address, None) or deque(maxlen=FAILURES_MOST + 1)
        while at and at[0] < now - _WINDOW_SECONDS:
            at.popleft()
        at.append(now)
        self._at[address] = at
        while len(self._at) > _ADDRESSES_MOST:
            self._at.pop(next(iter(self._at)), None)
        return len(at), max(1.0, at[0] + _WINDOW_SECONDS - now)


class Uses:
    """Which token was used when: gathered, and written now and then, for no answer may wait until it is written."""

    def __init__(self) -> None:
        self._at: dict[int, str] = {}

    def note(self, token: Token) -> None:
        self._at[token.id] = as_text(wall_clock())

    def taken(self) -> dict[int, str]:
        at, self._at = self._at, {}
        return at


# ── Sessions of browsers ────────────────────────────────────────────────────────────────────────────────────────


def cookie_name(request: HTTPConnection) -> str:
    """Of its own for each pagemill on a machine: browsers keep cookies apart by names, not by ports."""
    name = f"pagemill-{key_of(request).mark('name', '')[:8]}"
    return f"__Host-{name}" if is_secure(request) else name


def is_secure(request: HTTPConnection) -> bool:
    return origin_of(request).startswith("https:")


def cookie_of(request: HTTPConnection, word: str) -> str:
    return f"{word}.{key_of(request).mark('session', word)}"


def _by_session(request: HTTPConnection) -> Visitor | None:
    word, _, mark = request.cookies.get(cookie_name(request), "").rpartition(".")
    key = key_of(request)
    if not word or not key.is_mark("session", word, mark):
        return None
    session = _found(request, tokens.known_session, word)
    if session is None:
        return None
    return Visitor(session.name, session.powers, session.owner, key.mark("form", word), has_session=True)


def _found(request: HTTPConnection, known: Callable[[Any, str], Token | None], word: str) -> Token | None:
    with request.app.state.sessions.opened("web") as session:
        found = known(session, word)
    if found is not None:
        request.app.state.uses.note(found)
    return found


# ── From this machine ───────────────────────────────────────────────────────────────────────────────────────────


def _from_here(request: HTTPConnection) -> Visitor | None:
    """Who could do it all by the shell may do it all here, as long as nobody has made a token."""
    if settings_of(request).web_urls or not is_loopback(request.headers.get("host", "")):
        return None
    if any(name in request.headers for name in _OF_PROXIES):
        return None
    user = request.scope["state"]["user_at_the_other_end"]()
    if user is None or not may_write(settings_of(request).database, user):
        return None
    # By a socket in the file system comes whom a proxy's group was let in for.
    if request.client is None and user not in (0, os.geteuid()):
        return None
    with request.app.state.sessions.opened("web") as session:
        if tokens.are_there(session):
            return None
    is_browser = any(name in request.headers for name in ("origin", "sec-fetch-site", "sec-fetch-mode"))
    csrf = key_of(request).mark("form", f"user {user}")
    return Visitor(name_of(user), frozenset(Power), csrf=csrf if is_browser or request.scope["method"] in SAFE else "")
