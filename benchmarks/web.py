"""The page and HTTP over a large database: response times, cost of open streams and of an open page.

The server is a plain `pagemill serve`, asked by one client over a socket. Each answer stands beside `/healthz` of the
same server, which does not touch the database, and beside Flower in the same turns (see `peers`). The quick form
measures pagemill alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import apsw
import httpx
from starlette.routing import Route

from benchmarks import noop, peers
from benchmarks.fixtures import Group, fill, fill_batches, fill_documents
from benchmarks.own import ROOT, Own
from benchmarks.running import cpu_seconds, memory_megabytes, stopped, wait_until, with_all_below
from benchmarks.table import Goal, Row, at_least, at_most, below
from worker_service.store.opening import initialise
from worker_service.web.app import routes

_PAST_SECONDS = 10 * 86_400
"""Age of the oldest job."""

_OPEN_PAGE_SECONDS = 2.0
"""Shortest time between two updates of an open page."""


@dataclass(frozen=True, slots=True)
class Sizes:
    jobs: int = 1_000_000
    documents: int = 100_000
    batches: int = 1_000
    turns: int = 5
    requests: int = 100
    walk_requests: int = 10
    peer_jobs: int = 100_000
    peer_requests: int = 5
    streams: int = 32
    stream_seconds: float = 20.0
    throughput_turns: int = 5
    throughput_jobs: int = 20_000
    is_bare: bool = False
    """Whether to leave out the shipped handlers, whose import costs each daemon 0.3 s of CPU."""


QUICK = Sizes(jobs=2_000, documents=100, batches=20, turns=1, requests=3, walk_requests=1, streams=2,
              stream_seconds=0.5, throughput_turns=1, throughput_jobs=100, is_bare=True)  # fmt: skip

# What, and where it is asked for.
ANSWERS = {
    "home": ("home", "/"),
    "jobs_filtered": ("a list of jobs with a filter", "/jobs?status=failed&type=blocked1"),
    "job": ("one job", "/jobs/{job}"),
    "system": ("the state of the machine", "/system"),
    "documents": ("the documents", "/documents"),
    "search": ("a search over all pages", "/search?q=quarterly+risk"),
    "api_jobs": ("`/api/jobs`", "/api/jobs?limit=50"),
    "metrics": ("`/metrics`", "/metrics"),
}

_CHOSEN = (
    "status=pending", "status=failed", "status=completed", "status=failed&type=blocked1", "type=ready3",
    "type=nothing", "owner=7", "owner=7&status=failed", "owner=nobody", "error=CODE_1", "error=CODE_1&since=1d",
    "error=NOTHING", "since=1h", "since=1d&status=failed", "older_than=9d", "platform=instagram", "platform=nothing",
    "account=user123", "account=user123&platform=nothing", "batch=10", "match=payload.scrape_type%3Dpart",
)  # fmt: skip
_FOUND = ("q=quarterly+risk", "q=wind", "q=w*", "q=a*", "q=%22water+7%22", "q=nothing", "q=q*&owner=owner7")
_LISTED = (
    "", "owner=owner7", "status=failed", "name=report+77", "name=nothing", "tag=tag7", "tag=half",
    "tag=half&owner=owner7", "kind=pdf", "kind=image", "since=1d", "until=2000-01-01", "batch=10", "before=50",
)  # fmt: skip
_COUNTED = "terms=quarterly%0Awater%0Awind%0Arisk%0Aa*%0Amills%0At*"

# What people ask of a page or an endpoint beside it itself.
QUERIES: Mapping[str, Sequence[str]] = {
    "/documents": (*_LISTED, *(f"sort=name&view=table&{one}" for one in _LISTED), "sort=pages", "sort=state"),
    "/documents/change": ("verb=tag&scope=all", "verb=remove&id=5&id=6", "verb=again&id=5", "verb=download&id=5"),
    "/search": _FOUND,
    "/documents/{document_id:id}": ("", "q=water"),
    "/jobs": ("", *_CHOSEN, "before={job}"),
    "/jobs/change": (
        "verb=delete&scope=all", "verb=cancel&scope=all", "verb=priority&priority=1&scope=all&owner=7",
        *(f"verb=delete&scope=all&{one}" for one in _CHOSEN), "verb=retry&scope=all&status=failed",
    ),
    "/failures": ("", "error=HTTP_503"),
    "/queue": ("", "hours=168"),
    "/keywords": ("", "terms=water%0Awind", "terms=a*", _COUNTED, f"{_COUNTED}&owner=owner7"),
    "/api/jobs": ("", *_CHOSEN, "before={job}"),
    "/api/documents": _LISTED,
    "/api/search": _FOUND,
    "/api/keywords": ("term=water&owner=owner7",),
    "/api/failures": ("",),
}  # fmt: skip
UNMEASURED = {
    "/api/events": "goes on for ever: it has a row of its own",
    "/session": "lets one browser in",
    "/keywords.csv": "is as long as there are documents: it has rows of its own",
    "/keywords.xlsx": "is as long as there are documents",
    "/documents.csv": "is as long as the list",
    "/documents.xlsx": "is as long as the list",
    "/documents.zip": "is as long as the files",
    "/api/exports/{form}": "is as long as the files",
    "/api/documents/{id:id}/pages/{number:id}/image": "is drawn by a child, of a file that is not there",
    "/documents/{document_id:id}/pages/{number:id}/image": "is drawn by a child, of a file that is not there",
    "/api/documents/{id:id}/files/{form}": "is a file",
    "/documents/{document_id:id}/thumbnail": "is a file",
    "/documents/{document_id:id}/pages/{number:id}/tables/{table:id}.csv": "is of a table that is not there",
    "/documents/{document_id:id}/files/{file_id:id}": "is a file",
    "/api/jobs/{id:id}/files/{number:id}": "is a file",
}

_FLOWERS_COLUMNS = "&".join(
    f"columns[{at}][data]={name}" for at, name in enumerate(("name", "uuid", "state", "received", "runtime", "worker"))
)
_FLOWERS_LIST = f"/tasks/datatable?draw=1&start=0&length=50&order[0][column]=3&order[0][dir]=desc&{_FLOWERS_COLUMNS}"

# What, where we are asked for it, and where Flower is.
BESIDE_FLOWER = {
    "list": ("the list of the newest 50 jobs", ("/jobs",), ("/tasks", _FLOWERS_LIST)),
    "failed": (
        "the list of 50 failed jobs",
        ("/jobs?status=failed",),
        (f"{_FLOWERS_LIST}&search[value]=state:FAILURE",),
    ),
    "one": ("one of them", ("/jobs/{job}",), ("/task/{task}",)),
    "metrics": ("`/metrics`", ("/metrics",), ("/metrics",)),
    "api": ("50 by the API", ("/api/jobs?limit=50",), ("/api/tasks?limit=50",)),
}


def measure(is_quick: bool) -> Iterator[Row]:
    sizes = QUICK if is_quick else Sizes()
    if not is_quick and (sentence := peers.missing()) is not None:
        raise SystemExit(f"benchmarks: {sentence}")
    with tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp") as directory:
        place = Path(directory)
        database = _large(place, sizes)
        with _serving(place, database) as server:
            yield from _answers(server, sizes, job=sizes.jobs // 2)
            asked = list(addresses(sizes))
            programs = [one for one in asked if one.startswith(("/api/", "/metrics", "/healthz", "/readyz"))]
            yield _dearest("dearest_page", "pages", server, sizes, [one for one in asked if one not in programs])
            yield _dearest("dearest_endpoint", "API requests", server, sizes, programs)
        yield _counted_anew(place, database, sizes)
        with _serving(place, database) as server:
            yield from _keywords_of_all(server, sizes)
        with ExitStack() as stack:
            flower = None if is_quick else stack.enter_context(_flower(place, sizes))
            yield from _beside_flower(stack.enter_context(_serving(place, database)), flower, sizes)
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
    figures = [_milliseconds(partial(server.ask, address)) for _ in range(requests)]
    return quantiles(figures, n=20, method="inclusive")[-1] if len(figures) > 1 else figures[0]


def _milliseconds(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return (time.perf_counter() - begin) * 1000


def _dearest(key: str, what: str, server: Server, sizes: Sizes, asked: Sequence[str]) -> Row:
    """Find the most expensive address by CPU time; with so many, some response time is always disturbed."""
    for address in asked:
        server.ask(address)
    turns = [[_cost(server, address, sizes.walk_requests) for address in asked] for _ in range(sizes.turns)]
    by_address = dict(zip(asked, zip(*turns, strict=True), strict=True))
    dearest = max(asked, key=lambda address: median(by_address[address]))
    said = f"the most expensive of {len(asked)} {what}: `{dearest}`"
    return Row(key, said, "", "CPU ms", by_address[dearest], [], at_most(50, "CPU ms"))


def _cost(server: Server, address: str, requests: int = 1) -> float:
    """Return the milliseconds of CPU for one answer."""
    before = cpu_seconds([server.pid])
    for _ in range(requests):
        server.ask(address)
    return (cpu_seconds([server.pid]) - before) * 1000 / requests


def addresses(sizes: Sizes) -> Iterator[str]:
    """Yield every GET address, so that a new route is measured too."""
    job = sizes.jobs // 2
    for route in routes():
        if not isinstance(route, Route) or "GET" not in (route.methods or ()) or route.path in UNMEASURED:
            continue
        one = job if route.path.startswith("/api/jobs/") else 5
        values = {"job_id": job, "id": one, "document_id": 5, "batch_id": 10, "number": 1, "verb": "cancel"}
        path = route.path.replace(":id}", "}").format(**values)
        for query in QUERIES.get(route.path, ("",)):
            yield f"{path}?{query.format(job=job)}" if query else path


def _counted_anew(place: Path, database: Path, sizes: Sizes) -> Row:
    """Measure the first answer of a server, which keeps it for ten times as long as it took."""
    took = []
    for _ in range(sizes.turns):
        with _serving(place, database) as server:
            server.ask("/api/pauses")
            took.append(_cost(server, "/api/stats"))
    return Row("stats_anew", "`/api/stats`, all jobs counted anew", "", "CPU ms", took, [], at_most(50, "CPU ms"))


def _keywords_of_all(server: Server, sizes: Sizes) -> Iterator[Row]:
    """Count keywords in all documents, for a client that reads as fast as it can."""
    server.ask("/keywords?terms=water")
    begun, took, grown, before = [], [], [], memory_megabytes([server.pid])
    for _ in range(sizes.turns):
        begin, first = time.perf_counter(), 0.0
        with server.client.stream("GET", "/keywords.csv?terms=water%0Aw*") as answer:
            for _ in answer.iter_bytes():
                first = first or time.perf_counter() - begin
        took.append(time.perf_counter() - begin)
        begun.append(first * 1000)
        grown.append(memory_megabytes([server.pid]) - before)
    what = f"two keywords counted in {sizes.documents:,} documents, to CSV"
    yield Row("keywords_begin", f"{what}: until it starts", "", "ms", begun, [], Goal())
    yield Row("keywords_all", f"{what}: until it is complete", "", "s", took, [], Goal())
    yield Row("keywords_memory", f"{what}: memory growth of the server", "", "MB", grown, [], at_most(50, "MB"))


# ── Flower ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _beside_flower(server: Server, flower: Server | None, sizes: Sizes) -> Iterator[Row]:
    """Compare pagemill over all jobs with Flower over as many tasks as it keeps by default."""
    name = f"Flower over {sizes.peer_jobs:,}"
    job, peer_job = sizes.jobs // 2, sizes.peer_jobs // 2
    for key, (what, ours, theirs) in BESIDE_FLOWER.items():
        own, peer = [], []
        for _ in range(sizes.turns):
            if flower is not None:
                paths = [path.replace("{task}", f"{peer_job:08d}-0000-4000-8000-000000000000") for path in theirs]
                peer.append(_median_of(flower, paths, sizes.peer_requests))
            own.append(_median_of(server, [path.format(job=job) for path in ours], sizes.requests))
        yield Row(f"flower_{key}", f"{what}, over {sizes.jobs:,}", name, "ms", own, peer, below(1))
    memory = [memory_megabytes([server.pid])]
    of_peer = [] if flower is None else [memory_megabytes([flower.pid])]
    yield Row(
        "flower_memory", "memory (PSS) of the web server after these requests", name, "MB", memory, of_peer, below(1)
    )


def _median_of(server: Server, paths: Sequence[str], requests: int) -> float:
    """Return the median time of requesting all paths one after the other, as a browser does."""

    def ask() -> None:
        for path in paths:
            server.ask(path)

    ask()
    return median(_milliseconds(ask) for _ in range(requests))


@contextmanager
def _flower(place: Path, sizes: Sizes) -> Iterator[Server]:
    with peers.room(place / "peers"), peers.flower(sizes.peer_jobs) as (pid, socket), _client(socket) as client:
        yield Server(pid, client)


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _streams(server: Server, sizes: Sizes) -> Row:
    """Measure the CPU of the server with idle streams."""
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
    """Measure jobs per second while one page is open with its stream and updated as often as its script does."""
    alone, beside = [], []
    for turn in range(sizes.throughput_turns):
        alone.append(_rate(place / f"alone-{turn}", sizes, is_looked_at=False))
        beside.append(_rate(place / f"beside-{turn}", sizes, is_looked_at=True))
    what = "no-op jobs, while a browser shows the page"
    return Row("throughput", what, "no browser", "jobs/s", beside, alone, at_least(0.97))


def _rate(place: Path, sizes: Sizes, *, is_looked_at: bool) -> float:
    own = Own(place, is_bare=sizes.is_bare)
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
    """Run `pagemill serve` and yield a client."""
    socket = place / "web.sock"
    environment = {"WORKER_DATABASE": str(database), "HOME": str(place), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "worker_service.cli", "serve", "--listen", str(socket)]
    with (place / "web.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, "the server listens")
        with _client(socket) as client:
            yield Server(process.pid, client)
    finally:
        stopped(process)


def _client(socket: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None))
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=60)
