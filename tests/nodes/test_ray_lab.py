"""Machines of a real Ray that share no file and no process: what a network and a power failure take away from them, and
what is lost by that: nothing. The head has Ray's own head beside it; see `lab` and `ray_machines`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.conftest import gateway_of
from tests.nodes.lab import ADDRESSES, HEAD, Machine, reason_against
from tests.nodes.ray_machines import Machines, needs_ray, with_keys
from tests.nodes.test_lab import Cluster
from tests.system.conftest import Daemon, System, is_running, wait_until
from worker_service.jobs.model import Status

pytestmark = [
    needs_ray,
    pytest.mark.skipif(reason_against() is not None, reason=f"no lab: {reason_against()}"),
    pytest.mark.timeout(120),
]

PATIENCE_SECONDS = 9.0
"""As it is unless somebody says otherwise."""
NOTICED_SECONDS = 10.0
"""Beyond the patience, on a busy machine: until what was lost is claimed again, and has begun elsewhere."""


class RayCluster(Cluster):
    """A head in the lab, and nodes that Ray knows."""

    def __init__(self, system: System) -> None:
        super().__init__(system, patience_seconds=PATIENCE_SECONDS)
        environment, place = system.environment(), system.place / "ray"
        self.ray = Machines(place, environment, before=self.lab.head, addresses=[HEAD, *ADDRESSES])
        self.write()

    def add(self, *names: str, **more: object) -> list[Machine]:
        made = []
        for name in names:
            boots = self.ray.boots(ADDRESSES[len(self.lab.machines)], slots=1)
            made.append(self.lab.add(name, more=boots, **more))  # type: ignore[arg-type]
        return made

    def write(self, **more: object) -> None:
        if hasattr(self, "ray"):
            super().write(**{"engine": f"ray:{self.ray.where},local*0"} | more)

    def start(self, **settings: object) -> Daemon:
        with with_keys(self.ray.keys):
            return super().start(**settings)

    def takes_what_is_next(self, machine: Machine) -> None:
        """The only one that has room."""
        job = self.system.enqueue("chaos")
        self.system.wait_for(job, Status.COMPLETED)
        assert self.node_that_runs(job) is machine
        self.assert_published_once(job)

    def assert_published_once(self, job_id: int) -> None:
        [file] = self.system.store.library.job_files(job_id)
        assert (self.system.workspace / file.path).read_text() == str(job_id)

    def assert_all_is_well(self) -> None:
        """The books, and that nobody works for a head that has gone."""
        self.system.assert_sound()
        self.system.close()
        self.assert_nothing_is_left()

    def close(self) -> None:
        self.system.close()
        self.ray.close()
        self.lab.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    made = RayCluster(System(tmp_path, shipped=()))
    try:
        made.ray.start_head()
        yield made
    finally:
        made.close()


def sleeping_on(cluster: RayCluster) -> tuple[int, int, Machine]:
    """A job that runs, all that works for it, and where."""
    job = cluster.system.enqueue("sleep")
    cluster.system.pids_of(job)
    machine = cluster.node_that_runs(job)
    return job, next(iter(machine.children())), machine


def test_a_cut_of_five_seconds_costs_one_attempt_more_at_most(cluster: RayCluster) -> None:
    system = cluster.system
    cluster.add("n1")
    cluster.start()
    cluster.wait_for_all()
    job = system.enqueue("chaos", seconds=10)
    system.wait_for(job, Status.RUNNING)
    machine = cluster.node_that_runs(job)
    wait_until(machine.children, "it has begun")

    machine.cut()
    time.sleep(5)  # as long as the cut is
    machine.heal()

    system.wait_for(job, Status.COMPLETED)
    outcomes = system.outcomes(job)
    assert (outcomes[-1], len(outcomes) <= 2) == ("completed", True), outcomes
    assert system.job(job).retry_count == 0
    cluster.assert_published_once(job)
    cluster.assert_all_is_well()


def test_what_ran_where_ray_is_cut_off_ends_there_first_and_then_begins_elsewhere(cluster: RayCluster) -> None:
    system = cluster.system
    cluster.add("n1", "n2")
    cluster.start()
    cluster.wait_for_all()
    job, pid, first = sleeping_on(cluster)

    first.cut()
    cut_at = time.monotonic()
    gone_at, given_up_at = cluster.when_gone_and_given_up(first, job)
    system.pids_of(job, 2)
    moved_at = time.monotonic()

    assert gone_at < given_up_at
    assert not is_running(pid)
    assert moved_at - cut_at < PATIENCE_SECONDS + NOTICED_SECONDS
    assert cluster.node_that_runs(job) is not first
    assert (system.outcomes(job), system.job(job).retry_count) == (["requeued", None], 0)
    first.heal()
    cluster.wait_for(first.name)
    assert first.children() == {}
    cluster.takes_what_is_next(first)
    cluster.assert_all_is_well()


def test_what_ran_where_the_power_fails_begins_elsewhere_and_the_machine_joins_ray_again(cluster: RayCluster) -> None:
    system = cluster.system
    cluster.add("n1", "n2")
    cluster.start()
    cluster.wait_for_all()
    job, _, first = sleeping_on(cluster)

    first.power_off()
    off_at = time.monotonic()
    system.pids_of(job, 2)
    moved_at = time.monotonic()

    assert moved_at - off_at < PATIENCE_SECONDS + NOTICED_SECONDS
    assert cluster.node_that_runs(job) is not first
    assert (system.outcomes(job), system.job(job).retry_count) == (["requeued", None], 0)
    first.power_on()
    cluster.wait_for(first.name)
    cluster.takes_what_is_next(first)
    cluster.assert_all_is_well()


def test_a_long_and_lossy_wire_to_a_node_of_ray_is_slow_and_no_more(cluster: RayCluster) -> None:
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("this kernel has no TAP devices: a bad wire cannot be made")
    system = cluster.system
    [machine] = cluster.add("n1", wire=True)
    machine.is_bad(delay=0.1, loss_in=0.01, loss_out=0.01)
    cluster.start()

    jobs = [system.enqueue("chaos") for _ in range(5)]

    for job in jobs:
        system.wait_for(job, Status.COMPLETED)
        assert system.outcomes(job) == ["completed"]
        cluster.assert_published_once(job)
    cluster.assert_all_is_well()


def test_after_a_kill_of_the_daemon_ray_leaves_no_child_of_it_and_its_jobs_run_again(cluster: RayCluster) -> None:
    system = cluster.system
    cluster.add("n1")
    daemon = cluster.start()
    job, pid, machine = sleeping_on(cluster)

    for one in (gateway_of(daemon), daemon.pid):
        os.kill(one, signal.SIGKILL)
    daemon.ends()
    wait_until(lambda: not machine.children(), "what it had on the node has ended")
    cluster.start()
    system.pids_of(job, 2)

    assert not is_running(pid)
    assert system.outcomes(job)[1:] == [None]
    cluster.assert_all_is_well()
