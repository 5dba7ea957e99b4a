"""Running attempts and their slots, from the claim until the outcome is written, and the context of the daemon's parts.

Only the main loop's thread uses these objects.
"""

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

# Written in the order in which the child sent them, so that a handler reads its own writes.
OrderedReport = PagesRead | Checkpointed | Asked

# Estimated memory of an item without its texts.
_ITEM_BYTES = 500


@dataclass(slots=True)
class Attempt:
    job: Job
    lease: Lease
    job_class: str
    is_at_most_once: bool = False
    # Consecutive attempts of the job that died with the fork server, this one included.
    fork_server_deaths: int = 0

    # Another worker owns the lease, or the row has ended: write nothing more.
    is_lost: bool = False
    is_cancelled: bool = False
    # Stop it by SIGKILL, without SIGTERM first.
    without_grace: bool = False
    is_batch_stopped: bool = False
    # With this the job fails, because the store has rejected a page or checkpoint.
    rejection: Failure | None = None
    stopped_at: float | None = None
    is_killed: bool = False

    # True if one of the next five fields or `node` was set since the last write.
    has_unwritten_progress: bool = False
    percent: float | None = None
    message: str | None = None
    count: Count | None = None
    lines: LogBuffer = field(default_factory=LogBuffer)
    child: ChildProcess | None = None
    has_started: bool = False
    node: str | None = None
    ordered_reports: deque[OrderedReport] = field(default_factory=deque)
    ordered_bytes: int = 0
    # The entry of `ordered_reports` whose answer the child waits for.
    question: Asked | None = None
    asked_at: float = 0.0

    # One child runs several attempts of this type in turn. The log shows only their ends.
    shares_child: bool = False
    took_seconds: float | None = None

    @property
    def key(self) -> Key:
        return self.lease.job_id, self.lease.fence

    @property
    def has_progress_or_lines(self) -> bool:
        return self.percent is not None or self.message is not None or bool(self.lines)

    def set_node(self, node: str) -> None:
        self.node = node
        self.has_unwritten_progress = True

    def set_child(self, child: ChildProcess) -> None:
        self.child, self.has_started = child, True
        self.has_unwritten_progress = True

    def add_progress(self, progress: Progressed) -> None:
        self.percent = progress.percent if self.percent is None else max(self.percent, progress.percent)
        self.message = progress.message or self.message
        self.count = progress.count
        self.has_unwritten_progress = True

    def add_lines(self, lines: Iterable[str]) -> None:
        self.lines.add(lines)
        self.has_unwritten_progress = True

    def pop_progress(self, lines_most: int) -> Report:
        lines = self.lines.pop(lines_most)
        report = Report(self.lease, self.percent, self.message, lines, self.child, self.node, self.count)
        self.percent = self.message = self.count = self.child = None
        self.has_unwritten_progress = bool(self.lines)
        return report

    def restore_progress(self, report: Report) -> None:
        if self.percent is None:
            self.percent, self.count = report.percent, report.count
        self.message = report.message if self.message is None else self.message
        self.lines.restore(report.lines)
        self.child = self.child or report.child
        self.has_unwritten_progress = True

    def queue_report(self, report: OrderedReport, *, now: float) -> None:
        if isinstance(report, Asked):
            self.question, self.asked_at = report, now
        elif isinstance(report, Checkpointed):
            self._drop_superseded_checkpoint()
        self.ordered_reports.append(report)
        self.ordered_bytes += _estimate_bytes(report)

    def remove_report(self, report: OrderedReport) -> None:
        self.ordered_reports.remove(report)
        self.ordered_bytes -= _estimate_bytes(report)
        if report is self.question:
            self.question = None

    def drop_question(self) -> Asked | None:
        question = self.question
        if question is not None:
            self.remove_report(question)
        return question

    def drop_reports(self) -> None:
        self.ordered_reports.clear()
        self.ordered_bytes, self.question = 0, None

    def drop_checkpoints(self) -> None:
        for report in [report for report in self.ordered_reports if isinstance(report, Checkpointed)]:
            self.remove_report(report)

    def _drop_superseded_checkpoint(self) -> None:
        last = next((report for report in reversed(self.ordered_reports) if isinstance(report, Checkpointed)), None)
        # A checkpoint with more than a state has effects that the next one does not repeat.
        if last is not None and not last.follow_ups and last.crawl is None and last.embeddings is None:
            self.remove_report(last)


def _estimate_bytes(report: OrderedReport) -> int:
    if isinstance(report, PagesRead):
        return sum(_ITEM_BYTES + len(page.text or "") + len(page.layout or "") for page in report.pages)
    if isinstance(report, Asked):
        return _ITEM_BYTES + len(report.body)
    items = 0 if report.crawl is None else len(report.crawl.items)
    payloads = sum(len(job.payload or "") for job in report.follow_ups)
    vectors = 0 if report.embeddings is None else sum(len(passage.vectors) for passage in report.embeddings.passages)
    return _ITEM_BYTES * (1 + items + len(report.follow_ups)) + len(report.state) + payloads + vectors


@dataclass(slots=True)
class Slots:
    """A class of jobs may have more attempts than slots: prefetched attempts wait in the fork server for a child."""

    sizes: dict[str, int]
    # Attempts that may have unwritten reports. There may be thousands of others, too many to check in each turn.
    reporting: dict[Key, Attempt] = field(default_factory=dict)
    _attempts: dict[Key, Attempt] = field(default_factory=dict)
    _count_by_class: Counter[str] = field(default_factory=Counter)

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
        self._count_by_class[attempt.job_class] += 1

    def remove(self, attempt: Attempt) -> None:
        self.reporting.pop(attempt.key, None)
        if self._attempts.pop(attempt.key, None) is not None:
            self._count_by_class[attempt.job_class] -= 1

    def prune_reporting(self) -> None:
        self.reporting = {
            key: attempt
            for key, attempt in self.reporting.items()
            if attempt.has_unwritten_progress or attempt.ordered_reports
        }

    def used(self, job_class: str) -> int:
        return min(self._count_by_class[job_class], self.sizes.get(job_class, 0))

    def free(self, job_class: str) -> int:
        return self.sizes.get(job_class, 0) - self.used(job_class)

    def prefetched(self, job_class: str) -> int:
        return self._count_by_class[job_class] - self.used(job_class)

    def count_by_type(self, job_class: str) -> Counter[str]:
        if not self._count_by_class[job_class]:
            # Do not search thousands of attempts of other classes.
            return Counter()
        return Counter(attempt.job.job_type for attempt in self._attempts.values() if attempt.job_class == job_class)

    def leases(self) -> tuple[Lease, ...]:
        return tuple(attempt.lease for attempt in self._attempts.values() if not attempt.is_lost)


# Wait after a failure of the store, or of a whole turn of the loop.
PAUSE_SECONDS = 1.0


@dataclass(slots=True)
class DaemonContext:
    settings: Settings
    identity: Identity
    log: Log
    store: Store
    # For progress, log lines and pages. A power cut may undo its last commits, but a row that refers to a page is never
    # left without it: it is committed after the page, to the same write-ahead log.
    relaxed_store: Store
    slots: Slots
    clock: Clock = wall_clock
    monotonic: Callable[[], float] = time.monotonic
    # When to use the store again after a failure. 0.0: the last use succeeded.
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
