"""Reread uncertain lines with a second engine, and merge both readings.

It is worse at spaces, and writes likely text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from math import inf

from job_handlers.reading import layout
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr import neural
from job_handlers.reading.ocr.dot_leaders import is_leader
from job_handlers.reading.preprocess import Box, Gray, unread_ink

_SURE = ((95.0, 85.0), (85.0, 92.0), (0.0, 96.0))
"""On a page with the first confidence, reread words below the second."""
_MOST_OF_LINE = 0.6

# Minimum confidences, measured on 37,000 words that both engines read, 900 of them differently.
_SPECK, _READ_WELL = 80.0, 85.0
"""If the second engine sees nothing, the word is dirt."""
_ADDED = 90.0
_CERTAIN, _LIKELY = 95.0, 80.0
_GUESSED, _GUESSED_FIGURES = 80.0, 50.0

_CHARACTERS_LEAST = 2
_INK_LEFT_OUT = 0.003
"""Share of the page's ink."""
_BESIDE = 0.3
_BARE = 1.2
"""Line heights without words."""
_SAME_ROW = 0.6
_NEAR = 6.0
_OVERLAP = 0.4

_TOUCHING = 0.1

Group = tuple[list[Word], list[Word]]

_ALIKE = str.maketrans("‘’“”″–—−", '\'\'"""---')
_FIGURES = re.compile(r"\d")


class SecondReader:
    def __init__(self, *, is_thorough: bool) -> None:
        """`is_thorough` rereads every line, and looks for missed ones."""
        self.name = neural.name()
        self._is_thorough = is_thorough
        self._lines = neural.LineReader()
        self._finder = neural.LineFinder()

    def improve(self, lines: Sequence[list[Word]], gray: Gray, *, is_weak: bool) -> tuple[list[list[Word]], list[int]]:
        """Return the lines, and the numbers of the changed ones."""
        confidence = layout.confidence_of(lines) or 0.0
        below = 101.0 if self._is_thorough else _reread_below(confidence)
        words = [*chain.from_iterable(lines)]
        found = [self._reread(line, words, gray, below) for line in lines]
        changed = [at for at, line in enumerate(lines) if layout.text_of([line]) != layout.text_of([found[at]])]
        boxes = [layout.with_margin(word, _BESIDE * (word.y1 - word.y0)) for line in found for word in line]
        if is_weak or self._is_thorough or unread_ink(gray, boxes) > _INK_LEFT_OUT:
            for box in _unread_boxes(found, self._finder.boxes(gray)):
                words = self._lines.read(gray, box)
                if len(_joined_text(words)) >= _CHARACTERS_LEAST and _mean_confidence(words) >= _READ_WELL:
                    _insert_words(found, words, changed)
        return found, changed

    def _reread(self, line: list[Word], words: Sequence[Word], gray: Gray, below: float) -> list[Word]:
        better: list[Word] = []
        done = 0
        for begin, end in _pieces(line, unsure_spans(line, below)):
            box = _box_of(line, begin, end)
            again = self._lines.read(gray, box, _between(box, words))
            better += [*line[done:begin], *merge_line(line[begin:end], again)]
            done = end
        return [*better, *line[done:]]


def _reread_below(confidence: float) -> float:
    return next(sure for least, sure in _SURE if confidence >= least)


def unsure_spans(line: Sequence[Word], below: float) -> list[tuple[int, int]]:
    """Ranges do not cross dot leaders."""
    dots = [-1, *(at for at, word in enumerate(line) if is_leader(word)), len(line)]
    return [
        (begin + first + 1, end + first + 1)
        for first, last in pairwise(dots)
        for begin, end in _spans(line[first + 1 : last], below)
    ]


def _spans(line: Sequence[Word], below: float) -> list[tuple[int, int]]:
    unsure = [at for at, word in enumerate(line) if word.confidence < below]
    if len(unsure) > _MOST_OF_LINE * len(line):
        return [(0, len(line))]
    found: list[tuple[int, int]] = []
    for at in unsure:
        begin, end = max(at - 1, 0), min(at + 2, len(line))
        if found and begin <= found[-1][1]:
            begin = found.pop()[0]
        found.append((begin, end))
    return found


def _pieces(line: Sequence[Word], found: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for begin, end in found:
        while begin < end:
            last = begin + 1
            while last < end and _is_readable(_box_of(line, begin, last + 1)):
                last += 1
            yield begin, last
            begin = last


def _is_readable(box: Box) -> bool:
    x0, y0, x1, y1 = box
    return x1 - x0 <= (neural.WIDTH_MOST - 1) * (y1 - y0)


def _box_of(line: Sequence[Word], begin: int, end: int) -> Box:
    _, y0, _, y1 = layout.bounds_of(line)
    x0, _, x1, _ = layout.bounds_of(line[begin:end])
    return x0, y0, x1, y1


def _between(box: Box, words: Sequence[Word]) -> tuple[float, float]:
    x0, y0, x1, y1 = box
    middle = (x0 + x1) / 2
    row = [word for word in words if _in_row(word, y0, y1)]
    left = [word.x1 for word in row if word.x1 < middle and word.x0 < x0]
    right = [word.x0 for word in row if word.x0 > middle and word.x1 > x1]
    return max(left, default=-inf), min(right, default=inf)


def merge_line(first: Sequence[Word], second: Sequence[Word]) -> list[Word]:
    if not second:
        return list(first)
    read_well = _mean_confidence(second) >= _READ_WELL
    found: list[Word] = []
    for mine, theirs in _join_neighbours(_align(first, second)):
        found += _better_reading(mine, theirs, read_well=read_well)
    # Losing a whole line is never the better reading.
    return found or list(first)


def _better_reading(mine: Sequence[Word], theirs: Sequence[Word], *, read_well: bool) -> Sequence[Word]:
    if not theirs:
        return [word for word in mine if not (read_well and word.confidence < _SPECK)]
    if not mine:
        return [word for word in theirs if word.confidence >= _ADDED]
    one, other = _joined_text(mine), _joined_text(theirs)
    my, their = _lowest_confidence(mine), _lowest_confidence(theirs)
    if one == other:
        # The first engine is better at spaces and quotation marks; two columns are not one number.
        is_other = len(theirs) > len(mine) or (len(theirs) < len(mine) and not _FIGURES.search(one))
        is_theirs = is_other and my < _GUESSED and their >= _CERTAIN
        return theirs if is_theirs else [_with_confidence(word, their) for word in mine]
    if _FIGURES.search(one) or _FIGURES.search(other):
        if not are_better_figures(one, my, other, their):
            return mine
        is_joined = len(theirs) < len(mine) and len(one) == len(other)
        return _spread_over(mine, other, their) if is_joined else theirs
    return theirs if their >= _CERTAIN or their >= max(my, _LIKELY) else mine


def are_better_figures(mine: str, my: float, theirs: str, their: float) -> bool:
    if theirs.isalnum() and not theirs.isdigit() and mine.isalpha():
        # A word, not a code.
        return False
    differ = [(a, b) for a, b in zip(mine, theirs, strict=False) if a != b]
    if len(mine) == len(theirs) and all(a.isalnum() and b.isalnum() for a, b in differ) and _FIGURES.search(mine):
        return my < _GUESSED_FIGURES and their >= _CERTAIN
    return their >= min(my, _CERTAIN)


def _with_confidence(word: Word, confidence: float) -> Word:
    return Word(word.x0, word.y0, word.x1, word.y1, max(word.confidence, confidence), word.text)


def _spread_over(words: Sequence[Word], text: str, confidence: float) -> list[Word]:
    ends = [0, *accumulate(len(_joined_text([word])) for word in words)]
    return [
        Word(word.x0, word.y0, word.x1, word.y1, confidence, text[begin:end])
        for word, (begin, end) in zip(words, pairwise(ends), strict=True)
    ]


def _join_neighbours(groups: Iterator[Group]) -> Iterator[Group]:
    waiting: Group | None = None
    for group in groups:
        if waiting is not None and _belong_together(waiting, group):
            waiting = waiting[0] or group[0], waiting[1] or group[1]
            continue
        if waiting is not None:
            yield waiting
        waiting = group
    if waiting is not None:
        yield waiting


def _belong_together(one: Group, other: Group) -> bool:
    if [bool(side) for side in one] != [not side for side in other] or all(one):
        return False
    left, right = one[0] or one[1], other[0] or other[1]
    return right[0].x0 < left[-1].x1 + _TOUCHING * (left[-1].y1 - left[-1].y0)


def _align(first: Sequence[Word], second: Sequence[Word]) -> Iterator[Group]:
    # Joined words are grouped with their parts.
    ordered = sorted(
        [*((word, True) for word in first), *((word, False) for word in second)],
        key=lambda one: one[0].x0,
    )
    mine: list[Word] = []
    theirs: list[Word] = []
    for word, is_mine in ordered:
        others = theirs if is_mine else mine
        if (mine or theirs) and not any(_overlap(word, other) for other in [*others, *(mine if is_mine else theirs)]):
            yield mine, theirs
            mine, theirs = [], []
        (mine if is_mine else theirs).append(word)
    if mine or theirs:
        yield mine, theirs


def _overlap(one: Word, other: Word) -> bool:
    common = min(one.x1, other.x1) - max(one.x0, other.x0)
    return common > _OVERLAP * max(min(one.x1 - one.x0, other.x1 - other.x0), 1.0)


def _joined_text(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words).translate(_ALIKE).replace("''", '"')


def _lowest_confidence(words: Sequence[Word]) -> float:
    return min(word.confidence for word in words)


def _mean_confidence(words: Sequence[Word]) -> float:
    return sum(word.confidence * len(word.text) for word in words) / sum(len(word.text) for word in words)


# --- lines that the first has missed ----------------------------------------------------------------------


def _unread_boxes(lines: Sequence[Sequence[Word]], boxes: Sequence[Box]) -> list[Box]:
    words = [word for line in lines for word in line]

    def bare_width(box: Box) -> float:
        x0, y0, x1, y1 = box
        beside = _BESIDE * (y1 - y0)
        free, end = 0.0, x0
        for left, right in sorted((word.x0 - beside, word.x1 + beside) for word in words if _in_row(word, y0, y1)):
            if right > end:
                free += max(min(left, x1) - end, 0)
                end = min(right, x1)
        return free + x1 - end

    return sorted(
        (box for box in boxes if bare_width(box) > _BARE * (box[3] - box[1])), key=lambda box: (box[1], box[0])
    )


def _insert_words(lines: list[list[Word]], words: list[Word], changed: list[int]) -> None:
    x0, y0, x1, y1 = layout.bounds_of(words)
    below = 0
    for at, line in enumerate(lines):
        if not line:
            continue
        left, top, right, bottom = layout.bounds_of(line)
        if _in_row(Word(left, top, right, bottom, 0, ""), y0, y1) and max(left - x1, x0 - right) < _NEAR * (y1 - y0):
            within = [word for word in line if min(word.x1, x1) > max(word.x0, x0)]
            others = [word for word in line if word not in within]
            lines[at] = sorted([*others, *merge_line(within, words)], key=lambda word: word.x0)
            changed[:] = sorted({*changed, at})
            return
        if bottom <= (y0 + y1) / 2 and min(x1, right) > max(x0, left):
            below = at + 1
    lines.insert(below, words)
    changed[:] = sorted([*(at + (at >= below) for at in changed), below])


def _in_row(word: Word, y0: float, y1: float) -> bool:
    return min(y1, word.y1) - max(y0, word.y0) > _SAME_ROW * min(y1 - y0, word.y1 - word.y0)
