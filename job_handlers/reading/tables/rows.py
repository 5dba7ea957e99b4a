"""Join the lines of a table into rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from job_handlers.reading.tables.columns import Line
from job_handlers.reading.tables.text_pieces import Band, RulingLine, TextPiece, is_number, middle

_YEAR = re.compile(r"(?:FY\s?)?(?:19|20)\d\d[*†]?")
_ROW_STEP_MOST = 2.1  # In em. A line further below the one above it begins a row.
_TIGHT_STEP = 0.8  # Share of the usual step below which a line is close to the one above it.
_TITLE_STEP = 0.87  # Share of the body's step below which two lines of the head are one title.
_BODY_STEP_MOST = 1.75  # In em. If the body has wider steps, lines of the head are one title only if they are closer.


class LineEvidence(Struct, frozen=True):
    """A line, and the row so far that it may continue."""

    first_text: str
    filled: set[int]
    """Columns that the line fills."""
    filled_so_far: set[int]
    """Columns that the row fills."""
    has_values: bool
    row_has_values: bool
    is_tight: bool


class RowMerger:
    def __init__(self, bands: Sequence[Band], lines: Sequence[Line], texts: Sequence[Sequence[str]], em: float) -> None:
        self._lines, self._texts, self._em = lines, texts, em
        self._middles = [middle(band) for band in bands]
        self._steps = [below - above for above, below in pairwise(self._middles)]
        """Distance of each line to the next."""
        self._usual_step = median(self._steps) if self._steps else em
        self._numeric_columns = _numeric_columns(texts)
        self._values = [
            [text if column in self._numeric_columns and is_number(text) else "" for column, text in enumerate(line)]
            for line in texts
        ]
        """Numbers of each line in numeric columns."""
        self._last_head_line = self._find_last_head_line()

    def rows(self, horizontal: Sequence[RulingLine]) -> list[Line]:
        rule_positions = {rule.y0 for rule in horizontal}
        # For each line, the number of ruling lines above it: lines with the same number are between two ruling lines.
        sections = [sum(rule_y < line_y for rule_y in rule_positions) for line_y in self._middles]
        largest = max(Counter(sections).values())
        # Two or three ruling lines may only frame the head and the body.
        are_rows_ruled = len(set(sections)) >= 3 and largest <= 0.5 * len(sections)
        rows: list[Line] = []
        row_begin = 0
        for at, line in enumerate(self._lines):
            is_same_section = at > 0 and sections[at] == sections[at - 1]
            if is_same_section and (are_rows_ruled or self._continues_row(row_begin, at)):
                for cell, pieces in zip(rows[-1], line, strict=True):
                    cell.extend(pieces)
            else:
                row_begin = at
                rows.append([list(cell) for cell in line])
        return rows

    def _continues_row(self, row_begin: int, at: int) -> bool:
        filled = _filled_columns([self._texts[at]])
        if self._steps[at - 1] > _ROW_STEP_MOST * self._em or not filled:
            return False
        filled_so_far = _filled_columns(self._texts[row_begin:at])
        # The head and the body have different rules.
        if at <= self._last_head_line:
            # "EUR million" below the titles of the other columns is no part of a title.
            is_alone_in_first_column = filled == {0} and 0 not in filled_so_far
            return not is_alone_in_first_column and self._continues_titles(at)
        step_below = self._steps[at] if at < len(self._steps) else self._usual_step
        return self._continues_body_row(
            LineEvidence(
                self._texts[at][min(filled)],
                filled,
                filled_so_far,
                has_values=any(self._values[at]),
                row_has_values=any(map(any, self._values[row_begin:at])),
                is_tight=self._steps[at - 1] < _TIGHT_STEP * max(step_below, self._usual_step),
            )
        )

    def _continues_body_row(self, line: LineEvidence) -> bool:
        first_letter = line.first_text[:1]
        fills_first_column = 0 in line.filled
        if line.has_values:
            # "and equipment | 1,204" below "Property, plant".
            return line.filled_so_far == {0} and fills_first_column and first_letter.islower()
        if not fills_first_column:
            # "(restated)" below "1,204".
            return line.filled <= line.filled_so_far or line.is_tight
        if self._numeric_columns:
            # "and equipment" below "Property, plant | 1,204".
            is_rest_of_label = first_letter.islower() or (line.is_tight and not first_letter.isupper())
            return line.row_has_values and line.filled == {0} and is_rest_of_label
        # "of goods | the Union" below "Free movement | Applies within".
        return line.is_tight and len(line.filled) <= len(line.filled_so_far)

    def _find_last_head_line(self) -> int:
        """Return the index before the first line with values, except years, in most of the numeric columns."""
        for at, values in enumerate(self._values):
            count = sum(bool(value) and not _YEAR.fullmatch(value) for value in values)
            if count and count >= 0.5 * len(self._numeric_columns):
                return at - 1
        return 0

    def _continues_titles(self, at: int) -> bool:
        above, line = self._lines[at - 1], self._lines[at]
        if not all(_share_x_range(cell, below) for cell, below in zip(above, line, strict=True) if cell and below):
            return False
        body_step = median(self._steps[self._last_head_line :] or self._steps)
        if self._steps[at - 1] < _TITLE_STEP * body_step:
            return True
        if body_step > _BODY_STEP_MOST * self._em:
            return False
        titles_below: Line = [[] for _ in line]
        for head_line in self._lines[at : self._last_head_line + 1]:
            for title, pieces in zip(titles_below, head_line, strict=True):
                title.extend(pieces)
        return not _has_group_title(above, titles_below)


def _filled_columns(texts: Sequence[Sequence[str]]) -> set[int]:
    return {column for line in texts for column, text in enumerate(line) if text}


def _numeric_columns(texts: Sequence[Sequence[str]]) -> set[int]:
    """Return the columns, except the first, with numbers in at least half of their filled cells."""
    numeric: set[int] = set()
    for column, cells in enumerate(zip(*texts, strict=True)):
        filled = [text for text in cells if text]
        if column > 0 and filled and sum(map(is_number, filled)) >= 0.5 * len(filled):
            numeric.add(column)
    return numeric


def _share_x_range(cell: Sequence[TextPiece], other: Sequence[TextPiece]) -> bool:
    return cell[0].x0 < other[-1].x1 and cell[-1].x1 > other[0].x0


def _has_group_title(line: Line, titles_below: Line) -> bool:
    """Return whether the line has a title over several columns, which does not continue in the line below."""
    for cell in line:
        if cell and sum(bool(below) and _share_x_range(cell, below) for below in titles_below) > 1:
            return True
    # "2023" and "2024", each above two titles but no wider than the first.
    title_count = sum(map(bool, line))
    return 0 < title_count <= sum(map(bool, titles_below)) / 2 and title_count < 3
