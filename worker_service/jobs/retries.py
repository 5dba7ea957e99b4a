"""Another attempt, or not, and when. Reads no clock, writes no row.

Attempts, crashes and requeues are each capped (P6). The requeue cap is the store's, inside the statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from worker_service.jobs.model import Job

REQUEUES_MAX = 5

_FIRST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Retry:
    run_at: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    pass


def backoff(retry_count: int, *, jitter: float) -> timedelta:
    """10 s, 20 s, 40 s … up to an hour, spread by up to a quarter either way. `jitter` is 0 to 1."""
    seconds = min(_FIRST_WAIT_SECONDS * 2 ** min(retry_count, 20), _LONGEST_WAIT_SECONDS)
    return timedelta(seconds=seconds * (0.75 + jitter / 2))


def after_failure(
    job: Job, *, now: datetime, jitter: float, is_permanent: bool = False, after: timedelta | None = None
) -> Retry | GiveUp:
    """Choose between another attempt and giving up. `after` is the handler's own wish, and never made shorter."""
    if is_permanent or job.retry_count >= job.max_retries:
        return GiveUp()
    return Retry(run_at=now + (after if after is not None else backoff(job.retry_count, jitter=jitter)))
