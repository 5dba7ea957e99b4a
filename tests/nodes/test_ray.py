"""Nodes of a real Ray, with TLS and token, on this machine: each machine of it dies as one would."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.length import short
from tests.nodes.conftest import gateway_of
from tests.nodes.ray_machines import Machines, needs_ray, with_keys
from tests.system.conftest import Daemon, System, is_running, wait_until
from worker_service.jobs.model import Status
from worker_service.nodes import ray_settings
from worker_service.operations import joining

pytestmark = [needs_ray, pytest.mark.timeout(300)]

BACK_SECONDS = 60.0
PATIENCE_SECONDS = 6.0
JOBS = short(6, full=200)
PAPER = """
from worker_service.handlers import Done, Handler

def paper(context):
    (context.staging / "page.txt").write_bytes(context.idempotency_key.encode() * 200_000)
    return Done(files=["page.txt"])

handlers = [Handler("paper", paper, dict)]
"""


class Head:
    """A daemon over Ray."""

    def __init__(self, system: System, machines: Machines, *, more: str = "") -> None:
        """`more`: lines of `[cluster]`."""
        self.system, self.machines = system, machines
        self.settings = system.place / "cluster.toml"
        self.settings.write_text(
            f'[cluster]\nengine = "ray:{machines.where},local*0"\n'
            f'types = ["paper", "sleep"]\npatience = "{PATIENCE_SECONDS:g}s"\n{more}\n'
        )

    def start(self, keys: Path | None = None) -> Daemon:
        with with_keys(keys or self.machines.keys):
            return self.system.start(config=self.settings)

    def up(self) -> set[str]:
        return {row.name for row in self.system.store.reading.nodes() if row.state == "up"}

    def reasons(self) -> str:
        return " ".join(row.reason for row in self.system.store.reading.nodes())

    def wait_for(self, number: int) -> None:
        wait_until(lambda: len(self.up()) == number, f"{number} nodes are up, not {self.up()}", seconds=BACK_SECONDS)

    def nodes_of(self, job_id: int) -> list[str | None]:
        return [attempt.node for attempt in self.system.store.reading.attempts(job_id)]

    def lost(self, jobs: Sequence[int]) -> list[int]:
        """Those whose first attempt is over."""
        return [job for job in jobs if self.system.outcomes(job)[0] is not None]

    def ends(self, job_id: int, status: Status = Status.COMPLETED) -> None:
        wait_until(lambda: self.system.status(job_id) is status, f"job {job_id} {status}", seconds=BACK_SECONDS)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The same for all tests of this module: Ray takes seconds to start."""
    place = tmp_path_factory.mktemp("ray")
    surroundings = System(tmp_path_factory.mktemp("handlers"))
    surroundings.install("paper", PAPER)
    made = Machines(place, surroundings.environment())
    try:
        made.start_head()
        made.start_node("b", 2)
        made.start_node("c", 2)
        yield made
    finally:
        made.close()
        surroundings.close()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path)
    made.install("paper", PAPER)
    yield made
    made.close()


@pytest.fixture
def head(system: System, machines: Machines) -> Head:
    return Head(system, machines)


def test_jobs_run_on_the_nodes_and_their_files_come_back(head: Head) -> None:
    head.start()
    head.wait_for(2)
    jobs = [head.system.enqueue("paper") for _ in range(JOBS)]

    for job in jobs:
        head.ends(job)

    assert len({node for job in jobs for node in head.nodes_of(job)} - {None}) == 2
    for job in jobs:
        assert (head.system.workspace / "objects" / f"{job}-1" / "page.txt").stat().st_size >= 200_000
    head.system.assert_sound()


def test_what_a_node_ran_that_died_runs_elsewhere_and_costs_no_retry(head: Head) -> None:
    daemon = head.start()
    head.wait_for(2)
    jobs = [head.system.enqueue("sleep") for _ in range(4)]
    for job in jobs:
        head.system.pids_of(job)

    head.machines.kill("b")
    began = time.monotonic()
    wait_until(lambda: len(head.lost(jobs)) == 2, "two were lost", seconds=BACK_SECONDS)
    took = time.monotonic() - began

    lost = head.lost(jobs)
    assert [head.system.store.reading.attempts(job)[0].error_code for job in lost] == ["NODE_LOST"] * 2
    assert [head.system.job(job).retry_count for job in lost] == [0, 0]
    assert took < PATIENCE_SECONDS + 2 + 15, "patience, and what a loaded machine takes"
    assert daemon.process.poll() is None
    head.machines.start_node("b", 2)
    head.wait_for(2)
    head.system.assert_sound()


@pytest.mark.parametrize("what", ["gateway", "daemon"])
def test_what_a_gateway_or_daemon_had_on_a_node_is_gone_when_it_runs_again(head: Head, what: str) -> None:
    daemon = head.start()
    head.wait_for(2)
    job = head.system.enqueue("sleep")
    [pid] = head.system.pids_of(job)

    if what == "gateway":
        os.kill(gateway_of(daemon), signal.SIGKILL)
    else:
        daemon.signal(signal.SIGKILL)
        daemon.ends()
        head.start()
    head.system.pids_of(job, 2)

    assert not is_running(pid)
    assert (len(head.nodes_of(job)), head.system.job(job).retry_count) == (2, 0)
    head.system.assert_sound()


def test_after_rays_head_has_died_and_is_back_jobs_run_again(head: Head) -> None:
    head.start()
    head.wait_for(2)
    job = head.system.enqueue("sleep")
    head.system.pids_of(job)

    head.machines.kill("head")
    wait_until(lambda: head.up() == set(), "no node is up", seconds=BACK_SECONDS)
    began = time.monotonic()
    head.machines.start_head()
    head.wait_for(2)
    new = head.system.enqueue("paper")
    head.ends(new)
    assert time.monotonic() - began < BACK_SECONDS

    head.system.pids_of(job, 2)
    assert (len(head.nodes_of(job)), head.system.job(job).retry_count) == (2, 0)
    head.system.assert_sound()


def test_without_keys_ray_is_not_spoken_to_off_this_machine(head: Head, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    daemon = head.start(tmp_path / "empty")

    wait_until(lambda: "without TLS and token" in daemon.log.read_text(), "it says why")
    assert head.up() == set()


def test_with_another_token_nobody_is_let_in(head: Head, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ray_settings.KEYS:
        (other / name).write_text((head.machines.keys / name).read_text())
    (other / "cluster.token").write_text(joining.make_token())

    head.start(other)

    wait_until(lambda: "that lets us in" in head.reasons(), "it says so", seconds=BACK_SECONDS)
    assert head.up() == set()
