"""Faults of machines, links and Ray's head, with a network namespace for each node. `./run test --ray`, as root."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import ClusterSystem, made_lab
from tests.cluster.ray_lab import HEAD, NetworkLab, is_alive, needs_ray
from tests.full_length import IS_FULL
from tests.kit.system import System, wait_until

pytestmark = [
    needs_ray,
    pytest.mark.skipif(not IS_FULL, reason="long: ./run test --ray"),
    pytest.mark.timeout(300),
]

LOST_SECONDS = 9.0
"""Ray's head gives a silent node up after 8 s."""
CUT_OFF_SECONDS = 60.0
"""Children on a node that is cut off have ended after so long."""
HEAD_SECONDS = 45.0
"""Ray itself starts again on three machines: 20 s if they share two idle cores."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkLab]:
    made = made_lab(NetworkLab, tmp_path_factory.mktemp("ray"))
    yield made
    made.close()


@pytest.fixture
def cluster(lab: NetworkLab, tmp_path: Path) -> Iterator[ClusterSystem]:
    made = ClusterSystem(lab, System(tmp_path))
    yield made
    made.system.close()


@pytest.mark.parametrize("loses_power", [False, True])
def test_an_attempt_on_a_machine_without_a_link_runs_elsewhere_and_its_child_ends(
    cluster: ClusterSystem, lab: NetworkLab, loses_power: bool
) -> None:
    cluster.start()
    job = cluster.system.enqueue("sleep")
    pid, machine = cluster.runs(job)

    lab.cut(machine)
    begun = time.monotonic()
    try:
        if loses_power:
            lab.kill(machine)
        seconds = cluster.runs_again(job, begun)
        wait_until(lambda: not is_alive(pid), "its child has ended", seconds=CUT_OFF_SECONDS)
    finally:
        lab.heal(machine)
    if loses_power:
        lab.start_nodes(machine)
    print(f"{loses_power=}: runs again after {seconds:.1f} s, child gone after {time.monotonic() - begun:.1f} s")

    assert seconds < LOST_SECONDS + 6
    assert (cluster.system.outcomes(job), cluster.system.job(job).retry_count) == (["requeued", None], 0)
    assert cluster.system.store.history.attempts(job)[1].node != machine
    cluster.wait_for_nodes()


def test_attempts_run_again_after_rays_head_was_killed_and_started_again(
    cluster: ClusterSystem, lab: NetworkLab
) -> None:
    cluster.start()
    job = cluster.system.enqueue("sleep")
    pid, _ = cluster.runs(job)

    gcs = next(filter(is_alive, lab.pids_with(HEAD, "gcs_server")))
    begun = time.monotonic()
    os.kill(gcs, signal.SIGKILL)
    seconds = cluster.runs_again(job, begun)
    print(f"GCS: runs again after {seconds:.1f} s")

    assert cluster.system.job(job).retry_count == 0
    wait_until(lambda: not is_alive(pid), "its child has ended")
    cluster.wait_for_nodes()
    assert seconds < HEAD_SECONDS


def test_an_attempt_survives_a_short_cut_of_the_network(cluster: ClusterSystem, lab: NetworkLab) -> None:
    cluster.start()
    job = cluster.system.enqueue("sleep", seconds=8)
    _, machine = cluster.runs(job)

    lab.cut(machine)
    time.sleep(3)  # as long as the cut is
    lab.heal(machine)
    wait_until(lambda: cluster.system.outcomes(job)[-1] == "completed", "it completes")

    assert cluster.system.outcomes(job) == ["completed"]
