"""Stored pages of a document with their blocks, and its passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from worker_service.base.errors import BadInput
from worker_service.jobs.documents import PageResult
from worker_service.jobs.library import Document
from worker_service.jobs.markdown import page_markdown
from worker_service.jobs.page_structure import STRUCTURED_PAGES_MAX, StructuredPage, structure_of
from worker_service.jobs.passages import Passage, PassageLimits, passages_of
from worker_service.services.session import Session
from worker_service.settings.config import Settings

_PAGES_AT_ONCE = 50


def last_page_number(session: Session, document_id: int) -> int:
    return max((page.number for page in session.library.page_summaries(document_id)), default=0)


def structured_pages(session: Session, document_id: int) -> list[StructuredPage]:
    """Return all pages: running heads are recognised by their repetition."""
    last = last_page_number(session, document_id)
    if last > STRUCTURED_PAGES_MAX:
        raise BadInput(
            f"document {document_id} is too long for this format, which holds {STRUCTURED_PAGES_MAX} pages at most"
        )
    return structure_of(stored_pages(session, document_id, 1, last))


def stored_pages(session: Session, document_id: int, first: int, last: int) -> Iterator[PageResult]:
    for start in range(first, last + 1, _PAGES_AT_ONCE):
        end = min(start + _PAGES_AT_ONCE - 1, last)
        yield from session.library.page_texts(document_id, start, end, with_layout=True)


def with_markdown(session: Session, document_id: int, pages: Sequence[PageResult]) -> list[PageResult]:
    markdown_by_number = {page.number: page_markdown(page) for page in structured_pages(session, document_id)}
    return [replace(page, text=markdown_by_number.get(page.number, "")) for page in pages]


def passage_limits(settings: Settings) -> PassageLimits:
    return PassageLimits(settings.passage_tokens, settings.passage_overlap)


def passages_of_document(session: Session, document: Document, pages: Sequence[StructuredPage]) -> Iterator[Passage]:
    return passages_of(document.id, document.current_generation or 0, pages, passage_limits(session.settings))
