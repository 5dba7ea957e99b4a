"""The real store, checked at every commit.

Before each statement the world may let other daemons run, or end this one. After each commit the rows before and after
are compared with what the verb and its leases allow. What the audit asks of the whole history afterwards
(`integrity.sql`) is asked here of each single step, with what only a simulation knows: who lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import RuleBroken
from worker_service.jobs import retries
from worker_service.jobs.attempts import Completion, Failure, Report, Usage
from worker_service.jobs.batches import Batch, BatchMoved, OwnerPolicy
from worker_service.jobs.documents import TakeoverPatience
from worker_service.jobs.history import Changed
from worker_service.jobs.job import Job, Lease
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import Beat
from worker_service.store.batches import Batches
from worker_service.store.database import Database, Transaction, WriteOptions
from worker_service.store.job_control import JobControl
from worker_service.store.leases import Leases
from worker_service.store.store import Store

_ROWS = """
SELECT id, status, fence, worker_id, cancel_requested_at IS NOT NULL, progress_percent, heartbeat_at, retry_count,
       requeue_count, max_retries, concurrency_key, job_type, owner, result
  FROM worker_job_queue
"""
_ENDED = ("completed", "failed", "cancelled")


class Row(NamedTuple):
    id: int
    status: str
    fence: int
    worker_id: str | None
    is_asked: int
    percent: int
    heartbeat_at: str | None
    retries: int
    requeues: int
    max_retries: int
    key: str | None
    job_type: str
    owner: str
    result: str | None


Rows = dict[int, Row]


@dataclass(frozen=True, slots=True)
class Deed:
    """The verb that is running, and the leases that allow its writes."""

    verb: str
    leases: frozenset[Lease] = frozenset()
    requeued: str | None = None


class Surroundings(Protocol):
    """The part of the world that the store uses."""

    rows: Rows

    def moment(self, actor: object, verb: str, sql: str, *, may_enter: bool) -> None: ...
    def answer(self, actor: object) -> None: ...
    def fault(self, sentence: str) -> None: ...
    def committed(self, actor: object, before: Rows, after: Rows) -> None: ...


class WatchedDatabase(Database):
    """`actor` is the daemon that uses it; None for users, who are never interrupted."""

    def __init__(self, path: Path, statements: dict[str, str], orphan_after_seconds: int) -> None:
        super().__init__(
            path,
            statements,
            wall_clock,
            orphan_after_seconds=orphan_after_seconds,
            writing=WriteOptions(is_durable=False),
        )
        self._deed = Deed("read")
        self.leave()
        self.writer.exec_trace = self._trace
        self.reader.exec_trace = self._trace

    def enter(self, world: Surroundings, clock: Clock) -> None:
        self.world, self.clock, self._is_watching = world, clock, False

    def leave(self) -> None:
        self.actor: object = None
        self._is_watching = True

    def _trace(self, cursor: object, sql: str, values: object) -> bool:
        if not self._is_watching:
            may_enter = not self.writer.in_transaction
            self.world.moment(self.actor, self._deed.verb, sql, may_enter=may_enter)
        return True

    def transaction(self) -> Transaction:
        return _Watched(super().transaction(), self)

    def rows(self) -> Rows:
        with self.unwatched():
            rows: list[tuple[Any, ...]] = self.writer.execute(_ROWS).fetchall()
            return {row[0]: Row(*row) for row in rows}

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False

    @contextmanager
    def doing(self, deed: Deed) -> Iterator[None]:
        before, self._deed = self._deed, deed
        try:
            yield
        except RuleBroken as error:
            self.world.fault(f"the table had to refuse a {deed.verb}: {error}")
            raise
        finally:
            self._deed = before

    def is_current(self, lease: Lease) -> bool:
        row = self.world.rows.get(lease.job_id)
        return row is not None and (row.status, row.fence, row.worker_id) == ("running", lease.fence, lease.worker_id)


class WatchedStore(Store):
    database: WatchedDatabase

    def __init__(self, path: Path, statements: dict[str, str], orphan_after_seconds: int) -> None:
        super().__init__(WatchedDatabase(path, statements, orphan_after_seconds), TakeoverPatience())
        self.leases = _WatchedLeases(self)
        self.job_control = _WatchedJobControl(self)
        self.batches = _WatchedBatches(self)


# ── The verbs, each by its right ──


class _WatchedLeases(Leases):
    _db: WatchedDatabase

    def claim(
        self,
        worker_id: str,
        most: int,
        job_class: str = "cpu",
        *,
        prefetched: int = 0,
        only: Sequence[str] | None = None,
    ) -> list[Job]:
        with self._db.doing(Deed("claim")):
            jobs = super().claim(worker_id, most, job_class, prefetched=prefetched, only=only)
            self._db.world.answer(self._db.actor)
            return jobs

    def beat(self, worker_id: str, leases: Sequence[Lease]) -> Beat:
        with self._db.doing(Deed("beat", frozenset(leases))):
            answer = super().beat(worker_id, leases)
        for lease in leases:
            if (lease in answer.lost) == self._db.is_current(lease):
                self._db.world.fault(f"P2: a beat calls {lease} {'lost' if lease in answer.lost else 'held'}")
        return answer

    def report(self, reports: Sequence[Report]) -> list[Lease]:
        with self._db.doing(Deed("report", frozenset(report.lease for report in reports))):
            return super().report(reports)

    def complete_many(self, completions: Sequence[Completion]) -> list[Lease]:
        with self._db.doing(Deed("complete", frozenset(done.lease for done in completions))):
            lost = super().complete_many(completions)
        for done in completions:
            row = self._db.world.rows[done.lease.job_id]
            is_completed = (row.status, row.fence) == ("completed", done.lease.fence)
            if is_completed == (done.lease in lost):
                self._db.world.fault(f"P5: a complete of {done.lease} says lost={done.lease in lost}; it is {row}")
        return lost

    def fail(self, lease: Lease, failure: Failure, *, retry_at: datetime | None) -> None:
        with self._db.doing(Deed("fail", frozenset([lease]))):
            super().fail(lease, failure, retry_at=retry_at)

    def snooze(self, lease: Lease, until: datetime, why: Failure | None = None) -> None:
        with self._db.doing(Deed("snooze", frozenset([lease]))):
            super().snooze(lease, until, why)

    def release(self, lease: Lease) -> None:
        with self._db.doing(Deed("release", frozenset([lease]))):
            super().release(lease)

    def confirm_cancel(self, lease: Lease, usage: Usage = Usage()) -> None:  # noqa: B008  frozen
        with self._db.doing(Deed("confirm_cancel", frozenset([lease]))):
            super().confirm_cancel(lease, usage)

    def requeue(self, worker_id: str, *, last_beat: str | None = None) -> list[Job]:
        with self._db.doing(Deed("requeue", requeued=worker_id)):
            return super().requeue(worker_id, last_beat=last_beat)


class _WatchedJobControl(JobControl):
    _db: WatchedDatabase

    def cancel(
        self, selector: Selector, *, actor: str, without_grace: bool = False, action_id: int | None = None
    ) -> Changed:
        with self._db.doing(Deed("cancel")):
            return super().cancel(selector, actor=actor, without_grace=without_grace, action_id=action_id)

    def retry(self, selector: Selector, *, actor: str) -> Changed:
        with self._db.doing(Deed("retry")):
            return super().retry(selector, actor=actor)


class _WatchedBatches(Batches):
    _db: WatchedDatabase

    def stop(self, batch_id: int, *, actor: str) -> Batch:
        with self._db.doing(Deed("stop")):
            return super().stop(batch_id, actor=actor)

    def resume(self, batch_id: int, *, actor: str, policy: OwnerPolicy = OwnerPolicy.REPLACE) -> BatchMoved:
        with self._db.doing(Deed("retry")):
            return super().resume(batch_id, actor=actor, policy=policy)


class _Watched(Transaction):
    """Transaction that is checked when it commits."""

    def __init__(self, real: Transaction, database: WatchedDatabase) -> None:
        self._real = real
        self._database = database

    def __enter__(self) -> None:
        self._real.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            with self._database.unwatched():
                self._real.__exit__(kind, error, traceback)
            return
        database, world = self._database, self._database.world
        after = database.rows()
        self._real.__exit__(kind, error, traceback)
        before, world.rows = world.rows, after
        for sentence in broken(database._deed, before, after):
            world.fault(sentence)
        world.committed(database.actor, before, after)


def broken(deed: Deed, before: Rows, after: Rows) -> Iterator[str]:
    """Return the promises that this commit has broken."""
    for job_id, was in before.items():
        now = after.get(job_id)
        if now is None:
            yield f"P3: job {job_id} is lost, by a {deed.verb}"
        elif now != was:
            yield from (f"{sentence}, by a {deed.verb}: {was} → {now}" for sentence in _wrong(deed, was, now))
    for job_id in after.keys() - before.keys():
        if after[job_id].status != "pending" or after[job_id].fence:
            yield f"P3: job {job_id} comes in as {after[job_id]}"
    running = [row for row in after.values() if row.status == "running"]
    keys = [row.key for row in running if row.key]
    if len(keys) != len(set(keys)):
        yield f"P8: two jobs with one concurrency_key run after a {deed.verb}: {running}"
    if sum(row.job_type == "work" for row in running) > LIMITS["type"]["work"]:
        yield f"P8: too many jobs of a type run after a {deed.verb}: {running}"
    if sum(row.owner == "ann" for row in running) > LIMITS["owner"]["ann"]:
        yield f"P8: too many jobs of an owner run after a {deed.verb}: {running}"


LIMITS: dict[str, dict[str, int]] = {"type": {"work": 3}, "owner": {"ann": 2}}


def _wrong(deed: Deed, was: Row, now: Row) -> Iterator[str]:
    begins = was.status == "pending" and now.status == "running"
    if now.fence != was.fence + begins:
        yield "P1: the fence moved without a claim, or a claim without the fence"
    if begins and deed.verb != "claim":
        yield "P1: only a claim begins an attempt"
    if was.status == "running" and now._replace(is_asked=was.is_asked) != was:
        lease = Lease(was.id, was.fence, was.worker_id or "")
        if lease not in deed.leases and deed.requeued != was.worker_id:
            yield "P2: whoever did not hold the lease has written"
    if was.status in _ENDED and deed.verb != "retry":
        yield "P4: an ended job changed, and nobody wished for it"
    if now.retries > now.max_retries or now.requeues > retries.REQUEUES_MAX:
        yield "P6: a budget was overdrawn"
    if (now.retries > was.retries and deed.verb != "fail") or (now.requeues > was.requeues and deed.verb != "requeue"):
        yield "P6: a budget was charged for nothing"
    if was.is_asked and was.status == "running" and (now.status not in ("running", "cancelled") or not now.is_asked):
        yield "P7: after a request to cancel it went another way"
    if was.status == now.status == "running" and now.percent < was.percent:
        yield "P10: progress fell"
