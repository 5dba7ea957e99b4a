"""Two ways to a node on this machine that are real: sshd on loopback, and a Ray with TLS and token. Each gives the
engine, as settings name it, of a head with one node of one slot."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.running import wait_until
from worker_service.clock import wall_clock
from worker_service.nodes import ray_settings
from worker_service.operations import joining
from worker_service.operations.joining import Member, ray_words

_SSHD = Path("/usr/sbin/sshd")
_STARTING_SECONDS = 60.0


def has_sshd() -> bool:
    return os.geteuid() == 0 and _SSHD.exists()


def has_ray() -> bool:
    return find_spec("ray") is not None and not ray_settings.is_loopback(f"{own_address()}:1")


@contextmanager
def by_ssh(place: Path, python_path: str) -> Iterator[str]:
    keys = place / "keys"
    keys.mkdir(parents=True, mode=0o700)
    for name in ("host", "head"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
    node = f"env PYTHONPATH={python_path} {sys.executable} -P -m worker_service.nodes.pipes {place}/node 1"
    public = (keys / "head.pub").read_text()
    (keys / "authorized").write_text(f'restrict,command="{node}" {public}')
    port = _free_port("127.0.0.1")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    options = (f"HostKey={keys}/host", f"ListenAddress=127.0.0.1:{port}", f"AuthorizedKeysFile={keys}/authorized",
               "StrictModes=no", "PidFile=none", "UsePAM=no", "PermitRootLogin=prohibit-password",
               # What a shell reads there when it begins is this machine's own matter.
               f"SetEnv=HOME={keys}")  # fmt: skip
    with (place / "sshd.log").open("wb") as log:
        words = [word for option in options for word in ("-o", option)]
        sshd = subprocess.Popen([str(_SSHD), "-D", "-e", "-f", "/dev/null", *words], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers("127.0.0.1", port), "sshd is there", seconds=_STARTING_SECONDS)
        ssh = f"ssh -F none -T -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={keys}/known"
        yield f"pipe:box={ssh} -i {keys}/head -p {port} root@127.0.0.1 pagemill node*1,local*0"
    finally:
        sshd.terminate()
        sshd.wait()


@contextmanager
def by_ray(place: Path, python_path: str) -> Iterator[str]:
    address = own_address()
    port, keys = _free_port(address), place / "keys"
    keys.mkdir(parents=True, mode=0o700)
    authority, key = joining.make_authority(wall_clock())
    own = joining.certify(authority, key, "here", [address], wall_clock())
    for name, text in zip(ray_settings.KEYS, (authority, *own, joining.make_token()), strict=True):
        (keys / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": python_path, **ray_settings.surroundings(keys)}
    started: list[subprocess.Popen[bytes]] = []
    # Ray's sockets want a short path.
    short = Path(f"/tmp/pagemill-ray-{port}")
    os.environ["CREDENTIALS_DIRECTORY"] = str(keys)
    try:
        for name, member in (
            ("head", Member(f"{address}:{port}", address, is_head=True)),
            ("node", Member(f"{address}:{port}", address, slots=1)),
        ):
            words = [with_any_port(word) for word in ray_words(member) if not word.startswith("--temp-dir")]
            words += [f"--temp-dir={short}"] if member.is_head else []
            with (place / f"{name}.log").open("wb") as log:
                one = subprocess.Popen(
                    [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
                    env={**environment, "STATE_DIRECTORY": str(place / name)},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            started.append(one)
            wait_until(lambda: _answers(address, port), "Ray is there", seconds=_STARTING_SECONDS)
        yield f"ray:{address}:{port},local*0"
    finally:
        del os.environ["CREDENTIALS_DIRECTORY"]
        for one in reversed(started):
            one.terminate()
        for one in started:
            with suppress(subprocess.TimeoutExpired):
                one.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
        shutil.rmtree(short, ignore_errors=True)


def with_any_port(word: str) -> str:
    name, _, value = word.partition("=")
    return f"{name}=0" if name.endswith("-port") and name != "--port" and value.isdigit() else word


def own_address() -> str:
    """By which others would reach this machine: Ray takes no loopback address. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect(("192.0.2.1", 9))
        return str(asked.getsockname()[0])
    return "127.0.0.1"


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as free:
        return int(free.getsockname()[1])


def _answers(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False
