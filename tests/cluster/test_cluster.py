"""Attempts on a real Ray cluster: what runs there, and what becomes of it when something fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from job_handlers.reading import ocr
from tests.cluster.conftest import NODES, READERS, ClusterSystem
from tests.cluster.ray_lab import is_alive, needs_ray, parent_of
from tests.full_length import IS_FULL
from tests.job_handlers.reading.documents import picture, prose, scan
from tests.kit.system import ROOT, System, wait_until
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector

pytestmark = [needs_ray, pytest.mark.timeout(120)]

# Faults that take Ray tens of seconds to notice, and what needs a daemon or a node of its own.
slow = pytest.mark.skipif(not IS_FULL, reason="takes long; ./run test --ray runs it")

Kill = Callable[[ClusterSystem, int, str, int], None]
"""Takes a running job, its machine and the pid of its child."""
LOST_SECONDS = 9.0
"""An attempt runs again after so long at most."""
PAGES = 4
_TEXTS = """
SELECT p.number, r.digest, r.text, r.method, hex(r.layout)
  FROM page p JOIN page_result r ON r.id = p.result_id ORDER BY p.number
"""


def read(system: System, paper: Path, **settings: object) -> str:
    """Add a file, wait until it is read, and return its stored pages."""
    done = subprocess.run(
        [sys.executable, "-m", "worker_service.cli", "add", str(paper), "--wait", "--timeout", "200s"],
        env=system.environment(**settings),
        cwd=system.place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return system.sqlite3(_TEXTS).stdout


def nodes_of(system: System, job_type: str) -> Sequence[str]:
    result = system.sqlite3(
        "SELECT DISTINCT a.node FROM worker_job_attempt a JOIN worker_job_queue q ON q.id = a.job_id "
        f"WHERE q.job_type = '{job_type}' ORDER BY 1"
    )
    return result.stdout.split()


def test_attempts_on_nodes_report_progress_and_log_lines(running: ClusterSystem) -> None:
    jobs = [running.system.enqueue("talk") for _ in range(4)]

    for job in jobs:
        running.system.wait_for(job, Status.COMPLETED)
        [attempt] = running.system.store.history.attempts(job)
        assert attempt.node in NODES
        assert [line.line for line in running.system.store.history.logs(job)] == ["a line"]
    running.assert_nothing_is_left()


def test_as_many_attempts_run_at_once_as_the_nodes_have_slots(running: ClusterSystem) -> None:
    jobs = [running.system.enqueue("sleep", seconds=60) for _ in range(3)]

    machines = {running.runs(job)[1] for job in jobs[:2]}

    assert machines == {*NODES}
    assert running.system.status(jobs[2]) is Status.PENDING
    assert [gate.code for gate in running.system.store.gates.explain(jobs[2])] == ["SLOTS_FULL"]


def test_an_attempt_that_is_cancelled_ends_within_two_seconds(running: ClusterSystem) -> None:
    job = running.system.enqueue("sleep")
    pid, _ = running.runs(job)

    asked_at = time.monotonic()
    running.system.store.job_control.cancel(Selector(ids=(job,)), actor="ann")
    running.system.wait_for(job, Status.CANCELLED)

    assert time.monotonic() - asked_at < 2.0
    assert not is_alive(pid)
    next_job = running.system.enqueue("noop")
    running.system.wait_for(next_job, Status.COMPLETED)


def kill_ray_worker(cluster: ClusterSystem, job: int, machine: str, pid: int) -> None:
    os.kill(cluster.ray_worker_of(machine, job), signal.SIGKILL)


def kill_fork_server(cluster: ClusterSystem, job: int, machine: str, pid: int) -> None:
    os.kill(parent_of(pid), signal.SIGKILL)


def kill_raylet(cluster: ClusterSystem, job: int, machine: str, pid: int) -> None:
    os.kill(next(filter(is_alive, cluster.lab.pids_with(machine, "raylet/raylet"))), signal.SIGKILL)


def kill_driver(cluster: ClusterSystem, job: int, machine: str, pid: int) -> None:
    os.kill(cluster.driver(cluster.daemon), signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "code"),
    [
        (kill_ray_worker, "NODE_LOST"),
        pytest.param(kill_fork_server, None, marks=slow),
        pytest.param(kill_raylet, "NODE_LOST", marks=slow),
        pytest.param(kill_driver, "NODE_LOST", marks=slow),
    ],
)
def test_an_attempt_whose_process_is_killed_runs_again_and_costs_no_retry(
    running: ClusterSystem, kill: Kill, code: str | None
) -> None:
    job = running.system.enqueue("sleep")
    pid, machine = running.runs(job)

    kill(running, job, machine, pid)
    begun = time.monotonic()
    running.runs(job, 2)

    assert time.monotonic() - begun < LOST_SECONDS
    [lost, _] = running.system.store.history.attempts(job)
    assert (lost.error_code, running.system.job(job).retry_count) == (code, 0)
    wait_until(lambda: not is_alive(pid), "its child has ended")
    running.wait_for_nodes()


@slow
def test_an_attempt_on_a_frozen_node_runs_elsewhere_although_no_connection_is_closed(cluster: ClusterSystem) -> None:
    cluster.start()
    job = cluster.system.enqueue("sleep")
    pid, machine = cluster.runs(job)

    frozen = cluster.lab.freeze(machine)
    begun = time.monotonic()
    try:
        _, second_machine = cluster.runs(job, 2)
        took = time.monotonic() - begun
    finally:
        cluster.lab.thaw(frozen)

    assert second_machine != machine
    assert took < LOST_SECONDS + 2
    assert [*cluster.system.outcomes(job), cluster.system.job(job).retry_count] == ["requeued", None, 0]
    wait_until(lambda: not is_alive(pid), "its child ends when the node goes on")
    cluster.wait_for_nodes()


@slow
def test_an_attempt_whose_node_dies_before_its_first_message_is_released(cluster: ClusterSystem) -> None:
    cluster.start()
    busy = cluster.system.enqueue("sleep", seconds=60)
    _, machine = cluster.runs(busy)
    [other] = {*NODES} - {machine}

    frozen = cluster.lab.freeze(other)
    try:
        # The only free slot is that of the frozen node.
        job = cluster.system.enqueue("noop")
        wait_until(lambda: cluster.system.outcomes(job)[:1] == ["released"], "the attempt is ended", seconds=20)
        cluster.system.store.job_control.cancel(Selector(ids=(busy,)), actor="ann")
        cluster.system.wait_for(job, Status.COMPLETED)
    finally:
        cluster.lab.thaw(frozen)

    assert (cluster.system.job(job).retry_count, cluster.system.job(job).requeue_count) == (0, 0)
    cluster.wait_for_nodes()


@slow
def test_no_process_of_a_killed_daemon_is_left_on_the_nodes(cluster: ClusterSystem) -> None:
    daemon = cluster.start()
    job = cluster.system.enqueue("sleep")
    pid, _ = cluster.runs(job)

    daemon.signal(signal.SIGKILL)
    daemon.wait_for_exit()
    wait_until(lambda: not is_alive(pid), "its child has ended")
    cluster.start()
    cluster.runs(job, 2)

    assert cluster.system.job(job).retry_count == 0


@slow
def test_a_daemon_that_is_stopped_releases_what_runs_on_nodes(cluster: ClusterSystem) -> None:
    daemon = cluster.start()
    job = cluster.system.enqueue("sleep")
    cluster.runs(job)

    for _ in range(2):
        daemon.signal(signal.SIGTERM)
        time.sleep(0.05)

    assert daemon.wait_for_exit() == 0
    assert cluster.system.status(job) is Status.PENDING
    cluster.assert_nothing_is_left()


def test_a_node_that_drains_gets_no_new_attempts(running: ClusterSystem) -> None:
    running.system.store.job_control.drain_node("n1", is_draining=True)
    wait_until(lambda: running.nodes()["n1"].state == "draining", "n1 drains")

    jobs = [running.system.enqueue("noop") for _ in range(6)]
    for job in jobs:
        running.system.wait_for(job, Status.COMPLETED)

    assert {running.system.store.history.attempts(job)[0].node for job in jobs} == {"n2"}
    running.system.store.job_control.drain_node("n1", is_draining=False)
    running.wait_for_nodes()


def test_an_attempt_that_needs_a_credential_runs_on_the_head(running: ClusterSystem) -> None:
    job = running.system.enqueue("secret")
    running.system.wait_for(job, Status.FAILED)

    assert [(attempt.node, attempt.error_code) for attempt in running.system.store.history.attempts(job)] == [
        ("local", "SECRET_ABSENT")
    ]


def test_an_attempt_that_publishes_files_fails_on_a_node(running: ClusterSystem) -> None:
    job = running.system.enqueue("chaos")

    assert running.system.wait_for(job, Status.FAILED).error_code == "FILES_ON_NODE"


@slow
def test_local_slots_take_attempts_of_the_same_types(cluster: ClusterSystem) -> None:
    cluster.start(local=1)

    jobs = [cluster.system.enqueue("sleep", seconds=60) for _ in range(3)]
    wait_until(lambda: all(cluster.system.outcomes(job) == [None] for job in jobs), "all run")
    wait_until(lambda: all(cluster.system.store.history.attempts(job)[0].node for job in jobs), "all are placed")

    assert {cluster.system.store.history.attempts(job)[0].node for job in jobs} == {"local", *NODES}


@slow
def test_a_daemon_that_ends_with_the_queue_waits_for_a_first_node(cluster: ClusterSystem) -> None:
    job = cluster.system.enqueue("noop")

    daemon = cluster.start("--drain")

    assert daemon.wait_for_exit() == 0
    assert cluster.system.status(job) is Status.COMPLETED


@slow
def test_a_node_that_lacks_a_handler_is_refused_with_the_reason(cluster: ClusterSystem) -> None:
    path = cluster.lab.environment["PYTHONPATH"]
    cluster.lab.environment["PYTHONPATH"] = str(ROOT)
    try:
        cluster.lab.start_nodes("n3")
    finally:
        cluster.lab.environment["PYTHONPATH"] = path

    try:
        cluster.start()
        wait_until(lambda: cluster.nodes()["n3"].state == "refused", "n3 is refused")
        tested = cluster.pagemill("cluster", "test", "--json")
    finally:
        cluster.lab.kill("n3")

    assert "is not installed here" in cluster.nodes()["n3"].reason
    assert tested.returncode == 1
    states = {node["name"]: (node["state"], node["slots"]) for node in json.loads(tested.stdout)["items"]}
    assert states == {"n1": ("up", 1), "n2": ("up", 1), "n3": ("refused", 0)}


@slow
def test_with_autoscale_attempts_wait_for_a_new_machine(cluster: ClusterSystem) -> None:
    cluster.start(autoscale=4)
    jobs = [cluster.system.enqueue("sleep", seconds=60) for _ in range(3)]
    waits = "waits for a machine of the Ray cluster"

    def waiting() -> list[int]:
        return [job for job in jobs if cluster.system.job(job).progress_message == waits]

    wait_until(lambda: len(waiting()) == 1, "one attempt waits for a machine")
    [job] = waiting()
    assert cluster.system.status(job) is Status.RUNNING
    assert cluster.nodes()["autoscaler"].slots == 2

    cluster.lab.start_nodes("n3")
    try:
        assert cluster.runs(job)[1] == "n3"
    finally:
        cluster.lab.kill("n3")


def test_jobs_wait_with_a_reason_while_ray_cannot_be_reached(cluster: ClusterSystem) -> None:
    cluster.system.start(config=_config(cluster, "ray:127.0.0.1:1"))
    job = cluster.system.enqueue("noop")
    wait_until(lambda: "ray" in cluster.nodes(), "the driver has told why")

    [gate] = cluster.system.store.gates.explain(job)

    assert gate.code == "NO_NODE"
    assert "ray is down (Ray at 127.0.0.1:1 cannot be reached" in gate.detail


@pytest.mark.skipif(ocr.missing() is not None, reason=f"{ocr.missing()}")
@pytest.mark.timeout(240)
def test_nodes_and_the_local_machine_read_the_same_text(running: ClusterSystem, tmp_path: Path) -> None:
    paper = tmp_path / "scan.pdf"
    scan(paper, [picture(prose(number, words=15), dpi=150) for number in range(PAGES)], dpi=150)
    os.utime(paper, (time.time() - 60,) * 2)
    alone = System(tmp_path, shipped=READERS)
    try:
        text_of_nodes = read(running.system, paper, config=running.config)
        alone.start()
        text_of_this_machine = read(alone, paper)
    finally:
        alone.close()

    assert len(text_of_this_machine.splitlines()) >= PAGES
    assert text_of_nodes == text_of_this_machine
    # Ray chooses the node, so on a busy machine one of them may read all pages.
    nodes_used = nodes_of(running.system, "ocr_pages")
    assert nodes_used
    assert set(nodes_used) <= set(NODES)
    running.assert_nothing_is_left()


def _config(cluster: ClusterSystem, address: str) -> object:
    cluster.config.write_text(f'[cluster]\naddress = "{address}"\nlocal = 0\n')
    return cluster.config
