"""The worker's heartbeat, which a thread writes, and what follows from it: a worker without beats owns nothing."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from worker_service import VERSION
from worker_service.base import events
from worker_service.base.clock import boot_clock
from worker_service.base.errors import LeaseLost, WorkerUnknown
from worker_service.daemon.attempts import DaemonContext, failure_fields
from worker_service.jobs.job import Lease
from worker_service.jobs.workers import NODE, Beat, Worker
from worker_service.runner.messages import HandlerDescription
from worker_service.store.store import Store

if TYPE_CHECKING:
    from worker_service.base.events import Log


class BeatAnswer(Struct, frozen=True):
    beat: Beat
    is_known: bool = True


@dataclass(slots=True)
class Heartbeat:
    open_store: Callable[[], Store]
    worker_id: str
    log: Log
    interval_seconds: float
    clock: Callable[[], float] = boot_clock
    leases: Sequence[Lease] = ()
    """The loop only replaces the whole sequence, so the thread needs no lock to read it."""
    committed: int = 0
    committed_at: float = 0.0
    """Start of the newest committed beat: the time that other workers see."""
    _answers: deque[BeatAnswer] = field(default_factory=deque)
    _asked: threading.Event = field(default_factory=threading.Event)
    _is_closing: bool = False
    _events: int = field(default_factory=lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    _thread: threading.Thread | None = None

    def start(self) -> None:
        # The registration just before counts as the first beat.
        self.committed_at = self.clock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._events

    def beat_soon(self) -> None:
        self._asked.set()

    def beat_now(self, store: Store) -> None:
        try:
            self._beat(store)
        except Exception as error:
            self.log.warning(events.BEAT_FAILED, **failure_fields(error))

    def silent_seconds(self) -> float:
        return self.clock() - self.committed_at

    def take_answers(self) -> list[BeatAnswer]:
        try:
            os.eventfd_read(self._events)
        except BlockingIOError:
            return []
        taken = []
        while self._answers:
            taken.append(self._answers.popleft())
        return taken

    def close(self) -> None:
        self._is_closing = True
        self._asked.set()
        if self._thread is not None:
            self._thread.join(timeout=35)

    def _run(self) -> None:
        store: Store | None = None
        while not self._is_closing:
            try:
                if store is None:
                    store = self.open_store()
                self._beat(store)
            except Exception as error:
                # The outermost frame of a beat. The next beat tries again, and the loop sees how long none has
                # committed.
                self.log.warning(events.BEAT_FAILED, **failure_fields(error))
                if store is not None:
                    store.close()
                    store = None
            self._asked.wait(self.interval_seconds)
            self._asked.clear()
        if store is not None:
            store.close()

    def _beat(self, store: Store) -> None:
        began = self.clock()
        leases = self.leases
        try:
            answer = BeatAnswer(store.leases.beat(self.worker_id, leases))
        except WorkerUnknown:
            answer = BeatAnswer(Beat(lost=leases, to_cancel=()), is_known=False)
        else:
            self.committed_at = began
            self.committed += 1
        self._answers.append(answer)
        os.eventfd_write(self._events, 1)


# ── Ownership of the attempts ─────────────────────────────────────────────────────────────────────────────────────────

# Fraction of `orphan_after_seconds` without a beat that fences the worker.
FENCED_FRACTION = 0.8
# Fraction of `orphan_after_seconds` between two turns that means that the process was suspended.
SUSPENDED_FRACTION = 0.2
# Fraction of `orphan_after_seconds` that the loop waits at most.
WAIT_FRACTION = 0.1


@dataclass(slots=True)
class Ownership:
    context: DaemonContext
    heartbeat: Heartbeat
    is_registered: bool = True
    is_fenced: bool = False
    _last_turn_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_turn_at = self.heartbeat.clock()

    @property
    def is_silent(self) -> bool:
        return self.heartbeat.silent_seconds() > self.context.settings.orphan_after_seconds * FENCED_FRACTION

    def apply_beat_results(self) -> bool:
        """Fence a silent worker. Return True if it was just unfenced."""
        if self._was_suspended() and self.is_silent and not self.is_fenced:
            self.heartbeat.beat_now(self.context.store)
        for answer in self.heartbeat.take_answers():
            if answer.is_known:
                self._mark_attempts(answer.beat)
            elif self.heartbeat.worker_id not in {worker.id for worker in self.context.store.overview.workers()}:
                # The loop has not registered the worker again since that beat.
                self.mark_unregistered()
        silent = self.heartbeat.silent_seconds()
        was_fenced, self.is_fenced = self.is_fenced, self.is_silent
        if self.is_fenced and not was_fenced:
            self.context.log.error(
                events.WORKER_FENCED, silent_seconds=round(silent, 1), running=len(self.context.slots)
            )
            self.heartbeat.beat_soon()
        elif was_fenced and not self.is_fenced:
            self.context.log.info(events.WORKER_UNFENCED)
        return was_fenced and not self.is_fenced

    def _mark_attempts(self, beat: Beat) -> None:
        for lease in beat.lost:
            if (attempt := self.context.slots.find(lease)) is not None:
                attempt.is_lost = True
        for lease in beat.to_cancel:
            if (attempt := self.context.slots.find(lease)) is not None:
                attempt.is_cancelled = True

    def _was_suspended(self) -> bool:
        last_turn_at, self._last_turn_at = self._last_turn_at, self.heartbeat.clock()
        return self._last_turn_at - last_turn_at > self.context.settings.orphan_after_seconds * SUSPENDED_FRACTION

    def mark_unregistered(self) -> None:
        """Mark all attempts as lost: the recovery of another worker has requeued their jobs."""
        if self.is_registered:
            reason = "this worker was given up for dead"
            self.context.log.error(events.LEASE_LOST, reason=reason, running=len(self.context.slots))
        self.is_registered = False
        for attempt in self.context.slots:
            attempt.is_lost = True

    def register(self, handlers: Iterable[HandlerDescription]) -> None:
        worker = own_worker(self.context, handlers)
        self.context.store.workers.register(worker)
        self.is_registered = True
        self.heartbeat.beat_soon()
        self.context.log.info(events.WORKER_REGISTERED, worker_id=worker.id, handlers=len(worker.handlers))

    def compare_leases(self) -> None:
        """Ensure that each row of this worker has an attempt, and each attempt a row (P13)."""
        rows = self.context.store.leases.leases_of(self.heartbeat.worker_id)
        held = {(row.lease.job_id, row.lease.fence): row for row in rows}
        for attempt in self.context.slots:
            own_row = held.pop(attempt.key, None)
            if own_row is None:
                attempt.is_lost = True
            elif own_row.is_cancelled:
                attempt.is_cancelled = True
                attempt.without_grace = own_row.without_grace
            else:
                attempt.is_held_up = own_row.is_stopped and not attempt.is_at_most_once
        for row in held.values():
            # The claim committed, but its result never arrived.
            self.context.log.warning(events.JOB_UNKNOWN, job_id=row.lease.job_id, fence=row.lease.fence)
            try:
                if row.is_cancelled:
                    self.context.store.leases.confirm_cancel(row.lease)
                else:
                    self.context.store.leases.release(row.lease)
            except LeaseLost:
                continue


def own_worker(context: DaemonContext, handlers: Iterable[HandlerDescription]) -> Worker:
    own, sizes = context.identity, context.slots.sizes
    facts = [described.facts for described in handlers]
    return Worker(
        own.worker_id,
        own.host,
        own.boot_id,
        own.pid,
        VERSION,
        sizes["cpu"],
        sizes["io"],
        facts,
        sizes.get(NODE, 0),
    )
