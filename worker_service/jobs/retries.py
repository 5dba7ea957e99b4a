"""Decide whether and when a failed job is tried again. Attempts and requeues are limited (promise P6)."""

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
    max_retries: int | None = None
    """None for the default of the table."""
    first_wait_seconds: float = 10.0
    """Doubles with each retry, up to `longest_wait_seconds`."""
    longest_wait_seconds: float = 3600.0


_DEFAULT_RULE = RetryRule()
_DOUBLINGS_MAX = 30  # beyond any wait; 2 ** 1000000, for the most retries of a job, would overflow


class Retry(Struct, frozen=True):
    run_at: datetime


class GiveUp(Struct, frozen=True):
    pass


def backoff(retry_count: int, *, jitter: float, rule: RetryRule = _DEFAULT_RULE) -> timedelta:
    """Return 75 to 125 % of the rule's wait, for a `jitter` from 0 to 1."""
    seconds = min(rule.first_wait_seconds * 2 ** min(retry_count, _DOUBLINGS_MAX), rule.longest_wait_seconds)
    return timedelta(seconds=seconds * (0.75 + jitter / 2))


def after_failure(
    job: Job,
    *,
    now: datetime,
    jitter: float,
    is_permanent: bool = False,
    requested_wait: timedelta | None = None,
    rules: Mapping[str, RetryRule] = {},
) -> Retry | GiveUp:
    """`requested_wait` is what the handler asked for."""
    if is_permanent or job.retry_count >= job.max_retries:
        return GiveUp()
    if requested_wait is not None:
        return Retry(run_at=now + requested_wait)
    return Retry(run_at=now + backoff(job.retry_count, jitter=jitter, rule=rules.get(job.job_type, _DEFAULT_RULE)))


def max_retries_of(job: NewJob, rules: Mapping[str, RetryRule]) -> int | None:
    """Return None for the default of the table."""
    return rules.get(job.job_type, _DEFAULT_RULE).max_retries if job.max_retries is None else job.max_retries
