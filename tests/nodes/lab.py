"""Machines on one Linux box: each with network, mounts and processes of its own, a disk of its own, and a real sshd.

Needs root. All of them hang on a bridge in a network namespace, where the head stands too, so that nothing of this
machine's own network is touched; with the process that began them, all of it is gone. Of the head's files a machine
sees none; the checkout, Python and the test's handlers are installed there, so to say.

`cut` makes a silent partition: packets vanish, and no connection is closed. `power_off` cuts before it kills, as a
power failure looks from outside. A machine that was added with a `wire` of its own can have a bad one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from worker_service.children.processes import marks_on

ROOT = Path(__file__).resolve().parents[2]
SSHD = Path("/usr/sbin/sshd")
DISK = Path("/mnt")
"""Where a machine has its own disk."""
_PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "ssh", "ssh-keygen")
_BOOT_SECONDS = 60.0
HEAD = "10.77.0.254"
ADDRESSES = [f"10.77.0.{number}" for number in range(1, 100)]
"""Of the machines, in their order."""

_BOOT = """\
# Until it has a network: sshd wants its address.
read _ || :
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind {disk} {DISK}
{more}
mount --bind {handlers} {DISK}/handlers
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount -t tmpfs tmpfs {place}
# A shell that reads nobody's settings.
sed -E 's|^(root:.*:)[^:]*$|\\1/bin/sh|' /etc/passwd >{DISK}/passwd
mount --bind {DISK}/passwd /etc/passwd
hostname {name}
exec {SSHD} -D -e -f {DISK}/sshd.conf </dev/null
"""
_SSHD = """\
ListenAddress {address}
HostKey {DISK}/host_key
PidFile {DISK}/sshd.pid
AuthorizedKeysFile {DISK}/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin forced-commands-only
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
MaxStartups 100
LogLevel ERROR
"""
_SSH = """\
Host {name}
  HostName {address}
  User root
  IdentityFile {place}/id
  IdentitiesOnly yes
  UserKnownHostsFile {place}/known_hosts
  StrictHostKeyChecking yes
"""


def reason_against() -> str | None:
    """Why this machine cannot have a lab."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "only root makes namespaces"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if not SSHD.exists():
        absent.append("openssh-server")
    if absent:
        return f"not installed: {', '.join(absent)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"namespaces are refused here: {tried.stderr.decode().strip()}"


class Lab:
    def __init__(self, place: Path) -> None:
        """`place`: the head's, with the handlers in `installed`; no machine sees it."""
        self.place = place
        self.machines: dict[str, Machine] = {}
        self.switch = subprocess.Popen(_dies_with_us("unshare", "--net", "sleep", "infinity"))
        _wait_until(lambda: _is_in_another_network(self.switch.pid))
        self.ip("link", "add", "br0", "type", "bridge")
        self.ip("addr", "add", f"{HEAD}/24", "dev", "br0")
        self.ip("link", "set", "br0", "up")
        self.ip("link", "set", "lo", "up")
        self._ssh = place / "ssh"
        self._ssh.mkdir()
        for name in ("id", "host_key"):
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self._ssh / name))
        # Its own settings, and nobody's of this machine.
        command = self._ssh / "bin" / "ssh"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self._ssh}/config "$@"\n')
        command.chmod(0o755)

    @property
    def head(self) -> Sequence[str]:
        """What stands before a command of the head."""
        path = f"{self._ssh / 'bin'}:{os.environ['PATH']}"
        return ["nsenter", f"--net=/proc/{self.switch.pid}/ns/net", "env", f"PATH={path}"]

    def add(
        self, name: str, *, wire: bool = False, more: Sequence[str] = (), program: str = "worker_service.commands node"
    ) -> Machine:
        """A machine that runs. `more`: what is done there before anybody may come in; `program`: the node's."""
        machine = self.machines[name] = Machine(
            self, name, ADDRESSES[len(self.machines)], wire=wire, more=more, program=program
        )
        host = (self._ssh / "host_key.pub").read_text()
        with (self._ssh / "config").open("a") as config, (self._ssh / "known_hosts").open("a") as known:
            config.write(_SSH.format(name=name, address=machine.address, place=self._ssh))
            known.write(f"{machine.address} {host}")
        machine.power_on()
        return machine

    def ip(self, *words: str) -> None:
        _do("nsenter", "-t", str(self.switch.pid), "-n", "ip", *words)

    def close(self) -> None:
        for machine in self.machines.values():
            machine.power_off()
        self.switch.kill()
        self.switch.wait()


class Machine:
    def __init__(self, lab: Lab, name: str, address: str, *, wire: bool, more: Sequence[str], program: str) -> None:
        self.lab, self.name, self.address = lab, name, address
        self.disk = lab.place / "machines" / name
        self.state = self.disk / "state"
        self._has_wire = wire
        self._more = more
        self._boots = 0
        self._outer: subprocess.Popen[bytes] | None = None
        self._wire: subprocess.Popen[str] | None = None
        self.init = 0
        """Its first process: everything on it dies with that one."""
        for folder in (self.state, self.disk / "handlers"):
            folder.mkdir(parents=True)
        shutil.copy(lab.place / "ssh" / "host_key", self.disk)
        (self.disk / "sshd.conf").write_text(_SSHD.format(address=address, DISK=DISK))
        key = (lab.place / "ssh" / "id.pub").read_text()
        (self.disk / "authorized_keys").write_text(f'restrict,command="{DISK}/node" {key}')
        # Bytecode of what a machine has otherwise is not for the others.
        surroundings = f"PYTHONPATH={DISK}/handlers:{ROOT} PYTHONDONTWRITEBYTECODE=1"
        command = f"{sys.executable} -P -m {program} --state {DISK}/state"
        (self.disk / "node").write_text(f"#!/bin/sh\nexec env {surroundings} {command}\n")
        (self.disk / "node").chmod(0o755)

    @property
    def is_on(self) -> bool:
        return self._outer is not None and self._outer.poll() is None

    def power_on(self) -> None:
        self._boots += 1
        (self.disk / "sshd.pid").unlink(missing_ok=True)
        script = _BOOT.format(
            disk=self.disk, DISK=DISK, handlers=self.lab.place / "installed", place=self.lab.place, name=self.name,
            SSHD=SSHD, more="\n".join(self._more),
        )  # fmt: skip
        namespaces = "--net --mount --uts --ipc --pid --fork --kill-child".split()
        with (self.disk / "boot.log").open("ab") as log:
            self._outer = subprocess.Popen(
                _dies_with_us("unshare", *namespaces, "sh", "-c", script),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _wait_until(self._find_init)
        self._plug_in()
        assert self._outer.stdin is not None
        self._outer.stdin.close()
        _wait_until((self.disk / "sshd.pid").exists, lambda: (self.disk / "boot.log").read_text())

    def power_off(self) -> None:
        if self._outer is not None and self.is_on:
            self.cut()
            self._outer.kill()
            self._outer.wait()
            _wait_until(lambda: not self.pids())
        if self._wire is not None:
            self._wire.kill()
            self._wire.communicate()
            self._wire = None

    def cut(self) -> None:
        self.lab.ip("link", "set", self._port, "nomaster")

    def heal(self) -> None:
        self.lab.ip("link", "set", self._port, "master", "br0")

    def is_bad(self, *, delay: float = 0.0, loss_in: float = 0.0, loss_out: float = 0.0) -> None:
        """Of each packet, in seconds, and of how many of them; nothing: the wire is good."""
        assert self._wire is not None
        assert self._wire.stdin is not None
        self._wire.stdin.write(f"{delay} {loss_in} {loss_out}\n")
        self._wire.stdin.flush()

    def good_wire(self) -> None:
        self.is_bad()

    def signal(self, number: signal.Signals, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def resume(self) -> None:
        self.signal(signal.SIGCONT, self.pids())

    def pids(self) -> list[int]:
        """All that lives there, by the numbers that they have here."""
        return [pid for pid in tree(self.init) if self.init and _state(pid) not in "ZX"]

    def children(self) -> dict[int, tuple[int, int]]:
        """Whatever works for an attempt there, and its marks."""
        return {pid: marks for pid in self.pids() if (marks := marks_on(pid)) is not None and all(marks)}

    def agents(self) -> list[int]:
        """What `pagemill node` has started there, or Ray."""
        marks = f"--state\0{DISK}/state".encode(), b"ray::Host"
        return [pid for pid in self.pids() if any(mark in command_of(pid) for mark in marks)]

    def _find_init(self) -> bool:
        assert self._outer is not None
        found = _children_of(self._outer.pid)
        if found:
            self.init = found[0]
        return bool(found) and _is_in_another_network(self.init)

    @property
    def _port(self) -> str:
        # A name that is being taken down may still be taken.
        return f"{self.name[:8]}-{self._boots}"

    def _plug_in(self) -> None:
        here = ("nsenter", "-t", str(self.init), "-n", "ip")
        if self._has_wire:
            words = [str(self.lab.switch.pid), self._port, str(self.init), "eth0"]
            self._wire = subprocess.Popen(
                _dies_with_us(sys.executable, "-P", str(Path(__file__).with_name("wire.py")), *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._wire.stdout is not None
            assert self._wire.stdout.readline() == "ready\n", "no wire"
        else:
            self.lab.ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.init))
        # It has the same card after a power failure: nobody sends to one that is gone.
        card = "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))
        _do(*here, "link", "set", "eth0", "address", card)
        _do(*here, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _do(*here, "link", "set", device, "up")
        self.lab.ip("link", "set", self._port, "master", "br0", "up")


def _dies_with_us(*command: str) -> list[str]:
    return ["setpriv", "--pdeathsig", "KILL", *command]


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _wait_until(is_so: Callable[[], object], what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + _BOOT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.005)


def _is_in_another_network(pid: int) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")  # noqa: PTH115
    return False


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def tree(pid: int) -> list[int]:
    return [pid, *(one for child in _children_of(pid) for one in tree(child))]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
