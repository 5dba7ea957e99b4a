"""Whether this worker is still known, and which of its attempts are still its own.

The heartbeat's answers and the rows are asked; nothing is stopped here. A worker that has not beaten for too long no
longer trusts that it owns anything: it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.daemon.heartbeat import Heartbeat
from worker_service.daemon.slots import Attempt, Slots
from worker_service.errors import LeaseLost
from worker_service.jobs.model import Worker
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

FENCED_AFTER = 0.8
"""The part of the orphan time without a beat after which a worker no longer trusts that it owns anything."""


class Ownership:
    def __init__(
        self,
        worker: Callable[[], Worker],
        store: Store,
        slots: Slots,
        heartbeat: Heartbeat,
        *,
        worker_id: str,
        orphan_after_seconds: float,
        log: Log,
    ) -> None:
        self._worker = worker
        self._store = store
        self._slots = slots
        self._heartbeat = heartbeat
        self._worker_id = worker_id
        self._orphan_after_seconds = orphan_after_seconds
        self._log = log
        self.is_registered = True
        self.is_fenced = False

    def hear_heart(self) -> bool:
        """Whether it is trusted again since just now."""
        for answer in self._heartbeat.answers():
            if not answer.is_known and all(w.id != self._worker_id for w in self._store.workers()):
                self.disown()
            elif answer.is_known:
                for lease in answer.beat.lost:
                    _lost(self._slots.get((lease.job_id, lease.fence)))
                for lease in answer.beat.to_cancel:
                    _cancelled(self._slots.get((lease.job_id, lease.fence)))
        silent = self._heartbeat.silent_seconds()
        was_fenced, self.is_fenced = self.is_fenced, silent > self._orphan_after_seconds * FENCED_AFTER
        if self.is_fenced and not was_fenced:
            self._log.error(events.WORKER_FENCED, silent_seconds=round(silent, 1), running=len(self._slots))
            self._heartbeat.now()
        elif was_fenced and not self.is_fenced:
            self._log.info(events.WORKER_UNFENCED)
        return was_fenced and not self.is_fenced

    def disown(self) -> None:
        """Others gave this worker up for dead and took its jobs back."""
        if self.is_registered:
            reason = "this worker was given up for dead"
            self._log.error(events.LEASE_LOST, reason=reason, running=len(self._slots))
        self.is_registered = False
        for attempt in self._slots:
            _lost(attempt)

    def register(self) -> None:
        """Also the first beat after others gave it up: what it held before stays lost."""
        worker = self._worker()
        self._store.register(worker)
        self.is_registered = True
        self._heartbeat.now()
        self._log.info(events.WORKER_REGISTERED, worker_id=worker.id, handlers=len(worker.handlers))

    def compare_leases(self) -> None:
        """Both ways (P13): each of our rows has its attempt, each of our attempts its row."""
        held = {(h.lease.job_id, h.lease.fence): h for h in self._store.leases_of(self._worker_id)}
        for attempt in self._slots:
            row = held.pop(attempt.key, None)
            if row is None:
                _lost(attempt)
            elif row.is_cancelled:
                _cancelled(attempt)
                attempt.is_hurried = row.is_hurried
        for row in held.values():
            # A claim that committed, and whose answer never came.
            self._log.warning(events.JOB_UNKNOWN, job_id=row.lease.job_id, fence=row.lease.fence)
            try:
                if row.is_cancelled:
                    self._store.confirm_cancel(row.lease)
                else:
                    self._store.release(row.lease)
            except LeaseLost:
                continue


def _lost(attempt: Attempt | None) -> None:
    if attempt is not None:
        attempt.is_lost = True


def _cancelled(attempt: Attempt | None) -> None:
    if attempt is not None:
        attempt.is_cancelled = True
