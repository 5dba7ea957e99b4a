"""Wait until jobs have ended or documents have been read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, JobNotFound, WaitTimedOut
from worker_service.base.humanize import counted
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import jobs
from worker_service.services.documents import each_document
from worker_service.services.job_control import ENDED, LIVE
from worker_service.services.jobs import require_jobs
from worker_service.services.overview import Overview
from worker_service.services.session import Session, chunks, deadline_after, poll


class JobsProgress(Struct, frozen=True):
    total: int
    by_status: Mapping[Status, int]
    jobs: Sequence[Job]
    """The jobs to show: all if there are few, otherwise the running and the newest failed ones."""

    @property
    def ended(self) -> int:
        return sum(number for status, number in self.by_status.items() if status.is_ended)


# Gets the maximum number of `JobsProgress.jobs`. The query takes long, so a display calls it only when it draws.
QueryProgress = Callable[[int], JobsProgress]
# The second argument is True at the end.
WatchJobs = Callable[[QueryProgress, bool], None]


class WaitResult(Struct, frozen=True):
    completed: int
    failed: int
    cancelled: int
    gone: int
    """Jobs deleted meanwhile."""
    going_on: int
    """Live jobs that the awaited jobs created."""

    @property
    def have_all_completed(self) -> bool:
        return not (self.failed or self.cancelled or self.gone)


def wait_for_jobs(
    session: Session,
    selector: Selector,
    *,
    timeout: str | None = None,
    watch: WatchJobs | None = None,
    with_follow_ups: bool = False,
) -> WaitResult:
    """Wait for every selected job and, with `with_follow_ups`, every job that one of them created."""
    if selector.is_empty:
        raise BadInput("say which jobs to wait for: ids, or selectors such as --owner alice")
    deadline = deadline_after(timeout)
    require_jobs(session, selector.ids)
    ids = session.job_queries.ids(selector)
    if not ids:
        raise JobNotFound("no job matches: there is nothing to wait for")
    names_jobs = selector.ids or selector.names_groups or selector.batch_id is not None
    if not names_jobs and not selector.statuses:
        # Jobs that only match a selector count if they are live now; those that the user names count in any status.
        ids = session.job_queries.ids(replace(selector, statuses=LIVE))
    ended_count = 0
    while len(ids) > ended_count:
        if not _wait_for_end(session, ids, deadline, watch):
            left = counted(jobs.count_jobs(session, ids, LIVE), "job")
            raise WaitTimedOut(f"after {timeout}, {left} of {len(ids)} had not ended")
        ended_count = len(ids)
        if with_follow_ups:
            ids = session.job_queries.family(ids)
    if watch is not None:
        watch(lambda jobs_max: _jobs_progress(session, ids, jobs_max), True)
    return _wait_result(session, ids)


def _wait_for_end(session: Session, ids: Sequence[int], deadline: float, watch: WatchJobs | None) -> bool:
    chunks_left = chunks(ids)

    def has_live_jobs() -> bool:
        # Do not count jobs again that have ended.
        while chunks_left and not jobs.count_jobs(session, chunks_left[0], LIVE):
            chunks_left.pop(0)
        return bool(chunks_left)

    for is_live in poll(session, has_live_jobs, deadline=deadline):
        if not is_live:
            return True
        if watch is not None:
            watch(lambda jobs_max: _jobs_progress(session, ids, jobs_max), False)
    return False


def _wait_result(session: Session, ids: Sequence[int]) -> WaitResult:
    completed, failed, cancelled = (jobs.count_jobs(session, ids, (status,)) for status in ENDED)
    family = session.job_queries.family(ids)
    going_on = jobs.count_jobs(session, family, LIVE) if len(family) > len(ids) else 0
    gone = len(ids) - completed - failed - cancelled
    return WaitResult(completed, failed, cancelled, gone=gone, going_on=going_on)


def _jobs_progress(session: Session, ids: Sequence[int], jobs_max: int) -> JobsProgress:
    by_status = {status: jobs.count_jobs(session, ids, (status,)) for status in Status}
    if len(ids) <= jobs_max:
        return JobsProgress(len(ids), by_status, sorted(jobs.each_job(session, ids), key=attrgetter("id")))
    # Failed jobs get what the running ones leave, and a quarter at least.
    failed_max = max(jobs_max - by_status[Status.RUNNING], jobs_max // 4)
    failed = _newest(session, ids, Status.FAILED, failed_max)
    running = _newest(session, ids, Status.RUNNING, jobs_max - len(failed))
    return JobsProgress(len(ids), by_status, [*running, *failed])


def _newest(session: Session, ids: Sequence[int], status: Status, jobs_max: int) -> list[Job]:
    newest: list[Job] = []
    for chunk in reversed(chunks(ids)):  # the ids ascend
        free_places = jobs_max - len(newest)
        if free_places > 0:
            newest += session.job_queries.list(Selector(ids=chunk, statuses=(status,)), most=free_places)
    return sorted(newest, key=attrgetter("id"))


def await_ends(session: Session, ids: Sequence[int], *, seconds: float) -> Mapping[int, str]:
    """Wait up to `seconds`. Return the reason for each job that has not ended."""
    for live_jobs in poll(session, lambda: jobs.count_jobs(session, ids, LIVE), deadline=time.monotonic() + seconds):
        if not live_jobs:
            return {}
    return dict(_reasons_not_ended(session, ids))


def _reasons_not_ended(session: Session, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
    live_worker_by_id = {worker.id: worker for worker in Overview(session).live_workers}
    for job in jobs.each_job(session, ids, LIVE):
        worker = live_worker_by_id.get(job.worker_id or "")
        if worker is None:
            reason = f"its worker {job.worker_id} is gone or silent: the next daemon ends the job"
        else:
            reason = f"worker {worker.id} (pid {worker.pid} on {worker.host}) still has to prove its processes gone"
        yield job.id, reason


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class UnreadDocument(Struct, frozen=True):
    name: str
    code: str
    message: str


class DocumentsProgress(Struct, frozen=True):
    documents: int
    ended: int
    pages_done: int
    pages: int
    pages_left: int | None
    """None while the pages of an unfinished document are not counted."""
    failed: Sequence[UnreadDocument] = ()
    existing: Sequence[Document] = ()
    """The documents that have not been removed."""


WatchDocuments = Callable[[DocumentsProgress], None]


def wait_for_documents(
    session: Session,
    awaited: Sequence[Document],
    *,
    timeout: str | None,
    watch: WatchDocuments,
) -> DocumentsProgress:
    for progress in poll(session, lambda: _documents_progress(session, awaited), deadline=deadline_after(timeout)):
        watch(progress)
        if progress.ended >= len(awaited):
            return progress
    raise WaitTimedOut(f"after {timeout}, {len(awaited) - progress.ended} of {len(awaited)} were not read")


def _documents_progress(session: Session, awaited: Sequence[Document]) -> DocumentsProgress:
    existing = list(each_document(session, DocumentSelector(ids=[document.id for document in awaited])))
    existing_ids = {document.id for document in existing}
    failed = [
        UnreadDocument(document.name, "GONE", "it has been removed")
        for document in awaited
        if document.id not in existing_ids
    ]
    failed += [
        UnreadDocument(document.name, document.error_code or "FAILED", document.error_text)
        for document in existing
        if document.status is IndexStatus.FAILED
    ]
    unread = [document for document in existing if document.status in (IndexStatus.QUEUED, IndexStatus.INDEXING)]
    pages_left = None
    if all(document.pages is not None for document in unread):
        pages_left = sum((document.pages or 0) - _pages_done(document) for document in unread)
    return DocumentsProgress(
        documents=len(awaited),
        ended=len(awaited) - len(unread),
        pages_done=sum(map(_pages_done, existing)),
        pages=sum(document.pages or 0 for document in existing),
        pages_left=pages_left,
        failed=failed,
        existing=existing,
    )


def _pages_done(document: Document) -> int:
    if document.has_failed_anew:
        return 0  # its pages are of an earlier reading
    return document.percent * (document.pages or 0) // 100
