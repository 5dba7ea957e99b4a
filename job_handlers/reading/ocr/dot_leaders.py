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

DOTS_LEAST = 5
_DOT, _APART = 0.3, 2.2
"""In line heights, at most."""
_SPECK = 0.07
"""Line heights."""
_UNEVEN = 0.25
_INK_MOST = 3.0
"""In dots. More is a letter."""
_NEAR = 3.5
_SAME_ROW, _DOTS_ROW = 0.5, 0.8
"""The second is for pieces without words, perhaps dots."""
_STEP_MOST = 1.5
"""Relative to the median step of a paragraph."""
_ROWS_LEAST, _MOST = 3, 0.5
_SURE = 99.0
_WORD, _READ_WELL = 80.0, 90.0
_MARGIN = 0.25
_INK_LEFT_OUT = 0.002
_MARKS = re.compile(b"\xff+")
_ANY_INK = [255 if value else 0 for value in range(256)]


class Leader(Struct, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    dots: int

    def word(self) -> Word:
        return Word(self.x0, self.y0, self.x1, self.y1, _SURE, "." * self.dots)


def is_leader(word: Word) -> bool:
    return len(word.text) >= DOTS_LEAST and not word.text.strip(".")


def separate_leaders(lines: list[list[Word]], gray: Gray, read: Callable[[Gray], list[Word]]) -> list[list[Word]]:
    """`read` recognises an image of one line."""
    boxes = {at: _box_of(line) for at, line in enumerate(lines) if line}
    if not boxes:
        return lines
    usual = median([y1 - y0 for _, y0, _, y1 in boxes.values()])
    edge = max(box[2] for box in boxes.values())
    found = list(lines)
    for at, (x0, y0, x1, y1) in boxes.items():
        if not found[at]:
            continue
        following = _next_in_row(boxes, (x0, y0, x1, y1))
        end = boxes[following][0] - 1 if following is not None else edge
        top = min(y0, y1 - 0.8 * usual)
        rows = find_leaders(gray, (x0, top, end, y1), usual)
        if not rows or rows[0].x0 > x1 + _NEAR * usual:
            continue
        right, led_to = max(x1, rows[-1].x1), list[Word]()
        if end - rows[-1].x1 < _NEAR * usual:
            if following is None:
                right = end
            else:
                led_to, found[following] = found[following], []
        found[at] = [*_insert_leaders(rows, lines[at], (x0, top, right, y1), gray, read), *led_to]
    return found if len(found) == sum(map(bool, found)) else _without_gaps(found)


def misses_text_beside(lines: Sequence[Sequence[Word]], gray: Gray) -> bool:
    if _count_with_dots(lines) < _ROWS_LEAST:
        return False
    words = [word for line in lines for word in line]
    beside = _MARGIN * median([word.y1 - word.y0 for word in words if not is_leader(word)] or [0.0])
    boxes = [layout.with_margin(word, beside) for word in words]
    return any(is_leader(line[-1]) for line in lines if line) or unread_ink(gray, boxes) > _INK_LEFT_OUT


def is_contents_page(lines: Sequence[Sequence[Word]]) -> bool:
    return _count_with_dots(lines) > _MOST * sum(map(bool, lines))


def _has_words(piece: Sequence[Word]) -> bool:
    return any(word.confidence >= _WORD and any(map(str.isalnum, word.text)) for word in piece)


def _count_with_dots(lines: Sequence[Sequence[Word]]) -> int:
    return sum(any(map(is_leader, line)) for line in lines)


def score_beside(lines: Sequence[Sequence[Word]]) -> float:
    return sum(_score([word for word in line if not is_leader(word)]) for line in lines)


def arrange_rows(pieces: Sequence[list[Word]]) -> list[list[Word]]:
    # The best pieces define where the rows are.
    ranked = sorted(filter(None, pieces), key=_score, reverse=True)
    # The better pieces are words; the others may be only dots.
    heights = [word.y1 - word.y0 for piece in ranked[: len(ranked) // 3 + 1] for word in piece]
    usual = median(heights) if heights else 0.0
    rows: list[tuple[float, list[Word]]] = []
    for piece in ranked:
        # Specks make the boxes of words too high.
        foot = median([word.y1 for word in piece])
        away, row = min([(abs(other - foot), row) for other, row in rows], key=itemgetter(0), default=(inf, piece))
        if away < (_SAME_ROW if _has_words(piece) else _DOTS_ROW) * usual:
            row += piece
        else:
            rows.append((foot, [*piece]))
    rows.sort(key=lambda one: one[0])
    steps = [below - above for (above, _), (below, _) in pairwise(rows)]
    most = _STEP_MOST * median(steps) if steps else 0.0
    found: list[list[Word]] = []
    for (_, row), step in zip(rows, [0.0, *steps], strict=False):
        row.sort(key=lambda word: word.x0)
        found += [row] if step <= most else [[], row]
    return found


def _box_of(line: Sequence[Word]) -> Box:
    x0, y0, x1, y1 = layout.bounds_of(line)
    sure = [word for word in line if word.confidence >= _WORD]
    return (x0, min(word.y0 for word in sure), x1, max(word.y1 for word in sure)) if sure else (x0, y0, x1, y1)


def _next_in_row(boxes: dict[int, Box], box: Box) -> int | None:
    _, y0, x1, y1 = box
    beside = [
        at for at, (left, top, _, bottom) in boxes.items()
        if left >= x1 and min(bottom, y1) - max(top, y0) > _SAME_ROW * min(bottom - top, y1 - y0)
    ]  # fmt: skip
    return min(beside, key=lambda at: boxes[at][0], default=None)


def _without_gaps(lines: list[list[Word]]) -> list[list[Word]]:
    found = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return found if not found or found[-1] else found[:-1]


def _insert_leaders(
    rows: Sequence[Leader], line: list[Word], box: Box, gray: Gray, read: Callable[[Gray], list[Word]]
) -> list[Word]:
    x0, top, x1, bottom = box
    found: list[Word] = []
    edges = [x0, *(side for one in rows for side in (one.x0, one.x1)), x1]
    for at, (begin, end) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
        found += _words_beside(line, (begin, top, end, bottom), gray, read)
        found += [rows[at].word()] if at < len(rows) else []
    return found


def _words_beside(line: Sequence[Word], box: Box, gray: Gray, read: Callable[[Gray], list[Word]]) -> list[Word]:
    """Read words again that were uncertain or cut."""
    begin, top, end, bottom = box
    high = bottom - top
    if end - begin < _DOT * high:
        return []
    there = [word for word in line if word.x0 < end - 1 and word.x1 > begin + 1]
    whole = [word for word in there if word.x0 > begin - _DOT * high and word.x1 < end + _DOT * high]
    if there and len(whole) == len(there) and min(word.confidence for word in whole) >= _READ_WELL:
        return whole
    piece, left, above = crop(gray, (begin, top - _MARGIN * high, end, bottom + _MARGIN * high))
    again = [
        Word(one.x0 + left, one.y0 + above, one.x1 + left, one.y1 + above, one.confidence, one.text)
        for one in read(piece)
        if there or one.confidence >= _WORD
    ]
    return max(again, whole, key=_score)


def _score(words: Sequence[Word]) -> float:
    return sum(len(word.text) * max(word.confidence - 30, 0) for word in words)


# --- what is a row of dots --------------------------------------------------------------------------------


def find_leaders(gray: Gray, box: Box, height: float) -> list[Leader]:
    ink, left, top = ink_within(gray, box)
    wide = max(_DOT * height, 3.0)
    columns = ink.reduce((1, ink.height))
    marked = _MARKS.finditer(columns.point(_ANY_INK).tobytes())
    runs = [one.span() for one in marked if one.end() - one.start() >= _SPECK * height]
    narrow = groupby(end - begin <= wide for begin, end in runs)
    if not any(is_narrow and len(list(some)) >= DOTS_LEAST for is_narrow, some in narrow):
        return []
    marks = [_dot(ink, begin, end, wide) for begin, end in runs]
    summed = [0, *accumulate(columns.tobytes())]
    found: list[Leader] = []
    end = 0
    for some in _even_rows(marks, _APART * height, wide):
        if some[0][0] >= end:
            whole = _extend_row(some, ink, summed, wide, end)
            end = whole[-1][2]
            found.append(Leader(left + whole[0][0], top + min(one[1] for one in whole), left + end,
                                top + max(one[3] for one in whole), len(whole)))  # fmt: skip
    return found


def _dot(ink: Image.Image, begin: int, end: int, wide: float) -> Mark | None:
    mark = ink.crop((begin, 0, end, ink.height)).getbbox() if end - begin <= wide else None
    if mark is None or mark[3] - mark[1] > wide or mark[1] < ink.height / 3:
        return None
    return begin, mark[1], end, mark[3]


def _even_rows(marks: Sequence[Mark | None], apart: float, wide: float) -> list[list[Mark]]:
    found: list[list[Mark]] = []
    some: list[Mark] = []
    for one in [*marks, None]:
        if one is not None and some and _continues_row(some, one, apart, wide):
            some.append(one)
            continue
        if len(some) >= DOTS_LEAST:
            found.append(some)
        if one is None:
            some = []
        else:
            # Two marks are always evenly spaced: the second may be the first of another row.
            some = [*some[-1:], one] if len(some) == 2 and _continues_row(some[-1:], one, apart, wide) else [one]
    return found


def _continues_row(some: Sequence[Mark], one: Mark, apart: float, wide: float) -> bool:
    step, last = _step(some[-1], one), some[-1]
    if step > apart or abs(one[3] - last[3]) > wide / 2:
        return False
    return len(some) < 2 or abs(step - _usual_step(some)) <= _UNEVEN * _usual_step(some) + 1


def _step(one: Mark, other: Mark) -> float:
    return (other[0] + other[2] - one[0] - one[2]) / 2


def _usual_step(some: Sequence[Mark]) -> float:
    return median([_step(one, other) for one, other in pairwise(some)])


def _extend_row(some: list[Mark], ink: Image.Image, summed: Sequence[int], wide: float, begin: int) -> list[Mark]:
    step = _usual_step(some)
    of_dot = median([summed[one[2]] - summed[one[0]] for one in some])

    def beside(one: Mark, way: int) -> Mark | None:
        middle = (one[0] + one[2]) / 2 + way * step
        cell = round(middle - step / 2), round(middle + step / 2)
        if cell[0] < begin or cell[1] >= len(summed) or summed[cell[1]] - summed[cell[0]] > _INK_MOST * of_dot:
            return None
        room = step * _UNEVEN + (one[2] - one[0]) / 2
        left, top = round(middle - room), max(round(one[1] - wide / 2), 0)
        mark = ink.crop((left, top, round(middle + room), min(round(one[3] + wide / 2), ink.height))).getbbox()
        return None if mark is None else (left + mark[0], top + mark[1], left + mark[2], top + mark[3])

    whole = list(some)
    while (one := beside(whole[-1], 1)) is not None:
        whole.append(one)
    while (one := beside(whole[0], -1)) is not None:
        whole.insert(0, one)
    return whole
