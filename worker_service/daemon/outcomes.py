"""Decide and write what follows from the end of an attempt. Completions share a transaction.

If an outcome cannot be written for too long, the daemon exits, and recovery requeues its jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base import events
from worker_service.base.errors import (
    BadInput,
    BadPayload,
    CancelRequested,
    LeaseLost,
    PublishedFileRemoved,
    RuleBroken,
    StoreError,
    in_a_sentence,
)
from worker_service.base.humanize import counted
from worker_service.daemon.attempts import PAUSE_SECONDS, Attempt, DaemonContext, failure_fields
from worker_service.daemon.publisher import Publisher, StagedFileMissing
from worker_service.daemon.reporting import PATIENCE_SECONDS, StoreFailedTooLong
from worker_service.jobs.attempts import Completion, Failure
from worker_service.jobs.job import Lease
from worker_service.jobs.retries import (
    MAY_HAVE_RUN,
    MAY_HAVE_RUN_REMEDY,
    REQUEUES_MAX,
    Retry,
    RetryRule,
    after_failure,
    may_have_run_detail,
)
from worker_service.runner.messages import Ended, How, Key

# For a snooze without a time.
_SNOOZE_SECONDS = 60.0
# A year. A handler may ask for any number, and `timedelta` cannot hold the largest.
_LONGEST_WAIT_SECONDS = 366 * 86400.0
# For ends without a message of their own.
_MESSAGES = {
    How.RETRYABLE: "the handler asked for another attempt",
    How.PERMANENT: "the handler gave up for good",
    How.TIMED_OUT: "it ran longer than it may",
    How.OUT_OF_MEMORY: "it needed more memory than it may have",
    How.CRASHED: "its process died",
    How.GARBLED: "it sent invalid data, or ended without a result",
    How.STOPPED: "it was asked to stop",
}


class Complete(Struct, frozen=True):
    pass


class Fail(Struct, frozen=True):
    failure: Failure
    retry_at: datetime | None
    """None: the job has failed for good."""


class SnoozeUntil(Struct, frozen=True):
    until: datetime
    why: Failure
    source_to_pause: str = ""


class Release(Struct, frozen=True):
    pass


class Requeue(Struct, frozen=True):
    why: Failure


class ConfirmCancel(Struct, frozen=True):
    pass


class Drop(Struct, frozen=True):
    """Write nothing: the lease is lost."""


Uncompleted = Fail | SnoozeUntil | Release | Requeue | ConfirmCancel | Drop
Verdict = Complete | Uncompleted


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
    if attempt.rejection is not None:
        return Fail(replace(attempt.rejection, usage=ended.usage), None)
    if ended.how is How.DONE:
        return Complete()
    if attempt.is_at_most_once and may_have_run(attempt, ended):
        detail = may_have_run_detail(_code_of(ended), _message_of(ended))
        return Fail(Failure(MAY_HAVE_RUN, detail, ended.usage, MAY_HAVE_RUN_REMEDY), None)
    if ended.how is How.SNOOZED:
        source_to_pause = attempt.job.source if ended.pauses_source else ""
        until = now + _delay(ended.after_seconds, default=_SNOOZE_SECONDS)
        return SnoozeUntil(until, _failure(ended), source_to_pause)
    if ended.how is How.STOPPED or (attempt.stopped_at is not None and ended.how is not How.PERMANENT):
        # The daemon stopped the child process, so its exit is not the job's fault and costs no retry.
        return Release()
    if ended.how is How.CRASHED and ended.code == "NODE_LOST":
        return Requeue(_failure(ended))
    if died_with_fork_server(ended) and attempt.fork_server_deaths <= REQUEUES_MAX:
        # Most likely another attempt's fault. Bounded, because this one may crash the fork server each time.
        return Release()
    failure = replace(_failure(ended), code=_code_of(ended), message=_message_of(ended))
    after = None if ended.after_seconds is None else _delay(ended.after_seconds, default=0)
    is_permanent = ended.how is How.PERMANENT
    choice = after_failure(
        attempt.job, now=now, jitter=jitter, is_permanent=is_permanent, requested_wait=after, rules=rules
    )
    return Fail(failure, choice.run_at if isinstance(choice, Retry) else None)


def _failure(ended: Ended) -> Failure:
    return Failure(ended.code, ended.message, ended.usage, ended.remedy)


def may_have_run(attempt: Attempt, ended: Ended) -> bool:
    if ended.is_handlers_decision:
        return False
    # A fork server or node that died may have lost the child process's `Started`.
    return attempt.has_started or (ended.how is How.CRASHED and ended.code in ("FORK_SERVER_DIED", "NODE_LOST"))


def _code_of(ended: Ended) -> str:
    return ended.code or ended.how.value.upper()


def _message_of(ended: Ended) -> str:
    return ended.message or _MESSAGES[ended.how]


def died_with_fork_server(ended: Ended) -> bool:
    return ended.how is How.CRASHED and ended.code == "FORK_SERVER_DIED"


def _delay(seconds: float | None, *, default: float) -> timedelta:
    wanted = default if seconds is None or math.isnan(seconds) else seconds
    return timedelta(seconds=min(max(wanted, 0.0), _LONGEST_WAIT_SECONDS))


# ── Writing outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class OutcomeWriter:
    context: DaemonContext
    publisher: Publisher
    _waiting: dict[Key, tuple[Attempt, Ended]] = field(default_factory=dict)
    _fork_server_deaths_by_job: dict[int, int] = field(default_factory=dict)
    _failing_since: float | None = None
    _again_at: float = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def again_at(self) -> float | None:
        # 0.0 without a failure; None if there is nothing to write.
        return self._again_at if self._ready() else None

    def attempts_with_unwritten_reports(self) -> list[Attempt]:
        # A completion also writes the child process, so the report of a new child alone need not come first.
        return [
            attempt
            for attempt, ended in self._waiting.values()
            if attempt.ordered_reports
            or (attempt.has_progress_or_lines if ended.how is How.DONE else attempt.has_unwritten_progress)
        ]

    def add(self, attempt: Attempt, ended: Ended) -> None:
        if died_with_fork_server(ended):
            attempt.fork_server_deaths = self._fork_server_deaths_by_job.get(attempt.job.id, 0) + 1
        self._waiting[attempt.key] = (attempt, ended)

    def _ready(self) -> list[tuple[Attempt, Ended]]:
        # An attempt with unwritten reports is not ready: the store rejects reports after the outcome.
        return [waiting for waiting in self._waiting.values() if not waiting[0].ordered_reports]

    def write(self) -> list[Attempt]:
        """Return the attempts written. Raise `StoreFailedTooLong` after `PATIENCE_SECONDS` of failure."""
        # The steps below add to this list, so that it is complete even if one of them fails.
        finished: list[Attempt] = []
        if not self._ready() or self.context.monotonic() < self._again_at:
            return finished
        try:
            self._write_completions(finished)
            self._write_others(finished)
        except (StoreError, OSError) as error:
            self._postpone(error)
        else:
            if self._failing_since is not None:
                self.context.log.info(events.STORE_RECOVERED)
            self._failing_since, self._again_at = None, 0.0
        return finished

    def _postpone(self, error: Exception) -> None:
        now = self.context.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self.context.log.error(events.STORE_UNAVAILABLE, **failure_fields(error), waiting=len(self._waiting))
        if now - self._failing_since >= PATIENCE_SECONDS:
            raise StoreFailedTooLong(
                f"the end of {counted(len(self._waiting), 'attempt')} could not be written: {error}"
            ) from error
        self._again_at = now + PAUSE_SECONDS

    # ── Completions, in one transaction ──

    def _write_completions(self, finished: list[Attempt]) -> None:
        ready = [
            (attempt, ended) for attempt, ended in self._ready() if isinstance(self._verdict(attempt, ended), Complete)
        ]
        done = [(attempt, ended) for attempt, ended in ready if self._try_publish(attempt, ended)]
        if not done:
            return
        try:
            completions = [self._completion(attempt, ended) for attempt, ended in done]
            lost = self.context.store.leases.complete_many(completions)
        except (RuleBroken, BadPayload, BadInput):
            # The store rejected one of them: write them one by one to find out which.
            for attempt, ended in done:
                self._write_completion_alone(attempt, ended, finished)
        else:
            self._finish_completed(done, lost, finished)

    def _finish_completed(
        self, done: Sequence[tuple[Attempt, Ended]], lost: Sequence[Lease], finished: list[Attempt]
    ) -> None:
        for attempt, ended in done:
            if attempt.lease in lost:
                # The job was cancelled at the last moment. If the lease is lost instead, this writes nothing.
                self._write(attempt, ConfirmCancel(), ended)
                # Retract last: if the write above fails, the outcome is retried and needs the files.
                self.publisher.retract(ended)
            else:
                self.context.log.info(events.JOB_COMPLETED, **_log_fields(attempt))
            self._finish(attempt, finished)

    def _try_publish(self, attempt: Attempt, ended: Ended) -> bool:
        if not ended.files:
            return True
        try:
            self.publisher.publish(ended)
        except StagedFileMissing as error:
            self._change_to_failure(attempt, ended, "FILES_VANISHED", error)
            return False
        return True

    def _change_to_failure(self, attempt: Attempt, ended: Ended, code: str, error: Exception) -> None:
        failed = replace(ended, how=How.RETRYABLE, code=code, message=str(error), remedy="")
        self._waiting[attempt.key] = (attempt, failed)

    def _write_completion_alone(self, attempt: Attempt, ended: Ended, finished: list[Attempt]) -> None:
        try:
            lost = self.context.store.leases.complete_many([self._completion(attempt, ended)])
        except PublishedFileRemoved as error:
            # A user removed the document after the handler asked about it. The next attempt will ask again.
            self._change_to_failure(attempt, ended, "FILE_FORGOTTEN", error)
        except (RuleBroken, BadPayload, BadInput) as error:
            self._write(attempt, Fail(Failure("RESULT_REFUSED", str(error), ended.usage), None), ended)
            self.publisher.retract(ended)
            self._finish(attempt, finished)
        else:
            self._finish_completed([(attempt, ended)], lost, finished)

    # ── Other outcomes, one by one ──

    def _write_others(self, finished: list[Attempt]) -> None:
        for attempt, ended in self._ready():
            outcome = self._verdict(attempt, ended)
            if isinstance(outcome, Complete):
                continue
            self._write(attempt, outcome, ended)
            self.publisher.retract(ended)
            self._finish(attempt, finished)

    def _write(self, attempt: Attempt, outcome: Uncompleted, ended: Ended) -> None:
        try:
            self._write_rows(attempt, outcome, ended)
        except CancelRequested:
            self._write(attempt, ConfirmCancel(), ended)
        except LeaseLost:
            self.context.log.warning(events.LEASE_LOST, **_log_fields(attempt))

    def _write_rows(self, attempt: Attempt, outcome: Uncompleted, ended: Ended) -> None:
        leases, log, lease = self.context.store.leases, self.context.log, attempt.lease
        if isinstance(outcome, Fail):
            leases.fail(lease, outcome.failure, retry_at=outcome.retry_at)
            event = events.JOB_FAILED if outcome.retry_at is None else events.JOB_RETRIED
            log.warning(event, **_log_fields(attempt), code=outcome.failure.code)
        elif isinstance(outcome, SnoozeUntil):
            if outcome.source_to_pause:
                reason = in_a_sentence(outcome.why.message, outcome.why.remedy)
                leases.rest_source(outcome.source_to_pause, outcome.until, reason)
            leases.snooze(lease, outcome.until, outcome.why)
            log.info(events.JOB_SNOOZED, **_log_fields(attempt))
        elif isinstance(outcome, Release):
            leases.release(lease)
            log.info(events.JOB_RELEASED, **_log_fields(attempt))
        elif isinstance(outcome, Requeue):
            status = leases.requeue_one(lease, outcome.why)
            log.warning(events.JOB_REQUEUED, **_log_fields(attempt), status=status.value, reason=outcome.why.message)
        elif isinstance(outcome, ConfirmCancel):
            leases.confirm_cancel(lease, ended.usage)
            log.info(events.JOB_CANCELLED, **_log_fields(attempt))

    def _verdict(self, attempt: Attempt, ended: Ended) -> Verdict:
        return verdict(
            attempt, ended, now=self.context.clock(), jitter=random.random(), rules=self.context.settings.retries
        )

    def _completion(self, attempt: Attempt, ended: Ended) -> Completion:
        return Completion(
            attempt.lease,
            ended.result,
            ended.follow_ups,
            ended.usage,
            [*(self.publisher.new_files(ended) if ended.files else ()), *ended.published_again],
            ended.document,
            ended.publishes,
            attempt.child,
            attempt.node,
        )

    def _finish(self, attempt: Attempt, finished: list[Attempt]) -> None:
        del self._waiting[attempt.key]
        finished.append(attempt)
        if attempt.fork_server_deaths:
            self._fork_server_deaths_by_job[attempt.job.id] = attempt.fork_server_deaths
        else:
            self._fork_server_deaths_by_job.pop(attempt.job.id, None)


def _log_fields(attempt: Attempt) -> dict[str, object]:
    return {"job_id": attempt.lease.job_id, "fence": attempt.lease.fence, "job_type": attempt.job.job_type}
