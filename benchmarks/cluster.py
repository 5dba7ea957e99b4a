"""What nodes cost and bring: a real head and real nodes on this machine, behind two pipes, with readers that sleep.

They sleep because two cores cannot show what four machines do: a node's slot is busy for as long as its pages say, and
takes next to none of the processor. So what is measured is all that is between: claims, the wire, files, results.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
from PIL import Image

from benchmarks import cluster_crowd, cluster_peers, cluster_reading, cluster_ways, sleepers
from benchmarks.own import ROOT, Daemon, Own
from benchmarks.running import (
    Failed,
    cpu_seconds,
    cpu_seconds_of_ended,
    gateway_of,
    memory_megabytes,
    wait_until,
    with_all_below,
    words_of,
)
from benchmarks.table import Goal, Row, at_least, at_most, at_most_above
from worker_service.clock import from_text
from worker_service.jobs.model import NewJob

pymupdf: Any = partly_typed

_PIXELS = 390
"""A square of noise: 150 KB a page, as a good scan takes."""
_CROWD_PIXELS = 40
"""Two KB a page: what files take is measured apart."""


@dataclass(frozen=True, slots=True)
class Load:
    nodes: int
    slots: int
    """Of each node."""
    ranges_a_slot: int
    page_seconds: float
    documents: int = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    repeats: int
    ranges: int
    one: Load
    several: Sequence[Load]
    many: Load
    many_repeats: int
    idle_seconds: float
    crowd: cluster_crowd.Sizes
    reading: Sequence[cluster_reading.Part]
    peers: cluster_peers.Sizes


FULL = Sizes(
    3, 40, Load(1, 1, 5, 0.1), [Load(2, 1, 5, 0.1), Load(4, 1, 5, 0.1)], Load(8, 12, 2, 1.0, 8), 1, 15.0,
    cluster_crowd.FULL, cluster_reading.FULL, cluster_peers.FULL,
)  # fmt: skip
# A head and a node take two seconds of the processor to begin: there are as few as can be.
QUICK = Sizes(
    1, 3, Load(1, 1, 1, 0.02), [two := Load(2, 1, 1, 0.02)], two, 1, 0.5,
    cluster_crowd.QUICK, cluster_reading.QUICK, cluster_peers.QUICK,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    pages_a_second: float
    head_milliseconds_a_page: float
    sent_a_byte: float
    """Of the documents."""
    back_a_page: float


def measure(is_quick: bool, parts: Sequence[str] = ()) -> Iterator[Row]:
    """All of it, or some of `PARTS`; the quick form leaves out what reads, and what not every machine has."""
    place = Path(tempfile.mkdtemp(prefix="pagemill-cluster-", dir=os.environ.get("TMPDIR")))
    bench = _Bench(place, QUICK if is_quick else FULL)
    try:
        for part in parts or (_QUICK_PARTS if is_quick else PARTS):
            yield from PARTS[part](bench)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Bench:
    def __init__(self, place: Path, sizes: Sizes) -> None:
        self._place = place
        self._sizes = sizes
        self._number = 0
        self._read: dict[Load, list[Reading]] = {}

    # ── Parts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def one_node(self) -> Iterator[Row]:
        with self._head(1, 1, 0.0, [sleepers.FAR, "ocr_pages"]) as (own, daemon, root):
            yield self._overhead(own, "overhead", "on a node", 20)
            yield from self._idle(daemon, root)

    def speed_up(self) -> Iterator[Row]:
        sizes = self._sizes
        alone = self._readings(sizes.one, sizes.repeats)
        for load in sizes.several:
            yield Row(
                f"speed_up_{load.nodes}",
                f"pages with {load.nodes} nodes of one slot",
                f"{load.nodes} × one node",
                "pages/s",
                [one.pages_a_second for one in self._readings(load, sizes.repeats)],
                [load.nodes * one.pages_a_second for one in alone],
                at_least(0.95),
            )

    def many(self) -> Iterator[Row]:
        load = self._sizes.many
        many = self._readings(load, self._sizes.many_repeats)
        about = f"{load.nodes} nodes of {load.slots} slots"
        yield Row(
            "many", f"pages with {about}", "as many as they could sleep through", "pages/s",
            [one.pages_a_second for one in many], [load.nodes * load.slots / load.page_seconds] * len(many), Goal(),
        )  # fmt: skip
        for key, what, unit, figures, goal in (
            ("cpu", "CPU of the head", "ms/page", [one.head_milliseconds_a_page for one in many], at_most(1.5, "ms")),
            ("sent", "bytes to the nodes", "× the document", [one.sent_a_byte for one in many], at_most(1.2, "×")),
            ("back", "bytes from the nodes", "KB/page", [one.back_a_page / 1000 for one in many], Goal()),
        ):
            yield Row(key, f"{what}, {about}", "", unit, figures, [], goal)

    def crowd(self) -> Iterator[Row]:
        papers = partial(_paper, pixels=_CROWD_PIXELS)
        return cluster_crowd.measure(self._place / "crowd", self._sizes.crowd, papers)

    def ways(self) -> Iterator[Row]:
        for name, way, is_here, most in (
            ("ssh", cluster_ways.by_ssh, cluster_ways.has_sshd(), 20),
            ("Ray", cluster_ways.by_ray, cluster_ways.has_ray(), 80),
        ):
            if is_here:
                place = self._new_place(0.0)
                with (
                    way(place / "way", f"{place / 'installed'}:{ROOT}") as engine,
                    self._over(place, engine, 1, [sleepers.FAR]) as (own, _),
                ):
                    yield self._overhead(own, f"overhead_{name.lower()}", f"on a node by {name}", most)

    def reading(self) -> Iterator[Row]:
        return cluster_reading.measure(self._place / "reading", self._sizes.reading)

    def peers(self) -> Iterator[Row]:
        return cluster_peers.measure(self._place / "peers", self._sizes.peers)

    # ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _overhead(self, own: Own, key: str, where: str, most: float) -> Row:
        """One range at a time, here and on a node, by turns."""
        ours, beside = [], []
        for _ in range(self._sizes.ranges):
            ours.append(_took(own, sleepers.FAR))
            beside.append(_took(own, sleepers.NEAR))
        what = f"a range of {sleepers.PAGES_A_RANGE} pages whose reader does nothing, {where}"
        return Row(key, what, "in a local child", "ms", ours, beside, at_most_above(most, "ms"))

    def _readings(self, load: Load, repeats: int) -> list[Reading]:
        if load not in self._read:
            self._read[load] = [self._reading(load) for _ in range(repeats)]
        return self._read[load]

    def _reading(self, load: Load) -> Reading:
        pages = load.nodes * load.slots * load.ranges_a_slot * sleepers.PAGES_A_RANGE // load.documents
        with self._head(load.nodes, load.slots, load.page_seconds, ["ocr_pages"]) as (own, daemon, _):
            papers = [_paper(own.database.with_name(f"paper-{number}.pdf"), pages) for number in range(load.documents)]
            size = sum(paper.stat().st_size for paper in papers)
            before = _sums(own)
            sources = [NewJob("download", payload=json.dumps({"source": str(paper)})) for paper in papers]
            own.enqueue_all(sources)
            wait_until(lambda: own.number(_IS_READING), "pages are read")
            cpu_begin, read_begin = _cpu_seconds_of_head(daemon), own.number(_PAGES)
            wait_until(lambda: not own.number(_IS_READING), "all pages are read", pause_seconds=0.2)
            cpu_end, read_end = _cpu_seconds_of_head(daemon), own.number(_PAGES)
            own.wait_until_all_ended()
            if load == self._sizes.many:
                wait_until(lambda: own.number(_IS_TOLD), "what went over the wire is told", pause_seconds=0.1)
            sent, received = _sums(own)
            if read_end != pages * load.documents:
                raise Failed(f"{read_end} pages of {pages * load.documents}")
            begun, ended = own.ask(_TIMES)[0]
            took = (from_text(ended) - from_text(begun)).total_seconds()
        cpu = (cpu_end - cpu_begin) * 1000 / max(read_end - read_begin, 1)
        return Reading(read_end / took, cpu, (sent - before[0]) / size, (received - before[1]) / read_end)

    def _idle(self, daemon: Daemon, root: Path) -> Iterator[Row]:
        gateway = gateway_of(daemon.pid)
        node = [pid for pid in _pids() if str(root).encode() in words_of(pid)]
        node = sorted({pid for one in node for pid in with_all_below(one)} - set(gateway) - {daemon.pid})
        seconds = self._sizes.idle_seconds
        time.sleep(min(seconds, 5.0))
        before = cpu_seconds(gateway), cpu_seconds(node)
        time.sleep(seconds)
        after = cpu_seconds(gateway), cpu_seconds(node)
        memory = memory_megabytes(gateway), memory_megabytes(node)
        for at, name in enumerate(("gateway", "node")):
            share, is_node = 100 * (after[at] - before[at]) / seconds, name == "node"
            of_cpu, of_memory = (at_most(0.5, "%"), at_most(80, "MB")) if is_node else (Goal(), Goal())
            yield Row(f"idle_cpu_{name}", f"CPU of an idle {name}", "", "% of one core", [share], [], of_cpu)
            yield Row(f"idle_pss_{name}", f"memory (PSS) of an idle {name}", "", "MB", [memory[at]], [], of_memory)

    # ── A head and its nodes ────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _head(self, nodes: int, slots: int, seconds: float, types: Sequence[str]) -> Iterator[tuple[Own, Daemon, Path]]:
        place = self._new_place(seconds)
        names = [f"n{number + 1}" for number in range(nodes)]
        program = f"{sys.executable} -P -m worker_service.nodes.pipes"
        places = [f"{name}={program} {place}/{name} {slots}*{slots}" for name in names]
        with self._over(place, f"pipe:{','.join(places)},local*0", nodes, types) as (own, daemon):
            yield own, daemon, place / names[0]

    def _new_place(self, seconds: float) -> Path:
        self._number += 1
        place = self._place / f"head-{self._number}"
        sleepers.install(place / "installed", seconds)
        return place

    @contextmanager
    def _over(self, place: Path, engine: str, nodes: int, types: Sequence[str]) -> Iterator[tuple[Own, Daemon]]:
        own, settings = Own(place), place / "cluster.toml"
        settings.write_text(f'concurrency = 2\n[cluster]\nengine = "{engine}"\ntypes = {json.dumps(list(types))}\n')
        try:
            with own.daemon(config=settings) as daemon:
                wait_until(lambda: own.number(_UP) == nodes, f"{nodes} nodes are up")
                yield own, daemon
        finally:
            own.close()


PARTS: Mapping[str, Callable[[_Bench], Iterator[Row]]] = {
    "one-node": _Bench.one_node,
    "speed-up": _Bench.speed_up,
    "many": _Bench.many,
    "crowd": _Bench.crowd,
    "ways": _Bench.ways,
    "reading": _Bench.reading,
    "peers": _Bench.peers,
}
_QUICK_PARTS = ("one-node", "speed-up", "many", "crowd")

_UP = "SELECT count(*) FROM node WHERE state = 'up'"
_PAGES = "SELECT count(*) FROM page"
_IS_READING = "SELECT count(*) FROM worker_job_queue WHERE job_type = 'ocr_pages' AND status IN ('pending', 'running')"
# A node is heard of as often as the daemon writes of it; what it had sent by then is in its row.
_IS_TOLD = "SELECT (SELECT min(heard_at) FROM node) > (SELECT max(completed_at) FROM worker_job_queue)"
_TIMES = "SELECT min(started_at), max(completed_at) FROM worker_job_queue WHERE job_type = 'ocr_pages'"


def _sums(own: Own) -> tuple[int, int]:
    sent, received = own.ask("SELECT sum(bytes_sent), sum(bytes_received) FROM node")[0]
    return int(sent), int(received)


def _took(own: Own, job_type: str) -> float:
    """Milliseconds, from the claim to the end."""
    job_id, _, _ = own.insert(job_type)
    own.result(job_id)
    begun, ended = own.ask("SELECT started_at, completed_at FROM worker_job_queue WHERE id = ?", job_id)[0]
    return (from_text(ended) - from_text(begun)).total_seconds() * 1000


def _cpu_seconds_of_head(daemon: Daemon) -> float:
    """The daemon, its gateway, and who cuts files for that; not the nodes, which hang below it here."""
    gateway = gateway_of(daemon.pid)
    return cpu_seconds([daemon.pid, *gateway]) + cpu_seconds_of_ended(gateway)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _paper(path: Path, pages: int, *, pixels: int = _PIXELS) -> Path:
    """Noise on each page, which nobody can compress."""
    chance = random.Random(path.name)
    with pymupdf.open() as document:
        for _ in range(pages):
            picture = io.BytesIO()
            Image.frombytes("L", (pixels, pixels), chance.randbytes(pixels**2)).save(picture, "PNG")
            page = document.new_page()
            page.insert_image(page.rect, stream=picture.getvalue())
        document.save(path)
    os.utime(path, (time.time() - 60,) * 2)
    return path
