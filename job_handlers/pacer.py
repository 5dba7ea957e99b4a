"""No more than so many calls a second. Of one attempt; what many do together, a resting source slows down."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pacer:
    def __init__(
        self,
        per_second: float = 10.0,
        burst: int = 20,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step, self._ahead = 1.0 / per_second, burst / per_second
        self._clock, self._sleep = clock, sleep
        self._next = clock() - self._ahead

    def turn(self) -> None:
        """Returns when the next call may be made."""
        now = self._clock()
        self._next = max(self._next, now - self._ahead) + self._step
        if self._next > now:
            self._sleep(self._next - now)
