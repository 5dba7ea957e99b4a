from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import character_errors
from benchmarks.corpus import (
    BLACK_AND_WHITE,
    NOISY_150,
    REAL,
    REAL_HELD_BACK,
    SPECKED,
    Book,
    Look,
    books,
    scans,
)
from benchmarks.corpus import HELD_BACK as HELD_BACK_BODIES
from job_handlers.reading import ocr, pdf
from job_handlers.reading.page_recognition import draw_page, recognise_page
from tests.full_length import only_in_full

SCANS, HELD_BACK = (
    sorted(
        (path for path in place.iterdir() if path.suffix in (".jpg", ".png")),
        key=lambda path: path.with_suffix(".txt").stat().st_size,
    )
    for place in (REAL, REAL_HELD_BACK)
)


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Book:
    [book] = scans(tmp_path_factory.mktemp("scans") / "bound", 1, len(SCANS), seed="any")
    return book


def test_the_origin_of_each_scan_is_documented() -> None:
    readme = (REAL / "README.md").read_text()

    assert [path.name for path in [*SCANS, *HELD_BACK] if f"`{path.name}`" not in readme] == []


def test_held_back_scans_are_not_among_the_others(tmp_path: Path) -> None:
    [book] = scans(tmp_path / "bound", 1, len(HELD_BACK), seed="any", place=REAL_HELD_BACK)

    assert book.pages == len(HELD_BACK) == 7
    assert {path.stem for path in SCANS}.isdisjoint(path.stem for path in HELD_BACK)
    assert all(page.strip() for page in book.truth)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        pytest.param("congress", 3, id="the back shows through, and its resolution is wrong"),
        pytest.param("traffic", 20, id="columns in black and white", marks=only_in_full),
    ],
)
def test_difficult_scans_are_read_with_few_errors(bound: Book, name: str, most: float) -> None:
    [at] = [at for at, path in enumerate(SCANS) if path.stem == name]
    reader = ocr.reader_for(ocr.OcrSettings(("eng",), "fast"))

    with pdf.PagedFile(bound.path) as opened:
        read = recognise_page(reader, draw_page(opened, at + 1))

    assert character_errors([read.text], [bound.truth[at]]) < most


GRAINY = Look("grainy 200 dpi on dark paper", 200, noise=120, blur=0.5, shade=120, jpeg_quality=65)


# A point more than was measured.
@pytest.mark.parametrize(
    ("look", "most"),
    [
        pytest.param(GRAINY, 1.2, id=GRAINY.name),
        *(
            pytest.param(look, most, id=look.name, marks=only_in_full)
            for look, most in ((BLACK_AND_WHITE, 1.1), (NOISY_150, 1.1), (SPECKED, 2.1))
        ),
    ],
)
def test_pages_in_other_fonts_are_read_with_few_errors(tmp_path: Path, look: Look, most: float) -> None:
    [book] = books(tmp_path / "drawn", [look], 1, 1, seed="accuracy", lines=14, bodies=HELD_BACK_BODIES)
    reader = ocr.reader_for(ocr.OcrSettings(("eng",), "fast"))

    with pdf.PagedFile(book.path) as opened:
        read = recognise_page(reader, draw_page(opened, 1))

    assert character_errors([read.text], book.truth) < most


def test_small_print_on_coarse_paper_loses_no_line(tmp_path: Path) -> None:
    look = Look("coarse, with too little noise to be called grainy", 150, noise=40, blur=0.3, jpeg_quality=70)
    [book] = books(tmp_path / "drawn", [look], 1, 1, seed="c", lines=10, bodies=[("charis", 5.5)])
    reader = ocr.reader_for(ocr.OcrSettings(("eng",), "fast"))

    with pdf.PagedFile(book.path) as opened:
        read = recognise_page(reader, draw_page(opened, 1))

    assert character_errors([read.text], book.truth) < 1.7
