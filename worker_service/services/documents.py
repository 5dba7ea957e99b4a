"""List and show documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from worker_service.jobs.documents import DocumentRequest, PageResult, PublishedFile
from worker_service.jobs.job import Job
from worker_service.jobs.library import (
    NEWEST_FIRST,
    Document,
    DocumentOrder,
    DocumentSelector,
    DocumentSort,
    PageSummary,
    Provenance,
)
from worker_service.services.parse import read_page_range
from worker_service.services.session import Session, cut_page

_DOCUMENTS_AT_ONCE = 500
_ALL_JOBS = 1_000_000


class DocumentList(Struct, frozen=True):
    items: Sequence[Document]
    next: int | None
    not_brought_in: Sequence[Job]
    """Jobs that failed before they made a document; only with the first page of the list."""
    are_more_not_brought_in: bool


class DocumentDetails(Struct, frozen=True):
    document: Document
    page_items: Sequence[PageSummary]
    files: Sequence[PublishedFile]


def list_documents(
    session: Session,
    selector: DocumentSelector,
    *,
    limit: int = 50,
    before_id: int | None = None,
    order: DocumentOrder = NEWEST_FIRST,
) -> DocumentList:
    require_batches(session, selector.batch_ids)
    if before_id is not None and order.sort is not DocumentSort.DATE:
        # The order continues after this document's values, which are unknown once it is removed.
        session.library.document(before_id)  # raises `DocumentNotFound`
    documents = session.library.documents(selector, most=limit + 1, before_id=before_id, order=order)
    failed_jobs = session.library.not_brought_in(selector, most=limit + 1) if before_id is None else []
    items, next_id = cut_page(documents, limit)
    return DocumentList(items, next_id, failed_jobs[:limit], are_more_not_brought_in=len(failed_jobs) > limit)


def each_document(session: Session, selector: DocumentSelector) -> Iterator[Document]:
    require_batches(session, selector.batch_ids)
    for documents in _document_groups(session, selector):
        yield from documents


def _document_groups(session: Session, selector: DocumentSelector) -> Iterator[Sequence[Document]]:
    before_id: int | None = None
    while group := session.library.documents(selector, most=_DOCUMENTS_AT_ONCE, before_id=before_id):
        yield group
        before_id = group[-1].id


def each_with_origin(session: Session, selector: DocumentSelector) -> Iterator[tuple[Document, Provenance] | Job]:
    """Yield documents with their origin, then jobs that failed before there was a document."""
    # Not in the generator, so that an unknown batch raises before a response begins.
    require_batches(session, selector.batch_ids)
    return _with_origin(session, selector)


def _with_origin(session: Session, selector: DocumentSelector) -> Iterator[tuple[Document, Provenance] | Job]:
    for documents in _document_groups(session, selector):
        origin_by_id = session.library.provenance(documents)
        # A document that was removed since the query has no origin.
        yield from ((document, origin_by_id[document.id]) for document in documents if document.id in origin_by_id)
    yield from session.library.not_brought_in(selector, most=_ALL_JOBS)


def require_batches(session: Session, batch_ids: Sequence[int]) -> None:
    for batch_id in batch_ids:
        session.store.batches.get(batch_id)  # raises `BatchNotFound`


def selected_documents(session: Session, selector: DocumentSelector) -> list[Document]:
    for document_id in selector.ids:
        session.library.document(document_id)  # raises `DocumentNotFound`
    return list(each_document(session, selector))


def get_document_details(session: Session, document_id: int) -> DocumentDetails:
    library = session.library
    return DocumentDetails(
        library.document(document_id),
        library.page_summaries(document_id),
        [with_full_path(session, file) for file in library.files(document_id)],
    )


def with_full_path(session: Session, file: PublishedFile) -> PublishedFile:
    return replace(file, path=str(session.settings.workspace / file.path))


def document_text(
    session: Session, document_id: int, *, pages: str | None = None
) -> tuple[Document, Sequence[PageResult]]:
    first, last = read_page_range(pages)
    library = session.library
    return library.document(document_id), library.page_texts(document_id, first, last)


def record_document(session: Session, request: DocumentRequest, *, platform: str, owner: str) -> int:
    return session.store.intake.record_document(request, platform=platform, owner=owner)


def has_only_own_text(session: Session, document_id: int) -> bool:
    """Return True if OCR settings cannot change the text."""
    pages = session.library.page_summaries(document_id)
    return bool(pages) and all(page.method in ("layer", "rows", "blank") for page in pages)
