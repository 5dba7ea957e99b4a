"""Single numbers in a column, far from the other words of their row."""

from __future__ import annotations

import random
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image, ImageDraw

from job_handlers.reading import layout, ocr
from job_handlers.reading.page_recognition import PagePicture, recognise_page
from tests.job_handlers.reading.documents import gray_of

pymupdf: Any = partly_typed

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
        pixmap = page.get_pixmap(dpi=dpi, colorspace=pymupdf.csGRAY)
    image = Image.frombytes("L", (pixmap.width, pixmap.height), bytes(pixmap.samples))
    chance, pen = random.Random(1), ImageDraw.Draw(image)
    for _ in range(specks):
        x, y = chance.randrange(image.width), chance.randrange(image.height)
        pen.ellipse((x, y, x + dpi // 60, y + dpi // 60), fill=0)
    return PagePicture(1, (595, 842), gray_of(image), float(dpi))


@pytest.mark.parametrize("dpi", [200, 300])
def test_a_number_alone_in_its_cell_is_read(dpi: int) -> None:
    page = recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), "fast")), page_of(dpi))

    assert page.text.strip().split("\n") == ["\t".join(row) for row in ROWS]
    [table] = layout.decode(page.layout or "").tables
    assert [[cell.text if cell else "" for cell in row] for row in table.rows] == [list(row) for row in ROWS]


def test_specks_become_no_numbers() -> None:
    page = recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), "fast")), page_of(300, specks=60))

    numbers = [cell for line in page.text.split("\n") for cell in line.split("\t") if any(map(str.isdigit, cell))]
    assert len(numbers) <= sum(any(map(str.isdigit, cell)) for row in ROWS for cell in row)
