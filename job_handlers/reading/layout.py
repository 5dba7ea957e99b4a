"""The JSON stored for a page beside its text: words, tables and blocks with their positions.

    {"size": [595.3, 841.9], "lines": [[[72.1, 80.0, 101.5, 92.3, 96, "Annual"], …], …]}

Coordinates are points from the top left of the page as it is shown. A word is x0, y0, x1, y1, confidence, text. An
empty line precedes a line that begins a paragraph. Lines numbered in `second` contain words from the second engine. A
page with its own text has no lines; a page of flowing text has no positions.

    "tables": [{"box": [72.0, 80.0, 520.1, 300.5], "begin": 0, "end": 411,
                "rows": [[[72.1, 80.0, 101.5, 92.3, "Revenue"], null, [400.2, 80.0, 420.0, 92.3, "1,204"]], …]}]

A row of a table is a line of the page's text, with tabs between its cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from worker_service.handlers import Block, NoteMark, TextLink

LAYOUT_BYTES_MAX = 400_000
"""A larger page, with some ten thousand words, loses their positions."""
TEXT_CHARACTERS_MAX = 1_000_000
_POINTS_PER_INCH = 72.0

Box = tuple[float, float, float, float]
"""x0, y0, x1, y1."""


class HasBox(Protocol):
    @property
    def x0(self) -> float: ...
    @property
    def y0(self) -> float: ...
    @property
    def x1(self) -> float: ...
    @property
    def y1(self) -> float: ...


class Word(msgspec.Struct, array_like=True, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    confidence: float
    text: str


class TableCell(msgspec.Struct, array_like=True, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str


class PageTable(msgspec.Struct, frozen=True):
    box: Box
    begin: int
    end: int
    rows: list[list[TableCell | None]]
    """None is an empty cell; a cell over several columns is in the first of them."""


class UnreadScript(msgspec.Struct, frozen=True):
    """The script that a page seems to have, and in which OCR did not read it."""

    script: str
    language: str
    install: str
    """Empty if the data is installed."""


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    size: tuple[float, float]
    lines: list[list[Word]] = []
    blocks: list[Block] = []
    links: list[TextLink] = []
    notes: list[NoteMark] = []
    tables: list[PageTable] = []
    turn: int = 0
    """Degrees clockwise by which the page must be turned to be read."""
    skew: float = 0.0
    dpi: int = 0
    readers: list[str] = []
    """OCR engines."""
    second: list[int] = []
    written_in: list[str] = []
    """Languages."""
    unread: UnreadScript | None = None
    is_cut: bool = False
    """The lists were too large, and are left out."""


class TextTable(msgspec.Struct, frozen=True, omit_defaults=True):
    begin: int
    end: int
    rows: list[list[str]]
    spans: list[tuple[int, int, int, int]] = []
    """Row and column of a cell, and how many rows and columns it spans."""


class FlowLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    tables: list[TextTable] = []
    readers: list[str] = []
    written_in: list[str] = []
    blocks: list[Block] = []
    """Blocks with empty boxes."""
    links: list[TextLink] = []
    notes: list[NoteMark] = []


_encoder = msgspec.json.Encoder(decimal_format="number")
decode = msgspec.json.Decoder(Layout).decode


def encode(layout: Layout) -> str:
    text = _encoder.encode(layout)
    if len(text) > LAYOUT_BYTES_MAX:
        text = _encoder.encode(replace(layout, lines=[], blocks=[], links=[], notes=[], tables=[], is_cut=True))
    return text.decode()


def encode_flow(flow: FlowLayout) -> str | None:
    if flow == FlowLayout():
        return None
    text = _encoder.encode(flow)
    if len(text) > LAYOUT_BYTES_MAX:
        text = _encoder.encode(replace(flow, tables=[], blocks=[], links=[], notes=[]))
    return text.decode()


def has_lines(text: str) -> bool:
    # Faster than decoding. JSON escapes quotation marks inside words, so no word contains this.
    return '"lines":' in text


def bounds_of(parts: Sequence[HasBox]) -> Box:
    return (
        min([part.x0 for part in parts]),
        min([part.y0 for part in parts]),
        max([part.x1 for part in parts]),
        max([part.y1 for part in parts]),
    )


def with_margin(word: Word, margin: float) -> Box:
    return word.x0 - margin, word.y0 - margin, word.x1 + margin, word.y1 + margin


def moved(word: Word, right: float, down: float) -> Word:
    return replace(word, x0=word.x0 + right, y0=word.y0 + down, x1=word.x1 + right, y1=word.y1 + down)


def build_table(begin: int, end: int, rows: Sequence[Sequence[Sequence[Word]]]) -> PageTable:
    words_of_table = [word for row in rows for words in row for word in words]
    return PageTable(bounds_of(words_of_table), begin, end, [[_cell_of(words) for words in row] for row in rows])


def _cell_of(words: Sequence[Word]) -> TableCell | None:
    return TableCell(*bounds_of(words), " ".join(word.text for word in words)) if words else None


def text_of(lines: Sequence[Sequence[Word]]) -> str:
    return "\n".join(" ".join(word.text for word in line) for line in lines).strip("\n")


def confidence_of(lines: Sequence[Sequence[Word]]) -> float | None:
    """Return the mean, weighted by word length, because specks are read as short words."""
    words = [word for line in lines for word in line]
    length = sum(len(word.text) for word in words)
    return round(sum(len(word.text) * word.confidence for word in words) / length, 1) if length else None


def to_page_points(
    lines: Sequence[Sequence[Word]], size: tuple[float, float], dpi: float, turn: int, skew: float
) -> list[list[Word]]:
    """Convert words from pixels of the deskewed and turned image; `size` is that of the page in points."""
    scale = _POINTS_PER_INCH / dpi
    width, height = size
    turned_width, turned_height = (height, width) if turn in (90, 270) else (width, height)
    centre_x, centre_y = turned_width / 2, turned_height / 2
    cosine, sine = math.cos(math.radians(skew)), math.sin(math.radians(skew))

    def convert(word: Word) -> Word:
        half_w, half_h = (word.x1 - word.x0) * scale / 2, (word.y1 - word.y0) * scale / 2
        x, y = word.x0 * scale + half_w, word.y0 * scale + half_h
        if skew:
            # The page leans clockwise by `skew`: rotate the word's centre by the same angle.
            dx, dy = x - centre_x, y - centre_y
            x, y = centre_x + dx * cosine - dy * sine, centre_y + dx * sine + dy * cosine
        if turn == 90:
            x, y, half_w, half_h = y, turned_width - x, half_h, half_w
        elif turn == 180:
            x, y = turned_width - x, turned_height - y
        elif turn == 270:
            x, y, half_w, half_h = turned_height - y, x, half_h, half_w
        return Word(
            round(x - half_w, 1),
            round(y - half_h, 1),
            round(x + half_w, 1),
            round(y + half_h, 1),
            round(word.confidence),
            word.text,
        )

    return [[convert(word) for word in line] for line in lines]
