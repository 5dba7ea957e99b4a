"""Count the jobs that ended in the last hours, with their durations, by type and by hour."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from worker_service.base.clock import as_text
from worker_service.jobs.counts import HourOfWork
from worker_service.services.session import Session

HOURS_MOST = 24 * 31
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
    starts = _starts(session, hours)
    by_type: dict[str, list[HourOfWork]] = {}
    for one in session.overview.hours_of_work(starts[0]):
        by_type.setdefault(one.job_type, []).append(one)
    return sorted((_rate(name, found, starts) for name, found in by_type.items()), key=lambda one: -one.jobs)


def work_by_hour(session: Session, *, hours: int = 24) -> Sequence[Hour]:
    starts = _starts(session, hours)
    found = session.overview.hours_of_work(starts[0])
    return [_hour(at, [one for one in found if one.at == at]) for at in starts]


def _starts(session: Session, hours: int) -> Sequence[str]:
    this_hour = session.clock().replace(minute=0, second=0, microsecond=0)
    return [as_text(this_hour - back * _HOUR) for back in range(hours - 1, -1, -1)]


def _rate(job_type: str, found: Sequence[HourOfWork], starts: Sequence[str]) -> WorkRate:
    jobs, ended = sum(one.jobs for one in found), {one.at: one.jobs for one in found}
    return WorkRate(
        job_type,
        jobs,
        sum(one.failed for one in found),
        sum(one.pages for one in found),
        sum(one.seconds for one in found) / jobs,
        max(one.longest_seconds for one in found),
        sum(one.waited_seconds for one in found) / jobs,
        max(one.longest_wait_seconds for one in found),
        [ended.get(at, 0) for at in starts],
    )


def _hour(at: str, found: Sequence[HourOfWork]) -> Hour:
    jobs = sum(one.jobs for one in found)
    waited = sum(one.waited_seconds for one in found) / jobs if jobs else None
    longest = max((one.longest_wait_seconds for one in found), default=None)
    return Hour(at, jobs, sum(one.failed for one in found), sum(one.pages for one in found), waited, longest)
