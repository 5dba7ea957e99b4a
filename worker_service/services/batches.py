"""Start, follow, stop and resume batches of jobs. `owner_policy` decides which batch of an owner waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from worker_service.base.errors import BadInput, Refused, WaitTimedOut
from worker_service.base.humanize import counted
from worker_service.jobs.batches import (
    BATCH_ENDS_READER,
    Batch,
    BatchAdded,
    BatchFacts,
    BatchMoved,
    BatchState,
    InBatch,
    NewBatch,
    OwnerPolicy,
)
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import NewJob, Status
from worker_service.services.enqueue import enqueue_jobs, with_lost_files_forced
from worker_service.services.parse import read_choices, read_name_of_batch, read_priority
from worker_service.services.session import Session, cut_page, deadline_after, poll

PRIORITY = 3
"""High, because a user waits for the batch."""

_PAGES_FOR_PACE_MIN = 2


class BatchProgress(Struct, frozen=True):
    """Files are documents, and sources that are not documents yet."""

    jobs: int
    jobs_ended: int
    jobs_failed: int
    files: int
    files_ended: int
    files_failed: int
    files_cancelled: int
    may_find_more: bool
    pages: int
    pages_read: int
    pages_left: int | None
    """None until the pages of all unread files are counted."""
    pages_a_minute: float | None
    """Average of the last five minutes; None if too few pages were read."""
    seconds_left: float | None
    size: int
    """Bytes of the original files in the workspace."""
    name: str = ""
    """Name of the document that progressed last."""
    name_pages_read: int = 0
    name_pages: int | None = None
    by_job_status: Mapping[Status, int] = field(default_factory=dict)
    by_document_state: Mapping[IndexStatus, int] = field(default_factory=dict)

    @property
    def percent(self) -> int:
        """Return the share of pages if all are counted; without pages, of files; without files, of jobs."""
        if self.pages_left is not None and self.pages:
            done, total = self.pages_read, self.pages_read + self.pages_left
        elif self.files:
            done, total = self.files_ended, self.files
        else:
            done, total = self.jobs_ended, self.jobs
        return 100 * done // total if total else 100


class BatchDetails(Struct, frozen=True):
    batch: Batch
    progress: BatchProgress


class BatchPage(Struct, frozen=True):
    items: Sequence[BatchDetails]
    next: int | None


def list_batches(
    session: Session,
    *,
    owners: Sequence[str] = (),
    states: Sequence[str] = (),
    limit: int = 50,
    before_id: int | None = None,
) -> BatchPage:
    batches = session.store.batches.list(
        owners=owners, states=read_choices(BatchState, states), most=limit + 1, before_id=before_id
    )
    items, next_id = cut_page(batches, limit)
    return BatchPage([_details(session, batch) for batch in items], next_id)


def get_batch(session: Session, batch_id: int) -> Batch:
    return session.store.batches.get(batch_id)


def newest_batches(session: Session, owner: str | None, *, most: int) -> Sequence[Batch]:
    return session.store.batches.list(owners=() if owner is None else (owner,), most=most)


def get_batch_details(session: Session, batch_id: int) -> BatchDetails:
    return _details(session, session.store.batches.get(batch_id))


def _details(session: Session, batch: Batch) -> BatchDetails:
    return BatchDetails(batch, progress_of(batch, session.store.batches.facts(batch.id)))


def progress_of(batch: Batch, facts: BatchFacts) -> BatchProgress:
    documents, job_count = facts.documents, sum(facts.jobs.values())
    cancelled = facts.documents_cancelled + facts.files_cancelled
    # The store counts cancelled files among the failed ones.
    failed = documents.get(IndexStatus.FAILED, 0) + facts.files_not_brought_in - cancelled
    # A document that is `not_indexed` was recorded without a request to read it.
    finished = documents.get(IndexStatus.SUCCESS, 0) + documents.get(IndexStatus.NOT_INDEXED, 0)
    live_jobs = facts.jobs.get(Status.PENDING, 0) + facts.jobs.get(Status.RUNNING, 0)
    has_uncounted = facts.uncounted or facts.files_on_the_way or facts.may_find_more
    pages_left = None if has_uncounted else facts.pages_left
    pace = None
    if facts.pages_lately >= _PAGES_FOR_PACE_MIN and facts.lately_seconds >= 1:
        pace = 60 * facts.pages_lately / facts.lately_seconds
    name, name_pages_read, name_pages = facts.current or ("", 0, None)
    seconds_left = None
    if batch.state is BatchState.ACTIVE and pace is not None and pages_left is not None:
        seconds_left = 60 * pages_left / pace
    return BatchProgress(
        jobs=job_count,
        jobs_ended=job_count - live_jobs,
        jobs_failed=facts.jobs.get(Status.FAILED, 0),
        files=sum(documents.values()) + facts.files_on_the_way + facts.files_not_brought_in,
        files_ended=finished + failed + cancelled,
        files_failed=failed,
        files_cancelled=cancelled,
        may_find_more=facts.may_find_more,
        pages=facts.pages,
        pages_read=facts.pages_read,
        pages_left=pages_left,
        pages_a_minute=pace,
        seconds_left=seconds_left,
        size=facts.size,
        name=name,
        name_pages_read=name_pages_read,
        name_pages=name_pages,
        by_job_status=facts.jobs,
        by_document_state=documents,
    )


def describe_progress(details: BatchDetails) -> str:
    """Return, for example, `30 of 120 files · 4,664 pages · 44 pages/min · 14 min left`."""
    batch, progress = details.batch, details.progress
    failed = progress.files_failed or progress.jobs_failed
    problem_counts = [(failed, "failed"), (progress.files_cancelled, "cancelled")]
    problems = [f"{number:,} {word}" for number, word in problem_counts if number]
    total = counted(progress.files, "file") if progress.files else counted(progress.jobs, "job")
    pages = counted(progress.pages_read, "page")
    if batch.state.is_ended:
        parts = [", ".join([batch.state.word, *problems]), total]
        if progress.files:
            parts.append(pages)
        return " · ".join(parts)
    ended = progress.files_ended if progress.files else progress.jobs_ended
    so_far = " found so far" if progress.may_find_more else ""
    parts = [", ".join([f"{ended:,} of {total}{so_far}", *problems])]
    if progress.pages_read:
        parts.append(pages)
    if batch.state is not BatchState.ACTIVE:
        state = str(batch.state) if batch.replaced_by is None else f"replaced by batch {batch.replaced_by}"
        return " · ".join([state, *parts])
    if progress.pages_a_minute is not None:
        parts.append(f"{progress.pages_a_minute:.0f} pages/min")
    if progress.seconds_left is not None:
        parts.append(f"{_rounded_length(progress.seconds_left)} left")
    elif progress.files:
        parts.append("still counting pages")
    return " · ".join(parts)


def titled_progress(details: BatchDetails) -> str:
    return f"{details.batch.title}: {describe_progress(details)}"


def _rounded_length(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


# ── Changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class BatchRequest(Struct, frozen=True):
    owner: str = ""
    name: str = ""
    priority: int = PRIORITY
    asked: Mapping[str, Any] = {}
    """The user's request, for display."""
    actions: Sequence[Mapping[str, Any]] = ()
    """A job is made from each when the batch ends."""
    notify: str = ""
    """Address that gets a message at the end."""


def add_batch(session: Session, jobs: Sequence[NewJob], request: BatchRequest) -> BatchAdded:
    new = NewBatch(
        request.owner,
        read_name_of_batch(request.name),
        read_priority(request.priority),
        json.dumps(dict(request.asked), ensure_ascii=False),
        json.dumps([dict(action) for action in request.actions], ensure_ascii=False),
        request.notify,
    )
    if request.notify:
        # Start to follow the notices of ended batches before this batch can end.
        session.store.notices.begin(BATCH_ENDS_READER)
    jobs = with_lost_files_forced(session, jobs, owner=request.owner)
    return session.store.batches.add(new, jobs, policy=_policy(session))


class SubmittedBatch(Struct, frozen=True):
    items: Sequence[InBatch]
    """In the order of the submitted jobs."""
    added: BatchAdded | None
    """None: no job was new."""


def submit_batch(session: Session, jobs: Sequence[NewJob], request: BatchRequest) -> SubmittedBatch:
    """Start a batch only if there is new work, so that a repeated command replaces no batch."""
    jobs = with_lost_files_forced(session, jobs)
    work = session.store.batches.find_work(jobs)
    added: BatchAdded | None = None
    positions_to_insert = [position for position in range(len(jobs)) if position not in work.live]
    jobs_to_insert = [jobs[position] for position in positions_to_insert]
    if work.new:
        added = add_batch(session, jobs_to_insert, request)
        inserted: Sequence[InBatch] = added.jobs
    else:
        enqueued_jobs = enqueue_jobs(session, [replace(job, priority=request.priority) for job in jobs_to_insert])
        inserted = [InBatch.from_enqueued(enqueued) for enqueued in enqueued_jobs]
    item_by_position = dict(zip(positions_to_insert, inserted, strict=True))
    for position, live in work.live.items():
        item_by_position[position] = InBatch(live.job_id, existing=True, document_id=live.document_id)
    return SubmittedBatch([item_by_position[position] for position in range(len(jobs))], added)


def batches_to_replace(session: Session, owner: str, *, by: int | None = None) -> Sequence[BatchDetails]:
    """Return the owner's active batches, which will wait when batch `by` (None: a new batch) starts."""
    if not owner or _policy(session) is not OwnerPolicy.REPLACE:
        return []
    active = list_batches(session, owners=[owner], states=[BatchState.ACTIVE]).items
    return [details for details in active if details.batch.id != by]


def batches_replaced_by(session: Session, batch: Batch) -> Sequence[Batch]:
    waiting = session.store.batches.list(owners=[batch.owner], states=[BatchState.WAITING])
    return [other for other in waiting if other.replaced_by == batch.id]


def extend_batch(session: Session, batch_id: int, jobs: Sequence[NewJob], *, owner: str = "") -> BatchAdded:
    batch = session.store.batches.get(batch_id)
    if owner and owner != batch.owner:
        raise BadInput(
            f"{batch.title} belongs to {batch.owner or 'no owner'}", "leave --owner out, or start a new batch"
        )
    return session.store.batches.extend(batch_id, with_lost_files_forced(session, jobs, owner=batch.owner))


def stop_batch(session: Session, batch_id: int) -> Batch:
    return session.store.batches.stop(batch_id, actor=session.actor)


def resume_batch(session: Session, batch_id: int) -> BatchMoved:
    return session.store.batches.resume(batch_id, actor=session.actor, policy=_policy(session))


def retry_batch(session: Session, batch_id: int) -> BatchMoved:
    return session.store.batches.retry(batch_id, actor=session.actor, policy=_policy(session))


def cancel_batch(session: Session, batch_id: int) -> BatchMoved:
    return session.store.batches.cancel(batch_id, actor=session.actor)


def remove_batch(session: Session, batch_id: int) -> Batch:
    return session.store.batches.remove(batch_id, actor=session.actor)


def _policy(session: Session) -> OwnerPolicy:
    return OwnerPolicy(session.settings.owner_policy)


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def wait_for_batch(
    session: Session,
    batch_id: int,
    *,
    timeout: str | None = None,
    watch: Callable[[BatchDetails], None] | None = None,
) -> BatchDetails:
    for details in poll(session, lambda: get_batch_details(session, batch_id), deadline=deadline_after(timeout)):
        if watch is not None:
            watch(details)
        batch = details.batch
        if batch.state.is_ended:
            return details
        if batch.state is BatchState.STOPPED:
            remedy = f"`pagemill batch resume {batch_id}` resumes it"
            raise Refused(f"{batch.title} was {batch.note or 'stopped'}", remedy)
    raise WaitTimedOut(f"after {timeout}, {details.batch.title} had not ended: {describe_progress(details)}")
