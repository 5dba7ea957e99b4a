"""Limit the calls per second that all child processes make with one credential.

The shared memory has no lock, because a killed child would keep it. So, rarely, two calls are made at the same time.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Callable

_SLOTS = 1 << 16
_NANOSECONDS = 1_000_000_000
_POLL_SECONDS = 0.2
_HELD_BACK_SECONDS_MAX = 32.0
# The time of the next call, in nanoseconds of the monotonic clock, of each account: its slot is a digest of its name.
_SHARED = memoryview(mmap.mmap(-1, _SLOTS * 8)).cast("q")


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
        """`shared_by` names the account whose calls are counted together. Empty counts only this process's."""
        self._nanoseconds_per_call = int(_NANOSECONDS / per_second)
        self._burst_nanoseconds = int(burst * _NANOSECONDS / per_second)
        self._raise_if_stopped, self._clock, self._sleep = raise_if_stopped, clock, sleep
        self._is_shared = bool(shared_by)
        if shared_by:
            slot = int.from_bytes(hashlib.blake2b(shared_by.encode(), digest_size=8).digest()) % _SLOTS
            self._next = _SHARED[slot : slot + 1]
        else:
            self._next = memoryview(bytearray(8)).cast("q")

    def wait_turn(self) -> None:
        now = self._clock()
        # Time in which no call was made allows a burst of calls.
        turn = max(self._next[0], now - self._burst_nanoseconds) + self._nanoseconds_per_call
        self._next[0] = turn
        while now < turn:
            self._raise_if_stopped()
            self._sleep(min((turn - now) / _NANOSECONDS, _POLL_SECONDS))
            now = self._clock()

    def hold_back(self, seconds: float) -> None:
        """Delay all calls of the account, because Drive has asked for fewer."""
        if not self._is_shared:
            return
        until = self._clock() + int(min(seconds, _HELD_BACK_SECONDS_MAX) * _NANOSECONDS)
        self._next[0] = max(self._next[0], until)
