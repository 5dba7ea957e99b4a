"""Recover isolated figures in a column, which the engine takes for dirt: the ink left over is read again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from statistics import median

from job_handlers.reading import layout
from job_handlers.reading.layout import Word
from job_handlers.reading.preprocess import Box, Gray, crop, unread_marks

_MARKS_MOST = 400
_READ_MOST = 60
_ROOM = 0.3
_HIGH_MOST = 1.6
_TOGETHER = 0.8
_NEAR = 16.0
"""Line heights."""
_BESIDE = 0.5
_FIGURE = re.compile(r"[(+-]?[$€£]?\d[\d.,]{0,11}[)%]?|[-–—]")
_SURE, _CERTAIN = 60.0, 95.0
_GUESSED_MOST = 3
"""Letters."""


def insert_figures(lines: list[list[Word]], gray: Gray, read: Callable[[Gray], list[Word]]) -> list[list[Word]]:
    words = [word for line in lines for word in line]
    figures = [word for word in words if any(map(str.isdigit, word.text))]
    if len(figures) < 2:
        return lines
    em = median([word.y1 - word.y0 for word in words])
    marks = unread_marks(gray, [layout.with_margin(word, _ROOM * em) for word in words], most=_MARKS_MOST)
    left_out: list[tuple[Box, Word | None]] = [(box, None) for box in _join_marks(marks, em)]
    guessed: list[tuple[Box, Word | None]] = [(_box_of(word), word) for word in words if _is_guessed(word)]
    found = list(lines)
    for box, guess in [one for one in [*left_out, *guessed] if _is_in_column(one[0], figures, em)][:_READ_MOST]:
        row = [word for line in found for word in line if word is not guess and _is_level(word, box)]
        word = _read_figure(box, row, gray, read, em) if row else None
        # A replacement must be more certain than the reading it replaces.
        if word is not None and word.confidence >= (_SURE if guess is None else _CERTAIN):
            # An empty line separates two paragraphs.
            found = [[one for one in line if one is not guess] for line in found if line != [guess]]
            at = min(range(len(found)), key=lambda at: _distance(found[at], box))
            found[at] = sorted([*found[at], word], key=lambda one: one.x0)
    return found


def _is_guessed(word: Word) -> bool:
    return word.confidence < _SURE and len(word.text) <= _GUESSED_MOST and not any(map(str.isdigit, word.text))


def _box_of(word: Word) -> Box:
    return word.x0, word.y0, word.x1, word.y1


def _distance(line: Sequence[Word], box: Box) -> float:
    return min([abs(word.x1 - box[0]) for word in line if _is_level(word, box)], default=inf)


def _join_marks(marks: Sequence[Box], em: float) -> list[Box]:
    found: list[Box] = []
    for mark in sorted((one for one in marks if one[3] - one[1] < _HIGH_MOST * em), key=lambda one: one[0]):
        beside = [
            at for at, one in enumerate(found)
            if mark[0] - one[2] < _TOGETHER * em and min(mark[3], one[3]) > max(mark[1], one[1])
        ]  # fmt: skip
        if beside:
            one = found.pop(beside[0])
            mark = min(one[0], mark[0]), min(one[1], mark[1]), max(one[2], mark[2]), max(one[3], mark[3])
        found.append(mark)
    return found


def _is_in_column(box: Box, figures: Sequence[Word], em: float) -> bool:
    x0, y0, x1, y1 = box
    return any(
        word.x0 - _BESIDE * em < x1 and x0 < word.x1 + _BESIDE * em and not _is_level(word, box)
        and min(abs(word.y0 - y1), abs(y0 - word.y1)) < _NEAR * em
        for word in figures
    )  # fmt: skip


def _is_level(word: Word, box: Box) -> bool:
    return word.y0 <= (box[1] + box[3]) / 2 <= word.y1


def _read_figure(
    box: Box, row: Sequence[Word], gray: Gray, read: Callable[[Gray], list[Word]], em: float
) -> Word | None:
    _, y0, _, y1 = layout.bounds_of(row)
    piece, left, top = crop(gray, (box[0] - _BESIDE * em, y0 - _ROOM * em, box[2] + _BESIDE * em, y1 + _ROOM * em))
    words = read(piece)
    text = "".join(word.text for word in words)
    if not _FIGURE.fullmatch(text):
        return None
    x0, y0, x1, y1 = layout.bounds_of(words)
    return Word(x0 + left, y0 + top, x1 + left, y1 + top, min(word.confidence for word in words), text)
