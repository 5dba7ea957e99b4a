"""Nodes on this machine: each a real `pagemill node` with a directory of its own, behind two pipes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.conftest import Daemon, System, is_running, wait_until
from worker_service.jobs.model import NodeRow
from worker_service.liveness import holders

PATIENCE_SECONDS = 6.0
TYPES = ["noop", "sleep", "talk", "fail", "chaos"]


class Nodes:
    """A head and its nodes. `slots`: of each node by its name."""

    def __init__(self, system: System, slots: dict[str, int], *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.system = system
        self.place = system.place
        self.settings = system.place / "cluster.toml"
        self.patience_seconds = patience_seconds
        self._slots = slots
        self.write()

    def write(self, **more: object) -> None:
        places = [f"{name}={self.command(name)}*{slots}" for name, slots in self._slots.items()]
        lines: dict[str, object] = {
            "types": TYPES,
            "engine": f"pipe:{','.join([*places, 'local*0'])}",
            "patience": f"{self.patience_seconds:g}s",
        }
        lines |= more
        told = "".join(
            f"{key} = {str(value).lower() if value is True else repr(value)}\n" for key, value in lines.items()
        )
        self.settings.write_text(f"[retries.ocr_pages]\nfirst = 0.1\n[cluster]\n{told}")

    def command(self, name: str) -> str:
        """Unless somebody has switched it off."""
        # Whoever ends the command here ends nothing there.
        node = f"exec setsid -w {sys.executable} -P -m worker_service.nodes.pipes {self.root(name)} 8"
        return f'sh -c "test ! -e {self.root(name)}.off && {node}"'

    def root(self, name: str) -> Path:
        return self.place / name

    def start(self, **settings: object) -> Daemon:
        return self.system.start(config=self.settings, **settings)

    def rows(self) -> dict[str, NodeRow]:
        return {row.name: row for row in self.system.store.reading.nodes()}

    def wait_for(self, name: str, state: str = "up") -> None:
        wait_until(lambda: name in self.rows() and self.rows()[name].state == state, f"node {name} is {state}")

    def house(self, name: str) -> Path:
        [house] = [one for one in self.root(name).iterdir() if one.is_dir()]
        return house

    def pids(self, name: str) -> list[int]:
        """Everything of a node that lives."""
        with suppress(FileNotFoundError, ValueError):
            return [pid for pid in holders(self.house(name) / "lock") if is_running(pid)]
        return []

    def agent(self, name: str) -> int:
        [pid] = [pid for pid in self.pids(name) if "worker_service.nodes.pipes" in _command_of(pid)]
        return pid

    def switch_off(self, name: str) -> None:
        """As if its plug was pulled; it does not come back."""
        self.root(name).with_suffix(".off").touch()
        for pid in self.pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def switch_on(self, name: str) -> None:
        self.root(name).with_suffix(".off").unlink()

    def node_of(self, job_id: int) -> str:
        """Where its newest attempt runs, or ran."""
        wait_until(lambda: self._attempt(job_id) is not None, f"job {job_id} is on a node")
        return str(self._attempt(job_id))

    def _attempt(self, job_id: int) -> str | None:
        attempts = self.system.store.reading.attempts(job_id)
        return attempts[-1].node if attempts else None

    def close(self) -> None:
        for name in self._slots:
            for pid in self.pids(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not any(self.pids(name) for name in self._slots), "no process of a node is left")


def gateway_of(daemon: Daemon) -> int:
    [pid] = [pid for pid in daemon.nursery_pids() if "worker_service.nodes.gateway" in _command_of(pid)]
    return pid


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


MakeNodes = Callable[..., Nodes]


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[MakeNodes]:
    made: list[Nodes] = []

    def make(slots: dict[str, int] | None = None, *, shipped: tuple[str, ...] | None = (), **more: float) -> Nodes:
        system = System(tmp_path, shipped=shipped)
        made.append(Nodes(system, {"n1": 1, "n2": 1} if slots is None else slots, **more))
        return made[-1]

    yield make
    for one in made:
        one.system.close()
        one.close()
