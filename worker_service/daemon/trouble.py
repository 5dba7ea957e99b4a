"""The store does not take what is written: then nothing is tried for a moment, and it is told once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from worker_service import events

if TYPE_CHECKING:
    from worker_service.errors import StoreError
    from worker_service.events import Log

PAUSE_SECONDS = 1.0


class Trouble:
    def __init__(self, log: Log, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._monotonic = monotonic
        self.over_at = 0.0
        """When the store is tried again. 0: all is well."""

    def met(self, error: StoreError) -> None:
        if not self.over_at:
            self._log.error(events.STORE_UNAVAILABLE, reason=str(error))
        self.over_at = self._monotonic() + PAUSE_SECONDS

    def ended(self) -> None:
        self.over_at = 0.0

    @property
    def is_there(self) -> bool:
        return self._monotonic() < self.over_at
