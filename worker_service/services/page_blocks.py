"""The blocks of a document from its stored pages, behind Markdown, passages and other formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput
from worker_service.jobs.blocks import Block, BlocksOfPage, Role, TextLink, resolve_roles
from worker_service.jobs.documents import PageResult
from worker_service.services.database import Session
from worker_service.services.page_layouts import Rows, Span, tables_in

PAGES_MAX = 5000
"""A document is held in memory as a whole, because headings and running lines show only in the whole."""
_PAGES_AT_ONCE = 50
_PARAGRAPH_END = re.compile(r"\n\s*\n")


class StoredLayout(Struct, frozen=True):
    """The part of `job_handlers.reading.layout` that formats need."""

    size: tuple[float, float] = (0.0, 0.0)
    blocks: Sequence[Block] = ()
    links: Sequence[TextLink] = ()
    lines: msgspec.Raw = msgspec.Raw(b"[]")
    sheet: str = ""
    first: int = 1
    values: Sequence[Sequence[str | int | float | bool | None]] = ()


class StructuredPage(Struct, frozen=True):
    number: int
    size: tuple[float, float]
    text: str
    blocks: Sequence[Block]
    tables: Mapping[int, Rows]
    """By the beginning of the table's text."""
    lines: msgspec.Raw = msgspec.Raw(b"[]")
    """Words of a recognised page, undecoded."""
    links: Sequence[TextLink] = ()
    spans: Mapping[int, Sequence[Span]] = {}
    """By the beginning of the table's text."""

    def text_of(self, block: Block) -> str:
        return self.text[block.begin : block.end]


_decode = msgspec.json.Decoder(StoredLayout).decode


def structured_pages(session: Session, document_id: int) -> list[StructuredPage]:
    newest = max((one.number for one in session.library.page_summaries(document_id)), default=0)
    if newest > PAGES_MAX:
        raise BadInput(f"document {document_id} is too long for this format, which holds {PAGES_MAX} pages at most")
    return structure_of(_stored_pages(session, document_id, newest))


def _stored_pages(session: Session, document_id: int, last: int) -> Iterator[PageResult]:
    for first in range(1, last + 1, _PAGES_AT_ONCE):
        yield from session.library.page_texts(document_id, first, first + _PAGES_AT_ONCE - 1, with_layout=True)


def structure_of(results: Iterator[PageResult]) -> list[StructuredPage]:
    read = [_read_page(one) for one in results]
    resolved = resolve_roles([BlocksOfPage(one.number, one.size, one.text, one.blocks) for one in read])
    return [replace(one, blocks=found.blocks) for one, found in zip(read, resolved, strict=True)]


def _read_page(page: PageResult) -> StructuredPage:
    text, layout = page.text or "", _decode(page.layout or "{}")
    if layout.values:
        return _sheet_page(page.number, text, layout)
    tables = {one.begin: one for one in tables_in(page.number, page.layout)}
    blocks = list(layout.blocks)
    if not any(one.size or one.style for one in blocks):
        blocks = _blocks_of_text(text, blocks)
    ends = {one.begin: one.end for one in tables.values()}
    blocks = [
        replace(one, role=Role.TABLE, end=max(one.end, ends[one.begin])) if one.begin in ends else one
        for one in blocks
        if not any(begin < one.begin < end for begin, end in ends.items())
    ]
    rows = {at: one.rows for at, one in tables.items()}
    spans = {at: one.spans for at, one in tables.items()}
    return StructuredPage(page.number, layout.size, text, blocks, rows, layout.lines, layout.links, spans)


def _sheet_page(number: int, text: str, layout: StoredLayout) -> StructuredPage:
    rows = [["" if cell is None else str(cell) for cell in row] for row in layout.values]
    width = max(map(len, rows), default=0)
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    end = len(text) - len(layout.sheet) if layout.first == 1 else len(text)
    blocks = [Block(0, 0, 0, 0, 0, end, Role.TABLE)]
    if layout.first == 1 and layout.sheet:
        blocks.insert(0, Block(0, 0, 0, 0, end, len(text), Role.HEADING, 1))
    return StructuredPage(number, layout.size, text, blocks, {0: rows})


def _blocks_of_text(text: str, boxes: Sequence[Block]) -> list[Block]:
    """Return the paragraphs of a page that was read before blocks had roles, or that has none."""
    if boxes:
        return list(boxes)
    made: list[Block] = []
    begin = 0
    for end in [*(one.end() for one in _PARAGRAPH_END.finditer(text)), len(text)]:
        if text[begin:end].strip():
            made.append(Block(0, 0, 0, 0, begin, end))
        begin = end
    return made
