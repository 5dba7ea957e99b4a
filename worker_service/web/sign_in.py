"""Sign-in and sign-out of browsers.

A link only shows a button, because programs that preview messages open links, too.
"""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from worker_service.base.clock import from_text, wall_clock
from worker_service.jobs.tokens import parse_token_text
from worker_service.services import tokens
from worker_service.services.tokens import CreatedToken
from worker_service.web.access import (
    SIGN_IN_PATH,
    cookie_name,
    find_visitor,
    is_secure,
    note_sign_in_failure,
    signed_cookie,
)
from worker_service.web.error_responses import SignInRequired
from worker_service.web.middleware import form_of
from worker_service.web.views import render

_LINK_INVALID = "This link was already used or has expired. Run `pagemill token link` for another."


def show_sign_in(request: Request) -> Response:
    token_text = request.query_params.get("link")
    if token_text is None:
        return _sign_in_page(request)
    if parse_token_text(token_text) is None:
        return _sign_in_page(request, _LINK_INVALID)
    return render(request, "sign_in_by_link.html", title="Sign in", token_text=token_text)


def sign_in(request: Request) -> Response:
    form = form_of(request)
    # Users may paste a whole sign-in link instead of its token.
    token_text = str(form.get("token", "")).strip().rpartition("link=")[2]
    token = None
    if parse_token_text(token_text) is not None:
        with request.app.state.sessions.borrow("web") as session:
            token = tokens.begin_browser_session(session, token_text)
    if token is None:
        note_sign_in_failure(request)
        return _sign_in_page(request, _LINK_INVALID if "link" in form else "This token is unknown or has expired.")
    return _redirect_with_cookie(request, token, safe_path(form.get("next")))


def account(request: Request) -> Response:
    return render(request, "me.html", title="Account")


def sign_out(request: Request) -> Response:
    """End the session in the database, so that copies of its cookie stop working, too."""
    token_text, _, _ = request.cookies.get(cookie_name(request), "").rpartition(".")
    with request.app.state.sessions.borrow("web") as session:
        tokens.end_browser_session(session, token_text)
    response = RedirectResponse(SIGN_IN_PATH, 303)
    response.delete_cookie(cookie_name(request), secure=is_secure(request), httponly=True, samesite="strict")
    return response


def _redirect_with_cookie(request: Request, token: CreatedToken, path: str) -> Response:
    response = RedirectResponse(path, 303)
    seconds_left = 0.0 if token.until is None else (from_text(token.until) - wall_clock()).total_seconds()
    response.set_cookie(
        cookie_name(request),
        signed_cookie(request, token.text),
        max_age=max(0, int(seconds_left)),
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return response


def _sign_in_page(request: Request, problem: str = "") -> Response:
    target = safe_path(request.query_params.get("next"))
    if not problem and request.method == "GET":
        with suppress(SignInRequired):
            find_visitor(request)
            return RedirectResponse(target, 303)
    status = 401 if problem else 200
    return render(request, "sign_in.html", title="Sign in", problem=problem, target=target, status=status)


def safe_path(path: str | None, default: str = "/") -> str:
    """Return `path` if it is a path of this site, or `default`."""
    path = path or ""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if is_ours and not path.startswith(SIGN_IN_PATH) else default


routes = [
    Route(SIGN_IN_PATH, show_sign_in),
    Route(SIGN_IN_PATH, sign_in, methods=["POST"]),
    Route(f"{SIGN_IN_PATH}/me", account),
    Route(f"{SIGN_IN_PATH}/end", sign_out, methods=["POST"]),
]
