"""Nodes that really read: scanned pages, by nodes of half a core each.

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
from functools import partial
from pathlib import Path
from typing import Any

import pymupdf as partly_typed

from benchmarks.own import ROOT, Own
from benchmarks.running import Failed, wait_until
from benchmarks.table import Row, at_least
from worker_service.clock import from_text
from worker_service.jobs.model import NewJob

pymupdf: Any = partly_typed

_SCAN = ROOT / "benchmarks" / "scans" / "lucasta-gray.jpg"
_PAGES = 4
"""Of each document."""
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD = 100_000
_HALF = 2


def measure(place: Path, *, halves: Sequence[int] = (1, 2, 3), documents: int = 4) -> Iterator[Row]:
    place.mkdir()
    if os.geteuid() != 0:
        return
    alone, *several = [_pages_a_minute(place / f"halves-{n}", n, n * documents) for n in halves]
    for nodes, figure in zip(halves[1:], several, strict=True):
        what = f"scanned pages, {nodes} nodes of half a core"
        yield Row(
            f"reading_{nodes}", what, f"{nodes} × one node", "pages/min", [figure], [nodes * alone], at_least(0.95)
        )


def _pages_a_minute(place: Path, nodes: int, documents: int) -> float:
    """From the claim of the first range to the end of the last."""
    own, settings = Own(place), place / "cluster.toml"
    papers = [_paper(place / f"{place.name}-{number}.pdf") for number in range(documents)]
    names = [f"n{number + 1}" for number in range(nodes)]
    with _quotas([f"{place.name}-{name}" for name in names]) as quotas:
        program = f"exec {sys.executable} -P -m worker_service.nodes.pipes"
        places = [f"{name}=sh -c '{quotas[f'{place.name}-{name}']}{program} {place}/{name} 1'*1" for name in names]
        engine = json.dumps(f"pipe:{','.join(places)},local*0")
        settings.write_text(f'concurrency = 1\n[cluster]\nengine = {engine}\ntypes = ["ocr_pages"]\n')
        try:
            with own.daemon(config=settings):
                wait_until(lambda: own.number(_UP) == nodes, f"{nodes} nodes are up")
                own.pause("ocr_pages")
                own.enqueue_all([NewJob("download", payload=json.dumps({"source": str(paper)})) for paper in papers])
                wait_until(lambda: own.number(_CUT) == documents, "all documents are cut into ranges")
                own.resume("ocr_pages")
                own.wait_until_all_ended()
                [(begun, ended)] = own.ask(_TIMES)
                read = own.number(_READ)
        finally:
            own.close()
    if read != documents * _PAGES:
        raise Failed(f"{read} pages of {documents * _PAGES}")
    return 60 * read / (from_text(ended) - from_text(begun)).total_seconds()


_UP = "SELECT count(*) FROM node WHERE state = 'up'"
_READ = "SELECT count(*) FROM page"
_CUT = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ingest' AND status = 'completed'"
_TIMES = "SELECT min(started_at), max(completed_at) FROM worker_job_queue WHERE job_type = 'ocr_pages'"


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
