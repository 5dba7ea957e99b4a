"""Write how attempts ended: many completions in one transaction, everything else one by one.

An end that cannot be written now (the database is locked, the disk is full) is kept and tried again. When that goes on
for too long the daemon must not go on either: it exits, and its jobs are taken back from the dead. What follows from an
end is decided in `verdicts`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from worker_service import events
from worker_service.children.messages import Ended, How
from worker_service.clock import Clock
from worker_service.daemon.breath import Breath
from worker_service.daemon.publishing import Publisher, Vanished
from worker_service.daemon.slots import Attempt, Key
from worker_service.daemon.verdicts import (
    Complete,
    ConfirmCancel,
    Drop,
    Fail,
    Release,
    Snooze,
    died_with_nursery,
    verdict,
)
from worker_service.errors import (
    BadInput,
    BadPayload,
    CancelRequested,
    FileForgotten,
    LeaseLost,
    RuleBroken,
    StoreError,
)
from worker_service.jobs.model import Completion, Failure, Lease
from worker_service.jobs.retries import RetryRule
from worker_service.plurals import counted
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0


class CannotLand(StoreError):
    """The end of an attempt could not be written for too long."""

    code = "cannot_land"


class Landing:
    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        *,
        log: Log,
        clock: Clock,
        monotonic: Callable[[], float],
        breath: Breath,
        patience_seconds: float = PATIENCE_SECONDS,
        rules: Mapping[str, RetryRule] = {},
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._log = log
        self._clock = clock
        self._monotonic = monotonic
        self._breath = breath
        self._patience_seconds = patience_seconds
        self._rules = rules
        self._waiting: dict[Key, tuple[Attempt, Ended]] = {}
        self._nursery_deaths: dict[int, int] = {}
        self._failing_since: float | None = None
        self._again_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def again_at(self) -> float | None:
        """When to try again what could not be written; None: nothing waits, unless for its own pages."""
        return self._again_at if self._ready() else None

    def untold(self) -> list[Attempt]:
        """Whose own words have to be written before their end is. A completion tells itself which child it was."""
        return [
            attempt
            for attempt, ended in self._waiting.values()
            if attempt.unwritten or (attempt.has_words if ended.how is How.DONE else attempt.has_news)
        ]

    def add(self, attempt: Attempt, ended: Ended) -> None:
        if died_with_nursery(ended):
            attempt.nursery_deaths = self._nursery_deaths.get(attempt.job.id, 0) + 1
        self._waiting[attempt.key] = (attempt, ended)

    def _ready(self) -> list[tuple[Attempt, Ended]]:
        """After its end nothing of an attempt lands: what it said before goes first."""
        return [waiting for waiting in self._waiting.values() if not waiting[0].unwritten]

    def land(self) -> list[Attempt]:
        """Return the attempts about which nothing is left to write. Raise `CannotLand` when patience ends."""
        landed: list[Attempt] = []
        if not self._ready() or self._monotonic() < self._again_at:
            return landed
        try:
            self._land_completions(landed)
            self._land_others(landed)
        except (StoreError, OSError) as error:
            self._postpone(error)
        else:
            if self._failing_since is not None:
                self._log.info(events.STORE_RECOVERED)
            self._failing_since, self._again_at = None, 0.0
        return landed

    def _postpone(self, error: Exception) -> None:
        now = self._monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._log.error(events.STORE_UNAVAILABLE, reason=str(error), waiting=len(self._waiting))
        if now - self._failing_since >= self._patience_seconds:
            raise CannotLand(
                f"the end of {counted(len(self._waiting), 'attempt')} could not be written: {error}"
            ) from error
        self._again_at = now + _PAUSE_SECONDS

    # ── Completions, together ──

    def _land_completions(self, landed: list[Attempt]) -> None:
        ready = [(a, e) for a, e in self._ready() if isinstance(self._verdict(a, e), Complete)]
        done = [(attempt, ended) for attempt, ended in ready if self._has_published(attempt, ended)]
        if not done:
            return
        try:
            with self._breath:
                lost = set(self._store.complete_many([self._completion(attempt, ended) for attempt, ended in done]))
        except (RuleBroken, BadPayload, BadInput):
            # One of them is refused by the table: find out which.
            for attempt, ended in done:
                if self._land_completion_alone(attempt, ended):
                    self._landed(attempt, landed)
            return
        for attempt, ended in done:
            if attempt.lease in lost:
                self._refused(attempt, ended)
            else:
                self._log.info(events.JOB_COMPLETED, **_named(attempt))
            self._landed(attempt, landed)

    def _has_published(self, attempt: Attempt, ended: Ended) -> bool:
        try:
            self._publisher.publish(ended)
        except Vanished as error:
            self._fails_after_all(attempt, ended, "FILES_VANISHED", error)
            return False
        return True

    def _fails_after_all(self, attempt: Attempt, ended: Ended, code: str, error: Exception) -> None:
        """It ends as a failure that is tried again, with the others that do."""
        failed = replace(ended, how=How.RETRYABLE, code=code, message=str(error))
        self._waiting[attempt.key] = (attempt, failed)

    def _land_completion_alone(self, attempt: Attempt, ended: Ended) -> bool:
        try:
            with self._breath:
                lost = self._store.complete_many([self._completion(attempt, ended)])
        except FileForgotten as error:
            # Its document was removed between the question and the end: the next attempt asks anew.
            self._fails_after_all(attempt, ended, "FILE_FORGOTTEN", error)
            return False
        except (RuleBroken, BadPayload, BadInput) as error:
            self._write(attempt, Fail(Failure("RESULT_REFUSED", str(error), ended.usage), None), ended)
            self._publisher.retract(ended)
            return True
        if lost:
            self._refused(attempt, ended)
        else:
            self._log.info(events.JOB_COMPLETED, **_named(attempt))
        return True

    def _refused(self, attempt: Attempt, ended: Ended) -> None:
        # Either somebody asked it to stop in the last moment, or the lease is gone.
        self._write(attempt, ConfirmCancel(), ended)
        # Last: if that cannot be written now, all is done once more, and needs the files.
        self._publisher.retract(ended)

    # ── The others, one by one ──

    def _land_others(self, landed: list[Attempt]) -> None:
        for attempt, ended in self._ready():
            chosen = self._verdict(attempt, ended)
            if isinstance(chosen, Complete):
                continue
            self._write(attempt, chosen, ended)
            self._publisher.retract(ended)
            self._landed(attempt, landed)

    def _write(self, attempt: Attempt, chosen: Fail | Snooze | Release | ConfirmCancel | Drop, ended: Ended) -> None:
        try:
            with self._breath:
                self._write_now(attempt, chosen, ended)
        except CancelRequested:
            self._write(attempt, ConfirmCancel(), ended)
        except LeaseLost:
            self._log.warning(events.LEASE_LOST, **_named(attempt))

    def _write_now(
        self, attempt: Attempt, chosen: Fail | Snooze | Release | ConfirmCancel | Drop, ended: Ended
    ) -> None:
        lease = attempt.lease
        if isinstance(chosen, Fail):
            self._fail(attempt, chosen)
        elif isinstance(chosen, Snooze):
            if chosen.resting:
                self._store.rest_source(chosen.resting, chosen.until, chosen.why.message)
            self._store.snooze(lease, chosen.until, chosen.why)
            self._log.info(events.JOB_SNOOZED, **_named(attempt))
        elif isinstance(chosen, Release):
            self._store.release(lease)
            self._log.info(events.JOB_RELEASED, **_named(attempt))
        elif isinstance(chosen, ConfirmCancel):
            self._store.confirm_cancel(lease, ended.usage)
            self._log.info(events.JOB_CANCELLED, **_named(attempt))

    def _fail(self, attempt: Attempt, chosen: Fail) -> None:
        self._store.fail(attempt.lease, chosen.failure, retry_at=chosen.retry_at)
        is_retried = chosen.retry_at is not None
        self._log.warning(
            events.JOB_RETRIED if is_retried else events.JOB_FAILED, **_named(attempt), code=chosen.failure.code
        )

    def _verdict(self, attempt: Attempt, ended: Ended) -> Complete | Fail | Snooze | Release | ConfirmCancel | Drop:
        return verdict(attempt, ended, now=self._clock(), jitter=random.random(), rules=self._rules)

    def _completion(self, attempt: Attempt, ended: Ended) -> Completion:
        return Completion(
            attempt.lease,
            ended.result,
            ended.follow_ups,
            ended.usage,
            [*self._publisher.published(ended), *ended.published_again],
            ended.document,
            ended.publishes,
            attempt.child,
        )

    def _landed(self, attempt: Attempt, landed: list[Attempt]) -> None:
        del self._waiting[attempt.key]
        landed.append(attempt)
        if attempt.nursery_deaths:
            self._nursery_deaths[attempt.job.id] = attempt.nursery_deaths
        else:
            self._nursery_deaths.pop(attempt.job.id, None)


def _named(attempt: Attempt) -> dict[str, object]:
    lease: Lease = attempt.lease
    return {"job_id": lease.job_id, "fence": lease.fence, "job_type": attempt.job.job_type}
