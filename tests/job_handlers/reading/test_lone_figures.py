"""Figures that stand alone in their column, and far from the rest of their row."""

from __future__ import annotations

import random
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image, ImageDraw

from job_handlers.reading import layout, ocr
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr import isolated_digits
from job_handlers.reading.ocr_pages import PagePicture, read_page
from job_handlers.reading.preprocess import Gray, unread_marks

pymupdf: Any = partly_typed

needs_engine = pytest.mark.skipif(ocr.missing() is not None, reason=f"{ocr.missing()}")

ROWS = (
    ("Region", "2021", "2022", "2023", "2024"),
    ("North", "1", "0", "4", "7"),
    ("South", "2", "3", "-", "8"),
    ("East", "5", "1", "6", "0"),
    ("Sum", "8", "4", "10", "15"),
)


def page_of(dpi: int, *, specks: int = 0) -> PagePicture:
    with pymupdf.open() as document:
        page = document.new_page(width=595, height=842)
        for line, row in enumerate(ROWS):
            for column, text in enumerate(row):
                page.insert_text((73 + (90 + 71 * column if column else 0), 550 + 18 * line), text, fontsize=10)
        drawn = page.get_pixmap(dpi=dpi, colorspace=pymupdf.csGRAY)
    image = Image.frombytes("L", (drawn.width, drawn.height), bytes(drawn.samples))
    dice, pen = random.Random(1), ImageDraw.Draw(image)
    for _ in range(specks):
        x, y = dice.randrange(image.width), dice.randrange(image.height)
        pen.ellipse((x, y, x + dpi // 60, y + dpi // 60), fill=0)
    return PagePicture(1, (595, 842), Gray(image.width, image.height, image.tobytes()), float(dpi))


@needs_engine
@pytest.mark.parametrize("dpi", [200, 300])
def test_a_figure_alone_in_its_cell_is_read(dpi: int) -> None:
    read = read_page(ocr.reader_for(ocr.WayToRead(("eng",), "fast")), page_of(dpi))

    assert read.text.strip().split("\n") == ["\t".join(row) for row in ROWS]
    [table] = layout.decode(read.layout or "").tables
    assert [[cell.text if cell else "" for cell in row] for row in table.rows] == [list(row) for row in ROWS]


def words(*places: tuple[float, float, str]) -> list[list[Word]]:
    return [[Word(x, y, x + 20.0 * len(text), y + 30.0, 95.0, text)] for x, y, text in places]


def marked(*boxes: tuple[int, int, int, int]) -> Gray:
    image = Image.new("L", (1000, 400), 255)
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, fill=0)
    return Gray(image.width, image.height, image.tobytes())


@pytest.mark.parametrize(
    ("mark", "said", "is_put_in"),
    [
        ((505, 105, 520, 130), "7", True),
        ((505, 115, 520, 120), "-", True),
        ((505, 105, 520, 130), "a", False),
        ((505, 105, 520, 130), "", False),
        # In no column of figures, or in no row.
        ((805, 105, 820, 130), "7", False),
        ((505, 205, 520, 230), "7", False),
    ],
)
def test_only_a_figure_in_a_row_and_in_a_column_of_figures_is_put_in(
    mark: tuple[int, int, int, int], said: str, is_put_in: bool
) -> None:
    lines = words((100, 50, "Region"), (500, 50, "2024"), (100, 100, "North"), (300, 100, "12"))

    found = isolated_digits.insert_figures(
        lines, marked(mark), lambda piece: [Word(5, 5, 20, 30, 90.0, said)] if said else []
    )

    texts = [[word.text for word in line] for line in found]
    assert texts == [["Region"], ["2024"], ["North"], ["12", *([said] if is_put_in else [])]]


def test_marks_hang_together_and_many_of_them_are_dirt() -> None:
    page = marked((100, 100, 120, 130), (118, 128, 140, 160), (500, 100, 520, 130))

    [one, other] = sorted(unread_marks(page, [], most=9))

    assert one == pytest.approx((100, 100, 141, 161), abs=3)
    assert other == pytest.approx((500, 100, 521, 131), abs=3)
    assert len(unread_marks(page, [(90.0, 90.0, 150.0, 170.0)], most=9)) == 1
    assert unread_marks(page, [], most=1) == []


@needs_engine
def test_specks_become_no_figures() -> None:
    read = read_page(ocr.reader_for(ocr.WayToRead(("eng",), "fast")), page_of(300, specks=60))

    figures = [cell for line in read.text.split("\n") for cell in line.split("\t") if any(map(str.isdigit, cell))]
    assert len(figures) <= sum(any(map(str.isdigit, cell)) for row in ROWS for cell in row)
