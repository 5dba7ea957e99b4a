"""Find tables by the positions of text and ruling lines.

Tables are areas between ruling lines, and runs of lines with aligned gaps. Running prose in columns is no table.
A `Band` is the pieces of a line of text, a `Line` the same in cells; rows may have several lines. Distances are
multiples of `em`, the median height of a piece.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from job_handlers.reading.layout import bounds_of
from job_handlers.reading.tables import regions
from job_handlers.reading.tables.columns import Line, cells_of, cut_at_columns, find_columns, merge_sign_columns
from job_handlers.reading.tables.evidence import Evidence, is_table
from job_handlers.reading.tables.rows import RowMerger
from job_handlers.reading.tables.text_pieces import Area, Band, Split, group_lines, split_narrow_columns, text_of
from job_handlers.reading.tables.text_pieces import RulingLine as RulingLine
from job_handlers.reading.tables.text_pieces import TextPiece as TextPiece
from job_handlers.reading.tables.text_pieces import ends_sentence as ends_sentence

PIECES_MOST, RULES_MOST = 4000, 3000  # A page with more is a drawing.
_PIECES_LEAST = 4
_PROSE_MOST = 0.2  # Share of prose in an area above which its ruling lines are the frame of a text.
_BLANK = string.whitespace + "\xa0.…"


class FoundTable(Struct, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    rows: list[Line]
    """A cell over several columns is in the first of them."""
    texts: list[list[str]]
    """The texts of `rows`."""

    def as_text(self) -> str:
        return "".join(["\t".join(row).rstrip("\t") + "\n" for row in self.texts])


def may_have_tables(baselines: Sequence[int]) -> bool:
    """Return whether at least two pieces are beside others. Prose in one column has none."""
    return len(baselines) - len(set(baselines)) >= 2


def find(pieces: Sequence[TextPiece], rules: Sequence[RulingLine] = (), split: Split | None = None) -> list[FoundTable]:
    """`split` returns the words of a piece; None if each piece is a word."""
    # All lists of pieces below keep this order from top to bottom.
    pieces = sorted(
        [piece for piece in pieces if piece.x1 > piece.x0 and piece.text.strip(_BLANK)],
        key=lambda piece: (piece.y0 + piece.y1, piece.x0),
    )
    if not _PIECES_LEAST <= len(pieces) <= PIECES_MOST:
        return []
    em = median([piece.y1 - piece.y0 for piece in pieces]) or 1.0
    horizontal, vertical = regions.horizontal_and_vertical(rules, em) if len(rules) <= RULES_MOST else ([], [])
    found_tables: list[FoundTable] = []
    pieces_left = pieces
    prose_ids: set[int] | None = None
    for area in regions.drawn_areas(horizontal, vertical, em):
        inside = [piece for piece in pieces_left if regions.is_inside(piece, area)]
        if len(regions.wall_positions(vertical, area, em)) < 3:
            # Fewer than three vertical lines separate no cells: they may frame a text.
            prose_ids = regions.prose_ids(pieces, em) if prose_ids is None else prose_ids
            if sum(id(piece) in prose_ids for piece in inside) > _PROSE_MOST * len(inside):
                continue
        bands = split_narrow_columns(group_lines(inside, em), split, em)
        table = _read_table(bands, area, horizontal, vertical, split, em)
        if table is not None:
            found_tables.append(table)
            inside_ids = set(map(id, inside))
            pieces_left = [piece for piece in pieces_left if id(piece) not in inside_ids]
    if prose_ids is None:
        prose_ids = regions.prose_ids(pieces_left, em)
    prose = [piece for piece in pieces_left if id(piece) in prose_ids]
    bands = regions.lines_near_gaps(group_lines([piece for piece in pieces_left if id(piece) not in prose_ids], em))
    for run in regions.table_runs(split_narrow_columns(bands, split, em), prose, em):
        table = _read_table(run, None, horizontal, vertical, split, em)
        if table is not None:
            found_tables.append(table)
    return sorted(found_tables, key=lambda table: (table.y0, table.x0))


def _read_table(
    bands: Sequence[Band],
    area: Area | None,
    horizontal: Sequence[RulingLine],
    vertical: Sequence[RulingLine],
    split: Split | None,
    em: float,
) -> FoundTable | None:
    """`area` is None if no ruling lines surround the bands."""
    if sum(map(len, bands)) < _PIECES_LEAST:
        return None
    bounds = area or Area(*bounds_of([piece for band in bands for piece in band]))
    walls = regions.wall_positions(vertical, bounds, em)
    inner_horizontal = regions.horizontal_lines(horizontal, bounds, em)
    columns = find_columns(bands, walls, em)
    if len(columns) < 2:
        return None
    if split is not None:
        bands = [cut_at_columns(band, columns, split, em) for band in bands]
    columns = merge_sign_columns(bands, columns)
    if len(columns) < 2:
        return None
    lines = cells_of(bands, columns)
    texts = [[text_of(cell) for cell in line] for line in lines]
    is_grid = area is not None and len(walls) > 2
    if not is_grid and not is_table(Evidence(lines, texts, em, len(inner_horizontal), is_drawn=area is not None)):
        return None
    return _table_of([row for row in RowMerger(bands, lines, texts, em).rows(inner_horizontal) if any(row)])


def _table_of(rows: list[Line]) -> FoundTable | None:
    """Drop empty columns. Return None unless two rows have several cells."""
    if sum([sum(map(bool, row)) > 1 for row in rows]) < 2:
        return None
    filled_columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows)]
    rows = [[row[column] for column in filled_columns] for row in rows]
    box = bounds_of([piece for row in rows for cell in row for piece in cell])
    return FoundTable(*box, rows, [[text_of(cell) for cell in row] for row in rows])
