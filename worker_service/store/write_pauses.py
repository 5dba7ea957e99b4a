"""Fairness between writers: pauses between the write transactions of one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE_SECONDS = 0.001
_IN_A_ROW_SECONDS = 0.01
"""Period in which the writes of one turn follow each other without a pause."""
_PAUSE_SHARE = 1 / 3
"""Length of the pause as a share of the time the lock was held."""
_LONG_SECONDS = 0.005
"""After a longer write, the pause is as long as the write, since waiting programs retry at growing intervals."""


class WritePauses:
    """Inserts pauses between the write transactions of all stores that share this object, in one thread.

    SQLite's lock is not fair: while a daemon writes without pauses, another program's INSERT waits for seconds. Time
    that passes between two writes anyway counts towards the pause.
    """

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._entered = 0.0
        self._held_seconds = 0.0
        self._rest_until = 0.0
        self._busy_until = 0.0

    def turn(self) -> None:
        """Start a turn of the main loop, so that its first write is preceded by a pause."""
        self._busy_until = 0.0

    def begin(self) -> None:
        now = self._monotonic()
        if now >= self._busy_until:
            left = self._rest_until - now
            if left > 0:
                self._sleep(left)
                now += left
            self._held_seconds, self._busy_until = 0.0, now + _IN_A_ROW_SECONDS
        self._entered = now

    def end(self) -> None:
        now = self._monotonic()
        own = now - self._entered
        self._held_seconds += own
        self._rest_until = now + max(
            _PAUSE_SECONDS, self._held_seconds * _PAUSE_SHARE, own if own > _LONG_SECONDS else 0.0
        )
