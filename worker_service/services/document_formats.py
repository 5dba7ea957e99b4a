"""Formats made from a document's blocks on demand. No file of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from worker_service.jobs.library import Document
from worker_service.services.database import Session
from worker_service.services.markdown import document_markdown
from worker_service.services.page_blocks import StructuredPage, structured_pages


class DocumentFormat(Struct, frozen=True):
    media_type: str
    ending: str
    write: Callable[[Document, Sequence[StructuredPage]], Iterator[str]]
    about: str


FORMATS: Mapping[str, DocumentFormat] = {
    "md": DocumentFormat("text/markdown; charset=utf-8", ".md", lambda _, pages: document_markdown(pages), "Markdown"),
}


def write_format(session: Session, document: Document, form: str) -> Iterator[str]:
    """Return the parts of a document in this format. Reading the pages fails at once, not while parts are sent."""
    return FORMATS[form].write(document, structured_pages(session, document.id))
