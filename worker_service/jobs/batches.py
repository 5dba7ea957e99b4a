"""Batches of jobs, and facts about their progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from worker_service.jobs.documents import Decision, IndexStatus
from worker_service.jobs.job import Enqueued, NewJob, Status

BATCH_ENDS_READER = "notify-batches"
"""Row of `notice_reader` for reports of ended batches."""


class BatchState(StrEnum):
    ACTIVE = "active"
    WAITING = "waiting"
    """Waits until the owner's other batches have ended or are stopped."""
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_ended(self) -> bool:
        return self in (BatchState.DONE, BatchState.FAILED)

    @property
    def word(self) -> str:
        """Return the state in a word for users. FAILED also means partly failed, so they see "finished"."""
        return "finished" if self is BatchState.FAILED else self.value


class OwnerPolicy(StrEnum):
    REPLACE = "replace"
    """The owner's other batches wait until this one has ended or is stopped."""
    QUEUE = "queue"
    """The batch waits until the owner's other batches have ended."""
    OFF = "off"
    """All batches of the owner run at the same time."""


class NewBatch(Struct, frozen=True):
    owner: str = ""
    name: str = ""
    priority: int = 5
    asked: str = "{}"
    """JSON of the user's request, such as its sources and settings, kept for display."""
    actions: str = "[]"
    """JSON of the actions to run when the batch ends."""
    notify: str = ""
    """Address to which the end of the batch is reported."""


class BatchOfJobs(Struct, frozen=True):
    new: NewBatch
    jobs: Sequence[NewJob]
    policy: OwnerPolicy


class Batch(Struct, frozen=True):
    id: int
    owner: str
    name: str
    priority: int
    state: BatchState
    round: int
    """Raised whenever the batch starts again."""
    note: str | None
    asked: str
    actions: str
    created_at: str
    ended_at: str | None
    replaced_by: int | None = None
    """The batch that a waiting batch resumes after."""

    @property
    def title(self) -> str:
        return f"batch {self.id} ({self.name})" if self.name else f"batch {self.id}"


def unique_key_in_batch(key: str, batch_id: int) -> str:
    # A waiting or stopped batch may have a job with the same key, which would count as this batch's job but not run.
    return f"{key}:batch:{batch_id}"


class InBatch(NamedTuple):
    job_id: int | None
    """None: the document needs no job."""
    existing: bool = False
    document_id: int | None = None
    decision: Decision | None = None

    @classmethod
    def from_enqueued(cls, enqueued: Enqueued) -> InBatch:
        return cls(
            enqueued.job_id or None,
            existing=enqueued.existing,
            document_id=enqueued.document_id,
            decision=enqueued.decision,
        )


class BatchAdded(Struct, frozen=True):
    batch: Batch
    jobs: Sequence[InBatch]
    replaced: Sequence[int] = ()


class LiveWork(NamedTuple):
    job_id: int
    batch_id: int | None
    document_id: int | None = None


class WorkToSubmit(Struct, frozen=True):
    new: Sequence[int]
    """Indexes of submitted jobs whose work is neither done nor in `live`."""
    live: Mapping[int, LiveWork]
    """By index: the live job of the owner that does the same work."""


class BatchMoved(Struct, frozen=True):
    """The result of resuming, retrying or cancelling a batch."""

    batch: Batch
    job_ids: Sequence[int] = ()
    """Jobs that were retried or cancelled."""
    asked: Sequence[int] = ()
    """Running jobs that were asked to stop."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Reason by job that could not be retried."""
    replaced: Sequence[int] = ()
    """Batches that wait because of this one."""


class BatchFacts(Struct, frozen=True):
    jobs: Mapping[Status, int]
    documents: Mapping[IndexStatus, int]
    files_on_the_way: int
    """Sources without a document whose jobs have not ended."""
    files_not_brought_in: int
    """Sources without a document whose last job failed or was cancelled."""
    files_cancelled: int
    documents_cancelled: int
    may_find_more: bool
    """True if a live job, such as a crawl, may find more sources."""
    pages: int
    pages_read: int
    pages_left: int
    uncounted: int
    """Number of unread documents whose pages are not counted yet."""
    size: int
    """Bytes of the documents' original files."""
    pages_lately: int
    """Pages read in the last `lately_seconds`."""
    lately_seconds: float
    current: tuple[str, int, int | None] | None = None
    """Name, pages read and pages of the document that progressed last."""
