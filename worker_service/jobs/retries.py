"""Attempts, crashes and requeues are each capped (P6)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from worker_service.jobs.job import Job, NewJob

REQUEUES_MAX = 5

MAY_HAVE_RUN = "MAY_HAVE_RUN"
"""The handler of an `at_most_once` job started and reported no outcome."""
MAY_HAVE_RUN_REMEDY = "check whether it took effect, and retry it only if it did not"


def may_have_run_detail(code: str, message: str) -> str:
    return f"it had started and may have taken effect; jobs of its type run at most once ({code}: {message})"


class RetryRule(Struct, frozen=True):
    max: int | None = None
    """None: the default of the table."""
    first_seconds: float = 10.0
    """Doubles with each retry, up to `most_seconds`."""
    most_seconds: float = 3600.0


_PLAIN = RetryRule()


class Retry(Struct, frozen=True):
    run_at: datetime


class GiveUp(Struct, frozen=True):
    pass


def backoff(retry_count: int, *, jitter: float, rule: RetryRule = _PLAIN) -> timedelta:
    """`jitter` is between 0 and 1."""
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
    """`after` is the wait that the handler has requested."""
    if is_permanent or job.retry_count >= job.max_retries:
        return GiveUp()
    if after is None:
        after = backoff(job.retry_count, jitter=jitter, rule=rules.get(job.job_type, _PLAIN))
    return Retry(run_at=now + after)


def retries_of(job: NewJob, rules: Mapping[str, RetryRule]) -> int | None:
    """None: the default of the table."""
    return rules.get(job.job_type, _PLAIN).max if job.max_retries is None else job.max_retries
