"""What follows from each way in which an attempt can end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.daemon.conftest import MakeAttempt, ended
from tests.store.kit import START
from worker_service.daemon.attempts import Attempt
from worker_service.daemon.outcomes import Complete, ConfirmCancel, Drop, Fail, Release, SnoozeUntil, Verdict, verdict
from worker_service.jobs.attempts import ChildProcess, Failure
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.runner.messages import Ended, How


def decide(attempt: Attempt, how: Ended) -> Verdict:
    return verdict(attempt, how, now=START, jitter=0.5)


def in_seconds(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("how", "fields", "of_job", "expected"),
    [
        (How.DONE, {}, {}, Complete()),
        (How.RETRYABLE, {"after_seconds": 90.0, "code": "HTTP_429", "message": "x"}, {},
         Fail(Failure("HTTP_429", "x"), in_seconds(90))),
        (How.CRASHED, {"message": "x"}, {"max_retries": 0}, Fail(Failure("CRASHED", "x"), None)),
        (How.PERMANENT, {"code": "NO_SUCH_FILE", "message": "gone"}, {}, Fail(Failure("NO_SUCH_FILE", "gone"), None)),
        (How.SNOOZED, {"after_seconds": 60.0}, {}, SnoozeUntil(in_seconds(60), Failure("", ""))),
        (How.SNOOZED, {"after_seconds": 600.0, "pauses_source": True, "message": "quota"}, {"source": "drive"},
         SnoozeUntil(in_seconds(600), Failure("", "quota"), "drive")),
        (How.SNOOZED, {"after_seconds": 600.0, "pauses_source": True, "message": "quota"}, {},
         SnoozeUntil(in_seconds(600), Failure("", "quota"), "")),
    ],
    ids=["done", "as it wishes", "the last retry", "permanent", "snoozed", "rests its source", "has no source"],
)  # fmt: skip
def test_each_end_has_its_verdict(
    make_attempt: MakeAttempt, how: How, fields: dict[str, Any], of_job: dict[str, Any], expected: Verdict
) -> None:
    attempt = make_attempt(**of_job)

    assert decide(attempt, ended(attempt, how, **fields)) == expected


@pytest.mark.parametrize("how", [How.RETRYABLE, How.TIMED_OUT, How.OUT_OF_MEMORY, How.CRASHED, How.GARBLED])
def test_failures_that_may_not_recur_are_retried(make_attempt: MakeAttempt, how: How) -> None:
    attempt = make_attempt()

    chosen = decide(attempt, ended(attempt, how))

    assert isinstance(chosen, Fail)
    assert chosen.failure.code == how.value.upper()
    assert chosen.failure.message
    assert chosen.retry_at == in_seconds(10)


@pytest.mark.parametrize("wish", [float("nan"), float("inf"), -5.0, 1e300])
def test_delays_that_are_no_times_are_harmless(make_attempt: MakeAttempt, wish: float) -> None:
    attempt = make_attempt()

    for how in (How.RETRYABLE, How.SNOOZED):
        chosen = decide(attempt, ended(attempt, how, after_seconds=wish))
        assert isinstance(chosen, (Fail, SnoozeUntil))


def test_an_attempt_that_the_daemon_stopped_is_released_however_it_ended(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()
    attempt.stopped_at = 1.0

    for how in (How.STOPPED, How.CRASHED, How.RETRYABLE, How.TIMED_OUT):
        assert decide(attempt, ended(attempt, how)) == Release()
    assert decide(attempt, ended(attempt, How.DONE)) == Complete()


@pytest.mark.parametrize("how", list(How))
def test_a_cancelled_job_ends_cancelled_however_its_child_ended(make_attempt: MakeAttempt, how: How) -> None:
    attempt = make_attempt()
    attempt.is_cancelled = True

    assert decide(attempt, ended(attempt, how)) == ConfirmCancel()


@pytest.mark.parametrize("how", list(How))
def test_nothing_is_written_under_a_lost_lease(make_attempt: MakeAttempt, how: How) -> None:
    attempt = make_attempt()
    attempt.is_lost = attempt.is_cancelled = True

    assert decide(attempt, ended(attempt, how)) == Drop()


def test_a_death_with_the_fork_server_costs_no_retry_up_to_a_limit(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt()
    died = ended(attempt, How.CRASHED, code="FORK_SERVER_DIED")

    for deaths in range(1, REQUEUES_MAX + 1):
        attempt.fork_server_deaths = deaths
        assert decide(attempt, died) == Release()
    attempt.fork_server_deaths = REQUEUES_MAX + 1
    chosen = decide(attempt, died)

    assert isinstance(chosen, Fail)
    assert chosen.retry_at is not None


NOT_ITS_OWN_END = [
    (How.STOPPED, "STOPPED"),
    (How.CRASHED, "CRASHED"),
    (How.CRASHED, "FORK_SERVER_DIED"),
    (How.CRASHED, "NODE_LOST"),
    (How.TIMED_OUT, "TIMED_OUT"),
    (How.OUT_OF_MEMORY, "OUT_OF_MEMORY"),
    (How.GARBLED, "NO_RESULT"),
    (How.RETRYABLE, "INTERRUPTED"),
    (How.RETRYABLE, "HANDLER_ERROR"),
    (How.RETRYABLE, "FILES_VANISHED"),
]


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize(("how", "code"), NOT_ITS_OWN_END)
def test_an_at_most_once_job_that_had_started_fails_unless_its_handler_decided_otherwise(
    make_attempt: MakeAttempt, how: How, code: str, is_stopped: bool
) -> None:
    attempt = make_attempt()
    attempt.is_at_most_once, attempt.stopped_at = True, 1.0 if is_stopped else None
    attempt.set_child(ChildProcess(4711, 1, "off"))

    chosen = decide(attempt, ended(attempt, how, code=code, message="it is gone"))

    assert isinstance(chosen, Fail)
    assert (chosen.failure.code, chosen.retry_at) == ("MAY_HAVE_RUN", None)
    assert f"({code}: it is gone)" in chosen.failure.message


@pytest.mark.parametrize("code", ["FORK_SERVER_DIED", "NODE_LOST"])
def test_an_at_most_once_job_fails_if_nothing_shows_whether_it_had_started(
    make_attempt: MakeAttempt, code: str
) -> None:
    attempt = make_attempt()
    attempt.is_at_most_once = True

    chosen = decide(attempt, ended(attempt, How.CRASHED, code=code))

    assert isinstance(chosen, Fail)
    assert (chosen.failure.code, chosen.retry_at) == ("MAY_HAVE_RUN", None)


def test_an_at_most_once_job_runs_again_if_its_handler_asks_for_it_or_never_started(make_attempt: MakeAttempt) -> None:
    begun, unbegun = make_attempt(), make_attempt()
    for attempt in (begun, unbegun):
        attempt.is_at_most_once = True
    begun.set_child(ChildProcess(4711, 1, "off"))

    assert decide(begun, ended(begun, How.RETRYABLE, code="HTTP_429", after_seconds=90.0)) == Fail(
        Failure("HTTP_429", "the handler asked for another attempt"), in_seconds(90)
    )
    assert isinstance(decide(begun, ended(begun, How.SNOOZED)), SnoozeUntil)
    assert decide(unbegun, ended(unbegun, How.STOPPED, code="NOT_BEGUN")) == Release()
    crashed = decide(unbegun, ended(unbegun, How.CRASHED, code="CRASHED"))
    assert isinstance(crashed, Fail)
    assert crashed.retry_at is not None
