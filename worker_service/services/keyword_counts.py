"""Count how often terms occur in documents and on their pages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.search import KeywordCount
from worker_service.services.csv_and_xlsx import Workbook
from worker_service.services.documents import require_batches
from worker_service.services.session import Session

_DOCUMENTS_COUNTED_AT_ONCE = 2000


class TermCounts(Struct, frozen=True):
    document: Document
    page: int | None
    counts: Sequence[int | None]
    """One for each term. None: the document has not been read yet."""

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
    counts = session.search.keyword_counts(terms, document_ids=[document.id for document in documents])
    return _rows_of_documents(documents, terms, counts)


def count_keywords(
    session: Session, terms: Sequence[str], *, owner: str | None = None, batch_id: int | None = None
) -> Iterator[KeywordPart]:
    """Yield counts in parts that fit in memory, at least one."""
    if not terms:
        raise BadInput("the file has no terms", 'write one a line, such as "climate risk" or sustainab*')
    selector = DocumentSelector(
        owners=() if owner is None else (owner,), batch_ids=() if batch_id is None else (batch_id,)
    )
    require_batches(session, selector.batch_ids)
    document_ids = session.library.document_ids(selector)
    for start in range(0, max(1, len(document_ids)), _DOCUMENTS_COUNTED_AT_ONCE):
        yield _count_part(session, terms, document_ids[start : start + _DOCUMENTS_COUNTED_AT_ONCE])


def _count_part(session: Session, terms: Sequence[str], document_ids: Sequence[int]) -> KeywordPart:
    # Query even without documents, so that a term that cannot be searched for is refused.
    counts = session.search.keyword_counts(terms, document_ids=document_ids)
    if not document_ids:
        return KeywordPart((), ())
    newest_first = session.library.documents(DocumentSelector(ids=document_ids), most=len(document_ids))
    documents = list(reversed(newest_first))
    return KeywordPart(_rows_of_documents(documents, terms, counts), _rows_of_pages(documents, terms, counts))


def _rows_of_documents(
    documents: Sequence[Document], terms: Sequence[str], counts: Sequence[KeywordCount]
) -> list[TermCounts]:
    count_in_document = Counter[tuple[int, str]]()
    for count in counts:
        count_in_document[count.document_id, count.term] += count.count
    rows: list[TermCounts] = []
    for document in documents:
        has_text = document.current_generation is not None
        counts_of_terms = [count_in_document[document.id, term] if has_text else None for term in terms]
        rows.append(TermCounts(document, None, counts_of_terms))
    return rows


def _rows_of_pages(
    documents: Sequence[Document], terms: Sequence[str], counts: Sequence[KeywordCount]
) -> list[TermCounts]:
    count_on_page = {(count.document_id, count.number, count.term): count.count for count in counts}
    page_numbers: dict[int, set[int]] = defaultdict(set)
    for count in counts:
        page_numbers[count.document_id].add(count.number)
    return [
        TermCounts(document, number, [count_on_page.get((document.id, number, term), 0) for term in terms])
        for document in sorted(documents, key=lambda document: document.id)
        for number in sorted(page_numbers[document.id])
    ]


# ── Spreadsheets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def count_headers(terms: Sequence[str], *, of_pages: bool = False) -> list[str]:
    return ["DOCUMENT", "NAME", *(["PAGE"] if of_pages else []), *terms]


def count_cells(row: TermCounts) -> list[object]:
    page = [] if row.page is None else [row.page]
    return [row.document.id, row.document.name, *page, *row.counts]


def write_workbook(file: IO[bytes], terms: Sequence[str], parts: Iterable[KeywordPart]) -> None:
    with Workbook(file) as workbook:
        add_document, add_page = workbook.add_sheet("documents"), workbook.add_sheet("pages")
        add_document(count_headers(terms))
        add_page(count_headers(terms, of_pages=True))
        for part in parts:
            for row in part.by_document:
                add_document(count_cells(row))
            for row in part.by_page:
                add_page(count_cells(row))
