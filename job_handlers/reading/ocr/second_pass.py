"""Reread uncertain lines with a second engine, and merge both readings.

The second engine is worse at spaces, and guesses a likely text where it sees little.
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

_REREAD_BELOW = ((95.0, 85.0), (85.0, 92.0), (0.0, 96.0))
"""Least confidence of a page, and the confidence below which its words are reread."""
_ABOVE_ANY_CONFIDENCE = 101.0
_UNSURE_SHARE_TO_REREAD_LINE = 0.6

# Minimum confidences, measured on 37,000 words that both engines read, 900 of them differently.
_READ_WELL = 85.0
_SEEN_BY_FIRST_ONLY = 80.0
"""Other words that only the first engine sees are dirt."""
_SEEN_BY_SECOND_ONLY = 90.0
_CERTAIN, _LIKELY = 95.0, 80.0
"""Confidence of the second engine that outweighs a confident, or an uncertain first engine."""
_GUESSED, _GUESSED_FIGURES = 80.0, 50.0
"""A less confident first engine has guessed: spaces, or figures."""

_CHARACTERS_LEAST = 2
_UNREAD_INK_SHARE = 0.003
# In line heights.
_MARGIN_BESIDE = 0.3
_BARE_WIDTH_LEAST = 1.2
_GAP_IN_LINE_MOST = 6.0
_TOUCHING_GAP = 0.1

_OVERLAP_IN_ROW = 0.6
_OVERLAP_OF_WORDS = 0.4

# The words of the first engine and those of the second at the same place; one list may be empty.
Group = tuple[list[Word], list[Word]]

_PLAIN_CHARACTERS = str.maketrans("‘’“”″–—−", '\'\'"""---')
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
        below = _ABOVE_ANY_CONFIDENCE if self._is_thorough else _reread_below(layout.confidence_of(lines) or 0.0)
        words = [*chain.from_iterable(lines)]
        improved = [self._reread(line, words, gray, below) for line in lines]
        changed = [at for at, line in enumerate(lines) if layout.text_of([line]) != layout.text_of([improved[at]])]
        boxes = [layout.with_margin(word, _MARGIN_BESIDE * (word.y1 - word.y0)) for line in improved for word in line]
        if is_weak or self._is_thorough or unread_ink(gray, boxes) > _UNREAD_INK_SHARE:
            for box in _unread_boxes(improved, self._finder.boxes(gray)):
                found = self._lines.read(gray, box)
                if len(_joined_text(found)) >= _CHARACTERS_LEAST and _mean_confidence(found) >= _READ_WELL:
                    _insert_words(improved, found, changed)
        return improved, changed

    def _reread(self, line: list[Word], words: Sequence[Word], gray: Gray, below: float) -> list[Word]:
        merged: list[Word] = []
        done = 0
        for begin, end in _readable_spans(line, unsure_spans(line, below)):
            box = _box_of(line, begin, end)
            reread = self._lines.read(gray, box, _free_space(box, words))
            merged += [*line[done:begin], *merge_line(line[begin:end], reread)]
            done = end
        return [*merged, *line[done:]]


def _reread_below(page_confidence: float) -> float:
    return next(below for least, below in _REREAD_BELOW if page_confidence >= least)


def unsure_spans(line: Sequence[Word], below: float) -> list[tuple[int, int]]:
    # Ranges do not cross dot leaders.
    spans: list[tuple[int, int]] = []
    part_begin = 0
    for part_end in [*(at for at, word in enumerate(line) if is_leader(word)), len(line)]:
        part_spans = _unsure_spans_of_part(line[part_begin:part_end], below)
        spans += [(part_begin + begin, part_begin + end) for begin, end in part_spans]
        part_begin = part_end + 1
    return spans


def _unsure_spans_of_part(words: Sequence[Word], below: float) -> list[tuple[int, int]]:
    """Return unsure words with their neighbours, as joined ranges."""
    unsure = [at for at, word in enumerate(words) if word.confidence < below]
    if len(unsure) > _UNSURE_SHARE_TO_REREAD_LINE * len(words):
        return [(0, len(words))]
    spans: list[tuple[int, int]] = []
    for at in unsure:
        begin, end = max(at - 1, 0), min(at + 2, len(words))
        if spans and begin <= spans[-1][1]:
            begin, _ = spans.pop()
        spans.append((begin, end))
    return spans


def _readable_spans(line: Sequence[Word], spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for span_begin, span_end in spans:
        begin = span_begin
        while begin < span_end:
            end = begin + 1
            while end < span_end and _is_readable(_box_of(line, begin, end + 1)):
                end += 1
            yield begin, end
            begin = end


def _is_readable(box: Box) -> bool:
    x0, y0, x1, y1 = box
    # The reader adds margins on both sides.
    return x1 - x0 <= (neural.WIDTH_MOST - 1) * (y1 - y0)


def _box_of(line: Sequence[Word], begin: int, end: int) -> Box:
    _, y0, _, y1 = layout.bounds_of(line)
    x0, _, x1, _ = layout.bounds_of(line[begin:end])
    return x0, y0, x1, y1


def _free_space(box: Box, words: Sequence[Word]) -> tuple[float, float]:
    x0, y0, x1, y1 = box
    middle = (x0 + x1) / 2
    row = [word for word in words if _in_row(word, y0, y1)]
    previous_ends = [word.x1 for word in row if word.x1 < middle and word.x0 < x0]
    next_begins = [word.x0 for word in row if word.x0 > middle and word.x1 > x1]
    return max(previous_ends, default=-inf), min(next_begins, default=inf)


def merge_line(first: Sequence[Word], second: Sequence[Word]) -> list[Word]:
    if not second:
        return list(first)
    is_read_well = _mean_confidence(second) >= _READ_WELL
    merged: list[Word] = []
    for mine, theirs in _join_neighbours(_align(first, second)):
        merged += _better_reading(mine, theirs, is_read_well=is_read_well)
    # Losing a whole line is never the better reading.
    return merged or list(first)


# `mine` is the reading of the first engine, `theirs` that of the second.


def _better_reading(mine: Sequence[Word], theirs: Sequence[Word], *, is_read_well: bool) -> Sequence[Word]:
    if not theirs:
        return [word for word in mine if not (is_read_well and word.confidence < _SEEN_BY_FIRST_ONLY)]
    if not mine:
        return [word for word in theirs if word.confidence >= _SEEN_BY_SECOND_ONLY]
    my_text, their_text = _joined_text(mine), _joined_text(theirs)
    my_confidence, their_confidence = _lowest_confidence(mine), _lowest_confidence(theirs)
    if my_text == their_text:
        # The first engine is better at spaces and quotation marks; two columns are not one number.
        joins_words = len(theirs) < len(mine) and not _FIGURES.search(my_text)
        has_other_spaces = len(theirs) > len(mine) or joins_words
        if has_other_spaces and my_confidence < _GUESSED and their_confidence >= _CERTAIN:
            return theirs
        return [_with_confidence(word, their_confidence) for word in mine]
    if _FIGURES.search(my_text) or _FIGURES.search(their_text):
        if not are_better_figures(my_text, my_confidence, their_text, their_confidence):
            return mine
        # Numbers of two columns stay apart.
        is_joined = len(theirs) < len(mine) and len(my_text) == len(their_text)
        return _spread_over(mine, their_text, their_confidence) if is_joined else theirs
    is_better = their_confidence >= _CERTAIN or their_confidence >= max(my_confidence, _LIKELY)
    return theirs if is_better else mine


def are_better_figures(mine: str, my_confidence: float, theirs: str, their_confidence: float) -> bool:
    if theirs.isalnum() and not theirs.isdigit() and mine.isalpha():
        # "Florida" read as "F1orida": a word, not a code.
        return False
    differing = [(a, b) for a, b in zip(mine, theirs, strict=False) if a != b]
    has_other_characters = len(mine) == len(theirs) and all(a.isalnum() and b.isalnum() for a, b in differing)
    if has_other_characters and _FIGURES.search(mine):
        # "342" read as "542": a likely text says nothing about a number.
        return my_confidence < _GUESSED_FIGURES and their_confidence >= _CERTAIN
    # "17" read as "117": one of them has lost a part of the number.
    return their_confidence >= min(my_confidence, _CERTAIN)


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


def _belong_together(left: Group, right: Group) -> bool:
    left_mine, left_theirs = left
    right_mine, right_theirs = right
    # No group is empty, so a group without words of one engine has some of the other.
    are_of_different_engines = not (left_theirs or right_mine) or not (left_mine or right_theirs)
    if not are_of_different_engines:
        return False
    last, following = (left_mine or left_theirs)[-1], (right_mine or right_theirs)[0]
    return following.x0 < last.x1 + _TOUCHING_GAP * (last.y1 - last.y0)


def _align(first: Sequence[Word], second: Sequence[Word]) -> Iterator[Group]:
    """Group the words that overlap, such as a joined word and its parts."""
    ordered = sorted(
        [*((word, True) for word in first), *((word, False) for word in second)],
        key=lambda pair: pair[0].x0,
    )
    mine: list[Word] = []
    theirs: list[Word] = []
    for word, is_mine in ordered:
        if (mine or theirs) and not any(_overlap(word, other) for other in [*mine, *theirs]):
            yield mine, theirs
            mine, theirs = [], []
        (mine if is_mine else theirs).append(word)
    if mine or theirs:
        yield mine, theirs


def _overlap(one: Word, other: Word) -> bool:
    common = min(one.x1, other.x1) - max(one.x0, other.x0)
    return common > _OVERLAP_OF_WORDS * max(min(one.x1 - one.x0, other.x1 - other.x0), 1.0)


def _joined_text(words: Sequence[Word]) -> str:
    """Return a text for comparing, without spaces."""
    return "".join(word.text for word in words).translate(_PLAIN_CHARACTERS).replace("''", '"')


def _lowest_confidence(words: Sequence[Word]) -> float:
    return min(word.confidence for word in words)


def _mean_confidence(words: Sequence[Word]) -> float:
    return sum(word.confidence * len(word.text) for word in words) / sum(len(word.text) for word in words)


# --- lines that the first engine has missed ----------------------------------------------------------------


def _unread_boxes(lines: Sequence[Sequence[Word]], boxes: Sequence[Box]) -> list[Box]:
    words = [word for line in lines for word in line]
    unread = [box for box in boxes if _bare_width(box, words) > _BARE_WIDTH_LEAST * (box[3] - box[1])]
    return sorted(unread, key=lambda box: (box[1], box[0]))


def _bare_width(box: Box, words: Sequence[Word]) -> float:
    x0, y0, x1, y1 = box
    margin = _MARGIN_BESIDE * (y1 - y0)
    width, covered_to = 0.0, x0
    for left, right in sorted((word.x0 - margin, word.x1 + margin) for word in words if _in_row(word, y0, y1)):
        if right > covered_to:
            width += max(min(left, x1) - covered_to, 0)
            covered_to = min(right, x1)
    return width + x1 - covered_to


def _insert_words(lines: list[list[Word]], words: list[Word], changed: list[int]) -> None:
    """Merge the words into the line beside them, or insert a line. Update `changed`."""
    x0, y0, x1, y1 = layout.bounds_of(words)
    new_at = 0
    for at, line in enumerate(lines):
        if not line:
            continue
        left, top, right, bottom = layout.bounds_of(line)
        is_level = _in_row(Word(left, top, right, bottom, 0, ""), y0, y1)
        if is_level and max(left - x1, x0 - right) < _GAP_IN_LINE_MOST * (y1 - y0):
            within = [word for word in line if min(word.x1, x1) > max(word.x0, x0)]
            others = [word for word in line if word not in within]
            lines[at] = sorted([*others, *merge_line(within, words)], key=lambda word: word.x0)
            changed[:] = sorted({*changed, at})
            return
        is_above = bottom <= (y0 + y1) / 2
        if is_above and min(x1, right) > max(x0, left):
            new_at = at + 1
    lines.insert(new_at, words)
    changed[:] = sorted([*(at + (at >= new_at) for at in changed), new_at])


def _in_row(word: Word, y0: float, y1: float) -> bool:
    return min(y1, word.y1) - max(y0, word.y0) > _OVERLAP_IN_ROW * min(y1 - y0, word.y1 - word.y0)
