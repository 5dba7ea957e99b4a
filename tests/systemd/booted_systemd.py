"""A box: a real systemd in namespaces of its own, over an overlay of this machine's root.

It boots in a quarter of a second and downloads nothing. This checkout, the Python of the tests and its packages are at
paths that the hardening of the units does not hide.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
PYTHONPATH = "/opt/checkout:/opt/packages"
_SYSTEMD = Path("/lib/systemd/systemd")
_PROGRAMS = ("unshare", "nsenter", "setpriv", "systemctl", "journalctl", "systemd-sysusers")
_UP_SECONDS = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoBox(Exception):
    """The machine cannot boot a box."""


def reason_why_impossible() -> str | None:
    """Return why this machine cannot boot a box, as far as is known without trying."""
    if sys.platform != "linux":
        return "needs Linux"
    if not _SYSTEMD.exists():
        return "systemd is not installed"
    if os.geteuid() != 0:
        return "only root can boot a systemd"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


class Box:
    def __init__(self, place: Path) -> None:
        self._place = place / "box"
        self._place.mkdir()
        self._log = place / "boot.log"
        self._group = _cgroup_here() / f"pagemill-box-{secrets.token_hex(4)}"
        self._group.mkdir()
        target_by_path = {
            ROOT: "/opt/checkout",
            Path(sys.base_prefix): "/opt/python",
            Path(sysconfig.get_path("purelib")): "/opt/packages",
        }
        pairs = [str(path) for pair in target_by_path.items() for path in pair]
        # The shell goes into the group before it makes the namespaces, so that the box's own tree begins there.
        enter = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
        namespaces = "--pid --mount --uts --ipc --net --cgroup --fork --kill-child".split()
        boot = [str(Path(__file__).with_name("boot")), str(self._place), *pairs]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", enter, "sh", str(self._group), "unshare", *namespaces, *boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._begun: list[subprocess.Popen[str]] = []
        self._init: int | None = None
        try:
            self._wait_until_up()
            self._show_libpython()
        except BaseException:
            self.close()
            raise

    @property
    def init(self) -> int:
        """Pid of its process 1, outside."""
        assert self._init is not None
        return self._init

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the box, as root."""
        return subprocess.run(
            [*self._entering(), *words], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that runs until its input ends."""
        pipe = subprocess.PIPE
        self._begun.append(subprocess.Popen([*self._entering(), *words], stdin=pipe, stdout=pipe, text=True))
        return self._begun[-1]

    def check(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        file = self.outside_path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def outside_path(self, path: str) -> Path:
        """Return the path outside."""
        return Path(f"/proc/{self._init}/root{path}")

    def cgroup(self, unit: str) -> Path:
        """Return the group of a service, as seen from outside."""
        return self._group / "system.slice" / unit

    def close(self) -> None:
        for process in self._begun:
            process.communicate()
        # --kill-child: with its parent goes the box's process 1, and with that all of the box.
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + _UP_SECONDS
        while not self._is_group_removed() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _entering(self) -> list[str]:
        surroundings = ["env", "-i", f"PATH={_PATH}", "LANG=C.UTF-8", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"]
        return ["nsenter", "-t", str(self._init), "-a", "--wdns=/", *surroundings]

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoBox(f"systemd did not boot in a box: {self._log.read_text()[-1000:]}")
            time.sleep(0.02)

    def _show_libpython(self) -> None:
        """Let units find libpython, which is in a place where the loader does not look."""
        if any(Path(sys.base_prefix, "lib").glob("libpython*.so*")):
            self.write("/etc/ld.so.conf.d/00-python.conf", "/opt/python/lib\n")
            self.check("ldconfig")

    def _is_up(self) -> bool:
        try:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
                return False
        except OSError:
            return False
        self._init = int(children[0])
        return self.run("systemctl", "is-active", "--quiet", "box.target").returncode == 0

    def _is_group_removed(self) -> bool:
        groups = [folder for folder, _, _ in os.walk(self._group, topdown=False)]
        try:
            for folder in groups:
                Path(folder).rmdir()
        except OSError:
            # Somebody in it has not ended yet.
            return False
        return True


def _cgroup_here() -> Path:
    """Return our own group in the tree of cgroup 2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None:
        raise NoBox("cgroup 2 is not mounted")
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    place = root / own.lstrip("/")
    if not os.access(place, os.W_OK):
        raise NoBox(f"{place} cannot be written")
    return place
