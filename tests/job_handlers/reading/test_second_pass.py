"""What of two readings of a line stays."""

from __future__ import annotations

import pytest

from job_handlers.reading.layout import Word
from job_handlers.reading.ocr.second_pass import are_better_figures, merge_line


def line(*words: tuple[str, float], width: float = 10.0) -> list[Word]:
    """Each character as wide, a space between words."""
    found = []
    x = 0.0
    for text, confidence in words:
        found.append(Word(x, 0, x + width * len(text), 20, confidence, text))
        x += width * (len(text) + 1)
    return found


def text(words: list[Word]) -> str:
    return " ".join(word.text for word in words)


def test_numbers_that_only_the_first_told_apart_stay_apart() -> None:
    first = line(("140,873", 40.0), ("$", 40.0))
    second = [Word(0, 0, 90, 20, 99.0, "140,813$")]

    assert text(merge_line(first, second)) == "140,813 $"
    assert text(merge_line(line(("140,813", 40.0), ("$", 40.0)), second)) == "140,813 $"


def line_at(first: list[Word], begin: int, words: list[Word]) -> list[Word]:
    """The same words, where those of another line stand."""
    return [
        Word(there.x0 + 1, 0, there.x1 - 1, 20, word.confidence, word.text)
        for there, word in zip(first[begin:], words, strict=False)
    ]


@pytest.mark.parametrize(
    ("first", "how_sure", "second", "how_sure_the_second", "is_changed"),
    [
        # The same length, other figures, letters or case: what is likelier says nothing of a number.
        ("342", 68, "542", 99.9, False),
        ("1,380", 88, "1,580", 99.9, False),
        ("UMIB642", 91, "UMiB642", 99.9, False),
        ("Q8TB0YF", 60, "Q8TBOYF", 99.9, False),
        ("2026-11-18", 75, "2026-17-18", 99.9, False),
        # It guessed, and the second is certain.
        ("GGLNW4S", 44, "GGLNW48", 97, True),
        ("GGLNW4S", 44, "GGLNW48", 90, False),
        # A word, and not a code.
        ("Florida", 60, "F1orida", 99.9, False),
        ("Total", 96, "Tota1", 99.9, False),
        # No number at all, or one that has lost some of itself.
        ("ane", 60, "404", 99, True),
        ("«84570", 37, "457", 99, True),
        ("M45", 63, "145", 99, False),
        ("2,", 75, "2.", 99, True),
        ("17", 61, "117", 99, True),
        ("17", 96, "117", 80, False),
        ("819", 53, "§19", 99, True),
    ],
)
def test_a_number_or_a_code_is_changed_only_where_the_first_was_guessing(
    first: str, how_sure: float, second: str, how_sure_the_second: float, is_changed: bool
) -> None:
    assert are_better_figures(first, how_sure, second, how_sure_the_second) is is_changed

    found = merge_line(line((first, how_sure)), line_at(line((first, 0.0)), 0, line((second, how_sure_the_second))))
    assert text(found) == (second if is_changed else first)
