"""How a browser comes in and goes out: by a link that is good once, or by a token; with a cookie from then on.

The page that lets in leads on by itself, and not by a redirect: what was begun by somebody else's page (a mail, a
chat) brings no cookie of ours along, to the end of all its redirects.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from worker_service.clock import from_text, wall_clock
from worker_service.operations import tokens
from worker_service.operations.tokens import Made
from worker_service.tokens import read_word
from worker_service.web.access import (
    LOGIN,
    cookie_name,
    cookie_of,
    is_secure,
    note_failure,
    who,
)
from worker_service.web.guard import form_of
from worker_service.web.pages import page
from worker_service.web.problems import NobodyKnown


def come_in(request: Request) -> Response:
    """The page that asks for a token; or by a link, at once."""
    word = request.query_params.get("link")
    if word is None:
        return _asked(request)
    # A browser that only looks ahead, or a program that previews, uses nothing up.
    if request.method != "GET" or "prefetch" in request.headers.get("sec-purpose", ""):
        return Response(status_code=204)
    made = _begun(request, word)
    if made is None:
        note_failure(request)
        return _asked(request, "This link was used already, or is out of date: `pagemill token link` prints another.")
    return _let_in(request, made, "/")


def come_in_by_token(request: Request) -> Response:
    """Or by a link that was pasted into the field."""
    form = form_of(request)
    word = str(form.get("token", "")).strip().rpartition("link=")[2]
    made = _begun(request, word) if read_word(word) else None
    if made is None:
        note_failure(request)
        return _asked(request, "Nobody here knows this token, or it is good no more.")
    return _let_in(request, made, _inside(form.get("next")))


def me(request: Request) -> Response:
    """Who one is here, and the way out."""
    return page(request, "me.html", title="You")


def go_out(request: Request) -> Response:
    """The session is over, whoever else has its cookie."""
    word = request.cookies.get(cookie_name(request), "").rpartition(".")[0]
    with request.app.state.sessions.opened("web") as session:
        tokens.end_session(session, word)
    answer = RedirectResponse(LOGIN, 303)
    answer.delete_cookie(cookie_name(request), secure=is_secure(request), httponly=True, samesite="strict")
    return answer


def _begun(request: Request, word: str) -> Made | None:
    with request.app.state.sessions.opened("web") as session:
        return tokens.begin_session(session, word)


def _let_in(request: Request, made: Made, to: str) -> Response:
    answer = page(request, "let_in.html", title="Welcome", to=to, name=made.name)
    until = wall_clock() if made.until is None else from_text(made.until)
    answer.set_cookie(
        cookie_name(request),
        cookie_of(request, made.word),
        max_age=_seconds_until(until),
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return answer


def _seconds_until(moment: datetime) -> int:
    return max(0, int((moment - wall_clock()).total_seconds()))


def _asked(request: Request, refused: str = "") -> Response:
    if not refused and request.method == "GET" and _is_in(request):
        return RedirectResponse(_inside(request.query_params.get("next")), 303)
    to = _inside(request.query_params.get("next"))
    return page(request, "login.html", title="Come in", refused=refused, to=to, status=401 if refused else 200)


def _is_in(request: Request) -> bool:
    try:
        who(request)
    except NobodyKnown:
        return False
    return True


def _inside(wanted: Any) -> str:
    """A path of ours, and never an address of somebody else."""
    path = wanted if isinstance(wanted, str) else ""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if is_ours and not path.startswith(LOGIN) else "/"


routes = [
    Route(LOGIN, come_in),
    Route(LOGIN, come_in_by_token, methods=["POST"]),
    Route(f"{LOGIN}/me", me),
    Route(f"{LOGIN}/end", go_out, methods=["POST"]),
]
