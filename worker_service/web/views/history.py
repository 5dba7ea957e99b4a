"""Hourly statistics of ended jobs for charts: number of jobs, failures, pages, and waiting times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.services.database import Session

_HOURS = 24
_HOUR = timedelta(hours=1)
_COMMIT_DELAY_MAX = timedelta(minutes=2)
"""Longest expected delay between a job's end and its commit."""
_CACHED_MAX = 400


class HourlyStatistics(Struct, frozen=True):
    at: str
    jobs: int
    """Jobs that ended, with any outcome."""
    failed: int
    pages: int
    wait_median_seconds: float | None
    """Median time from the earliest possible start to the first attempt; None if no job ended."""
    wait_long_seconds: float | None
    """95th percentile of the same."""


# Past hours do not change, so each is counted once. Threads may count one twice, which does no harm.
_past: dict[tuple[str, str, str], HourlyStatistics] = {}


def last_hours(session: Session, *, number: int = _HOURS) -> Sequence[HourlyStatistics]:
    """Return the last `number` hours, oldest first; the last one is still running."""
    now = session.clock()
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    database = str(session.settings.database), session.reading.database_id()
    found = []
    for back in range(number - 1, -1, -1):
        start = this_hour - back * _HOUR
        key = (*database, as_text(start))
        statistics = _past.get(key) or _count(session, start)
        if now - start > _HOUR + _COMMIT_DELAY_MAX:
            if len(_past) >= _CACHED_MAX:
                _past.clear()
            _past[key] = statistics
        found.append(statistics)
    return found


def _count(session: Session, start: datetime) -> HourlyStatistics:
    ended = session.overview.ended_between(as_text(start), as_text(start + _HOUR))
    waits = ended.waits
    return HourlyStatistics(
        as_text(start),
        ended.jobs,
        ended.failed,
        ended.pages,
        waits[len(waits) // 2] if waits else None,
        waits[min(len(waits) - 1, len(waits) * 19 // 20)] if waits else None,
    )
