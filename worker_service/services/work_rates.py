"""Count the jobs that ended in the last hours, with their durations, by type and by hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.jobs.counts import HourOfWork
from worker_service.services.session import Session

HOURS_MOST = 24 * 31
_CHART_HOURS = 24
_HOUR = timedelta(hours=1)


class WorkRate(Struct, frozen=True):
    job_type: str
    jobs: int
    failed: int
    pages: int
    seconds_each: float
    longest_seconds: float
    waited_seconds_each: float
    longest_wait_seconds: float
    hourly: Sequence[int]
    """Jobs of each hour, oldest first; the last hour has not ended."""


class Hour(Struct, frozen=True):
    at: str
    jobs: int
    failed: int
    pages: int
    waited_seconds_each: float | None
    longest_wait_seconds: float | None


def work_rates(session: Session, *, hours: int = 24) -> Sequence[WorkRate]:
    starts = _starts_of_hours(session, hours)
    hours_by_type: dict[str, list[HourOfWork]] = defaultdict(list)
    for hour in session.overview.hours_of_work(starts[0]):
        hours_by_type[hour.job_type].append(hour)
    rates = [_rate(job_type, hours_of_type, starts) for job_type, hours_of_type in hours_by_type.items()]
    return sorted(rates, key=lambda rate: -rate.jobs)


def work_by_hour(session: Session) -> Sequence[Hour]:
    starts = _starts_of_hours(session, _CHART_HOURS)
    hours_of_types = session.overview.hours_of_work(starts[0])
    return [_hour(start, [hour for hour in hours_of_types if hour.at == start]) for start in starts]


def _starts_of_hours(session: Session, hours: int) -> Sequence[str]:
    this_hour = session.clock().replace(minute=0, second=0, microsecond=0)
    return [as_text(this_hour - back * _HOUR) for back in range(hours - 1, -1, -1)]


def _rate(job_type: str, hours: Sequence[HourOfWork], starts: Sequence[str]) -> WorkRate:
    jobs, jobs_by_start = sum(hour.jobs for hour in hours), {hour.at: hour.jobs for hour in hours}
    return WorkRate(
        job_type,
        jobs,
        failed=sum(hour.failed for hour in hours),
        pages=sum(hour.pages for hour in hours),
        seconds_each=sum(hour.seconds for hour in hours) / jobs,
        longest_seconds=max(hour.longest_seconds for hour in hours),
        waited_seconds_each=sum(hour.waited_seconds for hour in hours) / jobs,
        longest_wait_seconds=max(hour.longest_wait_seconds for hour in hours),
        hourly=[jobs_by_start.get(start, 0) for start in starts],
    )


def _hour(start: str, hours_of_types: Sequence[HourOfWork]) -> Hour:
    jobs = sum(hour.jobs for hour in hours_of_types)
    return Hour(
        start,
        jobs,
        failed=sum(hour.failed for hour in hours_of_types),
        pages=sum(hour.pages for hour in hours_of_types),
        waited_seconds_each=sum(hour.waited_seconds for hour in hours_of_types) / jobs if jobs else None,
        longest_wait_seconds=max((hour.longest_wait_seconds for hour in hours_of_types), default=None),
    )
