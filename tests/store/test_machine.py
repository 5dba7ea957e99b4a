"""Several simulated workers, a clock that is moved, leases kept on purpose to be tried late, and the file reopened
between steps: after every step the store says what the model says, and its promises hold.

PAGEMILL_FULL=1 tries twenty times as many of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from tests.length import short
from tests.store.kit import EVERY_JOB, KINDS, ByHand, Kind, MovableClock, ids, lay_out, new_worker
from tests.store.model import ModelJob, ModelQueue
from worker_service.clock import as_text, wall_clock
from worker_service.errors import LeaseLost
from worker_service.jobs.model import Failure, Job, Lease, NewJob, Report, Status
from worker_service.jobs.retries import REQUEUES_MAX
from worker_service.store.base import Store

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
WORKERS = ("w1", "w2", "w3")
SLOTS = 3

_worker = st.sampled_from(WORKERS)
_seconds = st.sampled_from([1, 10, 60])
_pick = st.integers(0, 9)


class QueueMachine(RuleBasedStateMachine):
    kind: ClassVar[Kind] = KINDS[0]

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.path = self.folder / "pagemill.db"
        self.clock = MovableClock()
        lay_out(self.path, self.kind.initialise)
        self.store: Store = self.kind.open(self.path, self.clock)
        self.model = ModelQueue(SLOTS)
        self.ended: dict[int, Job] = {}
        self.percents: dict[tuple[int, int], int] = {}
        for worker in WORKERS:
            self.store.leases.register(new_worker(worker, cpu=SLOTS))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # ── What workers, people and time do ──

    @rule(
        priority=st.integers(1, 3),
        key=st.sampled_from([None, None, "k", "l"]),
        unique=st.sampled_from([None, None, None, "u", "v"]),
        wait=st.sampled_from([None, None, -1, 10]),
        max_retries=st.integers(0, 2),
    )
    def enqueue(self, priority: int, key: str | None, unique: str | None, wait: int | None, max_retries: int) -> None:
        run_at = None if wait is None else self.clock.after(wait)
        live = self.model.live_with(unique)

        added = self.store.intake.enqueue(
            NewJob(
                "ocr_pages",
                priority=priority,
                concurrency_key=key,
                unique_key=unique,
                run_at=run_at,
                max_retries=max_retries,
            )
        )

        assert added.existing == (live is not None)
        if live is not None:
            assert added.job_id == live.id
        else:
            assert added.job_id not in self.model.jobs
            self.model.jobs[added.job_id] = ModelJob(
                added.job_id, priority, self.clock.now, key, unique, run_at, max_retries
            )

    @rule(target=leases, worker=_worker, most=st.integers(1, 4))
    def claim(self, worker: str, most: int) -> object:
        wanted = self.model.claim(worker, most, self.clock.now)

        taken = self.store.leases.claim(worker, most)

        assert [job.lease for job in taken] == [Lease(job.id, job.fence, worker) for job in wanted]
        return multiple(*(job.lease for job in taken))

    @rule(lease=leases, percent=st.integers(0, 100))
    def report(self, lease: Lease, percent: int) -> None:
        is_held = self.model.report(lease, percent)

        assert self.store.leases.report([Report(lease, percent, "at work", ["a line"])]) == ([] if is_held else [lease])

    @rule(lease=leases)
    def complete(self, lease: Lease) -> None:
        self._write(self.model.complete(lease), lambda: self.store.leases.complete(lease, '{"by":"machine"}'))

    @rule(lease=leases, wait=st.sampled_from([None, 0, 10]))
    def fail(self, lease: Lease, wait: int | None) -> None:
        retry_at = None if wait is None else self.clock.after(wait)
        landed = self.model.fail(lease, retry_at)
        self._write(landed, lambda: self.store.leases.fail(lease, Failure("BROKEN", "it broke"), retry_at=retry_at))

    @rule(lease=leases)
    def snooze(self, lease: Lease) -> None:
        until = self.clock.after(10)
        self._write(self.model.give_back(lease, "snoozed", until), lambda: self.store.leases.snooze(lease, until))

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        self._write(self.model.give_back(lease, "released", None), lambda: self.store.leases.release(lease))

    @rule(lease=leases)
    def confirm_cancel(self, lease: Lease) -> None:
        self._write(self.model.confirm_cancel(lease), lambda: self.store.leases.confirm_cancel(lease))

    @rule(worker=_worker)
    def die_and_come_back(self, worker: str) -> None:
        wanted = self.model.requeue(worker)

        assert sorted(job.id for job in self.store.leases.requeue(worker)) == sorted(wanted)
        self.store.leases.register(new_worker(worker, cpu=SLOTS))

    @rule(lease=leases, seconds=_seconds)
    def beat(self, lease: Lease, seconds: int) -> None:
        self._move_clock(seconds)
        job = self.model.jobs.get(lease.job_id)
        is_held = job is not None and job.holds(lease)

        beat = self.store.leases.beat(lease.worker_id, [lease])

        assert list(beat.lost) == ([] if is_held else [lease])
        assert list(beat.to_cancel) == ([lease] if job is not None and is_held and job.is_asked else [])

    @rule(pick=_pick, is_by_hand=st.booleans())
    def cancel(self, pick: int, is_by_hand: bool) -> None:
        if job_id := self._pick(pick):
            is_ended = self.model.jobs[job_id].status.is_ended
            is_by_hand = is_by_hand and not is_ended
            # The table's own clock is the machine's.
            self.model.cancel(job_id, wall_clock() if is_by_hand else self.clock.now)
            if is_by_hand:
                ByHand(self.path)(f"UPDATE worker_job_queue SET status = 'cancelled' WHERE id = {job_id}")
            else:
                self.store.steering.cancel(ids(job_id), actor="ann")

    @rule(pick=_pick)
    def retry(self, pick: int) -> None:
        if job_id := self._pick(pick):
            self.model.retry(job_id)
            self.store.steering.retry(ids(job_id), actor="ann")
            self.ended.pop(job_id, None)

    @rule(pick=_pick, priority=st.integers(1, 3))
    def reprioritise(self, pick: int, priority: int) -> None:
        if job_id := self._pick(pick):
            self.model.reprioritise(job_id, priority)
            self.store.steering.priority(ids(job_id), priority, actor="ann")

    @rule(pick=_pick)
    def delete(self, pick: int) -> None:
        if job_id := self._pick(pick):
            is_removed = self.model.remove(job_id)
            assert list(self.store.steering.delete(ids(job_id), actor="ann").job_ids) == [job_id] * is_removed
            if is_removed:
                self.ended.pop(job_id, None)

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        if is_paused:
            self.store.steering.pause("all")
        else:
            assert self.store.steering.unpause("all") == self.model.is_paused
        self.model.is_paused = is_paused

    @rule(seconds=_seconds)
    def time_passes(self, seconds: int) -> None:
        self._move_clock(seconds)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.kind.open(self.path, self.clock)

    def _move_clock(self, seconds: int) -> None:
        self.clock.advance(seconds)
        for worker in WORKERS:
            self.store.leases.beat(worker, [])

    def _pick(self, pick: int) -> int | None:
        known = sorted(self.model.jobs)
        return known[pick % len(known)] if known else None

    def _write(self, is_landing: bool, write: Callable[[], None]) -> None:
        if is_landing:
            write()
        else:
            with pytest.raises(LeaseLost):
                write()

    # ── What always holds ──

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        jobs = {job.id: job for job in self.store.reading.list(EVERY_JOB, most=1000)}
        # P3: what was inserted is there.
        assert set(jobs) == set(self.model.jobs)
        running_keys: list[str] = []
        for job_id, job in jobs.items():
            wanted = self.model.jobs[job_id]
            outcomes = [attempt.outcome for attempt in self.store.reading.attempts(job_id)]

            # P2: nothing but what landed. Fences, attempts and statuses are exactly those of the model.
            assert (job.status, job.fence) == (wanted.status, wanted.fence)
            assert (job.retry_count, job.requeue_count, job.priority) == (
                wanted.retries,
                wanted.requeues,
                wanted.priority,
            )
            assert outcomes == wanted.outcomes

            # P1: a running row has exactly one open attempt, and no other row has one.
            assert outcomes.count(None) == (job.status is Status.RUNNING)

            # P4: an ended job does not change.
            if job.status.is_ended:
                assert self.ended.setdefault(job_id, job) == job
            else:
                assert job_id not in self.ended

            # P6: every budget is kept.
            assert job.retry_count <= job.max_retries
            assert job.requeue_count <= REQUEUES_MAX

            # P7: who was asked to stop runs or is cancelled, until a person retries.
            assert (job.cancel_requested_at is not None) == wanted.is_asked
            assert not wanted.is_asked or job.status in (Status.RUNNING, Status.CANCELLED)

            # P10: the progress of an attempt never falls.
            if job.status is Status.RUNNING:
                assert job.progress_percent == wanted.percent
                assert job.progress_percent >= self.percents.get((job_id, job.fence), 0)
                self.percents[job_id, job.fence] = job.progress_percent
                if job.concurrency_key:
                    running_keys.append(job.concurrency_key)
            if job.status is Status.PENDING and wanted.run_at is not None:
                assert job.run_at == as_text(wanted.run_at)

        # P8: one running job for each key, and no more than there are slots.
        assert len(running_keys) == len(set(running_keys))
        for worker in WORKERS:
            assert sum(job.worker_id == worker and job.status is Status.RUNNING for job in jobs.values()) <= SLOTS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_store_and_the_model_agree_after_every_step(kind: Kind) -> None:
    machine = type("Machine", (QueueMachine,), {"kind": kind})

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=short(75, full=1500),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

    assert issubclass(machine, QueueMachine)
