"""Recover isolated figures in a column, which the engine takes for dirt: the ink left over is read again.

Lengths are in line heights unless stated otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from statistics import median

from job_handlers.reading import layout
from job_handlers.reading.layout import Word
from job_handlers.reading.preprocess import Box, Gray, crop, unread_marks

_MARKS_MOST = 400
_REREAD_MOST = 60
_MARGIN_ABOVE = 0.3
_MARGIN_BESIDE = 0.5
_MARK_HEIGHT_MOST = 1.6
_GAP_IN_FIGURE_MOST = 0.8
_COLUMN_GAP_MOST = 16.0
"""Vertical distance of figures in one column."""
_FIGURE = re.compile(r"[(+-]?[$€£]?\d[\d.,]{0,11}[)%]?|[-–—]")
_CONFIDENCE_OF_NEW, _CONFIDENCE_OF_REPLACEMENT = 60.0, 95.0
_GUESSED_LETTERS_MOST = 3


def insert_figures(lines: list[list[Word]], gray: Gray, read: Callable[[Gray], list[Word]]) -> list[list[Word]]:
    words = [word for line in lines for word in line]
    figures = [word for word in words if _has_digit(word)]
    if len(figures) < 2:
        return lines
    em = median([word.y1 - word.y0 for word in words])
    read_boxes = [layout.with_margin(word, _MARGIN_ABOVE * em) for word in words]
    marks = _join_marks(unread_marks(gray, read_boxes, most=_MARKS_MOST), em)
    candidates: list[tuple[Box, Word | None]] = [(box, None) for box in marks]
    candidates += [((word.x0, word.y0, word.x1, word.y1), word) for word in words if _is_guessed(word)]
    in_columns = [(box, guess) for box, guess in candidates if _is_in_column(box, figures, em)]
    completed = list(lines)
    for box, guess in in_columns[:_REREAD_MOST]:
        row = [word for line in completed for word in line if word is not guess and _is_level(word, box)]
        figure = _read_figure(box, row, gray, read, em) if row else None
        needed = _CONFIDENCE_OF_NEW if guess is None else _CONFIDENCE_OF_REPLACEMENT
        if figure is not None and figure.confidence >= needed:
            completed = _insert_figure(completed, figure, guess, box)
    return completed


def _insert_figure(lines: list[list[Word]], figure: Word, guess: Word | None, box: Box) -> list[list[Word]]:
    # A line of the guess alone goes: an empty line would separate two paragraphs.
    kept = [[word for word in line if word is not guess] for line in lines if line != [guess]]
    nearest = min(range(len(kept)), key=lambda at: _distance(kept[at], box))
    kept[nearest] = sorted([*kept[nearest], figure], key=lambda word: word.x0)
    return kept


def _has_digit(word: Word) -> bool:
    return any(map(str.isdigit, word.text))


def _is_guessed(word: Word) -> bool:
    return word.confidence < _CONFIDENCE_OF_NEW and len(word.text) <= _GUESSED_LETTERS_MOST and not _has_digit(word)


def _distance(line: Sequence[Word], box: Box) -> float:
    return min([abs(word.x1 - box[0]) for word in line if _is_level(word, box)], default=inf)


def _join_marks(marks: Sequence[Box], em: float) -> list[Box]:
    # The marks of one figure, such as "-", "1" and "2". Higher marks are not figures.
    joined: list[Box] = []
    low = [mark for mark in marks if mark[3] - mark[1] < _MARK_HEIGHT_MOST * em]
    for x0, y0, x1, y1 in sorted(low, key=lambda mark: mark[0]):
        for at, (left, top, right, bottom) in enumerate(joined):
            if x0 - right < _GAP_IN_FIGURE_MOST * em and min(y1, bottom) > max(y0, top):
                del joined[at]
                joined.append((min(left, x0), min(top, y0), max(right, x1), max(bottom, y1)))
                break
        else:
            joined.append((x0, y0, x1, y1))
    return joined


def _is_in_column(box: Box, figures: Sequence[Word], em: float) -> bool:
    x0, y0, x1, y1 = box
    margin = _MARGIN_BESIDE * em
    return any(
        word.x0 - margin < x1 and x0 < word.x1 + margin and not _is_level(word, box)
        and min(abs(word.y0 - y1), abs(y0 - word.y1)) < _COLUMN_GAP_MOST * em
        for word in figures
    )  # fmt: skip


def _is_level(word: Word, box: Box) -> bool:
    return word.y0 <= (box[1] + box[3]) / 2 <= word.y1


def _read_figure(
    box: Box, row: Sequence[Word], gray: Gray, read: Callable[[Gray], list[Word]], em: float
) -> Word | None:
    _, y0, _, y1 = layout.bounds_of(row)
    above, beside = _MARGIN_ABOVE * em, _MARGIN_BESIDE * em
    piece, left, top = crop(gray, (box[0] - beside, y0 - above, box[2] + beside, y1 + above))
    words = read(piece)
    text = "".join(word.text for word in words)
    if not _FIGURE.fullmatch(text):
        return None
    x0, y0, x1, y1 = layout.bounds_of(words)
    return Word(x0 + left, y0 + top, x1 + left, y1 + top, min(word.confidence for word in words), text)
