"""Formats made from a document's blocks on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from worker_service.jobs.library import Document
from worker_service.services import exchange_formats
from worker_service.services.database import Session
from worker_service.services.markdown import document_markdown
from worker_service.services.page_blocks import StructuredPage, structured_pages
from worker_service.services.passages import PassageLimits, passage_lines

_JSON = "application/json"


class DocumentFormat(Struct, frozen=True):
    media_type: str
    ending: str
    write: Callable[[Session, Document, Sequence[StructuredPage]], Iterator[str]]


FORMATS: Mapping[str, DocumentFormat] = {
    "md": DocumentFormat("text/markdown; charset=utf-8", ".md", lambda _, __, pages: document_markdown(pages)),
    "jsonl": DocumentFormat(
        "application/jsonl; charset=utf-8",
        ".passages.jsonl",
        lambda session, document, pages: passage_lines(document, pages, PassageLimits.from_settings(session.settings)),
    ),
    "docling": DocumentFormat(
        _JSON, ".docling.json", lambda _, document, pages: exchange_formats.docling_json(document, pages)
    ),
    "pawls": DocumentFormat(_JSON, ".pawls.json", exchange_formats.pawls_json),
    "alto": DocumentFormat("application/xml; charset=utf-8", ".alto.xml", exchange_formats.alto_xml),
}


def write_format(session: Session, document: Document, form: str) -> Iterator[str]:
    """Return the parts. Reading the pages fails at once, not while parts are sent."""
    return FORMATS[form].write(session, document, structured_pages(session, document.id))
