"""A real database in a directory of its own, and ways to run a command on it: here, as a process, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import fake_distributions as installed
from tests.cli.stored_documents import Shelf
from tests.store.kit import TYPES, lay_out, work_as
from worker_service.cli import pagemill, system_steps
from worker_service.jobs.attempts import Failure
from worker_service.jobs.job import Job
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.store.opening import open_store
from worker_service.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "worker_service.cli"]

Run = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def few_handlers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hide the shipped handlers except `command`, because listing handlers imports the libraries of each."""
    directory = tmp_path_factory.mktemp("site")
    installed.keep_of_the_shipped(directory, "command")
    return directory


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few_handlers: Path) -> None:
    """Hide the settings, the checkout and the terminal of the user who runs the tests."""
    for name in [*os.environ]:
        if name.startswith("WORKER_") or name.endswith("_DIRECTORY") or name in ("NO_COLOR", "COLUMNS", "SUDO_USER"):
            monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", f"{few_handlers}{os.pathsep}{ROOT}")
    monkeypatch.setenv("WORKER_DATABASE", str(tmp_path / "pagemill.db"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def all_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def no_database(tmp_path: Path) -> Path:
    return tmp_path / "pagemill.db"


@pytest.fixture
def database(no_database: Path) -> Path:
    lay_out(no_database)
    return no_database


@pytest.fixture
def run() -> Run:
    """Run a command in this process. `fails` is the expected exit code."""

    def run(*words: object, fails: int = 0, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(pagemill, [str(word) for word in words], input=stdin)
        assert result.exit_code == fails, result.output
        return result

    return run


@pytest.fixture
def process() -> Process:
    """Run a command as a process of its own. `fails` is the expected exit code."""

    def process(*words: object, fails: int = 0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *map(str, words)]
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, env=env
        )
        assert result.returncode == fails, result.stdout + result.stderr
        return result

    return process


@dataclass
class Daemon:
    """Changes jobs as a daemon would."""

    store: Store

    def claim(self, most: int = 1) -> list[Job]:
        return self.store.leases.claim("w1", most)

    def complete(self) -> Job:
        [job] = self.claim()
        self.store.leases.complete(job.lease, '{"pages":12}')
        return job

    def fail(self, code: str = "HTTP_503", message: str = "the server is busy", remedy: str = "") -> Job:
        [job] = self.claim()
        self.store.leases.fail(job.lease, Failure(code, message, remedy=remedy), retry_at=None)
        return job


@pytest.fixture
def daemon(database: Path) -> Iterator[Daemon]:
    store = open_store(database)
    types = ("ocr_pages", "download", "assemble")
    store.workers.register(Worker("w1", "here", "boot", 1, "0", 100, 100, [HandlerFacts(name) for name in types]))
    yield Daemon(store)
    store.close()


@pytest.fixture
def shelf(database: Path) -> Iterator[Shelf]:
    store = open_store(database)
    work_as(store, types=(*TYPES, "adopt", "crawl"))
    yield Shelf(store, database.parent / "workspace")
    store.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The empty file system of an image."""
    directory = tmp_path / "image"
    directory.mkdir()
    return directory


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands that steps would run, and run none."""
    recorded: list[list[str]] = []

    def record(step: system_steps.RunCommand) -> None:
        recorded.append([*step.argv])

    monkeypatch.setattr(system_steps.RunCommand, "do", record)
    return recorded


def items(result: Result) -> list[Any]:
    values: list[Any] = json.loads(result.stdout)["items"]
    return values


def states(run: Run) -> dict[int, str]:
    return {job["id"]: job["state"] for job in items(run("ls", "--json"))}


def write_files(*names: str) -> list[Path]:
    """Write files with different contents, and return their absolute paths."""
    paths = [Path(name).absolute() for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"content of " + os.fsencode(path.name))
    return paths


def jobs_of_type(shelf: Shelf, job_type: str) -> list[Job]:
    """Return the jobs in the order of their ids."""
    return [*reversed(shelf.store.job_queries.list(Selector(job_types=(job_type,))))]


def payloads_of_type(shelf: Shelf, job_type: str) -> list[Any]:
    return [json.loads(job.payload or "null") for job in jobs_of_type(shelf, job_type)]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def start_command(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_on_terminal(*words: str, typed: str = "", prompt: bytes = b"", columns: int = 60) -> tuple[int, str]:
    """Run a command on a terminal, type the text once `prompt` is shown, and return the exit code and the screen."""
    our_end, command_end = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    # A session of its own, because a password is asked for at the terminal of the session.
    command = subprocess.Popen(
        [*COMMAND, *words], stdin=command_end, stdout=command_end, stderr=command_end, env=environ,
        start_new_session=True,
    )  # fmt: skip
    os.close(command_end)
    screen, is_typed = b"", False
    try:
        while True:
            if not is_typed and prompt in screen:
                is_typed = bool(os.write(our_end, typed.encode())) or not typed
            if not (output := os.read(our_end, 65536)):
                break
            screen += output
    except OSError:  # Linux says so that the other end is closed
        pass
    os.close(our_end)
    return command.wait(timeout=60), screen.decode().replace("\r\n", "\n")
