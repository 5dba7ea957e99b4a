"""What follows from the way in which an attempt ended."""

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
    attempt: MakeAttempt, how: How, fields: dict[str, Any], of_job: dict[str, Any], expected: Verdict
) -> None:
    one = attempt(**of_job)

    assert decide(one, ended(one, how, **fields)) == expected


@pytest.mark.parametrize("how", [How.RETRYABLE, How.TIMED_OUT, How.OUT_OF_MEMORY, How.CRASHED, How.GARBLED])
def test_what_may_go_better_next_time_is_retried(attempt: MakeAttempt, how: How) -> None:
    one = attempt()

    chosen = decide(one, ended(one, how))

    assert isinstance(chosen, Fail)
    assert chosen.failure.code == how.value.upper()
    assert chosen.failure.message
    assert chosen.retry_at == in_seconds(10)


@pytest.mark.parametrize("wish", [float("nan"), float("inf"), -5.0, 1e300])
def test_a_wish_that_is_none_does_no_harm(attempt: MakeAttempt, wish: float) -> None:
    one = attempt()

    for how in (How.RETRYABLE, How.SNOOZED):
        chosen = decide(one, ended(one, how, after_seconds=wish))
        assert isinstance(chosen, (Fail, SnoozeUntil))


def test_what_we_stopped_is_released_however_it_ended(attempt: MakeAttempt) -> None:
    one = attempt()
    one.stopped_at = 1.0

    for how in (How.STOPPED, How.CRASHED, How.RETRYABLE, How.TIMED_OUT):
        assert decide(one, ended(one, how)) == Release()
    assert decide(one, ended(one, How.DONE)) == Complete()


@pytest.mark.parametrize("how", list(How))
def test_a_cancelled_job_ends_cancelled_however_its_child_ended(attempt: MakeAttempt, how: How) -> None:
    one = attempt()
    one.is_cancelled = True

    assert decide(one, ended(one, how)) == ConfirmCancel()


@pytest.mark.parametrize("how", list(How))
def test_nothing_is_written_under_a_lost_lease(attempt: MakeAttempt, how: How) -> None:
    one = attempt()
    one.is_lost = one.is_cancelled = True

    assert decide(one, ended(one, how)) == Drop()


def test_an_attempt_that_died_with_its_fork_server_costs_no_retry_but_not_for_ever(attempt: MakeAttempt) -> None:
    one = attempt()
    died = ended(one, How.CRASHED, code="FORK_SERVER_DIED")

    for deaths in range(1, REQUEUES_MAX + 1):
        one.fork_server_deaths = deaths
        assert decide(one, died) == Release()
    one.fork_server_deaths = REQUEUES_MAX + 1
    chosen = decide(one, died)

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
def test_an_at_most_once_job_that_had_begun_fails_unless_its_handler_decided_otherwise(
    attempt: MakeAttempt, how: How, code: str, is_stopped: bool
) -> None:
    one = attempt()
    one.is_at_most_once, one.stopped_at = True, 1.0 if is_stopped else None
    one.set_child(ChildProcess(4711, 1, "off"))

    chosen = decide(one, ended(one, how, code=code, message="it is gone"))

    assert isinstance(chosen, Fail)
    assert (chosen.failure.code, chosen.retry_at) == ("MAY_HAVE_RUN", None)
    assert f"({code}: it is gone)" in chosen.failure.message


@pytest.mark.parametrize("code", ["FORK_SERVER_DIED", "NODE_LOST"])
def test_an_at_most_once_job_fails_where_nobody_is_left_to_say_whether_it_had_begun(
    attempt: MakeAttempt, code: str
) -> None:
    one = attempt()
    one.is_at_most_once = True

    chosen = decide(one, ended(one, How.CRASHED, code=code))

    assert isinstance(chosen, Fail)
    assert (chosen.failure.code, chosen.retry_at) == ("MAY_HAVE_RUN", None)


def test_an_at_most_once_job_runs_again_if_its_handler_asks_for_it_or_never_began(attempt: MakeAttempt) -> None:
    begun, unbegun = attempt(), attempt()
    for one in (begun, unbegun):
        one.is_at_most_once = True
    begun.set_child(ChildProcess(4711, 1, "off"))

    assert decide(begun, ended(begun, How.RETRYABLE, code="HTTP_429", after_seconds=90.0)) == Fail(
        Failure("HTTP_429", "the handler asked for another attempt"), in_seconds(90)
    )
    assert isinstance(decide(begun, ended(begun, How.SNOOZED)), SnoozeUntil)
    assert decide(unbegun, ended(unbegun, How.STOPPED, code="NOT_BEGUN")) == Release()
    crashed = decide(unbegun, ended(unbegun, How.CRASHED, code="CRASHED"))
    assert isinstance(crashed, Fail)
    assert crashed.retry_at is not None
