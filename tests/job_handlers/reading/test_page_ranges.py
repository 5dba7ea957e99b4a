"""Ranges of pages, and digests of pages."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from job_handlers.reading.document import PageSource, layer_digest, ocr_digest, pixels_digest
from job_handlers.reading.page_ranges import RANGE_PAGES_MAX, Scan, costs_of, divide_pages, format_ranges, read_ranges
from job_handlers.reading.preprocess import Gray, pixels_hash
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
    ranges = divide_pages(list(range(1, pages + 1)), slots, {})

    assert [len(numbers) for numbers in ranges] == sizes
    assert [*chain(*ranges)] == list(range(1, pages + 1))


@pytest.mark.parametrize(("pages", "slots"), [(2, 2), (12, 2), (13, 2), (24, 2), (25, 2), (60, 2), (30, 4), (100, 3)])
def test_parallel_ranges_have_equal_costs(pages: int, slots: int) -> None:
    numbers = list(range(1, pages + 1))
    chance = random.Random(pages)
    costs = {number: chance.uniform(0.2, 1.8) for number in numbers}

    ranges = divide_pages(numbers, slots, costs)

    assert len(ranges) == len(divide_pages(numbers, slots, {}))
    assert sorted(chain(*ranges)) == numbers
    assert all(pages == sorted(pages) and 1 <= len(pages) <= RANGE_PAGES_MAX for pages in ranges)
    sums = [sum(costs[number] for number in pages) for pages in ranges]
    for at in range(0, len(sums), slots):
        parallel = sums[at : at + slots]
        assert max(parallel) - min(parallel) <= max(costs.values())
    if pages == 12:
        assert max(sums) - min(sums) < 0.1


def test_consecutive_pages_stay_together_if_balancing_gains_nothing() -> None:
    numbers = list(range(1, 15))

    similar_costs = {number: 1 + number % 3 / 100 for number in numbers}
    assert divide_pages(numbers, 2, similar_costs) == divide_pages(numbers, 2, {})


def test_the_cost_of_a_page_is_its_size_relative_to_pages_of_the_same_packing() -> None:
    scans = {1: Scan("jpeg", 300), 2: Scan("jpeg", 200), 3: Scan("jpeg", 100), 4: Scan("fax", 10), 5: Scan("", 0)}
    photographs = {number: Scan("jpeg", 100) for number in range(1, 12)} | {12: Scan("jpeg", 10_000)}

    assert costs_of(scans) == {1: 1.5, 2: 1.0, 3: 0.5, 4: 1.0}
    assert costs_of(photographs)[12] == 2.0
    assert costs_of(photographs)[1] == 1.0
    assert costs_of({}) == {}


def test_ranges_are_written_and_parsed() -> None:
    assert format_ranges([9, 1, 2, 3, 7, 8, 12]) == "1-3,7-9,12"
    assert read_ranges("1-3,7-9,12", 20) == [1, 2, 3, 7, 8, 9, 12]


@pytest.mark.parametrize("text", ["", "0", "3-1", "1-", "a", "1-21", "1,,2", "1-999999999"])
def test_a_text_that_names_no_pages_is_refused(text: str) -> None:
    with pytest.raises(Permanent, match="names no pages"):
        read_ranges(text, 20)


def test_digests_differ_by_all_that_may_change_the_result() -> None:
    digests = {
        layer_digest(PageSource("c", "p"), 1),
        layer_digest(PageSource("c", "p"), 2),
        layer_digest(PageSource("d", "p"), 1),
        ocr_digest(PageSource("c", "p"), 1, ["eng"], "fast", "e 5"),
        ocr_digest(PageSource("d", "p"), 1, ["eng"], "fast", "e 5"),
        ocr_digest(PageSource("c", "p"), 2, ["eng"], "fast", "e 5"),
        ocr_digest(PageSource("c", "p"), 1, ["deu"], "fast", "e 5"),
        ocr_digest(PageSource("c", "p"), 1, ["eng", "deu"], "fast", "e 5"),
        ocr_digest(PageSource("c", "p"), 1, ["eng"], "best", "e 5"),
        ocr_digest(PageSource("c", "p"), 1, ["eng"], "fast", "e 6"),
        ocr_digest(PageSource("c", "q"), 1, ["eng"], "fast", "e 5"),
    }
    assert len(digests) == 11


def test_pages_that_differ_by_a_shade_or_a_size_have_different_digests() -> None:
    page = Gray(3, 2, bytes(range(6)))
    hashes = {
        pixels_hash(page, 300, (10, 10)),
        pixels_hash(Gray(3, 2, bytes([0, 1, 2, 3, 4, 6])), 300, (10, 10)),
        pixels_hash(Gray(2, 3, page.samples), 300, (10, 10)),
        pixels_hash(page, 150, (10, 10)),
        pixels_hash(page, 300, (10, 11)),
    }

    assert len(hashes) == 5
    assert len({pixels_digest(name, ["eng"], "fast", "engine") for name in hashes}) == 5
