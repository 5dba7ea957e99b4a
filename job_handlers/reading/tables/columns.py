"""The columns of a table: by its vertical ruling lines, or by the gaps between its pieces."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from job_handlers.reading.tables.text_pieces import SIGNS_BEFORE, SIGNS_BEHIND, Band, Split, TextPiece, join_words

Column = tuple[float, float]
"""Left and right edge."""
Line = list[list[TextPiece]]
"""The pieces of each cell of a line."""

_GAP_LEAST = 0.25  # In em. A narrower gap does not separate columns.
_CUT_LEAST = 0.42  # In em. A piece is not cut at a narrower space.
_CUT_WIDER = 1.25  # A piece is cut at spaces this many times as wide as its narrowest.
_SPANNED_SHARE = 0.3  # Of the narrower of a piece and a column, above which the piece spans the column.
_TWO_NUMBERS = re.compile(r"[\d,]*\.\d+,\d{3}\.[\d,.]*")  # 1,204.5998.1
_HEAD_LINES_MOST = 3
# One line in ten may cross a gap between columns, if there are at least six lines.
_LINES_PER_CROSSING, _CROSSED_LINES_LEAST = 10, 6


def find_columns(bands: Sequence[Band], walls: Sequence[float], em: float) -> list[Column]:
    """`walls` are the x positions of the vertical ruling lines."""
    if len(walls) < 3:
        return _columns_by_gaps(bands, em)
    between_walls = list(pairwise(walls))
    left = min(piece.x0 for band in bands for piece in band)
    right = max(piece.x1 for band in bands for piece in band)
    if left < walls[0] - em:
        between_walls.insert(0, (left, walls[0]))
    if right > walls[-1] + em:
        between_walls.append((walls[-1], right))
    return [column for begin, end in between_walls for column in _columns_within(begin, end, bands, em)]


def _columns_within(begin: float, end: float, bands: Sequence[Band], em: float) -> list[Column]:
    """Divide the space between two walls where most of its lines have gaps."""
    inner_bands = [[piece for piece in band if begin <= (piece.x0 + piece.x1) / 2 <= end] for band in bands]
    inner_bands = [band for band in inner_bands if band]
    have_gaps = sum(len(band) > 1 for band in inner_bands) > 0.5 * len(inner_bands)
    columns = _columns_by_gaps(inner_bands, em) if have_gaps else []
    middles = [(left_end + right_begin) / 2 for (_, left_end), (right_begin, _) in pairwise(columns)]
    return list(pairwise([begin, *middles, end]))


def _columns_by_gaps(bands: Sequence[Band], em: float) -> list[Column]:
    piece_counts = sorted((len(band) for band in bands if len(band) > 1), reverse=True)
    if not piece_counts:
        return []
    # At most a quarter of the lines with gaps have more pieces.
    expected = piece_counts[len(piece_counts) // 4]
    reliable_bands = [[piece for piece in band if not _is_run_together(piece, em)] for band in bands]
    full_bands = [band for band in reliable_bands if len(band) >= max(2, 0.5 * expected)]
    columns: list[Column] = []
    # A head may span several columns. The lines below it show the columns better.
    for skipped in range(min(_HEAD_LINES_MOST, len(full_bands) - 1)):
        body = full_bands[skipped:]
        crossing_most = len(body) // _LINES_PER_CROSSING if len(body) >= _CROSSED_LINES_LEAST else 0
        covered = _covered_ranges(body, crossing_most, em)
        if len(covered) > len(columns):
            columns = covered
        if len(columns) >= expected:
            break
    return columns


def _is_run_together(piece: TextPiece, em: float) -> bool:
    """Return whether an OCR engine seems to have read two cells as one word."""
    text = piece.text
    is_wide = len(text) > 1 and piece.x1 - piece.x0 > 1.5 * em * len(text)
    return is_wide or (text.count(".") > 1 and _TWO_NUMBERS.fullmatch(text) is not None)


def _covered_ranges(bands: Sequence[Band], crossing_most: int, em: float) -> list[Column]:
    """Return the ranges of x that more than `crossing_most` pieces cover."""
    ends: list[tuple[float, int]] = []
    for band in bands:
        for piece in band:
            ends.append((piece.x0, 1))
            ends.append((piece.x1, -1))
    # From left to right, the number of pieces at x grows where a piece begins, and falls where one ends.
    ends.sort()
    ranges: list[Column] = []
    covering, begin = 0, None
    for x, step in ends:
        covering += step
        if covering > crossing_most and begin is None:
            begin = x
            if ranges and x - ranges[-1][1] < _GAP_LEAST * em:
                # The gap is too narrow: continue the range before it.
                begin, _ = ranges.pop()
        elif covering <= crossing_most and begin is not None:
            ranges.append((begin, x))
            begin = None
    return ranges


def cut_at_columns(band: Band, columns: Sequence[Column], split: Split, em: float) -> Band:
    return [part for piece in band for part in _cut_piece(piece, columns, split, em)]


def _cut_piece(piece: TextPiece, columns: Sequence[Column], split: Split, em: float) -> Sequence[TextPiece]:
    x0, x1 = piece.x0, piece.x1
    if " " not in piece.text or not _spans_columns(x0 + 0.2 * em, x1 - 0.2 * em, columns):
        return [piece]
    words = [word for word in split(piece) if word.x0 >= x0 - 0.1 * em and word.x1 <= x1 + 0.1 * em]
    if len(words) < 2:
        return [piece]
    spaces = [word.x0 - before.x1 for before, word in pairwise(words)]
    cut_width = max(_CUT_LEAST * em, _CUT_WIDER * min(spaces) if len(spaces) > 1 else 0.0)
    parts: list[list[TextPiece]] = [[words[0]]]
    for (before, word), space in zip(pairwise(words), spaces, strict=True):
        if space > cut_width and main_column(before, columns) != main_column(word, columns):
            parts.append([])
        parts[-1].append(word)
    return [join_words(part, piece) for part in parts]


def _spans_columns(x0: float, x1: float, columns: Sequence[Column]) -> bool:
    return sum([x0 < end and x1 > begin for begin, end in columns]) > 1


def main_column(piece: TextPiece, columns: Sequence[Column]) -> int:
    """Return the index of the column that shares most of the piece's width; if none does, the nearest."""
    most_shared, main, x0, x1 = -inf, 0, piece.x0, piece.x1
    for at, (begin, end) in enumerate(columns):
        # Faster than with `min` and `max`. Negative if the piece is beside the column.
        shared = (x1 if x1 < end else end) - (x0 if x0 > begin else begin)
        if shared > most_shared:
            most_shared, main = shared, at
    return main


def merge_sign_columns(bands: Sequence[Band], columns: list[Column]) -> list[Column]:
    """Merge a column of only "$" with the next, and a column of only "%" with the one before."""
    if not any(piece.text.strip() in SIGNS_BEFORE | SIGNS_BEHIND for band in bands for piece in band):
        return columns
    texts: list[set[str]] = [set() for _ in columns]
    for band in bands:
        for piece in band:
            texts[main_column(piece, columns)].add(piece.text.strip())
    merged: list[Column] = []
    # Left edge of a column of signs that the next column takes in.
    signs_begin: float | None = None
    for at, ((begin, end), column_texts) in enumerate(zip(columns, texts, strict=True)):
        is_last = at + 1 == len(columns)
        if column_texts and column_texts <= SIGNS_BEHIND and merged:
            before_begin, _ = merged[-1]
            merged[-1] = before_begin, end
        elif column_texts and column_texts <= SIGNS_BEFORE and not is_last:
            signs_begin = begin if signs_begin is None else signs_begin
        else:
            merged.append((begin if signs_begin is None else signs_begin, end))
            signs_begin = None
    return merged


def cells_of(bands: Sequence[Band], columns: Sequence[Column]) -> list[Line]:
    begins, ends = [begin for begin, _ in columns], [end for _, end in columns]
    lines: list[Line] = []
    for band in bands:
        line: Line = [[] for _ in columns]
        for piece in band:
            first, last = bisect_right(ends, piece.x0), bisect_left(begins, piece.x1) - 1
            column = first if first == last else _first_column(piece, columns, range(first, last + 1))
            line[column].append(piece)
        lines.append(line)
    return lines


def _first_column(piece: TextPiece, columns: Sequence[Column], touched: range) -> int:
    """Return the first of several columns that the piece spans, or the only one that it is in."""
    spanned: list[int] = []
    for at in touched:
        begin, end = columns[at]
        shared = min(piece.x1, end) - max(piece.x0, begin)
        if shared > _SPANNED_SHARE * min(piece.x1 - piece.x0, end - begin):
            spanned.append(at)
    return spanned[0] if len(spanned) > 1 else main_column(piece, columns)
