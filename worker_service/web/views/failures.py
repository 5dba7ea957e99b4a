"""Actions on files that need attention, which Home, batches and the Queue list."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.services.failures import dismiss_failures, retry_failures
from worker_service.web.access import Power, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import form_of
from worker_service.web.sign_in import safe_path
from worker_service.web.views.flash import redirect_after
from worker_service.web.views.forms import parse_number


def dismiss(request: Request) -> Response:
    """Dismiss the failures of the given jobs, or all. A failure that happens again appears again."""
    visitor, form = visitor_of(request), form_of(request)
    visitor.must(Power.OPERATE)
    ids = [parse_number(word, "job") for word in form.getlist("job")]
    with session_of(request) as session:
        changed = dismiss_failures(session, visitor.owner, job_ids=None if "all" in form else ids)
    return redirect_after(safe_path(form.get("back")), changed)


def retry(request: Request) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    visitor.must(Power.OPERATE)
    ids = [parse_number(word, "job") for word in form.getlist("job")]
    with session_of(request) as session:
        changed = retry_failures(session, visitor.owner, job_ids=ids)
    return redirect_after(safe_path(form.get("back")), changed)


routes = [
    Route("/failures/dismiss", dismiss, methods=["POST"]),
    Route("/failures/retry", retry, methods=["POST"]),
]
