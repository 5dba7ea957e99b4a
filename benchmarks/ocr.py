"""The figures of reading: the whole pipeline beside the engine alone, OCRmyPDF, a pytesseract loop and PyMuPDF.

Ours is a real daemon on a disk in the sandbox, with two slots, from a file's `download` to `success`, searchable PDF
included. What stands on the pages is known: most are generated, and for the real scans it was typed by hand. In each
turn all read the same pages, which nobody has read before. The quick form measures ours alone: it shows that every row
can be measured, not how fast.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import ocr_peers
from benchmarks.corpus import CLEAN, DIGITAL, LINES_MOST, NOISY_150, NOISY_200, SKEWED, Book, Look, books, scans
from benchmarks.ocr_own import Pipeline, pipeline
from benchmarks.ocr_peers import Reading
from benchmarks.ocr_search import library
from benchmarks.running import wait_until
from benchmarks.table import Fact, Goal, Row, at_least, at_most, at_most_above, never_over
from job_handlers.download.troubles import Patience
from job_handlers.reading import ocr

Peer = Callable[[Sequence[Book]], Reading]
Figure = tuple[str, Callable[[Reading], float]]

_SEED = 5
_OCRMYPDF, _ENGINE, _LOOP, _GET_TEXT = "OCRmyPDF -j 2", "the engine alone", "a pytesseract loop", "PyMuPDF's get_text"
_PAGES_A_MINUTE: Figure = ("pages/min", lambda one: one.pages_per_minute)
_PAGES_A_SECOND: Figure = ("pages/s", lambda one: one.pages_per_second)
_CPU: Figure = ("CPU ms/page", lambda one: 1000 * one.cpu_seconds_per_page)
_ERRORS: Figure = ("%", lambda one: one.character_errors)
_WORDS: Figure = ("F1", lambda one: one.word_f1)
_SECONDS: Figure = ("s", lambda one: one.seconds)


@dataclass(frozen=True, slots=True)
class Sizes:
    repeats: int = 3
    scans: int = 2
    scan_pages: int = 12
    loop_pages: int = 4
    lines: int = LINES_MOST
    reports: int = 10
    report_pages: int = 300
    large_pages: int = 10_000
    large_lines: int = 6
    latency_repeats: int = 5
    pages_of_a_paper: int = 12
    library_pages: int = 100_000
    queries: int = 200
    search_repeats: int = 5


QUICK = Sizes(repeats=1, scans=1, scan_pages=1, lines=6, reports=2, report_pages=3, large_pages=30, latency_repeats=1,
              pages_of_a_paper=2, library_pages=500, queries=20, search_repeats=1)  # fmt: skip


def measure(is_quick: bool) -> Iterator[Row | Fact]:
    sizes, are_peers_asked = (QUICK, False) if is_quick else (Sizes(), True)
    if are_peers_asked and (sentence := ocr_peers.missing()) is not None:
        raise SystemExit(f"benchmarks: {sentence}")
    with tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp") as name:
        directory = Path(name)
        with pipeline(directory / "own") as own:
            bench = _Bench(directory, sizes, own, are_peers_asked=are_peers_asked)
            yield from bench.clean()
            yield from bench.noisy()
            yield from bench.real()
            yield from bench.askew()
            yield from bench.digital()
            yield bench.beside_inserts()
            yield from bench.again()
            yield from bench.latency()
            yield from _facts(own, are_peers_asked=are_peers_asked)
        yield _search(directory, sizes, are_peers_asked=are_peers_asked)


class _Bench:
    def __init__(self, directory: Path, sizes: Sizes, own: Pipeline, *, are_peers_asked: bool) -> None:
        self._directory = directory
        self._sizes = sizes
        self._own = own
        self._are_peers_asked = are_peers_asked
        self._folders = count()

    # ── Scanned pages ───────────────────────────────────────────────────────────────────────────────────────────

    def clean(self) -> Iterator[Row]:
        loop = partial(ocr_peers.pytesseract_loop, pages=self._sizes.loop_pages)
        peers, ours = self._turns(partial(self._scans, CLEAN), ocr_peers.engine, self._by_ocrmypdf, loop)
        by_engine, by_ocrmypdf, by_loop = peers
        pages = f"{self._scanned}, {CLEAN.name}"
        yield _row("engine", f"{pages}, to `success`", _ENGINE, _PAGES_A_MINUTE, ours, by_engine, at_least(0.9))
        yield _row("engine_cpu", "the same", _ENGINE, _CPU, ours, by_engine)
        yield from _beside_ocrmypdf("clean", pages, ours, by_ocrmypdf)
        yield _row("pytesseract", pages, _LOOP, _PAGES_A_MINUTE, ours, by_loop, at_least(20))

    def noisy(self) -> Iterator[Row]:
        for key, look in ("noisy_150", NOISY_150), ("noisy_200", NOISY_200):
            [by_ocrmypdf], ours = self._turns(partial(self._scans, look), self._by_ocrmypdf)
            yield from _beside_ocrmypdf(key, f"{self._scanned}, {look.name}", ours, by_ocrmypdf)

    def real(self) -> Iterator[Row]:
        """Whoever reads a table or two columns in another order than their lines stand has so many characters wrong."""
        [by_ocrmypdf], ours = self._turns(self._real, self._by_ocrmypdf)
        yield from _beside_ocrmypdf("real", f"{_counted(len(ours[0].texts))} scanned from paper", ours, by_ocrmypdf)

    def askew(self) -> Iterator[Row]:
        """No peer straightens what it was not asked to. Whoever looks at memory all the while takes time from those
        who read, so that no time is taken here."""
        with self._own.watched() as seen:
            read = self._own.read(self._scans(SKEWED, CLEAN))
        yield _row(
            "errors_skewed", f"{self._scanned}, every other {SKEWED.name}: wrong characters", "", _ERRORS, [read]
        )
        peak = max(*seen, self._own.peak_of_attempts())
        yield Row("memory", "memory of an OCR child and all below it, peak", "", "MB", [peak], [], at_most(450, "MB"))

    def _scans(self, *looks: Look) -> list[Book]:
        return self._drawn(looks, self._sizes.scans, self._sizes.scan_pages)

    def _real(self) -> list[Book]:
        number = next(self._folders)
        folder = self._directory / f"folder-{number}"
        return scans(folder, self._sizes.scans, self._sizes.scan_pages, seed=f"{_SEED}/{number}")

    @property
    def _scanned(self) -> str:
        return _counted(self._sizes.scans * self._sizes.scan_pages)

    def _by_ocrmypdf(self, found: Sequence[Book]) -> Reading:
        return ocr_peers.ocrmypdf(found, self._directory)

    # ── Born digital, and a second time ─────────────────────────────────────────────────────────────────────────

    def digital(self) -> Iterator[Row]:
        sizes = self._sizes
        draw = partial(self._drawn, (DIGITAL,), sizes.reports, sizes.report_pages)
        [by_get_text], ours = self._turns(draw, ocr_peers.get_text)
        what = f"{sizes.reports} born-digital reports of {_counted(sizes.report_pages)}, to `success`"
        yield _row("digital", what, _GET_TEXT, _PAGES_A_SECOND, ours, by_get_text, at_least(1.5))
        yield _row("digital_cpu", "the same", _GET_TEXT, _CPU, ours, by_get_text)

    def beside_inserts(self) -> Row:
        """Of somebody who inserts all the while, the INSERT that had to wait longest."""
        sizes = self._sizes
        longest = []
        for _ in range(sizes.repeats):
            found = self._drawn((DIGITAL,), 1, sizes.large_pages, lines=sizes.large_lines)
            with self._own.beside_inserts() as waits:
                self._own.read(found)
            longest.append(max(waits))
        what = f"one document of {_counted(sizes.large_pages)}: the longest wait of another's INSERT"
        return Row("beside_inserts", what, "", "ms", longest, [], never_over(50))

    def again(self) -> Iterator[Row]:
        """A folder is asked for once more, untouched; and once its files have other times, so that they are read."""
        sizes = self._sizes
        every = [self._scans(CLEAN, DIGITAL, NOISY_200, SKEWED) for _ in range(sizes.repeats)]
        digital = [self._drawn((DIGITAL,), sizes.reports, sizes.report_pages) for _ in range(sizes.repeats)]
        if self._are_peers_asked:
            _wait_until_left_alone(*every, *digital)
        reports = f"{sizes.reports} born-digital reports of {_counted(sizes.report_pages)}"
        both = (("again", f"{self._scanned} of every look", every), ("again_digital", reports, digital))
        for key, what, folders in both:
            turns = [(self._own.read(folder), self._own.read(folder), self._touched(folder)) for folder in folders]
            first, second, third = ([one.pages_per_second for one in readings] for readings in zip(*turns, strict=True))
            for more, asked, goal in ("", "for a second time", at_least(50)), ("_touched", "with other times", Goal()):
                figures = third if more else second
                yield Row(f"{key}{more}", f"{what}, {asked}", "the first time", "pages/s", figures, first, goal)

    def _touched(self, folder: Sequence[Book]) -> Reading:
        for book in folder:
            os.utime(book.path, (book.path.stat().st_mtime - 1,) * 2)
        return self._own.read(folder)

    # ── Small documents, one at a time ──────────────────────────────────────────────────────────────────────────

    def latency(self) -> Iterator[Row]:
        """Each comes when the daemon is idle."""
        for key, pages in ("latency_12", self._sizes.pages_of_a_paper), ("latency_1", 1):
            draw = partial(self._drawn, (CLEAN,), 1, pages)
            [by_engine], ours = self._turns(draw, ocr_peers.engine, repeats=self._sizes.latency_repeats)
            what = f"one document of {_counted(pages)}, queued → `success`"
            yield _row(key, what, _ENGINE, _SECONDS, ours, by_engine, at_most_above(0.5, "s"))

    # ── Taking turns ────────────────────────────────────────────────────────────────────────────────────────────

    def _turns(
        self, draw: Callable[[], list[Book]], *peers: Peer, repeats: int | None = None
    ) -> tuple[list[list[Reading]], list[Reading]]:
        """What each peer read, and what ours read: one after the other, so that what disturbs one disturbs all."""
        of_peers: list[list[Reading]] = [[] for _ in peers]
        ours = []
        for _ in range(repeats or self._sizes.repeats):
            found = draw()
            if self._are_peers_asked:
                for peer, readings in zip(peers, of_peers, strict=True):
                    readings.append(peer(found))
            ours.append(self._own.read(found))
            shutil.rmtree(found[0].path.parent)
        return of_peers, ours

    def _drawn(self, looks: Sequence[Look], files: int, pages: int, *, lines: int | None = None) -> list[Book]:
        """Pages that nobody has read."""
        number = next(self._folders)
        folder = self._directory / f"folder-{number}"
        return books(folder, looks, files, pages, seed=f"{_SEED}/{number}", lines=lines or self._sizes.lines)


def _wait_until_left_alone(*folders: Sequence[Book]) -> None:
    """As long as a file has to be for its times to tell that it is the same."""
    newest = max(book.path.stat().st_ctime for folder in folders for book in folder)
    settled = newest + Patience().settled_seconds
    wait_until(lambda: time.time() > settled, "files left alone", seconds=120, pause_seconds=1)


def _search(directory: Path, sizes: Sizes, *, are_peers_asked: bool) -> Row:
    found = library(directory / "library.db", sizes.library_pages, sizes.queries, seed=_SEED)
    found.search_p95()
    turns = [(found.raw_p95(), found.search_p95()) for _ in range(sizes.search_repeats)]
    found.close()
    what = f"search over {sizes.library_pages:,} pages, {sizes.queries} queries, p95"
    beside, ours = ([turn[side] for turn in turns] for side in (0, 1))
    return Row("search", what, "the bare index", "ms", ours, beside if are_peers_asked else [], at_most(50, "ms"))


def _facts(own: Pipeline, *, are_peers_asked: bool) -> Iterator[Fact]:
    yield Fact("engine", ocr.chosen().identity(ocr.WayToRead(("eng",), "fast")))
    yield Fact("sandbox", f"sandbox {own.sandbox()}")
    if are_peers_asked:
        yield Fact("peers", ocr_peers.versions())


def _beside_ocrmypdf(key: str, pages: str, ours: Sequence[Reading], peer: Sequence[Reading]) -> Iterator[Row]:
    what = f"{pages}, searchable PDF"
    yield _row(f"ocrmypdf_{key}", what, _OCRMYPDF, _PAGES_A_MINUTE, ours, peer, at_least(1.9))
    yield _row(f"cpu_{key}", "the same", _OCRMYPDF, _CPU, ours, peer)
    yield _row(f"errors_{key}", "the same: wrong characters", _OCRMYPDF, _ERRORS, ours, peer,
               at_most_above(0.1, "points"))  # fmt: skip
    yield _row(f"words_{key}", "the same: words", _OCRMYPDF, _WORDS, ours, peer)


def _row(
    key: str, what: str, beside: str, figure: Figure, ours: Sequence[Reading], peer: Sequence[Reading] = (),
    goal: Goal | None = None,
) -> Row:  # fmt: skip
    unit, of = figure
    return Row(key, what, beside, unit, [of(one) for one in ours], [of(one) for one in peer], goal or Goal())


def _counted(pages: int) -> str:
    return f"{pages:,} page{'s' if pages > 1 else ''}"
