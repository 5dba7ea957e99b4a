"""Dot leaders, which OCR engines take for letters, on pages whose text is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.accuracy import character_errors
from benchmarks.corpus import CLEAN, HELD_BACK, NOISY_150, SKEWED, SPECKED, Look, contents
from job_handlers.reading import layout, ocr, ocr_layout, pdf
from job_handlers.reading.page_recognition import PageReading, draw_page, recognise_page


def recognised(path: Path) -> PageReading:
    with pdf.PagedFile(path) as book:
        return recognise_page(ocr.reader_for(ocr.OcrSettings(("eng",), "fast")), draw_page(book, 1))


def test_a_title_its_dots_and_its_page_number_are_one_line(tmp_path: Path) -> None:
    """The engine takes the titles and the page numbers for two columns."""
    book = contents(tmp_path / "contents", [CLEAN], 1, seed="tuned", lines=9, bodies=HELD_BACK)

    page = recognised(book.path)

    assert character_errors([page.text], book.truth) < 1
    words_on_page = [word for line in layout.decode(page.layout or "").lines for word in line]
    assert [word.text for word in words_on_page] == page.text.split()
    leaders = [word for word in words_on_page if word.text.startswith("......")]
    assert len(leaders) == 8
    assert all(leader.x1 - leader.x0 > 100 and leader.y1 - leader.y0 < 3 for leader in leaders)


# A percentage point more than was measured, or half a point if less than that was measured.
@pytest.mark.parametrize(
    ("look", "seed", "errors_most"),
    [
        pytest.param(SKEWED, "c", 1.5, id="skewed"),
        pytest.param(NOISY_150, "d", 1, id="coarse and noisy"),
        pytest.param(SPECKED, "b", 1, id="with specks"),
    ],
)
def test_leaders_cost_no_title_and_no_page_number(tmp_path: Path, look: Look, seed: str, errors_most: float) -> None:
    book = contents(tmp_path / "contents", [look], 1, seed=seed, lines=14, bodies=HELD_BACK)

    assert character_errors([recognised(book.path).text], book.truth) < errors_most


def words(*placed: tuple[float, float, str]) -> list[layout.Word]:
    return [layout.Word(x, y, x + 12 * len(text), y + 30, 95, text) for x, y, text in placed]


def statement(*rows: tuple[str, ...]) -> list[list[layout.Word]]:
    """Return lines with dots from a label to figures in columns."""
    return [
        [
            *words((60, y, label)),
            layout.Word(300, y + 25, 600, y + 30, 99, "." * 25),
            *(word for x, figure in zip((700, 900, 1100), figures, strict=False) for word in words((x, y, figure))),
        ]
        for y, (label, *figures) in zip(range(0, 1000, 60), rows, strict=False)
    ]


def test_dots_lead_to_a_number_in_the_same_line_or_to_columns_of_figures() -> None:
    numbers = statement(("Assets", "12"), ("Equity", "34"), ("Leases", "107"), ("Pensions", "198"))
    columns = statement(("Assets", "1,234", "1,190"), ("Equity", "800", "790"), ("Leases", "434", "400"))

    assert ocr_layout.arrange_page(numbers, list).text == layout.text_of(numbers)
    assert ocr_layout.arrange_page(columns, list).text.splitlines() == [
        "Assets\t1,234\t1,190", "Equity\t800\t790", "Leases\t434\t400",
    ]  # fmt: skip
