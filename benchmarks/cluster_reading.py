"""Nodes that really read: scanned pages, by nodes of half a core and of a quarter of one.

A part of a core is a quota of the kernel's (cgroups), so this is measured as root alone. The head has what the nodes
leave of the machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pymupdf as partly_typed

from benchmarks.own import ROOT, Own
from benchmarks.peers.reading import LANGUAGES, QUALITY
from benchmarks.running import Failed, cpu_seconds, cpu_seconds_of_ended, wait_until, with_all_below
from benchmarks.table import Row, at_least
from worker_service.clock import from_text
from worker_service.jobs.model import NewJob
from worker_service.store.library import page_from

pymupdf: Any = partly_typed

_SCAN = ROOT / "benchmarks" / "scans" / "lucasta-gray.jpg"
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD = 100_000


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that have so much of a core."""

    name: str
    key: str
    of_a_core: float
    nodes: Sequence[int]
    documents: int
    """Of each node."""
    pages: int = 4


FULL = (Part("half a core", "", 0.5, (1, 2), 4), Part("a quarter of a core", "quarter_", 0.25, (1, 2, 4), 3))
QUICK = (Part("half a core", "", 0.5, (1, 2), 1, 2),)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read, and what it took."""

    pages: Sequence[tuple[str, str]]
    """Text, and words with their boxes; in the order of files and pages."""
    seconds: float
    cpu_seconds: float

    @property
    def pages_a_minute(self) -> float:
        return 60 * len(self.pages) / self.seconds

    @property
    def cpu_milliseconds_a_page(self) -> float:
        return 1000 * self.cpu_seconds / len(self.pages)


def measure(place: Path, parts: Sequence[Part]) -> Iterator[Row]:
    place.mkdir()
    if os.geteuid() != 0:
        return
    for part in parts:
        alone, *several = [_pages_a_minute(place / f"{part.key}{nodes}", part, nodes) for nodes in part.nodes]
        for nodes, figure in zip(part.nodes[1:], several, strict=True):
            what, beside = f"scanned pages, {nodes} nodes of {part.name}", f"{nodes} × one node"
            key = f"reading_{part.key}{nodes}"
            yield Row(key, what, beside, "pages/min", [figure], [nodes * alone], at_least(0.95))


def _pages_a_minute(place: Path, part: Part, nodes: int) -> float:
    papers = [paper(place / f"{place.name}-{number}.pdf", part.pages) for number in range(nodes * part.documents)]
    return by_nodes(place, papers, nodes, of_a_core=part.of_a_core).pages_a_minute


def by_nodes(place: Path, papers: Sequence[Path], nodes: int, *, of_a_core: float | None = None) -> Reading:
    """From the claim of the first range to the end of the last. Before, documents are cut into ranges; and nothing is
    assembled."""
    own, settings = Own(place), place / "cluster.toml"
    names = [f"n{number + 1}" for number in range(nodes)]
    with _quotas([f"{place.name}-{name}" for name in names], of_a_core) as quotas:
        program = f"exec {sys.executable} -P -m worker_service.nodes.pipes"
        places = [
            f"{name}=sh -c '{join}{program} {place}/{name} 1'*1" for name, join in zip(names, quotas, strict=True)
        ]
        engine = json.dumps(f"pipe:{','.join(places)},local*0")
        settings.write_text(f'concurrency = 1\n[cluster]\nengine = {engine}\ntypes = ["ocr_pages"]\n')
        how = {"languages": LANGUAGES, "quality": QUALITY}
        wished = [NewJob("download", payload=json.dumps({"source": str(one), "read": how})) for one in papers]
        try:
            with own.daemon(config=settings) as daemon:
                wait_until(lambda: own.number(_UP) == nodes, f"{nodes} nodes are up")
                for job_type in ("ocr_pages", "assemble"):
                    own.pause(job_type)
                own.enqueue_all(wished)
                wait_until(lambda: own.number(_CUT) == len(papers), "all documents are cut into ranges")
                before = used_by(daemon.pid)
                own.resume("ocr_pages")
                wait_until(lambda: not own.number(_ARE_LEFT), "all pages are read", pause_seconds=0.02)
                used = used_by(daemon.pid) - before
                [(begun, ended)] = own.ask(_TIMES)
                pages = [(page.text or "", page.layout or "") for page in map(page_from, own.ask(_PAGES))]
                daemon.stop_now()
        finally:
            own.close()
    return Reading(_all_of(papers, pages), (from_text(ended) - from_text(begun)).total_seconds(), used)


def _all_of(papers: Sequence[Path], pages: list[tuple[str, str]]) -> list[tuple[str, str]]:
    wanted = sum(map(_pages_in, papers))
    if len(pages) != wanted:
        raise Failed(f"{len(pages)} pages of {wanted}")
    return pages


def _pages_in(path: Path) -> int:
    with pymupdf.open(path) as document:
        return int(document.page_count)


def used_by(pid: int) -> float:
    """Seconds of the processor, of it and all below it, those that have ended included."""
    pids = with_all_below(pid)
    return cpu_seconds(pids) + cpu_seconds_of_ended(pids)


_UP = "SELECT count(*) FROM node WHERE state = 'up'"
_CUT = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ingest' AND status = 'completed'"
_ARE_LEFT = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ocr_pages' AND status <> 'completed'"
_TIMES = "SELECT min(started_at), max(completed_at) FROM worker_job_queue WHERE job_type = 'ocr_pages'"
_PAGES = """
SELECT p.number, r.digest, r.text, r.method, r.confidence, r.layout
  FROM page p JOIN document d ON d.id = p.document_id JOIN page_result r ON r.id = p.result_id
 ORDER BY d.source_key, p.number
"""


def paper(path: Path, pages: int) -> Path:
    """The same scan on each page, with another number: else a page would be known from the one before it."""
    path.parent.mkdir(exist_ok=True)
    with pymupdf.open() as document, pymupdf.open() as pictures:
        for number in range(pages):
            page = document.new_page()
            page.insert_image(page.rect, filename=str(_SCAN))
            page.insert_text((40, 30), f"{path.stem} {number}")
            picture = page.get_pixmap(dpi=200, colorspace=pymupdf.csGRAY).tobytes("jpeg")
            seen = pictures.new_page()
            seen.insert_image(seen.rect, stream=picture)
        pictures.save(path)
    os.utime(path, (time.time() - 60,) * 2)
    return path


@contextmanager
def _quotas(names: Sequence[str], of_a_core: float | None) -> Iterator[list[str]]:
    """For each name what a shell says to be in a group of processes that gets so much. None: it says nothing."""
    if of_a_core is None:
        yield [""] * len(names)
        return
    first = _CGROUPS / "cpu" / "cpu.cfs_quota_us"
    quota = round(_PERIOD * of_a_core)
    made: list[Path] = []
    try:
        for name in names:
            group = (first.parent if first.exists() else _CGROUPS) / f"pagemill-bench-{name}"
            group.mkdir()
            made.append(group)
            # Not less either, whatever else wants the machine.
            if first.exists():
                (group / "cpu.cfs_quota_us").write_text(str(quota))
                (group / "cpu.shares").write_text("262144")
            else:
                (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
                (group / "cpu.weight").write_text("10000")
        yield [f"echo $$ >{group}/cgroup.procs; " for group in made]
    finally:
        for group in made:
            wait_until(partial(_is_removed, group), "a group is empty")


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()
