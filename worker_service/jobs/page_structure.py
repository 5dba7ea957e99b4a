"""The blocks and tables of stored pages, from which Markdown, passages and other formats are made."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from worker_service.jobs.blocks import Block, BlocksOfPage, NoteMark, Role, TextLink, resolve_roles
from worker_service.jobs.documents import PageResult

PAGES_MAX = 5000
"""The whole document must be in memory, because headings and running lines show only in the whole."""
_PARAGRAPH_END = re.compile(r"\n\s*\n")


Rows = Sequence[Sequence[str]]
Span = Sequence[int]
"""Row, column, rows and columns of a cell that covers several."""


class TableOnPage(Struct, frozen=True):
    page: int
    number: int
    box: Sequence[float]
    """x0, y0, x1, y1 in points from the top left; empty if the text has no positions."""
    rows: Rows
    begin: int = 0
    end: int = 0
    spans: Sequence[Span] = ()
    sheet: str | None = None
    """Name of the worksheet; a long one continues on the next page."""

    @property
    def name(self) -> str:
        return f"page-{self.page}-table-{self.number}"


class StoredLayout(Struct, frozen=True):
    """The part of `job_handlers.reading.layout` that formats need."""

    size: tuple[float, float] = (0.0, 0.0)
    blocks: Sequence[Block] = ()
    links: Sequence[TextLink] = ()
    notes: Sequence[NoteMark] = ()
    lines: msgspec.Raw = msgspec.Raw(b"[]")
    dpi: int = 0
    skew: float = 0.0
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
    """Stored words of a recognised page, not decoded."""
    links: Sequence[TextLink] = ()
    notes: Sequence[NoteMark] = ()
    """Marks of footnotes whose two ends are known, with labels unique in the document."""
    spans: Mapping[int, Sequence[Span]] = {}
    """By the beginning of the table's text."""
    dpi: int = 0
    """Resolution of the image that was read; 0 if the page has its own text."""
    skew: float = 0.0

    def text_of(self, block: Block) -> str:
        return self.text[block.begin : block.end]


_decode = msgspec.json.Decoder(StoredLayout).decode


def structure_of(results: Iterable[PageResult]) -> list[StructuredPage]:
    read = [_read_page(one) for one in results]
    resolved = resolve_roles([BlocksOfPage(one.number, one.size, one.text, one.blocks) for one in read])
    return _with_labels([replace(one, blocks=found.blocks) for one, found in zip(read, resolved, strict=True)])


def _with_labels(pages: Sequence[StructuredPage]) -> list[StructuredPage]:
    """Label each footnote that has a reference; leave out other marks."""
    begins = {(page.number, one.begin) for page in pages for one in page.blocks if one.role is Role.FOOTNOTE}
    defined: dict[str, list[int]] = defaultdict(list)
    for page in pages:
        for mark in page.notes:
            if (page.number, mark.begin) in begins:
                defined[mark.note].append(page.number)

    def footnote_of(page: StructuredPage, mark: NoteMark) -> tuple[int, str]:
        numbers = defined[mark.note]
        return (page.number if page.number in numbers else numbers[0] if len(numbers) == 1 else 0), mark.note

    referred = sorted(
        {footnote_of(page, one) for page in pages for one in page.notes if (page.number, one.begin) not in begins}
    )
    labels = {
        (number, note): note if note.isdecimal() and len(defined[note]) == 1 else f"p{number}-{at}"
        for at, (number, note) in enumerate(referred, 1)
        if number
    }
    return [
        replace(page, notes=[
            replace(one, note=labels[where]) for one in page.notes if (where := footnote_of(page, one)) in labels
        ])
        for page in pages
    ]  # fmt: skip


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
        replace(one, role=Role.TABLE, end=max(one.end, ends[one.begin]))
        if one.begin in ends and one.role is not Role.PICTURE
        else one
        for one in blocks
        if not any(begin < one.begin < end for begin, end in ends.items())
    ]
    rows = {at: one.rows for at, one in tables.items()}
    spans = {at: one.spans for at, one in tables.items()}
    return StructuredPage(
        page.number, layout.size, text, blocks, rows, layout.lines, layout.links, layout.notes, spans, layout.dpi,
        layout.skew,
    )  # fmt: skip


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
    """Return `boxes`, or the paragraphs of the text if there are none."""
    if boxes:
        return list(boxes)
    made: list[Block] = []
    begin = 0
    for end in [*(one.end() for one in _PARAGRAPH_END.finditer(text)), len(text)]:
        if text[begin:end].strip():
            made.append(Block(0, 0, 0, 0, begin, end))
        begin = end
    return made


def tables_in(page: int, layout: str | None) -> list[TableOnPage]:
    # A cheap check before parsing: in the text of a page, a quotation mark is always escaped.
    if not layout or not ('"tables":' in layout or '"values":' in layout):
        return []
    read: Any = json.loads(layout)
    if values := read.get("values"):
        rows = [["" if cell is None else str(cell) for cell in row] for row in values]
        return [TableOnPage(page, 1, (), rows, sheet=read.get("sheet", ""))]
    return [
        TableOnPage(
            page,
            number,
            one.get("box", ()),
            [[_text_of(cell) for cell in row] for row in one["rows"]],
            one.get("begin", 0),
            one.get("end", 0),
            one.get("spans", ()),
        )
        for number, one in enumerate(read.get("tables", ()), 1)
    ]


def _text_of(cell: Any) -> str:
    # A cell is stored with or without its position.
    if isinstance(cell, str):
        return cell
    return str(cell[4]) if cell else ""
