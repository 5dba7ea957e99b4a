from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.retries import GiveUp, Retry, RetryRule, after_failure, backoff, max_retries_of

NOW = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)

_NOTHING: dict[str, Any] = dict.fromkeys(Job._fields)
_SOME: dict[str, Any] = {
    "id": 1,
    "status": Status.RUNNING,
    "retry_count": 0,
    "max_retries": 3,
    "worker_id": "w1",
    "fence": 4,
}
JOB = Job(**_NOTHING | _SOME)


@pytest.mark.parametrize(
    ("retry_count", "seconds"), [(0, 10), (1, 20), (2, 40), (3, 80), (8, 2560), (9, 3600), (10, 3600), (10_000, 3600)]
)
def test_each_wait_doubles_up_to_an_hour(retry_count: int, seconds: int) -> None:
    assert backoff(retry_count, jitter=0.5) == timedelta(seconds=seconds)


@given(retry_count=st.integers(0, 10_000), jitter=st.floats(0, 1))
def test_the_jitter_is_at_most_a_quarter(retry_count: int, jitter: float) -> None:
    middle = backoff(retry_count, jitter=0.5)

    assert middle * 0.75 <= backoff(retry_count, jitter=jitter) <= middle * 1.25
    assert timedelta(seconds=7.5) <= backoff(retry_count, jitter=jitter) <= timedelta(seconds=4500)


def test_the_jitter_reaches_both_limits() -> None:
    assert backoff(0, jitter=0) == timedelta(seconds=7.5)
    assert backoff(0, jitter=1) == timedelta(seconds=12.5)


@given(retry_count=st.integers(0, 50), max_retries=st.integers(0, 50))
def test_p6_there_are_never_more_retries_than_the_job_allows(retry_count: int, max_retries: int) -> None:
    job = JOB._replace(retry_count=retry_count, max_retries=max_retries)

    choice = after_failure(job, now=NOW, jitter=0.5)

    assert isinstance(choice, Retry) == (retry_count < max_retries)


def test_a_permanent_failure_is_not_retried() -> None:
    assert after_failure(JOB, now=NOW, jitter=0.5, is_permanent=True) == GiveUp()


def test_without_a_requested_wait_the_backoff_applies() -> None:
    assert after_failure(JOB._replace(retry_count=1), now=NOW, jitter=0.5) == Retry(NOW + timedelta(seconds=20))


@pytest.mark.parametrize("seconds", [0, 1, 86_400])
def test_the_wait_that_a_handler_requests_applies(seconds: int) -> None:
    after = timedelta(seconds=seconds)

    assert after_failure(JOB, now=NOW, jitter=0.0, requested_wait=after) == Retry(NOW + after)


def test_a_requested_wait_adds_no_retry() -> None:
    used_up = JOB._replace(retry_count=3)

    assert after_failure(used_up, now=NOW, jitter=0.5, requested_wait=timedelta(seconds=1)) == GiveUp()


def test_a_job_type_waits_as_its_rule_says() -> None:
    rules = {"ocr_pages": RetryRule(first_wait_seconds=30, longest_wait_seconds=100)}
    of_rule, of_another = JOB._replace(job_type="ocr_pages"), JOB._replace(job_type="download")

    waits = [after_failure(of_rule._replace(retry_count=n, max_retries=9), now=NOW, jitter=0.5, rules=rules)
             for n in (0, 1, 2, 8)]  # fmt: skip

    assert waits == [Retry(NOW + timedelta(seconds=seconds)) for seconds in (30, 60, 100, 100)]
    assert after_failure(of_another, now=NOW, jitter=0.5, rules=rules) == Retry(NOW + timedelta(seconds=10))


def test_a_rule_adds_no_retry_to_a_stored_job() -> None:
    used_up = JOB._replace(job_type="ocr_pages", retry_count=3)

    assert after_failure(used_up, now=NOW, jitter=0.5, rules={"ocr_pages": RetryRule(max_retries=9)}) == GiveUp()


def test_a_new_job_gets_its_own_retries_or_those_of_its_type() -> None:
    rules = {"ocr_pages": RetryRule(max_retries=5), "assemble": RetryRule(first_wait_seconds=1)}
    new_jobs = [
        NewJob("ocr_pages"),
        NewJob("ocr_pages", max_retries=0),
        NewJob("ocr_pages", max_retries=3),
        NewJob("assemble"),
        NewJob("download"),
    ]

    assert [max_retries_of(job, rules) for job in new_jobs] == [5, 0, 3, None, None]


def test_only_a_running_job_has_a_lease() -> None:
    assert (JOB.lease.job_id, JOB.lease.fence, JOB.lease.worker_id) == (1, 4, "w1")

    with pytest.raises(ValueError, match="only a running job has a lease"):
        _ = JOB._replace(worker_id=None, status=Status.PENDING).lease


def test_three_statuses_are_ends() -> None:
    assert [status.value for status in Status if status.is_ended] == ["completed", "failed", "cancelled"]
