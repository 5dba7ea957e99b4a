"""A value that is expensive to compute, shared by concurrent requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from worker_service.services.session import Session

T = TypeVar("T")

_KEPT_SECONDS_MIN = 1.0
_KEPT_PER_SECOND_OF_COMPUTATION = 10


class CachedValue(Generic[T]):
    """Kept for ten times as long as its computation took, and at least for a second."""

    def __init__(self, compute: Callable[[Session], T]) -> None:
        self._compute = compute
        self._lock = Lock()
        self._value: T | None = None
        self._expires_at = 0.0

    def get(self, session: Session) -> T:
        # Requests during a computation wait for it instead of starting another.
        with self._lock:
            started = time.monotonic()
            if self._value is None or started >= self._expires_at:
                self._value = self._compute(session)
                ended = time.monotonic()
                self._expires_at = ended + max(_KEPT_SECONDS_MIN, _KEPT_PER_SECOND_OF_COMPUTATION * (ended - started))
            return self._value
