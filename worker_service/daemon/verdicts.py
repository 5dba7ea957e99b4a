"""What follows from the way in which an attempt ended. Decides; reads no clock, writes no row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from worker_service.children.messages import Ended, How
from worker_service.daemon.slots import Attempt
from worker_service.jobs.model import Failure
from worker_service.jobs.retries import REQUEUES_MAX, Retry, RetryRule, after_failure

_SNOOZE_SECONDS = 60.0
_LONGEST_WAIT_SECONDS = 366 * 86400.0
_SENTENCES = {
    How.RETRYABLE: "the handler asked for another attempt",
    How.PERMANENT: "the handler gave up for good",
    How.TIMED_OUT: "it ran longer than it may",
    How.OUT_OF_MEMORY: "it needed more memory than it may have",
    How.CRASHED: "its process died",
    How.GARBLED: "it spoke nonsense, or ended without a result",
}


@dataclass(frozen=True, slots=True)
class Complete:
    pass


@dataclass(frozen=True, slots=True)
class Fail:
    failure: Failure
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Snooze:
    until: datetime
    why: Failure
    resting: str = ""
    """The source that needs a rest until then."""


@dataclass(frozen=True, slots=True)
class Release:
    pass


@dataclass(frozen=True, slots=True)
class ConfirmCancel:
    pass


@dataclass(frozen=True, slots=True)
class Drop:
    """The lease is lost: nothing may be written."""


Verdict = Complete | Fail | Snooze | Release | ConfirmCancel | Drop


def verdict(
    attempt: Attempt,
    ended: Ended,
    *,
    now: datetime,
    jitter: float,
    rules: Mapping[str, RetryRule] = {},
) -> Verdict:
    if attempt.is_lost:
        return Drop()
    if attempt.is_cancelled:
        return ConfirmCancel()
    if attempt.refused is not None:
        return Fail(replace(attempt.refused, usage=ended.usage), None)
    if ended.how is How.DONE:
        return Complete()
    if ended.how is How.SNOOZED:
        resting = attempt.job.source if ended.rests_source else ""
        until = now + _wait(ended.after_seconds, otherwise=_SNOOZE_SECONDS)
        return Snooze(until, Failure(ended.code, ended.message, ended.usage), resting)
    if ended.how is How.STOPPED or (attempt.stopped_at is not None and ended.how is not How.PERMANENT):
        # However a child ends that we stopped: it is not its fault, and costs no retry.
        return Release()
    if died_with_nursery(ended) and attempt.nursery_deaths <= REQUEUES_MAX:
        if not attempt.is_at_most_once:
            # Most likely another's fault. Not for ever: it may be the one that brings the nursery down.
            return Release()
        return Fail(Failure(ended.code, "it may not run twice, and the nursery died with it", ended.usage), None)
    failure = Failure(ended.code or ended.how.value.upper(), ended.message or _SENTENCES[ended.how], ended.usage)
    after = None if ended.after_seconds is None else _wait(ended.after_seconds, otherwise=0)
    is_permanent = ended.how is How.PERMANENT
    choice = after_failure(attempt.job, now=now, jitter=jitter, is_permanent=is_permanent, after=after, rules=rules)
    return Fail(failure, choice.run_at if isinstance(choice, Retry) else None)


def died_with_nursery(ended: Ended) -> bool:
    return ended.how is How.CRASHED and ended.code == "NURSERY_DIED"


def _wait(seconds: float | None, *, otherwise: float) -> timedelta:
    """A handler's wish, where it is one: not before now, not after a year."""
    wished = otherwise if seconds is None or seconds != seconds else seconds
    return timedelta(seconds=min(max(wished, 0.0), _LONGEST_WAIT_SECONDS))
