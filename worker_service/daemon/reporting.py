"""Write what child processes report, in few transactions, under the lease of each attempt.

Pages, checkpoints and questions are written in order, and before the outcome; progress and log lines are merged. While
the store is unavailable, reports wait in memory. Above a limit, the loop stops reading from the fork server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from worker_service.base import events
from worker_service.base.errors import (
    BadInput,
    BadPayload,
    CancelRequested,
    LeaseLost,
    Refused,
    RuleBroken,
    StoreError,
)
from worker_service.daemon.attempts import Attempt, DaemonContext
from worker_service.jobs.attempts import Checkpoint, Failure
from worker_service.jobs.documents import CrawlMemory, Files, QuestionAnswer
from worker_service.jobs.job import Job
from worker_service.runner.messages import Asked, Checkpointed, Key, PagesRead
from worker_service.runner.questions import decode_question
from worker_service.workspace import file_exists, find_deleted_sources

# The daemon exits if reports or outcomes cannot be written for so long.
PATIENCE_SECONDS = 60.0
REPORT_SECONDS = 0.25
# A question that could not be answered in this time is refused.
ASK_SECONDS = 5.0
BACKLOG_BYTES_MAX = 32 << 20
# More unwritten bytes than this are written at once: an attempt keeps its slot until its reports are written.
_URGENT_BYTES = 256 << 10
# Per transaction, for all attempts together.
_LINES_AT_ONCE = 500
_PAGES_AT_ONCE = 200
_PAGE_BYTES_AT_ONCE = 8 << 20
_WRITE_SECONDS_MAX = 0.2
_REJECTIONS = (RuleBroken, BadPayload, BadInput, Refused)


class CannotLand(StoreError, code="cannot_land"):
    pass


@dataclass(slots=True)
class Reporter:
    context: DaemonContext
    # `LocalPool.answer`.
    send_answer: Callable[..., None]
    has_committed: bool = False
    """True after a commit on the loop's own connection, which the watch for other commits does not notice."""
    _next_at: float = 0.0
    _failing_since: float | None = None

    @property
    def is_full(self) -> bool:
        line_characters = sum(attempt.lines.characters for attempt in self._attempts)
        return self._unwritten_bytes + line_characters > BACKLOG_BYTES_MAX

    @property
    def _attempts(self) -> Collection[Attempt]:
        return self.context.slots.reporting.values()

    @property
    def _unwritten_bytes(self) -> int:
        return sum(attempt.unwritten_bytes for attempt in self._attempts)

    @property
    def next_at(self) -> float | None:
        if not any(attempt.has_news or attempt.unwritten for attempt in self._attempts):
            return None
        has_question = any(attempt.question is not None for attempt in self._attempts)
        is_urgent = has_question or self._unwritten_bytes > _URGENT_BYTES
        return max(0.0 if is_urgent else self._next_at, self.context.store_again_at)

    def report(self, ending: Sequence[Attempt] = ()) -> None:
        """Write what is due, and all reports of the attempts in `ending`, whose outcomes are written next."""
        now = self.context.monotonic()
        self.context.slots.prune_reporting()
        self._drop_stale(now)
        next_at = self.next_at
        is_due = next_at is not None and (now >= next_at or self.is_full)
        if self.context.must_wait_for_store or not (is_due or ending):
            return
        if is_due:
            self._next_at = now + REPORT_SECONDS
        try:
            self._write_progress(self._attempts if is_due else ending)
            # One call writes a limited number of log lines.
            while any(attempt.has_news and not attempt.is_lost for attempt in ending):
                self._write_progress(ending)
            if is_due or any(attempt.unwritten for attempt in ending):
                self._write_ordered_reports(until=now + _WRITE_SECONDS_MAX)
        except StoreError as error:
            self._postpone(error)
        else:
            self._failing_since = None
            self.context.note_store_success()

    def _drop_stale(self, now: float) -> None:
        for attempt in self._attempts:
            if attempt.is_lost:
                self._drop_reports(attempt, "the lease is lost")
                attempt.lines.pop()
            elif attempt.question is not None and now > attempt.asked_at + ASK_SECONDS:
                self._refuse_question(attempt, f"the database did not answer within {ASK_SECONDS:g} s")

    def _write_ordered_reports(self, *, until: float) -> None:
        while True:
            has_saved_pages = self._save_pages()
            has_written = self._write_first_reports()
            if not has_saved_pages and not has_written:
                return
            if self.context.monotonic() > until:
                # Write the others in the next turn, without a wait.
                self._next_at = self.context.monotonic()
                return

    def _postpone(self, error: StoreError) -> None:
        self.context.note_store_failure(error)
        now = self.context.monotonic()
        waiting = sum(len(attempt.unwritten) for attempt in self._attempts)
        if not waiting:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= PATIENCE_SECONDS:
            raise CannotLand(f"{waiting} pages and checkpoints could not be written: {error}") from error

    # ── Progress and log lines ──

    def _write_progress(self, attempts: Iterable[Attempt]) -> None:
        with_news = [attempt for attempt in attempts if attempt.has_news and not attempt.is_lost]
        if not with_news:
            return
        with_lines = sum(bool(attempt.lines) for attempt in with_news)
        lines_most = max(1, _LINES_AT_ONCE // max(1, with_lines))
        reports = [(attempt, attempt.pop_report(lines_most)) for attempt in with_news]
        try:
            lost = self.context.quick_store.leases.report([report for _, report in reports])
        except StoreError:
            for attempt, report in reports:
                attempt.restore_report(report)
            raise
        for lease in lost:
            self._mark_lost(self.context.slots.find(lease))

    # ── Pages of all attempts, in one transaction ──

    def _save_pages(self) -> bool:
        batch: list[tuple[Attempt, PagesRead]] = []
        bytes_left, pages = _PAGE_BYTES_AT_ONCE, 0
        for attempt in self._attempts:
            for report in attempt.unwritten:
                if not isinstance(report, PagesRead) or bytes_left <= 0:
                    break
                pages += len(report.pages)
                if batch and pages > _PAGES_AT_ONCE:
                    break
                batch.append((attempt, report))
                bytes_left -= sum(len(page.text or "") + len(page.layout or "") for page in report.pages)
        if not batch:
            return False
        try:
            self._save(batch)
        except _REJECTIONS:
            # The store rejected one of them: save them per attempt to find out which.
            reports_by_attempt: dict[Key, list[tuple[Attempt, PagesRead]]] = {}
            for attempt, report in batch:
                reports_by_attempt.setdefault(attempt.key, []).append((attempt, report))
            for own_reports in reports_by_attempt.values():
                self._save_alone(own_reports)
        return True

    def _save_alone(self, own_reports: list[tuple[Attempt, PagesRead]]) -> None:
        try:
            self._save(own_reports)
        except _REJECTIONS as error:
            attempt, _ = own_reports[0]
            self._reject(attempt, Failure("PAGE_REFUSED", str(error)))

    def _save(self, batch: list[tuple[Attempt, PagesRead]]) -> None:
        lost = self.context.quick_store.attempts.save_pages(
            [(attempt.lease, page) for attempt, report in batch for page in report.pages]
        )
        for attempt, report in batch:
            attempt.remove_report(report)
        for lease in lost:
            self._mark_lost(self.context.slots.find(lease))

    # ── Checkpoints and questions, one by one ──

    def _write_first_reports(self) -> bool:
        has_written = False
        for attempt in self._attempts:
            first = attempt.unwritten[0] if attempt.unwritten else None
            if isinstance(first, Checkpointed):
                self._write_checkpoint(attempt, first)
            elif isinstance(first, Asked):
                self._answer(attempt, first)
            has_written |= isinstance(first, Checkpointed | Asked)
        return has_written

    def _write_checkpoint(self, attempt: Attempt, report: Checkpointed) -> None:
        checkpoint = Checkpoint(report.state, report.follow_ups, report.crawl, report.embeddings)
        try:
            self.context.store.attempts.checkpoint(attempt.lease, checkpoint)
        except CancelRequested:
            self._mark_cancelled(attempt)
        except LeaseLost:
            self._mark_lost(attempt)
        except _REJECTIONS as error:
            self._reject(attempt, Failure("CHECKPOINT_REFUSED", str(error)))
        else:
            attempt.remove_report(report)
            self.has_committed = True

    def _answer(self, attempt: Attempt, asked: Asked) -> None:
        try:
            answer = self.context.store.attempts.answer(attempt.lease, decode_question(asked.kind, asked.body))
        except LeaseLost:
            self._mark_lost(attempt)
        except _REJECTIONS as error:
            self._refuse_question(attempt, str(error))
        else:
            self.send_answer(asked, self._without_missing_files(attempt.job, answer))
            attempt.remove_report(asked)

    def _without_missing_files(self, job: Job, answer: QuestionAnswer) -> QuestionAnswer:
        store, workspace = self.context.store, self.context.settings.workspace
        match answer:
            case Files(files):
                return Files([file for file in files if file_exists(workspace / file.path)])
            case CrawlMemory(state, items):
                gone = find_deleted_sources(store, workspace, job.owner, job.platform, [item.id for item in items])
                return CrawlMemory(state, [replace(item, revision="") if item.id in gone else item for item in items])
        return answer

    # ── Attempts that may no longer write ──

    def _mark_lost(self, attempt: Attempt | None) -> None:
        if attempt is None:
            return
        # The store also rejects the lease of a cancelled job, but its attempt still belongs to this worker.
        rows = self.context.store.leases.leases_of(attempt.lease.worker_id)
        if any(row.lease == attempt.lease and row.is_cancelled for row in rows):
            self._mark_cancelled(attempt)
        else:
            attempt.is_lost = True
            self.context.log.warning(events.LEASE_LOST, job_id=attempt.job.id, fence=attempt.job.fence)
            self._drop_reports(attempt, "the lease is lost")

    def _mark_cancelled(self, attempt: Attempt) -> None:
        attempt.is_cancelled = True
        self._refuse_question(attempt, "the job is cancelled")
        attempt.drop_checkpoints()

    def _reject(self, attempt: Attempt, failure: Failure) -> None:
        attempt.rejected_report = attempt.rejected_report or failure
        self._drop_reports(attempt, failure.message)

    def _drop_reports(self, attempt: Attempt, reason: str) -> None:
        self._refuse_question(attempt, reason)
        attempt.drop_reports()

    def _refuse_question(self, attempt: Attempt, reason: str) -> None:
        asked = attempt.drop_question()
        if asked is not None:
            self.send_answer(asked, None, code="ASK_FAILED", message=reason)
