"""The page and HTTP over a large database: how long each takes to answer, what open streams and an open page cost.

The server is `pagemill serve` as anybody starts it, asked by one client over loopback. Beside each answer stands the
same server's `/healthz`, which asks the database nothing: what is left is the page's own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import apsw
import httpx

from benchmarks import noop
from benchmarks.fixtures import Group, fill, fill_batches, fill_documents
from benchmarks.own import ROOT, Own
from benchmarks.running import cpu_seconds, stopped, wait_until, with_all_below
from benchmarks.table import Row, at_least, at_most
from worker_service.store.opening import initialise

_PAST_SECONDS = 10 * 86_400
"""The jobs came in since then."""

_OPEN_PAGE_SECONDS = 2.0
"""A page that is looked at asks so often at most."""


@dataclass(frozen=True, slots=True)
class Sizes:
    jobs: int = 1_000_000
    documents: int = 100_000
    batches: int = 1_000
    turns: int = 5
    requests: int = 100
    streams: int = 32
    stream_seconds: float = 20.0
    throughput_turns: int = 5
    throughput_jobs: int = 20_000


QUICK = Sizes(jobs=2_000, documents=100, batches=20, turns=1, requests=3, streams=2, stream_seconds=0.5,
              throughput_turns=1, throughput_jobs=100)  # fmt: skip

# What, and where it is asked for.
ANSWERS = {
    "home": ("home", "/"),
    "jobs_filtered": ("a list of jobs with a filter", "/jobs?status=failed&type=blocked"),
    "job": ("one job", "/jobs/{job}"),
    "documents": ("the documents", "/documents"),
    "search": ("a search over all pages", "/documents?q=quarterly+risk"),
    "api_jobs": ("`/api/jobs`", "/api/jobs?limit=50"),
    "metrics": ("`/metrics`", "/metrics"),
}


def measure(is_quick: bool) -> Iterator[Row]:
    sizes = QUICK if is_quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp") as directory:
        place = Path(directory)
        database = _large(place, sizes)
        with _serving(place, database) as server:
            yield from _answers(server, sizes, job=sizes.jobs // 2)
        with _serving(place, database) as server:
            yield _streams(server, sizes)
        yield _daemon_beside_a_page(place, sizes)


def _large(place: Path, sizes: Sizes) -> Path:
    database = place / "pagemill.db"
    initialise(database)
    some = sizes.jobs // 50
    ended = sizes.jobs - 4 * some
    since = time.time() - _PAST_SECONDS
    fill(
        database,
        Group(ended, "ready", "completed", types=5, owners=20, begin=since, every_seconds=_PAST_SECONDS / ended),
        Group(some, "blocked", "failed", types=2, owners=20, begin=since, every_seconds=_PAST_SECONDS / some),
        Group(some, "blocked", "cancelled", types=2, owners=20, begin=since, every_seconds=_PAST_SECONDS / some),
        Group(2 * some, "ready", types=5, owners=20, begin=since + _PAST_SECONDS - 3600),
    )
    fill_batches(database, sizes.batches)
    fill_documents(database, sizes.documents)
    connection = apsw.Connection(str(database))
    connection.execute("ANALYZE")
    connection.close()
    return database


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _answers(server: Server, sizes: Sizes, *, job: int) -> Iterator[Row]:
    for key, (what, path) in ANSWERS.items():
        address = path.format(job=job)
        _p95(server, address, 3)
        ours, beside = [], []
        for _ in range(sizes.turns):
            beside.append(_p95(server, "/healthz", sizes.requests))
            ours.append(_p95(server, address, sizes.requests))
        yield Row(f"{key}_p95", f"{what}, p95", "/healthz", "ms", ours, beside, at_most(50, "ms"))


def _p95(server: Server, address: str, requests: int) -> float:
    def took() -> float:
        begin = time.perf_counter()
        server.ask(address)
        return (time.perf_counter() - begin) * 1000

    figures = [took() for _ in range(requests)]
    return quantiles(figures, n=20)[-1] if len(figures) > 1 else figures[0]


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _streams(server: Server, sizes: Sizes) -> Row:
    """Of the server's process, while nothing happens."""
    pids = with_all_below(server.pid)
    with ExitStack() as open_streams:
        for _ in range(sizes.streams):
            open_streams.enter_context(server.stream())
        used = []
        for _ in range(sizes.turns):
            begin, before = time.monotonic(), cpu_seconds(pids)
            time.sleep(sizes.stream_seconds)
            used.append((cpu_seconds(pids) - before) / (time.monotonic() - begin) * 100)
    return Row("streams", f"{sizes.streams} open streams, idle", "", "% of one core", used, [], at_most(5, "%"))


# ── The daemon ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _daemon_beside_a_page(place: Path, sizes: Sizes) -> Row:
    """One page is open, whose parts are asked for as often as its script does, and its stream."""
    alone, beside = [], []
    for turn in range(sizes.throughput_turns):
        alone.append(_rate(place / f"alone-{turn}", sizes, is_looked_at=False))
        beside.append(_rate(place / f"beside-{turn}", sizes, is_looked_at=True))
    what = "no-op jobs, while somebody looks at the page"
    return Row("throughput", what, "nobody looks", "jobs/s", beside, alone, at_least(0.97))


def _rate(place: Path, sizes: Sizes, *, is_looked_at: bool) -> float:
    own = Own(place)
    own.enqueue(noop.REUSED, sizes.throughput_jobs)
    with ExitStack() as stack:
        if is_looked_at:
            stack.enter_context(_looked_at(stack.enter_context(_serving(place, own.database))))
        stack.enter_context(own.daemon(types=noop.REUSED))
        own.wait_until_all_ended()
    rate = own.rate()
    own.close()
    return rate


@contextmanager
def _looked_at(server: Server) -> Iterator[None]:
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_OPEN_PAGE_SECONDS):
            server.ask("/")

    with server.stream():
        eyes = threading.Thread(target=look)
        eyes.start()
        try:
            yield
        finally:
            is_over.set()
            eyes.join()


# ── The server ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    client: httpx.Client

    def ask(self, address: str) -> None:
        self.client.get(address).raise_for_status()

    @contextmanager
    def stream(self) -> Iterator[None]:
        with self.client.stream("GET", "/api/events", timeout=None) as stream:
            stream.raise_for_status()
            yield


@contextmanager
def _serving(place: Path, database: Path) -> Iterator[Server]:
    """`pagemill serve`, and a client of it."""
    socket = place / "web.sock"
    environment = {"WORKER_DATABASE": str(database), "HOME": str(place), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "worker_service.commands", "serve", "--listen", str(socket)]
    with (place / "web.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, "the server listens")
        transport = httpx.HTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield Server(process.pid, client)
    finally:
        stopped(process)
