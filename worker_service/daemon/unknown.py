"""End the jobs whose type no worker has had a handler for, for as long as the grace is.

A chore. A type counts as unknown only while this daemon has found it so at each look, without a gap, for the whole of
the grace: one that another worker could run an hour ago is not unknown, and a daemon that has just started has seen
nothing yet. A type whose handler is here and is left to other workers is known as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.clock import Clock
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

_LOOK_SECONDS = 60.0
_SOON_SECONDS = 0.1
_FAILED_AT_ONCE = 500


class FailUnknown:
    name = "unknown_types"

    def __init__(
        self,
        store: Store,
        *,
        grace_seconds: float,
        known: Collection[str],
        clock: Clock,
        monotonic: Callable[[], float],
        log: Log,
    ) -> None:
        self._store = store
        self._grace_seconds = grace_seconds
        self._known = known
        self._clock = clock
        self._monotonic = monotonic
        self._log = log
        self._unknown_since: dict[str, float] = {}

    def run(self) -> float:
        now = self._monotonic()
        unknown = [job_type for job_type in self._store.unknown_types() if job_type not in self._known]
        self._unknown_since = {job_type: self._unknown_since.get(job_type, now) for job_type in unknown}
        is_more = False
        for job_type, since in self._unknown_since.items():
            if now - since >= self._grace_seconds:
                is_more |= self._fail(job_type)
        return _SOON_SECONDS if is_more else min(_LOOK_SECONDS, self._grace_seconds)

    def _fail(self, job_type: str) -> bool:
        """Whether there may be more of them."""
        since = self._clock() - timedelta(seconds=self._grace_seconds)
        failed = self._store.fail_unknown(job_type, since=since, most=_FAILED_AT_ONCE)
        if failed:
            self._log.warning(events.TYPE_UNKNOWN, job_type=job_type, jobs=len(failed))
        return bool(failed)
