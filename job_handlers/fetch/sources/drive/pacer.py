"""Limit the calls per second of all child processes with one credential.

The shared memory has no lock, which a killed child would keep, so two calls may rarely take one slot.
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
"""Time of each credential's next call, on the monotonic clock."""


class Pacer:
    def __init__(
        self,
        per_second: float = 10.0,
        burst: int = 100,
        *,
        shared_by: str = "",
        raise_if_stopped: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`shared_by` names the account whose calls are counted together; empty: only this process."""
        self._step = int(_NANOSECONDS / per_second)
        self._ahead = int(burst * _NANOSECONDS / per_second)
        self._raise_if_stopped, self._clock, self._sleep = raise_if_stopped, clock, sleep
        self._is_shared = bool(shared_by)
        if shared_by:
            slot = int.from_bytes(hashlib.blake2b(shared_by.encode(), digest_size=8).digest()) % _SLOTS
            self._next = _SHARED[slot : slot + 1]
        else:
            self._next = memoryview(bytearray(8)).cast("q")

    def wait_turn(self) -> None:
        now = self._clock()
        mine = max(self._next[0], now - self._ahead) + self._step
        self._next[0] = mine
        while now < mine:
            self._raise_if_stopped()
            self._sleep(min((mine - now) / _NANOSECONDS, _STEP_SECONDS))
            now = self._clock()

    def hold_back(self, seconds: float) -> None:
        """Delay the account's calls, after Drive asked for fewer."""
        if not self._is_shared:
            return
        until = self._clock() + int(min(seconds, _HELD_BACK_SECONDS_MAX) * _NANOSECONDS)
        self._next[0] = max(self._next[0], until)
