"""A real Ray with TLS and token on this machine: `./run test --ray` installs it. Each machine of it is processes of its
own, which are known by a mark in their environment and killed as a machine would die.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.cluster_ways import own_address, with_any_port
from tests.system.conftest import wait_until
from worker_service.clock import wall_clock
from worker_service.nodes import ray_settings
from worker_service.operations import joining
from worker_service.operations.joining import Member, ray_words

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: ./run test --ray")
STARTING_SECONDS = 60.0
_MARK = "PAGEMILL_TEST_MACHINE"


class Machines:
    """Ray's head and its nodes."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        self.place = place
        self.environment = environment
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.address = own_address()
        if ray_settings.is_loopback(f"{self.address}:1"):
            pytest.skip("this machine has no address but loopback, which Ray does not take")
        with socket.create_server((self.address, 0)) as free:
            self.port = free.getsockname()[1]
        self.keys = place / "keys"
        self.keys.mkdir(parents=True)
        now = wall_clock()
        ca, authority = joining.make_authority(now)
        texts = (ca, *joining.certify(ca, authority, "here", [self.address], now), joining.make_token())
        for name, text in zip(ray_settings.KEYS, texts, strict=True):
            (self.keys / name).write_text(text)

    @property
    def where(self) -> str:
        """As settings say it."""
        return f"{self.address}:{self.port}"

    def start_head(self) -> None:
        self._start("head", Member(self.where, self.address, is_head=True))
        wait_until(self._answers, "Ray's head is there", seconds=STARTING_SECONDS)

    def start_node(self, name: str, slots: int) -> None:
        self._start(name, Member(self.where, self.address, slots=slots))

    def _start(self, name: str, member: Member) -> None:
        if (before := self._started.pop(name, None)) is not None:
            before.wait()
        state = self.place / name
        state.mkdir(exist_ok=True)
        # Several on one machine: each takes the ports that are free. Ray's sockets want a short path.
        words = [with_any_port(word) for word in ray_words(member) if not word.startswith("--temp-dir")]
        if member.is_head:
            words.append(f"--temp-dir={self.short}")
        own = {"STATE_DIRECTORY": str(state), _MARK: str(state)}
        with (state / "ray.log").open("ab") as log:
            # Ended, it is started again, as its unit would do it.
            again = 'while :; do "$@"; sleep 1; done'
            self._started[name] = subprocess.Popen(
                ["sh", "-c", again, "sh", sys.executable, "-m", "ray.scripts.scripts", "start", *words],
                env=self.environment | own | ray_settings.surroundings(self.keys),
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def short(self) -> Path:
        return Path(f"/tmp/pagemill-ray-{self.port}")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((self.address, self.port), timeout=1):
            return True
        return False

    def pids(self, name: str) -> list[int]:
        """Everything of a machine."""
        wanted = f"{_MARK}={self.place / name}".encode()
        return [pid for pid in _pids() if wanted in _environment_of(pid)]

    def kill(self, name: str) -> None:
        while pids := self.pids(name):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if (started := self._started.pop(name, None)) is not None:
            started.wait()

    def close(self) -> None:
        for name in list(self._started):
            self.kill(name)
        subprocess.run(["rm", "-rf", str(self.short)], check=False)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _environment_of(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
