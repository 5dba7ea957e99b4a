"""Real processes on one database file: transactions of pagemill and of other programs wait for each other.

The simulation cannot show this, because it has one thread. All processes start at a barrier and report in a queue.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import EVERY_JOB, ByHand, all_jobs, new_worker, open_at, reading_job
from worker_service.base.clock import wall_clock
from worker_service.jobs.documents import Decision
from worker_service.jobs.job import NewJob, Status
from worker_service.store.opening import initialise
from worker_service.store.store import Store

# Children are forked from a process that has imported this module and has no database open.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
PATIENCE_SECONDS = 60.0
Results = list[tuple[str, Any]]
Report = Callable[[tuple[str, Any]], None]
Task = Callable[..., None]


def _child(task: Task, path: Path, start: Barrier, reports: multiprocessing.Queue[Any], rest: Any) -> None:
    store = open_at(path, wall_clock)
    start.wait(PATIENCE_SECONDS)
    try:
        task(store, reports.put, *rest)
    finally:
        store.close()


def _race(path: Path, *tasks: tuple[Any, ...]) -> Results:
    """Run each task in a process of its own, all at the same time. Return what they report."""
    start, reports = CONTEXT.Barrier(len(tasks)), CONTEXT.Queue()
    racers = [CONTEXT.Process(target=_child, args=(task, path, start, reports, rest)) for task, *rest in tasks]
    for racer in racers:
        racer.start()
    results: Results = []
    # Drained while they run: a child does not end before its queue is read.
    while any(racer.is_alive() for racer in racers) or not reports.empty():
        try:
            results.append(reports.get(timeout=0.05))
        except queue.Empty:
            continue
    for racer in racers:
        racer.join(PATIENCE_SECONDS)
    assert [racer.exitcode for racer in racers] == [0] * len(racers)
    return results


@pytest.fixture
def wall_store(path: Path) -> Iterator[Store]:
    """Like `store`, but with the wall clock, as in the other processes."""
    initialise(path)
    opened = open_at(path, wall_clock)
    yield opened
    opened.close()


def _claim_all(store: Store, report: Report, worker_id: str, most: int) -> None:
    store.workers.register(new_worker(worker_id))
    while jobs := store.leases.claim(worker_id, most):
        for job in jobs:
            report((worker_id, job.id))
            store.leases.complete(job.lease)


def _insert_by_hand(store: Store, report: Report, path: Path) -> None:
    by_hand = ByHand(path)
    for _ in range(30):
        by_hand("INSERT INTO worker_job_queue (job_type, platform) VALUES ('ocr_pages', 'x')")
        report(("inserted", 1))


def test_p1_p3_claimers_take_each_job_once_and_jobs_inserted_by_hand_too(wall_store: Store, path: Path) -> None:
    wall_store.intake.enqueue_many([NewJob("ocr_pages") for _ in range(200)])

    results = _race(path, (_insert_by_hand, path), *((_claim_all, f"w{number}", 1 + number) for number in range(3)))

    left: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    _claim_all(wall_store, left.put, "w9", 8)
    taken = [job_id for sender, job_id in results if sender != "inserted"] + [
        left.get()[1] for _ in range(left.qsize())
    ]
    assert sorted(taken) == list(range(1, 231))
    assert all(job.fence == 1 and job.status is Status.COMPLETED for job in all_jobs(wall_store).values())


def _initialise(store: Store, report: Report, path: Path) -> None:
    initialise(path)
    other = open_at(path, wall_clock)
    report(("opened", other.job_queries.count(EVERY_JOB)))
    other.close()


def test_processes_that_initialise_at_once_all_find_a_database(wall_store: Store, path: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.db"

    results = _race(path, *((_initialise, fresh) for _ in range(3)))

    assert results == [("opened", 0)] * 3


def _request_document(store: Store, report: Report) -> None:
    for _ in range(25):
        requested = store.intake.enqueue(reading_job(content="c1"))
        report((str(requested.decision), requested.job_id))


def test_p11_one_of_many_equal_requests_is_accepted(wall_store: Store, path: Path) -> None:
    results = _race(path, *[(_request_document,)] * 4)

    assert [decision for decision, _ in results].count(str(Decision.ACCEPTED)) == 1
    assert len({job_id for _, job_id in results}) == 1
    assert wall_store.job_queries.count(EVERY_JOB) == 1
