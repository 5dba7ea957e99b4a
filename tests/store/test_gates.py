"""P12: a pending job has no gate if and only if the next claim could take it.

States are built by verbs and by hand; what `explain` says of every pending job is then compared with what a claim of
one job by each worker and class really takes, each on a copy of its own.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.kit import (
    FAR_FUTURE,
    KINDS,
    AddWorker,
    ByHand,
    Enqueue,
    Kind,
    MovableClock,
    claim_one,
    codes,
    end,
    everything,
    ids,
    new_worker,
)
from worker_service.errors import PagemillError
from worker_service.jobs.model import Failure, Job, NewJob, Report, Status
from worker_service.store.base import Store

ORDER = (
    "WORKER_DOWN PAUSED DRAINING NOT_YET BACKOFF WAITS_FOR OWNER_BUSY KEY_BUSY TYPE_FULL SLOTS_FULL "
    "CAPABILITY_MISSING UNKNOWN_TYPE DISK_LOW SOURCE_RESTING AHEAD_IN_QUEUE"
).split()
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


# ── Every gate can be met ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Scene:
    store: Store
    enqueue: Enqueue
    worker: AddWorker
    clock: MovableClock


def _no_worker(scene: _Scene) -> int:
    return scene.enqueue()


def _paused(scene: _Scene) -> int:
    scene.worker()
    scene.store.pause("all")
    return scene.enqueue()


def _draining(scene: _Scene) -> int:
    scene.worker()
    scene.store.set_worker_state("w1", draining=True, disk_low=False)
    return scene.enqueue()


def _not_yet(scene: _Scene) -> int:
    scene.worker()
    return scene.enqueue(run_at=scene.clock.after(1))


def _backoff(scene: _Scene) -> int:
    scene.worker()
    job_id = scene.enqueue()
    scene.store.fail(claim_one(scene.store).lease, Failure("X", "x"), retry_at=scene.clock.after(1))
    return job_id


def _waits_for(scene: _Scene) -> int:
    scene.worker()
    return scene.enqueue(after=(scene.enqueue(),))


def _owner_busy(scene: _Scene) -> int:
    scene.worker()
    scene.store.set_limits("owner", {"ann": 1})
    scene.enqueue(owner="ann")
    claim_one(scene.store)
    return scene.enqueue(owner="ann")


def _key_busy(scene: _Scene) -> int:
    scene.worker()
    scene.enqueue(concurrency_key="k")
    claim_one(scene.store)
    return scene.enqueue(concurrency_key="k")


def _type_full(scene: _Scene) -> int:
    scene.worker()
    scene.store.set_limits("type", {"ocr_pages": 1})
    scene.enqueue()
    claim_one(scene.store)
    return scene.enqueue()


def _slots_full(scene: _Scene) -> int:
    scene.worker(cpu=1)
    scene.enqueue()
    claim_one(scene.store)
    return scene.enqueue()


def _capability_missing(scene: _Scene) -> int:
    scene.worker(missing="no tesseract")
    return scene.enqueue()


def _unknown_type(scene: _Scene) -> int:
    scene.worker()
    return scene.enqueue("brew_tea")


def _disk_low(scene: _Scene) -> int:
    scene.worker()
    scene.store.set_worker_state("w1", draining=False, disk_low=True)
    return scene.enqueue()


def _source_resting(scene: _Scene) -> int:
    scene.worker()
    scene.store.rest_source("drive", scene.clock.after(1), "quota")
    return scene.enqueue(source="drive")


def _ahead_in_queue(scene: _Scene) -> int:
    scene.worker()
    scene.enqueue()
    return scene.enqueue()


GATES: dict[str, Callable[[_Scene], int]] = {
    "WORKER_DOWN": _no_worker,
    "PAUSED": _paused,
    "DRAINING": _draining,
    "NOT_YET": _not_yet,
    "BACKOFF": _backoff,
    "WAITS_FOR": _waits_for,
    "OWNER_BUSY": _owner_busy,
    "KEY_BUSY": _key_busy,
    "TYPE_FULL": _type_full,
    "SLOTS_FULL": _slots_full,
    "CAPABILITY_MISSING": _capability_missing,
    "UNKNOWN_TYPE": _unknown_type,
    "DISK_LOW": _disk_low,
    "SOURCE_RESTING": _source_resting,
    "AHEAD_IN_QUEUE": _ahead_in_queue,
}


@pytest.mark.parametrize("code", ORDER)
def test_p12_every_gate_can_be_met_and_is_told_alone(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock, code: str
) -> None:
    job_id = GATES[code](_Scene(store, enqueue, worker, clock))

    (gate,) = store.explain(job_id)

    assert gate.code == code
    assert len(gate.detail) > 5


def test_p12_gates_are_told_in_their_order(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker(cpu=1)
    store.set_limits("owner", {"ann": 1})
    store.set_limits("type", {"ocr_pages": 1})
    first = enqueue(owner="ann", concurrency_key="k")
    claim_one(store)
    held = enqueue(owner="ann", concurrency_key="k", after=(first,), run_at=clock.after(60), source="drive")
    store.rest_source("drive", clock.after(60), "quota")
    store.pause("owner", "ann")
    store.set_worker_state("w1", draining=True, disk_low=True)

    found = codes(store, held)

    assert found == [code for code in ORDER if code in found]
    assert set(found) >= {"PAUSED", "NOT_YET", "WAITS_FOR", "OWNER_BUSY", "KEY_BUSY", "TYPE_FULL", "SOURCE_RESTING"}
    assert set(found) >= {"DRAINING", "SLOTS_FULL", "DISK_LOW"}


def test_ahead_in_queue_counts_the_jobs_ahead(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker()
    jobs = [enqueue(priority=priority) for priority in (3, 1, 2, 5, 4)]

    counts = {job_id: [gate.count for gate in store.explain(job_id)] for job_id in jobs}

    assert counts == dict(zip(jobs, ([2], [], [1], [4], [3]), strict=True))


def test_a_job_that_is_not_pending_has_no_gate(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker()
    job_id = enqueue()
    lease = claim_one(store).lease
    assert list(store.explain(job_id)) == []

    store.complete(lease)

    assert list(store.explain(job_id)) == []


# ── The gates are the claim's own predicates ────────────────────────────────────────────────────────────────────────

_TYPES = st.sampled_from(["ocr_pages", "assemble", "download", "brew_tea"])
_OWNERS = st.sampled_from(["", "", "ann", "bob"])
_SOURCES = st.sampled_from(["", "", "drive"])
_KEYS = st.sampled_from([None, None, "k", "l"])
_SECONDS = st.sampled_from([None, None, None, -5, 5, 20])
_PICK = st.integers(0, 11)
_Step = tuple[object, ...]

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), _TYPES, st.integers(1, 3), _OWNERS, _SOURCES, _KEYS, _SECONDS, st.none() | _PICK),
        st.tuples(st.just("enqueue"), _TYPES, st.integers(1, 3), _OWNERS, _SOURCES, _KEYS, _SECONDS, st.none()),
        st.tuples(st.just("claim"), st.sampled_from(["w1", "w2"]), st.integers(1, 3), st.sampled_from(["cpu", "io"])),
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
        st.tuples(st.just("tick"), st.sampled_from([1, 10, 301])),
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
            "DELETE FROM pause", "DELETE FROM source_rest", "DELETE FROM job_limit WHERE kind = 'type'",
        ])),
    ),
    min_size=4,
    max_size=22,
)  # fmt: skip


class _World:
    """A database in some state, reached by verbs and by hands."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder, self.clock = kind, folder, MovableClock()
        self.path = folder / "pagemill.db"
        kind.initialise(self.path)
        self.store = kind.open(self.path, self.clock)
        self.by_hand = ByHand(self.path)
        self.limits: dict[str, dict[str, int]] = {}
        self.store.register(new_worker("w1", cpu=3, io=1))

    def walk(self, steps: list[_Step]) -> None:
        for verb, *values in steps:
            try:
                getattr(self, f"_{verb}")(*values)
            except PagemillError:
                continue  # refused: the state is one that the store allows, and that is all that matters here

    def _job(self, pick: int, *statuses: Status) -> Job:
        jobs = [job for _, job in sorted(everything(self.store).items()) if not statuses or job.status in statuses]
        if not jobs:
            raise PagemillError("there is none yet")
        return jobs[pick % len(jobs)]

    def _enqueue(
        self, kind: str, priority: int, owner: str, source: str, key: str | None, wait: int | None, after: int | None
    ) -> None:
        self.store.enqueue(
            NewJob(
                kind,
                priority=priority,
                owner=owner,
                source=source,
                concurrency_key=key,
                run_at=None if wait is None else self.clock.after(wait),
                after=() if after is None else (self._job(after).id,),
                after_any=bool(after and after % 2),
            )
        )

    def _claim(self, worker_id: str, most: int, job_class: str) -> None:
        self.store.claim(worker_id, most, job_class)

    def _end(self, pick: int, how: str) -> None:
        lease = self._job(pick, Status.RUNNING).lease
        match how:
            case "complete":
                self.store.complete(lease, None, [NewJob("assemble", after=(lease.job_id,))])
            case "fail":
                end(self.store, lease, Status.FAILED)
            case "retry":
                self.store.fail(lease, Failure("X", "x"), retry_at=self.clock.after(10))
            case "snooze":
                self.store.snooze(lease, self.clock.after(10))
            case "release":
                self.store.release(lease)
            case _:
                end(self.store, lease, Status.CANCELLED)

    def _steer(self, pick: int, verb: str) -> None:
        which = ids(self._job(pick).id)
        match verb:
            case "cancel":
                self.store.cancel(which, actor="ann")
            case "retry":
                self.store.retry(which, actor="ann")
            case "delete":
                self.store.delete(which, actor="ann")
            case "priority":
                self.store.priority(which, pick % 3 + 1, actor="ann")
            case _:
                self.store.undo(None, actor="ann")

    def _pause(self, scope: tuple[str, str], seconds: int | None) -> None:
        self.store.pause(*scope, until=None if seconds is None else self.clock.after(seconds))

    def _unpause(self) -> None:
        for pause in self.store.pauses():
            self.store.unpause(pause.scope, pause.name)

    def _rest(self, seconds: int) -> None:
        self.store.rest_source("drive", self.clock.after(seconds), "quota")

    def _limit(self, which: tuple[str, str], most: int) -> None:
        kind, name = which
        self.limits.setdefault(kind, {})[name] = most
        self.store.set_limits(kind, self.limits[kind])

    def _state(self, worker_id: str, draining: bool, disk_low: bool) -> None:
        self.store.set_worker_state(worker_id, draining=draining, disk_low=disk_low)

    def _register(self, worker_id: str, slots: int, types: tuple[str, ...], missing: str | None) -> None:
        self.store.register(new_worker(worker_id, types=types, cpu=slots, io=1, missing=missing))

    def _requeue(self, worker_id: str) -> None:
        self.store.requeue(worker_id)

    def _tick(self, seconds: int) -> None:
        self.clock.advance(seconds)

    def _beat(self, worker_id: str) -> None:
        self.store.beat(worker_id, [])

    def _hand(self, pick: int, statement: str) -> None:
        self.by_hand.try_each([statement.format(id=pick + 1)])

    def claimable(self) -> set[int]:
        """What the next claim of some worker takes, tried on copies."""
        taken: set[int] = set()
        for number, (worker_id, job_class) in enumerate((w, c) for w in ("w1", "w2") for c in ("cpu", "io")):
            copy = self.folder / f"copy{number}.db"
            self.store.backup(copy)
            tried = self.kind.open(copy, self.clock)
            taken |= {job.id for job in tried.claim(worker_id, 1, job_class)}
            tried.close()
        return taken


@contextmanager
def _world(kind: Kind) -> Iterator[_World]:
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    world = _World(kind, folder)
    try:
        yield world
    finally:
        world.store.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_steps)
def test_p12_a_pending_job_has_no_gate_exactly_when_the_next_claim_could_take_it(
    kind: Kind, steps: list[_Step]
) -> None:
    with _world(kind) as world:
        world.walk(steps)

        gates = {
            job.id: codes(world.store, job.id)
            for job in everything(world.store).values()
            if job.status is Status.PENDING
        }

        assert {job_id for job_id, found in gates.items() if not found} == world.claimable(), gates
        assert {code for found in gates.values() for code in found} <= set(ORDER)
        for found in gates.values():
            assert found == sorted(found, key=ORDER.index)


def test_p12_a_due_job_ahead_is_counted_though_nobody_has_freed_it_yet(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker()
    ready = enqueue()
    due = enqueue(run_at=clock.after(5), priority=1)
    clock.advance(10)

    assert codes(store, due) == []
    assert codes(store, ready) == ["AHEAD_IN_QUEUE"]


def test_p12_progress_of_others_does_not_change_what_holds_a_job(
    store: Store, enqueue: Enqueue, worker: AddWorker
) -> None:
    worker(cpu=1)
    enqueue()
    lease = claim_one(store).lease
    waiting, never = enqueue(), enqueue(run_at=FAR_FUTURE)

    store.report([Report(lease, 50, "half", ["a line"])])

    assert codes(store, waiting) == ["SLOTS_FULL"]
    assert codes(store, never) == ["NOT_YET", "SLOTS_FULL"]
