"""Decide whether lines with columns are a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from job_handlers.reading.tables.columns import Line
from job_handlers.reading.tables.text_pieces import TextPiece, is_number

_ALIGNED_WITHIN = 0.35  # Em from the middle of a cluster of edges.


@dataclass
class Evidence:
    lines: Sequence[Line]
    texts: Sequence[Sequence[str]]
    em: float
    rule_count: int
    """Horizontal ruling lines."""
    is_drawn: bool
    """True between ruling lines."""

    @cached_property
    def wide_lines(self) -> list[int]:
        """Indices of the lines with several cells."""
        return [at for at, line in enumerate(self.lines) if sum(map(bool, line)) > 1]

    @cached_property
    def cells(self) -> list[list[str]]:
        """Texts of wide lines, by column."""
        columns = range(len(self.lines[0]))
        return [[text for at in self.wide_lines if (text := self.texts[at][column])] for column in columns]

    @cached_property
    def number_shares(self) -> list[float]:
        """Share of numbers, by column."""
        return [sum(map(is_number, column)) / len(column) if column else 0.0 for column in self.cells]

    @cached_property
    def word_counts(self) -> list[float]:
        """Mean number of words in a cell, by column."""
        return [sum(len(text.split()) for text in column) / len(column) if column else 0.0 for column in self.cells]

    @property
    def column_count(self) -> int:
        return len(self.cells)

    @property
    def filled_share(self) -> float:
        return sum(map(len, self.cells)) / (len(self.wide_lines) * self.column_count)

    @property
    def has_short_cells(self) -> bool:
        return max(self.word_counts) <= 6

    @property
    def begins_with_labels(self) -> bool:
        """True if cells of the first column end in colons, as on an invoice."""
        first = self.cells[0]
        return bool(first) and sum(text.endswith(":") for text in first) >= 0.8 * len(first)

    @property
    def is_contents(self) -> bool:
        """True if lines end in page numbers that hardly ever decrease."""
        if self.is_drawn or max(self.number_shares[1:-1], default=0.0) >= 0.5:
            return False
        last_cells = [[text for text in self.texts[at] if text][-1] for at in self.wide_lines]
        last_words = [cell.split()[-1].lstrip(".") for cell in last_cells]
        numbers = [int(word) for word in last_words if word.isdecimal() and len(word) < 5]
        if len(numbers) < 3 or len(numbers) < 0.8 * len(last_words) or numbers[0] >= numbers[-1]:
            return False
        return sum(below >= above for above, below in pairwise(numbers)) >= 0.9 * (len(numbers) - 1)

    @cached_property
    def aligned_share(self) -> float:
        """Share of cells whose left edge, right edge or centre is aligned in their column."""
        aligned = total = 0
        reach = _ALIGNED_WITHIN * self.em
        for column in range(self.column_count):
            cells = [self.lines[at][column] for at in self.wide_lines if self.lines[at][column]]
            if len(cells) > 1:
                aligned += max(_largest_cluster(sorted(map(edge, cells)), reach) for edge in _EDGES)
                total += len(cells)
        return aligned / total if total else 0.0


Rule = tuple[str, Callable[[Evidence], bool]]

AGAINST: Sequence[Rule] = (
    ("few lines have gaps", lambda it: len(it.wide_lines) < max(2, 0.4 * len(it.lines))),
    ("most cells are empty", lambda it: it.filled_share < 0.35),
    ("it is a table of contents", lambda it: it.is_contents),
    ("cells are not aligned", lambda it: it.aligned_share <= 0.5 if it.is_drawn else it.aligned_share < 0.7),
)
FOR: Sequence[Rule] = (
    ("ruling lines surround it", lambda it: it.is_drawn),
    ("a column of names and one of numbers", lambda it: _is_list_of_pairs(it) and it.number_shares[1] >= 0.6),
    ("labels and values", lambda it: _is_list_of_pairs(it) and it.has_short_cells and it.begins_with_labels),
    (
        "two columns between ruling lines",
        lambda it: _is_list_of_pairs(it) and it.has_short_cells and it.rule_count >= 2,
    ),
    (
        "numbers in three columns or more",
        lambda it: it.column_count > 2 and sum(it.number_shares[1:]) / (it.column_count - 1) >= 0.3,
    ),
    (
        "short cells in three columns or more",
        lambda it: (
            it.column_count > 2
            and len(it.wide_lines) > 2
            and sum(it.word_counts) / it.column_count <= 4.5
            and it.filled_share >= 0.6
        ),
    ),
)


def _is_list_of_pairs(it: Evidence) -> bool:
    return it.column_count == 2 and len(it.wide_lines) > 2


def is_table(it: Evidence) -> bool:
    return not any(applies(it) for _, applies in AGAINST) and any(applies(it) for _, applies in FOR)


def _largest_cluster(places: Sequence[float], reach: float) -> int:
    """Return how many of the sorted places are within twice `reach` of each other."""
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
