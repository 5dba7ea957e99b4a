"""No more than so many calls a second with one credential, whoever makes them: downloads and crawls of this worker.

The slots lie in memory that all children share, because they are forked from the process that has imported this
module. They are written without a lock, which somebody who is stopped could leave shut: two who come in the same
microsecond may take one slot, which is a call too many and no harm.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Callable

_SLOTS = 1 << 16
_NANOSECONDS = 1_000_000_000
_STEP_SECONDS = 0.2
_HELD_BACK_SECONDS_MAX = 32.0
_SHARED = memoryview(mmap.mmap(-1, _SLOTS * 8)).cast("q")
"""For each credential the time of the next call, by the monotonic clock, which all processes read alike."""


class Pacer:
    def __init__(
        self,
        per_second: float = 10.0,
        burst: int = 100,
        *,
        shared_by: str = "",
        look: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`shared_by`: whose calls they are; empty: nobody else's. `look` may raise while a turn is waited for."""
        self._step = int(_NANOSECONDS / per_second)
        self._ahead = int(burst * _NANOSECONDS / per_second)
        self._look, self._clock, self._sleep = look, clock, sleep
        self._is_shared = bool(shared_by)
        if shared_by:
            slot = int.from_bytes(hashlib.blake2b(shared_by.encode(), digest_size=8).digest()) % _SLOTS
            self._next = _SHARED[slot : slot + 1]
        else:
            self._next = memoryview(bytearray(8)).cast("q")

    def turn(self) -> None:
        """Returns when the next call may be made."""
        now = self._clock()
        mine = max(self._next[0], now - self._ahead) + self._step
        self._next[0] = mine
        while now < mine:
            self._look()
            self._sleep(min((mine - now) / _NANOSECONDS, _STEP_SECONDS))
            now = self._clock()

    def hold_back(self, seconds: float) -> None:
        """Somebody was told that these are too many: he waits by himself, and so do the others, who share the turns."""
        if not self._is_shared:
            return
        until = self._clock() + int(min(seconds, _HELD_BACK_SECONDS_MAX) * _NANOSECONDS)
        self._next[0] = max(self._next[0], until)
