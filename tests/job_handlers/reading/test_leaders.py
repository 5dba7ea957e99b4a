"""Rows of dots, which every engine takes for letters: on pixels of which we know what stands there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from benchmarks.accuracy import character_errors
from benchmarks.corpus import CLEAN, HELD_BACK, NOISY_150, SKEWED, SPECKED, Look, contents
from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading import ocr_layout as rows
from job_handlers.reading.ocr.dot_leaders import are_left_out, arrange_rows, find_leaders
from job_handlers.reading.ocr_pages import draw, read_page
from job_handlers.reading.preprocess import Gray

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
    return [one.dots for one in find_leaders(page, (0, 0, page.width, page.height), HEIGHT)]


def test_marks_that_are_small_alike_and_evenly_apart_are_a_row_of_dots() -> None:
    [found] = find_leaders(line((100, 4, 130, 32), *dots(20), (600, 4, 640, 32)), (0, 0, 900, HEIGHT), HEIGHT)

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

    with pdf.PagedFile(book.path) as opened:
        read = read_page(ocr.reader_for(ocr.WayToRead(("eng",), "fast")), draw(opened, 1))

    assert character_errors([read.text], book.truth) < 1
    told = layout.decode(read.layout or "")
    assert [word.text for one in told.lines for word in one] == read.text.split()
    led = [word for one in told.lines for word in one if word.text.startswith("......")]
    assert len(led) == 8
    assert all(word.x1 - word.x0 > 100 and word.y1 - word.y0 < 3 for word in led)


# A point more than was measured, except where that is less than half of one.
@pytest.mark.parametrize(
    ("look", "seed", "most"),
    [
        pytest.param(SKEWED, "c", 1.5, id="askew: half of the lines were lost"),
        pytest.param(NOISY_150, "d", 1, id="coarse and noisy: the dots were, and the pages"),
        pytest.param(SPECKED, "b", 1, id="with specks"),
    ],
)
def test_rows_of_dots_cost_no_title_and_no_page(tmp_path: Path, look: Look, seed: str, most: float) -> None:
    book = contents(tmp_path / "contents", [look], 1, seed=seed, lines=14, bodies=HELD_BACK)

    with pdf.PagedFile(book.path) as opened:
        read = read_page(ocr.reader_for(ocr.WayToRead(("eng",), "fast")), draw(opened, 1))

    assert character_errors([read.text], book.truth) < most


def words(*placed: tuple[float, float, str]) -> list[layout.Word]:
    return [layout.Word(x, y, x + 12 * len(text), y + 30, 95, text) for x, y, text in placed]


def test_pieces_become_rows_from_the_left_to_the_right_of_the_page() -> None:
    pages, titles = [words((900, y, "7")) for y in (0, 52, 104, 300)], ["One", "Two", "Three", "Index"]
    pieces = [*pages, *(words((0, y + 6, title)) for y, title in zip((0, 52, 104, 300), titles, strict=True)), []]

    told = [[word.text for word in row] for row in arrange_rows(pieces)]

    assert told == [["One", "7"], ["Two", "7"], ["Three", "7"], [], ["Index", "7"]]


def test_dots_that_were_read_as_letters_are_no_row_of_their_own() -> None:
    titles = [words((0, y, "Title")) for y in range(0, 300, 50)]
    specks = [[layout.Word(400, y + 3, 420, y + 9, 20, "ce")] for y in range(0, 300, 50)]

    assert [[word.text for word in row] for row in arrange_rows([*specks, *titles])] == [["Title", "ce"]] * 6


def test_pages_are_looked_at_again_where_something_beside_dots_was_not_read() -> None:
    told = [
        [layout.Word(0, y, 180, y + 30, 95, "Title"), layout.Word(200, y + 25, 500, y + 30, 99, "." * 20),
         layout.Word(520, y, 560, y + 30, 95, "7")] for y in (100, 200, 300)
    ]  # fmt: skip
    image = Image.new("L", (900, 900), 255)
    pen = ImageDraw.Draw(image)
    for word in (word for row in told for word in row):
        pen.rectangle((word.x0, word.y0, word.x1, word.y1), fill=0)
    page = Gray(image.width, image.height, image.tobytes())
    pen.rectangle((0, 400, 180, 430), fill=0)
    with_more = Gray(image.width, image.height, image.tobytes())

    assert not are_left_out(told, page)
    assert are_left_out(told, with_more)
    assert are_left_out([row[:2] for row in told], page)
    # No more than an ellipsis or two.
    assert not are_left_out(told[:2], with_more)


def statement(*rows: tuple[str, ...]) -> list[list[layout.Word]]:
    """Rows of dots from a label to figures that stand in columns."""
    return [
        [
            *words((60, y, label)),
            layout.Word(300, y + 25, 600, y + 30, 99, "." * 25),
            *(word for x, figure in zip((700, 900, 1100), figures, strict=False) for word in words((x, y, figure))),
        ]
        for y, (label, *figures) in zip(range(0, 1000, 60), rows, strict=False)
    ]


def test_what_dots_lead_to_stays_in_its_line_unless_it_is_columns_of_figures() -> None:
    one = statement(("Assets", "12"), ("Equity", "34"), ("Leases", "107"), ("Pensions", "198"))
    two = statement(("Assets", "1,234", "1,190"), ("Equity", "800", "790"), ("Leases", "434", "400"))

    assert rows.arranged(one, list).text == layout.text_of(one)
    assert rows.arranged(two, list).text.splitlines() == [
        "Assets\t1,234\t1,190", "Equity\t800\t790", "Leases\t434\t400",
    ]  # fmt: skip
