"""Another attempt, or not, and when. Reads no clock, writes no row.

Attempts, crashes and requeues are each capped (P6). The requeue cap is the store's, inside the statement. How often a
job is tried stands in its row; the rule of its type says how long the waits are, and what a new job's row says where
nobody else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from worker_service.jobs.model import Job, NewJob

REQUEUES_MAX = 5

MAY_HAVE_RUN = "MAY_HAVE_RUN"
"""Code of an `at_most_once` job whose handler had begun and did not decide its own end."""
MAY_HAVE_RUN_REMEDY = "make sure that it had no effect"


def may_have_run_detail(code: str, message: str) -> str:
    return f"it had begun and may have taken effect, and its type runs at most once ({code}: {message})"


class RetryRule(Struct, frozen=True):
    """How a job type is tried again."""

    max: int | None = None
    """How many retries a new job of the type gets, where nobody says otherwise. None: what every job gets."""
    first_seconds: float = 10.0
    """The wait before the first retry; each one after it waits twice as long."""
    most_seconds: float = 3600.0


_PLAIN = RetryRule()


class Retry(Struct, frozen=True):
    run_at: datetime


class GiveUp(Struct, frozen=True):
    pass


def backoff(retry_count: int, *, jitter: float, rule: RetryRule = _PLAIN) -> timedelta:
    """10 s, 20 s, 40 s … up to an hour, spread by up to a quarter either way. `jitter` is 0 to 1."""
    seconds = min(rule.first_seconds * 2 ** min(retry_count, 30), rule.most_seconds)
    return timedelta(seconds=seconds * (0.75 + jitter / 2))


def after_failure(
    job: Job,
    *,
    now: datetime,
    jitter: float,
    is_permanent: bool = False,
    after: timedelta | None = None,
    rules: Mapping[str, RetryRule] = {},
) -> Retry | GiveUp:
    """Choose between another attempt and giving up. `after` is the handler's own wish, and never made shorter."""
    if is_permanent or job.retry_count >= job.max_retries:
        return GiveUp()
    if after is None:
        after = backoff(job.retry_count, jitter=jitter, rule=rules.get(job.job_type, _PLAIN))
    return Retry(run_at=now + after)


def retries_of(job: NewJob, rules: Mapping[str, RetryRule]) -> int | None:
    """How often a new job is tried again: as was said, else as the settings say of its type. None: as any other."""
    return rules.get(job.job_type, _PLAIN).max if job.max_retries is None else job.max_retries
