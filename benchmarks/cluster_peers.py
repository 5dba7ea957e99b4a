"""The same scanned pages read by nodes, by Celery and by Ray Data, in turns, by two workers each.

All three read with our reader (`peers.reading`), in the same language and quality, and hand over text and words of each
page: what comes of it has to be the same to the letter. Peers have begun, and read a page in each of their processes,
before the time begins; ours begins an engine for each range, as it always does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import peers
from benchmarks.cluster_reading import Reading, by_nodes, paper, used_by
from benchmarks.own import ROOT
from benchmarks.peers.driver import Pages, Range
from benchmarks.running import Failed, stopped
from benchmarks.table import Row

_WORKERS = int(peers.WORKERS)
_RANGE = 4
"""As nodes are given documents of 8 pages."""


@dataclass(frozen=True, slots=True)
class Sizes:
    turns: int
    documents: int
    pages: int = 2 * _RANGE


FULL = Sizes(3, 2)
QUICK = Sizes(1, 1)


def missing() -> str | None:
    if (sentence := peers.missing()) is not None:
        return sentence
    absent = [name for name in ("ray", "pandas", "pyarrow") if find_spec(name) is None]
    return f"{', '.join(absent)} are not installed: `./run bench cluster` installs them" if absent else None


def measure(place: Path, sizes: Sizes) -> Iterator[Row]:
    if (sentence := missing()) is not None:
        raise SystemExit(f"benchmarks: {sentence}")
    place.mkdir()
    with ExitStack() as stack:
        redis = stack.enter_context(peers.room(place / "peers"))
        worker = stack.enter_context(peers.working(peers.CELERY_READING))
        by_celery = stack.enter_context(_driven("benchmarks.peers.celery_reading"))
        # Ray's sockets want a short path.
        short = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True))
        by_ray = stack.enter_context(_driven("benchmarks.peers.ray_reading", short))
        first = paper(place / "first" / "first.pdf", 2 * _WORKERS)
        for driven in (by_celery, by_ray):
            driven.ask([(str(first), [number + 1]) for number in range(2 * _WORKERS)])
        others = (by_celery, [by_celery.pid, worker.pid, redis]), (by_ray, [by_ray.pid])
        turns = [_turn(place / f"turn-{turn}", sizes, others) for turn in range(sizes.turns)]
    for at, (key, name) in enumerate((("celery", "Celery, two children"), ("ray_data", "Ray Data, two at once")), 1):
        ours, beside = [turn[0] for turn in turns], [turn[at] for turn in turns]
        for cpu, what, unit, figure in (
            ("", "scanned pages, two nodes of one slot", "pages/min", lambda one: one.pages_a_minute),
            ("_cpu", "the same, all that they take", "CPU ms/page", lambda one: one.cpu_milliseconds_a_page),
        ):
            yield Row(f"reading_{key}{cpu}", what, name, unit, [*map(figure, ours)], [*map(figure, beside)])


def _turn(place: Path, sizes: Sizes, others: Sequence[tuple[_Driven, Sequence[int]]]) -> list[Reading]:
    papers = [paper(place / f"{place.name}-{number}.pdf", sizes.pages) for number in range(sizes.documents)]
    ranges = [(str(one), [*range(first, first + _RANGE)]) for one in papers for first in range(1, sizes.pages, _RANGE)]
    ours = by_nodes(place, papers, _WORKERS)
    found = [ours, *(_by(driven, pids, ranges) for driven, pids in others)]
    shutil.rmtree(place)
    for other in found:
        if differ := sum(one != own for one, own in zip(other.pages, ours.pages, strict=True)):
            raise Failed(f"{differ} of {len(ours.pages)} pages are read otherwise by a peer")
    return found


def _by(driven: _Driven, pids: Sequence[int], ranges: Sequence[Range]) -> Reading:
    before, began = sum(map(used_by, pids)), time.monotonic()
    pages = driven.ask(ranges)
    seconds, used = time.monotonic() - began, sum(map(used_by, pids)) - before
    return Reading([(text, words) for some in pages for text, words in some], seconds, used)


@dataclass(frozen=True, slots=True)
class _Driven:
    """A process of a peer's that takes ranges."""

    _process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, ranges: Sequence[Range]) -> list[Pages]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(ranges), file=self._process.stdin, flush=True)
        said = self._process.stdout.readline()
        if not said:
            raise Failed(f"a peer has ended by itself: {self._process.args!r}")
        found: list[Pages] = json.loads(said)
        return found


@contextmanager
def _driven(module: str, *words: str) -> Iterator[_Driven]:
    # A Ray keeps its token at home.
    own = {"HOME": str(peers.place()), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **own, "RAY_USAGE_STATS_ENABLED": "0"}
    with (peers.place() / f"{module}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words], env=environment, cwd=peers.place(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
    try:
        yield _Driven(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            stopped(process)
