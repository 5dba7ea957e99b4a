"""The worker's heartbeat, written by a thread, and its ownership of attempts, kept by the main loop.

A worker whose last beat is too old is **fenced**: others may requeue its jobs soon, so it kills its children and claims
nothing until a beat commits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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


@dataclass(slots=True)
class Heartbeat:
    open_store: Callable[[], Store]
    worker_id: str
    log: Log
    interval_seconds: float
    clock: Callable[[], float] = boot_clock
    # The loop only replaces the whole sequence, so the thread needs no lock to read it.
    leases: Sequence[Lease] = ()
    committed_beats: int = 0
    # When the newest committed beat began: the time that other workers see.
    last_beat_at: float = 0.0
    # Results of beats for the loop; None if the worker has no row.
    _results: deque[Beat | None] = field(default_factory=deque)
    _results_fd: int = field(default_factory=lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    _is_beat_requested: threading.Event = field(default_factory=threading.Event)
    _is_closing: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        # The registration just before counts as the first beat.
        self.last_beat_at = self.clock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._results_fd

    def beat_soon(self) -> None:
        self._is_beat_requested.set()

    def beat_now(self, store: Store) -> None:
        try:
            self._beat(store)
        except Exception as error:
            self.log.warning(events.BEAT_FAILED, **failure_fields(error))

    def silent_seconds(self) -> float:
        return self.clock() - self.last_beat_at

    def pop_results(self) -> list[Beat | None]:
        try:
            os.eventfd_read(self._results_fd)
        except BlockingIOError:
            return []
        return [self._results.popleft() for _ in range(len(self._results))]

    def close(self) -> None:
        self._is_closing = True
        self._is_beat_requested.set()
        if self._thread is not None:
            # A beat in progress waits up to 30 s for the write lock.
            self._thread.join(timeout=35)

    def _run(self) -> None:
        store: Store | None = None
        while not self._is_closing:
            try:
                if store is None:
                    store = self.open_store()
                self._beat(store)
            except Exception as error:
                # The outermost frame of a beat. The next beat opens the store again.
                self.log.warning(events.BEAT_FAILED, **failure_fields(error))
                if store is not None:
                    store.close()
                    store = None
            self._is_beat_requested.wait(self.interval_seconds)
            self._is_beat_requested.clear()
        if store is not None:
            store.close()

    def _beat(self, store: Store) -> None:
        began = self.clock()
        result: Beat | None = None
        try:
            result = store.leases.beat(self.worker_id, self.leases)
        except WorkerUnknown:
            pass
        else:
            self.last_beat_at = began
            self.committed_beats += 1
        self._results.append(result)
        os.eventfd_write(self._results_fd, 1)


# ── Ownership of the attempts ─────────────────────────────────────────────────────────────────────────────────────────

# These are fractions of `orphan_after`, the time without a beat after which other workers requeue a worker's jobs.
# A worker without a beat for this time is fenced.
FENCED_FRACTION = 0.8
# If this time passes between two turns, the process was suspended.
SUSPENDED_FRACTION = 0.2
# Longest wait of the loop, shorter than the other two.
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
            # The thread was suspended, too. If no other worker has requeued the jobs, this beat keeps them.
            self.heartbeat.beat_now(self.context.store)
        for beat in self.heartbeat.pop_results():
            if beat is not None:
                self._mark_attempts(beat)
            elif self.heartbeat.worker_id not in {worker.id for worker in self.context.store.overview.workers()}:
                # The loop has not registered the worker again since that beat.
                self.mark_unregistered()
        was_fenced, self.is_fenced = self.is_fenced, self.is_silent
        if self.is_fenced and not was_fenced:
            silent_seconds = round(self.heartbeat.silent_seconds(), 1)
            self.context.log.error(events.WORKER_FENCED, silent_seconds=silent_seconds, running=len(self.context.slots))
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
        """Ensure that each row of this worker has an attempt, and each attempt a row."""
        running_jobs = self.context.store.leases.leases_of(self.heartbeat.worker_id)
        row_by_key = {(row.lease.job_id, row.lease.fence): row for row in running_jobs}
        for attempt in self.context.slots:
            own_row = row_by_key.pop(attempt.key, None)
            if own_row is None:
                attempt.is_lost = True
            elif own_row.is_cancelled:
                attempt.is_cancelled = True
                attempt.without_grace = own_row.without_grace
            else:
                attempt.is_batch_stopped = own_row.is_stopped and not attempt.is_at_most_once
        for row in row_by_key.values():
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
    identity, sizes = context.identity, context.slots.sizes
    facts = [handler.facts for handler in handlers]
    return Worker(
        identity.worker_id,
        identity.host,
        identity.boot_id,
        identity.pid,
        VERSION,
        sizes["cpu"],
        sizes["io"],
        facts,
        sizes.get(NODE, 0),
    )
