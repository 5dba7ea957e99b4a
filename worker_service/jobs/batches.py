"""Batches: jobs that a user has submitted together, and their progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from worker_service.jobs.documents import Decision, IndexStatus
from worker_service.jobs.job import Enqueued, NewJob, Status


class BatchState(StrEnum):
    ACTIVE = "active"
    WAITING = "waiting"
    """Waiting until the owner's other batches have ended or are stopped, either to start or to resume."""
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_ended(self) -> bool:
        return self in (BatchState.DONE, BatchState.FAILED)

    @property
    def word(self) -> str:
        """The state for people: a batch with 42 of 47 files read has not failed."""
        return "finished" if self is BatchState.FAILED else self.value


class OwnerPolicy(StrEnum):
    REPLACE = "replace"
    """The other batches wait, and resume when this one has ended or is stopped."""
    QUEUE = "queue"
    OFF = "off"


class NewBatch(Struct, frozen=True):
    owner: str = ""
    name: str = ""
    priority: int = 5
    asked: str = "{}"
    """JSON: the user's request, for display."""
    actions: str = "[]"
    """JSON: actions to run when the batch ends, each {"job_type": …, "payload": …}."""


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
    """Raised by 1 whenever the batch starts again after it has ended."""
    note: str | None
    """Reason for its state, such as "stopped by ann"."""
    asked: str
    actions: str
    created_at: str
    ended_at: str | None
    replaced_by: int | None = None
    """The newer batch of its owner that a waiting batch resumes after."""

    @property
    def title(self) -> str:
        return f"batch {self.id} ({self.name})" if self.name else f"batch {self.id}"


def unique_key_in_batch(key: str, batch_id: int) -> str:
    """Return the unique_key of a batch's job: a job of another batch with the same key may be held."""
    return f"{key}:batch:{batch_id}"


class InBatch(NamedTuple):
    job_id: int | None
    """None: no job was inserted, because its document needs none."""
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
    """Position → live job of the same owner that does the same work. The other positions need no job, because their
    documents have been read or are being read."""


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
    """Number of sources without a document whose jobs have not ended."""
    files_not_brought_in: int
    """Number of sources without a document whose last job failed or was cancelled."""
    files_cancelled: int
    """Number of sources without a document whose last job was cancelled."""
    documents_cancelled: int
    may_find_more: bool
    """True if a live job belongs to no document and no single source, such as a crawl or a custom job."""
    pages: int
    pages_read: int
    pages_left: int
    uncounted: int
    size: int
    pages_lately: int
    lately_seconds: float
    current: tuple[str, int, int | None] | None = None
    """(name, pages read, pages) of the document that advanced last."""
