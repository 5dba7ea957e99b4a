"""The running attempts of this worker: their slots, and writing what their child processes report.

An attempt holds its slot from the claim until its outcome is written. Progress and log lines are written a few times a
second and may be lost. Pages and checkpoints may not: for each attempt they are written in the order in which they were
reported, before its outcome and before the answer to a later question, so that a handler reads its own writes. While
the store is unavailable they wait here, up to a limit. Above the limit the loop stops reading from the fork server,
which stops reading from the child processes, which then block while writing.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from worker_service.base import events
from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import (
    BadInput,
    BadPayload,
    CancelRequested,
    LeaseLost,
    PagemillError,
    Refused,
    RuleBroken,
    StoreError,
)
from worker_service.jobs.attempts import Checkpoint, ChildProcess, Count, Failure, Report
from worker_service.jobs.documents import CrawlMemory, Files, QuestionAnswer
from worker_service.jobs.job import Job, Lease
from worker_service.runner.log_lines import LogBuffer
from worker_service.runner.messages import Asked, Checkpointed, Key, PagesRead, Progressed
from worker_service.runner.questions import decode_question
from worker_service.runner.worker_lock import Identity
from worker_service.settings.config import Settings
from worker_service.store.store import Store
from worker_service.workspace import file_exists, find_deleted_sources

if TYPE_CHECKING:
    from worker_service.base.events import Log

Kept = PagesRead | Checkpointed | Asked
"""Reports that must not be lost and keep their order."""

_LEAST_BYTES = 500


@dataclass(slots=True)
class Attempt:
    """A claimed attempt and what remains to be written about it."""

    job: Job
    job_class: str
    is_at_most_once: bool = False
    nursery_deaths: int = 0
    """Consecutive attempts of the job that died with the fork server, this one included."""
    lease: Lease = field(init=False)
    is_lost: bool = False
    """Another worker owns the lease, or the row has ended: nothing more is written about this attempt."""
    is_cancelled: bool = False
    without_grace: bool = False
    """The job was cancelled with no grace period."""
    is_held_up: bool = False
    """The batch is stopped: the job is released, as when the daemon stops. An at-most-once job runs to its end."""
    stopped_at: float | None = None
    """When the child process was asked to stop."""
    is_stopped_now: bool = False
    percent: float | None = None
    message: str | None = None
    count: Count | None = None
    lines: LogBuffer = field(default_factory=LogBuffer)
    child: ChildProcess | None = None
    """The child process, until the next report writes it to the store."""
    has_begun: bool = False
    """The child process was about to call the handler."""
    node: str | None = None
    """The node that runs the attempt; None for the local fork server."""
    has_news: bool = False
    refused: Failure | None = None
    unwritten: deque[Kept] = field(default_factory=deque)
    unwritten_bytes: int = 0
    """Approximate size, used for the limit."""
    question: Asked | None = None
    """The entry of `unwritten` whose answer the child process is waiting for."""
    asked_at: float = 0.0
    is_small: bool = False
    """One child process serves several such attempts. Each is logged only once, when it has ended."""
    took_seconds: float | None = None
    """Duration, if the child process also served other attempts."""

    def __post_init__(self) -> None:
        self.lease = self.job.lease

    @property
    def key(self) -> Key:
        return self.job.id, self.job.fence

    @property
    def has_words(self) -> bool:
        return self.percent is not None or self.message is not None or bool(self.lines)

    def placed(self, node: str) -> None:
        self.node = node
        self.has_news = True

    def started(self, child: ChildProcess) -> None:
        self.child, self.has_begun = child, True
        self.has_news = True

    def progressed(self, said: Progressed) -> None:
        self.percent = said.percent if self.percent is None else max(self.percent, said.percent)
        self.message = said.message or self.message
        self.count = said.count
        self.has_news = True

    def logged(self, lines: Iterable[str]) -> None:
        self.lines.add(lines)
        self.has_news = True

    def keep(self, said: Kept, *, now: float) -> None:
        if isinstance(said, Asked):
            self.question, self.asked_at = said, now
        elif isinstance(said, Checkpointed):
            self._overtake()
        self.unwritten.append(said)
        self.unwritten_bytes += _bytes_of(said)

    def written(self, said: Kept) -> None:
        """Remove the first report of `unwritten`, which is now in the store."""
        self.unwritten.popleft()
        self.unwritten_bytes -= _bytes_of(said)
        if said is self.question:
            self.question = None

    def forget_question(self) -> Asked | None:
        """Remove the pending question, if any, and return it."""
        asked, self.question = self.question, None
        if asked is not None:
            self.unwritten.remove(asked)
            self.unwritten_bytes -= _bytes_of(asked)
        return asked

    def forget_unwritten(self) -> None:
        self.unwritten.clear()
        self.unwritten_bytes, self.question = 0, None

    def forget_checkpoints(self) -> None:
        for said in [said for said in self.unwritten if isinstance(said, Checkpointed)]:
            self.unwritten.remove(said)
            self.unwritten_bytes -= _bytes_of(said)

    def _overtake(self) -> None:
        """Drop the previous unwritten checkpoint if it only carries state: the new one replaces it."""
        for said in reversed(self.unwritten):
            if isinstance(said, Checkpointed):
                if not said.follow_ups and said.crawl is None:
                    self.unwritten.remove(said)
                    self.unwritten_bytes -= _bytes_of(said)
                return

    def refuse(self, failure: Failure) -> None:
        """Fail the attempt with `failure`, regardless of the outcome that its child process reports."""
        self.refused = self.refused or failure

    def put_back(self, report: Report) -> None:
        """Merge a report that could not be written into the next one."""
        if self.percent is None:
            self.percent, self.count = report.percent, report.count
        self.message = report.message if self.message is None else self.message
        self.lines.put_back(report.lines)
        self.child = self.child or report.child
        self.has_news = True

    def take_report(self, lines_most: int) -> Report:
        """Return the news since the last report, with at most `lines_most` lines; the other lines stay for the next."""
        lines = self.lines.take(lines_most)
        report = Report(self.lease, self.percent, self.message, lines, self.child, self.node, self.count)
        self.child = None
        self.percent, self.message, self.count, self.has_news = None, None, None, bool(self.lines)
        return report


def _bytes_of(said: Kept) -> int:
    if isinstance(said, PagesRead):
        return sum(_LEAST_BYTES + len(page.text or "") + len(page.layout or "") for page in said.pages)
    if isinstance(said, Asked):
        return _LEAST_BYTES + len(said.body)
    items = 0 if said.crawl is None else len(said.crawl.items)
    payloads = sum(len(job.payload or "") for job in said.follow_ups)
    return _LEAST_BYTES * (1 + items + len(said.follow_ups)) + len(said.state) + payloads


@dataclass(slots=True)
class Slots:
    """The running attempts and the number of slots per class.

    A class may hold more attempts than slots: attempts claimed ahead wait for a child process that serves several, or
    are released.
    """

    sizes: dict[str, int]
    talking: dict[Key, Attempt] = field(default_factory=dict)
    """Attempts that may have unwritten reports. With thousands of slots, no turn can afford to check all of them."""
    _attempts: dict[Key, Attempt] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    """Number of attempts by class."""

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    def get(self, key: Key) -> Attempt | None:
        return self._attempts.get(key)

    def of(self, lease: Lease) -> Attempt | None:
        return self._attempts.get((lease.job_id, lease.fence))

    def take(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._numbers[attempt.job_class] += 1

    def give_back(self, attempt: Attempt) -> None:
        self.talking.pop(attempt.key, None)
        if self._attempts.pop(attempt.key, None) is not None:
            self._numbers[attempt.job_class] -= 1

    def forget_silent(self) -> None:
        self.talking = {key: one for key, one in self.talking.items() if one.has_news or one.unwritten}

    def taken(self, job_class: str) -> int:
        return min(self._numbers[job_class], self.sizes.get(job_class, 0))

    def free(self, job_class: str) -> int:
        return self.sizes.get(job_class, 0) - self.taken(job_class)

    def beyond(self, job_class: str) -> int:
        """Return how many attempts were claimed ahead of a free slot."""
        return self._numbers[job_class] - self.taken(job_class)

    def by_type(self, job_class: str) -> Counter[str]:
        if not self._numbers[job_class]:
            return Counter()
        return Counter(one.job.job_type for one in self._attempts.values() if one.job_class == job_class)

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are not known to be lost."""
        return tuple(attempt.lease for attempt in self._attempts.values() if not attempt.is_lost)


# ── Context shared by the parts of a daemon ───────────────────────────────────────────────────────────────────────────

PAUSE_SECONDS = 1.0


@dataclass(slots=True)
class Tools:
    """Context shared by the parts of a daemon."""

    settings: Settings
    identity: Identity
    log: Log
    store: Store
    quick_store: Store
    """Store whose last commits a power cut may undo, for progress, log lines and pages. Pages are safe: the rows that
    refer to them are committed later, durably, to the same write-ahead log."""
    slots: Slots
    clock: Clock = wall_clock
    monotonic: Callable[[], float] = time.monotonic
    store_again_at: float = 0.0
    """When to try the unavailable store again; 0 while it works."""

    def store_failed(self, error: StoreError) -> None:
        if not self.store_again_at:
            self.log.error(events.STORE_UNAVAILABLE, **failure_fields(error))
        self.store_again_at = self.monotonic() + PAUSE_SECONDS

    def store_works(self) -> None:
        self.store_again_at = 0.0

    @property
    def must_wait_for_store(self) -> bool:
        return self.monotonic() < self.store_again_at


def failure_fields(error: Exception) -> dict[str, object]:
    """Return the log fields of an error: its code and remedy, where it has them, and what happened."""
    if isinstance(error, PagemillError):
        return {"code": error.code, "reason": error.detail, "remedy": error.remedy}
    return {"reason": str(error)}


# ── Writing reports ───────────────────────────────────────────────────────────────────────────────────────────────────

PATIENCE_SECONDS = 60.0
REPORT_SECONDS = 0.25
"""Interval between writes of progress and log lines, however often a handler reports."""
ASK_SECONDS = 5.0
"""Longest wait of a handler for an answer while the store is unavailable."""
BACKLOG_BYTES_MAX = 32 << 20
_MANY_BYTES = 256 << 10
"""More unwritten bytes than this are written at once: they delay the end of the attempt, which keeps its slot."""
_LINES_AT_ONCE = 500
"""Per transaction, for all attempts together."""
_PAGES_AT_ONCE = 200
_PAGE_BYTES_AT_ONCE = 8 << 20
_BUSY_SECONDS = 0.2
"""Longest time spent writing in one turn."""
_REFUSALS = (RuleBroken, BadPayload, BadInput, Refused)


class CannotLand(StoreError, code="cannot_land"):
    """Reports or outcomes could not be written for too long."""


class Tell(Protocol):
    def __call__(self, asked: Asked, answer: QuestionAnswer | None, *, code: str = "", message: str = "") -> None: ...


@dataclass(slots=True)
class Reporter:
    tools: Tools
    tell: Tell
    patience_seconds: float = PATIENCE_SECONDS
    has_committed: bool = False
    """Set by a commit on the loop's own store, which the watch does not report. The loop resets it."""
    _next_at: float = 0.0
    _failing_since: float | None = None

    @property
    def is_full(self) -> bool:
        lines = sum(attempt.lines.characters for attempt in self._talking)
        return self._unwritten_bytes + lines > BACKLOG_BYTES_MAX

    @property
    def _talking(self) -> Collection[Attempt]:
        return self.tools.slots.talking.values()

    @property
    def _unwritten_bytes(self) -> int:
        return sum(attempt.unwritten_bytes for attempt in self._talking)

    @property
    def next_at(self) -> float | None:
        """When to write next; None if nothing waits."""
        if not any(attempt.has_news or attempt.unwritten for attempt in self._talking):
            return None
        is_urgent = any(one.question is not None for one in self._talking) or self._unwritten_bytes > _MANY_BYTES
        return max(0.0 if is_urgent else self._next_at, self.tools.store_again_at)

    def report(self, ending: Sequence[Attempt] = ()) -> None:
        """Write what is due, and everything about the attempts in `ending`, whose outcomes are written next.

        Raise `CannotLand` if the store has been unavailable for longer than `patience_seconds`.
        """
        now = self.tools.monotonic()
        self.tools.slots.forget_silent()
        for attempt in self._talking:
            if attempt.is_lost:
                self._forget(attempt, "the lease is lost")
                attempt.lines.take()
            elif attempt.question is not None and now > attempt.asked_at + ASK_SECONDS:
                self._refuse_question(attempt, f"the database did not answer within {ASK_SECONDS:g} s")
        next_at = self.next_at
        is_due = next_at is not None and (now >= next_at or self.is_full)
        if self.tools.must_wait_for_store or not (is_due or ending):
            return
        if is_due:
            self._next_at = now + REPORT_SECONDS
        has_kept = is_due or any(attempt.unwritten for attempt in ending)
        try:
            self._report(self._talking if is_due else ending)
            while left := [attempt for attempt in ending if attempt.has_news and not attempt.is_lost]:
                self._report(left)
            while has_kept and self._save_pages() | self._write_heads():
                if self.tools.monotonic() > now + _BUSY_SECONDS:
                    self._next_at = now
                    break
        except StoreError as error:
            self._postpone(error)
        else:
            self._failing_since = None
            self.tools.store_works()

    def _postpone(self, error: StoreError) -> None:
        self.tools.store_failed(error)
        now = self.tools.monotonic()
        waiting = sum(len(attempt.unwritten) for attempt in self._talking)
        if not waiting:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self.patience_seconds:
            raise CannotLand(f"{waiting} pages and checkpoints could not be written: {error}") from error

    # ── Progress and log lines ──

    def _report(self, attempts: Iterable[Attempt]) -> None:
        told = [attempt for attempt in attempts if attempt.has_news and not attempt.is_lost]
        if not told:
            return
        talking = sum(bool(attempt.lines) for attempt in told)
        lines_most = max(1, _LINES_AT_ONCE // max(1, talking))
        reports = [(attempt, attempt.take_report(lines_most)) for attempt in told]
        try:
            find_deleted_sources = self.tools.quick_store.leases.report([report for _, report in reports])
        except StoreError:
            for attempt, report in reports:
                attempt.put_back(report)
            raise
        for lease in find_deleted_sources:
            self._lost(self.tools.slots.of(lease))

    # ── Pages of all attempts, in one transaction ──

    def _save_pages(self) -> bool:
        batch: list[tuple[Attempt, PagesRead]] = []
        room, pages = _PAGE_BYTES_AT_ONCE, 0
        for attempt in self._talking:
            for said in attempt.unwritten:
                if not isinstance(said, PagesRead) or room <= 0:
                    break
                pages += len(said.pages)
                if batch and pages > _PAGES_AT_ONCE:
                    break
                batch.append((attempt, said))
                room -= sum(len(page.text or "") + len(page.layout or "") for page in said.pages)
        if not batch:
            return False
        try:
            self._save(batch)
        except _REFUSALS:
            # A constraint rejected one of them: save them per attempt to find out which.
            for key in dict.fromkeys(attempt.key for attempt, _ in batch):
                self._save_alone([one for one in batch if one[0].key == key])
        return True

    def _save_alone(self, batch: list[tuple[Attempt, PagesRead]]) -> None:
        try:
            self._save(batch)
        except _REFUSALS as error:
            self._refuse(batch[0][0], Failure("PAGE_REFUSED", str(error)))

    def _save(self, batch: list[tuple[Attempt, PagesRead]]) -> None:
        find_deleted_sources = self.tools.quick_store.attempts.save_pages(
            [(attempt.lease, page) for attempt, said in batch for page in said.pages]
        )
        for attempt, said in batch:
            attempt.written(said)
        for lease in find_deleted_sources:
            self._lost(self.tools.slots.of(lease))

    # ── Checkpoints and questions, one by one ──

    def _write_heads(self) -> bool:
        has_written = False
        for attempt in self._talking:
            head = attempt.unwritten[0] if attempt.unwritten else None
            if isinstance(head, Checkpointed):
                self._write_checkpoint(attempt, head)
            elif isinstance(head, Asked):
                self._answer(attempt, head)
            has_written |= isinstance(head, Checkpointed | Asked)
        return has_written

    def _write_checkpoint(self, attempt: Attempt, said: Checkpointed) -> None:
        try:
            self.tools.store.attempts.checkpoint(attempt.lease, Checkpoint(said.state, said.follow_ups, said.crawl))
        except CancelRequested:
            self._cancelled(attempt)
        except LeaseLost:
            self._lost(attempt)
        except _REFUSALS as error:
            self._refuse(attempt, Failure("CHECKPOINT_REFUSED", str(error)))
        else:
            attempt.written(said)
            self.has_committed = True

    def _answer(self, attempt: Attempt, asked: Asked) -> None:
        try:
            answer = self.tools.store.attempts.answer(attempt.lease, decode_question(asked.kind, asked.body))
        except LeaseLost:
            self._lost(attempt)
        except _REFUSALS as error:
            self._refuse_question(attempt, str(error))
        else:
            self.tell(asked, self._there(attempt.job, answer))
            attempt.written(asked)

    def _there(self, job: Job, known: QuestionAnswer) -> QuestionAnswer:
        """Return the answer without what was deleted from the workspace.

        Missing files are left out, and a crawled item whose file is missing gets an empty revision, so that the crawl
        downloads it again.
        """
        store, workspace = self.tools.store, self.tools.settings.workspace
        match known:
            case Files(files):
                return Files([file for file in files if file_exists(workspace / file.path)])
            case CrawlMemory(state, items):
                gone = find_deleted_sources(store, workspace, job.owner, job.platform, [item.id for item in items])
                return CrawlMemory(state, [replace(item, revision="") if item.id in gone else item for item in items])
        return known

    # ── Attempts that may no longer write ──

    def _lost(self, attempt: Attempt | None) -> None:
        if attempt is None:
            return
        # The store also rejects the lease of a job that was asked to stop; such an attempt is still ours to end.
        held = self.tools.store.leases.leases_of(attempt.lease.worker_id)
        if any(row.lease == attempt.lease and row.is_cancelled for row in held):
            self._cancelled(attempt)
        else:
            attempt.is_lost = True
            self.tools.log.warning(events.LEASE_LOST, job_id=attempt.job.id, fence=attempt.job.fence)
            self._forget(attempt, "the lease is lost")

    def _cancelled(self, attempt: Attempt) -> None:
        """Mark the attempt as cancelled. Its pages are still written."""
        attempt.is_cancelled = True
        self._refuse_question(attempt, "the job is cancelled")
        attempt.forget_checkpoints()

    def _refuse(self, attempt: Attempt, failure: Failure) -> None:
        attempt.refuse(failure)
        self._forget(attempt, failure.message)

    def _forget(self, attempt: Attempt, reason: str) -> None:
        self._refuse_question(attempt, reason)
        attempt.forget_unwritten()

    def _refuse_question(self, attempt: Attempt, reason: str) -> None:
        asked = attempt.forget_question()
        if asked is not None:
            self.tell(asked, None, code="ASK_FAILED", message=reason)
