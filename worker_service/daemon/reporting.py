"""Write what child processes report, in few transactions, under the lease of each attempt.

Ordered reports (pages, checkpoints, questions) are written one after another; progress and log lines are merged. Both
come before the outcome. While the store is unavailable they wait in memory, and if these are too many (`is_full`), the
loop stops reading from the fork server.
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
from worker_service.runner.log_lines import LogBuffer
from worker_service.runner.messages import Asked, Checkpointed, Key, PagesRead
from worker_service.runner.questions import decode_question
from worker_service.workspace import file_exists, find_deleted_sources

# The daemon exits if ordered reports or outcomes cannot be written for so long.
PATIENCE_SECONDS = 60.0
# Time between two regular writes.
REPORT_SECONDS = 0.25
# A question that could not be answered in this time is refused.
ASK_SECONDS = 5.0
BACKLOG_BYTES_MAX = 32 << 20
# More bytes of ordered reports are written at once: an attempt keeps its slot until its reports are written.
_URGENT_BYTES = 256 << 10
# Per transaction, for all attempts together.
_LINES_AT_ONCE = 500
_PAGES_AT_ONCE = 200
_PAGE_CHARACTERS_AT_ONCE = 8 << 20
# Per turn of the loop.
_WRITE_SECONDS_MAX = 0.2
_REJECTIONS = (RuleBroken, BadPayload, BadInput, Refused)


class StoreFailedTooLong(StoreError, code="cannot_land"):
    pass


@dataclass(slots=True)
class Reporter:
    context: DaemonContext
    # The pool's `answer`.
    send_answer: Callable[..., None]
    has_own_commits: bool = False
    """Set after a checkpoint, which the loop's `FileWatch` does not notice; the loop resets it."""
    _next_regular_at: float = 0.0
    _failing_since: float | None = None

    @property
    def is_full(self) -> bool:
        # An estimate: characters count as bytes.
        line_bytes = sum(attempt.lines.characters for attempt in self._attempts)
        return self._ordered_bytes + line_bytes > BACKLOG_BYTES_MAX

    @property
    def _attempts(self) -> Collection[Attempt]:
        return self.context.slots.reporting.values()

    @property
    def _ordered_bytes(self) -> int:
        return sum(attempt.ordered_bytes for attempt in self._attempts)

    @property
    def next_at(self) -> float | None:
        if not any(attempt.has_unwritten_progress or attempt.ordered_reports for attempt in self._attempts):
            return None
        has_question = any(attempt.question is not None for attempt in self._attempts)
        is_urgent = has_question or self._ordered_bytes > _URGENT_BYTES
        return max(0.0 if is_urgent else self._next_regular_at, self.context.store_again_at)

    def report(self, ending: Sequence[Attempt] = ()) -> None:
        """Write what is due. The outcomes of the attempts in `ending` wait until all their reports are written."""
        now = self.context.monotonic()
        self.context.slots.prune_reporting()
        self._drop_stale_reports(now)
        next_at = self.next_at
        is_due = next_at is not None and (now >= next_at or self.is_full)
        if self.context.must_wait_for_store or not (is_due or ending):
            return
        if is_due:
            self._next_regular_at = now + REPORT_SECONDS
        try:
            self._write_progress(self._attempts if is_due else ending)
            # One call writes a limited number of log lines.
            while any(attempt.has_unwritten_progress and not attempt.is_lost for attempt in ending):
                self._write_progress(ending)
            if is_due or any(attempt.ordered_reports for attempt in ending):
                self._write_ordered_reports(until=now + _WRITE_SECONDS_MAX)
        except StoreError as error:
            self._postpone(error)
        else:
            self._failing_since = None
            self.context.note_store_success()

    def _drop_stale_reports(self, now: float) -> None:
        for attempt in self._attempts:
            if attempt.is_lost:
                self._drop_reports(attempt, "the lease is lost")
                attempt.lines = LogBuffer()
            elif attempt.question is not None and now > attempt.asked_at + ASK_SECONDS:
                self._refuse_question(attempt, f"the database did not answer within {ASK_SECONDS:g} s")

    def _write_ordered_reports(self, *, until: float) -> None:
        while True:
            found_pages = self._save_pages()
            found_others = self._write_first_reports()
            if not found_pages and not found_others:
                return
            if self.context.monotonic() > until:
                # Write the others in the next turn, without a wait.
                self._next_regular_at = self.context.monotonic()
                return

    def _postpone(self, error: StoreError) -> None:
        self.context.note_store_failure(error)
        now = self.context.monotonic()
        waiting = sum(len(attempt.ordered_reports) for attempt in self._attempts)
        if not waiting:
            # Progress and log lines may wait: when there are too many, the oldest lines are dropped.
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= PATIENCE_SECONDS:
            raise StoreFailedTooLong(f"{waiting} pages and checkpoints could not be written: {error}") from error

    # ── Progress and log lines ──

    def _write_progress(self, attempts: Iterable[Attempt]) -> None:
        reporting = [attempt for attempt in attempts if attempt.has_unwritten_progress and not attempt.is_lost]
        if not reporting:
            return
        attempts_with_lines = sum(bool(attempt.lines) for attempt in reporting)
        lines_per_attempt = max(1, _LINES_AT_ONCE // max(1, attempts_with_lines))
        reports = [(attempt, attempt.pop_progress(lines_per_attempt)) for attempt in reporting]
        try:
            lost = self.context.relaxed_store.leases.report([report for _, report in reports])
        except StoreError:
            for attempt, report in reports:
                attempt.restore_progress(report)
            raise
        for lease in lost:
            self._mark_lost(self.context.slots.find(lease))

    # ── Pages of all attempts, in one transaction ──

    def _save_pages(self) -> bool:
        """Return False if no attempt has pages at the head of its ordered reports."""
        batch = self._first_pages()
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

    def _first_pages(self) -> list[tuple[Attempt, PagesRead]]:
        batch: list[tuple[Attempt, PagesRead]] = []
        pages_left, characters_left = _PAGES_AT_ONCE, _PAGE_CHARACTERS_AT_ONCE
        for attempt in self._attempts:
            for report in attempt.ordered_reports:
                if not isinstance(report, PagesRead):
                    break
                # The first report is always included, however large it is.
                if batch and (len(report.pages) > pages_left or characters_left <= 0):
                    return batch
                batch.append((attempt, report))
                pages_left -= len(report.pages)
                characters_left -= sum(len(page.text or "") + len(page.layout or "") for page in report.pages)
        return batch

    def _save_alone(self, own_reports: list[tuple[Attempt, PagesRead]]) -> None:
        try:
            self._save(own_reports)
        except _REJECTIONS as error:
            attempt, _ = own_reports[0]
            self._reject(attempt, Failure("PAGE_REFUSED", str(error)))

    def _save(self, batch: list[tuple[Attempt, PagesRead]]) -> None:
        lost = self.context.relaxed_store.attempts.save_pages(
            [(attempt.lease, page) for attempt, report in batch for page in report.pages]
        )
        for attempt, report in batch:
            attempt.remove_report(report)
        for lease in lost:
            self._mark_lost(self.context.slots.find(lease))

    # ── Checkpoints and questions, one by one ──

    def _write_first_reports(self) -> bool:
        """Return False if no attempt has a checkpoint or question at the head of its ordered reports."""
        found = False
        for attempt in self._attempts:
            first = attempt.ordered_reports[0] if attempt.ordered_reports else None
            if isinstance(first, Checkpointed):
                self._write_checkpoint(attempt, first)
            elif isinstance(first, Asked):
                self._answer(attempt, first)
            found |= isinstance(first, Checkpointed | Asked)
        return found

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
            self.has_own_commits = True

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
                deleted = find_deleted_sources(store, workspace, job.owner, job.platform, [item.id for item in items])
                # Without a revision, the crawl takes the item for changed and reads it again.
                return CrawlMemory(
                    state, [replace(item, revision="") if item.id in deleted else item for item in items]
                )
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
        # Pages are still saved: a retry of the job reuses them.
        attempt.drop_checkpoints()

    def _reject(self, attempt: Attempt, failure: Failure) -> None:
        attempt.rejection = attempt.rejection or failure
        self._drop_reports(attempt, failure.message)

    def _drop_reports(self, attempt: Attempt, reason: str) -> None:
        self._refuse_question(attempt, reason)
        attempt.drop_reports()

    def _refuse_question(self, attempt: Attempt, reason: str) -> None:
        asked = attempt.drop_question()
        if asked is not None:
            self.send_answer(asked, None, code="ASK_FAILED", message=reason)
