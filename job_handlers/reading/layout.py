"""Where the words of a page are: one JSON value per page, as it is stored, published, and made into hOCR or a PDF.

    {"size": [595.3, 841.9], "lines": [[[72.1, 80.0, 101.5, 92.3, 96, "Annual"], …], …]}

Points from the top left of the page as it is shown; a word is x0, y0, x1, y1, confidence, text. A line that begins a
paragraph is preceded by an empty one. `turn` and `skew` say how the writing lies on the page, `readers` who recognised
it, what it is `written_in`; in the lines with the numbers in `second` stand words of the second reader. A page with
its own text has "blocks" instead, x0, y0, x1, y1, and from where to where in the page's text its words stand; and
a page of a sheet its values (see `sheets`).

    "tables": [{"box": [72.0, 80.0, 520.1, 300.5], "begin": 0, "end": 411,
                "rows": [[[72.1, 80.0, 101.5, 92.3, "Revenue"], null, [400.2, 80.0, 420.0, 92.3, "1,204"]], …]}]

A row of a table is a line of the page's text, its cells parted by tabs; so is a row of its words.

A page of a file whose text flows has no places: of its tables, "rows" are texts, and there is no "box".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

LAYOUT_BYTES_MAX = 400_000
"""A page with more words, some ten thousand, keeps its text and loses their places."""
TEXT_CHARACTERS_MAX = 1_000_000


class Word(msgspec.Struct, array_like=True, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    confidence: float
    text: str


class Block(msgspec.Struct, array_like=True, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    begin: int
    end: int


class Cell(msgspec.Struct, array_like=True, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str


class Table(msgspec.Struct, frozen=True):
    box: tuple[float, float, float, float]
    begin: int
    end: int
    """From where to where in the page's text its rows stand."""
    rows: list[list[Cell | None]]
    """All of them as long; None is an empty cell. What spans several columns stands in the first of them."""


class Unread(msgspec.Struct, frozen=True):
    """A script that a page seems to be written in, and that the languages it was read in do not have."""

    script: str
    language: str
    """The code to read it with."""
    install: str
    """The command that installs its data; empty: it is installed."""


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    size: tuple[float, float]
    lines: list[list[Word]] = []
    blocks: list[Block] = []
    tables: list[Table] = []
    turn: int = 0
    """Degrees clockwise by which the page has to be turned to be read."""
    skew: float = 0.0
    dpi: int = 0
    readers: list[str] = []
    second: list[int] = []
    written_in: list[str] = []
    unread: Unread | None = None
    is_cut: bool = False


class TextTable(msgspec.Struct, frozen=True):
    begin: int
    end: int
    """From where to where in the page's text its rows stand."""
    rows: list[list[str]]
    """All of them as long."""


class Flow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a page without places."""

    tables: list[TextTable] = []
    readers: list[str] = []
    """Of the pictures that stand in it."""
    written_in: list[str] = []


_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder: msgspec.json.Decoder[Layout] = msgspec.json.Decoder(Layout)


def written(layout: Layout) -> str:
    text = _encoder.encode(layout)
    if len(text) > LAYOUT_BYTES_MAX:
        text = _encoder.encode(msgspec.structs.replace(layout, lines=[], blocks=[], tables=[], is_cut=True))
    return text.decode()


def written_flow(flow: Flow) -> str | None:
    """None: there is nothing to tell of it."""
    if flow == Flow():
        return None
    text = _encoder.encode(flow)
    if len(text) > LAYOUT_BYTES_MAX:
        text = _encoder.encode(msgspec.structs.replace(flow, tables=[]))
    return text.decode()


def read(text: str) -> Layout:
    return _decoder.decode(text)


def has_lines(text: str) -> bool:
    """Without reading all of it. In the words of a page a quotation mark is never without its backslash."""
    return '"lines":' in text


def around(some: Sequence[Word | Cell]) -> tuple[float, float, float, float]:
    """From the left and top of all of them to their right and bottom."""
    return (
        min([one.x0 for one in some]),
        min([one.y0 for one in some]),
        max([one.x1 for one in some]),
        max([one.y1 for one in some]),
    )


def table(begin: int, end: int, rows: Sequence[Sequence[Sequence[Word]]]) -> Table:
    """From the words of its cells."""

    def cell(words: Sequence[Word]) -> Cell | None:
        if not words:
            return None
        return Cell(*around(words), " ".join(one.text for one in words))

    cells = [[cell(words) for words in row] for row in rows]
    found = [one for row in cells for one in row if one is not None]
    return Table(around(found), begin, end, cells)


def text_of(lines: Sequence[Sequence[Word]]) -> str:
    return "\n".join(" ".join(word.text for word in line) for line in lines).strip("\n")


def confidence_of(lines: Sequence[Sequence[Word]]) -> float | None:
    """Each word counts by its length: specks are words as well."""
    weights = [(len(word.text), word.confidence) for line in lines for word in line]
    total = sum(weight for weight, _ in weights)
    return round(sum(weight * value for weight, value in weights) / total, 1) if total else None


def on_page(
    lines: Sequence[Sequence[Word]], size: tuple[float, float], dpi: float, turn: int, skew: float
) -> list[list[Word]]:
    """From pixels of the image that was read, straightened and turned, to points of the page as it is shown."""
    scale = 72.0 / dpi
    width, height = size
    turned = (height, width) if turn in (90, 270) else (width, height)
    centre_x, centre_y = turned[0] / 2, turned[1] / 2
    cosine, sine = math.cos(math.radians(skew)), math.sin(math.radians(skew))

    def place(word: Word) -> Word:
        half_w, half_h = (word.x1 - word.x0) * scale / 2, (word.y1 - word.y0) * scale / 2
        x, y = word.x0 * scale + half_w, word.y0 * scale + half_h
        if skew:
            # The page leans clockwise by `skew`: lean the word's centre back with it.
            dx, dy = x - centre_x, y - centre_y
            x, y = centre_x + dx * cosine - dy * sine, centre_y + dx * sine + dy * cosine
        if turn == 90:
            x, y, half_w, half_h = y, turned[0] - x, half_h, half_w
        elif turn == 180:
            x, y = turned[0] - x, turned[1] - y
        elif turn == 270:
            x, y, half_w, half_h = turned[1] - y, x, half_h, half_w
        return Word(
            round(x - half_w, 1),
            round(y - half_h, 1),
            round(x + half_w, 1),
            round(y + half_h, 1),
            round(word.confidence),
            word.text,
        )

    return [[place(word) for word in line] for line in lines]
