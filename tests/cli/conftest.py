"""A real database in a directory of its own, and two ways to give it a command: in this process, or as another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from worker_service.jobs.workers import HandlerFacts, Worker
from worker_service.store.opening import open_store
from worker_service.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "worker_service.cli"]

Run = Callable[..., Result]
Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def few_handlers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the shipped ones those of the owner's programs: who asks after handlers would import the libraries of all."""
    place = tmp_path_factory.mktemp("site")
    installed.keep_of_the_shipped(place, "command")
    return place


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, few_handlers: Path) -> None:
    """Nothing of the person who runs the tests: no settings, no checkout, no terminal's colours."""
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
    """Give a command in this process. `fails` is the exit code that it is expected to end with."""

    def run(*words: object, fails: int = 0, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(pagemill, [str(word) for word in words], input=stdin)
        assert result.exit_code == fails, result.output
        return result

    return run


@pytest.fixture
def process() -> Process:
    """Give a command as a process of its own."""

    def process(
        *words: object, fails: int = 0, stdin: str | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        result = subprocess.run(
            [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60, check=False, **given, **more
        )
        assert result.returncode == fails, result.stdout + result.stderr
        return result

    return process


@dataclass
class Daemon:
    """Does to jobs what a daemon would."""

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
    """The file system of an image, as bare as can be."""
    place = tmp_path / "image"
    place.mkdir()
    return place


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run."""
    given: list[list[str]] = []

    def take(step: system_steps.RunCommand) -> None:
        given.append([*step.argv])

    monkeypatch.setattr(system_steps.RunCommand, "do", take)
    return given


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as anybody looks who does not start it: its name and number among what is installed."""
    metadata = tmp_path / "site" / "ray-2.60.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.60.0\n")
    monkeypatch.syspath_prepend(str(metadata.parent))


def items(result: Result) -> list[Any]:
    found: list[Any] = json.loads(result.stdout)["items"]
    return found


def states(run: Run) -> dict[int, str]:
    return {job["id"]: job["state"] for job in items(run("ls", "--json"))}
