"""Rows of dots, which every engine takes for letters: on pixels of which we know what stands there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from benchmarks.accuracy import character_errors
from benchmarks.corpus import CLEAN, HELD_BACK, contents
from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading.gray import Gray
from job_handlers.reading.ocr.leaders import leaders
from job_handlers.reading.ocr_pages import draw, read_page

HEIGHT = 36


def line(*marks: tuple[int, int, int, int]) -> Gray:
    image = Image.new("L", (900, HEIGHT), 255)
    pen = ImageDraw.Draw(image)
    for mark in marks:
        pen.rectangle(mark, fill=0)
    return Gray(image.width, image.height, image.tobytes())


def dots(count: int, *, begin: int = 200, apart: int = 15, y: int = 28) -> list[tuple[int, int, int, int]]:
    return [(x, y, x + 4, y + 4) for x in range(begin, begin + count * apart, apart)]


def counts(page: Gray) -> list[int]:
    return [one.dots for one in leaders(page, (0, 0, page.width, page.height), HEIGHT)]


def test_marks_that_are_small_alike_and_evenly_apart_are_a_row_of_dots() -> None:
    [found] = leaders(line((100, 4, 130, 32), *dots(20), (600, 4, 640, 32)), (0, 0, 900, HEIGHT), HEIGHT)

    assert (found.x0, found.y0, found.x1, found.y1, found.dots) == (200, 28, 490, 33, 20)
    # From title to title, and as far apart as some have them.
    assert counts(line(*dots(9), (350, 4, 380, 32), *dots(12, begin=400))) == [9, 12]
    assert counts(line(*dots(8, apart=60))) == [8]


@pytest.mark.parametrize(
    "marks",
    [
        pytest.param(dots(4), id="an ellipsis"),
        pytest.param(dots(9, y=4), id="high above the line"),
        pytest.param([(x, 4, x + 4, 32) for x in range(200, 400, 12)], id="letters such as l and i"),
        pytest.param([(x, 28, x + 4, 32) for x in (200, 212, 250, 262, 330, 345, 400)], id="at any distance"),
        pytest.param(
            [(x, y, x + 4, y + 4) for x, y in zip(range(200, 320, 15), [20, 29] * 4, strict=True)], id="zigzag"
        ),
    ],
)
def test_other_marks_are_none(marks: list[tuple[int, int, int, int]]) -> None:
    assert counts(line(*marks)) == []


def test_specks_cut_no_row_in_two() -> None:
    chance = random.Random("specks")
    specks = [
        (x, y, x + 1, y + 1) for x, y in ((chance.randrange(190, 700), chance.randrange(2, 20)) for _ in range(12))
    ]

    assert counts(line(*dots(30), *specks)) == [30]


def test_a_title_its_dots_and_its_page_are_a_line_of_text_and_words_with_their_places(tmp_path: Path) -> None:
    """Where the engine takes titles and pages for two columns."""
    book = contents(tmp_path / "contents", [CLEAN], 1, seed="tuned", lines=9, bodies=HELD_BACK)

    with pdf.Book(book.path) as opened:
        read = read_page(ocr.reader_for(ocr.WayToRead(("eng",), "fast")), draw(opened, 1))

    assert character_errors([read.text], book.truth) < 1
    told = layout.read(read.layout or "")
    assert [word.text for one in told.lines for word in one] == read.text.split()
    rows = [word for one in told.lines for word in one if word.text.startswith("......")]
    assert len(rows) == 8
    assert all(word.x1 - word.x0 > 100 and word.y1 - word.y0 < 3 for word in rows)
