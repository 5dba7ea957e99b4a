"""Exports for spreadsheets: CSV and workbooks in which no cell can become a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO

from worker_service.base.sanitize import harmless, harmless_cell
from worker_service.jobs.job import Job
from worker_service.jobs.library import Document, Provenance
from worker_service.services.documents import KeywordPart, TermCounts

HAND_OVER_COLUMNS = (
    "DOCUMENT", "NAME", "SOURCE", "FOLDER", "KEY", "OWNER", "KIND", "PAGES", "STATE", "ERROR", "SIZE", "SHA256", "MD5",
    "READ_AT",
)  # fmt: skip


def csv_lines(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield the rows as CSV lines. Cells are untrusted text and are sanitised."""
    for row in chain([headers], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(map(harmless_cell, row))
        yield line.getvalue()


def hand_over_row(one: tuple[Document, Provenance] | Job) -> tuple[object, ...]:
    """Return the row of a document with facts to verify, or of a job that failed before there was a document."""
    if isinstance(one, Job):
        return (
            None, one.name, one.platform, None, one.source_key, one.owner, None, None, one.status.value,
            one.error_code, None, None, None, None,
        )  # fmt: skip
    document, origin = one
    return (
        document.id, document.name, document.platform, origin.folder, document.source_key, document.owner,
        document.kind, document.pages, document.state, document.error_code, origin.size, origin.sha256, origin.md5,
        origin.read_at and origin.read_at[:19],
    )  # fmt: skip


# ── Terms ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def count_headers(terms: Sequence[str], *, of_pages: bool = False) -> list[str]:
    return ["DOCUMENT", "NAME", *(["PAGE"] if of_pages else []), *terms]


def count_cells(row: TermCounts) -> list[object]:
    page = [] if row.page is None else [row.page]
    return [row.document.id, row.document.name, *page, *row.counts]


def write_workbook(file: IO[bytes], terms: Sequence[str], found: Iterable[KeywordPart]) -> None:
    """Write a sheet of documents and a sheet of pages with occurrences. Rows are buffered on disk."""
    import xlsxwriter  # imported only when a workbook is written

    said = {"strings_to_formulas": False, "strings_to_urls": False, "constant_memory": True}
    with xlsxwriter.Workbook(file, said) as book:
        # Mark the cells as text, so that editing one does not turn it into a formula.
        text = book.add_format({"quote_prefix": True})
        sheets = [book.add_worksheet(name) for name in ("documents", "pages")]
        lines = [0, 0]

        def write(number: int, line: Sequence[object]) -> None:
            sheet, at = sheets[number], lines[number]
            for column, value in enumerate(line):
                if isinstance(value, str):
                    sheet.write_string(at, column, harmless(value), text)
                elif value is not None:
                    sheet.write(at, column, value)
            lines[number] += 1

        for number in (0, 1):
            write(number, count_headers(terms, of_pages=number == 1))
        for part in found:
            for number, rows in enumerate((part.by_document, part.by_page)):
                for row in rows:
                    write(number, count_cells(row))
