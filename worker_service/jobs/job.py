"""New and stored jobs, stored schedules, and what keeps pending jobs from starting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import Decision, DeferredAction, DocumentRequest


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_ended(self) -> bool:
        return self not in (Status.PENDING, Status.RUNNING)


class NewJob(Struct, frozen=True):
    job_type: str
    platform: str = "local"
    account: str | None = None
    payload: str | None = None
    priority: int | None = None
    """None: the parent job's priority, or 5."""
    owner: str = ""
    source: str = ""
    run_at: datetime | None = None
    max_retries: int | None = None
    """None for the setting of the job type, or the default of the table."""
    timeout_seconds: int | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    batch_id: int | None = None
    document_id: int | None = None
    generation: int | None = None
    name: str | None = None
    """None for the name of the document or of the parent job."""
    source_key: str | None = None
    after: Sequence[int] = ()
    after_any: bool = False
    """Wait until the jobs in `after` have ended in any way."""
    after_earlier: bool = False
    """Wait also for the follow-up jobs before this one in the same list."""
    on_failure: Sequence[DeferredAction] = ()
    document: DocumentRequest | None = None
    """The job is inserted only if this document has to be read."""
    adds_document: DocumentRequest | None = None
    """The job is not inserted if this revision has been read with these settings."""


class Enqueued(NamedTuple):
    job_id: int
    """0: the document needs no job."""
    existing: bool = False
    """True: `job_id` is an earlier live job with the same unique_key or document."""
    document_id: int | None = None
    decision: Decision | None = None


class SourceRest(Struct, frozen=True):
    """The effect of `PauseSource`: no job of the source starts before `until`."""

    source: str
    until: str
    reason: str


class StoredSchedule(Struct, frozen=True):
    name: str
    owner: str
    definition: str
    """JSON of the other fields of a [[schedule]] table."""
    paused_at: str | None = None


class ScheduleRun(Struct, frozen=True):
    slot: str | None
    """None: a user started it."""
    at: str
    job_id: int | None
    batch_id: int | None = None


class StartedWork(Struct, frozen=True):
    job_id: int | None
    batch_id: int | None = None
    existing: bool = False


class Lease(NamedTuple):
    """A worker's hold on a job, lost when the fence of the row is raised."""

    job_id: int
    fence: int
    worker_id: str


class Job(NamedTuple):
    """A row of the queue, with times as UTC text. A Struct of 41 fields would be slower."""

    id: int
    job_type: str
    platform: str
    account: str | None
    priority: int
    status: Status
    held: int
    fence: int
    owner: str
    source: str
    run_at: str | None
    created_at: str
    started_at: str | None
    heartbeat_at: str | None
    completed_at: str | None
    cancel_requested_at: str | None
    worker_id: str | None
    retry_count: int
    max_retries: int
    requeue_count: int
    timeout_seconds: int | None
    progress_percent: int
    progress_done: int | None
    progress_total: int | None
    progress_rate: float | None
    progress_unit: str | None
    progress_at: str | None
    batch_id: int | None
    document_id: int | None
    generation: int | None
    parent_id: int | None
    name: str | None
    source_key: str | None
    unique_key: str | None
    concurrency_key: str | None
    error_code: str | None
    error_message: str | None
    error_remedy: str | None
    progress_message: str | None
    payload: str | None
    result: str | None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Job:
        values = list(row)
        values[_STATUS_INDEX] = _STATUS_BY_TEXT[values[_STATUS_INDEX]]
        return cls._make(values)

    @property
    def error_text(self) -> str:
        return in_a_sentence(self.error_message or "", self.error_remedy)

    @property
    def lease(self) -> Lease:
        if self.worker_id is None:
            raise ValueError(f"job {self.id} is {self.status}: only a running job has a lease")
        return Lease(self.id, self.fence, self.worker_id)


_STATUS_INDEX = Job._fields.index("status")
_STATUS_BY_TEXT = {str(status): status for status in Status}


class Gate(Struct, frozen=True):
    """A reason why a pending job does not start."""

    code: str
    detail: str
    remedy: str = ""
    """Empty: the remedy follows from the code."""
    count: int = 0
    """Number of jobs that are ahead in the queue."""


class Pause(Struct, frozen=True):
    scope: str
    name: str
    since: str
    until: str | None
    reason: str | None


CAPABILITY_MISSING = "CAPABILITY_MISSING"
"""Code of work that needs something that the machine lacks."""
