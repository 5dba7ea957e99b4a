"""The heartbeat: a thread with a store of its own, so that nothing the loop waits for can hold it up.

Every interval it beats for the worker and its leases in one short transaction, and hands the answer to the loop through
a queue and a descriptor. What follows from an answer, or from none, is the loop's to decide.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.errors import WorkerUnknown
from worker_service.jobs.model import Beat, Lease
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log


@dataclass(frozen=True, slots=True)
class Answer:
    beat: Beat
    is_known: bool = True
    """False: the worker has no row any more, so it owns nothing."""


def boot_clock() -> float:
    """Goes on while the machine sleeps, and never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Heartbeat:
    def __init__(
        self,
        open_store: Callable[[], Store],
        worker_id: str,
        *,
        interval_seconds: float,
        log: Log,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._open_store = open_store
        self._worker_id = worker_id
        self._interval_seconds = interval_seconds
        self._log = log
        self._clock = clock
        self._answers: deque[Answer] = deque()
        self._asked = threading.Event()
        self._is_closing = False
        self._events = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.leases: Sequence[Lease] = ()
        """Replaced as a whole by the loop, read as a whole by the thread."""
        self.committed = 0
        """How many beats have committed."""
        self.committed_at = clock()
        """When the newest beat that has committed began: what others go by."""

    def start(self) -> None:
        """The worker was registered just now, which is its first beat."""
        self.committed_at = self._clock()
        self._thread.start()

    def fileno(self) -> int:
        return self._events

    def now(self) -> None:
        """Beat without waiting for the interval to end."""
        self._asked.set()

    def silent_seconds(self) -> float:
        return self._clock() - self.committed_at

    def answers(self) -> list[Answer]:
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
        if self._thread.is_alive():
            self._thread.join(timeout=35)

    def _run(self) -> None:
        store: Store | None = None
        while not self._is_closing:
            try:
                if store is None:
                    store = self._open_store()
                self._beat(store)
            except Exception as error:
                # The outermost frame of a beat: the next one tries again, and the loop sees how long it has been.
                self._log.warning(events.BEAT_FAILED, reason=str(error))
                if store is not None:
                    store.close()
                    store = None
            self._asked.wait(self._interval_seconds)
            self._asked.clear()
        if store is not None:
            store.close()

    def _beat(self, store: Store) -> None:
        began = self._clock()
        leases = self.leases
        try:
            answer = Answer(store.beat(self._worker_id, leases))
        except WorkerUnknown:
            answer = Answer(Beat(lost=leases, to_cancel=()), is_known=False)
        else:
            self.committed_at = began
            self.committed += 1
        self._answers.append(answer)
        os.eventfd_write(self._events, 1)
