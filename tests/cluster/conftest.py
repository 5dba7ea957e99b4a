"""One small real Ray cluster for each module: a head and two nodes of one slot."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cluster.ray_lab import RayLab, is_alive
from tests.full_length import IS_FULL
from tests.kit.system import Daemon, System, wait_until
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import NodeRow
from worker_service.runner.processes import marks_of

NODES = ("n1", "n2")
READERS = ("download", "ingest", "ocr_pages", "assemble")
Lab = TypeVar("Lab", bound=RayLab)


class ClusterSystem:
    """A daemon whose attempts run on the nodes of a lab."""

    def __init__(self, lab: RayLab, system: System) -> None:
        self.lab, self.system = lab, system
        self.config = system.place / "cluster.toml"
        system.before = [*lab.before, "env", *(f"{name}={value}" for name, value in lab.variables.items())]

    def start(self, *words: str, **settings: object) -> Daemon:
        """Start a daemon. `settings`: of `[cluster]`."""
        table = {"address": self.lab.setting, "local": 0, **settings}
        lines = [
            f"{key} = {str(value) if isinstance(value, int | list) else repr(value)}" for key, value in table.items()
        ]
        self.config.write_text("\n".join(["[cluster]", *lines, ""]))
        if words:
            return self.system.begin(*words, config=self.config)
        self.daemon = self.system.start(config=self.config)
        self.wait_for_nodes()
        return self.daemon

    def pagemill(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the head, as the owner of the daemon."""
        return subprocess.run(
            [*self.system.before, sys.executable, "-m", "worker_service.cli", *words],
            env=self.system.environment(config=self.config),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def nodes(self) -> dict[str, NodeRow]:
        return {row.name: row for row in self.system.store.overview.nodes()}

    def wait_for_nodes(self, number: int = len(NODES)) -> None:
        def up() -> list[str]:
            return [name for name, node in self.nodes().items() if node.state == "up" and name != "local"]

        wait_until(lambda: len(up()) == number, f"{number} nodes are up, not {self.nodes()}")

    def runs(self, job_id: int, attempt: int = 1) -> tuple[int, str]:
        """Wait until an attempt has a child. Return its pid and the machine on which it runs."""

        def row() -> object:
            attempts = self.system.store.history.attempts(job_id)
            return len(attempts) >= attempt and attempts[attempt - 1].pid

        wait_until(row, f"attempt {attempt} of job {job_id} runs: {self.system.outcomes(job_id)}")
        found = self.system.store.history.attempts(job_id)[attempt - 1]
        assert found.pid is not None
        return found.pid, self.lab.machine_of(found.pid)

    def runs_again(self, job_id: int, begun: float) -> float:
        """Wait until an attempt after the first has a child. Return the seconds since `begun`."""

        def again() -> bool:
            return any(attempt.pid for attempt in self.system.store.history.attempts(job_id)[1:])

        wait_until(again, f"job {job_id} runs again", seconds=120)
        return time.monotonic() - begun

    def driver(self, daemon: Daemon) -> int:
        [pid] = [pid for pid in daemon.fork_server_pids() if b"ray_driver" in _command(pid)]
        return pid

    def ray_worker_of(self, machine: str, job_id: int) -> int:
        """Return the Ray worker process, which Ray names after its task."""
        [pid] = self.lab.pids_with(machine, f"ray::{job_id}-")
        return pid

    def attempt_processes(self) -> list[int]:
        """Return all children of attempts on all machines."""
        found = []
        for machine in self.lab.machines:
            for pid in self.lab.pids(machine):
                if all(marks_of(pid)) and is_alive(pid):
                    found.append(pid)
        return found

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not self.attempt_processes(), "no process of an attempt is left on any node")
        self.system.assert_sound()
        assert self.system.store.integrity.audit() == []


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def made_lab(kind: type[Lab], place: Path, *, slots: int = 1) -> Lab:
    """Start a head and two nodes that have the handlers of the tests and those that read pages."""
    handlers = System(place, shipped=READERS)
    environment = {name: value for name, value in handlers.environment().items() if not name.startswith("WORKER_")}
    handlers.close()
    made = kind(place, environment, restarts=True)
    try:
        # The monitor serves the autoscaler only.
        made.start_head(*([] if IS_FULL else ["--no-monitor"]))
        made.start_nodes(*NODES, slots=slots)
    except BaseException:
        made.close()
        raise
    return made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayLab]:
    made = made_lab(RayLab, tmp_path_factory.mktemp("ray"))
    yield made
    made.close()


@pytest.fixture
def cluster(lab: RayLab, tmp_path: Path) -> Iterator[ClusterSystem]:
    made = ClusterSystem(lab, System(tmp_path))
    yield made
    made.system.close()


@pytest.fixture(scope="module")
def _running(lab: RayLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSystem]:
    made = ClusterSystem(lab, System(tmp_path_factory.mktemp("running"), shipped=READERS))
    made.start()
    yield made
    made.system.close()


@pytest.fixture
def running(_running: ClusterSystem) -> Iterator[ClusterSystem]:
    """A daemon that is shared by several tests. Its jobs are cancelled after each."""
    yield _running
    store = _running.system.store
    live = Selector(statuses=(Status.PENDING, Status.RUNNING))
    store.job_control.cancel(live, actor="test")
    wait_until(lambda: not store.job_queries.count(live), "no job is left")
    _running.wait_for_nodes()
