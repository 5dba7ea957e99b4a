"""Batches: what one person submitted together, and how far it is. Frozen values, like all of `jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from worker_service.jobs.documents import Decision, IndexStatus
from worker_service.jobs.model import Enqueued, NewJob, Status


class BatchState(StrEnum):
    ACTIVE = "active"
    WAITING = "waiting"
    """Until the owner's other batches have ended or are stopped: for its first turn, or replaced by a newer batch."""
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
    """What becomes of an owner's other active batches when one begins or goes on."""

    REPLACE = "replace"
    """They wait, and resume when the newer one has ended or is stopped."""
    QUEUE = "queue"
    """They go on, and the new one waits."""
    OFF = "off"


class NewBatch(Struct, frozen=True):
    owner: str = ""
    name: str = ""
    priority: int = 5
    asked: str = "{}"
    """JSON: what the person asked for, for eyes."""
    actions: str = "[]"
    """JSON: what follows once it has ended, each {"job_type": …, "payload": …}."""


class BatchOfJobs(Struct, frozen=True):
    """A batch, with all that it begins with."""

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
    """+1 whenever it begins again after it had ended."""
    note: str | None
    """Why it is in its state: stopped by ann."""
    asked: str
    actions: str
    created_at: str
    ended_at: str | None
    replaced_by: int | None = None
    """Of a waiting batch: the newer batch of its owner, after which it resumes."""

    @property
    def title(self) -> str:
        return f"batch {self.id} ({self.name})" if self.name else f"batch {self.id}"


def unique_key_in_batch(key: str, batch_id: int) -> str:
    """Return the unique_key of a batch's job: a job of another batch with the same key may be held."""
    return f"{key}:batch:{batch_id}"


class InBatch(NamedTuple):
    """What became of one of the jobs that were submitted, as `Enqueued` has it."""

    job_id: int | None
    """None: its document needs none."""
    existing: bool = False
    document_id: int | None = None
    decision: Decision | None = None

    @classmethod
    def of(cls, enqueued: Enqueued) -> InBatch:
        return cls(enqueued.job_id or None, *enqueued[1:])


class BatchAdded(Struct, frozen=True):
    batch: Batch
    jobs: Sequence[InBatch]
    replaced: Sequence[int] = ()
    """The owner's other batches, which wait until this one ends."""


class LiveWork(NamedTuple):
    """A live job that already does what a new job would do."""

    job_id: int
    batch_id: int | None
    document_id: int | None = None


class WorkToSubmit(Struct, frozen=True):
    """The jobs of a submission, by their position, before any of them is inserted."""

    new: Sequence[int]
    """These need a job."""
    live: Mapping[int, LiveWork]
    """Live jobs of the same owner already do the work of these. All others need no job: their documents are known."""


class BatchMoved(Struct, frozen=True):
    """What a verb made of a batch."""

    batch: Batch
    job_ids: Sequence[int] = ()
    """Jobs that were retried, or cancelled."""
    asked: Sequence[int] = ()
    """Running jobs that were asked to stop."""
    refused: Mapping[int, str] = field(default_factory=dict)
    replaced: Sequence[int] = ()


class BatchFacts(Struct, frozen=True):
    """What is stored of how far a batch is."""

    jobs: Mapping[Status, int]
    documents: Mapping[IndexStatus, int]
    files_on_the_way: int
    """Sources of which there is no document yet, because their jobs have not ended."""
    files_not_brought_in: int
    """Sources whose last try failed or was cancelled."""
    files_cancelled: int
    """Of those, the sources whose last job was cancelled."""
    documents_cancelled: int
    """Failed documents whose reading was cancelled."""
    may_find_more: bool
    """A job lives that is for no document and no one source: a crawl, or one of somebody's own."""
    pages: int
    """Of the documents whose pages were counted."""
    pages_read: int
    pages_left: int
    """Of those whose pages were counted, and that are still to be read."""
    uncounted: int
    """Documents still to be read, whose pages nobody has counted yet."""
    size: int
    """Bytes of the originals that are there."""
    pages_lately: int
    """Stored since `lately_seconds`."""
    lately_seconds: float
    current: tuple[str, int, int | None] | None = None
    """Of the document that moved last, of those that are being read: name, pages read, pages."""
