"""The columns of a table: by its vertical ruling lines, or by the gaps between its pieces."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from job_handlers.reading.tables.pieces import SIGNS_BEFORE, SIGNS_BEHIND, Band, Split, TextPiece, join_words

Column = tuple[float, float]
Line = list[list[TextPiece]]

_GAP_LEAST = 0.25
_TWO_NUMBERS = re.compile(r"[\d,]*\.\d+,\d{3}\.[\d,.]*")
_HEADS_MOST = 3


def find_columns(bands: Sequence[Band], walls: Sequence[float], em: float) -> list[Column]:
    if len(walls) < 3:
        return _by_gaps(bands, em)
    inner = list(pairwise(walls))
    left = min(one.x0 for band in bands for one in band)
    right = max(one.x1 for band in bands for one in band)
    if left < walls[0] - em:
        inner.insert(0, (left, walls[0]))
    if right > walls[-1] + em:
        inner.append((walls[-1], right))
    return [column for begin, end in inner for column in _between_walls(bands, begin, end, em)]


def _between_walls(bands: Sequence[Band], begin: float, end: float, em: float) -> list[Column]:
    within = [
        some for band in bands
        if (some := [one for one in band if begin <= (one.x0 + one.x1) / 2 <= end])
    ]  # fmt: skip
    parts = _by_gaps(within, em) if sum(len(band) > 1 for band in within) > 0.5 * len(within) else []
    middles = [(a[1] + b[0]) / 2 for a, b in pairwise(parts)]
    return list(pairwise([begin, *middles, end]))


def _by_gaps(bands: Sequence[Band], em: float) -> list[Column]:
    counts = sorted((len(band) for band in bands if len(band) > 1), reverse=True)
    if not counts:
        return []
    usual = counts[len(counts) // 4]
    whole = [[one for one in band if not _is_run_together(one, em)] for band in bands]
    full = [band for band in whole if len(band) >= max(2, 0.5 * usual)]
    best: list[Column] = []
    # A head may span several columns. The lines below it show the columns better.
    for skipped in range(min(_HEADS_MOST, len(full) - 1)):
        some = full[skipped:]
        tolerated = len(some) // 10 if len(some) > 5 else 0
        found = _covered_ranges(some, tolerated, em)
        if len(found) > len(best):
            best = found
        if len(best) >= usual:
            break
    return best


def _is_run_together(one: TextPiece, em: float) -> bool:
    """Return whether an engine read across a column gap."""
    text = one.text
    is_wide = one.x1 - one.x0 > 1.5 * em * len(text) > 1.5 * em
    return is_wide or (text.count(".") > 1 and _TWO_NUMBERS.fullmatch(text) is not None)


def _covered_ranges(bands: Sequence[Band], tolerated: int, em: float) -> list[Column]:
    ends: list[tuple[float, int]] = []
    for band in bands:
        for one in band:
            ends.append((one.x0, 1))
            ends.append((one.x1, -1))
    ends.sort()
    found: list[Column] = []
    deep, begin = 0, None
    for x, step in ends:
        deep += step
        if deep > tolerated and begin is None:
            begin = found.pop()[0] if found and x - found[-1][1] < _GAP_LEAST * em else x
        elif deep <= tolerated and begin is not None:
            found.append((begin, x))
            begin = None
    return found


def cut_at_columns(band: Band, columns: Sequence[Column], split: Split, em: float) -> Band:
    return [part for one in band for part in _cut_piece(one, columns, split, em)]


def _cut_piece(one: TextPiece, columns: Sequence[Column], split: Split, em: float) -> Sequence[TextPiece]:
    x0, x1 = one.x0, one.x1
    if " " not in one.text or not _spans_columns(x0 + 0.2 * em, x1 - 0.2 * em, columns):
        return [one]
    words = [word for word in split(one) if word.x0 >= x0 - 0.1 * em and word.x1 <= x1 + 0.1 * em]
    if len(words) < 2:
        return [one]
    spaces = [b.x0 - a.x1 for a, b in pairwise(words)]
    least = max(0.42 * em, 1.25 * min(spaces) if len(spaces) > 1 else 0.0)
    parts: list[list[TextPiece]] = [[words[0]]]
    for (before, word), space in zip(pairwise(words), spaces, strict=True):
        if space > least and main_column(before, columns) != main_column(word, columns):
            parts.append([])
        parts[-1].append(word)
    return [join_words(part, one) for part in parts]


def _spans_columns(x0: float, x1: float, columns: Sequence[Column]) -> bool:
    return sum([x0 < end and x1 > begin for begin, end in columns]) > 1


def main_column(one: TextPiece, columns: Sequence[Column]) -> int:
    best, main, x0, x1 = -1e9, 0, one.x0, one.x1
    for at, (begin, end) in enumerate(columns):
        shared = (x1 if x1 < end else end) - (x0 if x0 > begin else begin)
        if shared > best:
            best, main = shared, at
    return main


def merge_sign_columns(bands: Sequence[Band], columns: list[Column]) -> list[Column]:
    if not any(one.text.strip() in SIGNS_BEFORE | SIGNS_BEHIND for band in bands for one in band):
        return columns
    texts: list[set[str]] = [set() for _ in columns]
    for band in bands:
        for one in band:
            texts[main_column(one, columns)].add(one.text.strip())
    found: list[Column] = []
    carried: float | None = None
    for at, (begin, end) in enumerate(columns):
        own = texts[at]
        if own and own <= SIGNS_BEHIND and found:
            found[-1] = (found[-1][0], end)
        elif own and own <= SIGNS_BEFORE and at + 1 < len(columns):
            carried = begin if carried is None else carried
        else:
            found.append((begin if carried is None else carried, end))
            carried = None
    return found


def cells_of(bands: Sequence[Band], columns: Sequence[Column]) -> list[Line]:
    begins, ends = [begin for begin, _ in columns], [end for _, end in columns]
    lines: list[Line] = []
    for band in bands:
        line: Line = [[] for _ in columns]
        for one in band:
            x0, x1 = one.x0, one.x1
            first, last = bisect_right(ends, x0), bisect_left(begins, x1) - 1
            if first != last:
                over = [
                    at for at in range(first, last + 1)
                    if min(x1, ends[at]) - max(x0, begins[at]) > 0.3 * min(x1 - x0, ends[at] - begins[at])
                ]  # fmt: skip
                first = over[0] if len(over) > 1 else main_column(one, columns)
            line[first].append(one)
        lines.append(line)
    return lines
