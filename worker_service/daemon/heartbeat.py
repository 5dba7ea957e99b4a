"""The daemon's signs of life: the heartbeat, and what it tells of this worker and its attempts.

A thread with a store of its own, so that nothing the loop waits for can hold it up. Every interval it beats for the
worker and its leases in one short transaction, and hands the answer to the loop through a queue and a descriptor. A
worker that has not beaten for too long no longer trusts that it owns anything: it is fenced. Nothing is stopped here.
"""

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
from worker_service.daemon.attempts import Tools
from worker_service.jobs.model import NODE, Beat, Lease, Worker
from worker_service.runner.protocol import Described
from worker_service.store.store import Store

if TYPE_CHECKING:
    from worker_service.base.events import Log


class BeatAnswer(Struct, frozen=True):
    beat: Beat
    is_known: bool = True
    """False: the worker has no row any more, so it owns nothing."""


@dataclass(slots=True)
class Heartbeat:
    open_store: Callable[[], Store]
    worker_id: str
    log: Log
    interval_seconds: float
    clock: Callable[[], float] = boot_clock
    leases: Sequence[Lease] = ()
    """Replaced as a whole by the loop, read as a whole by the thread."""
    committed: int = 0
    """How many beats have committed."""
    committed_at: float = 0.0
    """When the newest beat that has committed began: what others go by."""
    _answers: deque[BeatAnswer] = field(default_factory=deque)
    _asked: threading.Event = field(default_factory=threading.Event)
    _is_closing: bool = False
    _events: int = field(default_factory=lambda: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """The worker was registered just now, which is its first beat."""
        self.committed_at = self.clock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._events

    def now(self) -> None:
        """Beat without waiting for the interval to end."""
        self._asked.set()

    def beat_now(self, store: Store) -> None:
        """Beat in the caller's thread, with the caller's store. A failure only leaves the worker silent."""
        try:
            self._beat(store)
        except Exception as error:
            self.log.warning(events.BEAT_FAILED, reason=str(error))

    def silent_seconds(self) -> float:
        return self.clock() - self.committed_at

    def answers(self) -> list[BeatAnswer]:
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
                # The outermost frame of a beat: the next one tries again, and the loop sees how long it has been.
                self.log.warning(events.BEAT_FAILED, reason=str(error))
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


# ── What is still ours ────────────────────────────────────────────────────────────────────────────────────────────────

FENCED_AFTER = 0.8
"""The part of the orphan time without a beat after which a worker no longer trusts that it owns anything."""
STOOD_STILL = 0.2
"""The part of the orphan time between two turns from which on the process stood still: the loop waits half as long."""


@dataclass(slots=True)
class Ownership:
    tools: Tools
    heartbeat: Heartbeat
    is_registered: bool = True
    is_fenced: bool = False
    _looked_at: float = field(init=False)
    """When the loop last looked here, by the heartbeat's clock."""

    def __post_init__(self) -> None:
        self._looked_at = self.heartbeat.clock()

    @property
    def is_silent(self) -> bool:
        """It has not beaten for so long that others may have taken back what it held."""
        return self.heartbeat.silent_seconds() > self.tools.settings.orphan_after_seconds * FENCED_AFTER

    def hear_heart(self) -> bool:
        """Take the answers to beats and fence this worker if it is silent; return whether it was unfenced just now."""
        if self._has_stood_still() and self.is_silent and not self.is_fenced:
            self.heartbeat.beat_now(self.tools.store)
        for answer in self.heartbeat.answers():
            if not answer.is_known and all(
                w.id != self.heartbeat.worker_id for w in self.tools.store.reading.workers()
            ):
                self.disown()
            elif answer.is_known:
                for lease in answer.beat.lost:
                    if (attempt := self.tools.slots.of(lease)) is not None:
                        attempt.is_lost = True
                for lease in answer.beat.to_cancel:
                    if (attempt := self.tools.slots.of(lease)) is not None:
                        attempt.is_cancelled = True
        silent = self.heartbeat.silent_seconds()
        was_fenced, self.is_fenced = self.is_fenced, self.is_silent
        if self.is_fenced and not was_fenced:
            self.tools.log.error(events.WORKER_FENCED, silent_seconds=round(silent, 1), running=len(self.tools.slots))
            self.heartbeat.now()
        elif was_fenced and not self.is_fenced:
            self.tools.log.info(events.WORKER_UNFENCED)
        return was_fenced and not self.is_fenced

    def _has_stood_still(self) -> bool:
        """Whether this process did not run for a while, as after a suspend: silence then is no failure to beat."""
        looked_at, self._looked_at = self._looked_at, self.heartbeat.clock()
        return self._looked_at - looked_at > self.tools.settings.orphan_after_seconds * STOOD_STILL

    def disown(self) -> None:
        """Others gave this worker up for dead and took its jobs back."""
        if self.is_registered:
            reason = "this worker was given up for dead"
            self.tools.log.error(events.LEASE_LOST, reason=reason, running=len(self.tools.slots))
        self.is_registered = False
        for attempt in self.tools.slots:
            attempt.is_lost = True

    def register(self, handlers: Iterable[Described]) -> None:
        """Also the first beat after others gave it up: what it held before stays lost."""
        worker = own_worker(self.tools, handlers)
        self.tools.store.leases.register(worker)
        self.is_registered = True
        self.heartbeat.now()
        self.tools.log.info(events.WORKER_REGISTERED, worker_id=worker.id, handlers=len(worker.handlers))

    def compare_leases(self) -> None:
        """Both ways (P13): each of our rows has its attempt, each of our attempts its row."""
        held = {
            (h.lease.job_id, h.lease.fence): h for h in self.tools.store.reading.leases_of(self.heartbeat.worker_id)
        }
        for attempt in self.tools.slots:
            row = held.pop(attempt.key, None)
            if row is None:
                attempt.is_lost = True
            elif row.is_cancelled:
                attempt.is_cancelled = True
                attempt.without_grace = row.without_grace
            else:
                attempt.is_held_up = row.is_stopped and not attempt.is_at_most_once
        for row in held.values():
            # A claim that committed, and whose answer never came.
            self.tools.log.warning(events.JOB_UNKNOWN, job_id=row.lease.job_id, fence=row.lease.fence)
            try:
                if row.is_cancelled:
                    self.tools.store.leases.confirm_cancel(row.lease)
                else:
                    self.tools.store.leases.release(row.lease)
            except LeaseLost:
                continue


def own_worker(tools: Tools, handlers: Iterable[Described]) -> Worker:
    """As this worker registers itself."""
    own, sizes = tools.identity, tools.slots.sizes
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
