"""Decide whether lines with columns are a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from job_handlers.reading.tables.columns import Line
from job_handlers.reading.tables.pieces import TextPiece, is_number

_SNAP = 0.35


@dataclass
class Evidence:
    lines: Sequence[Line]
    texts: Sequence[Sequence[str]]
    em: float
    rule_count: int
    is_drawn: bool

    @cached_property
    def wide(self) -> list[int]:
        return [at for at, line in enumerate(self.lines) if sum(map(bool, line)) > 1]

    @cached_property
    def cells(self) -> list[list[str]]:
        """Texts of wide lines, by column."""
        columns = range(len(self.lines[0]))
        return [[text for at in self.wide if (text := self.texts[at][column])] for column in columns]

    @cached_property
    def numeric(self) -> list[float]:
        return [sum(map(is_number, column)) / len(column) if column else 0.0 for column in self.cells]

    @cached_property
    def words(self) -> list[float]:
        return [sum(len(text.split()) for text in column) / len(column) if column else 0.0 for column in self.cells]

    @property
    def columns(self) -> int:
        return len(self.cells)

    @property
    def filled(self) -> float:
        return sum(map(len, self.cells)) / (len(self.wide) * self.columns)

    @property
    def is_short(self) -> bool:
        return max(self.words) <= 6

    @property
    def are_labels(self) -> bool:
        """The first column ends in colons, as on an invoice."""
        first = self.cells[0]
        return bool(first) and sum(text.endswith(":") for text in first) >= 0.8 * len(first)

    @property
    def is_contents(self) -> bool:
        """Lines end in page numbers that never decrease."""
        if self.is_drawn or max(self.numeric[1:-1], default=0.0) >= 0.5:
            return False
        ends = [next(filter(None, reversed(self.texts[at]))).split()[-1].lstrip(".") for at in self.wide]
        numbers = [int(end) for end in ends if end.isdecimal() and len(end) < 5]
        if len(numbers) < 3 or len(numbers) < 0.8 * len(ends) or numbers[0] >= numbers[-1]:
            return False
        return sum(b >= a for a, b in pairwise(numbers)) >= 0.9 * (len(numbers) - 1)

    @cached_property
    def aligned(self) -> float:
        """Share of cells aligned with their column."""
        good = total = 0
        for column in range(self.columns):
            own = [self.lines[at][column] for at in self.wide if self.lines[at][column]]
            if len(own) > 1:
                good += max(_largest_cluster(sorted(map(edge, own)), _SNAP * self.em) for edge in _EDGES)
                total += len(own)
        return good / total if total else 0.0


Rule = tuple[str, Callable[[Evidence], bool]]

AGAINST: Sequence[Rule] = (
    ("few lines have gaps", lambda it: len(it.wide) < max(2, 0.4 * len(it.lines))),
    ("most cells are empty", lambda it: it.filled < 0.35),
    ("it is a table of contents", lambda it: it.is_contents),
    ("cells are not aligned", lambda it: it.aligned <= 0.5 if it.is_drawn else it.aligned < 0.7),
)
FOR: Sequence[Rule] = (
    ("ruling lines surround it", lambda it: it.is_drawn),
    ("a column of names and one of numbers", lambda it: _has_two(it) and it.numeric[1] >= 0.6),
    ("labels and values", lambda it: _has_two(it) and it.is_short and it.are_labels),
    ("two columns between ruling lines", lambda it: _has_two(it) and it.is_short and it.rule_count >= 2),
    ("numbers in three columns or more", lambda it: it.columns > 2 and sum(it.numeric[1:]) / (it.columns - 1) >= 0.3),
    (
        "short cells in three columns or more",
        lambda it: it.columns > 2 and len(it.wide) > 2 and sum(it.words) / it.columns <= 4.5 and it.filled >= 0.6,
    ),
)


def _has_two(it: Evidence) -> bool:
    return it.columns == 2 and len(it.wide) > 2


def is_table(it: Evidence) -> bool:
    return not any(applies(it) for _, applies in AGAINST) and any(applies(it) for _, applies in FOR)


def _largest_cluster(places: Sequence[float], reach: float) -> int:
    best = begin = 0
    for end, place in enumerate(places):
        while place - places[begin] > 2 * reach:
            begin += 1
        best = max(best, end - begin + 1)
    return best


def _left_edge(cell: Sequence[TextPiece]) -> float:
    return cell[0].x0


def _right_edge(cell: Sequence[TextPiece]) -> float:
    return cell[-1].x1


def _centre(cell: Sequence[TextPiece]) -> float:
    return (cell[0].x0 + cell[-1].x1) / 2


_EDGES = (_left_edge, _right_edge, _centre)
