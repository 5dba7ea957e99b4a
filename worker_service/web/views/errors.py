"""The Errors page: recent failures by code, with remedies."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.humanize import counted
from worker_service.jobs.counts import ErrorCount
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.system import ErrorsQuery, list_errors
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of

PERIODS = (("1h", "Last hour"), ("1d", "Last 24 hours"), ("7d", "Last 7 days"), ("30d", "Last 30 days"))


class ErrorGroup(Struct, frozen=True):
    """All failures with one error code."""

    code: str
    jobs: int
    types: Sequence[str]
    """Number of jobs of each type."""
    newest: ErrorCount
    filters: Sequence[tuple[str, str]]
    """Job filters that select these failures."""


def errors(request: Request) -> Response:
    query = read_known(request.query_params.multi_items(), ErrorsQuery)
    with session_of(request) as session:
        found = list_errors(session, visitor_of(request), query)
        return render(
            request,
            "errors.html",
            title="Errors",
            flash=flash_of(session, request),
            since=query.since,
            periods=PERIODS,
            groups=_grouped_by_code(found, query.since),
            total=counted(sum(one.jobs for one in found), "job"),
        )


def _grouped_by_code(found: Sequence[ErrorCount], since: str) -> Sequence[ErrorGroup]:
    by_code: dict[str, list[ErrorCount]] = {}
    for one in found:
        by_code.setdefault(one.code or "", []).append(one)
    groups = [_group(code, counts, since) for code, counts in by_code.items()]
    return sorted(groups, key=lambda group: -group.jobs)


def _group(code: str, counts: Sequence[ErrorCount], since: str) -> ErrorGroup:
    filters = [("status", "failed"), ("since", since), *([("error", code)] if code else [])]
    types = [f"{one.jobs:,} {one.job_type}" for one in counts]
    newest = max(counts, key=lambda one: one.newest_at)
    return ErrorGroup(code, sum(one.jobs for one in counts), types, newest, filters)


routes = [Route("/errors", errors)]
