"""Recover dot leaders, the rows of dots that connect titles in a table of contents with their page numbers.

An engine reads letters into the dots and loses text beside them, so the dots are found in the pixels. In the text, a
leader is a word of as many dots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from PIL import Image

from job_handlers.reading import layout
from job_handlers.reading.layout import Box, Word
from job_handlers.reading.preprocess import Gray, ink_within, unread_ink

ReadLine = Callable[[Box], list[Word]]
"""Recognises the only line of text in a box of the page."""

DOTS_LEAST = 5
# Lengths are in line heights unless stated otherwise.
_DOT_SIZE_MOST, _DOT_WIDTH_LEAST = 0.3, 0.07
_SMALL_DOT_PIXELS = 3.0  # Accepted in any case: in coarse scans of small print, 0.3 line heights are less.
_STEP_BETWEEN_DOTS_MOST = 2.2
_STEP_TOLERANCE = 0.25  # Share of the usual step.
_INK_MOST = 3.0  # Multiple of a dot's ink. More is a letter.
_GAP_TO_TEXT_MOST = 3.5
_OVERLAP_IN_ROW = 0.5  # Share of the height of the lower of two lines.
_LINE_HEIGHT_LEAST = 0.8
_MARGIN = 0.25
_WORDS_OFF_ROW_MOST, _DOTS_OFF_ROW_MOST = 0.5, 0.8  # The second is for pieces without certain words, perhaps dots.
_STEP_IN_PARAGRAPH_MOST = 1.5  # Multiple of the usual distance of rows.
_LINES_WITH_LEADERS_LEAST = 3
_CONTENTS_SHARE = 0.5  # A page with a larger share of lines with leaders is a table of contents.
_UNREAD_INK_SHARE = 0.002  # Of the page's ink. More is missing text.
# Confidences are percentages.
_CONFIDENCE_OF_DOTS = 99.0  # So high that they are not read again.
_CERTAIN, _READ_WELL = 80.0, 90.0
_NOISE_CONFIDENCE = 30  # Words with less count nothing in a score.
_INK_RUN = re.compile(b"\xff+")
_ANY_INK = [255 if value else 0 for value in range(256)]


class _Dot(NamedTuple):
    left: int
    top: int
    right: int
    bottom: int

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


class _Row(Struct):
    bottom: float
    words: list[Word]


def is_leader(word: Word) -> bool:
    return len(word.text) >= DOTS_LEAST and not word.text.strip(".")


def insert_leaders(lines: list[list[Word]], gray: Gray, read_line: ReadLine) -> list[list[Word]]:
    """Insert the leaders as words, and join each line with the line that its leader leads to."""
    box_of_line = {at: _box_of_certain_words(line) for at, line in enumerate(lines) if line}
    if not box_of_line:
        return lines
    usual_height = median([y1 - y0 for _, y0, _, y1 in box_of_line.values()])
    gap_most = _GAP_TO_TEXT_MOST * usual_height
    page_end = max(x1 for _, _, x1, _ in box_of_line.values())
    completed = list(lines)
    for at, (x0, y0, x1, y1) in box_of_line.items():
        if not completed[at]:
            # The leader of an earlier line leads to this one, so this line is now part of that one.
            continue
        following = _next_line_in_row(box_of_line, (x0, y0, x1, y1))
        search_end = box_of_line[following][0] - 1 if following is not None else page_end
        # The box of a line without ascenders, such as "cases", is too low.
        top = min(y0, y1 - _LINE_HEIGHT_LEAST * usual_height)
        leaders = _find_leaders(gray, (x0, top, search_end, y1), usual_height)
        if not leaders or leaders[0].x0 > x1 + gap_most:
            continue
        line_end = max(x1, leaders[-1].x1)
        words_led_to: list[Word] = []
        if search_end - leaders[-1].x1 < gap_most:
            if following is None:
                # The engine may have lost what the leader leads to: read to the end of the page.
                line_end = search_end
            else:
                words_led_to, completed[following] = completed[following], []
        completed[at] = [*_insert_in_line(leaders, lines[at], (x0, top, line_end, y1), read_line), *words_led_to]
    return completed if all(completed) else _without_repeated_empty_lines(completed)


def misses_text_beside_leaders(lines: Sequence[Sequence[Word]], gray: Gray) -> bool:
    if _count_with_leaders(lines) < _LINES_WITH_LEADERS_LEAST:
        return False
    words = [word for line in lines for word in line]
    margin = _MARGIN * median([word.y1 - word.y0 for word in words if not is_leader(word)] or [0.0])
    boxes = [layout.with_margin(word, margin) for word in words]
    has_unfinished_line = any(is_leader(line[-1]) for line in lines if line)
    return has_unfinished_line or unread_ink(gray, boxes) > _UNREAD_INK_SHARE


def is_contents_page(lines: Sequence[Sequence[Word]]) -> bool:
    return _count_with_leaders(lines) > _CONTENTS_SHARE * sum(map(bool, lines))


def _count_with_leaders(lines: Sequence[Sequence[Word]]) -> int:
    return sum(any(map(is_leader, line)) for line in lines)


def score_without_leaders(lines: Sequence[Sequence[Word]]) -> float:
    return sum(score_words([word for word in line if not is_leader(word)]) for line in lines)


def score_words(words: Sequence[Word]) -> float:
    return sum(len(word.text) * max(word.confidence - _NOISE_CONFIDENCE, 0) for word in words)


def arrange_pieces(pieces: Sequence[list[Word]]) -> list[list[Word]]:
    """Join pieces in no order to lines; an empty line begins a paragraph."""
    # The best pieces, which are words and not only dots, define where the rows are.
    best_first = sorted(filter(None, pieces), key=score_words, reverse=True)
    heights = [word.y1 - word.y0 for piece in best_first[: len(best_first) // 3 + 1] for word in piece]
    usual_height = median(heights) if heights else 0.0
    rows: list[_Row] = []
    for piece in best_first:
        # Only the bottoms are compared: specks make the boxes of words too high.
        bottom = median([word.y1 for word in piece])
        nearest = min(rows, key=lambda row: abs(row.bottom - bottom), default=None)
        distance_most = (_WORDS_OFF_ROW_MOST if _has_certain_word(piece) else _DOTS_OFF_ROW_MOST) * usual_height
        if nearest is not None and abs(nearest.bottom - bottom) < distance_most:
            nearest.words += piece
        else:
            rows.append(_Row(bottom, [*piece]))
    rows.sort(key=lambda row: row.bottom)
    steps = [below.bottom - above.bottom for above, below in pairwise(rows)]
    step_most = _STEP_IN_PARAGRAPH_MOST * median(steps) if steps else 0.0
    lines: list[list[Word]] = []
    for row, step in zip(rows, [0.0, *steps], strict=False):
        if step > step_most:
            lines.append([])
        lines.append(sorted(row.words, key=lambda word: word.x0))
    return lines


def _has_certain_word(piece: Sequence[Word]) -> bool:
    return any(word.confidence >= _CERTAIN and any(map(str.isalnum, word.text)) for word in piece)


def _box_of_certain_words(line: Sequence[Word]) -> Box:
    # Dots read as letters have wrong boxes, so only certain words define the height.
    x0, y0, x1, y1 = layout.bounds_of(line)
    certain = [word for word in line if word.confidence >= _CERTAIN]
    if certain:
        _, y0, _, y1 = layout.bounds_of(certain)
    return x0, y0, x1, y1


def _next_line_in_row(box_of_line: dict[int, Box], box: Box) -> int | None:
    _, y0, x1, y1 = box
    right_of_box = [
        at for at, (left, top, _, bottom) in box_of_line.items()
        if left >= x1 and min(bottom, y1) - max(top, y0) > _OVERLAP_IN_ROW * min(bottom - top, y1 - y0)
    ]  # fmt: skip
    return min(right_of_box, key=lambda at: box_of_line[at][0], default=None)


def _without_repeated_empty_lines(lines: list[list[Word]]) -> list[list[Word]]:
    remaining = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return remaining if not remaining or remaining[-1] else remaining[:-1]


def _insert_in_line(leaders: Sequence[Word], line: list[Word], box: Box, read_line: ReadLine) -> list[Word]:
    x0, top, x1, bottom = box
    words: list[Word] = []
    begin = x0
    for leader in leaders:
        words += [*_words_beside(line, (begin, top, leader.x0, bottom), read_line), leader]
        begin = leader.x1
    return [*words, *_words_beside(line, (begin, top, x1, bottom), read_line)]


def _words_beside(line: Sequence[Word], box: Box, read_line: ReadLine) -> list[Word]:
    """Return the words in the box; read again those that are uncertain, or cut by the dots."""
    x0, top, x1, bottom = box
    height = bottom - top
    dot_size = _DOT_SIZE_MOST * height
    if x1 - x0 < dot_size:
        return []
    # Words that share more than a pixel of width with the box.
    touching = [word for word in line if word.x0 < x1 - 1 and word.x1 > x0 + 1]
    inside = [word for word in touching if word.x0 > x0 - dot_size and word.x1 < x1 + dot_size]
    if touching and len(inside) == len(touching) and min(word.confidence for word in inside) >= _READ_WELL:
        return inside
    # Where the engine has read nothing, only certain words are text.
    reread = [
        word
        for word in read_line((x0, top - _MARGIN * height, x1, bottom + _MARGIN * height))
        if touching or word.confidence >= _CERTAIN
    ]
    return max(reread, inside, key=score_words)


# --- dots in the pixels ------------------------------------------------------------------------------------


def _find_leaders(gray: Gray, box: Box, line_height: float) -> list[Word]:
    ink, left, top = ink_within(gray, box)
    dot_size_most = max(_DOT_SIZE_MOST * line_height, _SMALL_DOT_PIXELS)
    # Each column of pixels becomes one pixel: its ink. Dots are short runs of such columns.
    ink_of_columns = ink.reduce((1, ink.height))
    runs = [run.span() for run in _INK_RUN.finditer(ink_of_columns.point(_ANY_INK).tobytes())]
    runs = [(begin, end) for begin, end in runs if end - begin >= _DOT_WIDTH_LEAST * line_height]
    if not _has_short_runs(runs, dot_size_most):
        return []
    dots = [_dot_in(ink, begin, end, dot_size_most) for begin, end in runs]
    ink_before = [0, *accumulate(ink_of_columns.tobytes())]
    leaders: list[Word] = []
    previous_end = 0
    for even_sequence in _even_sequences(dots, _STEP_BETWEEN_DOTS_MOST * line_height, dot_size_most):
        # The leader before, once extended, may have reached this sequence.
        if even_sequence[0].left >= previous_end:
            leader = _extend_sequence(even_sequence, ink, ink_before, dot_size_most, previous_end)
            begin, previous_end = leader[0].left, leader[-1].right
            highest, lowest = min(dot.top for dot in leader), max(dot.bottom for dot in leader)
            x0, y0, x1, y1 = left + begin, top + highest, left + previous_end, top + lowest
            leaders.append(Word(x0, y0, x1, y1, _CONFIDENCE_OF_DOTS, "." * len(leader)))
    return leaders


def _has_short_runs(runs: Sequence[tuple[int, int]], length_most: float) -> bool:
    # Most lines have too few, and are not measured further.
    by_length = groupby(end - begin <= length_most for begin, end in runs)
    return any(is_short and len(list(group)) >= DOTS_LEAST for is_short, group in by_length)


def _dot_in(ink: Image.Image, begin: int, end: int, size_most: float) -> _Dot | None:
    box = ink.crop((begin, 0, end, ink.height)).getbbox() if end - begin <= size_most else None
    if box is None:
        return None
    _, top, _, bottom = box
    # Dots of a leader are on the baseline, not in the upper third of the line.
    return _Dot(begin, top, end, bottom) if bottom - top <= size_most and top >= ink.height / 3 else None


def _even_sequences(dots: Sequence[_Dot | None], step_most: float, dot_size_most: float) -> list[list[_Dot]]:
    """Return sequences of dots in even steps. None, which is other ink, ends a sequence."""
    sequences: list[list[_Dot]] = []
    sequence: list[_Dot] = []
    for dot in [*dots, None]:
        if dot is not None and sequence and _continues_sequence(sequence, dot, step_most, dot_size_most):
            sequence.append(dot)
            continue
        if len(sequence) >= DOTS_LEAST:
            sequences.append(sequence)
        if dot is None:
            sequence = []
        elif len(sequence) == 2 and _continues_sequence(sequence[-1:], dot, step_most, dot_size_most):
            # Two dots are always evenly spaced: the second may be the first of another sequence.
            sequence = [sequence[-1], dot]
        else:
            sequence = [dot]
    return sequences


def _continues_sequence(sequence: Sequence[_Dot], dot: _Dot, step_most: float, dot_size_most: float) -> bool:
    step = dot.middle - sequence[-1].middle
    is_level = abs(dot.bottom - sequence[-1].bottom) <= dot_size_most / 2
    if step > step_most or not is_level:
        return False
    if len(sequence) == 1:
        return True
    usual_step = _usual_step(sequence)
    # Of a small step, the share is less than a pixel.
    return abs(step - usual_step) <= _STEP_TOLERANCE * usual_step + 1


def _usual_step(sequence: Sequence[_Dot]) -> float:
    return median([right.middle - left.middle for left, right in pairwise(sequence)])


def _extend_sequence(
    even_sequence: list[_Dot], ink: Image.Image, ink_before: Sequence[int], dot_size_most: float, search_begin: int
) -> list[_Dot]:
    """Add faint dots at both ends. `ink_before` is the sum of the ink left of each column."""
    step = _usual_step(even_sequence)
    dot_ink = median([ink_before[dot.right] - ink_before[dot.left] for dot in even_sequence])

    def find_next(dot: _Dot, direction: int) -> _Dot | None:
        middle = dot.middle + direction * step
        begin, end = round(middle - step / 2), round(middle + step / 2)
        if begin < search_begin or end >= len(ink_before) or ink_before[end] - ink_before[begin] > _INK_MOST * dot_ink:
            return None
        reach = step * _STEP_TOLERANCE + (dot.right - dot.left) / 2
        left, top = round(middle - reach), max(round(dot.top - dot_size_most / 2), 0)
        bottom = min(round(dot.bottom + dot_size_most / 2), ink.height)
        box = ink.crop((left, top, round(middle + reach), bottom)).getbbox()
        return None if box is None else _Dot(left + box[0], top + box[1], left + box[2], top + box[3])

    extended = list(even_sequence)
    while (dot := find_next(extended[-1], 1)) is not None:
        extended.append(dot)
    while (dot := find_next(extended[0], -1)) is not None:
        extended.insert(0, dot)
    return extended
