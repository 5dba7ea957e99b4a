"""Rows of dots, which every engine takes for letters: on pixels of which we know what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import character_errors
from benchmarks.corpus import CLEAN, HELD_BACK, NOISY_150, SKEWED, SPECKED, Look, contents
from job_handlers.reading import layout, ocr, pdf
from job_handlers.reading import ocr_layout as rows
from job_handlers.reading.page_recognition import draw_page, recognise_page


def test_a_title_its_dots_and_its_page_are_a_line_of_text_and_words_with_their_places(tmp_path: Path) -> None:
    """Where the engine takes titles and pages for two columns."""
    book = contents(tmp_path / "contents", [CLEAN], 1, seed="tuned", lines=9, bodies=HELD_BACK)

    with pdf.PagedFile(book.path) as opened:
        read = recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), "fast")), draw_page(opened, 1))

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
        read = recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), "fast")), draw_page(opened, 1))

    assert character_errors([read.text], book.truth) < most


def words(*placed: tuple[float, float, str]) -> list[layout.Word]:
    return [layout.Word(x, y, x + 12 * len(text), y + 30, 95, text) for x, y, text in placed]


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

    assert rows.arrange_page(one, list).text == layout.text_of(one)
    assert rows.arrange_page(two, list).text.splitlines() == [
        "Assets\t1,234\t1,190", "Equity\t800\t790", "Leases\t434\t400",
    ]  # fmt: skip
