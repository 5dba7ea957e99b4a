"""Hourly statistics of ended jobs for charts: number of jobs, failures, pages, and waiting times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta
from threading import Lock

from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.services.database import Session

HOURS = 24
_HOUR = timedelta(hours=1)
_LATE = timedelta(minutes=2)
"""Longest expected delay between a job's end and its commit."""
_KEPT_MOST = 400


class Hour(Struct, frozen=True):
    at: str
    """Start of the hour."""
    jobs: int
    """Jobs that ended, with any outcome."""
    failed: int
    pages: int
    wait_median_seconds: float | None
    """Median time from the earliest possible start to the first attempt; None if no job ended."""
    wait_long_seconds: float | None
    """95th percentile of the same."""


class _Past:
    """Cache of past hours, so that a process that is asked repeatedly counts each hour once."""

    def __init__(self) -> None:
        self._hours: OrderedDict[tuple[str, str, str], Hour] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[str, str, str]) -> Hour | None:
        with self._lock:
            return self._hours.get(key)

    def keep(self, key: tuple[str, str, str], hour: Hour) -> None:
        with self._lock:
            self._hours[key] = hour
            while len(self._hours) > _KEPT_MOST:
                self._hours.popitem(last=False)


_past = _Past()


def hours(session: Session, *, number: int = HOURS) -> Sequence[Hour]:
    """Return the last `number` hours, oldest first; the last one is still running."""
    now = session.clock()
    this = now.replace(minute=0, second=0, microsecond=0)
    which = (str(session.settings.database), session.store.reading.database_id())
    found = []
    for back in range(number - 1, -1, -1):
        begin = this - back * _HOUR
        key = (*which, as_text(begin))
        hour = _past.get(key)
        if hour is None:
            hour = _hour(session, begin)
            if now - begin > _HOUR + _LATE:
                _past.keep(key, hour)
        found.append(hour)
    return found


def _hour(session: Session, begin: datetime) -> Hour:
    ended = session.store.reading.ended_between(as_text(begin), as_text(begin + _HOUR))
    waits = ended.waits
    return Hour(
        as_text(begin),
        ended.jobs,
        ended.failed,
        ended.pages,
        waits[len(waits) // 2] if waits else None,
        waits[min(len(waits) - 1, len(waits) * 19 // 20)] if waits else None,
    )
