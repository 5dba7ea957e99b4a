"""Error responses: RFC 9457 problems for programs, a page for browsers."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from worker_service.base import errors, events
from worker_service.base.errors import PagemillError, Problem
from worker_service.services.exports import FileGone, NotExported
from worker_service.services.page_images import NoPageImage, RendererBusy


class HttpProblem(PagemillError):
    status = 400
    headers: Mapping[str, str] = MappingProxyType({})

    def __init_subclass__(
        cls, code: str | None = None, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init_subclass__(code)
        cls.status, cls.headers = status, MappingProxyType(dict(headers or {}))


class NoSuchPage(HttpProblem, code="not_found", status=404): ...


class SignInRequired(
    HttpProblem, code="unauthorised", status=401, headers={"WWW-Authenticate": 'Bearer realm="pagemill"'}
): ...


class NotAllowed(HttpProblem, code="not_allowed", status=403): ...


class BodyTooLarge(HttpProblem, code="body_too_large", status=413): ...


class WrongMediaType(HttpProblem, code="unsupported_media_type", status=415): ...


# The nearest base class of an error decides.
_STATUS_BY_ERROR: dict[type[PagemillError], int] = {
    errors.BadInput: 400,
    errors.BadPayload: 422,
    errors.JobNotFound: 404,
    errors.DocumentNotFound: 404,
    errors.BatchNotFound: 404,
    NotExported: 404,
    FileGone: 410,
    NoPageImage: 404,
    RendererBusy: 503,
    errors.Refused: 409,
    errors.RuleBroken: 409,
    errors.WaitTimedOut: 504,
    errors.StoreAbsent: 503,
    errors.StoreBusy: 503,
    errors.StoreReadOnly: 503,
    errors.StoreForbidden: 503,
    errors.StoreUnusable: 503,
    errors.StoreDamaged: 503,
    errors.DiskFull: 507,
    PagemillError: 500,
}


def status_of(error: PagemillError) -> int:
    if isinstance(error, HttpProblem):
        return error.status
    return next(_STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in _STATUS_BY_ERROR)


def wants_page(request: Request) -> bool:
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get("accept", "")


async def respond_to_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PagemillError)
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, HttpProblem) else {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", "1")
    # On a page, the link back replaces the shell command in the remedy.
    remedy = "" if wants_page(request) and status == HTTPStatus.NOT_FOUND else error.remedy
    return problem_response(request, status, Problem(error.code, error.detail, remedy), headers)


async def respond_to_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problems = {
        404: Problem("not_found", f"{request.url.path} does not exist"),
        405: Problem("method_not_allowed", f"{request.url.path} does not allow {request.method}"),
    }
    problem = problems.get(error.status_code, Problem("bad_request", str(error.detail)))
    return problem_response(request, error.status_code, problem, dict(error.headers or {}))


async def respond_to_unexpected_error(request: Request, error: Exception) -> Response:
    request.app.state.log.error(events.REQUEST_FAILED, path=request.url.path, exc_info=error)
    problem = Problem("bug", "an internal error occurred", "see the log of `pagemill serve`")
    return problem_response(request, 500, problem, {})


# The way back from an error page, by the first part of its path.
_BACK_LINKS = {
    "jobs": ("/jobs", "All jobs"),
    "documents": ("/documents", "All documents"),
    "upload": ("/documents", "All documents"),
    "batches": ("/batches", "All batches"),
}


_TITLES = {403: "Not allowed", 404: "Not found", 503: "Not available now"}


def problem_response(request: Request, status: int, problem: Problem, headers: Mapping[str, str]) -> Response:
    if wants_page(request):
        from worker_service.web.views import render  # imports this module

        title = _TITLES.get(status) or ("Something went wrong" if status >= 500 else "That did not work")
        back = _BACK_LINKS.get(request.url.path.split("/")[1], ("/", "Home"))
        return render(
            request, "problem.html", status=status, headers=headers, title=title, sentence=str(problem), back=back
        )
    body = {"type": f"urn:pagemill:{problem.code}", "title": HTTPStatus(status).phrase, "status": status}
    body |= problem._asdict()
    return JSONResponse(body, status, dict(headers), media_type="application/problem+json")
