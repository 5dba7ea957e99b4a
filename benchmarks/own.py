"""The daemon as the benchmarks run it: `pagemill run` on its own file, with only the no-op handlers.

Starts and stops daemons, gives them jobs, and reads from the database when things happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from benchmarks.running import Failed, stopped, wait_until
from tests.fake_distributions import keep_of_the_shipped
from worker_service.base.clock import from_text
from worker_service.jobs.job import NewJob
from worker_service.store.opening import initialise, open_store

ROOT = Path(__file__).resolve().parent.parent
SLOTS = 2
_AT_ONCE = 1_000


class Daemon:
    """One daemon and its log: a JSON line per event, in a file or a pipe."""

    def __init__(self, process: subprocess.Popen[str], log: Path, began: float) -> None:
        self._process = process
        self._log = log
        self.began = began
        """Start time, by the monotonic clock."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, event: str, number: int = 1) -> float:
        """Wait until the log file has `number` of these events; return the time."""
        wanted = f'"event": "{event}"'

        def is_said() -> bool:
            if self._process.poll() is not None:
                raise Failed(f"the daemon ended before it said {event}: {self._log.read_text()[-2000:]}")
            return self._log.read_text().count(wanted) >= number

        wait_until(is_said, event)
        return time.monotonic()

    def hear(self, event: str) -> float:
        """Wait for the next of these events in the pipe; return the time."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard = time.monotonic()
            if line.startswith("{") and json.loads(line)["event"] == event:
                return heard
        raise Failed(f"the daemon ended before it said {event}")

    def stop(self) -> None:
        stopped(self._process)

    def stop_now(self) -> None:
        """Send a second signal, so that it does not wait for its children."""
        self._process.terminate()
        self.wait_for("daemon.stopping")
        stopped(self._process)

    def stop_hard(self) -> None:
        self._process.kill()
        self._process.wait()


class Own:
    """A database, a workspace, and daemons that share them. With `is_bare` they find no shipped handlers."""

    def __init__(self, place: Path, *, is_bare: bool = False) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._place = place
        self.before: Sequence[str] = ()
        """Prefix of the command of each daemon."""
        self.database = place / "pagemill.db"
        initialise(self.database)
        self._store = open_store(self.database)
        _install(place / "installed")
        if is_bare:
            keep_of_the_shipped(place / "installed")

    def close(self) -> None:
        self._store.close()

    @contextmanager
    def daemon(self, *, is_heard: bool = False, types: str = "", config: Path | None = None) -> Iterator[Daemon]:
        """Start a daemon, and stop it at the end. `types` becomes WORKER_TYPES: it keeps only these handlers warm."""
        daemon = self.begin(is_heard=is_heard, types=types, config=config)
        try:
            daemon.hear("daemon.started") if is_heard else daemon.wait_for("daemon.started")
            yield daemon
        finally:
            daemon.stop()

    def begin(self, *, is_heard: bool = False, types: str = "", config: Path | None = None) -> Daemon:
        """Start a daemon without waiting for it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKER_", "NOTIFY_"))}
        own = {
            "PYTHONPATH": os.pathsep.join([str(self._place / "installed"), str(ROOT)]),
            "HOME": str(self._place),
            "XDG_CONFIG_HOME": str(self._place),
            "WORKER_DATABASE": str(self.database),
            "WORKER_CONCURRENCY": str(SLOTS),
            "WORKER_LOG_FORMAT": "json",
            **({"WORKER_TYPES": types} if types else {}),
            **({"WORKER_CONFIG": str(config)} if config else {}),
        }
        log = self._place / f"daemon-{time.monotonic_ns()}.log"
        with log.open("wb") as file:
            began = time.monotonic()
            process = subprocess.Popen(
                [*self.before, sys.executable, "-m", "worker_service"],
                cwd=self._place,
                env=kept | own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_heard else file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return Daemon(process, log, began)

    # ── Jobs ──

    def enqueue(self, job_type: str, count: int, *, owner: str = "") -> None:
        jobs = [NewJob(job_type, payload="{}", owner=owner)] * count
        for first in range(0, count, _AT_ONCE):
            self._store.intake.enqueue_many(jobs[first : first + _AT_ONCE])

    def enqueue_all(self, jobs: Sequence[NewJob]) -> None:
        self._store.intake.enqueue_many(jobs)

    def pause(self, job_type: str) -> None:
        self._store.job_control.pause("type", job_type)

    def resume(self, job_type: str) -> None:
        self._store.job_control.unpause("type", job_type)

    def number(self, statement: str) -> int:
        [(found,)] = self.ask(statement)
        return int(found)

    def insert(self, job_type: str, *, owner: str = "") -> tuple[int, int, float]:
        """Insert a job as any program would; return its id, the newest event before it, and the time of the commit."""
        connection = apsw.Connection(str(self.database))
        connection.set_busy_timeout(5_000)
        connection.execute("BEGIN IMMEDIATE")
        [(event,)] = connection.execute("SELECT ifnull(max(id), 0) FROM worker_job_event").fetchall()
        connection.execute(
            "INSERT INTO worker_job_queue (job_type, platform, payload, owner) VALUES (?, 'local', '{}', ?)",
            (job_type, owner),
        )
        job_id = int(connection.last_insert_rowid())
        connection.execute("COMMIT")
        committed = time.monotonic()
        connection.close()
        return job_id, int(str(event)), committed

    def wait_until_all_ended(self) -> None:
        left = "SELECT EXISTS (SELECT 1 FROM worker_job_queue WHERE status IN ('pending', 'running'))"
        wait_until(lambda: self.ask(left) == [(0,)], "all jobs ended", pause_seconds=0.2)
        [(lost,)] = self.ask("SELECT count(*) FROM worker_job_queue WHERE status <> 'completed'")
        if lost:
            raise Failed(f"{lost} jobs did not complete: {self.ask('SELECT error_message FROM v_jobs LIMIT 3')}")

    def rate(self) -> float:
        """Return jobs per second, from the first claim to the last completion."""
        [(count, first, last)] = self.ask(
            "SELECT count(*), min(started_at), max(completed_at) FROM worker_job_queue WHERE status = 'completed'"
        )
        return float(count) / (from_text(last) - from_text(first)).total_seconds()

    def result(self, job_id: int) -> dict[str, float]:
        def is_ended() -> bool:
            return self._store.job_queries.get(job_id).completed_at is not None

        wait_until(is_ended, f"job {job_id} ended")
        found: dict[str, float] = json.loads(self._store.job_queries.get(job_id).result or "{}")
        return found

    def claims_between(self, event: int, job_id: int) -> int:
        """Count the jobs claimed after that event and before this job."""
        start = "SELECT id FROM worker_job_event WHERE job_id = ? AND to_status = 'running'"
        wait_until(lambda: self.ask(start, job_id), f"job {job_id} started")
        [(own,)] = self.ask(start, job_id)
        between = "SELECT count(*) FROM worker_job_event WHERE to_status = 'running' AND id > ? AND id < ?"
        [(claims,)] = self.ask(between, event, own)
        return int(claims)

    def ask(self, statement: str, *values: int) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(str(self.database))
        connection.set_busy_timeout(5_000)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()


def _install(place: Path) -> None:
    """Install the handlers as an entry point of a distribution."""
    about = place / "pagemill_benchmarks-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pagemill-benchmarks\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[worker_service.handlers]\nbenchmarks = benchmarks.noop:handlers\n")
