"""Read spreadsheets and CSV files as text and typed values, a hundred rows of one worksheet a page."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from math import ceil, isfinite
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import msgspec
import python_calamine
from msgspec import Struct, field

from job_handlers.encodings import decode, error_handler
from job_handlers.file_kinds import HEAD_BYTES, FileKind, delimiter_of
from job_handlers.reading.formats import DocumentLocked, UnreadableDocument
from job_handlers.reading.formats.office import OfficeDocument
from job_handlers.reading.layout import LAYOUT_BYTES_MAX, TEXT_CHARACTERS_MAX
from job_handlers.reading.page_process import Refusal

LIBRARY = f"calamine {version('python-calamine')}"

_ROWS_PER_PAGE = 100
_ROWS_PER_JOB = 3000
_JOBS_MOST = 20  # Beyond it, jobs get more rows: each job reads its worksheets again.
_CELL_CHARACTERS_MAX = 1 << 20
_COLUMNS_MAX = 1 << 14
_EXACT_MOST = 1e15  # Larger whole numbers may have lost digits as floats.
_TEXT_BOXES = "Text boxes"

Value = str | int | float | bool | None


class RowRange(Struct, frozen=True):
    """The rows of a page, numbered from 1."""

    sheet_index: int
    sheet_name: str
    first: int
    last: int


class RowLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    sheet_name: str = field(name="sheet")
    first: int
    values: list[list[Value]] = []
    is_cut: bool = False


class SheetFile:
    """Keeps the worksheet that was read last."""

    def __init__(self, path: Path, kind: FileKind) -> None:
        self._path = path
        self._kind = kind
        self._rows: list[list[Any]] = []
        self._index_of_rows = -1

    def row_ranges(self) -> list[RowRange]:
        return [
            RowRange(index, name, first, min(first + _ROWS_PER_PAGE - 1, height))
            for index, (name, height) in enumerate(self._heights())
            for first in range(1, height + 1, _ROWS_PER_PAGE)
        ]

    def page(self, row_range: RowRange) -> tuple[str, str]:
        if self._index_of_rows != row_range.sheet_index:
            self._rows, self._index_of_rows = list(self._all_rows(row_range.sheet_index)), row_range.sheet_index
        values = [_values(row) for row in self._rows[row_range.first - 1 : row_range.last]]
        lines = ["\t".join(_cell_text(value) for value in row) for row in values]
        if row_range.first == 1 and row_range.sheet_name:
            # Searches find the worksheet's name. It follows the rows, because row n has to be line n of the text.
            lines.append(row_range.sheet_name)
        text = "\n".join(lines)
        return text[:TEXT_CHARACTERS_MAX], _encode(RowLayout(row_range.sheet_name, row_range.first, values))

    def _heights(self) -> list[tuple[str, int]]:
        """Return the name of each worksheet and its number of rows."""
        if self._kind is FileKind.CSV:
            return [("", sum(1 for _ in self._all_rows(0)))]
        with _open_workbook(self._path) as book:
            heights = [(name, _height(book.get_sheet_by_index(at))) for at, name in enumerate(book.sheet_names)]
        return [*heights, (_TEXT_BOXES, len(self._text_boxes))]

    @cached_property
    def _text_boxes(self) -> list[str]:
        """The texts of shapes, which calamine leaves out, are the rows of one more worksheet."""
        # The rows are read even if a drawing is broken.
        with suppress(UnreadableDocument):
            if is_zipfile(self._path):
                return OfficeDocument(self._path, FileKind.SHEET).text_boxes()
        return []

    def _all_rows(self, sheet_index: int) -> Iterator[list[Any]]:
        if self._kind is FileKind.CSV:
            yield from _csv_rows(self._path)
            return
        with _open_workbook(self._path) as book:
            if sheet_index == len(book.sheet_names):
                yield from ([text] for text in self._text_boxes)
            else:
                yield from book.get_sheet_by_index(sheet_index).to_python(skip_empty_area=False)


def sheet_reader(original: Path, kind: FileKind) -> Callable[[int], list[RowRange] | tuple[str, str] | Refusal]:
    """Return a function that reads the row ranges of all pages as page 0, and the text and layout of any other page."""
    sheet_file = SheetFile(original, kind)
    ranges: list[RowRange] = []

    def read(number: int) -> list[RowRange] | tuple[str, str] | Refusal:
        nonlocal ranges
        try:
            ranges = ranges or sheet_file.row_ranges()
            if number == 0:
                return ranges
            if number > len(ranges):
                return Refusal("SHEET_BROKEN", f"there is no page {number}")
            return sheet_file.page(ranges[number - 1])
        except DocumentLocked as error:
            return Refusal("FILE_ENCRYPTED", f"the spreadsheet cannot be read: {error.detail}", error.remedy)
        except UnreadableDocument as error:
            return Refusal("SHEET_BROKEN", f"the spreadsheet cannot be read: {error}")

    return read


def divide_among_jobs(pages: Sequence[RowRange]) -> list[list[int]]:
    """Return the page numbers of each job."""
    total = sum(page.last - page.first + 1 for page in pages)
    rows_most = max(_ROWS_PER_JOB, ceil(total / _JOBS_MOST))
    pages_of_jobs: list[list[int]] = []
    rows_of_job = 0
    for number, page in enumerate(pages, 1):
        height = page.last - page.first + 1
        if not pages_of_jobs or rows_of_job + height > rows_most:
            pages_of_jobs.append([])
            rows_of_job = 0
        pages_of_jobs[-1].append(number)
        rows_of_job += height
    return pages_of_jobs


@contextmanager
def _open_workbook(path: Path) -> Iterator[Any]:
    try:
        with python_calamine.CalamineWorkbook.from_path(str(path)) as book:
            yield book
    except python_calamine.PasswordError as error:
        raise DocumentLocked from error
    except python_calamine.XmlError as error:
        # Its message may be only the name of an element, or empty.
        raise UnreadableDocument(f"its XML is broken ({str(error) or 'an element is not closed'})") from error
    except (python_calamine.CalamineError, OSError, ValueError) as error:
        raise UnreadableDocument(str(error)) from error


def _height(sheet: Any) -> int:
    # The library's total_height misses the last row.
    return sheet.end[0] + 1 if sheet.end is not None else 0


def _csv_rows(path: Path) -> Iterator[list[str]]:
    with path.open("rb") as file:
        text, encoding = decode(file.read(HEAD_BYTES))
    csv.field_size_limit(_CELL_CHARACTERS_MAX)
    with path.open(encoding=encoding, errors=error_handler(encoding), newline="") as lines:
        try:
            yield from csv.reader((line.replace("\0", "") for line in lines), delimiter=delimiter_of(text) or ",")
        except csv.Error as error:
            raise UnreadableDocument(str(error)) from error


def _values(row: Sequence[Any]) -> list[Value]:
    values = [_value(cell) for cell in islice(row, _COLUMNS_MAX)]
    while values and values[-1] is None:
        values.pop()
    return values


def _value(cell: Any) -> Value:
    if cell is None or cell == "":
        return None
    if isinstance(cell, bool | int | str):
        return cell
    if isinstance(cell, float):
        if not isfinite(cell):
            # JSON has neither infinity nor NaN.
            return str(cell)
        # Whole numbers arrive as floats.
        return int(cell) if cell.is_integer() and abs(cell) < _EXACT_MOST else cell
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat()
    return str(cell)


def _cell_text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return " ".join(str(value).split())


def _encode(layout: RowLayout) -> str:
    text = msgspec.json.encode(layout)
    if len(text) > LAYOUT_BYTES_MAX:
        text = msgspec.json.encode(RowLayout(layout.sheet_name, layout.first, is_cut=True))
    return text.decode()
