"""Which pages go together, and which are the same."""

from __future__ import annotations

import pytest

from job_handlers.page_settings import layer_digest, ocr_digest, parts, read_ranges, written_ranges
from worker_service.handlers import Permanent


@pytest.mark.parametrize(
    ("pages", "slots", "sizes"),
    [
        (0, 2, []),
        (1, 2, [1]),
        (12, 1, [12]),
        (12, 2, [6, 6]),
        (13, 2, [7, 6]),
        (24, 2, [12, 12]),
        (25, 2, [7, 6, 6, 6]),
        (30, 4, [8, 8, 7, 7]),
        (100, 2, [10] * 10),
    ],
)
def test_ranges_are_at_most_twelve_pages_and_fill_the_slots(pages: int, slots: int, sizes: list[int]) -> None:
    found = parts(list(range(1, pages + 1)), slots)

    assert [len(one) for one in found] == sizes
    assert [number for one in found for number in one] == list(range(1, pages + 1))


def test_ranges_are_read_as_they_are_written() -> None:
    assert written_ranges([9, 1, 2, 3, 7, 8, 12]) == "1-3,7-9,12"
    assert read_ranges("1-3,7-9,12", 20) == [1, 2, 3, 7, 8, 9, 12]


@pytest.mark.parametrize("text", ["", "0", "3-1", "1-", "a", "1-21", "1,,2", "1-999999999"])
def test_what_names_no_pages_is_refused(text: str) -> None:
    with pytest.raises(Permanent, match="names no pages"):
        read_ranges(text, 20)


def test_the_digest_of_a_page_with_text_knows_no_language_and_that_of_a_read_page_does() -> None:
    assert layer_digest("c", 1, "p") != layer_digest("c", 2, "p")
    assert layer_digest("c", 1, "p") != layer_digest("d", 1, "p")
    base = ocr_digest("c", 1, ["eng"], "fast", "e 5", "p")
    others = {
        ocr_digest("d", 1, ["eng"], "fast", "e 5", "p"),
        ocr_digest("c", 2, ["eng"], "fast", "e 5", "p"),
        ocr_digest("c", 1, ["deu"], "fast", "e 5", "p"),
        ocr_digest("c", 1, ["eng", "deu"], "fast", "e 5", "p"),
        ocr_digest("c", 1, ["eng"], "best", "e 5", "p"),
        ocr_digest("c", 1, ["eng"], "fast", "e 6", "p"),
        ocr_digest("c", 1, ["eng"], "fast", "e 5", "q"),
    }
    assert len({base, *others}) == 8
