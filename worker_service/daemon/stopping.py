"""When this daemon is to end, and the children that are to end before it does or for a reason of their own.

A child is asked first and stopped by force when its time is up. Nothing is written here: how a child ended is told by
the nursery, and what follows from that is decided in `verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.daemon.owning import Ownership
from worker_service.daemon.signals import Signals
from worker_service.daemon.slots import Slots

if TYPE_CHECKING:
    from worker_service.events import Log

STOP_SECONDS = 10.0
"""How long a child that was asked to stop may take before it is stopped by force."""


class Stop(Protocol):
    def __call__(self, job_id: int, fence: int, *, now: bool = False) -> None: ...


class Stopping:
    def __init__(
        self,
        signals: Signals,
        slots: Slots,
        ownership: Ownership,
        *,
        stop: Stop,
        grace_period_seconds: float,
        monotonic: Callable[[], float],
        log: Log,
    ) -> None:
        self._signals = signals
        self._slots = slots
        self._ownership = ownership
        self._stop = stop
        self._grace_period_seconds = grace_period_seconds
        self._monotonic = monotonic
        self._log = log
        self.at: float | None = None
        """When the grace period ends; None: nobody has asked the daemon to stop."""
        self._is_now = False

    def hear_signals(self) -> bool:
        """Whether the daemon was asked to stop since the last time, and not before."""
        self._signals.drain()
        asked = self._signals.asked_to_stop
        is_new = asked > 0 and self.at is None
        if is_new:
            grace = self._grace_period_seconds
            self.at = self._monotonic() + grace
            self._log.info(events.DAEMON_STOPPING, running=len(self._slots), grace_seconds=grace)
        if asked > 1 and not self._is_now:
            self._is_now = True
            self.at = self._monotonic()
        return is_new

    def stop_children(self) -> None:
        now = self._monotonic()
        is_over = self.at is not None and now >= self.at
        for attempt in self._slots:
            by_force = attempt.is_lost or attempt.is_hurried or self._ownership.is_fenced or self._is_now
            if not (by_force or attempt.is_cancelled or attempt.refused or is_over):
                continue
            job = attempt.job
            if attempt.stopped_at is None:
                attempt.stopped_at = now
                attempt.is_stopped_now = by_force
                self._log.info(events.JOB_STOPPED, job_id=job.id, fence=job.fence, now=by_force)
                self._stop(job.id, job.fence, now=by_force)
            elif not attempt.is_stopped_now and (by_force or now - attempt.stopped_at > STOP_SECONDS):
                attempt.is_stopped_now = True
                self._stop(job.id, job.fence, now=True)

    def next_at(self) -> float | None:
        """When to look again; None: nothing is to be stopped."""
        now = self._monotonic()
        moments = [now + 1.0 for attempt in self._slots if attempt.stopped_at is not None]
        if self.at is not None and len(self._slots):
            moments.append(self.at if now < self.at else now + 1.0)
        return min(moments, default=None)
