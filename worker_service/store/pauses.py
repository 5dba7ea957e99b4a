"""A pause between two writes of ours, so that others get in.

SQLite's lock is not fair: a daemon that writes without a pause lets a person's INSERT wait for seconds. What passes
between two writes anyway (a child runs, somebody is waited for) counts as the pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_SECONDS = 0.001
BUSY_SECONDS = 0.01
"""So long the writes of one turn may follow each other at once."""
PAUSE_SHARE = 1 / 3
"""Of the time that they kept others out for: so long the door is open."""
LONG_SECONDS = 0.005
"""After one write that takes longer it is open for as long: who waits at SQLite's lock tries again ever more rarely."""


class WritePauses:
    """Around each write transaction of the stores that share it, in one thread."""

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
        """A loop begins its next turn. Its writes follow each other at once: the pause comes before the first."""
        self._busy_until = 0.0

    def begin(self) -> None:
        now = self._monotonic()
        if now >= self._busy_until:
            left = self._rest_until - now
            if left > 0:
                self._sleep(left)
                now += left
            self._held_seconds, self._busy_until = 0.0, now + BUSY_SECONDS
        self._entered = now

    def end(self) -> None:
        now = self._monotonic()
        own = now - self._entered
        self._held_seconds += own
        self._rest_until = now + max(
            PAUSE_SECONDS, self._held_seconds * PAUSE_SHARE, own if own > LONG_SECONDS else 0.0
        )
