"""Which of two readings of a line is used."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from job_handlers.reading.layout import Word
from job_handlers.reading.ocr.second_pass import Reading, is_better_number, merge_readings


def line(*words: tuple[str, float]) -> list[Word]:
    """Return words with these texts and confidences, with 10 points for each character and space."""
    placed: list[Word] = []
    x = 0.0
    for text, confidence in words:
        placed.append(Word(x, 0, x + 10 * len(text), 20, confidence, text))
        x += 10 * (len(text) + 1)
    return placed


def text(words: Sequence[Word]) -> str:
    return " ".join(word.text for word in words)


def test_numbers_that_the_second_engine_joined_stay_apart() -> None:
    joined = [Word(0, 0, 90, 20, 99.0, "140,813$")]

    assert text(merge_readings(line(("140,873", 40.0), ("$", 40.0)), joined)) == "140,813 $"
    assert text(merge_readings(line(("140,813", 40.0), ("$", 40.0)), joined)) == "140,813 $"


@pytest.mark.parametrize(
    ("first", "second", "is_changed"),
    [
        # The same length, but other figures, letters or case: a likely text says nothing about a number.
        (Reading("342", 68), Reading("542", 99.9), False),
        (Reading("1,380", 88), Reading("1,580", 99.9), False),
        (Reading("UMIB642", 91), Reading("UMiB642", 99.9), False),
        (Reading("Q8TB0YF", 60), Reading("Q8TBOYF", 99.9), False),
        (Reading("2026-11-18", 75), Reading("2026-17-18", 99.9), False),
        # The first engine has guessed, and the second is certain.
        (Reading("GGLNW4S", 44), Reading("GGLNW48", 97), True),
        (Reading("GGLNW4S", 44), Reading("GGLNW48", 90), False),
        # A word, not a code.
        (Reading("Florida", 60), Reading("F1orida", 99.9), False),
        (Reading("Total", 96), Reading("Tota1", 99.9), False),
        # One reading is no number, or has lost a part of it.
        (Reading("ane", 60), Reading("404", 99), True),
        (Reading("«84570", 37), Reading("457", 99), True),
        (Reading("M45", 63), Reading("145", 99), False),
        (Reading("2,", 75), Reading("2.", 99), True),
        (Reading("17", 61), Reading("117", 99), True),
        (Reading("17", 96), Reading("117", 80), False),
        (Reading("819", 53), Reading("§19", 99), True),
    ],
)
def test_a_number_or_code_is_replaced_only_if_the_first_engine_was_guessing(
    first: Reading, second: Reading, is_changed: bool
) -> None:
    assert is_better_number(second, first) is is_changed

    [place] = line(first)
    merged = merge_readings([place], [Word(place.x0 + 1, 0, place.x1 - 1, 20, second.confidence, second.text)])
    assert text(merged) == (second.text if is_changed else first.text)
