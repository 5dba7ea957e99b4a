"""Tables on the pages of a document: rows of cells for display, CSV or a workbook.

They come from the layouts that were stored when the pages were read; no page is read again. No cell becomes a formula.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from msgspec import Struct

from worker_service.base.sanitize import harmless
from worker_service.services.database import Session
from worker_service.services.parse import read_pages
from worker_service.services.spreadsheets import csv_lines

_PAGES_AT_ONCE = 50


class TableOnPage(Struct, frozen=True):
    page: int
    number: int
    """Position among the tables of its page, from 1."""
    box: Sequence[float]
    """x0, y0, x1, y1 in points from the top left of the page; empty if the text has no positions."""
    rows: Sequence[Sequence[str]]

    @property
    def name(self) -> str:
        return f"page-{self.page}-table-{self.number}"


def tables_of(session: Session, document_id: int, *, pages: str | None = None) -> Iterator[TableOnPage]:
    """Yield the tables in page order; `pages` is such as 3, 3-5, 3- or -5."""
    first, last = read_pages(pages)
    library = session.store.library
    most = max((one.number for one in library.page_summaries(document_id)), default=0)
    last = most if last is None else min(last, most)
    for begin in range(first, last + 1, _PAGES_AT_ONCE):
        for page in library.page_texts(document_id, begin, min(begin + _PAGES_AT_ONCE - 1, last), with_layout=True):
            yield from tables_in(page.number, page.layout)


def tables_in(page: int, layout: str | None) -> list[TableOnPage]:
    """Return the tables of one page from its layout."""
    # A cheap check before parsing: in the text of a page, a quotation mark is always escaped.
    if not layout or '"tables":' not in layout:
        return []
    found: Any = json.loads(layout).get("tables", ())
    return [
        TableOnPage(page, number, one.get("box", ()), [[_text_of(cell) for cell in row] for row in one["rows"]])
        for number, one in enumerate(found, 1)
    ]


def _text_of(cell: Any) -> str:
    """Return the text of a cell, which is stored with or without its position."""
    if isinstance(cell, str):
        return cell
    return str(cell[4]) if cell else ""


def write_csv(file: IO[bytes], table: TableOnPage) -> None:
    for line in csv_lines(table.rows[0], table.rows[1:]):
        file.write(line.encode())


def write_tables(file: IO[bytes], found: Iterable[TableOnPage]) -> int:
    """Write a workbook with one sheet per table; return the number of tables."""
    import xlsxwriter  # imported only when a workbook is written

    said = {"strings_to_formulas": False, "strings_to_urls": False, "constant_memory": True}
    count = 0
    with xlsxwriter.Workbook(file, said) as book:
        # Mark the cells as text, so that editing one does not turn it into a formula.
        text = book.add_format({"quote_prefix": True})
        for table in found:
            count += 1
            sheet = book.add_worksheet(table.name)
            for at, row in enumerate(table.rows):
                for column, value in enumerate(row):
                    if value:
                        sheet.write_string(at, column, harmless(value), text)
        if not count:
            book.add_worksheet("no tables")
    return count
