"""When a worker counts as dead, and what happens to its jobs and processes."""

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

from tests.daemon.conftest import ManualClock, context_in
from tests.store.kit import ByHand, MovableClock, jobs_with_ids, new_worker
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

OWN = Identity("own", "here", "boot", os.getpid())


OBSERVED = Observation(
    is_lock_free=False,
    is_same_machine=True,
    is_rebooted=False,
    is_daemon_running=True,
    silent_seconds=0.0,
    row_silent_seconds=0.0,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Fate.ALIVE),
        ({"silent_seconds": 299}, Fate.ALIVE),
        ({"silent_seconds": 300}, Fate.SILENT),
        ({"is_lock_free": True}, Fate.GONE),
        ({"is_lock_free": True, "is_same_machine": False}, Fate.GONE),
        ({"is_lock_free": None, "is_rebooted": True}, Fate.GONE),
        ({"is_daemon_running": False}, Fate.DYING),
        ({"is_lock_free": None, "is_daemon_running": False}, Fate.ALIVE),
        ({"is_lock_free": None, "is_daemon_running": False, "silent_seconds": 300}, Fate.SILENT),
        ({"is_same_machine": False, "is_daemon_running": False}, Fate.ALIVE),
        ({"is_same_machine": False, "is_daemon_running": False, "silent_seconds": 300}, Fate.SILENT),
        # The wall clock may be stepped, so its age counts only if no process of the worker can be on this machine.
        ({"row_silent_seconds": 9999}, Fate.ALIVE),
        ({"is_same_machine": False, "row_silent_seconds": 9999}, Fate.ALIVE),
        ({"is_lock_free": None, "row_silent_seconds": 9999}, Fate.ALIVE),
        ({"is_lock_free": None, "is_daemon_running": False, "row_silent_seconds": 299}, Fate.ALIVE),
        ({"is_lock_free": None, "is_daemon_running": False, "row_silent_seconds": 300}, Fate.SILENT),
        ({"is_lock_free": None, "is_same_machine": False, "row_silent_seconds": 300}, Fate.SILENT),
    ],
)
def test_the_fate_of_a_worker(changes: dict[str, Any], expected: Fate) -> None:
    assert decide_fate(replace(OBSERVED, **changes), orphan_after_seconds=300) is expected


@pytest.fixture
def recovery(
    store: Store, database: Path, tmp_path: Path, monotonic: ManualClock, clock: MovableClock, log: Any
) -> Recovery:
    return Recovery(context_in(tmp_path, store, log, clock, own=OWN), monotonic)


def is_requeued(store: Store, job_id: int) -> bool:
    job = store.job_queries.get(job_id)
    return (job.status, job.requeue_count) == (Status.PENDING, 1)


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


def test_jobs_of_a_worker_whose_lock_is_free_are_requeued_at_once(
    recovery: Recovery, store: Store, database: Path, job: int
) -> None:
    lock = WorkerLock(lock_path(database, "w1"))
    os.close(lock.fd)

    recovery.run()

    assert is_requeued(store, job)
    assert store.overview.workers() == []
    assert not lock.path.exists()


def test_a_worker_that_holds_its_lock_and_beats_keeps_its_jobs(
    recovery: Recovery, store: Store, database: Path, monotonic: ManualClock, clock: MovableClock, job: int
) -> None:
    # The pid of this process, so the daemon counts as running.
    store.leases.requeue("w1")
    store.workers.register(_here("w1", os.getpid()))
    store.leases.claim("w1", 1)
    lock = WorkerLock(lock_path(database, "w1"))
    for _ in range(10):
        monotonic.now += 100
        clock.advance(100)
        store.leases.beat("w1", ())
        assert recovery.run() == 60
    lock.remove()
    lock.close()

    assert store.job_queries.get(job).status is Status.RUNNING


def test_a_step_of_the_wall_clock_requeues_nothing(
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


def test_a_worker_on_another_host_is_judged_by_the_heartbeat_in_its_row(
    recovery: Recovery, store: Store, clock: MovableClock, job: int
) -> None:
    store.workers.register(replace(new_worker("w1"), host="elsewhere"))
    recovery.run()
    assert store.job_queries.get(job).status is Status.RUNNING

    clock.advance(301)
    recovery.run()

    assert is_requeued(store, job)
    assert store.overview.workers() == []


def test_jobs_of_a_worker_without_a_row_are_requeued_once_its_lock_is_free(
    recovery: Recovery, store: Store, database: Path, by_hand: ByHand, job: int
) -> None:
    lock = WorkerLock(lock_path(database, "w1"))
    _remove_row(by_hand, "w1")
    recovery.run()
    assert store.job_queries.get(job).status is Status.RUNNING

    os.close(lock.fd)
    recovery.run()

    assert is_requeued(store, job)
    assert not lock.path.exists()


def test_a_worker_without_row_and_lock_is_judged_by_the_heartbeats_of_its_jobs(
    recovery: Recovery, store: Store, clock: MovableClock, by_hand: ByHand, job: int
) -> None:
    _remove_row(by_hand, "w1")
    store.job_control.cancel(jobs_with_ids(job), actor="ann")
    assert [str(broken) for broken in store.integrity.audit() if broken.promise == "P13"] == [
        f"P13: job {job} is running on worker w1, which has no row"
    ]
    recovery.run()
    assert store.job_queries.get(job).status is Status.RUNNING

    clock.advance(301)
    recovery.run()

    assert store.job_queries.get(job).status is Status.CANCELLED
    assert list(store.integrity.audit()) == []


def test_a_malformed_heartbeat_keeps_no_worker_alive(
    recovery: Recovery, store: Store, by_hand: ByHand, job: int
) -> None:
    _remove_row(by_hand, "w1")
    by_hand(f"UPDATE worker_job_queue SET heartbeat_at = 'soon' WHERE id = {job}")

    recovery.run()

    assert store.job_queries.get(job).status is Status.PENDING


def test_recovery_never_kills_a_daemon_process(
    recovery: Recovery, store: Store, database: Path, monotonic: ManualClock, by_hand: ByHand
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
    monotonic.now += 301
    recovery.run()

    assert store.job_queries.get(job_id).status is Status.PENDING
    assert holder.poll() is None
    holder.kill()
    holder.wait()


def test_processes_that_outlive_their_daemon_are_killed_before_its_jobs_are_requeued(
    recovery: Recovery, store: Store, monotonic: ManualClock, job: int, holder: subprocess.Popen[bytes]
) -> None:
    # The pid of a process that has ended: the fixture's pid 4242 may be in use.
    gone = subprocess.Popen(["true"])
    gone.wait()
    store.leases.requeue("w1")
    store.workers.register(_here("w1", gone.pid))
    store.leases.claim("w1", 1)

    assert recovery.run() < 1
    assert store.job_queries.get(job).status is Status.RUNNING
    monotonic.now += 10
    recovery.run()
    assert holder.wait(10) == -signal.SIGKILL
    recovery.run()

    assert store.job_queries.get(job).status is Status.PENDING


def test_jobs_that_a_dead_daemon_ran_on_nodes_are_requeued(recovery: Recovery, store: Store, database: Path) -> None:
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


def test_a_lock_is_free_only_when_its_last_holder_is_dead(database: Path, holder: subprocess.Popen[bytes]) -> None:
    path = lock_path(database, "w1")
    assert is_free(path) is False

    holder.kill()
    holder.wait()

    assert is_free(path) is True
    assert is_free(path.with_name("other.lock")) is None


def test_the_boot_id_is_the_kernels_without_hyphens() -> None:
    with closing(Path("/proc/sys/kernel/random/boot_id").open()) as file:
        assert boot_id() == file.read().strip().replace("-", "")


def _remove_row(by_hand: ByHand, worker_id: str) -> None:
    """What the table refuses today, and older ones did not."""
    by_hand(f"DROP TRIGGER worker_delete_guard; DELETE FROM worker WHERE id = '{worker_id}'")


def _here(worker_id: str, pid: int) -> Any:
    return replace(new_worker(worker_id), host=OWN.host, boot_id=OWN.boot_id, pid=pid)
