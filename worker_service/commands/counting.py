"""How often terms stand on pages, as a table, as CSV and as a workbook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from worker_service.jobs.library import KeywordCount

COLUMNS = ("TERM", "DOCUMENT", "NAME", "PAGE", "COUNT")

Names = Mapping[int, str]


def rows(counts: Sequence[KeywordCount], names: Names) -> list[tuple[object, ...]]:
    return [(one.term, one.document_id, names.get(one.document_id, ""), one.number, one.count) for one in counts]


def write_workbook(to: Path, counts: Sequence[KeywordCount], names: Names) -> None:
    """Two sheets: each page, and each document with a column for each term."""
    import xlsxwriter

    whole = BytesIO()
    # What begins with = came from a PDF's name or a list of terms, and is text.
    with xlsxwriter.Workbook(whole, {"strings_to_formulas": False, "strings_to_urls": False}) as book:
        pages = book.add_worksheet("pages")
        for at, row in enumerate([COLUMNS, *rows(counts, names)]):
            pages.write_row(at, 0, row)
        by_document = book.add_worksheet("documents")
        terms = list(dict.fromkeys(one.term for one in counts))
        sums = Counter[tuple[int, str]]()
        for one in counts:
            sums[one.document_id, one.term] += one.count
        by_document.write_row(0, 0, ["DOCUMENT", "NAME", *terms])
        for at, document_id in enumerate(sorted({one.document_id for one in counts}), 1):
            by_document.write_row(
                at, 0, [document_id, names.get(document_id, ""), *(sums[document_id, term] for term in terms)]
            )
    to.write_bytes(whole.getvalue())
