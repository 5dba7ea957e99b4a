"""Other queues, run as they are meant to be: a real worker with two children, on loopback, in its own directory.

Each peer runs with its default settings; a comment names exceptions. Their jobs are in the modules of this package,
which their workers import.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.running import Failed, stopped, wait_until

ROOT = Path(__file__).resolve().parents[2]
WORKERS = "2"
PLACE = "PAGEMILL_BENCH_PEERS"
"""Environment variable that tells the workers where their files are."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    jobs: str
    """Module with its queue and jobs: `enqueue(count)`, `enqueue_timed()`, `pending()`."""
    worker: tuple[str, ...]
    """Command of its worker, without the directory."""


SQLITE_HUEY = Peer(
    "SqliteHuey, fsync",
    "benchmarks.peers.huey_sqlite",
    ("huey_consumer", "benchmarks.peers.huey_sqlite.huey", "-k", "process", "-w", WORKERS),
)
REDIS_HUEY = Peer(
    "Huey on Redis",
    "benchmarks.peers.huey_redis",
    ("huey_consumer", "benchmarks.peers.huey_redis.huey", "-k", "process", "-w", WORKERS),
)
RQ = Peer(
    "RQ, a fork per job",
    "benchmarks.peers.rq_jobs",
    ("rq", "worker-pool", "noop", "-n", WORKERS, "--url", "{redis}", "--logging-level", "WARNING"),
)
CELERY = Peer(
    "Celery prefork on Redis",
    "benchmarks.peers.celery_jobs",
    ("celery", "-A", "benchmarks.peers.celery_jobs", "worker", "--pool", "prefork", "-c", WORKERS, "-l", "WARNING"),
)
EVERY = (SQLITE_HUEY, REDIS_HUEY, RQ, CELERY)


def place() -> Path:
    return Path(os.environ[PLACE])


def redis_socket() -> Path:
    return place() / "redis.sock"


def report_now() -> None:
    """The first line of a timed job: report the monotonic clock, which all processes share."""
    with (place() / "moments").open("a") as file:
        file.write(f"{time.monotonic()}\n")


def missing() -> str | None:
    """Return what has to be installed before peers can be measured, in a sentence, or None."""
    absent = [name for name in ("huey", "rq", "celery", "flower", "redis") if importlib.util.find_spec(name) is None]
    if absent:
        return f"the peers {', '.join(absent)} are not installed: {sys.executable} -m pip install -e '.[bench]'"
    if shutil.which("redis-server") is None:
        return "redis-server is not installed: as root, apt-get install redis-server"
    return None


@contextmanager
def room(directory: Path) -> Iterator[int]:
    """Run a Redis for the peers that writes nothing to disk; yield its process id."""
    directory.mkdir()
    os.environ[PLACE] = str(directory)
    with (directory / "redis.log").open("wb") as log:
        redis = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(redis_socket()), "--dir", str(directory),
             "--save", "", "--appendonly", "no"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(redis_socket().exists, "Redis listens", seconds=20)
        yield redis.pid
    finally:
        stopped(redis)
        del os.environ[PLACE]


class Worker:
    """A running worker of a peer, and its queue."""

    def __init__(self, peer: Peer, process: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._jobs: Any = importlib.import_module(peer.jobs)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pending(self) -> int:
        return int(self._jobs.pending())

    def run_one(self) -> float:
        """Return the seconds from the acceptance of a job to its first line."""
        moments = place() / "moments"
        seen = moments.stat().st_size if moments.exists() else 0
        self._jobs.enqueue_timed()
        accepted = time.monotonic()
        # A line is written at once, as it is so short.
        wait_until(lambda: moments.exists() and moments.stat().st_size > seen, "a job of a peer runs", seconds=60)
        return float(moments.read_text().split()[-1]) - accepted


@contextmanager
def working(peer: Peer, *, jobs_first: int = 0) -> Iterator[Worker]:
    """Run its worker, which finds `jobs_first` jobs when it starts."""
    if jobs_first:
        importlib.import_module(peer.jobs).enqueue(jobs_first)
    script, *words = (word.format(redis=f"unix://{redis_socket()}") for word in peer.worker)
    command = [str(Path(sys.executable).with_name(script)), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    log_file = place() / f"{script}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=place(), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield Worker(peer, process)
        if process.poll() is not None:
            raise Failed(f"{peer.name} ended by itself: {log_file.read_text()[-1000:]}")
    finally:
        stopped(process)


@contextmanager
def flower(jobs: int) -> Iterator[tuple[int, Path]]:
    """Run Flower over ended tasks, without a worker; yield its process id and socket."""
    kept, socket = place() / "flower.db", place() / "flower.sock"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLOWER_UNAUTHENTICATED_API": "true"}
    write = [sys.executable, "-m", "benchmarks.peers.flower_jobs", str(jobs), str(kept)]
    subprocess.run(write, check=True, env=environment)
    command = [
        str(Path(sys.executable).with_name("celery")), "-A", "benchmarks.peers.celery_jobs", "flower",
        f"--unix-socket={socket}", "--persistent=True", f"--db={kept}", f"--max-tasks={jobs}",
    ]  # fmt: skip
    with (place() / "flower.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place(), env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, "Flower listens")
        yield process.pid, socket
    finally:
        # It would write all of it once more.
        process.kill()
        process.communicate()


def rate(peer: Peer, count: int) -> float:
    """Return jobs per second, from the first that left the queue to the last."""
    with working(peer, jobs_first=count) as worker:
        return _drained(worker.pending, count)


def _drained(pending: Callable[[], int], count: int) -> float:
    wait_until(lambda: pending() < count, "a peer begins", seconds=60, pause_seconds=0.002)
    begin, first = time.monotonic(), pending()
    wait_until(lambda: pending() == 0, "a peer has run all its jobs", pause_seconds=0.01)
    return first / (time.monotonic() - begin)
