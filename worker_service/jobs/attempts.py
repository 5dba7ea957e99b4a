"""Reports of running attempts, how attempts end, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from worker_service.base.errors import in_a_sentence
from worker_service.jobs.documents import CrawlPage, DocumentFacts, NewFile, RepublishedFile
from worker_service.jobs.embeddings import Embeddings
from worker_service.jobs.job import Lease, NewJob


class ChildProcess(Struct, frozen=True):
    pid: int
    pid_started: int
    sandbox: str


class Count(NamedTuple):
    done: int
    total: int | None = None
    unit: str = ""
    """A plural such as pages."""
    rate: float | None = None
    """Units per second."""


class Report(Struct, frozen=True):
    lease: Lease
    percent: float | None = None
    message: str | None = None
    lines: Sequence[str] = ()
    child: ChildProcess | None = None
    node: str | None = None
    count: Count | None = None
    """Replaces the stored count if `percent` is given."""


class Usage(Struct, frozen=True):
    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None
    signal: str | None = None


class Completion(NamedTuple):
    lease: Lease
    result: str | None = None
    follow_ups: Sequence[NewJob] = ()
    usage: Usage = Usage()
    files: Sequence[NewFile | RepublishedFile] = ()
    document: DocumentFacts | None = None
    publishes: bool = False
    child: ChildProcess | None = None
    """Set if no earlier report has named the child process."""
    node: str | None = None


class Checkpoint(Struct, frozen=True):
    state: str
    follow_ups: Sequence[NewJob] = ()
    crawl: CrawlPage | None = None
    embeddings: Embeddings | None = None


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
    """Time of the last report from the handler."""
    node: str | None

    @property
    def error_text(self) -> str:
        return in_a_sentence(self.error_message or "", self.error_remedy)
