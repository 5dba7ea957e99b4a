"""Attempts of jobs: what a child process reports, and how the attempt ends. All values are immutable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import CrawlPage, DocumentFacts, FileAgain, NewFile
from worker_service.jobs.job import Lease, NewJob


class ChildProcess(Struct, frozen=True):
    """Child process of an attempt. `pid_started`, in clock ticks, tells it from a later process with the same pid."""

    pid: int
    pid_started: int
    sandbox: str


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
    child: ChildProcess | None = None
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
    child: ChildProcess | None = None
    """Set if no report has named the child process before."""
    node: str | None = None


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
