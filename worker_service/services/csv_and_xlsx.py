"""Write CSV and workbooks in which no cell can become a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import IO

from worker_service.base.sanitize import harmless
from worker_service.jobs.job import Job
from worker_service.jobs.library import Document, Provenance

DOCUMENT_COLUMNS = (
    "DOCUMENT", "NAME", "SOURCE", "FOLDER", "KEY", "OWNER", "KIND", "PAGES", "STATE", "ERROR", "MESSAGE", "SIZE",
    "SHA256", "MD5", "READ_AT", "TAGS",
)  # fmt: skip
_SIGNED_NUMBER = re.compile(r"[+-](?:[ .,]?\d+)*%?")
# A spreadsheet takes these as the start of a formula, also in full width.
_FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_lines(headers: Sequence[str], rows: Iterable[Sequence[object]], *, is_for_excel: bool = False) -> Iterator[str]:
    """Yield lines of sanitised cells. Excel needs a byte order mark before UTF-8; other programs misread it."""
    if is_for_excel:
        yield "\ufeff"
    for row in chain([headers], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(map(harmless_cell, row))
        yield line.getvalue()


def harmless_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = harmless(value)
    if _SIGNED_NUMBER.fullmatch(value):
        return text
    begins_formula = value.startswith(_FORMULA_BEGINS) or text.startswith(_FORMULA_BEGINS)
    return f"'{text}" if begins_formula else text


def document_row(item: tuple[Document, Provenance] | Job) -> tuple[object, ...]:
    # A job stands for a document that could not be added.
    if isinstance(item, Job):
        job = item
        return (
            None, job.name, job.platform, None, job.source_key, job.owner, None, None, job.status.value,
            job.error_code, job.error_text, None, None, None, None, None,
        )  # fmt: skip
    document, origin = item
    return (
        document.id, document.name, document.platform, origin.folder, document.source_key, document.owner,
        document.kind, document.pages, document.state, document.error_code, document.error_text,
        origin.size, origin.sha256, origin.md5, origin.read_at and origin.read_at[:19], ", ".join(document.tags),
    )  # fmt: skip


def write_document_list(file: IO[bytes], rows: Iterable[Sequence[object]]) -> None:
    with Workbook(file) as book:
        append = book.add_sheet("documents")
        for row in chain([DOCUMENT_COLUMNS], rows):
            append(row)


class Workbook:
    def __init__(self, file: IO[bytes]) -> None:
        import xlsxwriter  # imported only when a workbook is written

        # `constant_memory` buffers the rows on disk.
        options = {"strings_to_formulas": False, "strings_to_urls": False, "constant_memory": True}
        self._book = xlsxwriter.Workbook(file, options)
        # Mark the cells as text, so that editing one does not turn it into a formula.
        self._text = self._book.add_format({"quote_prefix": True})

    def __enter__(self) -> Workbook:
        return self

    def __exit__(self, *_: object) -> None:
        self._book.close()

    def add_sheet(self, name: str) -> Callable[[Sequence[object]], None]:
        """Return a function that appends a row."""
        sheet, row_numbers = self._book.add_worksheet(name), count()

        def append(row: Sequence[object]) -> None:
            number = next(row_numbers)
            for column, value in enumerate(row):
                if isinstance(value, str):
                    sheet.write_string(number, column, harmless(value), self._text)
                elif value is not None:
                    sheet.write(number, column, value)

        return append
