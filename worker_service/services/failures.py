"""List, dismiss and retry failures that need attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from msgspec import Struct

from worker_service.base.errors import JobNotFound
from worker_service.jobs.history import Changed
from worker_service.jobs.job import Job
from worker_service.jobs.selector import Selector
from worker_service.services import job_control
from worker_service.services.failure_sentences import Helps, explain_failure, explanation_of
from worker_service.services.jobs import each_job
from worker_service.services.session import Session, cut_page


class OpenFailure(Struct, frozen=True):
    id: int
    job_id: int
    document_id: int | None
    owner: str
    name: str
    job_type: str
    at: str
    code: str
    happened: str
    advice: str
    helps: Helps
    detail: str


class FailureSelection(TypedDict):
    job_ids: Sequence[int] | None
    code: str | None


class FailurePage(Struct, frozen=True):
    items: Sequence[OpenFailure]
    next: int | None


class FailureReason(Struct, frozen=True):
    code: str
    happened: str
    count: int


def list_failures(
    session: Session,
    owner: str | None,
    *,
    code: str | None = None,
    batch_id: int | None = None,
    limit: int = 50,
    before_id: int | None = None,
) -> FailurePage:
    rows = session.job_queries.failures(owner=owner, code=code, before_id=before_id, most=limit + 1, batch_id=batch_id)
    job_by_id = {job.id: job for job in each_job(session, [job_id for _, job_id, _ in rows])}
    # Leave out jobs that were deleted since the query.
    failures = [_open_failure(row_id, job_by_id[job_id], name) for row_id, job_id, name in rows if job_id in job_by_id]
    return FailurePage(*cut_page(failures, limit))


def count_failures(session: Session, owner: str | None) -> Sequence[FailureReason]:
    reasons: list[FailureReason] = []
    for code, count in session.job_queries.count_failures(owner).items():
        explanation = explanation_of(code)
        reasons.append(FailureReason(code, "" if explanation is None else explanation.happened, count))
    return reasons


def dismiss_failures(
    session: Session, owner: str | None, *, job_ids: Sequence[int] | None = None, code: str | None = None
) -> Changed:
    return session.store.job_control.dismiss(select_failures(session, owner, job_ids, code), actor=session.actor)


def dismiss_replaced(session: Session, owner: str | None, job_ids: Sequence[int]) -> None:
    # Ids of jobs that need no attention are ignored.
    failing = session.job_queries.failing_jobs(owner=owner, ids=job_ids) if job_ids else ()
    session.store.job_control.dismiss(failing, actor=session.actor)


def retry_failures(
    session: Session, owner: str | None, *, job_ids: Sequence[int] | None = None, code: str | None = None
) -> Changed:
    # Include the other failed jobs of their documents: a document is listed as one failure.
    ids = session.job_queries.failed_jobs_of_same_documents(select_failures(session, owner, job_ids, code))
    if not ids:
        return Changed(None, ())
    return job_control.apply_plan(session, job_control.make_plan(session, "retry", Selector(ids=ids), seconds=0))


def select_failures(
    session: Session, owner: str | None, job_ids: Sequence[int] | None = None, code: str | None = None
) -> Sequence[int]:
    failing = session.job_queries.failing_jobs(owner=owner, code=code, ids=job_ids)
    if missing := sorted({*(job_ids or ())} - {*failing}):
        raise JobNotFound(f"job {missing[0]} has no failure that needs attention", "`pagemill failures` lists them")
    return failing


def _open_failure(row_id: int, job: Job, document_name: str) -> OpenFailure:
    explanation = explain_failure(job)
    return OpenFailure(
        id=row_id,
        job_id=job.id,
        document_id=job.document_id,
        owner=job.owner,
        name=document_name or job.name or job.account or f"{job.job_type} {job.id}",
        job_type=job.job_type,
        at=job.completed_at or job.created_at,
        code=job.error_code or "",
        happened=explanation.happened,
        advice=explanation.advice,
        helps=explanation.helps,
        detail=job.error_text,
    )
