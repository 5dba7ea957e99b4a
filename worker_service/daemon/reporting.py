"""Write what children say while they run, and answer what they ask.

Progress and lines go out a few times a second, of a flood so many lines that it keeps nobody from the table, and may
be lost. Pages and checkpoints may not: of one attempt they land
in the order in which they were said, before its end does, and before a question of it is answered, so that a handler
reads its own writes. While the store takes nothing they wait here. They are bounded: beyond that the loop no longer
listens to the nursery, which then no longer listens to its children, and these wait in the middle of their word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.children.messages import Asked, Checkpointed, PagesRead, question_from
from worker_service.daemon.breath import Breath
from worker_service.daemon.landing import PATIENCE_SECONDS, CannotLand
from worker_service.daemon.slots import Attempt, Slots
from worker_service.daemon.trouble import Trouble
from worker_service.errors import (
    BadInput,
    BadPayload,
    CancelRequested,
    LeaseLost,
    PagemillError,
    Refused,
    RuleBroken,
    StoreError,
)
from worker_service.jobs.documents import Answer, Files
from worker_service.jobs.model import Checkpoint, Failure
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

REPORT_SECONDS = 0.25
"""What is said is written a few times a second, however often a handler says it."""
ASK_SECONDS = 5.0
"""How long a handler waits for an answer that cannot be had."""
BACKLOG_BYTES_MAX = 32 << 20
_MANY_BYTES = 256 << 10
"""Are written at once: the end of an attempt has to wait for what is left to write, and its slot with it."""
_LINES_AT_ONCE = 500
"""In one transaction, of all attempts together."""
_PAGES_AT_ONCE = 200
_PAGE_BYTES_AT_ONCE = 8 << 20
_BUSY_SECONDS = 0.2
"""Then others have their turn."""
_REFUSALS = (RuleBroken, BadPayload, BadInput, Refused)


class Tell(Protocol):
    def __call__(self, asked: Asked, answer: Answer | None, *, code: str = "", message: str = "") -> None: ...


class Reporter:
    def __init__(
        self,
        store: Store,
        quick_store: Store,
        slots: Slots,
        *,
        tell: Tell,
        trouble: Trouble,
        breath: Breath,
        log: Log,
        monotonic: Callable[[], float],
        workspace: Path,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._quick_store = quick_store
        """For what may be lost in a power cut. Pages as well: whatever says that they are there is written later, in
        the same log, and durably."""
        self._slots = slots
        self._tell = tell
        self._trouble = trouble
        self._breath = breath
        self._log = log
        self._monotonic = monotonic
        self._workspace = workspace
        self._patience_seconds = patience_seconds
        self._next_at = 0.0
        self._failing_since: float | None = None
        self.has_committed = False
        """With the loop's own store, of whose commits no hint tells. Whoever has looked takes it back."""

    @property
    def is_full(self) -> bool:
        lines = sum(attempt.lines.characters for attempt in self._slots)
        return self._unwritten_bytes + lines > BACKLOG_BYTES_MAX

    @property
    def _unwritten_bytes(self) -> int:
        return sum(attempt.unwritten_bytes for attempt in self._slots)

    @property
    def next_at(self) -> float | None:
        """When something is to be written; None: nothing waits."""
        if not any(attempt.has_news or attempt.unwritten for attempt in self._slots):
            return None
        is_urgent = any(one.question is not None for one in self._slots) or self._unwritten_bytes > _MANY_BYTES
        return max(0.0 if is_urgent else self._next_at, self._trouble.over_at)

    def report(self, ending: Sequence[Attempt] = ()) -> None:
        """Those whose end waits are reported at once: after it nothing lands. Raise `CannotLand` when patience ends."""
        now = self._monotonic()
        for attempt in self._slots:
            if attempt.is_lost:
                self._forget(attempt, "the lease is lost")
                attempt.lines.take()
            elif attempt.question is not None and now > attempt.asked_at + ASK_SECONDS:
                self._refuse_question(attempt, f"the database did not answer within {ASK_SECONDS:g} s")
        next_at = self.next_at
        is_due = next_at is not None and (now >= next_at or self.is_full)
        if self._trouble.is_there or not (is_due or ending):
            return
        if is_due:
            self._next_at = now + REPORT_SECONDS
        has_kept = is_due or any(attempt.unwritten for attempt in ending)
        try:
            self._report(self._slots if is_due else ending)
            while left := [attempt for attempt in ending if attempt.has_news and not attempt.is_lost]:
                self._report(left)
            while has_kept and self._save_pages() | self._write_heads():
                if self._monotonic() > now + _BUSY_SECONDS:
                    self._next_at = now
                    break
        except StoreError as error:
            self._postpone(error)
        else:
            self._failing_since = None
            self._trouble.ended()

    def _postpone(self, error: StoreError) -> None:
        self._trouble.met(error)
        now = self._monotonic()
        waiting = sum(len(attempt.unwritten) for attempt in self._slots)
        if not waiting:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self._patience_seconds:
            raise CannotLand(f"{waiting} pages and checkpoints could not be written: {error}") from error

    # ── Progress and lines ──

    def _report(self, attempts: Iterable[Attempt]) -> None:
        told = [attempt for attempt in attempts if attempt.has_news and not attempt.is_lost]
        if not told:
            return
        talking = sum(bool(attempt.lines) for attempt in told)
        lines_most = max(1, _LINES_AT_ONCE // max(1, talking))
        reports = [(attempt, attempt.take_report(lines_most)) for attempt in told]
        try:
            with self._breath:
                lost = self._quick_store.report([report for _, report in reports])
        except StoreError:
            for attempt, report in reports:
                attempt.put_back(report)
            raise
        for lease in lost:
            self._lost(self._slots.get((lease.job_id, lease.fence)))

    # ── Pages, all attempts' together ──

    def _save_pages(self) -> bool:
        batch: list[tuple[Attempt, PagesRead]] = []
        room, pages = _PAGE_BYTES_AT_ONCE, 0
        for attempt in self._slots:
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
            # One of them is refused by the table: find out whose.
            for key in dict.fromkeys(attempt.key for attempt, _ in batch):
                self._save_alone([one for one in batch if one[0].key == key])
        return True

    def _save_alone(self, batch: list[tuple[Attempt, PagesRead]]) -> None:
        try:
            self._save(batch)
        except _REFUSALS as error:
            self._refuse(batch[0][0], Failure("PAGE_REFUSED", str(error)))

    def _save(self, batch: list[tuple[Attempt, PagesRead]]) -> None:
        with self._breath:
            lost = self._quick_store.save_pages(
                [(attempt.lease, page) for attempt, said in batch for page in said.pages]
            )
        for attempt, said in batch:
            attempt.written(said)
        for lease in lost:
            self._lost(self._slots.get((lease.job_id, lease.fence)))

    # ── Checkpoints and questions, one by one ──

    def _write_heads(self) -> bool:
        has_written = False
        for attempt in self._slots:
            head = attempt.unwritten[0] if attempt.unwritten else None
            if isinstance(head, Checkpointed):
                self._write_checkpoint(attempt, head)
            elif isinstance(head, Asked):
                self._answer(attempt, head)
            has_written |= isinstance(head, Checkpointed | Asked)
        return has_written

    def _write_checkpoint(self, attempt: Attempt, said: Checkpointed) -> None:
        try:
            with self._breath:
                self._store.checkpoint(attempt.lease, Checkpoint(said.state, said.follow_ups, said.crawl))
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
            answer = self._store.answer(attempt.lease, question_from(asked.kind, asked.body))
        except LeaseLost:
            self._lost(attempt)
        except _REFUSALS as error:
            self._refuse_question(attempt, str(error))
        except StoreError:
            raise
        except PagemillError as error:
            self._refuse_question(attempt, str(error))
        else:
            self._tell(asked, self._there(answer) if isinstance(answer, Files) else answer)
            attempt.written(asked)

    def _there(self, known: Files) -> Files:
        """Without those that somebody has removed from the workspace: they have to be brought in again."""
        return Files([file for file in known.files if (self._workspace / file.path).is_file()])

    # ── What can no longer land ──

    def _lost(self, attempt: Attempt | None) -> None:
        if attempt is None:
            return
        # A lease is refused as well when somebody has asked the job to stop: then it is still ours to end.
        held = self._store.leases_of(attempt.lease.worker_id)
        if any(row.lease == attempt.lease and row.is_cancelled for row in held):
            self._cancelled(attempt)
        else:
            attempt.is_lost = True
            self._log.warning(events.LEASE_LOST, job_id=attempt.job.id, fence=attempt.job.fence)
            self._forget(attempt, "the lease is lost")

    def _cancelled(self, attempt: Attempt) -> None:
        """The pages that it has read are kept all the same."""
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
            self._tell(asked, None, code="ASK_FAILED", message=reason)
