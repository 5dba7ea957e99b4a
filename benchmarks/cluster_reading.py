"""Nodes that really read: scanned pages, by nodes of half a core each, and beside Celery, which reads the same pages.

Half a core is a quota of the kernel's (cgroups), so this is measured as root alone. The head has what the nodes leave
of the machine.
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

from benchmarks import peers
from benchmarks.own import ROOT, Own
from benchmarks.peers import CELERY_READING
from benchmarks.running import Failed, cpu_seconds, cpu_seconds_of_ended, wait_until, with_all_below
from benchmarks.table import Goal, Row, at_least
from worker_service.clock import from_text
from worker_service.jobs.model import NewJob

pymupdf: Any = partly_typed

_SCAN = ROOT / "benchmarks" / "scans" / "lucasta-gray.jpg"
_PAGES = 4
"""Of each document."""
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD = 100_000
_HALF = 2


@dataclass(frozen=True, slots=True)
class Reading:
    pages_a_minute: float
    cpu_seconds_a_page: float


def measure(place: Path, *, halves: Sequence[int] = (1, 2, 3), documents: int = 4, turns: int = 2) -> Iterator[Row]:
    place.mkdir()
    if os.geteuid() == 0:
        alone, *several = [_by_nodes(place / f"halves-{n}", n, n * documents, is_half=True) for n in halves]
        for nodes, one in zip(halves[1:], several, strict=True):
            yield Row(
                f"reading_{nodes}", f"scanned pages, {nodes} nodes of half a core", f"{nodes} × one node", "pages/min",
                [one.pages_a_minute], [nodes * alone.pages_a_minute], at_least(0.95),
            )  # fmt: skip
    if (sentence := peers.missing()) is not None:
        raise SystemExit(f"benchmarks: {sentence}")
    with peers.room(place / "celery"):
        pairs = [
            (_by_nodes(place / f"beside-{turn}", 2, 2 * documents), _by_celery(place / f"celery-{turn}", 2 * documents))
            for turn in range(turns)
        ]
    for key, what, unit, attribute in (
        ("beside_celery", "scanned pages, two nodes of one slot", "pages/min", "pages_a_minute"),
        ("beside_celery_cpu", "CPU of all that reads them, head and nodes", "s/page", "cpu_seconds_a_page"),
    ):
        ours, peer = ([getattr(one[at], attribute) for one in pairs] for at in (0, 1))
        yield Row(key, what, "Celery, two children", unit, ours, peer, Goal())


def _by_nodes(place: Path, nodes: int, documents: int, *, is_half: bool = False) -> Reading:
    """From the claim of the first range to the end of the last."""
    own, settings = Own(place), place / "cluster.toml"
    papers = [_paper(place / f"{place.name}-{number}.pdf") for number in range(documents)]
    names = [f"n{number + 1}" for number in range(nodes)]
    with _quotas([f"{place.name}-{name}" for name in names] if is_half else []) as quotas:
        program = f"exec {sys.executable} -P -m worker_service.nodes.pipes"
        places = [
            f"{name}=sh -c '{quotas.get(f'{place.name}-{name}', '')}{program} {place}/{name} 1'*1" for name in names
        ]
        engine = json.dumps(f"pipe:{','.join(places)},local*0")
        settings.write_text(f'concurrency = 1\n[cluster]\nengine = {engine}\ntypes = ["ocr_pages"]\n')
        try:
            with own.daemon(config=settings) as daemon:
                wait_until(lambda: own.number(_UP) == nodes, f"{nodes} nodes are up")
                own.pause("ocr_pages")
                own.enqueue_all([NewJob("download", payload=json.dumps({"source": str(paper)})) for paper in papers])
                wait_until(lambda: own.number(_CUT) == documents, "all documents are cut into ranges")
                before = _used(daemon.pid)
                own.resume("ocr_pages")
                own.wait_until_all_ended()
                used = _used(daemon.pid) - before
                [(begun, ended)] = own.ask(_TIMES)
                read = own.number(_READ)
        finally:
            own.close()
    return _reading(read, documents, (from_text(ended) - from_text(begun)).total_seconds(), used)


def _by_celery(place: Path, documents: int) -> Reading:
    place.mkdir()
    papers = [_paper(place / f"{place.name}-{number}.pdf") for number in range(documents)]
    with peers.working(CELERY_READING) as worker:
        from benchmarks.peers import celery_reading  # it asks for the room when it is imported

        # Its children live on, and have their engines from then on.
        celery_reading.read_all([(str(papers[0]), [1])] * 4)
        before, began = _used(worker.pid), time.monotonic()
        texts = celery_reading.read_all([(str(paper), list(range(1, _PAGES + 1))) for paper in papers])
        took, used = time.monotonic() - began, _used(worker.pid) - before
    return _reading(sum(map(len, texts)), documents, took, used)


def _reading(read: int, documents: int, seconds: float, cpu: float) -> Reading:
    if read != documents * _PAGES:
        raise Failed(f"{read} pages of {documents * _PAGES}")
    return Reading(60 * read / seconds, cpu / read)


_UP = "SELECT count(*) FROM node WHERE state = 'up'"
_READ = "SELECT count(*) FROM page"
_CUT = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ingest' AND status = 'completed'"
_TIMES = "SELECT min(started_at), max(completed_at) FROM worker_job_queue WHERE job_type = 'ocr_pages'"


def _used(pid: int) -> float:
    pids = with_all_below(pid)
    return cpu_seconds(pids) + cpu_seconds_of_ended(pids)


def _paper(path: Path) -> Path:
    """The same scan on each page, with another number: else a page would be known from the one before it."""
    with pymupdf.open() as document, pymupdf.open() as pictures:
        for number in range(_PAGES):
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
def _quotas(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """By name: what a shell says to be in a group of processes that gets half a core."""
    first = _CGROUPS / "cpu" / "cpu.cfs_quota_us"
    made, said = [], {}
    try:
        for name in names:
            group = (first.parent if first.exists() else _CGROUPS) / f"pagemill-bench-{name}"
            group.mkdir()
            made.append(group)
            # Not less either, whatever else wants the machine.
            if first.exists():
                (group / "cpu.cfs_quota_us").write_text(str(_PERIOD // _HALF))
                (group / "cpu.shares").write_text("262144")
            else:
                (group / "cpu.max").write_text(f"{_PERIOD // _HALF} {_PERIOD}")
                (group / "cpu.weight").write_text("10000")
            said[name] = f"echo $$ >{group}/cgroup.procs; "
        yield said
    finally:
        for group in made:
            wait_until(partial(_is_removed, group), "a group is empty")


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()
