"""The values that travel between the rooms. Frozen; a thing that gains facts gains a new type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import (
    CrawlPage,
    Decision,
    DeferredAction,
    DocumentFacts,
    DocumentRequest,
    FileAgain,
    NewFile,
)


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
    """A job that somebody wishes for. It has no id yet."""

    job_type: str
    platform: str = "local"
    account: str | None = None
    payload: str | None = None
    priority: int | None = None
    """None: that of the job which asks for it, else 5."""
    owner: str = ""
    source: str = ""
    run_at: datetime | None = None
    max_retries: int | None = None
    """None: what the settings say of its type, else what the table says of any."""
    timeout_seconds: int | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    batch_id: int | None = None
    document_id: int | None = None
    generation: int | None = None
    name: str | None = None
    """What it is about, for people: as a rule the name of a file. None: that of its document, or of its parent."""
    source_key: str | None = None
    """Of the document that it would bring in."""
    after: Sequence[int] = ()
    after_any: bool = False
    """Run once the jobs in `after` have ended in any way; else only once they have completed."""
    after_earlier: bool = False
    """Run once the jobs that stand before it in the same list of follow-ups have completed as well."""
    on_failure: Sequence[DeferredAction] = ()
    """What follows once it has failed."""
    document: DocumentRequest | None = None
    """Insert it only if the document is to be read; it then works for that document's next generation."""
    brings: DocumentRequest | None = None
    """The document that it would bring in, and its revision by now. It is not inserted where that revision has been
    read, as it is wished for here."""


class Enqueued(NamedTuple):
    job_id: int
    """0: none was inserted, because its document needs none."""
    existing: bool = False
    """A live job already had this unique_key, or works for this document; `job_id` is that one, and nothing was
    inserted."""
    document_id: int | None = None
    decision: Decision | None = None
    """What became of the wish to have the document read."""


class ScheduleRun(Struct, frozen=True):
    """What a schedule began last."""

    slot: str | None
    """The time that it was for. None: a person began it."""
    at: str
    job_id: int | None
    batch_id: int | None = None


class Taken(Struct, frozen=True):
    """What a slot has begun: a job, or a batch."""

    job_id: int | None
    batch_id: int | None = None
    existing: bool = False
    """A live job does it already."""


class Lease(NamedTuple):
    """The right to finish one attempt. Lost as soon as the row's fence moves on."""

    job_id: int
    fence: int
    worker_id: str


class Job(NamedTuple):
    """A row of worker_job_queue, as it was when it was read. Times are UTC text.

    A tuple, because a frozen dataclass of so many fields costs more to make than its row costs to read.
    """

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

    @property
    def error_text(self) -> str:
        """What went wrong and what to do about it, in one sentence."""
        return in_a_sentence(self.error_message or "", self.error_remedy)

    @property
    def lease(self) -> Lease:
        """Of a job that was just claimed."""
        if self.worker_id is None:
            raise ValueError(f"job {self.id} is {self.status}: only a running job has a lease")
        return Lease(self.id, self.fence, self.worker_id)


class HandlerFacts(Struct, frozen=True):
    """What a worker says of one job type that it can run."""

    job_type: str
    job_class: str = "cpu"
    missing: str | None = None
    missing_remedy: str = ""
    at_most_once: bool = False
    payload_schema: str | None = None
    timeout_seconds: int = 3600
    choices: str | None = None
    """JSON: by the key of a payload what it may be, and how to get what is not there."""

    @property
    def missing_text(self) -> str:
        return in_a_sentence(self.missing or "", self.missing_remedy)


def wants(types: Sequence[str], job_type: str) -> bool:
    """Whether WORKER_TYPES lets this worker take a type: those that are named, or all but those with a !."""
    if f"!{job_type}" in types:
        return False
    named = [word for word in types if not word.startswith("!")]
    return not named or job_type in named


class Worker(Struct, frozen=True):
    """One daemon, as it registers itself."""

    id: str
    host: str
    boot_id: str
    pid: int
    version: str
    cpu_slots: int
    io_slots: int
    handlers: Sequence[HandlerFacts] = ()
    node_slots: int = 0


class WorkerState(Struct, frozen=True):
    """A worker as the others see it."""

    id: str
    host: str
    boot_id: str
    pid: int
    version: str
    cpu_slots: int
    io_slots: int
    is_draining: bool
    is_disk_low: bool
    started_at: str
    heartbeat_at: str
    running: int
    node_slots: int = 0


NODE = "node"
"""The class of attempts that may run on cluster nodes."""


class NodeState(Struct, frozen=True):
    """A cluster node as the Ray driver sees it."""

    name: str
    state: str
    """starting, up, draining, refused or down."""
    slots: int = 0
    version: str = ""
    reason: str = ""
    """Why it is not up."""


class NodeRow(Struct, frozen=True):
    """A row of the `node` table."""

    name: str
    worker_id: str
    state: str
    slots: int
    version: str
    reason: str
    is_draining: bool
    """Whether a user has asked that it gets no new attempts."""


class NodeWork(Struct, frozen=True):
    """A running job and the node of its attempt."""

    node: str
    job_id: int


class LeaseRow(Struct, frozen=True):
    """A lease as its row has it now."""

    lease: Lease
    is_cancelled: bool
    """Somebody asked the job to stop."""
    without_grace: bool = False
    """And without grace."""
    is_stopped: bool = False
    """Its batch is stopped, or waits: it is to come back."""


class Beat(Struct, frozen=True):
    """What a heartbeat learned about the leases it named."""

    lost: Sequence[Lease]
    to_cancel: Sequence[Lease]


class Child(Struct, frozen=True):
    """The child of an attempt. Its start in clock ticks makes the pid the name of one process for ever."""

    pid: int
    pid_started: int
    sandbox: str


CAPABILITY_MISSING = "CAPABILITY_MISSING"
"""The gate of a type, or of one job, for which this machine lacks something."""

WATCHING = "WATCHING"
"""Code of an attempt that has looked, as often before, and will again for ever."""

LOG_LINES_MOST = 3000
"""So many lines of a job are kept: the newest."""


class BrokenPromise(NamedTuple):
    """A finding of the audit. `promise` is its number, such as P4."""

    promise: str
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


class Count(NamedTuple):
    """How far an attempt is, counted. `unit` is a plural such as pages or bytes; `rate` is in units per second."""

    done: int
    total: int | None = None
    unit: str = ""
    rate: float | None = None


class Report(Struct, frozen=True):
    lease: Lease
    percent: float | None = None
    message: str | None = None
    lines: Sequence[str] = ()
    child: Child | None = None
    """Told once, when the child has begun."""
    node: str | None = None
    """Where, if not in this daemon's own nursery."""
    count: Count | None = None
    """Replaces what was counted before, if there is a percent."""


class Usage(Struct, frozen=True):
    """What an attempt cost, and how its process ended."""

    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None
    signal: str | None = None


class Completion(NamedTuple):
    lease: Lease
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    usage: Usage = Usage()
    files: Sequence[NewFile | FileAgain] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    """The generation of the document that the job is for becomes the one that people read."""
    child: Child | None = None
    """Where no report has told it before."""
    node: str | None = None

    @property
    def brings(self) -> bool:
        """More than its result."""
        return bool(self.files or self.follow_ups or self.publishes)


class Checkpoint(Struct, frozen=True):
    """What lands with a handler's checkpoint, in one transaction."""

    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None


class Failure(Struct, frozen=True):
    code: str
    message: str
    usage: Usage = Usage()
    remedy: str = ""


class AttemptRow(Struct, frozen=True):
    job_id: int
    fence: int
    worker_id: str
    started_at: str
    ended_at: str | None
    outcome: str | None
    error_code: str | None
    error_message: str | None
    error_remedy: str | None
    signal: str | None
    cpu_seconds: float | None
    memory_peak_bytes: int | None
    pid: int | None
    pid_started: int | None
    sandbox: str | None
    heard_at: str | None
    """When its handler last said something."""
    node: str | None
    """The node that it ran on; None: in a nursery of its daemon's."""

    @property
    def error_text(self) -> str:
        """What went wrong and what to do about it, in one sentence."""
        return in_a_sentence(self.error_message or "", self.error_remedy)


class Event(Struct, frozen=True):
    id: int
    job_id: int
    fence: int
    from_status: str
    to_status: str
    at: str


class JobMove(Struct, frozen=True):
    """A job came from one status to another."""

    id: int
    at: str
    job_id: int
    from_status: str
    to_status: str
    job_type: str
    owner: str
    name: str | None
    batch_id: int | None
    document_id: int | None
    error_code: str | None
    """Of its last error."""


class Notice(Struct, frozen=True):
    """What somebody may want to be told."""

    id: int
    at: str
    kind: str
    """document.ready, batch.done, job.failed, …"""
    owner: str = ""
    job_id: int | None = None
    document_id: int | None = None
    batch_id: int | None = None
    generation: int | None = None
    """Of its document; of a batch, which time it ran."""
    code: str | None = None
    message: str | None = None
    remedy: str | None = None


class Episode(Struct, frozen=True):
    """What lasts for a while, such as a silent worker, and is told when it begins."""

    key: str
    message: str
    job_id: int | None = None
    code: str | None = None
    remedy: str | None = None


class LogLine(Struct, frozen=True):
    id: int
    job_id: int
    fence: int
    at: str
    line: str


class Gate(Struct, frozen=True):
    """A reason why a pending job may not start now."""

    code: str
    detail: str
    remedy: str = ""
    """Empty: the code alone decides what helps."""
    count: int = 0
    """For AHEAD_IN_QUEUE: how many."""


class Pause(Struct, frozen=True):
    scope: str
    name: str
    since: str
    until: str | None
    reason: str | None


OPPOSITE = {"cancel": "retry", "retry": "cancel", "priority": "priority"}


class Action(Struct, frozen=True):
    """A change that a person made in bulk."""

    id: int
    at: str
    actor: str
    verb: str
    undone_at: str | None
    jobs: int
    documents: int
    """That it removed."""
    tokens: str = ""
    """That it made or removed, and what each is good for."""
    batch_id: int | None = None
    """The batch that it cancelled, stopped, resumed, retried or forgot as a whole."""

    @property
    def opposite(self) -> str | None:
        """By which it is undone; None: what it took away is gone for good."""
        return OPPOSITE.get(self.verb)


class Changed(Struct, frozen=True):
    """What a bulk verb did. `asked` were running: they end once their processes are gone."""

    action_id: int | None
    job_ids: Sequence[int]
    asked: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    batch_id: int | None = None
    """The batch that an undo set going again."""
    waiting: Sequence[int] = ()
    """Batches that wait because a retry started another batch of their owner, or them, again."""


class Counts(Struct, frozen=True):
    by_status: Mapping[Status, int]
    oldest_pending_at: str | None


class TypeCounts(Struct, frozen=True):
    job_type: str
    pending: int
    held: int
    running: int
    completed: int
    failed: int
    cancelled: int


class LiveCounts(Struct, frozen=True):
    job_type: str
    pending: int
    held: int
    running: int


class PlatformCount(Struct, frozen=True):
    platform: str
    count: int


class ErrorCount(Struct, frozen=True):
    code: str
    job_type: str
    jobs: int
    newest_job_id: int
    newest_message: str | None
    newest_remedy: str | None
    newest_name: str | None
    newest_at: str

    @property
    def newest_text(self) -> str:
        return in_a_sentence(self.newest_message or "", self.newest_remedy)


class WorkDone(Struct, frozen=True):
    """What has ended in a stretch of time."""

    jobs: int
    """However they ended."""
    failed: int
    pages: int
    """That were read and stored."""
    waits: Sequence[float]
    """Seconds, the shortest first: how long some of the jobs waited for their first attempt."""


class Check(Struct, frozen=True):
    """One line of `pagemill db check`."""

    name: str
    is_good: bool
    detail: str
    fix: str = ""
