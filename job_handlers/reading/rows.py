"""The words that an engine has read, arranged: rows of tables as rows, and columns one after the other. Pure.

The engine's lines and paragraphs stay as they are where nothing speaks against them. Everything is in pixels of the
image that was read, straightened and turned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from job_handlers.reading import layout, order, tables
from job_handlers.reading.layout import Word
from job_handlers.reading.tables import Piece, Rule

_APART = 0.9
"""Words with a wider gap between them, in heights of a letter, are not of one cell for certain."""


@dataclass(frozen=True, slots=True)
class Row:
    """Of a table: its words by cell."""

    cells: list[list[Word]]


@dataclass(frozen=True, slots=True)
class Arranged:
    lines: list[list[Word]]
    """An empty one stands between paragraphs."""
    came_from: list[list[int]]
    """For each line the numbers of those in which its words were read."""
    text: str
    tables: list[tuple[int, int, list[Row]]] = field(default_factory=list)
    """From where to where in the text, and its rows."""


def arranged(lines: list[list[Word]], rules: Callable[[], Sequence[Rule]]) -> Arranged:
    """`rules` is asked only where there may be a table."""
    as_read = Arranged(lines, [[at] for at in range(len(lines))], layout.text_of(lines))
    words = [(word, at) for at, line in enumerate(lines) for word in line]
    if not words:
        return as_read
    em = median([word.y1 - word.y0 for word, _ in words]) or 1.0
    pieces = _pieces(words, em)
    found: list[tables.Table] = []
    if tables.may_have_tables([round((one.y0 + one.y1) / em) for one in pieces]):

        def split(piece: Piece) -> Sequence[Piece]:
            last = piece.at + piece.text.count(" ") + 1
            return [Piece(word.x0, word.y0, word.x1, word.y1, _whole(word.text), at)
                    for at, (word, _) in enumerate(words[piece.at : last], piece.at)]  # fmt: skip

        found = tables.find(pieces, rules(), split)
    return _put_together(lines, words, found, as_read)


def _pieces(words: Sequence[tuple[Word, int]], em: float) -> list[Piece]:
    """Words of a line without a wide gap between them."""
    groups: list[list[int]] = []
    for at, (word, line) in enumerate(words):
        if not groups or line != words[at - 1][1] or not -em < word.x0 - words[at - 1][0].x1 <= _APART * em:
            groups.append([])
        groups[-1].append(at)
    return [
        Piece(
            min(words[at][0].x0 for at in some), min(words[at][0].y0 for at in some),
            max(words[at][0].x1 for at in some), max(words[at][0].y1 for at in some),
            " ".join(_whole(words[at][0].text) for at in some), some[0],
        )
        for some in groups
    ]  # fmt: skip


def _whole(text: str) -> str:
    """Blanks tell how many words a piece has."""
    return text.replace(" ", "\u00a0")


def _put_together(
    lines: list[list[Word]], words: Sequence[tuple[Word, int]], found: Sequence[tables.Table], as_read: Arranged
) -> Arranged:
    rows = [[Row([_words_of(cell, words) for cell in row]) for row in one.rows] for one in found]
    of_table = {
        at: number
        for number, one in enumerate(found)
        for row in one.rows
        for cell in row
        for piece in cell
        for at in range(piece.at, piece.at + piece.text.count(" ") + 1)
    }
    # What is left of each line, and where a table first stood.
    entries: list[tuple[list[Word], int]] = []
    tables_at: dict[int, int] = {}
    blocks: list[list[int]] = [[]]
    at = 0
    for number, line in enumerate(lines):
        rest = []
        for word in line:
            table = of_table.get(at)
            at += 1
            if table is None:
                rest.append(word)
            elif table not in tables_at.values():
                tables_at[len(entries)] = table
                blocks[-1].append(len(entries))
                entries.append((line, number))
        if not line:
            blocks.append([])
        if rest:
            blocks[-1].append(len(entries))
            entries.append((rest, number))
    boxes = [_around(line) for line, _ in entries]
    parts = order.arranged(
        blocks, boxes, [(one.x0, one.y0, one.x1, one.y1) for one in found], tables_at, is_given=False
    )
    if not found and [at for part in parts for at in part.lines] == list(range(len(entries))):
        return as_read
    made: list[list[Word]] = []
    came_from: list[list[int]] = []
    written: list[str] = []
    placed: list[tuple[int, int, list[Row]]] = []
    numbers = {id(word): number for word, number in words}
    length = 0
    for part in parts:
        if made:
            made.append([])
            came_from.append([])
            written.append("")
            length += 1
        begin = length
        some = [entries[at][0] for at in part.lines]
        texts = [" ".join([word.text for word in line]) for line in some]
        if part.table is not None:
            some = [[word for cell in row.cells for word in cell] for row in rows[part.table]]
            texts = [
                "\t".join(" ".join(word.text for word in cell) for cell in row.cells).rstrip("\t")
                for row in rows[part.table]
            ]
        made += some
        came_from += [sorted({numbers[id(word)] for word in line}) for line in some]
        written += texts
        length += sum(len(text) + 1 for text in texts)
        if part.table is not None:
            placed.append((begin, length, rows[part.table]))
    return Arranged(made, came_from, "\n".join(written), placed)


def _words_of(cell: Sequence[Piece], words: Sequence[tuple[Word, int]]) -> list[Word]:
    return [
        words[at][0] for piece in cell for at in range(piece.at, piece.at + piece.text.count(" ") + 1)
    ]  # fmt: skip


def _around(line: Sequence[Word]) -> order.Box:
    return (min(word.x0 for word in line), min(word.y0 for word in line),
            max(word.x1 for word in line), max(word.y1 for word in line))  # fmt: skip
