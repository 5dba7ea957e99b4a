"""Decide whether lines with columns are a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from job_handlers.reading.tables.columns import Line
from job_handlers.reading.tables.text_pieces import is_number

_ALIGNED_WITHIN = 0.35  # Em from the middle of a cluster of edges.


@dataclass
class Evidence:
    lines: Sequence[Line]
    texts: Sequence[Sequence[str]]
    em: float
    rule_count: int
    """Number of horizontal ruling lines."""
    is_drawn: bool
    """True if ruling lines surround the lines."""

    @cached_property
    def wide_lines(self) -> list[int]:
        """Indexes of the lines with several cells."""
        return [at for at, line in enumerate(self.lines) if sum(map(bool, line)) > 1]

    @cached_property
    def texts_by_column(self) -> list[list[str]]:
        """Texts of the filled cells of wide lines."""
        columns = zip(*[self.texts[at] for at in self.wide_lines], strict=True)
        return [list(filter(None, column)) for column in columns]

    @property
    def column_count(self) -> int:
        return len(self.lines[0])

    @property
    def filled_share(self) -> float:
        return sum(map(len, self.texts_by_column)) / (len(self.wide_lines) * self.column_count)

    @cached_property
    def number_shares(self) -> list[float]:
        """Share of numbers, by column."""
        return [_mean([is_number(text) for text in column]) for column in self.texts_by_column]

    @cached_property
    def word_counts(self) -> list[float]:
        """Mean number of words in a cell, by column."""
        return [_mean([len(text.split()) for text in column]) for column in self.texts_by_column]

    @property
    def begins_with_labels(self) -> bool:
        """True if cells of the first column end in colons, as on an invoice."""
        first_column = self.texts_by_column[0]
        return bool(first_column) and sum(text.endswith(":") for text in first_column) >= 0.8 * len(first_column)

    @property
    def is_contents(self) -> bool:
        """True if lines end in page numbers that hardly ever decrease."""
        if self.is_drawn or max(self.number_shares[1:-1], default=0.0) >= 0.5:
            return False
        last_cells = [[text for text in self.texts[at] if text][-1] for at in self.wide_lines]
        last_words = [cell.split()[-1].lstrip(".") for cell in last_cells]
        page_numbers = [int(word) for word in last_words if word.isdecimal() and len(word) < 5]
        are_too_few = len(page_numbers) < 3 or len(page_numbers) < 0.8 * len(last_words)
        if are_too_few or page_numbers[0] >= page_numbers[-1]:
            return False
        return sum(below >= above for above, below in pairwise(page_numbers)) >= 0.9 * (len(page_numbers) - 1)

    @property
    def aligned_share(self) -> float:
        """Share of cells whose left edge, right edge or centre is aligned in their column."""
        aligned_count = cell_count = 0
        reach = _ALIGNED_WITHIN * self.em
        for column in range(self.column_count):
            cells = [self.lines[at][column] for at in self.wide_lines if self.lines[at][column]]
            if len(cells) > 1:
                lefts, rights = [cell[0].x0 for cell in cells], [cell[-1].x1 for cell in cells]
                centres = [(left + right) / 2 for left, right in zip(lefts, rights, strict=True)]
                aligned_count += max(_largest_cluster(sorted(edges), reach) for edges in (lefts, rights, centres))
                cell_count += len(cells)
        return aligned_count / cell_count if cell_count else 0.0


def is_table(evidence: Evidence) -> bool:
    return not _is_ruled_out(evidence) and _is_supported(evidence)


def _is_ruled_out(evidence: Evidence) -> bool:
    if len(evidence.wide_lines) < max(2, 0.4 * len(evidence.lines)):
        return True
    if evidence.filled_share < 0.35 or evidence.is_contents:
        return True
    return evidence.aligned_share <= 0.5 if evidence.is_drawn else evidence.aligned_share < 0.7


def _is_supported(evidence: Evidence) -> bool:
    if evidence.is_drawn:
        return True
    has_several_lines = len(evidence.wide_lines) > 2
    if evidence.column_count == 2:
        has_numbers = evidence.number_shares[1] >= 0.6
        has_short_cells = max(evidence.word_counts) <= 6
        has_labels = has_short_cells and (evidence.begins_with_labels or evidence.rule_count >= 2)
        return has_several_lines and (has_numbers or has_labels)
    has_numbers = _mean(evidence.number_shares[1:]) >= 0.3
    has_short_cells = _mean(evidence.word_counts) <= 4.5 and evidence.filled_share >= 0.6
    return has_numbers or (has_several_lines and has_short_cells)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _largest_cluster(positions: Sequence[float], reach: float) -> int:
    """Return how many of the sorted positions, at most, are within twice `reach` of each other."""
    largest = begin = 0
    for end, position in enumerate(positions):
        while position - positions[begin] > 2 * reach:
            begin += 1
        largest = max(largest, end - begin + 1)
    return largest
