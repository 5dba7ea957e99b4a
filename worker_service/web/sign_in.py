"""Sign-in and sign-out of browsers.

A link only shows a button, because programs that preview messages open links, too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from worker_service.base.clock import from_text, wall_clock
from worker_service.jobs.tokens import parse_token_text
from worker_service.services import tokens
from worker_service.services.tokens import CreatedToken
from worker_service.web.access import (
    SIGN_IN,
    cookie_name,
    find_visitor,
    is_secure,
    note_failure,
    signed_cookie,
)
from worker_service.web.error_responses import SignInRequired
from worker_service.web.middleware import form_of
from worker_service.web.views import render

_NOT_A_LINK = "This link was already used or has expired. Run `pagemill token link` for another."


def show_sign_in(request: Request) -> Response:
    word = request.query_params.get("link")
    if word is None:
        return _sign_in_page(request)
    if parse_token_text(word) is None:
        return _sign_in_page(request, _NOT_A_LINK)
    return render(request, "sign_in_by_link.html", title="Sign in", word=word)


def sign_in(request: Request) -> Response:
    form = form_of(request)
    word = str(form.get("token", "")).strip().rpartition("link=")[2]
    made = _begin_session(request, word) if parse_token_text(word) else None
    if made is None:
        note_failure(request)
        return _sign_in_page(request, _NOT_A_LINK if "link" in form else "This token is unknown or has expired.")
    return _start_session(request, made, safe_path(form.get("next")))


def account(request: Request) -> Response:
    return render(request, "me.html", title="Account")


def sign_out(request: Request) -> Response:
    """End the session in the database, so that copies of its cookie stop working, too."""
    word = request.cookies.get(cookie_name(request), "").rpartition(".")[0]
    with request.app.state.sessions.borrow("web") as session:
        tokens.end_session(session, word)
    answer = RedirectResponse(SIGN_IN, 303)
    answer.delete_cookie(cookie_name(request), secure=is_secure(request), httponly=True, samesite="strict")
    return answer


def _begin_session(request: Request, word: str) -> CreatedToken | None:
    with request.app.state.sessions.borrow("web") as session:
        return tokens.begin_session(session, word)


def _start_session(request: Request, made: CreatedToken, to: str) -> Response:
    answer = RedirectResponse(to, 303)
    until = wall_clock() if made.until is None else from_text(made.until)
    answer.set_cookie(
        cookie_name(request),
        signed_cookie(request, made.word),
        max_age=_seconds_until(until),
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return answer


def _seconds_until(moment: datetime) -> int:
    return max(0, int((moment - wall_clock()).total_seconds()))


def _sign_in_page(request: Request, refused: str = "") -> Response:
    if not refused and request.method == "GET" and _is_signed_in(request):
        return RedirectResponse(safe_path(request.query_params.get("next")), 303)
    to = safe_path(request.query_params.get("next"))
    return render(request, "sign_in.html", title="Sign in", refused=refused, to=to, status=401 if refused else 200)


def _is_signed_in(request: Request) -> bool:
    try:
        find_visitor(request)
    except SignInRequired:
        return False
    return True


def safe_path(wanted: Any, otherwise: str = "/") -> str:
    """Return a path of this site, never an address elsewhere."""
    path = wanted if isinstance(wanted, str) else ""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if is_ours and not path.startswith(SIGN_IN) else otherwise


routes = [
    Route(SIGN_IN, show_sign_in),
    Route(SIGN_IN, sign_in, methods=["POST"]),
    Route(f"{SIGN_IN}/me", account),
    Route(f"{SIGN_IN}/end", sign_out, methods=["POST"]),
]
