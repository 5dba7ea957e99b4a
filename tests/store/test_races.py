"""Real processes on one file. Each begins at a barrier and says in a queue what it was told.

What the simulation cannot show, as it is one thread: that transactions, ours and others', wait for each other.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import EVERY_JOB, ByHand, everything, new_worker, open_at, wish
from worker_service.base.clock import wall_clock
from worker_service.jobs.documents import Decision
from worker_service.jobs.job import NewJob, Status
from worker_service.store.opening import initialise
from worker_service.store.store import Store

# Children are forked from a process that has imported this module and has no database open.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
PATIENCE_SECONDS = 60.0
Said = list[tuple[str, Any]]
Say = Callable[[tuple[str, Any]], None]
Deed = Callable[..., None]


def _child(deed: Deed, path: Path, start: Barrier, said: multiprocessing.Queue[Any], rest: Any) -> None:
    store = open_at(path, wall_clock)
    start.wait(PATIENCE_SECONDS)
    try:
        deed(store, said.put, *rest)
    finally:
        store.close()


def _race(path: Path, *deeds: tuple[Any, ...]) -> Said:
    """Run every deed in a process of its own, all from the same moment; return all that they said."""
    start, said = CONTEXT.Barrier(len(deeds)), CONTEXT.Queue()
    racers = [CONTEXT.Process(target=_child, args=(deed, path, start, said, rest)) for deed, *rest in deeds]
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
def wall_store(path: Path) -> Iterator[Store]:
    """Like `store`, but with the clock that the racers have."""
    initialise(path)
    opened = open_at(path, wall_clock)
    yield opened
    opened.close()


def _claim_all(store: Store, say: Say, worker_id: str, most: int) -> None:
    store.workers.register(new_worker(worker_id))
    while jobs := store.leases.claim(worker_id, most):
        for job in jobs:
            say((worker_id, job.id))
            store.leases.complete(job.lease)


def _insert_by_hand(store: Store, say: Say, path: Path) -> None:
    hand = ByHand(path)
    for _ in range(30):
        hand("INSERT INTO worker_job_queue (job_type, platform) VALUES ('ocr_pages', 'x')")
        say(("inserted", 1))


def test_p1_p3_claimers_take_each_job_once_and_jobs_inserted_by_hand_too(wall_store: Store, path: Path) -> None:
    wall_store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(200)])

    said = _race(path, (_insert_by_hand, path), *((_claim_all, f"w{number}", 1 + number) for number in range(3)))

    left: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    _claim_all(wall_store, left.put, "w9", 8)
    taken = [job_id for word, job_id in said if word != "inserted"] + [left.get()[1] for _ in range(left.qsize())]
    assert sorted(taken) == list(range(1, 231))
    assert all(job.fence == 1 and job.status is Status.COMPLETED for job in everything(wall_store).values())


def _initialise(store: Store, say: Say, path: Path) -> None:
    initialise(path)
    other = open_at(path, wall_clock)
    say(("opened", other.job_queries.count(EVERY_JOB)))
    other.close()


def test_processes_that_initialise_at_once_all_find_a_database(wall_store: Store, path: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.db"

    said = _race(path, *((_initialise, fresh) for _ in range(3)))

    assert said == [("opened", 0)] * 3


def _wish_for(store: Store, say: Say) -> None:
    for _ in range(25):
        asked = store.intake.enqueue(wish(content="c1"))
        say((str(asked.decision), asked.job_id))


def test_p11_one_of_many_equal_requests_is_accepted(wall_store: Store, path: Path) -> None:
    said = _race(path, *[(_wish_for,)] * 4)

    assert [decision for decision, _ in said].count(str(Decision.ACCEPTED)) == 1
    assert len({job_id for _, job_id in said}) == 1
    assert wall_store.job_queries.count(EVERY_JOB) == 1
