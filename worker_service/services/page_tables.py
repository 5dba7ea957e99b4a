"""Tables on stored pages, as CSV and as workbooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import IO

from worker_service.jobs.page_structure import TableOnPage, tables_on_page
from worker_service.services.csv_and_xlsx import Workbook, csv_lines
from worker_service.services.page_blocks import last_page_number, stored_pages
from worker_service.services.parse import read_page_range
from worker_service.services.session import Session


def tables_of(session: Session, document_id: int, *, pages: str | None = None) -> Iterator[TableOnPage]:
    first, last = read_page_range(pages)
    last_stored = last_page_number(session, document_id)
    last = last_stored if last is None else min(last, last_stored)
    for page in stored_pages(session, document_id, first, last):
        yield from tables_on_page(page.number, page.layout)


def tables_with_all_rows(parts: Iterable[TableOnPage]) -> Iterator[tuple[TableOnPage, Iterator[Sequence[str]]]]:
    """Yield the first part of each table and the rows of all parts: a long worksheet has a part on each page."""
    for _, group in groupby(parts, _table_key):
        parts_of_table = iter(group)
        first = next(parts_of_table)
        yield first, chain(first.rows, chain.from_iterable(part.rows for part in parts_of_table))


def _table_key(part: TableOnPage) -> str | tuple[int, int]:
    # Pages of one worksheet belong together; other tables end with their page.
    return (part.page, part.number) if part.sheet is None else part.sheet


def write_csv(file: IO[bytes], rows: Iterator[Sequence[str]]) -> None:
    headers = next(rows)
    for line in csv_lines(headers, rows):
        file.write(line.encode())


def write_tables(file: IO[bytes], parts: Iterable[TableOnPage]) -> None:
    has_tables = False
    with Workbook(file) as workbook:
        for table, rows in tables_with_all_rows(parts):
            has_tables = True
            add_row = workbook.add_sheet(table.name)
            for row in rows:
                # A worksheet had numbers of its own; a table read from a page keeps its text.
                add_row(row if table.sheet is None else [_number_or_text(cell) for cell in row])
        if not has_tables:  # a workbook needs at least one sheet
            workbook.add_sheet("no tables")


def _number_or_text(text: str) -> str | int | float:
    for number_type in (int, float):
        with suppress(ValueError):
            # "007" and "1e3" stay text: as numbers they would be shown as 7 and 1000.
            if str(number_type(text)) == text:
                return number_type(text)
    return text
