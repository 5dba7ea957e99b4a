"""Values that the packages exchange: jobs, leases, attempts, workers, gates and counts. All are immutable."""

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
    """A job to be inserted. It has no id yet."""

    job_type: str
    platform: str = "local"
    account: str | None = None
    payload: str | None = None
    priority: int | None = None
    """None: the priority of the parent job, or 5 without a parent."""
    owner: str = ""
    source: str = ""
    run_at: datetime | None = None
    max_retries: int | None = None
    """None: the setting of its job type, or the default of the table."""
    timeout_seconds: int | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    batch_id: int | None = None
    document_id: int | None = None
    generation: int | None = None
    name: str | None = None
    """Display name, usually a file name. None: the name of its document or of its parent job."""
    source_key: str | None = None
    """Source key of the document that this job would add."""
    after: Sequence[int] = ()
    after_any: bool = False
    """True: wait until the jobs in `after` have ended in any way. False: wait until they have completed."""
    after_earlier: bool = False
    """Wait also until the preceding jobs in the same list of follow-ups have completed."""
    on_failure: Sequence[DeferredAction] = ()
    """Actions to run if the job fails."""
    document: DocumentRequest | None = None
    """If set, the job is inserted only if this document has to be read, and takes its next generation."""
    brings: DocumentRequest | None = None
    """The document that the job would add, with its current revision. The job is not inserted if that revision has
    been read with the requested settings."""


class Enqueued(NamedTuple):
    job_id: int
    """0: no job was inserted, because its document needs none."""
    existing: bool = False
    """Nothing was inserted: `job_id` is a live job with the same unique_key, or one that reads the same document."""
    document_id: int | None = None
    decision: Decision | None = None
    """Result of the document request. None: the job has no document."""


class ScheduleRun(Struct, frozen=True):
    """The last run of a schedule."""

    slot: str | None
    """Scheduled time. None: a user started it."""
    at: str
    job_id: int | None
    batch_id: int | None = None


class StartedWork(Struct, frozen=True):
    """The job or batch that a schedule's slot has started."""

    job_id: int | None
    batch_id: int | None = None
    existing: bool = False
    """The job was live already; no job was inserted."""


class Lease(NamedTuple):
    """The right to finish one attempt. It is lost as soon as the row's fence is raised."""

    job_id: int
    fence: int
    worker_id: str


class Job(NamedTuple):
    """A row of worker_job_queue as it was when it was read. Times are UTC text.

    A tuple, because creating a struct of 41 fields would cost more than reading the row.
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
        """Error message and remedy in one sentence."""
        return in_a_sentence(self.error_message or "", self.error_remedy)

    @property
    def lease(self) -> Lease:
        """Lease of a job that has just been claimed."""
        if self.worker_id is None:
            raise ValueError(f"job {self.id} is {self.status}: only a running job has a lease")
        return Lease(self.id, self.fence, self.worker_id)


class HandlerFacts(Struct, frozen=True):
    """Registration of one job type by a worker that has a handler for it."""

    job_type: str
    job_class: str = "cpu"
    missing: str | None = None
    missing_remedy: str = ""
    at_most_once: bool = False
    payload_schema: str | None = None
    timeout_seconds: int = 3600
    choices: str | None = None
    """JSON: for a payload key, its possible values and how to install the missing ones."""

    @property
    def missing_text(self) -> str:
        return in_a_sentence(self.missing or "", self.missing_remedy)


def wants(types: Sequence[str], job_type: str) -> bool:
    """Return True if WORKER_TYPES allows this job type: it is named, or no type is named and `!type` is not given."""
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
    """A row of the `worker` table, with the number of its running jobs."""

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
    """Reason why the node is not up."""


class NodeRow(Struct, frozen=True):
    """A row of the `node` table."""

    name: str
    worker_id: str
    state: str
    slots: int
    version: str
    reason: str
    is_draining: bool
    """True if a user has requested that the node gets no new attempts."""


class NodeWork(Struct, frozen=True):
    """A running job and the node of its attempt."""

    node: str
    job_id: int


class LeaseRow(Struct, frozen=True):
    """A worker's lease as stored, with the requests to stop it."""

    lease: Lease
    is_cancelled: bool
    """Cancellation of the job has been requested."""
    without_grace: bool = False
    """The cancellation was requested without a grace period."""
    is_stopped: bool = False
    """The job's batch is stopped or waiting: release the job."""


class Beat(Struct, frozen=True):
    """Answer to a heartbeat: leases that need action."""

    lost: Sequence[Lease]
    to_cancel: Sequence[Lease]


class Child(Struct, frozen=True):
    """Child process of an attempt. `pid_started`, in clock ticks, tells it from a later process with the same pid."""

    pid: int
    pid_started: int
    sandbox: str


CAPABILITY_MISSING = "CAPABILITY_MISSING"
"""Gate of a job type, or of one job, that needs a capability which the machine does not have."""

WATCHING = "WATCHING"
"""Code of an attempt of a job that watches a source: it has looked, and will look again later."""

LOG_LINES_MOST = 3000
"""Maximum number of log lines stored per job. Older lines are deleted."""


class BrokenPromise(NamedTuple):
    """A finding of the audit. `promise` is its number, such as P4."""

    promise: str
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


class Count(NamedTuple):
    """Progress of an attempt in units. `unit` is a plural such as pages or bytes; `rate` is in units per second."""

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
    """Reported once, when the child process has started."""
    node: str | None = None
    """Cluster node of the attempt. None: it runs on the daemon's own machine."""
    count: Count | None = None
    """Replaces the stored count if `percent` is given."""


class Usage(Struct, frozen=True):
    """Resource use of an attempt, and the signal that ended its process."""

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
    """Make the job's generation the current generation of its document."""
    child: Child | None = None
    """Set if no report has named the child process before."""
    node: str | None = None

    @property
    def brings(self) -> bool:
        """True if there is more to write than the result."""
        return bool(self.files or self.follow_ups or self.publishes)


class Checkpoint(Struct, frozen=True):
    """State, follow-up jobs and crawl items that a handler stores in one transaction."""

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
    """Time of the last report from its handler."""
    node: str | None
    """Cluster node that it ran on. None: the daemon's own machine."""

    @property
    def error_text(self) -> str:
        """Error message and remedy in one sentence."""
        return in_a_sentence(self.error_message or "", self.error_remedy)


class Event(Struct, frozen=True):
    id: int
    job_id: int
    fence: int
    from_status: str
    to_status: str
    at: str


class JobMove(Struct, frozen=True):
    """A change of a job's status, with facts about the job."""

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
    """Code of the job's last error."""


class Notice(Struct, frozen=True):
    """A row of the `notice` table, from which notifications are sent."""

    id: int
    at: str
    kind: str
    """document.ready, batch.done, job.failed, …"""
    owner: str = ""
    job_id: int | None = None
    document_id: int | None = None
    batch_id: int | None = None
    generation: int | None = None
    """Generation of the document. For a batch: its round."""
    code: str | None = None
    message: str | None = None
    remedy: str | None = None


class Episode(Struct, frozen=True):
    """A condition that lasts for a while, such as a silent worker. A notice is written when it begins."""

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
    """A reason why a pending job cannot start now."""

    code: str
    detail: str
    remedy: str = ""
    """Empty: the remedy follows from the code alone."""
    count: int = 0
    """Number of jobs ahead, for AHEAD_IN_QUEUE only."""


class Pause(Struct, frozen=True):
    scope: str
    name: str
    since: str
    until: str | None
    reason: str | None


OPPOSITE = {"cancel": "retry", "retry": "cancel", "priority": "priority"}


class Action(Struct, frozen=True):
    """A bulk change by a user, for the history and for undo."""

    id: int
    at: str
    actor: str
    verb: str
    undone_at: str | None
    jobs: int
    documents: int
    """Number of documents that it removed."""
    tokens: str = ""
    """Tokens that it created or removed, each with its scopes."""
    batch_id: int | None = None
    """The batch that it cancelled, stopped, resumed, retried or removed as a whole."""

    @property
    def opposite(self) -> str | None:
        """The verb that undoes it. None: the action cannot be undone."""
        return OPPOSITE.get(self.verb)


class Changed(Struct, frozen=True):
    """Result of a bulk action. Jobs in `asked` were running and end when their processes have exited."""

    action_id: int | None
    job_ids: Sequence[int]
    asked: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    batch_id: int | None = None
    """The batch that an undo has resumed."""
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
    """Summary of the jobs that ended in a period."""

    jobs: int
    """Number of jobs that completed, failed or were cancelled."""
    failed: int
    pages: int
    """Number of page results stored."""
    waits: Sequence[float]
    """Seconds that a sample of the jobs waited for the first attempt, in ascending order."""


class Check(Struct, frozen=True):
    """One line of `pagemill db check`."""

    name: str
    is_good: bool
    detail: str
    fix: str = ""
