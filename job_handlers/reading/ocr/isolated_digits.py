"""Recover isolated numbers in a column, which the engine takes for dirt, by reading the ink outside all words again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from statistics import median
from typing import NamedTuple

from job_handlers.reading import layout
from job_handlers.reading.layout import Box, Word
from job_handlers.reading.ocr.dot_leaders import ReadLine
from job_handlers.reading.preprocess import Gray, unread_marks

_MARKS_MOST = 400  # If a page has more, all are dirt.
_REREAD_MOST = 60  # Limits the time that a page takes.
# Lengths in line heights.
_MARGIN_ABOVE = 0.3
_MARGIN_BESIDE = 0.5
_MARK_HEIGHT_MOST = 1.6
_GAP_IN_NUMBER_MOST = 0.8
_COLUMN_GAP_MOST = 16.0  # Vertical distance of numbers in one column.
_NUMBER = re.compile(r"[(+-]?[$€£]?\d[\d.,]{0,11}[)%]?|[-–—]")  # Or a dash in place of a number.
_CERTAIN_CONFIDENCE, _REPLACEMENT_CONFIDENCE_LEAST = 60.0, 95.0  # Percent. Less than the first is uncertain.
_GUESS_CHARACTERS_MOST = 3


class _Candidate(NamedTuple):
    box: Box
    guess: Word | None
    """An uncertain word at this place, which the number would replace."""


def insert_numbers(lines: list[list[Word]], gray: Gray, read_line: ReadLine) -> list[list[Word]]:
    words = [word for line in lines for word in line]
    numbers = [word for word in words if _has_digit(word)]
    if len(numbers) < 2:
        return lines
    em = median([word.y1 - word.y0 for word in words])
    word_boxes = [layout.with_margin(word, _MARGIN_ABOVE * em) for word in words]
    marks = _join_marks(unread_marks(gray, word_boxes, marks_most=_MARKS_MOST), em)
    candidates = [_Candidate(mark, None) for mark in marks]
    candidates += [_Candidate((word.x0, word.y0, word.x1, word.y1), word) for word in words if _is_guess(word)]
    candidates_in_columns = [candidate for candidate in candidates if _is_in_column(candidate.box, numbers, em)]
    completed = list(lines)
    for box, guess in candidates_in_columns[:_REREAD_MOST]:
        row = [word for line in completed for word in line if word is not guess and _is_level(word, box)]
        number = _read_number(box, row, read_line, em) if row else None
        confidence_least = _CERTAIN_CONFIDENCE if guess is None else _REPLACEMENT_CONFIDENCE_LEAST
        if number is not None and number.confidence >= confidence_least:
            completed = _insert_number(completed, number, guess, box)
    return completed


def _has_digit(word: Word) -> bool:
    return any(map(str.isdigit, word.text))


def _join_marks(marks: Sequence[Box], em: float) -> list[Box]:
    # A number, such as "-12", may have several marks. Taller marks are not numbers.
    joined: list[Box] = []
    low = [mark for mark in marks if mark[3] - mark[1] < _MARK_HEIGHT_MOST * em]
    for x0, y0, x1, y1 in sorted(low, key=lambda mark: mark[0]):
        for at, (left, top, right, bottom) in enumerate(joined):
            if x0 - right < _GAP_IN_NUMBER_MOST * em and min(y1, bottom) > max(y0, top):
                del joined[at]
                joined.append((min(left, x0), min(top, y0), max(right, x1), max(bottom, y1)))
                break
        else:
            joined.append((x0, y0, x1, y1))
    return joined


def _is_guess(word: Word) -> bool:
    return word.confidence < _CERTAIN_CONFIDENCE and len(word.text) <= _GUESS_CHARACTERS_MOST and not _has_digit(word)


def _is_in_column(box: Box, numbers: Sequence[Word], em: float) -> bool:
    x0, y0, x1, y1 = box
    margin = _MARGIN_BESIDE * em
    return any(
        number.x0 - margin < x1 and x0 < number.x1 + margin and not _is_level(number, box)
        and min(abs(number.y0 - y1), abs(y0 - number.y1)) < _COLUMN_GAP_MOST * em
        for number in numbers
    )  # fmt: skip


def _is_level(word: Word, box: Box) -> bool:
    _, y0, _, y1 = box
    return word.y0 <= (y0 + y1) / 2 <= word.y1


def _read_number(box: Box, row: Sequence[Word], read_line: ReadLine, em: float) -> Word | None:
    x0, _, x1, _ = box
    _, y0, _, y1 = layout.bounds_of(row)
    above, beside = _MARGIN_ABOVE * em, _MARGIN_BESIDE * em
    words = read_line((x0 - beside, y0 - above, x1 + beside, y1 + above))
    text = "".join(word.text for word in words)
    if not _NUMBER.fullmatch(text):
        return None
    return Word(*layout.bounds_of(words), min(word.confidence for word in words), text)


def _insert_number(lines: list[list[Word]], number: Word, guess: Word | None, box: Box) -> list[list[Word]]:
    # Drop a line of the guess alone: an empty line would separate two paragraphs.
    completed = [[word for word in line if word is not guess] for line in lines if line != [guess]]
    nearest = min(completed, key=lambda line: _distance(line, box))
    nearest.append(number)
    nearest.sort(key=lambda word: word.x0)
    return completed


def _distance(line: Sequence[Word], box: Box) -> float:
    return min([abs(word.x1 - box[0]) for word in line if _is_level(word, box)], default=inf)
