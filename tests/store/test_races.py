"""Real processes on one file. Each begins at a barrier and says in a queue what it was told."""

from __future__ import annotations

import multiprocessing
import queue
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import (
    EVERY_JOB,
    ByHand,
    Kind,
    claim_one,
    everything,
    ids,
    new_worker,
    status_of,
)
from worker_service.clock import wall_clock
from worker_service.errors import LeaseLost
from worker_service.jobs.model import Failure, Lease, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.base import Store

SPAWN = multiprocessing.get_context("spawn")
PATIENCE_SECONDS = 60.0
Said = list[tuple[str, Any]]
Say = Callable[[tuple[str, Any]], None]
Deed = Callable[..., None]


def _child(deed: Deed, kind: Kind, path: Path, start: Barrier, said: multiprocessing.Queue[Any], rest: Any) -> None:
    store = kind.open(path, wall_clock)
    start.wait(PATIENCE_SECONDS)
    try:
        deed(store, said.put, *rest)
    finally:
        store.close()


def _race(kind: Kind, path: Path, *deeds: tuple[Any, ...]) -> Said:
    """Run every deed in a process of its own, all from the same moment; return all that they said."""
    start, said = SPAWN.Barrier(len(deeds)), SPAWN.Queue()
    racers = [SPAWN.Process(target=_child, args=(deed, kind, path, start, said, rest)) for deed, *rest in deeds]
    for racer in racers:
        racer.start()
    words: Said = []
    # Drained while they run: a child does not end before its queue is read.
    while any(racer.is_alive() for racer in racers) or not said.empty():
        try:
            words.append(said.get(timeout=0.05))
        except queue.Empty:
            continue
    for racer in racers:
        racer.join(PATIENCE_SECONDS)
    assert [racer.exitcode for racer in racers] == [0] * len(racers)
    return words


@pytest.fixture
def wall_store(kind: Kind, path: Path) -> Iterator[Store]:
    """Like `store`, but with the clock that the racers have."""
    kind.initialise(path)
    opened = kind.open(path, wall_clock)
    yield opened
    opened.close()


# ── Claimers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _claim_all(store: Store, say: Say, worker_id: str, most: int) -> None:
    store.leases.register(new_worker(worker_id))
    while jobs := store.leases.claim(worker_id, most):
        for job in jobs:
            say((worker_id, job.id))
            store.leases.complete(job.lease)


def test_p1_claimers_in_several_processes_take_each_job_exactly_once(wall_store: Store, kind: Kind, path: Path) -> None:
    wanted = [each.job_id for each in wall_store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(300)])]

    said = _race(kind, path, *((_claim_all, f"w{number}", 1 + number) for number in range(4)))

    assert sorted(job_id for _, job_id in said) == wanted
    assert all(job.fence == 1 and job.status is Status.COMPLETED for job in everything(wall_store).values())


def _insert_by_enqueue(store: Store, say: Say, number: int) -> None:
    for turn in range(40):
        added = store.intake.enqueue(NewJob("ocr_pages", account=str(number), unique_key=f"u{turn}"))
        say(("existing" if added.existing else "new", (turn, added.job_id)))


def test_unique_enqueue_from_several_processes_makes_one_live_job_for_each_key(
    wall_store: Store, kind: Kind, path: Path
) -> None:
    said = _race(kind, path, *((_insert_by_enqueue, number) for number in range(4)))

    assert Counter(word for word, _ in said) == {"new": 40, "existing": 120}
    ids_of: dict[int, set[int]] = {}
    for _, (turn, job_id) in said:
        ids_of.setdefault(turn, set()).add(job_id)
    assert all(len(found) == 1 for found in ids_of.values())
    assert wall_store.reading.count(EVERY_JOB) == 40


# ── Two who want the same row ───────────────────────────────────────────────────────────────────────────────────────


def _complete_each(store: Store, say: Say, leases: Sequence[Lease]) -> None:
    for lease in leases:
        try:
            store.leases.complete(lease, '{"done":true}', [NewJob("assemble", account=str(lease.job_id))])
            say(("completed", lease.job_id))
        except LeaseLost:
            say(("refused", lease.job_id))


def _cancel_each(store: Store, say: Say, job_ids: Sequence[int]) -> None:
    for job_id in job_ids:
        changed = store.steering.cancel(ids(job_id), actor="ann")
        say(("asked" if changed.asked else "too late", job_id))


def test_p7_of_cancel_and_complete_exactly_one_lands(wall_store: Store, kind: Kind, path: Path) -> None:
    wall_store.leases.register(new_worker("w1", cpu=200))
    wall_store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(120)])
    leases = [job.lease for job in wall_store.leases.claim("w1", 120)]
    backwards = [lease.job_id for lease in reversed(leases)]

    said = _race(kind, path, (_complete_each, leases), (_cancel_each, backwards))

    told: dict[int, set[str]] = {}
    for word, job_id in said:
        told.setdefault(job_id, set()).add(word)
    followers = Counter(
        int(job.account or 0) for job in wall_store.reading.list(Selector(job_types=("assemble",)), most=999)
    )
    for lease in leases:
        job = wall_store.reading.get(lease.job_id)
        if job.status is Status.COMPLETED:
            assert told[job.id] == {"completed", "too late"}
            assert (followers[job.id], job.cancel_requested_at) == (1, None)
        else:
            assert told[job.id] == {"refused", "asked"}
            assert (job.status, followers[job.id], job.result) == (Status.RUNNING, 0, None)
            wall_store.leases.confirm_cancel(lease)
            assert status_of(wall_store, job.id) is Status.CANCELLED
    assert {word for words in told.values() for word in words} >= {"completed"}


def _rescue(store: Store, say: Say, worker_ids: Sequence[str]) -> None:
    for worker_id in worker_ids:
        for job in store.leases.requeue(worker_id):
            say(("requeued", job.id))


def test_p2_of_requeue_and_a_late_complete_exactly_one_lands(wall_store: Store, kind: Kind, path: Path) -> None:
    workers = [f"w{number}" for number in range(60)]
    leases = []
    for worker_id in workers:
        wall_store.leases.register(new_worker(worker_id))
        wall_store.intake.enqueue(NewJob("ocr_pages"))
        leases.append(claim_one(wall_store, worker_id).lease)

    said = _race(kind, path, (_complete_each, leases), (_rescue, workers[::-1]), (_rescue, workers))

    told: dict[int, list[str]] = {}
    for word, job_id in said:
        told.setdefault(job_id, []).append(word)
    followers = Counter(
        int(job.account or 0) for job in wall_store.reading.list(Selector(job_types=("assemble",)), most=999)
    )
    for lease in leases:
        job = wall_store.reading.get(lease.job_id)
        if job.status is Status.COMPLETED:
            assert told[job.id] == ["completed"]
            assert (job.requeue_count, followers[job.id]) == (0, 1)
        else:
            assert sorted(told[job.id]) == ["refused", "requeued"]
            assert (job.status, job.requeue_count, followers[job.id]) == (Status.PENDING, 1, 0)
        assert len(wall_store.reading.attempts(job.id)) == 1


# ── Two daemons' worth of claimers ──────────────────────────────────────────────────────────────────────────────────


def _work(store: Store, say: Say, worker_id: str, most: int) -> None:
    """Claim, hold for a moment, end in one way or another, until no job is left."""
    store.leases.register(new_worker(worker_id, cpu=6))
    held: list[Lease] = []
    turn = 0
    while store.reading.count(Selector(statuses=(Status.PENDING,))) or held:
        turn += 1
        held += [job.lease for job in store.leases.claim(worker_id, most)]
        for lease in held[: 1 + turn % 3]:
            match (turn + lease.job_id) % 4:
                case 0:
                    store.leases.fail(lease, Failure("X", "x"), retry_at=wall_clock())
                case 1:
                    store.leases.release(lease)
                case _:
                    store.leases.complete(lease)
            held.remove(lease)
            say((worker_id, lease.job_id))


def test_p8_two_daemons_claimers_hold_every_limit_at_every_commit(wall_store: Store, kind: Kind, path: Path) -> None:
    limits = {"ann": 2, "bob": 3}
    wall_store.leases.set_limits("owner", limits)
    wall_store.leases.set_limits("type", {"ocr_pages": 4})
    wall_store.intake.enqueue_many(
        [
            NewJob(
                ("ocr_pages", "assemble")[number % 2],
                owner=("ann", "bob", "")[number % 3],
                concurrency_key=(None, "k", "l", None, None)[number % 5],
                max_retries=50,
            )
            for number in range(90)
        ]
    )

    said = _race(kind, path, (_work, "w1", 1), (_work, "w2", 4), (_work, "w3", 2), (_work, "w4", 3))

    jobs = everything(wall_store)
    assert {worker_id for worker_id, _ in said} <= {"w1", "w2", "w3", "w4"}
    assert {job.status for job in jobs.values()} == {Status.COMPLETED}
    running: set[int] = set()
    # The events are in the order of their commits: play them back.
    for event in ByHand(path)("SELECT job_id, from_status, to_status FROM worker_job_event ORDER BY id"):
        job_id = int(str(event["job_id"]))
        if event["to_status"] == "running":
            assert job_id not in running
            running.add(job_id)
        else:
            running.discard(job_id)
        now = [jobs[each] for each in running]
        owners, keys = Counter(job.owner for job in now), Counter(job.concurrency_key for job in now)
        assert all(owners[owner] <= most for owner, most in limits.items())
        assert keys["k"] <= 1
        assert keys["l"] <= 1
        assert sum(job.job_type == "ocr_pages" for job in now) <= 4
    assert running == set()


def _initialise(store: Store, say: Say, kind: Kind, path: Path) -> None:
    kind.initialise(path)
    other = kind.open(path, wall_clock)
    say(("opened", other.reading.count(EVERY_JOB)))
    other.close()


def test_two_who_initialise_at_once_both_find_a_database(
    wall_store: Store, kind: Kind, path: Path, tmp_path: Path
) -> None:
    fresh = tmp_path / "fresh.db"

    said = _race(kind, path, *((_initialise, kind, fresh) for _ in range(3)))

    assert said == [("opened", 0)] * 3


def _insert_by_hand(store: Store, say: Say, path: Path) -> None:
    hand = ByHand(path)
    for _ in range(30):
        hand("INSERT INTO worker_job_queue (job_type, platform) VALUES ('ocr_pages', 'x')")
        say(("inserted", 1))


def test_p3_inserts_by_hand_beside_busy_claimers_are_all_run(wall_store: Store, kind: Kind, path: Path) -> None:
    wall_store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(100)])

    said = _race(kind, path, (_insert_by_hand, path), (_claim_all, "w1", 1), (_claim_all, "w2", 3))

    wall_store.leases.register(new_worker("w9", cpu=500))
    left = wall_store.leases.claim("w9", 500)
    taken = [job_id for word, job_id in said if word != "inserted"] + [job.id for job in left]
    assert sorted(taken) == list(range(1, 131))
