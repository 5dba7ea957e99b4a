"""Who is gone, and what is done about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.daemon.conftest import Watch, context_in
from tests.store.kit import ByHand, MovableClock, ids, new_worker
from worker_service.daemon.dead_workers import Recovery
from worker_service.jobs.attempts import Report
from worker_service.jobs.job import NewJob, Status
from worker_service.jobs.workers import NODE, HandlerFacts, NodeState, Worker
from worker_service.runner.worker_identity import (
    Fate,
    Identity,
    Observation,
    WorkerLock,
    boot_id,
    decide_fate,
    is_free,
    lock_path,
)
from worker_service.store.store import Store

PATIENCE_SECONDS = 9.0
OWN = Identity("own", "here", "boot", os.getpid())


def seen(
    *,
    free: bool | None = False,
    same: bool = True,
    rebooted: bool = False,
    there: bool = True,
    silent: float = 0.0,
    row: float = 0.0,
) -> Observation:
    return Observation(free, same, rebooted, there, silent, row)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (seen(), Fate.ALIVE),
        (seen(silent=299), Fate.ALIVE),
        (seen(silent=300), Fate.SILENT),
        (seen(free=True), Fate.GONE),
        (seen(free=True, same=False), Fate.GONE),
        (seen(free=None, rebooted=True), Fate.GONE),
        (seen(there=False), Fate.DYING),
        (seen(free=None, there=False), Fate.ALIVE),
        (seen(free=None, there=False, silent=300), Fate.SILENT),
        (seen(same=False, there=False), Fate.ALIVE),
        (seen(same=False, there=False, silent=300), Fate.SILENT),
        # By the wall clock, which may be stepped: only where nothing of it can be here.
        (seen(row=9999), Fate.ALIVE),
        (seen(same=False, row=9999), Fate.ALIVE),
        (seen(free=None, row=9999), Fate.ALIVE),
        (seen(free=None, there=False, row=299), Fate.ALIVE),
        (seen(free=None, there=False, row=300), Fate.SILENT),
        (seen(free=None, same=False, row=300), Fate.SILENT),
    ],
)
def test_the_fate_of_a_worker(known: Observation, expected: Fate) -> None:
    assert decide_fate(known, orphan_after_seconds=300) is expected


@pytest.fixture
def recovery(store: Store, database: Path, tmp_path: Path, watch: Watch, clock: MovableClock, log: Any) -> Recovery:
    return Recovery(context_in(tmp_path, store, log, clock, own=OWN), watch)


@pytest.fixture
def by_hand(database: Path) -> ByHand:
    return ByHand(database)


@pytest.fixture
def job(store: Store) -> int:
    job_id = store.intake.enqueue(NewJob("ocr_pages")).job_id
    store.leases.claim("w1", 1)
    return job_id


@pytest.fixture
def holder(database: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock of w1, as a child that outlived its daemon."""
    lock = WorkerLock(lock_path(database, "w1"))
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[lock.fd])
    os.close(lock.fd)
    yield process
    process.kill()
    process.wait()


def test_a_worker_whose_lock_is_free_loses_its_jobs_at_once(
    recovery: Recovery, store: Store, database: Path, job: int
) -> None:
    lock = WorkerLock(lock_path(database, "w1"))
    os.close(lock.fd)

    recovery.run()

    assert (store.job_queries.get(job).status, store.job_queries.get(job).requeue_count) == (Status.PENDING, 1)
    assert store.overview.workers() == []
    assert not lock.path.exists()


def test_a_worker_that_holds_its_lock_and_beats_is_left_alone(
    recovery: Recovery, store: Store, database: Path, watch: Watch, clock: MovableClock, job: int
) -> None:
    # Its pid is ours, so it is there.
    store.leases.requeue("w1")
    store.workers.register(_here("w1", os.getpid()))
    store.leases.claim("w1", 1)
    lock = WorkerLock(lock_path(database, "w1"))
    for _ in range(10):
        watch.now += 100
        clock.advance(100)
        store.leases.beat("w1", ())
        assert recovery.run() == 60
    lock.remove()
    lock.close()

    assert store.job_queries.get(job).status is Status.RUNNING


def test_a_stepped_wall_clock_frees_nothing(
    recovery: Recovery, store: Store, database: Path, clock: MovableClock, job: int
) -> None:
    store.workers.register(_here("w1", os.getpid()))
    lock = WorkerLock(lock_path(database, "w1"))
    recovery.run()
    clock.advance(3600)

    recovery.run()
    lock.remove()
    lock.close()

    assert store.job_queries.get(job).status is Status.RUNNING


def test_of_a_worker_on_another_host_the_beat_in_its_row_counts_and_not_how_long_this_daemon_has_watched(
    recovery: Recovery, store: Store, clock: MovableClock, job: int
) -> None:
    store.workers.register(replace(new_worker("w1"), host="elsewhere"))
    recovery.run()
    assert store.job_queries.get(job).status is Status.RUNNING

    clock.advance(301)
    recovery.run()

    assert (store.job_queries.get(job).status, store.job_queries.get(job).requeue_count) == (Status.PENDING, 1)
    assert store.overview.workers() == []


def test_jobs_of_a_worker_whose_row_was_removed_are_taken_back(
    recovery: Recovery, store: Store, database: Path, by_hand: ByHand, job: int
) -> None:
    lock = WorkerLock(lock_path(database, "w1"))
    _remove_row(by_hand, "w1")
    recovery.run()
    assert store.job_queries.get(job).status is Status.RUNNING

    os.close(lock.fd)
    recovery.run()

    assert (store.job_queries.get(job).status, store.job_queries.get(job).requeue_count) == (Status.PENDING, 1)
    assert not lock.path.exists()


def test_without_a_row_and_a_lock_the_last_beat_of_its_jobs_counts(
    recovery: Recovery, store: Store, clock: MovableClock, by_hand: ByHand, job: int
) -> None:
    _remove_row(by_hand, "w1")
    store.job_control.cancel(ids(job), actor="ann")
    assert [str(broken) for broken in store.integrity.audit() if broken.promise == "P13"] == [
        f"P13: job {job} is running on worker w1, which has no row"
    ]
    recovery.run()
    assert store.job_queries.get(job).status is Status.RUNNING

    clock.advance(301)
    recovery.run()

    assert store.job_queries.get(job).status is Status.CANCELLED
    assert list(store.integrity.audit()) == []


def test_a_beat_that_is_no_time_keeps_nobody_alive(recovery: Recovery, store: Store, by_hand: ByHand, job: int) -> None:
    _remove_row(by_hand, "w1")
    by_hand(f"UPDATE worker_job_queue SET heartbeat_at = 'soon' WHERE id = {job}")

    recovery.run()

    assert store.job_queries.get(job).status is Status.PENDING


def test_a_worker_that_comes_back_without_its_row_finds_its_daemon_spared(
    recovery: Recovery, store: Store, database: Path, watch: Watch, by_hand: ByHand
) -> None:
    lock = WorkerLock(lock_path(database, "w1"))
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[lock.fd])
    name = f"here-{holder.pid}-0123abcd"
    lock.path.rename(lock_path(database, name))
    os.close(lock.fd)
    store.workers.register(_here(name, holder.pid))
    job_id = store.intake.enqueue(NewJob("ocr_pages")).job_id
    store.leases.claim(name, 1)
    _remove_row(by_hand, name)

    recovery.run()
    watch.now += 301
    recovery.run()

    assert store.job_queries.get(job_id).status is Status.PENDING
    assert holder.poll() is None
    holder.kill()
    holder.wait()


def test_what_outlives_its_daemon_is_stopped_before_the_jobs_are_taken_back(
    recovery: Recovery, store: Store, watch: Watch, job: int, holder: subprocess.Popen[bytes]
) -> None:
    # pid 4242 of the fixture's worker may be anybody's: one that was is not.
    gone = subprocess.Popen(["true"])
    gone.wait()
    store.leases.requeue("w1")
    store.workers.register(_here("w1", gone.pid))
    store.leases.claim("w1", 1)

    assert recovery.run() < 1
    assert store.job_queries.get(job).status is Status.RUNNING
    watch.now += 10
    recovery.run()
    assert holder.wait(10) == -signal.SIGKILL
    recovery.run()

    assert store.job_queries.get(job).status is Status.PENDING


def test_what_a_dead_daemon_ran_on_nodes_comes_back_with_the_rest(
    recovery: Recovery, store: Store, database: Path
) -> None:
    store.workers.register(Worker("h", OWN.host, OWN.boot_id, 4242, "0", 1, 1, [HandlerFacts("ocr_pages", NODE)]))
    store.workers.set_nodes("h", [NodeState("n1", "up", 1)])
    job = store.intake.enqueue(NewJob("ocr_pages")).job_id
    lock = WorkerLock(lock_path(database, "h"))
    os.close(lock.fd)
    [claimed] = store.leases.claim("h", 1, NODE)
    store.leases.report([Report(claimed.lease, node="n1")])

    recovery.run()

    assert store.job_queries.get(job).status is Status.PENDING
    assert [(node.state, node.slots) for node in store.overview.nodes()] == []


def test_a_lock_is_free_only_when_its_last_holder_is_gone(database: Path, holder: subprocess.Popen[bytes]) -> None:
    path = lock_path(database, "w1")
    assert is_free(path) is False

    holder.kill()
    holder.wait()

    assert is_free(path) is True
    assert is_free(path.with_name("other.lock")) is None


def test_the_boot_id_is_one_whoever_tells_it() -> None:
    with closing(Path("/proc/sys/kernel/random/boot_id").open()) as file:
        assert boot_id() == file.read().strip().replace("-", "")


def _remove_row(by_hand: ByHand, worker_id: str) -> None:
    """What the table refuses today, and older ones did not."""
    by_hand(f"DROP TRIGGER worker_delete_guard; DELETE FROM worker WHERE id = '{worker_id}'")


def _here(worker_id: str, pid: int) -> Any:
    return replace(new_worker(worker_id), host=OWN.host, boot_id=OWN.boot_id, pid=pid)
