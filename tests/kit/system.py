"""Start daemons on a database of their own, run commands beside them, and wait for conditions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import fake_distributions as installed
from tests.store.kit import lay_out
from worker_service.cli import pagemill
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.opening import open_store
from worker_service.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60.0
CLOSING_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_PAUSE_SECONDS_MOST = 0.1


def wait_until(is_so: Callable[[], object], what: str = "", *, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for a condition; fail the test if it does not hold within `seconds`."""
    started = time.monotonic()
    while not is_so():
        waited = time.monotonic() - started
        if waited > seconds:
            pytest.fail(f"not within {seconds:g} s: {what}")
        # Ask less often after a while: what the test waits for needs the processors itself.
        time.sleep(min(max(waited / 20, _PAUSE_SECONDS), _PAUSE_SECONDS_MOST))


def is_running(pid: int) -> bool:
    return _state(pid) not in ("Z", "X")


def _state(pid: int) -> str:
    """Return the state of the process in /proc; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@contextmanager
def locked(database: Path) -> Iterator[int]:
    """Hold the write lock at the sqlite3 prompt; yield the pid of sqlite3."""
    sqlite3 = subprocess.Popen(
        ["sqlite3", "-cmd", ".timeout 5000", str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert sqlite3.stdin is not None
    assert sqlite3.stdout is not None
    sqlite3.stdin.write("BEGIN IMMEDIATE;\n.print has the lock\n")
    sqlite3.stdin.flush()
    assert sqlite3.stdout.readline() == "has the lock\n"
    try:
        yield sqlite3.pid
    finally:
        sqlite3.communicate("COMMIT;\n", timeout=10)
    assert sqlite3.returncode == 0


class Daemon:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self, name: str = "") -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if not name or line["event"] == name]

    def wait_for(self, name: str, number: int = 1) -> None:
        wait_until(lambda: len(self.events(name)) >= number or self.process.poll() is not None, name)
        assert len(self.events(name)) >= number, self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def suspend(self, database: Path) -> None:
        """Suspend the daemon, but not in the middle of a write, where it would keep the write lock."""
        with locked(database):
            self.signal(signal.SIGSTOP)
            wait_until(lambda: _state(self.pid) == "T", "it stands still")

    def wait_for_exit(self) -> int:
        try:
            return self.process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end: {self.log.read_text()}")

    def fork_server_pids(self) -> list[int]:
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


class System:
    """A database, a workspace, the handlers of `tests.system.handlers`, and as many daemons as a test wants.

    `shipped`: the shipped handlers that are installed too. None: the caller writes them to `place / "installed"`.
    """

    def __init__(self, place: Path, logs: Path | None = None, *, shipped: Iterable[str] | None = ("command",)) -> None:
        self.place = place
        self._logs = logs or place
        self.database = place / "pagemill.db"
        self.workspace = place / "workspace"
        self.before: Sequence[str] = ()
        """Words before the command of each daemon."""
        self._daemons: list[Daemon] = []
        lay_out(self.database)
        self.store: Store = open_store(self.database)
        self._handlers = place / "installed"
        installed.install(self._handlers, "pagemill-system-tests", {"system": "tests.system.handlers:handlers"})
        if shipped is not None:
            installed.keep_of_the_shipped(self._handlers, *shipped)

    def install(self, module: str, source: str) -> None:
        """Install a third-party module with `handlers`, for daemons that start from now on."""
        (self._handlers / f"{module}.py").write_text(source)
        installed.install(self._handlers, f"pagemill-{module}", {module: f"{module}:handlers"})

    def environment(self, **settings: object) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WORKER_", "NOTIFY_"))}
        path = os.pathsep.join([str(self._handlers), str(ROOT)])
        own = {
            "PYTHONPATH": path, "HOME": str(self.place), "XDG_CONFIG_HOME": str(self.place),
            "WORKER_DATABASE": str(self.database), "WORKER_CONCURRENCY": "2", "WORKER_IO_CONCURRENCY": "4",
            "WORKER_LOG_FORMAT": "json",
        }  # fmt: skip
        return kept | own | {f"WORKER_{key.upper()}": str(value) for key, value in settings.items()}

    def begin(self, *words: str, **settings: object) -> Daemon:
        """Start a daemon and do not wait. `words`: as `pagemill run …`."""
        module = ["worker_service.cli", "run", *words] if words else ["worker_service"]
        log = self._logs / f"daemon-{len(self._daemons)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*self.before, sys.executable, "-m", *module],
                cwd=self.place,
                env=self.environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        daemon = Daemon(process, log)
        self._daemons.append(daemon)
        return daemon

    def start(self, **settings: object) -> Daemon:
        daemon = self.begin(**settings)
        daemon.wait_for("daemon.started")
        return daemon

    def enqueue(self, job_type: str = "noop", *, max_retries: int = 3, **payload: object) -> int:
        return self.store.intake.enqueue(NewJob(job_type, payload=json.dumps(payload), max_retries=max_retries)).job_id

    def job(self, job_id: int) -> Job:
        return self.store.job_queries.get(job_id)

    def status(self, job_id: int) -> Status:
        return self.job(job_id).status

    def wait_for(self, job_id: int, status: Status) -> Job:
        wait_until(lambda: self.status(job_id) is status, f"job {job_id} {status}, it is {self.status(job_id)}")
        return self.job(job_id)

    def wait_for_all(self, status: Status, number: int) -> None:
        wait_until(
            lambda: self.store.job_queries.count(Selector(statuses=(status,))) >= number, f"{number} jobs {status}"
        )

    def pids_of(self, job_id: int, number: int = 1) -> list[int]:
        """Return the processes of a `sleep` job, which logs them."""

        def logged_pids() -> list[int]:
            lines = (line.line for line in self.store.history.logs(job_id))
            return [int(found[1]) for line in lines if (found := re.match(r"pid (\d+)", line))]

        wait_until(lambda: len(logged_pids()) >= number, f"job {job_id} says its pids")
        return logged_pids()

    def outcomes(self, job_id: int) -> list[str | None]:
        return [attempt.outcome for attempt in self.store.history.attempts(job_id)]

    def begin_command(self, *words: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-m", "worker_service.cli", *words], subprocess.PIPE
        return subprocess.Popen(command, cwd=self.place, env=self.environment(), stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `pagemill` in this process, which is five times as cheap."""
        with chdir(self.place):
            done = CliRunner(env=self.environment()).invoke(pagemill, words)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def sqlite3(self, statement: str, *, timeout: int = 2000) -> subprocess.CompletedProcess[str]:
        """Run a statement as a user or cron does."""
        return subprocess.run(
            ["sqlite3", "-cmd", f".timeout {timeout}", str(self.database), statement],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def assert_sound(self) -> None:
        broken = [
            check.detail
            for check in self.store.integrity.check()
            if check.name in ("integrity", "consistency") and not check.is_good
        ]
        assert broken == []

    def close(self) -> None:
        """Stop every daemon at once. Two signals in a row may arrive as one, so send more until it ends."""
        for daemon in self._daemons:
            daemon.signal(signal.SIGCONT)
        deadline = time.monotonic() + CLOSING_SECONDS
        while living := [daemon for daemon in self._daemons if daemon.process.poll() is None]:
            for daemon in living:
                daemon.signal(signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM)
            time.sleep(0.02)
        self.store.close()
