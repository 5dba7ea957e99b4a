"""Recover dot leaders, which connect a title in a table of contents with its page number.

An engine reads letters into the dots and loses text beside them, so the dots are found in the pixels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from math import inf
from operator import itemgetter
from statistics import median

from msgspec import Struct
from PIL import Image

from job_handlers.reading import layout
from job_handlers.reading.layout import Word
from job_handlers.reading.preprocess import Box, Gray, crop, ink_within, unread_ink

Mark = tuple[int, int, int, int]
"""The box of a dot: left, top, right, bottom."""

DOTS_LEAST = 5
# Lengths are in line heights unless stated otherwise.
_DOT_SIZE_MOST, _STEP_BETWEEN_DOTS_MOST = 0.3, 2.2
_DOT_WIDTH_LEAST = 0.07
_STEP_TOLERANCE = 0.25
_INK_MOST = 3.0
"""Multiple of a dot's ink. More is a letter."""
_GAP_TO_TEXT_MOST = 3.5
_WORDS_OFF_ROW_MOST, _DOTS_OFF_ROW_MOST = 0.5, 0.8
"""The second is for pieces without words, perhaps dots."""
_OVERLAP_IN_ROW = 0.5
_STEP_IN_PARAGRAPH_MOST = 1.5
_ROWS_LEAST, _CONTENTS_SHARE = 3, 0.5
_CONFIDENCE_OF_DOTS = 99.0
_CONFIDENCE_OF_WORD, _READ_WELL = 80.0, 90.0
_MARGIN = 0.25
_UNREAD_INK_SHARE = 0.002
_INK_RUN = re.compile(b"\xff+")
_LINE_HEIGHT_LEAST = 0.8
_ANY_INK = [255 if value else 0 for value in range(256)]


class Leader(Struct, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    dots: int

    def word(self) -> Word:
        return Word(self.x0, self.y0, self.x1, self.y1, _CONFIDENCE_OF_DOTS, "." * self.dots)


def is_leader(word: Word) -> bool:
    return len(word.text) >= DOTS_LEAST and not word.text.strip(".")


def separate_leaders(lines: list[list[Word]], gray: Gray, read: Callable[[Gray], list[Word]]) -> list[list[Word]]:
    """Join each line with the line that its dots lead to. `read` recognises an image of one line."""
    boxes = {at: _box_of_words(line) for at, line in enumerate(lines) if line}
    if not boxes:
        return lines
    usual_height = median([y1 - y0 for _, y0, _, y1 in boxes.values()])
    gap_most = _GAP_TO_TEXT_MOST * usual_height
    page_end = max(x1 for _, _, x1, _ in boxes.values())
    separated = list(lines)
    for at, (x0, y0, x1, y1) in boxes.items():
        if not separated[at]:
            # The dots of an earlier line lead to this one, which now is part of it.
            continue
        following = _next_in_row(boxes, (x0, y0, x1, y1))
        end = boxes[following][0] - 1 if following is not None else page_end
        # The box of a line without capitals, such as "cases", is too low.
        top = min(y0, y1 - _LINE_HEIGHT_LEAST * usual_height)
        leaders = find_leaders(gray, (x0, top, end, y1), usual_height)
        if not leaders or leaders[0].x0 > x1 + gap_most:
            continue
        right, led_to = max(x1, leaders[-1].x1), list[Word]()
        if end - leaders[-1].x1 < gap_most:
            if following is None:
                right = end
            else:
                led_to, separated[following] = separated[following], []
        separated[at] = [*_insert_leaders(leaders, lines[at], (x0, top, right, y1), gray, read), *led_to]
    return separated if all(separated) else _without_repeated_gaps(separated)


def misses_text_beside(lines: Sequence[Sequence[Word]], gray: Gray) -> bool:
    if _count_with_dots(lines) < _ROWS_LEAST:
        return False
    words = [word for line in lines for word in line]
    beside = _MARGIN * median([word.y1 - word.y0 for word in words if not is_leader(word)] or [0.0])
    boxes = [layout.with_margin(word, beside) for word in words]
    has_unfinished_line = any(is_leader(line[-1]) for line in lines if line)
    return has_unfinished_line or unread_ink(gray, boxes) > _UNREAD_INK_SHARE


def is_contents_page(lines: Sequence[Sequence[Word]]) -> bool:
    return _count_with_dots(lines) > _CONTENTS_SHARE * sum(map(bool, lines))


def _has_words(piece: Sequence[Word]) -> bool:
    return any(word.confidence >= _CONFIDENCE_OF_WORD and any(map(str.isalnum, word.text)) for word in piece)


def _count_with_dots(lines: Sequence[Sequence[Word]]) -> int:
    return sum(any(map(is_leader, line)) for line in lines)


def score_beside(lines: Sequence[Sequence[Word]]) -> float:
    return sum(score_words([word for word in line if not is_leader(word)]) for line in lines)


def arrange_rows(pieces: Sequence[list[Word]]) -> list[list[Word]]:
    # The best pieces define where the rows are.
    ranked = sorted(filter(None, pieces), key=score_words, reverse=True)
    # The better pieces are words; the others may be only dots.
    heights = [word.y1 - word.y0 for piece in ranked[: len(ranked) // 3 + 1] for word in piece]
    usual_height = median(heights) if heights else 0.0
    rows: list[tuple[float, list[Word]]] = []
    for piece in ranked:
        # Only the bottoms are compared: specks make the boxes of words too high.
        bottom = median([word.y1 for word in piece])
        distance, row = min(
            [(abs(other - bottom), row) for other, row in rows], key=itemgetter(0), default=(inf, piece)
        )
        if distance < (_WORDS_OFF_ROW_MOST if _has_words(piece) else _DOTS_OFF_ROW_MOST) * usual_height:
            row += piece
        else:
            rows.append((bottom, [*piece]))
    rows.sort(key=itemgetter(0))
    steps = [below - above for (above, _), (below, _) in pairwise(rows)]
    step_most = _STEP_IN_PARAGRAPH_MOST * median(steps) if steps else 0.0
    arranged: list[list[Word]] = []
    for (_, row), step in zip(rows, [0.0, *steps], strict=False):
        row.sort(key=lambda word: word.x0)
        if step > step_most:
            arranged.append([])
        arranged.append(row)
    return arranged


def _box_of_words(line: Sequence[Word]) -> Box:
    # Dots read as letters have wrong boxes: only certain words tell the height.
    x0, y0, x1, y1 = layout.bounds_of(line)
    certain = [word for word in line if word.confidence >= _CONFIDENCE_OF_WORD]
    if certain:
        _, y0, _, y1 = layout.bounds_of(certain)
    return x0, y0, x1, y1


def _next_in_row(boxes: dict[int, Box], box: Box) -> int | None:
    _, y0, x1, y1 = box
    beside = [
        at for at, (left, top, _, bottom) in boxes.items()
        if left >= x1 and min(bottom, y1) - max(top, y0) > _OVERLAP_IN_ROW * min(bottom - top, y1 - y0)
    ]  # fmt: skip
    return min(beside, key=lambda at: boxes[at][0], default=None)


def _without_repeated_gaps(lines: list[list[Word]]) -> list[list[Word]]:
    kept = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return kept if not kept or kept[-1] else kept[:-1]


def _insert_leaders(
    leaders: Sequence[Leader], line: list[Word], box: Box, gray: Gray, read: Callable[[Gray], list[Word]]
) -> list[Word]:
    x0, top, x1, bottom = box
    words: list[Word] = []
    begin = x0
    for leader in leaders:
        words += [*_words_beside(line, (begin, top, leader.x0, bottom), gray, read), leader.word()]
        begin = leader.x1
    return [*words, *_words_beside(line, (begin, top, x1, bottom), gray, read)]


def _words_beside(line: Sequence[Word], box: Box, gray: Gray, read: Callable[[Gray], list[Word]]) -> list[Word]:
    """Read words again that were uncertain, or cut by the dots."""
    begin, top, end, bottom = box
    height = bottom - top
    dot = _DOT_SIZE_MOST * height
    if end - begin < dot:
        return []
    touching = [word for word in line if word.x0 < end - 1 and word.x1 > begin + 1]
    inside = [word for word in touching if word.x0 > begin - dot and word.x1 < end + dot]
    if touching and len(inside) == len(touching) and min(word.confidence for word in inside) >= _READ_WELL:
        return inside
    piece, left, above = crop(gray, (begin, top - _MARGIN * height, end, bottom + _MARGIN * height))
    reread = [
        Word(word.x0 + left, word.y0 + above, word.x1 + left, word.y1 + above, word.confidence, word.text)
        for word in read(piece)
        if touching or word.confidence >= _CONFIDENCE_OF_WORD
    ]
    return max(reread, inside, key=score_words)


def score_words(words: Sequence[Word]) -> float:
    # Words of confidence 30 and less are noise.
    return sum(len(word.text) * max(word.confidence - 30, 0) for word in words)


# --- rows of dots in the pixels ----------------------------------------------------------------------------


def find_leaders(gray: Gray, box: Box, line_height: float) -> list[Leader]:
    ink, left, top = ink_within(gray, box)
    dot_width = max(_DOT_SIZE_MOST * line_height, 3.0)
    # Each column of pixels becomes one pixel: its ink. Dots are short runs of such columns.
    columns = ink.reduce((1, ink.height))
    runs = [run.span() for run in _INK_RUN.finditer(columns.point(_ANY_INK).tobytes())]
    runs = [(begin, end) for begin, end in runs if end - begin >= _DOT_WIDTH_LEAST * line_height]
    by_width = groupby(end - begin <= dot_width for begin, end in runs)
    if not any(is_narrow and len(list(group)) >= DOTS_LEAST for is_narrow, group in by_width):
        return []
    marks = [_dot(ink, begin, end, dot_width) for begin, end in runs]
    ink_before = [0, *accumulate(columns.tobytes())]
    leaders: list[Leader] = []
    end = 0
    for dots in _even_rows(marks, _STEP_BETWEEN_DOTS_MOST * line_height, dot_width):
        if dots[0][0] >= end:
            row = _extend_row(dots, ink, ink_before, dot_width, end)
            begin, end = row[0][0], row[-1][2]
            highest, lowest = min(mark[1] for mark in row), max(mark[3] for mark in row)
            leaders.append(Leader(left + begin, top + highest, left + end, top + lowest, len(row)))
    return leaders


def _dot(ink: Image.Image, begin: int, end: int, dot_width: float) -> Mark | None:
    mark = ink.crop((begin, 0, end, ink.height)).getbbox() if end - begin <= dot_width else None
    if mark is None:
        return None
    _, top, _, bottom = mark
    return (begin, top, end, bottom) if bottom - top <= dot_width and top >= ink.height / 3 else None


def _even_rows(marks: Sequence[Mark | None], step_most: float, dot_width: float) -> list[list[Mark]]:
    """Return rows of marks in even steps. None, which is other ink, ends a row."""
    rows: list[list[Mark]] = []
    row: list[Mark] = []
    for mark in [*marks, None]:
        if mark is not None and row and _continues_row(row, mark, step_most, dot_width):
            row.append(mark)
            continue
        if len(row) >= DOTS_LEAST:
            rows.append(row)
        if mark is None:
            row = []
        elif len(row) == 2 and _continues_row(row[-1:], mark, step_most, dot_width):
            # Two marks are always evenly spaced: the second may be the first of another row.
            row = [row[-1], mark]
        else:
            row = [mark]
    return rows


def _continues_row(row: Sequence[Mark], mark: Mark, step_most: float, dot_width: float) -> bool:
    step = _step(row[-1], mark)
    is_level = abs(mark[3] - row[-1][3]) <= dot_width / 2
    if step > step_most or not is_level:
        return False
    return len(row) < 2 or abs(step - _usual_step(row)) <= _STEP_TOLERANCE * _usual_step(row) + 1


def _step(one: Mark, other: Mark) -> float:
    return (other[0] + other[2] - one[0] - one[2]) / 2


def _usual_step(row: Sequence[Mark]) -> float:
    return median([_step(one, other) for one, other in pairwise(row)])


def _extend_row(
    dots: list[Mark], ink: Image.Image, ink_before: Sequence[int], dot_width: float, row_begin: int
) -> list[Mark]:
    """Add faint dots at both ends. `ink_before` is the sum of the ink left of each column."""
    step = _usual_step(dots)
    dot_ink = median([ink_before[mark[2]] - ink_before[mark[0]] for mark in dots])

    def find_beside(mark: Mark, direction: int) -> Mark | None:
        middle = (mark[0] + mark[2]) / 2 + direction * step
        begin, end = round(middle - step / 2), round(middle + step / 2)
        if begin < row_begin or end >= len(ink_before) or ink_before[end] - ink_before[begin] > _INK_MOST * dot_ink:
            return None
        reach = step * _STEP_TOLERANCE + (mark[2] - mark[0]) / 2
        left, top = round(middle - reach), max(round(mark[1] - dot_width / 2), 0)
        bottom = min(round(mark[3] + dot_width / 2), ink.height)
        box = ink.crop((left, top, round(middle + reach), bottom)).getbbox()
        return None if box is None else (left + box[0], top + box[1], left + box[2], top + box[3])

    row = list(dots)
    while (mark := find_beside(row[-1], 1)) is not None:
        row.append(mark)
    while (mark := find_beside(row[0], -1)) is not None:
        row.insert(0, mark)
    return row
