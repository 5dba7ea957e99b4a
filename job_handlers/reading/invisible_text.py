"""Invisible text that makes a scan searchable, drawn below its image, in one font per block of 256 characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from job_handlers.reading.layout import Layout
from job_handlers.reading.pdf import PdfFont

_CHARACTER_WIDTH = 500  # Thousandths of the height.
_ASCENT = 0.8  # Share of the height that is above the baseline.
_BEGIN = """/CIDInit /ProcSet findresource begin 12 dict begin begincmap
/CMapName /PagemillMap def /CMapType 2 def
1 begincodespacerange <00> <FF> endcodespacerange
"""
_END = "endcmap CMapName currentdict /CMap defineresource pop end end\n"


@dataclass(slots=True)
class Fonts:
    blocks: list[int] = field(default_factory=list)
    """Blocks of 256 characters. A block's font has the number of its index."""

    def font_number(self, block: int) -> int:
        if block not in self.blocks:
            self.blocks.append(block)
        return self.blocks.index(block)

    def add_fonts_of(self, layout: Layout) -> None:
        for character in sorted(set("".join([word.text for line in layout.lines for word in line]))):
            self.font_number(ord(character) >> 8)

    def sources(self) -> list[PdfFont]:
        return [PdfFont(_character_map(block), _font()) for block in self.blocks]


def widths() -> str:
    return f"[{' '.join([str(_CHARACTER_WIDTH)] * 256)}]"


def stream_of(layout: Layout, matrix: Sequence[float], fonts: Fonts) -> bytes:
    """Draw the words. `matrix` maps points of the page as it is shown to PDF space."""
    words = [word for line in layout.lines for word in line if word.x1 > word.x0 and word.y1 > word.y0]
    if not words:
        return b""
    # Text that is read after a clockwise turn by 90° runs up the page; a positive skew leans clockwise.
    angle = math.radians(layout.skew - layout.turn)
    along, down = math.cos(angle), math.sin(angle)
    a, b, c, d, e, f = matrix
    rotation = (along * a + down * c, along * b + down * d, down * a - along * c, down * b - along * d)
    # "or 0" writes -0.0 as 0.
    rotation_text = " ".join(f"{round(value, 4) or 0:g}" for value in rotation)
    lies_across = layout.turn in (90, 270)
    lines = ["q BT 3 Tr"]
    for word in words:
        width, height = word.x1 - word.x0, word.y1 - word.y0
        if lies_across:
            width, height = height, width
        # Move from the word's centre to its start, and down to its baseline.
        to_start, to_baseline = width / 2, height * (_ASCENT - 0.5)
        x = (word.x0 + word.x1) / 2 - along * to_start - down * to_baseline
        y = (word.y0 + word.y1) / 2 - down * to_start + along * to_baseline
        stretch_percent = 100_000 * width / (len(word.text) * _CHARACTER_WIDTH * height)
        position = f"{x * a + y * c + e:.3f} {x * b + y * d + f:.3f}"
        text = _show_text(word.text, f"{height:.2f}", fonts)
        lines.append(f"{rotation_text} {position} Tm {stretch_percent:.3f} Tz {text}")
    lines.append("ET Q\n")
    return "\n".join(lines).encode("ascii")


def _show_text(text: str, height: str, fonts: Fonts) -> str:
    if text.isascii():
        # The faster way for most words.
        return f"/PmF{fonts.font_number(0)} {height} Tf <{text.encode().hex()}> Tj"
    by_block = groupby(map(ord, text), lambda character: character >> 8)
    runs = [(block, bytes(character & 0xFF for character in characters)) for block, characters in by_block]
    return " ".join(f"/PmF{fonts.font_number(block)} {height} Tf <{codes.hex()}> Tj" for block, codes in runs)


def _character_map(block: int) -> str:
    first = chr(block << 8).encode("utf-16-be", "surrogatepass").hex()
    return f"{_BEGIN}1 beginbfrange <00> <FF> <{first}> endbfrange\n{_END}"


def _font() -> str:
    # `pdf.add_streams` fills in the references {widths} and {maps}.
    return (
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/FirstChar 0/LastChar 255"
        "/Widths {widths}/ToUnicode {maps}"
        "/FontDescriptor<</Type/FontDescriptor/FontName/Helvetica/Flags 32/FontBBox[0 -200 500 800]"
        f"/ItalicAngle 0/Ascent 800/Descent -200/CapHeight 800/StemV 80/MissingWidth {_CHARACTER_WIDTH}>>>>"
    )
