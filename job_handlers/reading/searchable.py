"""The invisible text that makes a scan searchable: one content stream for each page, drawn below its image. Pure.

Each word lies where it was read, as wide and as high. The font is Helvetica in name only, for nothing of it is shown:
characters are counted in blocks of 256, a font for each block, with a table of what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from job_handlers.reading.layout import Layout, Word

_WIDTH = 500
"""Of each character, in thousandths of its height."""
_ASCENT = 0.8
_UPRIGHT = (1.0, 0.0, 0.0, -1.0)
_BEGIN = """/CIDInit /ProcSet findresource begin 12 dict begin begincmap
/CMapName /PagemillMap def /CMapType 2 def
1 begincodespacerange <00> <FF> endcodespacerange
"""
_END = "endcmap CMapName currentdict /CMap defineresource pop end end\n"


@dataclass(slots=True)
class Fonts:
    """Which blocks of characters are used, in the order in which they were met."""

    blocks: list[int] = field(default_factory=list)

    def place(self, block: int) -> int:
        if block not in self.blocks:
            self.blocks.append(block)
        return self.blocks.index(block)

    def meet(self, layout: Layout) -> None:
        for character in sorted(set("".join([word.text for line in layout.lines for word in line]))):
            self.place(ord(character) >> 8)

    def sources(self) -> list[str]:
        """For `pdf.add_streams`: the table, and the font that uses it."""
        return [_table(block) + "{font}" + _font() for block in self.blocks]


def widths() -> str:
    """Of every font: they are all alike."""
    return f"[{' '.join([str(_WIDTH)] * 256)}]"


def stream_of(layout: Layout, matrix: Sequence[float], fonts: Fonts) -> bytes:
    """`matrix`: from points of the page as it is shown to the page's own."""
    words = [word for line in layout.lines for word in line if word.x1 > word.x0 and word.y1 > word.y0]
    if not words:
        return b""
    lines = ["q BT 3 Tr"]
    is_straight = not layout.turn and not layout.skew and tuple(matrix[:4]) == _UPRIGHT
    for word in words:
        if is_straight and word.text.isascii():
            lines.append(_drawn_straight(word, matrix[4], matrix[5], fonts.place(0)))
        else:
            lines += _drawn(word, layout, matrix, fonts)
    lines.append("ET Q\n")
    return "\n".join(lines).encode("ascii")


def _drawn_straight(word: Word, right: float, top: float, font: int) -> str:
    """The same, as most words are: on an upright page, and in letters of the first block."""
    height = word.y1 - word.y0
    wide = 100_000 * (word.x1 - word.x0) / (len(word.text) * _WIDTH * height)
    base = top - word.y0 - height * _ASCENT
    codes = word.text.encode("ascii").hex()
    return f"1 0 0 1 {word.x0 + right:.3f} {base:.3f} Tm {wide:.3f} Tz /PmF{font} {height:.2f} Tf <{codes}> Tj"


def _drawn(word: Word, layout: Layout, matrix: Sequence[float], fonts: Fonts) -> Iterable[str]:
    width, height = word.x1 - word.x0, word.y1 - word.y0
    if layout.turn in (90, 270):
        width, height = height, width
    centre_x, centre_y = (word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2
    # Writing that is read after a turn by 90° clockwise runs up the page; a skew leans with the clock.
    angle = math.radians(layout.skew - layout.turn)
    along = (math.cos(angle), math.sin(angle))
    below = (-along[1], along[0])
    left = centre_x - along[0] * width / 2 + below[0] * height * (_ASCENT - 0.5)
    base = centre_y - along[1] * width / 2 + below[1] * height * (_ASCENT - 0.5)
    units = [ord(one) for one in word.text]
    natural = len(units) * _WIDTH / 1000 * height
    a, b, c, d, e, f = matrix
    run = (along[0] * a + along[1] * c, along[0] * b + along[1] * d)
    rise = (-below[0] * a - below[1] * c, -below[0] * b - below[1] * d)
    yield f"{_numbers(*run, *rise, left * a + base * c + e, left * b + base * d + f)} Tm"
    yield f"{_number(100 * width / natural)} Tz"
    for block, some in groupby(units, lambda unit: unit >> 8):
        codes = bytes(unit & 0xFF for unit in some)
        yield f"/PmF{fonts.place(block)} {_number(height)} Tf <{codes.hex()}> Tj"


def _numbers(*values: float) -> str:
    return " ".join(map(_number, values))


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") or "0"


def _table(block: int) -> str:
    first = chr(block << 8).encode("utf-16-be", "surrogatepass").hex()
    return f"{_BEGIN}1 beginbfrange <00> <FF> <{first}> endbfrange\n{_END}"


def _font() -> str:
    return (
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/FirstChar 0/LastChar 255"
        "/Widths {widths}/ToUnicode {maps}"
        "/FontDescriptor<</Type/FontDescriptor/FontName/Helvetica/Flags 32/FontBBox[0 -200 500 800]"
        f"/ItalicAngle 0/Ascent 800/Descent -200/CapHeight 800/StemV 80/MissingWidth {_WIDTH}>>>>"
    )
