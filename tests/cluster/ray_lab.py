"""A real Ray cluster on this machine, with a token. Each of its machines is a group of processes with a mark in their
environment, so that all of a machine can be killed or frozen at once.

`RayLab` gives all machines the same network. `NetworkLab` gives each one a network namespace of its own, whose link can
be cut. Both need root, because each machine has a mount namespace for its own Ray sockets.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kit.system import wait_until
from worker_service.cluster.ray_settings import HEALTH_CHECKS, RECONNECT

HEAD = "head"
START_SECONDS = 90.0
_MARK = "PAGEMILL_TEST_MACHINE"
_RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
        "--include-log-monitor=false", "--object-store-memory=100000000", "--node-manager-port=0",
        "--object-manager-port=0", "--min-worker-port=0", "--max-worker-port=0")  # fmt: skip
_RESTARTED = ("sh", "-c", 'while :; do "$@"; sleep 1; done', "sh")
"""As systemd restarts a service."""


def reason_against() -> str | None:
    """Return why this machine cannot have a lab, or None."""
    if find_spec("ray") is None:
        return "Ray is not installed"
    if os.geteuid() != 0:
        return "only root makes namespaces"
    if _own_address().startswith("127."):
        return "this machine has no address but loopback"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"namespaces are refused here: {tried.stderr.decode().strip()}"


class RayLab:
    def __init__(self, place: Path, environment: Mapping[str, str], *, restarts: bool = False) -> None:
        """`environment`: of Ray's processes. `restarts`: a machine's Ray is started again when it ends."""
        self.place = place
        self.address = self._make_network()
        self.port = self._free_port()
        self.restarts = restarts
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        # The paths of Ray's sockets have at most 107 bytes.
        self._sockets = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.token = place / "ray.token"
        self.token.write_text(secrets.token_hex(32))
        self.environment = {
            **{name: value for name, value in environment.items() if not name.startswith("RAY_")},
            **self.variables,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",
        }

    @property
    def variables(self) -> dict[str, str]:
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            **HEALTH_CHECKS,
            **RECONNECT,
        }

    @property
    def setting(self) -> str:
        return f"ray:{self.address}:{self.port}"

    @property
    def before(self) -> Sequence[str]:
        """Words before a command that runs on the head."""
        return ()

    @property
    def machines(self) -> list[str]:
        return list(self._started)

    def start_head(self, *words: str) -> None:
        head = ["--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=false"]
        self._start(HEAD, self.address, [*head, f"--temp-dir={self._sockets}", *words])
        self._wait_for(HEAD)

    def start_nodes(self, *names: str, slots: int = 1) -> None:
        for name in names:
            boot = f'mount -t tmpfs tmpfs {self._sockets} && hostname {name} && exec "$@"'
            own = ["unshare", "--mount", "--uts", "sh", "-c", boot, "sh"]
            words = [f"--address={self.address}:{self.port}", f"--num-cpus={slots}"]
            self._start(name, self._address_of(name), words, own)
        for name in names:
            self._wait_for(name)

    def pids(self, name: str) -> list[int]:
        """Return all processes of a machine."""
        wanted = f"{_MARK}={self.place / name}".encode()
        marked = [pid for pid in _all_pids() if wanted in _environment_of(pid)]
        return sorted({one for pid in marked for one in tree(pid)})

    def pids_with(self, name: str, words: str) -> list[int]:
        return [pid for pid in self.pids(name) if words in command_of(pid)]

    def kill(self, name: str) -> None:
        """End a machine as a power failure does; connections are closed."""
        while pids := [pid for pid in self.pids(name) if is_alive(pid)]:
            _signal(pids, signal.SIGKILL)
            time.sleep(0.02)
        started = self._started.pop(name, None)
        if started is not None:
            started.wait()

    def freeze(self, name: str) -> list[int]:
        """Stop all processes of a machine; connections stay open."""
        pids = self.pids(name)
        _signal(pids, signal.SIGSTOP)
        return pids

    def thaw(self, pids: Sequence[int]) -> None:
        _signal(pids, signal.SIGCONT)

    def machine_of(self, pid: int) -> str:
        return next(name for name in self._started if pid in self.pids(name))

    def close(self) -> None:
        for name in list(self._started):
            self.kill(name)
        # What has outlived its machine's first process.
        mark = f"{_MARK}={self.place}/".encode()
        _signal(
            [pid for pid in _all_pids() if any(one.startswith(mark) for one in _environment_of(pid))], signal.SIGKILL
        )
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _make_network(self) -> str:
        return _own_address()

    def _address_of(self, name: str) -> str:
        return self.address

    def _free_port(self) -> int:
        with socket.create_server((self.address, 0)) as free:
            return int(free.getsockname()[1])

    def _start(self, name: str, address: str, words: Sequence[str], own: Sequence[str] = ()) -> None:
        state = self.place / name
        state.mkdir(exist_ok=True)
        again = _RESTARTED if self.restarts else ()
        with (state / "ray.log").open("wb") as log:
            self._started[name] = subprocess.Popen(
                [*self._enter(name), *again, *own, *_RAY, f"--node-ip-address={address}", *words],
                env={**self.environment, _MARK: str(state), "STATE_DIRECTORY": str(state), "HOME": str(state)},
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _enter(self, name: str) -> Sequence[str]:
        return ()

    def _wait_for(self, name: str) -> None:
        log = self.place / name / "ray.log"
        wait_until(
            lambda: "Ray runtime started" in log.read_text() or self._started[name].poll() is not None,
            f"Ray is started on {name}",
            seconds=START_SECONDS,
        )
        assert self._started[name].poll() is None, log.read_text()


class NetworkLab(RayLab):
    """Machines on a bridge in a network namespace, which is gone with the process that holds it."""

    def _make_network(self) -> str:
        self._switch = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        wait_until(lambda: _is_in_another_network(self._switch.pid), "the network namespace is there")
        for words in ("link add br0 type bridge", "addr add 10.99.0.1/24 dev br0", "link set br0 up", "link set lo up"):
            self._ip(self._switch.pid, words)
        return "10.99.0.1"

    @property
    def before(self) -> Sequence[str]:
        return _inside(self._switch.pid)

    def cut(self, name: str) -> None:
        """Packets vanish, and no connection is closed."""
        self._ip(self._switch.pid, f"link set v-{name} nomaster")

    def heal(self, name: str) -> None:
        self._ip(self._switch.pid, f"link set v-{name} master br0")

    def bytes_to(self, name: str) -> int:
        counter = Path(f"/proc/{self._switch.pid}/net/dev").read_text().split(f"v-{name}:")[1].split("\n")[0].split()
        return int(counter[8])

    def close(self) -> None:
        super().close()
        for holder in (*self._holders.values(), self._switch):
            holder.kill()
            holder.wait()

    def _free_port(self) -> int:
        return 6379

    def _address_of(self, name: str) -> str:
        return self._addresses[name]

    def start_nodes(self, *names: str, slots: int = 1) -> None:
        for name in names:
            if name not in self._addresses:
                self._plug_in(name)
        super().start_nodes(*names, slots=slots)

    def _plug_in(self, name: str) -> None:
        self._addresses[name] = f"10.99.0.{len(self._addresses) + 2}"
        holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
        self._holders[name] = holder
        wait_until(lambda: _is_in_another_network(holder.pid), f"{name} has a network")
        self._ip(self._switch.pid, f"link add v-{name} type veth peer name eth0 netns {holder.pid}")
        self._ip(self._switch.pid, f"link set v-{name} master br0 up")
        for words in (f"addr add {self._addresses[name]}/24 dev eth0", "link set eth0 up", "link set lo up",
                      "route add default via 10.99.0.1"):  # fmt: skip
            self._ip(holder.pid, words)

    def _enter(self, name: str) -> Sequence[str]:
        return self.before if name == HEAD else _inside(self._holders[name].pid)

    def _ip(self, pid: int, words: str) -> None:
        subprocess.run([*_inside(pid), "ip", *words.split()], check=True)


def _inside(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net"]


def _is_in_another_network(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")  # noqa: PTH115
    return False


def _own_address() -> str:
    """Return this machine's address as others see it. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
            return str(asked.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):  # noqa: PTH208
                found += map(int, Path(f"/proc/{one}/task/{thread}/children").read_text().split())
    return found


def _environment_of(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


needs_ray = pytest.mark.skipif(reason_against() is not None, reason=str(reason_against()))
