"""Passages of a document: parts of bounded length below one heading."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from worker_service.jobs.blocks import RUNNING, Block, Role
from worker_service.jobs.digest import digest
from worker_service.jobs.markdown import block_markdown, flowing_text, table_markdown
from worker_service.jobs.page_structure import StructuredPage

_TOKEN = re.compile(r"\w{1,6}|[^\w\s]")
_SENTENCE = re.compile(r"(?<=[.!?;。])\s+")

_RULES = 1
"""Increase it when the rules change, so that the same pages may give other passages."""

Box = tuple[int, float, float, float, float]
"""Page, x0, y0, x1, y1 in points from the top left."""


class Passage(Struct, frozen=True):
    document_id: int
    generation: int
    number: int
    text: str
    """Markdown of its paragraphs, items and rows."""
    pages: Sequence[int]
    begins: Sequence[int]
    """Position in the text where each page begins."""
    boxes: Sequence[Box]
    headings: Sequence[str]
    tokens: int
    """Estimated number of tokens: pieces of up to six letters, and signs."""
    digest: str
    """Digest of headings and text."""


class PassageLimits(Struct, frozen=True):
    tokens: int
    overlap: int = 0
    """Maximum number of tokens repeated from the passage before; at most half of `tokens`."""

    @property
    def edition(self) -> str:
        """Name of these rules: with the same name, equal pages give equal passages."""
        return f"{_RULES}.{self.tokens}.{self.overlap}"


class _Unit(Struct, frozen=True):
    text: str
    page: int
    box: Box | None
    glue: str = "\n\n"


def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def passages_of(
    document_id: int, generation: int, pages: Sequence[StructuredPage], limits: PassageLimits
) -> Iterator[Passage]:
    number = 0
    for headings, units in _sections(pages, limits):
        for some in _bounded(units, limits):
            number += 1
            text, begins = _joined(some)
            boxes = dict.fromkeys(one.box for one in some if one.box is not None)
            yield Passage(
                document_id, generation, number, text, [*begins], [*begins.values()], list(boxes), headings,
                count_tokens(text), digest([headings, text]),
            )  # fmt: skip


def _joined(units: Sequence[_Unit]) -> tuple[str, dict[int, int]]:
    """Return the text of the units, and the position where each page begins."""
    text, begins = units[0].text, {units[0].page: 0}
    for one in units[1:]:
        begins.setdefault(one.page, len(text) + len(one.glue))
        text += f"{one.glue}{one.text}"
    return text, begins


def _sections(pages: Sequence[StructuredPage], limits: PassageLimits) -> Iterator[tuple[list[str], list[_Unit]]]:
    path: list[tuple[int, str]] = []
    units: list[_Unit] = []
    for page in pages:
        for block in page.blocks:
            if block.role in RUNNING or not (block.alt or page.text_of(block).strip()):
                continue
            if block.role is not Role.HEADING:
                units += _units(page, block, limits.tokens)
                continue
            yield [text for _, text in path], units
            units = []
            path = [one for one in path if one[0] < block.level]
            path.append((block.level, flowing_text(page.text_of(block))))
    yield [text for _, text in path], units


def _units(page: StructuredPage, block: Block, most: int) -> Iterator[_Unit]:
    box = (page.number, block.x0, block.y0, block.x1, block.y1) if block.is_placed else None
    rows = page.tables.get(block.begin) if block.role is Role.TABLE else None
    if rows:
        yield from (_Unit(text, page.number, box) for text in _tables(rows, most))
        return
    text = block_markdown(page, block)
    if count_tokens(text) <= most:
        yield _Unit(text, page.number, box, "\n" if block.role is Role.ITEM else "\n\n")
        return
    for at, some in enumerate(_divided(text, most)):
        yield _Unit(some, page.number, box, " " if at else "\n\n")


def _tables(rows: Sequence[Sequence[str]], most: int) -> Iterator[str]:
    """Yield parts of bounded length, each with the head of the table."""
    head, open_rows = rows[0], list[Sequence[str]]()
    length = least = count_tokens(" | ".join(head))
    for row in rows[1:]:
        own = count_tokens(" | ".join(row))
        if open_rows and length + own > most:
            yield table_markdown([head, *open_rows])
            open_rows, length = [], least
        open_rows.append(row)
        length += own
    yield table_markdown([head, *open_rows])


def _divided(text: str, most: int) -> Iterator[str]:
    piece: list[str] = []
    length = 0
    for sentence in _SENTENCE.split(text):
        words = [sentence] if count_tokens(sentence) <= most else sentence.split(" ")
        for one in words:
            own = count_tokens(one)
            if piece and length + own > most:
                yield " ".join(piece)
                piece, length = [], 0
            piece.append(one)
            length += own
    if piece:
        yield " ".join(piece)


def _bounded(units: Sequence[_Unit], limits: PassageLimits) -> Iterator[list[_Unit]]:
    open_units: list[_Unit] = []
    length = 0
    for unit in units:
        own = count_tokens(unit.text)
        if open_units and length + own > limits.tokens:
            yield open_units
            open_units = _tail(open_units, min(limits.overlap, limits.tokens // 2, limits.tokens - own))
            length = sum(count_tokens(one.text) for one in open_units)
        open_units.append(unit)
        length += own
    if open_units:
        yield open_units


def _tail(units: Sequence[_Unit], most: int) -> list[_Unit]:
    last, kept = units[-1], list[str]()
    for sentence in reversed(_SENTENCE.split(last.text)):
        if count_tokens(" ".join([sentence, *kept])) > most:
            break
        kept.insert(0, sentence)
    return [_Unit(" ".join(kept), last.page, last.box)] if kept else []
