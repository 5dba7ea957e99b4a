"""What a head takes of nodes that are many: 10 to 200 of them, simulated in one process (`crowd`) before a real daemon,
gateway and database. Documents are brought in and cut into ranges before; then ranges are read for a while, and what is
counted are the rows that are there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.own import Own
from benchmarks.running import cpu_seconds, cpu_seconds_of_ended, gateway_of, memory_megabytes, stopped, wait_until
from benchmarks.table import Goal, Row
from worker_service.jobs.model import NewJob

_DIAL = Path(__file__).with_name("dial.py")


@dataclass(frozen=True, slots=True)
class Sizes:
    nodes: Sequence[int]
    slots: int
    page_seconds: float
    documents: int
    pages: int
    """Of each."""
    settle_seconds: float
    """Until not all slots are at the same place of their ranges."""
    seconds: float


FULL = Sizes((10, 50, 100, 200), 8, 1.5, 500, 60, 12.0, 15.0)
QUICK = Sizes((2,), 2, 0.02, 2, 24, 0.0, 0.1)


@dataclass(frozen=True, slots=True)
class _Moment:
    pages: int
    jobs: int
    seconds: Mapping[str, float]
    """Of the processor, of daemon and gateway."""
    at: float = field(default_factory=time.monotonic)


def measure(place: Path, sizes: Sizes, paper: Callable[[Path, int], Path]) -> Iterator[Row]:
    own = Own(place)
    try:
        with _crowd(place, sizes.page_seconds) as crowd:
            # All that comes before reading is done first; nothing is assembled.
            for job_type in ("ocr_pages", "assemble"):
                own.pause(job_type)
            papers = [paper(place / f"paper-{number}.pdf", sizes.pages) for number in range(sizes.documents)]
            own.enqueue_all([NewJob("download", payload=json.dumps({"source": str(one)})) for one in papers])
            for nodes in sizes.nodes:
                yield from _rows(own, place, sizes, nodes, crowd)
    finally:
        own.close()


def _rows(own: Own, place: Path, sizes: Sizes, nodes: int, crowd: subprocess.Popen[str]) -> Iterator[Row]:
    with own.daemon(config=_settings(place, sizes, nodes)) as daemon:
        wait_until(lambda: own.number(_UP) == nodes, f"{nodes} nodes are up", pause_seconds=0.05)
        wait_until(lambda: not own.number(_IS_COMING), "all documents are cut into ranges", pause_seconds=0.05)
        own_pids = {"daemon": [daemon.pid], "gateway": gateway_of(daemon.pid)}
        own.resume("ocr_pages")
        wait_until(lambda: own.number(_RUNNING) >= 0.9 * nodes * sizes.slots, "slots are taken", pause_seconds=0.02)
        time.sleep(sizes.settle_seconds)
        begin = _now(own, own_pids)
        _waits(crowd)
        time.sleep(sizes.seconds)
        wait_until(lambda: own.number(_PAGES) > begin.pages, "pages are read")
        end = _now(own, own_pids)
        waited = sorted(_waits(crowd)) or [0.0]
        memory = {who: memory_megabytes(pids) for who, pids in own_pids.items()}
        own.pause("ocr_pages")
        daemon.stop_now()
    spent = {who: seconds - begin.seconds[who] for who, seconds in end.seconds.items()}
    took, pages = end.at - begin.at, end.pages - begin.pages
    about, key = f"{nodes} nodes of {sizes.slots} slots", key_of(sizes, nodes)
    yield Row(
        key, f"pages with {about}, simulated", "as many as they could sleep through", "pages/s",
        [pages / took], [nodes * sizes.slots / sizes.page_seconds], Goal(),
    )  # fmt: skip
    for which, what, unit, figure in (
        ("jobs", "ranges", "jobs/s", (end.jobs - begin.jobs) / took),
        ("wait50", "a slot waits for its next order, p50", "ms", 1000 * median(waited)),
        ("wait99", "a slot waits for its next order, p99", "ms", 1000 * waited[int(0.99 * (len(waited) - 1))]),
        *((who, f"CPU of the {who}", "ms/page", 1000 * used / pages) for who, used in spent.items()),
        *((f"{who}_pss", f"memory (PSS) of the {who}", "MB", taken) for who, taken in memory.items()),
    ):  # fmt: skip
        yield Row(f"{key}_{which}", f"{what}, {about}", "", unit, [figure], [], Goal())


def key_of(sizes: Sizes, nodes: int) -> str:
    """The quick form has the last of them only."""
    return "crowd" if nodes == sizes.nodes[-1] else f"crowd_{nodes}"


def _now(own: Own, own_pids: Mapping[str, list[int]]) -> _Moment:
    seconds = {who: cpu_seconds(pids) + cpu_seconds_of_ended(pids) for who, pids in own_pids.items()}
    return _Moment(own.number(_PAGES), own.number(_JOBS), seconds)


_IS_COMING = """
SELECT count(*) FROM worker_job_queue WHERE job_type IN ('download', 'ingest') AND status IN ('pending', 'running')
"""
_UP = "SELECT count(*) FROM node WHERE state = 'up'"
_PAGES = "SELECT count(*) FROM page_result"
_JOBS = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ocr_pages' AND status = 'completed'"
_RUNNING = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ocr_pages' AND status = 'running'"


@contextmanager
def _crowd(place: Path, page_seconds: float) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "benchmarks.crowd", str(_door(place)), str(page_seconds)]
    crowd = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(_door(place).exists, "the crowd is there", seconds=60)
        yield crowd
    finally:
        stopped(crowd)


def _waits(crowd: subprocess.Popen[str]) -> list[float]:
    """How long slots have waited since this was asked last."""
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    print(file=crowd.stdin, flush=True)
    waited: list[float] = json.loads(crowd.stdout.readline())
    return waited


def _door(place: Path) -> Path:
    return place / "door"


def _settings(place: Path, sizes: Sizes, nodes: int) -> Path:
    program = f"{sys.executable} -S -E {_DIAL} {_door(place)}"
    places = [f"n{number + 1}={program}*{sizes.slots}" for number in range(nodes)]
    settings = place / "cluster.toml"
    engine = json.dumps(f"pipe:{','.join(places)},local*0")
    settings.write_text(f'concurrency = 2\n[cluster]\nengine = {engine}\ntypes = ["ocr_pages"]\n')
    return settings
