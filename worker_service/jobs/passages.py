"""Passages of a document: parts of bounded length below one heading."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from worker_service.jobs.blocks import HEAD_AND_FOOT_ROLES, Block, Role
from worker_service.jobs.digest import digest
from worker_service.jobs.markdown import block_markdown, flowing_text, table_markdown
from worker_service.jobs.page_structure import StructuredPage

_TOKEN = re.compile(r"\w{1,6}|[^\w\s]")
_SENTENCE = re.compile(r"(?<=[.!?;。])\s+")

_RULES_VERSION = 1  # Raise it when a change of this module gives other passages for the same pages.

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
    """By index in `pages`: the position in the text where the page begins."""
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
        """Equal editions give equal passages for equal pages."""
        return f"{_RULES_VERSION}.{self.tokens}.{self.overlap}"


class _Unit(Struct, frozen=True):
    text: str
    page: int
    box: Box | None
    separator: str = "\n\n"
    """Text between the unit before and this one."""


def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def passages_of(
    document_id: int, generation: int, pages: Sequence[StructuredPage], limits: PassageLimits
) -> Iterator[Passage]:
    number = 0
    for headings, units in _sections(pages, limits):
        for passage_units in _group_into_passages(units, limits):
            number += 1
            text, begin_by_page = _join_units(passage_units)
            boxes = dict.fromkeys(unit.box for unit in passage_units if unit.box is not None)
            yield Passage(
                document_id, generation, number, text, [*begin_by_page], [*begin_by_page.values()], list(boxes),
                headings, count_tokens(text), digest([headings, text]),
            )  # fmt: skip


def _join_units(units: Sequence[_Unit]) -> tuple[str, dict[int, int]]:
    text, begin_by_page = units[0].text, {units[0].page: 0}
    for unit in units[1:]:
        begin_by_page.setdefault(unit.page, len(text) + len(unit.separator))
        text += f"{unit.separator}{unit.text}"
    return text, begin_by_page


def _sections(pages: Sequence[StructuredPage], limits: PassageLimits) -> Iterator[tuple[list[str], list[_Unit]]]:
    """Yield the units between two headings, with the headings above them, outermost first."""
    headings: list[tuple[int, str]] = []
    units: list[_Unit] = []
    for page in pages:
        for block in page.blocks:
            if block.role in HEAD_AND_FOOT_ROLES or not (block.alt or page.text_of(block).strip()):
                continue
            if block.role is not Role.HEADING:
                units += _units_of_block(page, block, limits.tokens)
                continue
            yield [text for _, text in headings], units
            units = []
            headings = [(level, text) for level, text in headings if level < block.level]
            headings.append((block.level, flowing_text(page.text_of(block))))
    yield [text for _, text in headings], units


def _units_of_block(page: StructuredPage, block: Block, tokens_max: int) -> Iterator[_Unit]:
    box = (page.number, block.x0, block.y0, block.x1, block.y1) if block.is_placed else None
    rows = page.tables.get(block.begin) if block.role is Role.TABLE else None
    if rows:
        yield from (_Unit(text, page.number, box) for text in _split_table(rows, tokens_max))
        return
    text = block_markdown(page, block)
    if count_tokens(text) <= tokens_max:
        yield _Unit(text, page.number, box, "\n" if block.role is Role.ITEM else "\n\n")
        return
    for index, piece in enumerate(_split_text(text, tokens_max)):
        yield _Unit(piece, page.number, box, " " if index else "\n\n")


def _split_table(rows: Sequence[Sequence[str]], tokens_max: int) -> Iterator[str]:
    """Yield parts of bounded length, each with the head of the table."""
    head = rows[0]
    open_rows: list[Sequence[str]] = []
    tokens = head_tokens = count_tokens(" | ".join(head))
    for row in rows[1:]:
        row_tokens = count_tokens(" | ".join(row))
        if open_rows and tokens + row_tokens > tokens_max:
            yield table_markdown([head, *open_rows])
            open_rows, tokens = [], head_tokens
        open_rows.append(row)
        tokens += row_tokens
    yield table_markdown([head, *open_rows])


def _split_text(text: str, tokens_max: int) -> Iterator[str]:
    """Divide between sentences, or in a long sentence between words."""
    piece: list[str] = []
    tokens = 0
    for sentence in _SENTENCE.split(text):
        is_short = count_tokens(sentence) <= tokens_max
        for part in [sentence] if is_short else sentence.split(" "):
            part_tokens = count_tokens(part)
            if piece and tokens + part_tokens > tokens_max:
                yield " ".join(piece)
                piece, tokens = [], 0
            piece.append(part)
            tokens += part_tokens
    if piece:
        yield " ".join(piece)


def _group_into_passages(units: Sequence[_Unit], limits: PassageLimits) -> Iterator[list[_Unit]]:
    """Yield the units of each passage. A passage begins with the last sentences of the one before."""
    open_units: list[_Unit] = []
    tokens = 0
    for unit in units:
        unit_tokens = count_tokens(unit.text)
        if open_units and tokens + unit_tokens > limits.tokens:
            yield open_units
            overlap_tokens_max = min(limits.overlap, limits.tokens // 2, limits.tokens - unit_tokens)
            open_units = _last_sentences(open_units[-1], overlap_tokens_max)
            tokens = sum(count_tokens(repeated.text) for repeated in open_units)
        open_units.append(unit)
        tokens += unit_tokens
    if open_units:
        yield open_units


def _last_sentences(unit: _Unit, tokens_max: int) -> list[_Unit]:
    sentences: list[str] = []
    for sentence in reversed(_SENTENCE.split(unit.text)):
        if count_tokens(" ".join([sentence, *sentences])) > tokens_max:
            break
        sentences.insert(0, sentence)
    return [_Unit(" ".join(sentences), unit.page, unit.box)] if sentences else []
