"""Tables on stored pages, and how pages were recognised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import IO

import msgspec
from msgspec import Struct

from worker_service.jobs.page_structure import TableOnPage, tables_in
from worker_service.services.csv_and_xlsx import Workbook, csv_lines
from worker_service.services.database import Session
from worker_service.services.page_blocks import stored_pages
from worker_service.services.parse import read_pages


def tables_of(session: Session, document_id: int, *, pages: str | None = None) -> Iterator[TableOnPage]:
    first, last = read_pages(pages)
    newest = max((one.number for one in session.library.page_summaries(document_id)), default=0)
    for page in stored_pages(session, document_id, first, newest if last is None else min(last, newest)):
        yield from tables_in(page.number, page.layout)


def whole_tables(found: Iterable[TableOnPage]) -> Iterator[tuple[TableOnPage, Iterator[Sequence[str]]]]:
    """Join the rows of a worksheet from all of its pages."""
    for _, parts in groupby(found, lambda one: (one.page, one.number) if one.sheet is None else one.sheet):
        pages = iter(parts)
        first = next(pages)
        yield first, chain(first.rows, chain.from_iterable(one.rows for one in pages))


def write_csv(file: IO[bytes], rows: Iterator[Sequence[str]]) -> None:
    for line in csv_lines(next(rows), rows):
        file.write(line.encode())


def write_tables(file: IO[bytes], found: Iterable[TableOnPage]) -> int:
    count = 0
    with Workbook(file) as workbook:
        for table, rows in whole_tables(found):
            count += 1
            add_row = workbook.add_sheet(table.name)
            for row in rows:
                add_row(row if table.sheet is None else [_typed(cell) for cell in row])
        if not count:
            workbook.add_sheet("no tables")
    return count


def _typed(text: str) -> str | int | float:
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(text)) == text:
                return kind(text)
    return text


# ── Recognition ───────────────────────────────────────────────────────────────────────────────────────────────────────


class PageReaders(Struct, frozen=True):
    written_in: list[str] = []
    """Detected, if the user chose none."""
    readers: list[str] = []
    """Of the first pass, and of the second if it contributed words."""
    lines: list[list[msgspec.Raw]] = []
    second: list[int] = []
    """Lines with words from the second pass."""

    @property
    def written_lines(self) -> int:
        return sum(map(bool, self.lines))


def page_readers(session: Session, document_id: int, pages: int) -> Mapping[int, PageReaders]:
    decode = msgspec.json.Decoder(PageReaders).decode
    return {
        page.number: decode(page.layout)
        for page in stored_pages(session, document_id, 1, pages)
        if page.layout and '"readers":' in page.layout
    }
