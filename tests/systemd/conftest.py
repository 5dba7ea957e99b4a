"""The shipped units in a box, with jobs that are commands of a TOML file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests import fake_distributions as installed
from tests.kit.system import wait_until
from tests.systemd.booted_systemd import PYTHON, PYTHONPATH, ROOT, Box, NoBox, reason_why_impossible

FILES = ROOT / "systemd"
STATE = "/var/lib/pagemill"
DATABASE = f"{STATE}/pagemill.db"

SETTINGS = """
concurrency = 1
io_concurrency = 2

[commands.touch]
argv = ["/bin/sh", "-c", "echo ran >>/var/lib/pagemill/touched"]

[commands.nap]
argv = ["/bin/sh", "-c", "echo begun >>/var/lib/pagemill/naps; sleep \\"$0\\"; echo ended >>/var/lib/pagemill/naps", \
"{payload.seconds}"]
"""


class PagemillUser:
    """A process that runs `pagemill` commands in a box as the user of the service."""

    def __init__(self, box: Box) -> None:
        own = ["HOME=/nonexistent", f"PYTHONPATH={PYTHONPATH}", f"WORKER_DATABASE={DATABASE}"]
        self._process = box.begin("env", *own, PYTHON, "-m", "tests.systemd.shell_server")

    def send(self, **what: object) -> tuple[int, str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(what)}\n")
        self._process.stdin.flush()
        code, output, all_output = json.loads(self._process.stdout.readline())
        return code, output, all_output


class Service:
    """An installed unit. `shipped`: the handlers that it finds; None: all."""

    def __init__(
        self,
        box: Box,
        unit: str = "pagemill.service",
        *,
        instance: str = "",
        types: str | None = None,
        shipped: Iterable[str] | None = None,
    ) -> None:
        self.box = box
        self.unit = unit.replace("@", f"@{instance}")
        box.write(f"/etc/systemd/system/{unit}", (FILES / unit).read_text())
        box.write("/usr/lib/sysusers.d/pagemill.conf", (FILES / "pagemill.sysusers.conf").read_text())
        box.write("/usr/lib/tmpfiles.d/pagemill.conf", (FILES / "pagemill.tmpfiles.conf").read_text())
        box.check("systemd-sysusers", "pagemill.conf")
        box.check("systemd-tmpfiles", "--create", "pagemill.conf")
        self.settings(SETTINGS)
        path = PYTHONPATH if shipped is None else f"{install_handlers(box, shipped)}:{PYTHONPATH}"
        # The unit's own hardening stays: only where the program is, and what it takes, is the test's.
        lines = f"ExecStart=\nExecStart={PYTHON} -m worker_service\nEnvironment=PYTHONPATH={path}"
        self.drop_in("00-program", lines if types is None else f"{lines}\nEnvironment=WORKER_TYPES={types}")
        self._user = PagemillUser(box)
        self.pagemill("init")

    def settings(self, text: str) -> None:
        self.box.write("/etc/pagemill/pagemill.toml", text)

    def drop_in(self, name: str, lines: str) -> None:
        self.box.write(f"/etc/systemd/system/{self.unit}.d/{name}.conf", f"[Service]\n{lines}\n")
        self.box.check("systemctl", "daemon-reload")

    def drop_ins(self) -> set[Path]:
        return {*self.box.outside_path(f"/etc/systemd/system/{self.unit}.d").iterdir()}

    def systemctl(self, verb: str, *words: str) -> str:
        done = self.box.run("systemctl", verb, *words, self.unit)
        assert done.returncode == 0, done.stderr + self.box.run("journalctl", "--no-pager", "-n", "40").stdout
        return done.stdout

    def unit_property(self, name: str) -> str:
        return self.systemctl("show", "-p", name, "--value").strip()

    @property
    def main_pid(self) -> int:
        return int(self.unit_property("MainPID"))

    def wait_for(self, name: str, *values: str) -> None:
        wait_until(
            lambda: self.unit_property(name) in values, f"{name} is one of {values}, it is {self.unit_property(name)}"
        )

    def pagemill(self, *words: str) -> str:
        """Run `pagemill …` as the user of the service."""
        code, output, all_output = self._user.send(words=words)
        assert code == 0, all_output
        return output

    def pagemill_output(self, *words: str) -> str:
        """Run a command whose exit code may be any."""
        return self._user.send(words=words)[1]

    def run_as(self, user: str, group: str, *words: str) -> str:
        """Run a command as this user with the additional group pagemill."""
        return self.box.check(*_words(user, group, *words))

    def enqueue(self, job_type: str, *words: str) -> int:
        return int(self.pagemill("enqueue", job_type, *words))

    def job(self, job_id: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.pagemill("show", str(job_id), "--json"))
        return found

    def query(self, question: str) -> str:
        """Run a statement; return its rows as `sqlite3` prints them."""
        return self._user.send(question=question)[1]

    def status(self, job_id: int) -> str:
        return self.query(f"SELECT status FROM worker_job_queue WHERE id = {job_id}")

    def words_in(self, name: str) -> list[str]:
        """Return what the jobs have written."""
        file = self.box.outside_path(f"{STATE}/{name}")
        return file.read_text().split() if file.exists() else []

    def journal(self, *matches: str) -> list[dict[str, str]]:
        said = self.box.check("journalctl", "--no-pager", "-o", "json", *matches)
        return [json.loads(line) for line in said.splitlines()]


def _words(user: str, group: str, *words: str) -> list[str]:
    who = ["setpriv", f"--reuid={user}", f"--regid={group}", "--groups=pagemill"]
    own = ["HOME=/nonexistent", f"PYTHONPATH={PYTHONPATH}", f"WORKER_DATABASE={DATABASE}"]
    # As the unit's own.
    umask = ["sh", "-c", 'umask 0007; exec "$@"', "sh"]
    return ["env", *own, *who, *umask, *words]


def install_handlers(box: Box, names: Iterable[str]) -> str:
    """Write distributions with these handlers only, and return their path."""
    with TemporaryDirectory() as place:
        installed.keep_of_the_shipped(Path(place), *names)
        for file in Path(place).glob("*/*"):
            box.write(f"/opt/chosen/{file.relative_to(place)}", file.read_text())
    return "/opt/chosen"


@contextmanager
def booted(place: Path) -> Iterator[Box]:
    is_expected = bool(os.environ.get("CI")) and os.geteuid() == 0 and Path("/lib/systemd/systemd").exists()
    refuse = pytest.fail if is_expected else pytest.skip
    if reason := reason_why_impossible():
        refuse(reason)
    try:
        made = Box(place)
    except NoBox as error:
        refuse(str(error))
    with closing(made):
        yield made


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with booted(tmp_path) as made:
        yield made
