"""Databases in random states, reached by verbs of the store and by SQL by hand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

from hypothesis import strategies as st

from tests.store.kit import (
    MEMORY,
    ByHand,
    MovableClock,
    all_jobs,
    change,
    end_job,
    jobs_with_ids,
    lay_out,
    new_worker,
    open_at,
)
from worker_service.base.errors import PagemillError
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.store.database import Database

_TYPES = st.sampled_from(["ocr_pages", "ocr_pages", "ocr_pages", "assemble", "download", "brew_tea"])
_OWNERS = st.sampled_from(["", "", "ann", "bob"])
_SOURCES = st.sampled_from(["", "", "drive"])
_KEYS = st.sampled_from([None, None, "k", "l"])
_SECONDS = st.sampled_from([None, None, None, -5, 5, 20])
_PICK = st.integers(0, 11)
Step = tuple[object, ...]

_enqueue = st.tuples(
    st.just("enqueue"), _TYPES, st.integers(1, 3), _OWNERS, _SOURCES, _KEYS, _SECONDS, st.none() | st.none() | _PICK
)
_claim = st.tuples(
    st.just("claim"), st.sampled_from(["w1", "w1", "w2"]), st.integers(1, 3), st.sampled_from(["cpu", "cpu", "io"])
)
_moves = st.lists(
    st.one_of(
        _enqueue, _enqueue, _claim, _claim,
        st.tuples(st.just("end"), _PICK, st.sampled_from(["complete", "fail", "retry", "snooze", "release", "cancel"])),
        st.tuples(st.just("steer"), _PICK, st.sampled_from(["cancel", "retry", "delete", "priority", "undo"])),
        st.tuples(st.just("pause"), st.sampled_from([("all", ""), ("type", "ocr_pages"), ("owner", "ann")]), _SECONDS),
        st.tuples(st.just("unpause")),
        st.tuples(st.just("rest"), st.sampled_from([5, 20])),
        st.tuples(st.just("limit"), st.sampled_from([("type", "ocr_pages"), ("owner", "*"), ("owner", "ann"),
                                                     ("class", "cpu")]), st.integers(0, 2)),
        st.tuples(st.just("state"), st.sampled_from(["w1", "w2"]), st.booleans(), st.booleans()),
        st.tuples(st.just("register"), st.sampled_from(["w1", "w2"]), st.integers(0, 3),
                  st.sampled_from([("ocr_pages", "assemble", "download"), ("ocr_pages",), ("assemble", "download")]),
                  st.sampled_from([None, None, None, "no tesseract"])),
        st.tuples(st.just("requeue"), st.sampled_from(["w1", "w2"])),
        st.tuples(st.just("tick"), st.sampled_from([1, 10, 10, 10, 301])),
        st.tuples(st.just("beat"), st.sampled_from(["w1", "w2"])),
        st.tuples(st.just("hand"), _PICK, st.sampled_from([
            "UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {id}",
            "UPDATE worker_job_queue SET status = 'pending' WHERE id = {id}",
            "UPDATE worker_job_queue SET priority = 1 WHERE id = {id}",
            "UPDATE worker_job_queue SET priority = 3 WHERE id = {id}",
            "UPDATE worker_job_queue SET run_at = '2026-11-18 10:00:07' WHERE id = {id}",
            "UPDATE worker_job_queue SET run_at = '2020-01-01' WHERE id = {id}",
            "UPDATE worker_job_queue SET run_at = NULL WHERE id = {id}",
            "UPDATE worker_job_queue SET held = 0 WHERE id = {id}",
            "UPDATE worker_job_queue SET held = 4 WHERE id = {id}",
            "UPDATE worker_job_queue SET owner = 'bob', source = 'drive' WHERE id = {id}",
            "DELETE FROM worker_job_queue WHERE id = {id}",
            "DELETE FROM worker_job_dependency WHERE job_id = {id}",
            "INSERT INTO worker_job_dependency (job_id, needs_id) VALUES ({id} + 1, {id})",
            "INSERT INTO worker_job_queue (job_type, platform, concurrency_key) VALUES ('ocr_pages', 'x', 'k')",
            "INSERT INTO worker_job_queue (job_type, platform, run_at) VALUES ('ocr_pages', 'x', '2020-01-01')",
            "INSERT INTO worker_job_queue (job_type, platform, batch_id) VALUES ('ocr_pages', 'x', {id} % 3)",
            "UPDATE batch SET state = 'stopped' WHERE id = {id} % 3", "UPDATE batch SET state = 'stopped'",
            "UPDATE batch SET state = 'active' WHERE id = {id} % 3", "UPDATE batch SET state = 'active'",
            "UPDATE batch SET state = 'waiting' WHERE id = {id} % 3", "DELETE FROM batch WHERE id = {id} % 3",
            "DELETE FROM pause", "DELETE FROM source_rest", "DELETE FROM job_limit WHERE kind = 'type'",
        ])),
    ),
    min_size=4,
    max_size=25,
)  # fmt: skip
# Each database begins with a few jobs, so that the random steps have something to change.
steps: st.SearchStrategy[list[Step]] = st.builds(
    lambda first, then: [*first, *then], st.lists(_enqueue, min_size=2, max_size=7), _moves
)


class RandomStore:
    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, MovableClock()
        self.path = folder / "pagemill.db"
        lay_out(self.path)
        self.store = open_at(self.path, self.clock)
        self.by_hand = ByHand(self.path)
        self.limits: dict[str, dict[str, int]] = {}
        self.store.workers.register(new_worker("w1", cpu=3, io=1))

    def walk(self, steps: list[Step]) -> None:
        for verb, *values in steps:
            try:
                getattr(self, f"_{verb}")(*values)
            except PagemillError:
                continue  # a refused step leaves a valid state, too

    def _job(self, pick: int, *statuses: Status) -> Job:
        jobs = [job for _, job in sorted(all_jobs(self.store).items()) if not statuses or job.status in statuses]
        if not jobs:
            raise PagemillError("there is none yet")
        return jobs[pick % len(jobs)]

    def _enqueue(
        self, kind: str, priority: int, owner: str, source: str, key: str | None, wait: int | None, after: int | None
    ) -> None:
        self.store.intake.enqueue(
            NewJob(
                kind,
                priority=priority,
                owner=owner,
                # Some jobs have no batch, so that a stopped batch leaves something to claim.
                batch_id={"ann": 1, "bob": 2}.get(owner) if priority > 1 else None,
                source=source,
                concurrency_key=key,
                run_at=None if wait is None else self.clock.after(wait),
                after=() if after is None else (self._job(after).id,),
                after_any=bool(after and after % 2),
            )
        )

    def _claim(self, worker_id: str, most: int, job_class: str) -> None:
        self.store.leases.claim(worker_id, most, job_class)

    def _end(self, pick: int, how: str) -> None:
        lease = self._job(pick, Status.RUNNING).lease
        match how:
            case "complete":
                self.store.leases.complete(lease, None, [NewJob("assemble", after=(lease.job_id,))])
            case "fail":
                end_job(self.store, lease, Status.FAILED)
            case "retry":
                self.store.leases.fail(lease, Failure("X", "x"), retry_at=self.clock.after(10))
            case "snooze":
                self.store.leases.snooze(lease, self.clock.after(10))
            case "release":
                self.store.leases.release(lease)
            case _:
                end_job(self.store, lease, Status.CANCELLED)

    def _steer(self, pick: int, verb: str) -> None:
        selector = jobs_with_ids(self._job(pick).id)
        if verb != "undo":
            change(self.store, verb, selector, priority=pick % 3 + 1)
            return
        for action in self.store.history.actions():
            if action.opposite and action.undone_at is None:
                self.store.job_control.undo(action.id, actor="ann")
                return

    def _pause(self, scope: tuple[str, str], seconds: int | None) -> None:
        self.store.job_control.pause(*scope, until=None if seconds is None else self.clock.after(seconds))

    def _unpause(self) -> None:
        for pause in self.store.job_queries.pauses():
            self.store.job_control.unpause(pause.scope, pause.name)

    def _rest(self, seconds: int) -> None:
        self.store.leases.rest_source("drive", self.clock.after(seconds), "quota")

    def _limit(self, which: tuple[str, str], most: int) -> None:
        kind, name = which
        self.limits.setdefault(kind, {})[name] = most
        self.store.workers.set_limits(kind, self.limits[kind])

    def _state(self, worker_id: str, draining: bool, disk_low: bool) -> None:
        self.store.workers.set_worker_state(worker_id, draining=draining, disk_low=disk_low)

    def _register(self, worker_id: str, slots: int, types: tuple[str, ...], missing: str | None) -> None:
        self.store.workers.register(new_worker(worker_id, types=types, cpu=slots, io=1, missing=missing))

    def _requeue(self, worker_id: str) -> None:
        self.store.leases.requeue(worker_id)

    def _tick(self, seconds: int) -> None:
        self.clock.advance(seconds)

    def _beat(self, worker_id: str) -> None:
        self.store.leases.beat(worker_id, [])

    def _hand(self, pick: int, statement: str) -> None:
        self.by_hand.try_each([statement.format(id=pick + 1)])

    def settle(self) -> None:
        """Free jobs that are due and settle ended ones, by claims of a worker without handlers."""
        self.store.workers.register(new_worker("nobody", types=[]))
        for _ in range(3):
            assert self.store.leases.claim("nobody", 1) == []
        self.store.workers.deregister("nobody")

    def claimable(self) -> set[int]:
        """Return the jobs that the next claim of some worker takes. Each claim is rolled back."""
        taken: set[int] = set()
        for worker_id in [worker.id for worker in self.store.overview.workers()]:
            for job_class in ("cpu", "io"):
                with self.store.database.rehearsal(), patch.object(Database, "transaction", nullcontext):
                    taken |= {job.id for job in self.store.leases.claim(worker_id, 1, job_class)}
                self.store.scheduler.forget_lanes()
        return taken


@contextmanager
def a_world() -> Iterator[RandomStore]:
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    world = RandomStore(folder)
    try:
        yield world
    finally:
        world.store.close()
        shutil.rmtree(folder)
