"""Attempts and their slots, from the claim until the outcome is written, and the context of all parts of the daemon."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worker_service.base import events
from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import PagemillError, StoreError
from worker_service.jobs.attempts import ChildProcess, Count, Failure, Report
from worker_service.jobs.job import Job, Lease
from worker_service.runner.log_lines import LogBuffer
from worker_service.runner.messages import Asked, Checkpointed, Key, PagesRead, Progressed
from worker_service.runner.worker_identity import Identity
from worker_service.settings.config import Settings
from worker_service.store.store import Store

if TYPE_CHECKING:
    from worker_service.base.events import Log

OrderedReport = PagesRead | Checkpointed | Asked

_REPORT_BYTES_LEAST = 500


@dataclass(slots=True)
class Attempt:
    job: Job
    lease: Lease
    job_class: str
    is_at_most_once: bool = False
    fork_server_deaths: int = 0
    """Consecutive attempts that died with the fork server, this one included."""
    is_lost: bool = False
    """Another worker owns the lease, or the row has ended: write nothing more."""
    is_cancelled: bool = False
    without_grace: bool = False
    is_held_up: bool = False
    """The batch is stopped, so the job is to be released. An at-most-once job runs to its end instead."""
    stopped_at: float | None = None
    is_killed: bool = False
    percent: float | None = None
    message: str | None = None
    count: Count | None = None
    lines: LogBuffer = field(default_factory=LogBuffer)
    child: ChildProcess | None = None
    has_begun: bool = False
    node: str | None = None
    has_news: bool = False
    refused: Failure | None = None
    unwritten: deque[OrderedReport] = field(default_factory=deque)
    unwritten_bytes: int = 0
    question: Asked | None = None
    """The entry of `unwritten` whose answer the child waits for."""
    asked_at: float = 0.0
    shares_child: bool = False
    """One child runs several attempts of this type in turn. The log shows only their ends."""
    took_seconds: float | None = None

    @property
    def key(self) -> Key:
        return self.lease.job_id, self.lease.fence

    @property
    def has_progress(self) -> bool:
        return self.percent is not None or self.message is not None or bool(self.lines)

    def set_node(self, node: str) -> None:
        self.node = node
        self.has_news = True

    def set_child(self, child: ChildProcess) -> None:
        self.child, self.has_begun = child, True
        self.has_news = True

    def add_progress(self, progress: Progressed) -> None:
        self.percent = progress.percent if self.percent is None else max(self.percent, progress.percent)
        self.message = progress.message or self.message
        self.count = progress.count
        self.has_news = True

    def add_lines(self, lines: Iterable[str]) -> None:
        self.lines.add(lines)
        self.has_news = True

    def queue_report(self, report: OrderedReport, *, now: float) -> None:
        if isinstance(report, Asked):
            self.question, self.asked_at = report, now
        elif isinstance(report, Checkpointed):
            self._drop_superseded_checkpoint()
        self.unwritten.append(report)
        self.unwritten_bytes += _bytes_of(report)

    def remove_report(self, report: OrderedReport) -> None:
        # The report is in the store, or will never be.
        self.unwritten.remove(report)
        self.unwritten_bytes -= _bytes_of(report)
        if report is self.question:
            self.question = None

    def drop_question(self) -> Asked | None:
        asked = self.question
        if asked is not None:
            self.remove_report(asked)
        return asked

    def drop_reports(self) -> None:
        self.unwritten.clear()
        self.unwritten_bytes, self.question = 0, None

    def drop_checkpoints(self) -> None:
        for report in [one for one in self.unwritten if isinstance(one, Checkpointed)]:
            self.remove_report(report)

    def _drop_superseded_checkpoint(self) -> None:
        last = next((one for one in reversed(self.unwritten) if isinstance(one, Checkpointed)), None)
        # A checkpoint with more than a state has effects that the next one does not repeat.
        if last is not None and not last.follow_ups and last.crawl is None and last.embeddings is None:
            self.remove_report(last)

    def refuse(self, failure: Failure) -> None:
        self.refused = self.refused or failure

    def put_back(self, report: Report) -> None:
        if self.percent is None:
            self.percent, self.count = report.percent, report.count
        self.message = report.message if self.message is None else self.message
        self.lines.put_back(report.lines)
        self.child = self.child or report.child
        self.has_news = True

    def take_report(self, lines_most: int) -> Report:
        lines = self.lines.take(lines_most)
        report = Report(self.lease, self.percent, self.message, lines, self.child, self.node, self.count)
        self.child = None
        self.percent, self.message, self.count, self.has_news = None, None, None, bool(self.lines)
        return report


def _bytes_of(report: OrderedReport) -> int:
    if isinstance(report, PagesRead):
        return sum(_REPORT_BYTES_LEAST + len(page.text or "") + len(page.layout or "") for page in report.pages)
    if isinstance(report, Asked):
        return _REPORT_BYTES_LEAST + len(report.body)
    items = 0 if report.crawl is None else len(report.crawl.items)
    payloads = sum(len(job.payload or "") for job in report.follow_ups)
    vectors = 0 if report.embeddings is None else sum(len(one.vectors) for one in report.embeddings.passages)
    return _REPORT_BYTES_LEAST * (1 + items + len(report.follow_ups)) + len(report.state) + payloads + vectors


@dataclass(slots=True)
class Slots:
    """A class of jobs may have more attempts than slots: prefetched attempts wait in the fork server for a child."""

    sizes: dict[str, int]
    # Attempts that may have unwritten reports. There may be thousands of others, too many to check in each turn.
    reporting: dict[Key, Attempt] = field(default_factory=dict)
    _attempts: dict[Key, Attempt] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    def get(self, key: Key) -> Attempt | None:
        return self._attempts.get(key)

    def find(self, lease: Lease) -> Attempt | None:
        return self._attempts.get((lease.job_id, lease.fence))

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._numbers[attempt.job_class] += 1

    def remove(self, attempt: Attempt) -> None:
        self.reporting.pop(attempt.key, None)
        if self._attempts.pop(attempt.key, None) is not None:
            self._numbers[attempt.job_class] -= 1

    def forget_silent(self) -> None:
        self.reporting = {key: one for key, one in self.reporting.items() if one.has_news or one.unwritten}

    def used(self, job_class: str) -> int:
        return min(self._numbers[job_class], self.sizes.get(job_class, 0))

    def free(self, job_class: str) -> int:
        return self.sizes.get(job_class, 0) - self.used(job_class)

    def prefetched(self, job_class: str) -> int:
        return self._numbers[job_class] - self.used(job_class)

    def by_type(self, job_class: str) -> Counter[str]:
        if not self._numbers[job_class]:
            return Counter()
        return Counter(one.job.job_type for one in self._attempts.values() if one.job_class == job_class)

    def leases(self) -> tuple[Lease, ...]:
        return tuple(attempt.lease for attempt in self._attempts.values() if not attempt.is_lost)


PAUSE_SECONDS = 1.0


@dataclass(slots=True)
class DaemonContext:
    settings: Settings
    identity: Identity
    log: Log
    store: Store
    # For progress, log lines and pages. A power cut may undo its last commits, but a row that refers to a page is never
    # left without it: it is committed after the page, to the same write-ahead log.
    quick_store: Store
    slots: Slots
    clock: Clock = wall_clock
    monotonic: Callable[[], float] = time.monotonic
    store_again_at: float = 0.0

    def note_store_failure(self, error: StoreError) -> None:
        if not self.store_again_at:
            self.log.error(events.STORE_UNAVAILABLE, **failure_fields(error))
        self.store_again_at = self.monotonic() + PAUSE_SECONDS

    def note_store_success(self) -> None:
        self.store_again_at = 0.0

    @property
    def must_wait_for_store(self) -> bool:
        return self.monotonic() < self.store_again_at


def failure_fields(error: Exception) -> dict[str, object]:
    if isinstance(error, PagemillError):
        return {"code": error.code, "reason": error.detail, "remedy": error.remedy}
    return {"reason": str(error)}
