"""Count how often terms occur in documents and on their pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.search import KeywordCount
from worker_service.services.csv_and_xlsx import Workbook
from worker_service.services.documents import require_batches
from worker_service.services.session import Session

_COUNTED_AT_ONCE = 2000


class TermCounts(Struct, frozen=True):
    document: Document
    page: int | None
    counts: Sequence[int | None]
    """None: the document has not been read yet."""

    @property
    def is_read(self) -> bool:
        return None not in self.counts

    def as_object(self, terms: Sequence[str]) -> dict[str, object]:
        page = {} if self.page is None else {"page": self.page}
        counts = dict(zip(terms, self.counts, strict=True)) if self.is_read else None
        return {"document_id": self.document.id, "name": self.document.name, **page, "counts": counts}


class KeywordPart(Struct, frozen=True):
    by_document: Sequence[TermCounts]
    by_page: Sequence[TermCounts]


def parse_terms(text: str) -> list[str]:
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line))


def count_keywords_in(session: Session, terms: Sequence[str], documents: Sequence[Document]) -> list[TermCounts]:
    counts = session.search.keyword_counts(terms, document_ids=[one.id for one in documents])
    return _by_document(documents, terms, counts)


def count_keywords(
    session: Session, terms: Sequence[str], *, owner: str | None = None, batch_id: int | None = None
) -> Iterator[KeywordPart]:
    """Yield counts in parts that fit in memory, at least one."""
    if not terms:
        raise BadInput("the file has no terms", 'write one a line, such as "climate risk" or sustainab*')
    chosen = DocumentSelector(
        owners=() if owner is None else (owner,), batch_ids=() if batch_id is None else (batch_id,)
    )
    require_batches(session, chosen.batch_ids)
    document_ids = session.library.document_ids(chosen)
    first = _count_part(session, terms, document_ids[:_COUNTED_AT_ONCE])
    rest = range(_COUNTED_AT_ONCE, len(document_ids), _COUNTED_AT_ONCE)
    return chain([first], (_count_part(session, terms, document_ids[at : at + _COUNTED_AT_ONCE]) for at in rest))


def _count_part(session: Session, terms: Sequence[str], document_ids: Sequence[int]) -> KeywordPart:
    library = session.library
    counts = session.search.keyword_counts(terms, document_ids=document_ids)
    if not document_ids:
        return KeywordPart((), ())
    documents = library.documents(DocumentSelector(ids=document_ids), most=len(document_ids))[::-1]
    return KeywordPart(_by_document(documents, terms, counts), _by_page(documents, terms, counts))


def _by_document(
    documents: Sequence[Document], terms: Sequence[str], counts: Sequence[KeywordCount]
) -> list[TermCounts]:
    sums = Counter[tuple[int, str]]()
    for count in counts:
        sums[count.document_id, count.term] += count.count
    rows: list[TermCounts] = []
    for document in documents:
        has_text = document.current_generation is not None
        rows.append(TermCounts(document, None, [sums[document.id, term] if has_text else None for term in terms]))
    return rows


def _by_page(documents: Sequence[Document], terms: Sequence[str], counts: Sequence[KeywordCount]) -> list[TermCounts]:
    by_page = {(one.document_id, one.number, one.term): one.count for one in counts}
    by_id = {document.id: document for document in documents}
    pages = sorted({(document_id, number) for document_id, number, _ in by_page if document_id in by_id})
    return [
        TermCounts(by_id[document_id], number, [by_page.get((document_id, number, term), 0) for term in terms])
        for document_id, number in pages
    ]


# ── Spreadsheets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def count_headers(terms: Sequence[str], *, of_pages: bool = False) -> list[str]:
    return ["DOCUMENT", "NAME", *(["PAGE"] if of_pages else []), *terms]


def count_cells(row: TermCounts) -> list[object]:
    page = [] if row.page is None else [row.page]
    return [row.document.id, row.document.name, *page, *row.counts]


def write_workbook(file: IO[bytes], terms: Sequence[str], parts: Iterator[KeywordPart] | Sequence[KeywordPart]) -> None:
    with Workbook(file) as workbook:
        add_document, add_page = workbook.add_sheet("documents"), workbook.add_sheet("pages")
        add_document(count_headers(terms))
        add_page(count_headers(terms, of_pages=True))
        for part in parts:
            for row in part.by_document:
                add_document(count_cells(row))
            for row in part.by_page:
                add_page(count_cells(row))
