"""The blocks and tables of stored pages, from which Markdown, passages and other formats are made.

`structure_of` needs all pages of a document, because running lines and headings show only on several pages.
"""

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

STRUCTURED_PAGES_MAX = 5000
"""Maximum for `structure_of`, which has all pages in memory."""
_PARAGRAPH_END = re.compile(r"\n\s*\n")


Rows = Sequence[Sequence[str]]
Span = Sequence[int]
"""Row, column, number of rows and number of columns of a cell that covers several."""


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
    """Number of the first row of the worksheet on this page."""
    values: Sequence[Sequence[str | int | float | bool | None]] = ()


class StructuredPage(BlocksOfPage, frozen=True):
    tables: Mapping[int, Rows]
    """Rows of each table, by the position in `text` where the table begins."""
    lines: msgspec.Raw = msgspec.Raw(b"[]")
    """Stored words of a recognised page, not decoded."""
    links: Sequence[TextLink] = ()
    notes: Sequence[NoteMark] = ()
    """Marks of footnotes whose two ends are known, with labels unique in the document."""
    spans: Mapping[int, Sequence[Span]] = {}
    """Spans of each table, by the same position."""
    dpi: int = 0
    """Resolution of the image that was read; 0 if the page has its own text."""
    skew: float = 0.0


_Footnote = tuple[int, str]  # Page number, and the footnote's number there.
_UNKNOWN_PAGE = 0
_decode_layout = msgspec.json.Decoder(StoredLayout).decode


def structure_of(results: Iterable[PageResult]) -> list[StructuredPage]:
    return _label_footnotes(resolve_roles([_read_page(result) for result in results]))


def _label_footnotes(pages: Sequence[StructuredPage]) -> list[StructuredPage]:
    """Give each referenced footnote a label that is unique in the document. Drop the other marks."""
    footnote_begins = {
        (page.number, block.begin) for page in pages for block in page.blocks if block.role is Role.FOOTNOTE
    }
    pages_by_note: dict[str, list[int]] = defaultdict(list)
    reference_marks: list[tuple[int, NoteMark]] = []
    for page in pages:
        for mark in page.notes:
            if (page.number, mark.begin) in footnote_begins:
                pages_by_note[mark.note].append(page.number)
            else:
                reference_marks.append((page.number, mark))
    referenced = {_footnote_of(mark, page_number, pages_by_note[mark.note]) for page_number, mark in reference_marks}
    label_by_footnote: dict[_Footnote, str] = {}
    for position, (page_number, note) in enumerate(sorted(referenced), 1):
        if page_number != _UNKNOWN_PAGE:
            is_unique = note.isdecimal() and len(pages_by_note[note]) == 1
            label_by_footnote[page_number, note] = note if is_unique else f"p{page_number}-{position}"
    labelled: list[StructuredPage] = []
    for page in pages:
        marks: list[NoteMark] = []
        for mark in page.notes:
            label = label_by_footnote.get(_footnote_of(mark, page.number, pages_by_note[mark.note]))
            if label is not None:
                marks.append(replace(mark, note=label))
        labelled.append(replace(page, notes=marks))
    return labelled


def _footnote_of(mark: NoteMark, page_number: int, pages_with_footnote: Sequence[int]) -> _Footnote:
    """Prefer a footnote on the same page to the only one in the document."""
    if page_number in pages_with_footnote:
        return page_number, mark.note
    return pages_with_footnote[0] if len(pages_with_footnote) == 1 else _UNKNOWN_PAGE, mark.note


def _read_page(page: PageResult) -> StructuredPage:
    text, layout = page.text or "", _decode_layout(page.layout or "{}")
    if layout.values:
        return _structure_worksheet(page.number, text, layout)
    table_by_begin = {table.begin: table for table in tables_on_page(page.number, page.layout)}
    blocks: list[Block] = []
    for block in layout.blocks or _paragraphs_of(text):
        if any(table.begin < block.begin < table.end for table in table_by_begin.values()):
            continue  # its text is in the block of the table
        table = table_by_begin.get(block.begin)
        if table is None or block.role is Role.PICTURE:
            blocks.append(block)
        else:
            blocks.append(replace(block, role=Role.TABLE, end=max(block.end, table.end)))
    rows = {begin: table.rows for begin, table in table_by_begin.items()}
    spans = {begin: table.spans for begin, table in table_by_begin.items()}
    return StructuredPage(
        page.number, layout.size, text, blocks, rows, layout.lines, layout.links, layout.notes, spans, layout.dpi,
        layout.skew,
    )  # fmt: skip


def _structure_worksheet(number: int, text: str, layout: StoredLayout) -> StructuredPage:
    rows = _value_texts(layout.values)
    width = max(map(len, rows), default=0)
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    if layout.first != 1 or not layout.sheet:
        return StructuredPage(number, layout.size, text, [Block(0, 0, 0, 0, 0, len(text), Role.TABLE)], {0: rows})
    # The text of a sheet's first page ends with the name of the sheet, which becomes a heading above the table.
    name_begin = len(text) - len(layout.sheet)
    heading = Block(0, 0, 0, 0, name_begin, len(text), Role.HEADING, 1)
    table = Block(0, 0, 0, 0, 0, name_begin, Role.TABLE)
    return StructuredPage(number, layout.size, text, [heading, table], {0: rows})


def _value_texts(values: Iterable[Iterable[object]]) -> list[list[str]]:
    return [["" if value is None else str(value) for value in row] for row in values]


def _paragraphs_of(text: str) -> list[Block]:
    paragraphs: list[Block] = []
    begin = 0
    for end in [*(match.end() for match in _PARAGRAPH_END.finditer(text)), len(text)]:
        if text[begin:end].strip():
            paragraphs.append(Block(0, 0, 0, 0, begin, end))
        begin = end
    return paragraphs


def tables_on_page(page: int, layout: str | None) -> list[TableOnPage]:
    # A cheap check before parsing: in the text of a page, a quotation mark is always escaped.
    if not layout or not ('"tables":' in layout or '"values":' in layout):
        return []
    decoded: Any = json.loads(layout)
    if values := decoded.get("values"):
        return [TableOnPage(page, 1, (), _value_texts(values), sheet=decoded.get("sheet", ""))]
    return [
        TableOnPage(
            page,
            number,
            table.get("box", ()),
            [[_cell_text(cell) for cell in row] for row in table["rows"]],
            table.get("begin", 0),
            table.get("end", 0),
            table.get("spans", ()),
        )
        for number, table in enumerate(decoded.get("tables", ()), 1)
    ]


def _cell_text(cell: Any) -> str:
    # A cell is stored as "text", as [x0, y0, x1, y1, "text"], or as null.
    if isinstance(cell, str):
        return cell
    return str(cell[4]) if cell else ""
