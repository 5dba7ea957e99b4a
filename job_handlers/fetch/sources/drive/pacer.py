"""Limit the calls per second that all child processes make with one credential.

The shared memory has no lock, because a killed child would keep it. So, rarely, two calls are made at the same time.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Callable

_ACCOUNT_SLOTS = 1 << 16
_NANOSECONDS = 1_000_000_000  # Of a second.
_POLL_SECONDS = 0.2
_HOLD_BACK_SECONDS_MAX = 32.0
# For each account the time of its last turn, in nanoseconds of the monotonic clock, at a digest of its name. Child
# processes inherit the memory, because this module is imported before they are forked.
_LAST_TURN_BY_SLOT = memoryview(mmap.mmap(-1, _ACCOUNT_SLOTS * 8)).cast("q")


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
        """`shared_by` names the account; empty if only this process's calls count."""
        self._nanoseconds_per_call = int(_NANOSECONDS / per_second)
        self._burst_nanoseconds = int(burst * _NANOSECONDS / per_second)
        self._raise_if_stopped, self._clock, self._sleep = raise_if_stopped, clock, sleep
        self._is_shared = bool(shared_by)
        if shared_by:
            slot = int.from_bytes(hashlib.blake2b(shared_by.encode(), digest_size=8).digest()) % _ACCOUNT_SLOTS
            self._last_turn = _LAST_TURN_BY_SLOT[slot : slot + 1]
        else:
            self._last_turn = memoryview(bytearray(8)).cast("q")

    def wait_turn(self) -> None:
        now = self._clock()
        # After a time without calls, the turns of a burst are in the past.
        turn = max(self._last_turn[0], now - self._burst_nanoseconds) + self._nanoseconds_per_call
        self._last_turn[0] = turn
        while now < turn:
            self._raise_if_stopped()
            self._sleep(min((turn - now) / _NANOSECONDS, _POLL_SECONDS))
            now = self._clock()

    def hold_back_account(self, seconds: float) -> None:
        if not self._is_shared:
            return
        until = self._clock() + int(min(seconds, _HOLD_BACK_SECONDS_MAX) * _NANOSECONDS)
        self._last_turn[0] = max(self._last_turn[0], until)
