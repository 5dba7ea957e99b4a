"""Costs and benefits of a Ray cluster: a real head, a real Ray and real nodes, all on this machine.

For figures about the head, the handlers on the nodes sleep instead of reading, so that they use almost no CPU time.
Needs root, because each node has namespaces of its own.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
from PIL import Image

from benchmarks import sleepers
from benchmarks.own import ROOT, Daemon, Own
from benchmarks.running import Failed, cpu_seconds, cpu_seconds_of_ended, memory_megabytes, wait_until, with_all_below
from benchmarks.table import Goal, Row, at_least, at_most, at_most_above
from tests.cluster.ray_lab import HEAD, NetworkLab, RayLab, command_of, reason_against
from worker_service.base.clock import from_text
from worker_service.jobs.job import NewJob

pymupdf: Any = partly_typed

_PIXELS = 390
"""Side of a square of noise: 150 KB per page, like a good scan."""
_SCAN = ROOT / "benchmarks" / "scans" / "lucasta-gray.jpg"


@dataclass(frozen=True, slots=True)
class Sizes:
    repeats: int
    ranges: int
    """Number of empty ranges, one after another."""
    scans: int
    """Number of real pages in one document."""
    pages: int
    """Number of noise pages in one document."""
    page_seconds: float
    slots: int
    """Slots of each of two nodes with sleeping readers."""


FULL = Sizes(3, 40, 48, 960, 0.1, 8)
QUICK = Sizes(1, 3, 4, 48, 0.02, 2)


def measure(is_quick: bool, parts: Sequence[str] = ()) -> Iterator[Row]:
    if (reason := reason_against()) is not None:
        raise SystemExit(f"benchmarks: no Ray cluster here: {reason}")
    place = Path(tempfile.mkdtemp(prefix="pagemill-cluster-", dir=os.environ.get("TMPDIR")))
    bench = _Bench(place, QUICK if is_quick else FULL)
    try:
        for part in parts or PARTS:
            yield from PARTS[part](bench)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Bench:
    def __init__(self, place: Path, sizes: Sizes) -> None:
        self._place, self._sizes = place, sizes
        self._count = 0

    # ── Parts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def overhead(self) -> Iterator[Row]:
        """Run one empty range at a time, on a node and in a local child, in turns."""
        with self._cluster(RayLab, 1, 1, 0.0) as (own, _, _lab):
            ours, beside = [], []
            for _ in range(self._sizes.ranges):
                ours.append(_milliseconds(own, sleepers.FAR))
                beside.append(_milliseconds(own, sleepers.NEAR))
        what = f"a range of {sleepers.PAGES_A_RANGE} pages whose reader does nothing, on a node"
        yield Row("overhead", what, "in a local child", "ms", ours, beside, at_most_above(20, "ms"))

    def reading(self) -> Iterator[Row]:
        """Read real pages on two nodes with one slot each, and in two local slots."""
        ours, beside = [], []
        for _ in range(self._sizes.repeats):
            with self._cluster(RayLab, 2, 1, None) as (own, _, _lab):
                ours.append(self._pages_a_minute(own))
            with self._cluster(RayLab, 0, 1, None) as (own, _, _lab):
                beside.append(self._pages_a_minute(own))
        yield Row("reading", "scanned pages, two nodes of one slot", "two local slots", "pages/min", ours, beside,
                  at_least(0.97))  # fmt: skip

    def head(self) -> Iterator[Row]:
        sizes = self._sizes
        about = f"two nodes of {sizes.slots} slots with sleeping readers"
        with self._cluster(NetworkLab, 2, sizes.slots, sizes.page_seconds) as (own, daemon, lab):
            assert isinstance(lab, NetworkLab)
            # The first pages start Ray's processes.
            self._read(own, _paper(own.database.with_name("first.pdf"), 24 * sizes.slots))
            paper = _paper(own.database.with_name("paper.pdf"), sizes.pages)
            sent, cpu = _bytes_to_nodes(lab), _cpu_seconds_of_head(daemon, lab)
            seconds = self._read(own, paper)
            cpu, sent = _cpu_seconds_of_head(daemon, lab) - cpu, _bytes_to_nodes(lab) - sent
            memory = [memory_megabytes(_node_processes(lab, name)) / sizes.slots for name in ("n1", "n2")]
        could = 2 * sizes.slots / sizes.page_seconds if sizes.page_seconds else 0.0
        yield Row("many", f"pages with {about}", "the limit of these sleepers", "pages/s",
                  [sizes.pages / seconds], [could], Goal())  # fmt: skip
        yield Row("cpu", f"CPU of the head with Ray's, {about}", "", "ms/page", [1000 * cpu / sizes.pages], [],
                  at_most(3, "ms"))  # fmt: skip
        ratio = sent / paper.stat().st_size
        yield Row("sent", f"bytes to the nodes, {about}", "", "× the document", [ratio], [], at_most(1.25, "×"))
        what = f"memory (PSS) of a slot without its children, a node of {sizes.slots} slots"
        yield Row("slot_pss", what, "", "MB", memory, [], at_most(60, "MB"))

    # ── A cluster and its daemon ────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _cluster(
        self, kind: type[RayLab], nodes: int, slots: int, page_seconds: float | None
    ) -> Iterator[tuple[Own, Daemon, RayLab]]:
        """Start a daemon with a cluster. Without nodes it has two local slots; without `page_seconds`, the shipped
        handlers.
        """
        self._count += 1
        place = self._place / f"head-{self._count}"
        own = Own(place)
        if page_seconds is not None:
            shutil.rmtree(place / "installed")
            sleepers.install(place / "installed", page_seconds)
        path = os.pathsep.join([str(place / "installed"), str(ROOT)])
        (place / "ray").mkdir()
        lab = kind(place / "ray", {**os.environ, "PYTHONPATH": path})
        own.before = [*lab.before, "env", *(f"{name}={value}" for name, value in lab.variables.items())]
        names = [f"n{number + 1}" for number in range(nodes)]
        settings = place / "cluster.toml"
        settings.write_text(f'concurrency = 2\n[cluster]\naddress = "{lab.setting}"\nlocal = 0\n' if nodes else "")
        try:
            if nodes:
                lab.start_head()
                lab.start_nodes(*names, slots=slots)
            with own.daemon(config=settings) as daemon:
                wait_until(lambda: own.number(_UP) == nodes, f"{nodes} nodes are up")
                yield own, daemon, lab
                daemon.stop_now()
        finally:
            lab.close()
            own.close()

    def _pages_a_minute(self, own: Own) -> float:
        # Each slot starts what it keeps.
        self._read(own, _scans(own.database.with_name("first.pdf"), 2))
        paper = _scans(own.database.with_name("paper.pdf"), self._sizes.scans)
        return 60 * self._sizes.scans / self._read(own, paper)

    def _read(self, own: Own, paper: Path) -> float:
        """Return the seconds from the claim of the first range to the end of the last."""
        before, pages = int(own.number(_LAST_JOB)), int(own.number(_PAGES))
        own.enqueue_all([NewJob("download", payload=json.dumps({"source": str(paper)}))])
        own.wait_until_all_ended()
        with pymupdf.open(paper) as document:
            missing = pages + document.page_count - int(own.number(_PAGES))
        if missing:
            raise Failed(f"{missing} pages were not read")
        begun, ended = own.ask(_TIMES, before)[0]
        return (from_text(ended) - from_text(begun)).total_seconds()


PARTS: Mapping[str, Callable[[_Bench], Iterator[Row]]] = {
    "overhead": _Bench.overhead,
    "reading": _Bench.reading,
    "head": _Bench.head,
}

_UP = "SELECT count(*) FROM node WHERE state = 'up'"
_PAGES = "SELECT count(*) FROM page"
_LAST_JOB = "SELECT ifnull(max(id), 0) FROM worker_job_queue"
_TIMES = "SELECT min(started_at), max(completed_at) FROM worker_job_queue WHERE job_type = 'ocr_pages' AND id > ?"


def _milliseconds(own: Own, job_type: str) -> float:
    """Return the time from the claim to the end of one job."""
    job_id, _, _ = own.insert(job_type)
    own.result(job_id)
    begun, ended = own.ask("SELECT started_at, completed_at FROM worker_job_queue WHERE id = ?", job_id)[0]
    return (from_text(ended) - from_text(begun)).total_seconds() * 1000


def _cpu_seconds_of_head(daemon: Daemon, lab: RayLab) -> float:
    """Return the CPU time of the daemon, the Ray driver with its slicer, and Ray's processes on the head."""
    [driver] = [pid for pid in with_all_below(daemon.pid) if "cluster.ray_driver" in command_of(pid)][:1]
    driver_pids = with_all_below(driver)
    return cpu_seconds([daemon.pid, *driver_pids, *lab.pids(HEAD)]) + cpu_seconds_of_ended(driver_pids)


def _bytes_to_nodes(lab: NetworkLab) -> int:
    return lab.bytes_to("n1") + lab.bytes_to("n2")


def _node_processes(lab: RayLab, name: str) -> list[int]:
    """Return the Ray worker processes of a node, its node server and its fork server."""
    found = [pid for words in ("ray::", "node_server", "runner.fork_server") for pid in lab.pids_with(name, words)]
    return [pid for pid in found if "Agent" not in command_of(pid)]


def _paper(path: Path, pages: int) -> Path:
    """Write a document with noise on each page, which cannot be compressed."""
    chance = random.Random(path.name)
    with pymupdf.open() as document:
        for _ in range(pages):
            picture = io.BytesIO()
            Image.frombytes("L", (_PIXELS, _PIXELS), chance.randbytes(_PIXELS**2)).save(picture, "PNG")
            page = document.new_page()
            page.insert_image(page.rect, stream=picture.getvalue())
        document.save(path)
    return _settled(path)


def _scans(path: Path, pages: int) -> Path:
    """Write the same scan on each page with another number, so that each page has another digest."""
    with pymupdf.open() as document, pymupdf.open() as pictures:
        for number in range(pages):
            page = document.new_page()
            page.insert_image(page.rect, filename=str(_SCAN))
            page.insert_text((40, 30), f"{path.parent.name} {path.stem} {number}")
            picture = page.get_pixmap(dpi=200, colorspace=pymupdf.csGRAY).tobytes("jpeg")
            seen = pictures.new_page()
            seen.insert_image(seen.rect, stream=picture)
        pictures.save(path)
    return _settled(path)


def _settled(path: Path) -> Path:
    """Set an old modification time, because `download` waits for files that have just changed."""
    os.utime(path, (time.time() - 60,) * 2)
    return path
