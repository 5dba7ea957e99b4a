"""One document of very many pages, read over machines that leave and come: each page is stored once, and none that is
stored is read again.

`./run chaos --pages 10000 --seed 7`, as root: the machines and blows of `chaos`, and nothing recognised, so that 10,000
pages are a matter of minutes. `test_reading.py` has a short one behind pipes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pymupdf
from click.testing import CliRunner

from tests.nodes.chaos import NodeStorm
from tests.nodes.lab import Machine, reason_against
from tests.system import readers
from tests.system.conftest import System
from worker_service.commands import pagemill
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.model import Status

_GAP_SECONDS = (3.0, 8.0)
_LOOK_SECONDS = 1.0


def paper(path: Path, pages: int) -> Path:
    """Each page shows its number in bars, which no two have alike and nobody can read."""
    with pymupdf.open() as document:  # type: ignore[no-untyped-call]
        for number in range(1, pages + 1):
            page = document.new_page(width=64, height=64)
            for bit in range(number.bit_length()):
                if number >> bit & 1:
                    page.draw_rect((4 * bit, 8, 4 * bit + 3, 56), fill=(0, 0, 0))
        document.save(path)
    return path


class Readings:
    """What of a document is stored, and which of its pages were read, looked at now and then."""

    def __init__(self, system: System, houses: Callable[[], Iterable[Path]]) -> None:
        self._system = system
        self._houses = houses
        """Where the nodes keep what their readers note."""
        self._seen: dict[int, int] = {}

    def stored(self) -> set[int]:
        told = self._system.sqlite3("SELECT number FROM page WHERE document_id = 1 AND generation = 1")
        assert told.returncode == 0, told.stderr
        return {int(line) for line in told.stdout.split()}

    def given(self) -> Counter[int]:
        return sum(map(readers.given_to_the_engine, self._houses()), Counter[int]())

    def look(self) -> int:
        """How many are stored."""
        stored = self.stored()
        given = self.given()
        for number in stored:
            self._seen.setdefault(number, given[number])
        return len(stored)

    def faults(self, pages: int) -> Iterator[str]:
        """Once it has ended."""
        document = self._system.store.library.document(1)
        if document.status is not IndexStatus.SUCCESS or document.pages != pages:
            yield f"the document is {document.status}, and has {document.pages} pages: {document.error_message}"
        if (stored := self.stored()) != {*range(1, pages + 1)}:
            yield f"{len(stored)} pages are stored"
        given = self.given()
        for number, text in enumerate((one.text for one in self._system.store.library.page_texts(1)), 1):
            if text != readers.noise(number):
                yield f"page {number} says {text!r}"
            if not given[number]:
                yield f"page {number} was read by nobody"
        again = {number: given[number] - times for number, times in self._seen.items()}
        yield from (f"page {number} was stored, and read {n} times after that" for number, n in again.items() if n)


class PagesStorm(NodeStorm):
    kinds = ("power cut", "power dip", "cut", "short cut", "frozen agent", "agent", "gateway", "daemon", "all")
    """Not a child: a page whose process is killed by force is taken for one that needs more memory than there is."""
    slots = 2
    types = ("ocr_pages",)
    disk = ()

    def __init__(self, system: System, seed: int, pages: int) -> None:
        super().__init__(system, seed)
        self._pages = pages
        self._readings = Readings(system, lambda: (house for m in self._machines() for house in m.state.iterdir()))
        self._took = 0.0

    def read(self, most_seconds: float) -> None:
        path = paper(self.system.place / "noise.pdf", self._pages)
        # A person who waits until nobody writes the file any more.
        os.utime(path, (time.time() - 60,) * 2)
        began = time.monotonic()
        with self._watch:
            self._replace_the_dead()
            done = CliRunner(env=self.system.environment(**self._settings)).invoke(pagemill, ["ingest", str(path)])
            assert done.exit_code == 0, done.output
            hit_at = 0.0
            while not self._is_read() and time.monotonic() < began + most_seconds:
                self._replace_the_dead()
                self._wake()
                if self._readings.look() and time.monotonic() >= hit_at:
                    self._hit()
                    hit_at = time.monotonic() + self._random.uniform(*_GAP_SECONDS)
                self._hurry()
                time.sleep(_LOOK_SECONDS)
            self._took = time.monotonic() - began
            self._wake(everything=True)
            self._kill_all()
        self._settle()
        self.faults += [*self._examine_the_pages(), *self._examine_nodes()]

    def summary(self) -> str:
        attempts = [one for job in self._jobs() for one in self.system.store.reading.attempts(job.id) if one.node]
        ended = Counter(one.node for one in attempts if one.outcome == "completed")
        landed = ", ".join(f"{kind} {self.landed[kind]}" for kind in self.kinds)
        return (
            f"landed: {landed}\n{self._pages} pages read {sum(self._readings.given().values())} times, in "
            f"{len(attempts)} attempts at {sum(ended.values())} ranges on {len(ended)} nodes, in {self._took:.0f} s"
        )

    def _machines(self) -> Iterable[Machine]:
        return self._lab.machines.values()

    def _is_read(self) -> bool:
        found = self.system.store.library.documents(DocumentSelector())
        return bool(found) and found[0].status is IndexStatus.SUCCESS

    def _examine_the_pages(self) -> Iterator[str]:
        yield from self._readings.faults(self._pages)
        for job in self._jobs():
            outcomes = [attempt.outcome for attempt in self.system.store.reading.attempts(job.id)]
            if job.status is not Status.COMPLETED or outcomes.count("completed") != 1 or job.retry_count:
                yield f"job {job.id} ({job.job_type}) is {job.status}: {outcomes}, {job.retry_count} retries"
        yield from map(str, self.system.store.upkeep.audit())
        yield from (f"process {pid} was left behind" for pid in self._left())


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run chaos --pages", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("pages", type=int, metavar="PAGES", help="of the document")
    parser.add_argument("--minutes", type=float, default=30.0, help="not longer than that; 30 unless given")
    parser.add_argument("--seed", type=int, default=None, help="repeat the choices of an earlier run")
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    place = Path(tempfile.mkdtemp(prefix="pagemill-chaos-"))
    system = System(place, shipped=None)
    readers.install(place / "installed")
    storm = PagesStorm(system, seed, given.pages)
    try:
        storm.read(given.minutes * 60)
        print(storm.summary())
    finally:
        system.close()
        storm.close()
    for fault in storm.faults:
        print(f"FAULT: {fault}")
    if storm.faults:
        print(f"the database and the logs are kept in {place}")
        return 1
    shutil.rmtree(place)
    print("every page is stored once, and none was read again that was stored")
    return 0


if __name__ == "__main__":
    if (reason := reason_against()) is not None:
        sys.exit(f"no lab of machines here: {reason}")
    sys.exit(main())
