"""The rows of a table: which lines belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from job_handlers.reading.tables.columns import Line
from job_handlers.reading.tables.pieces import Band, RulingLine, TextPiece, is_number, middle

_YEAR = re.compile(r"(?:FY\s?)?(?:19|20)\d\d[*†]?")


class LineEvidence(Struct, frozen=True):
    text: str
    filled: list[int]
    before: set[int]
    """Filled columns of the row above."""
    has_values: bool
    values_above: bool
    is_tight: bool
    """Closer to the line above than usual."""


class RowMerger:
    """Merges the lines between two ruling lines, and those that continue the line above."""

    def __init__(self, bands: Sequence[Band], lines: Sequence[Line], texts: Sequence[Sequence[str]], em: float) -> None:
        self._lines, self._texts, self._em = lines, texts, em
        self._middles = [middle(band) for band in bands]
        self._steps = [b - a for a, b in pairwise(self._middles)]
        self._usual_step = median(self._steps) if self._steps else em
        numbers = [[bool(text) and is_number(text) for text in line] for line in texts]
        # For each column but the first: whether at least half of its cells that are not empty are numbers.
        self._numeric = [
            at > 0 and any(filled) and sum(column) >= 0.5 * sum(map(bool, filled))
            for at, (column, filled) in enumerate(
                zip(zip(*numbers, strict=True), zip(*texts, strict=True), strict=True)
            )
        ]
        # For each cell: whether it is a number in a numeric column.
        self._values = [
            [number and is_numeric for number, is_numeric in zip(line, self._numeric, strict=True)] for line in numbers
        ]
        self._head = self._end_of_head()

    def rows(self, horizontal: Sequence[RulingLine]) -> list[Line]:
        ys = sorted({one.y0 for one in horizontal})
        sections = [sum(y < own for y in ys) for own in self._middles]
        inner = set(sections)
        # Ruling lines do not separate rows if most rows are between the same two, as in a body below a head.
        by_rules = len(inner) >= 3 and max(map(sections.count, inner)) <= 0.5 * len(sections)
        rows: list[Line] = []
        begun = 0
        for at, line in enumerate(self._lines):
            if rows and sections[at] == sections[at - 1] and (by_rules or self._continues(at, begun)):
                for cell, more in zip(rows[-1], line, strict=True):
                    cell += more
            else:
                begun = at
                rows.append([list(cell) for cell in line])
        return rows

    def _continues(self, at: int, begun: int) -> bool:
        filled = [column for column, text in enumerate(self._texts[at]) if text]
        if self._steps[at - 1] > 2.1 * self._em or not filled:
            return False
        before = {column for one in self._texts[begun:at] for column, text in enumerate(one) if text}
        if at <= self._head:
            # A text alone in the first column, below the titles of the others, begins a row and is no title.
            return (filled != [0] or 0 in before) and self._is_wrapped_head(at)
        following = self._steps[at] if at < len(self._steps) else self._usual_step
        return self._continues_body(
            LineEvidence(
                self._texts[at][filled[0]],
                filled,
                before,
                has_values=any(self._values[at]),
                values_above=any(map(any, self._values[begun:at])),
                is_tight=self._steps[at - 1] < 0.8 * max(following, self._usual_step),
            )
        )

    def _continues_body(self, line: LineEvidence) -> bool:
        if line.has_values:
            # A label of two lines, with its numbers beside the last of them.
            return line.before == {0} and line.filled[0] == 0 and line.text[:1].islower()
        if line.filled[0]:
            return set(line.filled) <= line.before or line.is_tight
        if any(self._numeric):
            is_rest = line.text[:1].islower() or (line.is_tight and not line.text[:1].isupper())
            return line.values_above and line.filled == [0] and is_rest
        return line.is_tight and len(line.filled) <= len(line.before)

    def _end_of_head(self) -> int:
        """Return the head's last line: the next has values in most of the numeric columns."""
        for at, line in enumerate(self._texts):
            values = sum(
                is_value and not _YEAR.fullmatch(text) for text, is_value in zip(line, self._values[at], strict=True)
            )
            if values and values >= 0.5 * sum(self._numeric):
                return at - 1
        return 0

    def _is_wrapped_head(self, at: int) -> bool:
        # A title over several columns does not continue the line above it.
        above, line = self._lines[at - 1], self._lines[at]
        if not all(_is_above(cell, below) for cell, below in zip(above, line, strict=True) if cell and below):
            return False
        body = median(self._steps[self._head :] or self._steps)
        if self._steps[at - 1] < 0.87 * body:
            return True
        if body > 1.75 * self._em:
            return False
        head = self._lines[at : self._head + 1]
        return not _is_spanning(
            above, [[one for later in head for one in later[column]] for column in range(len(line))]
        )


def _is_above(cell: Sequence[TextPiece], below: Sequence[TextPiece]) -> bool:
    return cell[0].x0 < below[-1].x1 and cell[-1].x1 > below[0].x0


def _is_spanning(above: Sequence[Sequence[TextPiece]], line: Sequence[Sequence[TextPiece]]) -> bool:
    if any(cell and sum(bool(below) and _is_above(cell, below) for below in line) > 1 for cell in above):
        return True
    filled = sum(map(bool, above))
    return 0 < filled <= sum(map(bool, line)) / 2 and filled < 3
