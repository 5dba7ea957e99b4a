"""A real Ray with TLS and token: `./run test --ray` installs it. Each machine of it on this one is processes of its
own, which are known by a mark in their environment and killed as a machine would die; Ray's nodes may be on a lab's
machines as well.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.cluster_ways import own_address, with_any_port
from tests.nodes.lab import DISK, ROOT
from tests.system.conftest import wait_until
from worker_service.clock import wall_clock
from worker_service.nodes import ray_settings
from worker_service.operations import joining
from worker_service.operations.joining import Member, ray_words

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: ./run test --ray")
STARTING_SECONDS = 60.0
_MARK = "PAGEMILL_TEST_MACHINE"
_ENDED_IT_IS_STARTED_AGAIN = ("sh", "-c", 'while :; do "$@"; sleep 1; done', "sh")
"""As its unit would do it."""
_RAY = (sys.executable, "-m", "ray.scripts.scripts", "start")


@contextmanager
def with_keys(keys: Path) -> Iterator[None]:
    """For whoever is started meanwhile, as by its unit."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CREDENTIALS_DIRECTORY", str(keys))
        yield


class Machines:
    """Ray's head and its nodes."""

    def __init__(
        self, place: Path, environment: Mapping[str, str], *, before: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> None:
        """`before`: words before the commands of those that are on this machine; `addresses`: of the head, then of all
        other machines."""
        self.place = place
        self.environment = environment
        self._before = before
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.address = addresses[0] if addresses else own_address()
        if ray_settings.is_loopback(f"{self.address}:1"):
            pytest.skip("this machine has no address but loopback, which Ray does not take")
        self.port = ray_settings.PORT if addresses else _free_port(self.address)
        self.short = Path(tempfile.mkdtemp(prefix="pagemill-ray-", dir="/tmp"))
        """Ray's sockets want a short path, which is the same everywhere."""
        self.keys = place / "keys"
        self.keys.mkdir(parents=True)
        now = wall_clock()
        ca, authority = joining.make_authority(now)
        certified = joining.certify(ca, authority, "here", addresses or [self.address], now)
        for name, text in zip(ray_settings.KEYS, (ca, *certified, joining.make_token()), strict=True):
            (self.keys / name).write_text(text)

    @property
    def where(self) -> str:
        """As settings say it."""
        return f"{self.address}:{self.port}"

    def start_head(self, *words: str, **surroundings: str) -> None:
        """`words`: more of them for `ray start`."""
        self._start("head", Member(self.where, self.address, is_head=True), *words, **surroundings)
        wait_until(self._answers, "Ray's head is there", seconds=STARTING_SECONDS)

    def start_node(self, name: str, slots: int) -> None:
        self._start(name, Member(self.where, self.address, slots=slots))

    def boots(self, address: str, slots: int) -> Sequence[str]:
        """What a machine of a lab does to be a node."""
        surroundings = ray_settings.surroundings(DISK / "keys") | {
            "PYTHONPATH": f"{DISK}/handlers:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", "STATE_DIRECTORY": f"{DISK}/state",
        }  # fmt: skip
        words = [*_ENDED_IT_IS_STARTED_AGAIN, *_RAY, *ray_words(Member(self.where, address, slots=slots))]
        command = shlex.join(["env", *(f"{name}={value}" for name, value in surroundings.items()), *words])
        return (
            f"mkdir -p {DISK}/keys && cp {self.keys}/* {DISK}/keys",
            f"mount -t tmpfs tmpfs {self.short}",
            "mount -t tmpfs tmpfs /dev/shm",
            f"(cd {DISK} && exec {command}) >>{DISK}/ray.log 2>&1 </dev/null &",
        )

    def _start(self, name: str, member: Member, *more: str, **surroundings: str) -> None:
        if (before := self._started.pop(name, None)) is not None:
            before.wait()
        state = self.place / name
        state.mkdir(exist_ok=True)
        # Several on one machine: each takes the ports that are free.
        words = [with_any_port(word) for word in ray_words(member) if not word.startswith("--temp-dir")]
        if member.is_head:
            words.append(f"--temp-dir={self.short}")
        own = {"STATE_DIRECTORY": str(state), _MARK: str(state), **surroundings}
        with (state / "ray.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                [*self._before, *_ENDED_IT_IS_STARTED_AGAIN, *_RAY, *words, *more],
                env={**self.environment, **own, **ray_settings.surroundings(self.keys)},
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        asks = f"import socket; socket.create_connection(({self.address!r}, {self.port}), timeout=1)"
        asked = [*self._before, sys.executable, "-S", "-c", asks]
        return subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode == 0

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


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _environment_of(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
