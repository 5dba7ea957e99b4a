"""The Failures page, and actions on files that need attention."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from worker_service.services.failures import count_failures, dismiss_failures, list_failures, retry_failures
from worker_service.services.session import Session
from worker_service.web.access import visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import parse_number, query_of
from worker_service.web.sign_in import safe_path
from worker_service.web.views import page_route, render
from worker_service.web.views.filter_links import FilterLink, same_page
from worker_service.web.views.flash_messages import redirect_after

_FAILURES_MAX = 25


class FailuresPageQuery(Struct, frozen=True):
    error: str | None = None
    before: int | None = None


def failures_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, FailuresPageQuery)
    listing = list_failures(session, visitor.owner, code=query.error, limit=_FAILURES_MAX, before_id=query.before)
    reasons = count_failures(session, visitor.owner)
    chosen = next((reason for reason in reasons if reason.code == query.error), None)
    return render(
        request,
        "failures.html",
        title="Failures",
        failures=listing.items,
        total=sum(reason.count for reason in reasons),
        reason_options=[
            FilterLink(
                reason.happened or reason.code or "No message",
                same_page(request, error=reason.code, before=None),
                reason is chosen,
                reason.count,
            )
            for reason in reasons
        ],
        chosen=chosen,
        back=same_page(request),
        older=same_page(request, before=listing.next) if listing.next else "",
    )


def dismiss(request: Request, session: Session) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    ids = [parse_number(text, "job") for text in form.getlist("job")]
    changed = dismiss_failures(
        session, visitor.owner, job_ids=None if "all" in form else ids, code=form.get("error") or None
    )
    return redirect_after(safe_path(form.get("back")), changed)


def retry(request: Request, session: Session) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    ids = [parse_number(text, "job") for text in form.getlist("job")]
    # All at once only with one error code, whose cause the user has removed.
    code = form.get("error") or None
    changed = retry_failures(session, visitor.owner, job_ids=None if "all" in form and code else ids, code=code)
    return redirect_after(safe_path(form.get("back")), changed)


routes = [
    page_route("/failures", failures_page),
    page_route("/failures/dismiss", dismiss, methods=["POST"]),
    page_route("/failures/retry", retry, methods=["POST"]),
]
