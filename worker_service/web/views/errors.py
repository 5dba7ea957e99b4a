"""The Errors page: recent failures by code, with remedies."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.humanize import counted
from worker_service.jobs.counts import ErrorCount
from worker_service.services.overview import errors as failed_since
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import opened
from worker_service.web.views import page
from worker_service.web.views.forms import told

SINCE = (("1h", "Last hour"), ("1d", "Last 24 hours"), ("7d", "Last 7 days"), ("30d", "Last 30 days"))


class Trouble(Struct, frozen=True):
    """All failures with one error code, of all job types."""

    code: str
    jobs: int
    types: Sequence[str]
    newest: ErrorCount
    detail: str
    remedy: str
    """The error's own advice; may be empty."""
    fields: Sequence[tuple[str, str]]


def errors(request: Request) -> Response:
    visitor = visitor_of(request)
    since = request.query_params.get("since") or "1d"
    with opened(request) as session:
        found = failed_since(session, since=since, owner=visitor.owner)
        return page(
            request,
            "errors.html",
            title="Errors",
            told=told(session, request),
            since=since,
            spans=SINCE,
            troubles=_troubles(found, since),
            total=counted(sum(one.jobs for one in found), "job"),
        )


def _troubles(found: Sequence[ErrorCount], since: str) -> Sequence[Trouble]:
    by_code: dict[str, list[ErrorCount]] = {}
    for one in found:
        by_code.setdefault(one.code or "", []).append(one)
    troubles = [_trouble(code, counts, since) for code, counts in by_code.items()]
    return sorted(troubles, key=lambda trouble: -trouble.jobs)


def _trouble(code: str, counts: Sequence[ErrorCount], since: str) -> Trouble:
    newest = max(counts, key=lambda one: one.newest_at)
    detail, remedy = newest.newest_message or "", newest.newest_remedy or ""
    fields = [("status", "failed"), ("since", since), *([("error", code)] if code else [])]
    types = [f"{one.jobs:,} {one.job_type}" for one in counts]
    jobs = sum(one.jobs for one in counts)
    return Trouble(code, jobs, types, newest, detail, remedy, fields)


routes = [Route("/errors", errors)]
