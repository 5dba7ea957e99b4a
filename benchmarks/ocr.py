"""Reading: the whole pipeline beside the engine alone, OCRmyPDF, a pytesseract loop and PyMuPDF.

Pagemill runs as a real daemon with two slots on a disk, in the sandbox, from a file's `download` to `success`,
including the searchable PDF. The text of the pages is known: most are generated, and that of real scans was typed by
hand. In each turn all readers read the same new pages. Pagemill uses `--quality fast` unless a row says otherwise. The
quick form measures pagemill alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import ocr_peers
from benchmarks.corpus import (
    BLACK_AND_WHITE,
    CLEAN,
    DIGITAL,
    GRAINY_200,
    HELD_BACK,
    LINES_MOST,
    NOISY_150,
    NOISY_200,
    REAL,
    REAL_HELD_BACK,
    SKEWED,
    SPECKED,
    USUAL,
    Bodies,
    Book,
    Look,
    books,
    contents,
    scans,
)
from benchmarks.ocr_own import Pipeline, pipeline
from benchmarks.ocr_peers import Reading
from benchmarks.running import wait_until
from benchmarks.table import Fact, Goal, Row, at_least, at_most, at_most_above, below, never_over
from job_handlers.fetch.error_rules import Timeouts
from job_handlers.reading import ocr

Reader = Callable[[Sequence[Book]], Reading]
Figure = tuple[str, Callable[[Reading], float]]

_SEED = 5
_OCRMYPDF, _ENGINE, _LOOP, _GET_TEXT = "OCRmyPDF -j 2", "the engine alone", "a pytesseract loop", "PyMuPDF's get_text"
_PAGES_A_MINUTE: Figure = ("pages/min", lambda one: one.pages_per_minute)
_PAGES_A_SECOND: Figure = ("pages/s", lambda one: one.pages_per_second)
_CPU: Figure = ("CPU ms/page", lambda one: 1000 * one.cpu_seconds_per_page)
_ERRORS: Figure = ("%", lambda one: one.character_errors)
_WORDS: Figure = ("F1", lambda one: one.word_f1)
_SECONDS: Figure = ("s", lambda one: one.seconds)
_FAST = "`fast`"
_TOLD = {"words": "words", "errors": "wrong characters"}
_GOALS_OF_AUTO = {"words": Goal("≥ 0.945 F1", median_at_least=0.945), "errors": at_most(2, "%")}


@dataclass(frozen=True, slots=True)
class Sizes:
    repeats: int = 3
    scans: int = 2
    scan_pages: int = 12
    held_back_pages: int = 12
    contents_pages: int = 4
    loop_pages: int = 2
    lines: int = LINES_MOST
    reports: int = 10
    report_pages: int = 300
    large_pages: int = 10_000
    large_lines: int = 6
    latency_repeats: int = 3
    pages_of_a_paper: int = 12


QUICK = Sizes(repeats=1, scans=1, scan_pages=1, held_back_pages=1, contents_pages=1, lines=3, reports=2, report_pages=3,
              large_pages=10, latency_repeats=1, pages_of_a_paper=2, )  # fmt: skip


def measure(is_quick: bool, parts: Sequence[str] = ()) -> Iterator[Row | Fact]:
    """Measure everything, or some of `PARTS`."""
    sizes, are_peers_asked = (QUICK, False) if is_quick else (Sizes(), True)
    if are_peers_asked and (sentence := ocr_peers.missing()) is not None:
        raise SystemExit(f"benchmarks: {sentence}")
    with tempfile.TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp") as name:
        directory = Path(name)
        with pipeline(directory / "own") as own:
            bench = _Bench(directory, sizes, own, are_peers_asked=are_peers_asked)
            for part in parts or PARTS:
                yield from PARTS[part](bench)
            yield from _facts(own, are_peers_asked=are_peers_asked)


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
        peers = ocr_peers.engine, self._by_ocrmypdf, loop
        by_engine, by_ocrmypdf, by_loop, ours = self._turns(partial(self._scans, CLEAN), peers, [self._fast])
        pages = f"{self._scanned}, {CLEAN.name}"
        yield _row("engine", f"{pages}, to `success`", _ENGINE, _PAGES_A_MINUTE, ours, by_engine, at_least(0.9))
        yield _row("engine_cpu", "the same", _ENGINE, _CPU, ours, by_engine)
        yield from _beside_ocrmypdf("clean", pages, ours, by_ocrmypdf)
        yield _row("pytesseract", pages, _LOOP, _PAGES_A_MINUTE, ours, by_loop, at_least(20))

    def noisy(self) -> Iterator[Row]:
        yield from self._looking(("noisy_150", NOISY_150), ("noisy_200", NOISY_200))

    def black_and_white(self) -> Iterator[Row]:
        yield from self._looking(("black", BLACK_AND_WHITE))

    def _looking(self, *looks: tuple[str, Look]) -> Iterator[Row]:
        for key, look in looks:
            by_ocrmypdf, ours = self._turns(partial(self._scans, look), [self._by_ocrmypdf], [self._fast])
            yield from _beside_ocrmypdf(key, f"{self._scanned}, {look.name}", ours, by_ocrmypdf)

    def held_back(self) -> Iterator[Row]:
        """Read pages with fonts and noise on which nothing was tuned."""
        for key, look in ("held_noisy_200", GRAINY_200), ("held_black", SPECKED):
            draw = partial(self._drawn, (look,), 1, self._sizes.held_back_pages, bodies=HELD_BACK)
            by_ocrmypdf, ours, by_auto = self._turns(draw, [self._by_ocrmypdf], [self._fast, self._auto])
            pages = f"held back: {_counted(len(ours[0].texts))}, {look.name}"
            yield from _beside_ocrmypdf(key, pages, ours, by_ocrmypdf)
            yield _row(f"auto_errors_{key}", "the same by `auto`: wrong characters", _OCRMYPDF, _ERRORS, by_auto,
                       by_ocrmypdf, at_most_above(0, "points"))  # fmt: skip
            yield _row(f"auto_{key}", "the same", _FAST, _CPU, by_auto, ours)

    def real(self) -> Iterator[Row]:
        """Read real scans. A reader that reads a table or columns in another order gets these characters wrong."""
        by_ocrmypdf, ours = self._turns(partial(self._real, REAL), [self._by_ocrmypdf], [self._fast])
        yield from _beside_ocrmypdf("real", f"{_counted(len(ours[0].texts))} scanned from paper", ours, by_ocrmypdf)

    def qualities(self) -> Iterator[Row]:
        """Read real scans with each quality."""
        for key, place, held_back in ("real", REAL, ""), ("held_real", REAL_HELD_BACK, "held back: "):
            peers = self._by_ocrmypdf, ocr_peers.engine
            readers = self._fast, self._auto, self._best
            by_ocrmypdf, by_engine, *ours = self._turns(partial(self._real, place, 1), peers, readers)
            pages = f"{held_back}{_counted(len(ours[0][0].texts))} scanned from paper"
            for name, figure in ("words", _WORDS), ("errors", _ERRORS):
                for quality, found in zip(("fast", "auto", "best"), ours, strict=True):
                    goal = _GOALS_OF_AUTO[name] if (key, quality) == ("real", "auto") else None
                    what = f"{pages}, by `{quality}`: {_TOLD[name]}"
                    yield _row(f"{name}_{key}_{quality}", what, _OCRMYPDF, figure, found, by_ocrmypdf, goal)
                yield _row(f"{name}_{key}_engine", f"{pages}, by `fast`: {_TOLD[name]}", _ENGINE, figure, ours[0],
                           by_engine)  # fmt: skip

    def contents(self) -> Iterator[Row]:
        """Read contents pages, whose dot leaders every engine reads as letters."""
        looks = CLEAN, NOISY_200, BLACK_AND_WHITE, SPECKED

        def draw() -> list[Book]:
            folder = self._directory / f"folder-{next(self._folders)}"
            pages, lines = self._sizes.contents_pages, self._sizes.lines
            return [contents(folder, looks, pages, seed=f"{_SEED}/measured", lines=lines, bodies=HELD_BACK)]

        peers, readers = [self._by_ocrmypdf], [self._fast, self._auto]
        by_ocrmypdf, ours, by_auto = self._turns(draw, peers, readers, repeats=1)
        pages = f"held back: {_counted(len(ours[0].texts))} of contents with rows of dots"
        yield from _beside_ocrmypdf("contents", pages, ours, by_ocrmypdf)
        yield _row("auto_errors_contents", "the same by `auto`: wrong characters", _OCRMYPDF, _ERRORS, by_auto,
                   by_ocrmypdf, at_most_above(0, "points"))  # fmt: skip

    def auto(self) -> Iterator[Row]:
        """Measure the cost of the second engine on clean and on mixed pages."""
        ours, by_auto = self._turns(partial(self._scans, CLEAN), [], [self._fast, self._auto])
        yield from _by_auto("clean", f"{self._scanned}, {CLEAN.name}, by `auto`", by_auto, ours, below(1.05))
        looks = CLEAN, NOISY_150, SKEWED, NOISY_200, BLACK_AND_WHITE, DIGITAL

        def draw() -> list[Book]:
            return [*self._drawn(looks, 1, self._sizes.scan_pages), *self._real(REAL, 1)]

        def watched(found: Sequence[Book]) -> Reading:
            with self._own.watched() as seen:
                read = self._auto(found)
            peaks.append(max(seen))
            return read

        peaks: list[float] = []
        ours, by_auto = self._turns(draw, [], [self._fast, watched])
        pages = f"{_counted(len(ours[0].texts))} of all kinds, scanned from paper and born digital"
        yield from _by_auto("mixed", f"{pages}, by `auto`", by_auto, ours, below(1.5))
        peak = max(*peaks, self._own.peak_of_attempts())
        yield Row("memory_auto", "memory of an OCR child and all below it by `auto`, peak", "", "MB", [peak], [],
                  at_most(450, "MB"))  # fmt: skip

    def askew(self) -> Iterator[Row]:
        """Read skewed pages and watch the memory. No times, because watching slows down the readers; no peer, because
        none straightens pages by default.
        """
        with self._own.watched() as seen:
            read = self._own.read(self._scans(SKEWED, CLEAN))
        yield _row(
            "errors_skewed", f"{self._scanned}, every other {SKEWED.name}: wrong characters", "", _ERRORS, [read]
        )
        peak = max(*seen, self._own.peak_of_attempts())
        yield Row("memory", "memory of an OCR child and all below it, peak", "", "MB", [peak], [], at_most(300, "MB"))

    def _scans(self, *looks: Look) -> list[Book]:
        return self._drawn(looks, self._sizes.scans, self._sizes.scan_pages)

    def _real(self, place: Path, files: int | None = None) -> list[Book]:
        number = next(self._folders)
        folder = self._directory / f"folder-{number}"
        return scans(folder, files or self._sizes.scans, self._sizes.scan_pages, seed=f"{_SEED}/{number}", place=place)

    @property
    def _scanned(self) -> str:
        return _counted(self._sizes.scans * self._sizes.scan_pages)

    def _by_ocrmypdf(self, found: Sequence[Book]) -> Reading:
        return ocr_peers.ocrmypdf(found, self._directory)

    def _fast(self, found: Sequence[Book]) -> Reading:
        return self._own.read(found, "fast")

    def _auto(self, found: Sequence[Book]) -> Reading:
        return self._own.read(found, "auto")

    def _best(self, found: Sequence[Book]) -> Reading:
        return self._own.read(found, "best")

    # ── Born digital, and a second time ─────────────────────────────────────────────────────────────────────────

    def digital(self) -> Iterator[Row]:
        sizes = self._sizes
        draw = partial(self._drawn, (DIGITAL,), sizes.reports, sizes.report_pages)
        by_get_text, ours = self._turns(draw, [ocr_peers.get_text], [self._fast])
        what = f"{sizes.reports} born-digital reports of {_counted(sizes.report_pages)}, to `success`"
        yield _row("digital", what, _GET_TEXT, _PAGES_A_SECOND, ours, by_get_text, at_least(1.5))
        yield _row("digital_cpu", "the same", _GET_TEXT, _CPU, ours, by_get_text)

    def beside_inserts(self) -> Iterator[Row]:
        """Measure the longest INSERT of another program while a document is read."""
        sizes = self._sizes
        longest = []
        for _ in range(sizes.repeats):
            found = self._drawn((DIGITAL,), 1, sizes.large_pages, lines=sizes.large_lines)
            with self._own.beside_inserts() as waits:
                self._own.read(found)
            longest.append(max(waits))
        what = f"one document of {_counted(sizes.large_pages)}: the longest wait of another program's INSERT"
        yield Row("beside_inserts", what, "", "ms", longest, [], never_over(50))

    def again(self) -> Iterator[Row]:
        """Submit a folder again, unchanged, and again with changed file times."""
        sizes = self._sizes
        every = [self._scans(CLEAN, DIGITAL, NOISY_200, SKEWED) for _ in range(sizes.repeats)]
        digital = [self._drawn((DIGITAL,), sizes.reports, sizes.report_pages) for _ in range(sizes.repeats)]
        if self._are_peers_asked:
            _wait_until_left_alone(*every, *digital)
        reports = f"{sizes.reports} born-digital reports of {_counted(sizes.report_pages)}"
        both = (("again", f"{self._scanned} of all kinds", every), ("again_digital", reports, digital))
        for key, what, folders in both:
            turns = [(self._own.read(folder), self._own.read(folder), self._touched(folder)) for folder in folders]
            first, second, third = ([one.pages_per_second for one in readings] for readings in zip(*turns, strict=True))
            for more, asked, goal in (
                ("", "a second time", at_least(50)),
                ("_touched", "with changed file times", Goal()),
            ):
                figures = third if more else second
                yield Row(f"{key}{more}", f"{what}, {asked}", "the first time", "pages/s", figures, first, goal)

    def _touched(self, folder: Sequence[Book]) -> Reading:
        for book in folder:
            os.utime(book.path, (book.path.stat().st_mtime - 1,) * 2)
        return self._own.read(folder)

    # ── Small documents, one at a time ──────────────────────────────────────────────────────────────────────────

    def latency(self) -> Iterator[Row]:
        """Measure single documents that arrive at an idle daemon."""
        for key, pages in ("latency_12", self._sizes.pages_of_a_paper), ("latency_1", 1):
            draw = partial(self._drawn, (CLEAN,), 1, pages)
            by_engine, ours = self._turns(draw, [ocr_peers.engine], [self._fast], repeats=self._sizes.latency_repeats)
            what = f"one document of {_counted(pages)}, queued → `success`"
            yield _row(key, what, _ENGINE, _SECONDS, ours, by_engine, at_most_above(0.5, "s"))

    # ── Taking turns ────────────────────────────────────────────────────────────────────────────────────────────

    def _turns(
        self,
        draw: Callable[[], list[Book]],
        peers: Sequence[Reader],
        ours: Sequence[Reader],
        *,
        repeats: int | None = None,
    ) -> list[list[Reading]]:
        """Let each reader read in turn, so that a disturbance affects all."""
        found: list[list[Reading]] = [[] for _ in (*peers, *ours)]
        for _ in range(repeats or self._sizes.repeats):
            drawn = draw()
            for reader, readings in zip((*peers, *ours), found, strict=True):
                if self._are_peers_asked or reader in ours:
                    readings.append(reader(drawn))
            for folder in {book.path.parent for book in drawn}:
                shutil.rmtree(folder)
        return found

    def _drawn(
        self, looks: Sequence[Look], files: int, pages: int, *, lines: int | None = None, bodies: Bodies = USUAL
    ) -> list[Book]:
        """Draw new pages."""
        number = next(self._folders)
        folder = self._directory / f"folder-{number}"
        seed, lines = f"{_SEED}/{number}", lines or self._sizes.lines
        return books(folder, looks, files, pages, seed=seed, lines=lines, bodies=bodies)


PARTS: Mapping[str, Callable[[_Bench], Iterator[Row]]] = {
    "clean": _Bench.clean,
    "noisy": _Bench.noisy,
    "real": _Bench.real,
    "skewed": _Bench.askew,
    "digital": _Bench.digital,
    "inserts": _Bench.beside_inserts,
    "again": _Bench.again,
    "latency": _Bench.latency,
    "black-and-white": _Bench.black_and_white,
    "held-back": _Bench.held_back,
    "qualities": _Bench.qualities,
    "auto": _Bench.auto,
    "contents": _Bench.contents,
}


def _wait_until_left_alone(*folders: Sequence[Book]) -> None:
    """Wait until the files are old enough for their times to show that they are unchanged."""
    newest = max(book.path.stat().st_ctime for folder in folders for book in folder)
    settled = newest + Timeouts().settled_seconds
    wait_until(lambda: time.time() > settled, "files left alone", seconds=120, pause_seconds=1)


def _facts(own: Pipeline, *, are_peers_asked: bool) -> Iterator[Fact]:
    yield Fact("engine", ocr.tesseract.identity(ocr.OcrSettings(("eng",), "fast")))
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


def _by_auto(key: str, what: str, ours: Sequence[Reading], fast: Sequence[Reading], goal: Goal) -> Iterator[Row]:
    yield _row(f"auto_{key}", what, _FAST, _CPU, ours, fast, goal)
    yield _row(f"auto_errors_{key}", "the same: wrong characters", _FAST, _ERRORS, ours, fast,
               at_most_above(0, "points"))  # fmt: skip


def _row(
    key: str, what: str, beside: str, figure: Figure, ours: Sequence[Reading], peer: Sequence[Reading] = (),
    goal: Goal | None = None,
) -> Row:  # fmt: skip
    unit, of = figure
    return Row(key, what, beside, unit, [of(one) for one in ours], [of(one) for one in peer], goal or Goal())


def _counted(pages: int) -> str:
    return f"{pages:,} page{'s' if pages > 1 else ''}"
