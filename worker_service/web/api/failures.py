"""Failures that need attention: list, dismiss and retry."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.services import failures
from worker_service.services.failures import FailurePage, FailureReason
from worker_service.web.api.endpoint import ApiRequest, Items, endpoint
from worker_service.web.api.jobs import ChangedJobs, changed_jobs
from worker_service.web.parameters import Id, PageQuery, about

ErrorCode = Annotated[str, about("Only failures with this error code.")]


class FailuresQuery(PageQuery, frozen=True, kw_only=True):
    error: ErrorCode | None = None


class FailuresBody(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: Annotated[tuple[Id, ...], about("Their `job_id`s.")] = ()
    error: ErrorCode = ""
    all: Annotated[bool, about("All failures, or all with this error code.")] = False


@endpoint("GET", "/api/failures", is_time_dependent=True)
def list_failures(call: ApiRequest, query: FailuresQuery) -> FailurePage:
    """List the files that need attention, newest first: what happened, and what the user can do."""
    return failures.list_failures(
        call.session, call.visitor.owner, code=query.error, limit=query.limit, before_id=query.before
    )


@endpoint("GET", "/api/failures/reasons", is_time_dependent=True)
def count_failures(call: ApiRequest) -> Items[FailureReason]:
    """Count the files that need attention by error code, most frequent first."""
    return Items(failures.count_failures(call.session, call.visitor.owner))


@endpoint("POST", "/api/failures/dismiss")
def dismiss_failures(call: ApiRequest, body: FailuresBody) -> ChangedJobs:
    """Remove failures from the list. A new failure is listed again, and so is a dismissed one after undo."""
    return changed_jobs(failures.dismiss_failures(call.session, call.visitor.owner, **_selection(body)))


@endpoint("POST", "/api/failures/retry")
def retry_failures(call: ApiRequest, body: FailuresBody) -> ChangedJobs:
    """Run the failed jobs again, and all other failed jobs of their documents."""
    return changed_jobs(failures.retry_failures(call.session, call.visitor.owner, **_selection(body)))


def _selection(body: FailuresBody) -> failures.FailureSelection:
    if body.all == bool(body.jobs):
        raise BadInput("give jobs, or all = true")
    return {"job_ids": body.jobs or None, "code": body.error or None}
