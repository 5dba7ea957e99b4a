"""Tables: correct cells, order of blocks, and cost, beside pdfplumber, PyMuPDF's `find_tables` and `get_text`.

The pages are generated (`tables_corpus`) from seeds on which nothing was tuned. The peers look for ruled lines, as by
default, or for columns of text, whichever gives them more. The quick form measures pagemill alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pymupdf as partly_typed

from benchmarks import tables_corpus
from benchmarks.corpus import DIGITAL, books
from benchmarks.table import Fact, Goal, Row, at_least, at_most, at_most_above
from benchmarks.tables_accuracy import Rows, blocks_in_order, cell_counts, f1
from benchmarks.tables_corpus import Page
from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading.ingest import examine_page
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.page_recognition import PagePicture, PageReading, recognise_page
from job_handlers.reading.preprocess import Gray

pymupdf: Any = partly_typed

_SEEDS = ("measured a", "measured b", "measured c")
_DPI = 200
_PLUMBER, _FIND, _GET_TEXT = "pdfplumber", "PyMuPDF's find_tables", "PyMuPDF's get_text"

Finder = Callable[[Path], list[list[Rows]]]
"""Returns the tables of each page of a file."""


@dataclass(frozen=True, slots=True)
class Sizes:
    seeds: Sequence[str] = _SEEDS
    pages: int = 120
    layouts: int = 120
    scans: int = 16
    reports: int = 200
    repeats: int = 3


QUICK = Sizes(("quick",), 8, 4, 1, 4, 1)


def measure(is_quick: bool) -> Iterator[Row | Fact]:
    sizes = QUICK if is_quick else Sizes()
    if not is_quick and find_spec("pdfplumber") is None:
        raise SystemExit("benchmarks: pdfplumber is not there: `./run bench tables` installs it")
    with TemporaryDirectory(prefix="pagemill-bench-", dir="/var/tmp") as name:
        yield from _cells(Path(name), sizes, are_peers_asked=not is_quick)
        yield from _reports(are_peers_asked=not is_quick)
        yield from _order(Path(name), sizes)
        yield from _costs(Path(name), sizes)
        if ocr.missing() is None:
            yield from _scanned(sizes)
    yield Fact("pymupdf", pdf.LIBRARY)
    if not is_quick:
        import pdfplumber  # type: ignore[import-not-found,unused-ignore]

        yield Fact("pdfplumber", f"pdfplumber {pdfplumber.__version__}")


# ── Cells ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _cells(directory: Path, sizes: Sizes, *, are_peers_asked: bool) -> Iterator[Row]:
    """Compare the finders on the same pages in each turn."""
    wrong: dict[str, list[float]] = {"": [], _PLUMBER: [], _FIND: []}
    ruled: dict[str, list[float]] = {"": [], _PLUMBER: [], _FIND: []}
    rates: dict[str, list[float]] = {"": [], _PLUMBER: [], _FIND: []}
    finders: dict[str, Finder] = {"": _ours}
    if are_peers_asked:
        finders |= {_PLUMBER: _by_pdfplumber, _FIND: _by_find_tables}
    for seed in sizes.seeds:
        pages = tables_corpus.tables(seed, sizes.pages)
        path = directory / f"{seed}.pdf"
        tables_corpus.save(pages, path)
        for name, finder in finders.items():
            found, seconds = _timed(lambda finder=finder, path=path: finder(path))  # type: ignore[misc]
            rates[name].append(len(pages) / seconds)
            settings = _settings(found)
            wrong[name].append(min(_share_wrong(one, pages) for one in settings))
            of_ruled = [at for at, page in enumerate(pages) if page.has_grids]
            ruled[name].append(
                min(_share_wrong([one[at] for at in of_ruled], [pages[at] for at in of_ruled]) for one in settings)
            )
    what = f"{sizes.pages} generated pages, of which five in eight have tables: cells"
    for key, peer in (("plumber", _PLUMBER), ("find_tables", _FIND)):
        yield Row(f"cells_{key}", what, peer, "% not right (1 - F1)", wrong[""], wrong[peer], _POINTS)
        in_grids = "generated tables with ruled grids: cells"
        yield Row(f"cells_ruled_{key}", in_grids, peer, "% not right (1 - F1)", ruled[""], ruled[peer], _POINTS)
        goal = at_least(5) if peer == _PLUMBER else Goal()
        yield Row(f"rate_{key}", "the same pages", peer, "pages/s", rates[""], rates[peer], goal)


def _reports(*, are_peers_asked: bool) -> Iterator[Row]:
    pages = [page for _, page in tables_corpus.reports()]

    def wrong(finder: Finder) -> list[float]:
        found = [tables for path, _ in tables_corpus.reports() for tables in finder(path)]
        return [min(_share_wrong(one, pages) for one in _settings(found))]

    ours = wrong(_ours)
    for key, peer, finder in (("plumber", _PLUMBER, _by_pdfplumber), ("find_tables", _FIND, _by_find_tables)):
        yield Row(f"cells_real_{key}", "real pages: cells", peer, "% not right (1 - F1)", ours,
                  wrong(finder) if are_peers_asked else [], _POINTS)  # fmt: skip


_POINTS = at_most_above(-5, "points")


def _timed(find: Callable[[], list[list[Rows]]]) -> tuple[list[list[Rows]], float]:
    begin = time.process_time()
    found = find()
    return found, time.process_time() - begin


def _settings(found: list[list[Rows]]) -> list[list[list[Rows]]]:
    """Return what a peer found with ruled lines alone, and with columns of text."""
    by_rules = [[one for one in page if one and one[0] != _BY_TEXT] for page in found]
    by_both = [[one[1:] if one and one[0] == _BY_TEXT else one for one in page] for page in found]
    return [by_rules, by_both]


_BY_TEXT: Sequence[str | None] = ["\0 found by text"]


def _share_wrong(found: Sequence[Sequence[Rows]], pages: Sequence[Page]) -> float:
    counts = [cell_counts(one, page.tables) for one, page in zip(found, pages, strict=True)]
    right, all_found, there = map(sum, zip(*counts, strict=True))
    return 100 * (1 - f1(right, all_found, there))


def _ours(path: Path) -> list[list[Rows]]:
    with pdf.PagedFile(path) as book:
        return [[_rows_of(one) for one in book.text(number).tables] for number in range(1, book.pages + 1)]


def _rows_of(table: layout.PageTable) -> Rows:
    return [[cell.text if cell else "" for cell in row] for row in table.rows]


def _by_pdfplumber(path: Path) -> list[list[Rows]]:
    import pdfplumber

    by_text = {"vertical_strategy": "text", "horizontal_strategy": "text"}
    with pdfplumber.open(path) as document:
        found: list[Any] = []
        for page in document.pages:
            by_rules = page.extract_tables()
            found.append(by_rules or [[_BY_TEXT, *one] for one in page.extract_tables(by_text)])
        return found


def _by_find_tables(path: Path) -> list[list[Rows]]:
    with pymupdf.open(path) as document:
        found = []
        for page in document:
            by_rules = [one.extract() for one in page.find_tables().tables]
            by_text = [] if by_rules else [one.extract() for one in page.find_tables(strategy="text").tables]
            found.append(by_rules or [[_BY_TEXT, *one] for one in by_text])
        return found


# ── Order ───────────────────────────────────────────────────────────────────────────────────────────────────────


_LAYOUTS = (
    ("order", tables_corpus.layouts, "layouts"),
    ("order_storeys", tables_corpus.storeys, "layouts divided by rules and wide titles"),
)
_NEIGHBOURS = "neighbouring blocks in the wrong order"


def _order(directory: Path, sizes: Sizes) -> Iterator[Row]:
    """Measure reading order in files with blocks in the right order, shuffled, by height, or with the foot first."""
    for key, laid_out, what in _LAYOUTS:
        ours, given = [], []
        for seed in sizes.seeds:
            pages = laid_out(seed, sizes.layouts)
            path = directory / f"{seed}-{key}.pdf"
            tables_corpus.save(pages, path)
            with pdf.PagedFile(path) as book, pymupdf.open(path) as document:
                ours.append(_out_of_order([book.text(at).text for at in range(1, len(pages) + 1)], pages))
                given.append(_out_of_order([page.get_text() for page in document], pages))
        yield Row(key, f"{sizes.layouts} generated {what}: {_NEIGHBOURS}", _GET_TEXT, "%", ours, given, at_most(2, "%"))


def _out_of_order(texts: Sequence[str], pages: Sequence[Page]) -> float:
    counts = [blocks_in_order(text, page.blocks) for text, page in zip(texts, pages, strict=True)]
    good, of = map(sum, zip(*counts, strict=True))
    return 100 * (1 - good / of)


# ── What it costs ───────────────────────────────────────────────────────────────────────────────────────────────


def _costs(directory: Path, sizes: Sizes) -> Iterator[Row]:
    """Measure CPU time in one process, including pagemill's classification of the page and its layout as JSON."""
    [prose] = books(directory / "prose", (DIGITAL,), 1, sizes.reports, seed="costs")
    tables_corpus.save(tables_corpus.tables("costs", sizes.reports), directory / "tables.pdf")
    mixed = directory / "mixed.pdf"
    with pymupdf.open(prose.path) as document, pymupdf.open(directory / "tables.pdf") as others:
        document.insert_pdf(others, to_page=sizes.reports // 4)
        document.save(mixed)
    for key, what, path, goal in (
        ("cost_prose", "a born-digital report of prose", prose.path, at_most_times(1.3)),
        ("cost_mixed", "a born-digital report with tables on every eighth page", mixed, at_most_times(1.3)),
        ("cost_tables", "pages, five in eight with tables", directory / "tables.pdf", Goal()),
    ):
        turns = [(_get_text_ms(path), _look_ms(path)) for _ in range(sizes.repeats)]
        yield Row(key, what, _GET_TEXT, "CPU ms/page", [one[1] for one in turns], [one[0] for one in turns], goal)


def at_most_times(ratio: float) -> Goal:
    return Goal(f"≤ {ratio:g} ×", ratio_below=ratio)


def _look_ms(path: Path) -> float:
    with pdf.PagedFile(path) as book:
        begin = time.process_time()
        for number in range(1, book.pages + 1):
            examine_page(book, number)
        return 1000 * (time.process_time() - begin) / book.pages


def _get_text_ms(path: Path) -> float:
    with pymupdf.open(path) as document:
        begin = time.process_time()
        for page in document:
            page.get_text()
        return 1000 * (time.process_time() - begin) / len(document)


# ── Scans ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _scanned(sizes: Sizes) -> Iterator[Row]:
    """Measure tables on pages recognised at 200 dpi. Misread characters count as wrong."""
    seed = sizes.seeds[0]
    printed = (page for page in tables_corpus.tables(seed, 4 * sizes.scans) if page.tables)
    with_tables = list(islice(filter(tables_corpus.is_printable, printed), sizes.scans))
    for key, quality in ("cells_scanned", "fast"), ("cells_scanned_auto", "auto"):
        layouts = [layout.decode(one.layout or "") for one in _recognised(with_tables, quality)]
        wrong = _share_wrong([[_rows_of(one) for one in page.tables] for page in layouts], with_tables)
        told = f"{len(with_tables)} pages with tables, scanned at {_DPI} dpi, by `{quality}`: cells"
        yield Row(key, told, "", "% not right (1 - F1)", [wrong], [])
    for key, laid_out, what in _LAYOUTS:
        columns = laid_out(seed, sizes.scans)
        order = _out_of_order([one.text for one in _recognised(columns, "fast")], columns)
        told = f"{len(columns)} {what}, scanned at {_DPI} dpi: {_NEIGHBOURS}"
        yield Row(f"{key}_scanned", told, "", "%", [order], [], at_most(2, "%"))


def _recognised(pages: Sequence[tables_corpus.Page], quality: str) -> list[PageReading]:
    reader = ocr.reader_for(OcrSettings(("eng",), quality))
    found = []
    for page in pages:
        with pymupdf.open() as document:
            tables_corpus.draw(document.new_page(width=595, height=842), page)
            drawn = document[0].get_pixmap(dpi=_DPI, colorspace=pymupdf.csGRAY)
        gray = Gray(drawn.width, drawn.height, bytes(drawn.samples))
        found.append(recognise_page(reader, PagePicture(1, (595, 842), gray, float(_DPI))))
    return found
