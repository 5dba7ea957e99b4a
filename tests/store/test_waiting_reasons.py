"""P12: a pending job has no gate if and only if the next claim could take it.

States are built by verbs and by hand. The gates that `explain` returns for each pending job are then compared with the
jobs that each worker claims in each class. PAGEMILL_FULL=1 builds twenty times as many.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.full_length import short
from tests.store.kit import (
    AddWorker,
    ByHand,
    Enqueue,
    MovableClock,
    all_jobs,
    claim_one,
    claimed_ids,
    gate_codes,
)
from tests.store.random_databases import Step, a_world, steps
from worker_service.base.clock import as_text
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Status
from worker_service.store.store import Store

ORDER = (
    "WORKER_DOWN PAUSED BATCH_STOPPED BATCH_WAITING DRAINING NOT_YET BACKOFF WAITS_FOR OWNER_BUSY KEY_BUSY TYPE_FULL "
    "SLOTS_FULL CAPABILITY_MISSING UNKNOWN_TYPE DISK_LOW SOURCE_RESTING AHEAD_IN_QUEUE"
).split()


# ── Every gate can be met ───────────────────────────────────────────────────────────────────────────────────────────


class _Scene:
    def __init__(self, store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock, by_hand: ByHand) -> None:
        self.store, self.enqueue, self.worker, self.clock, self.by_hand = store, enqueue, worker, clock, by_hand

    def held_by(self, code: str) -> int:
        """Insert a job that is held by this gate only."""
        store, fields = self.store, dict[str, Any]()
        if code != "WORKER_DOWN":
            missing = "no tesseract" if code == "CAPABILITY_MISSING" else None
            self.worker(cpu=1 if code == "SLOTS_FULL" else 8, missing=missing)
        match code:
            case "PAUSED":
                store.job_control.pause("all")
            case "DRAINING" | "DISK_LOW":
                store.workers.set_worker_state("w1", draining=code == "DRAINING", disk_low=code == "DISK_LOW")
            case "OWNER_BUSY":
                store.workers.set_limits("owner", {"ann": 1})
                fields["owner"] = "ann"
            case "KEY_BUSY":
                fields["concurrency_key"] = "k"
            case "TYPE_FULL":
                store.workers.set_limits("type", {"ocr_pages": 1})
        if code in ("OWNER_BUSY", "KEY_BUSY", "TYPE_FULL", "SLOTS_FULL", "BACKOFF"):
            first = self.enqueue(**fields)
            lease = claim_one(store).lease
            if code == "BACKOFF":
                store.leases.fail(lease, Failure("X", "x"), retry_at=self.clock.after(1))
                return first
        match code:
            case "NOT_YET":
                fields["run_at"] = self.clock.after(1)
            case "WAITS_FOR":
                fields["after"] = (self.enqueue(),)
            case "AHEAD_IN_QUEUE":
                self.enqueue()
            case "BATCH_STOPPED" | "BATCH_WAITING":
                fields["batch_id"] = 7
                self.by_hand("INSERT INTO batch (id) VALUES (6)")
                self.by_hand(f"INSERT INTO batch (id, state) VALUES (7, '{code[6:].lower()}')")
            case "SOURCE_RESTING":
                store.leases.rest_source("drive", self.clock.after(1), "quota")
                fields["source"] = "drive"
        return self.enqueue("brew_tea" if code == "UNKNOWN_TYPE" else "ocr_pages", **fields)


@pytest.fixture
def scene(store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock, by_hand: ByHand) -> _Scene:
    return _Scene(store, enqueue, worker, clock, by_hand)


@pytest.mark.parametrize("code", ORDER)
def test_p12_each_gate_can_hold_a_job_alone(scene: _Scene, code: str) -> None:
    job_id = scene.held_by(code)

    (gate,) = scene.store.gates.explain(job_id)

    assert gate.code == code
    assert len(gate.detail) > 5
    if code != "WORKER_DOWN":
        assert job_id not in claimed_ids(scene.store, most=1)


def test_p12_gates_have_a_fixed_order(store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock) -> None:
    worker(cpu=1)
    store.workers.set_limits("owner", {"ann": 1})
    store.workers.set_limits("type", {"ocr_pages": 1})
    first = enqueue(owner="ann", concurrency_key="k")
    claim_one(store)
    held = enqueue(owner="ann", concurrency_key="k", after=(first,), run_at=clock.after(60), source="drive", batch_id=7)
    store.batches.stop(7, actor="ann")
    store.leases.rest_source("drive", clock.after(60), "quota")
    store.job_control.pause("owner", "ann")
    store.workers.set_worker_state("w1", draining=True, disk_low=True)

    found = gate_codes(store, held)

    assert found == [code for code in ORDER if code in found]
    assert set(found) >= {"PAUSED", "NOT_YET", "WAITS_FOR", "OWNER_BUSY", "KEY_BUSY", "TYPE_FULL", "SOURCE_RESTING"}
    assert set(found) >= {"DRAINING", "SLOTS_FULL", "DISK_LOW", "BATCH_STOPPED"}


STANDS = {
    "WORKER_DOWN", "PAUSED", "DRAINING", "CAPABILITY_MISSING", "UNKNOWN_TYPE", "DISK_LOW", "SOURCE_RESTING"
}  # fmt: skip


@pytest.mark.parametrize("code", ORDER)
def test_standstill_returns_the_lasting_gates_of_ready_jobs(
    store: Store, enqueue: Enqueue, worker: AddWorker, scene: _Scene, code: str
) -> None:
    job_id = scene.held_by(code)

    assert list(store.gates.standstill()) == (list(store.gates.explain(job_id)) if code in STANDS else [])

    worker("w2")
    store.job_control.unpause("all")
    enqueue(owner="bob")
    assert list(store.gates.standstill()) == []
    whole_lane = {code} & {"SOURCE_RESTING"}
    assert {gate.code for gate in store.gates.standstill(dead_workers=["w1", "w2"])} == {"WORKER_DOWN"} | whole_lane


def test_standstill_names_a_resting_source(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker()
    until = clock.after(60)
    enqueue(source="drive")
    lease = claim_one(store).lease
    store.leases.rest_source("drive", until, "DRIVE_QUOTA")
    store.leases.snooze(lease, until, Failure("DRIVE_QUOTA", "the quota is used up"))
    enqueue(run_at=clock.after(3600))
    assert [gate.code for gate in store.gates.standstill()] == ["SOURCE_RESTING"]

    enqueue(source="other")
    assert list(store.gates.standstill()) == []

    claim_one(store)
    [gate] = store.gates.standstill()
    assert gate.detail == f"drive rests until {as_text(until)}: DRIVE_QUOTA"
    clock.advance(61)
    assert list(store.gates.standstill()) == []


def test_a_job_has_a_gate_if_its_only_worker_is_dead(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker("w1")
    job_id, behind = enqueue(), enqueue()
    assert list(store.gates.explain(job_id)) == []

    gates = [list(store.gates.explain(waiting_id, dead_workers=["w1"])) for waiting_id in (job_id, behind)]

    assert [[(gate.code, gate.detail) for gate in found] for found in gates] == [
        [("WORKER_DOWN", "worker w1 is dead")]
    ] * 2
    worker("w2")
    assert list(store.gates.explain(job_id, dead_workers=["w1"])) == []


def test_ahead_in_queue_counts_the_jobs_ahead(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker()
    jobs = [enqueue(priority=priority) for priority in (3, 1, 2, 5, 4)]

    counts = {job_id: [gate.count for gate in store.gates.explain(job_id)] for job_id in jobs}

    assert counts == dict(zip(jobs, ([2], [], [1], [4], [3]), strict=True))


def test_a_job_that_is_not_pending_has_no_gate(store: Store, enqueue: Enqueue, worker: AddWorker) -> None:
    worker()
    job_id = enqueue()
    lease = claim_one(store).lease
    assert list(store.gates.explain(job_id)) == []

    store.leases.complete(lease)

    assert list(store.gates.explain(job_id)) == []


# ── The gates are the claim's own predicates ────────────────────────────────────────────────────────────────────────


@settings(max_examples=short(40, full=1200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
def test_p12_a_pending_job_has_no_gate_exactly_when_the_next_claim_could_take_it(steps: list[Step]) -> None:
    with a_world() as world:
        world.walk(steps)

        gates = {
            job.id: gate_codes(world.store, job.id)
            for job in all_jobs(world.store).values()
            if job.status is Status.PENDING
        }

        assert {job_id for job_id, found in gates.items() if not found} == world.claimable(), gates
        assert {code for found in gates.values() for code in found} <= set(ORDER)
        for found in gates.values():
            assert found == sorted(found, key=ORDER.index)


def test_p12_a_due_job_counts_as_ahead(store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock) -> None:
    worker()
    ready = enqueue()
    due = enqueue(run_at=clock.after(5), priority=1)
    clock.advance(10)

    assert gate_codes(store, due) == []
    assert gate_codes(store, ready) == ["AHEAD_IN_QUEUE"]


# ── What they tell ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gate_names_why_the_job_was_put_back(
    store: Store, enqueue: Enqueue, worker: AddWorker, clock: MovableClock
) -> None:
    worker()
    later = clock.after(60)
    scheduled, snoozed, retried = enqueue(run_at=later), enqueue(), enqueue()
    store.leases.snooze(claim_one(store).lease, later, Failure("RESTING", "the host asks for fewer requests\nand more"))
    store.leases.fail(claim_one(store).lease, Failure("HTTP_503", "the server is busy\nTraceback"), retry_at=later)

    details = [gate.detail for job_id in (scheduled, snoozed, retried) for gate in store.gates.explain(job_id)]

    assert details == [
        "it starts at 2026-11-18 10:01:00.000",
        "it starts again at 2026-11-18 10:01:00.000, after RESTING: the host asks for fewer requests",
        "retry 1 of 3 starts at 2026-11-18 10:01:00.000, after HTTP_503: the server is busy",
    ]
