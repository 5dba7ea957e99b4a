"""How often terms stand in documents, or on their pages: a column for each term, as a table, as CSV, as a workbook."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from worker_service.harmless import harmless
from worker_service.operations.documents import TermCounts
from worker_service.operations.files import write_whole


def headers(rows_are_pages: bool, terms: Sequence[str]) -> list[str]:
    return ["DOCUMENT", "NAME", *(["PAGE"] if rows_are_pages else []), *terms]


def cells(row: TermCounts, terms: Sequence[str]) -> list[object]:
    page: list[object] = [] if row.page is None else [row.page]
    counts: Sequence[object] = [None] * len(terms) if row.counts is None else row.counts
    return [row.document.id, row.document.name, *page, *counts]


def as_object(row: TermCounts, terms: Sequence[str]) -> dict[str, object]:
    page = {} if row.page is None else {"page": row.page}
    counts = None if row.counts is None else dict(zip(terms, row.counts, strict=True))
    return {"document_id": row.document.id, "name": row.document.name, **page, "counts": counts}


def write_workbook(to: Path, sheets: Sequence[tuple[str, bool, Sequence[TermCounts]]], terms: Sequence[str]) -> None:
    """`sheets`: the name of each, whether its rows are pages, and the rows. Whole, or not at all."""
    import xlsxwriter

    whole = BytesIO()
    with xlsxwriter.Workbook(whole, {"strings_to_formulas": False, "strings_to_urls": False}) as book:
        # Text for good: it becomes no formula either when somebody goes into the cell and out of it again.
        text = book.add_format({"quote_prefix": True})
        for name, rows_are_pages, rows in sheets:
            sheet = book.add_worksheet(name)
            lines: list[Sequence[object]] = [headers(rows_are_pages, terms), *(cells(row, terms) for row in rows)]
            for at, line in enumerate(lines):
                for column, value in enumerate(line):
                    if isinstance(value, str):
                        sheet.write_string(at, column, harmless(value), text)
                    elif value is not None:
                        sheet.write(at, column, value)
    write_whole(to, whole.getvalue())
