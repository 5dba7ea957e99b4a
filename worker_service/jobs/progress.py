"""Rate, remaining time and silence of a running job."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from worker_service.base.clock import from_text
from worker_service.jobs.job import Job, Status

_SILENT_SECONDS = 15.0  # Time without progress after which a job counts as silent.

_RATE_SECONDS_MIN = 5.0  # In less time, a rate or an estimate says little.
_ESTIMATE_PERCENT_MIN = 3
_UNITS_BEFORE_SILENCE = 3  # A job is silent if this many units would have been done at its rate.
_SECONDS_LEFT_MAX = 86400.0  # Longer estimates come from rates close to zero and are not shown.


class Pace(NamedTuple):
    rate: float | None = None
    """Units per second."""
    seconds_left: float | None = None
    silent_seconds: float | None = None


def pace_of(job: Job, now: datetime) -> Pace:
    if job.status is not Status.RUNNING or job.started_at is None:
        return Pace()
    started_at = from_text(job.started_at)
    advanced_at = from_text(job.progress_at) if job.progress_at else started_at
    silent_seconds = (now - advanced_at).total_seconds()
    active_seconds = (advanced_at - started_at).total_seconds()
    rate = job.progress_rate
    if rate is None and job.progress_done and active_seconds >= _RATE_SECONDS_MIN:
        rate = job.progress_done / active_seconds
    # A unit may take longer than _SILENT_SECONDS, such as a page that takes a minute.
    seconds_for_units = _UNITS_BEFORE_SILENCE / rate if rate else 0.0
    if silent_seconds >= max(_SILENT_SECONDS, seconds_for_units):
        return Pace(silent_seconds=silent_seconds)
    seconds_left = None
    if job.progress_total and job.progress_done is not None:
        seconds_left = (job.progress_total - job.progress_done) / rate if rate else None
    elif _ESTIMATE_PERCENT_MIN <= job.progress_percent < 100 and active_seconds >= _RATE_SECONDS_MIN:
        seconds_left = active_seconds * (100 - job.progress_percent) / job.progress_percent
    has_estimate = seconds_left is not None and 0 < seconds_left <= _SECONDS_LEFT_MAX
    return Pace(rate or None, seconds_left if has_estimate else None)
