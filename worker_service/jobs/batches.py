"""Batches of jobs, and facts about their progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from worker_service.jobs.documents import Decision, IndexStatus
from worker_service.jobs.job import Enqueued, NewJob, Status

ENDS_TO_REPORT = "notify-batches"
"""Name of the reader of notices that reports the ends of batches to addresses."""


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
        """Return the state in a word for users: a batch with 42 of 47 files read has not failed."""
        return "finished" if self is BatchState.FAILED else self.value


class OwnerPolicy(StrEnum):
    REPLACE = "replace"
    """The owner's other batches wait until this one has ended or is stopped."""
    QUEUE = "queue"
    OFF = "off"


class NewBatch(Struct, frozen=True):
    owner: str = ""
    name: str = ""
    priority: int = 5
    asked: str = "{}"
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
    # Another batch may have a held job with the same key, which must not stand for this one.
    return f"{key}:batch:{batch_id}"


class InBatch(NamedTuple):
    job_id: int | None
    """None: the document needs no job."""
    existing: bool = False
    document_id: int | None = None
    decision: Decision | None = None

    @classmethod
    def from_enqueued(cls, enqueued: Enqueued) -> InBatch:
        return cls(enqueued.job_id or None, *enqueued[1:])


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
    live: Mapping[int, LiveWork]
    """Live jobs of the owner that do the same work, by position."""


class BatchMoved(Struct, frozen=True):
    batch: Batch
    job_ids: Sequence[int] = ()
    asked: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    replaced: Sequence[int] = ()


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
    size: int
    pages_lately: int
    lately_seconds: float
    current: tuple[str, int, int | None] | None = None
    """Name, pages read and pages of the document that progressed last."""
