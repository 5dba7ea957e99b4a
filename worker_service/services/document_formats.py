"""Formats made from a document's blocks on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from worker_service.jobs.library import Document
from worker_service.jobs.markdown import document_markdown
from worker_service.jobs.page_structure import StructuredPage
from worker_service.services import exchange_formats
from worker_service.services.database import Session
from worker_service.services.page_blocks import passages_of_document, structured_pages

_JSON = "application/json"


class DocumentFormat(Struct, frozen=True):
    media_type: str
    ending: str
    write: Callable[[Session, Document, Sequence[StructuredPage]], Iterator[str]]


def _passage_lines(session: Session, document: Document, pages: Sequence[StructuredPage]) -> Iterator[str]:
    about = {"document": document.name, "owner": document.owner}
    for one in passages_of_document(session, document, pages):
        yield msgspec.json.encode({**about, **msgspec.structs.asdict(one)}).decode() + "\n"


FORMATS: Mapping[str, DocumentFormat] = {
    "md": DocumentFormat("text/markdown; charset=utf-8", ".md", lambda _, __, pages: document_markdown(pages)),
    "jsonl": DocumentFormat("application/jsonl; charset=utf-8", ".passages.jsonl", _passage_lines),
    "docling": DocumentFormat(
        _JSON, ".docling.json", lambda _, document, pages: exchange_formats.docling_json(document, pages)
    ),
    "pawls": DocumentFormat(_JSON, ".pawls.json", exchange_formats.pawls_json),
    "alto": DocumentFormat("application/xml; charset=utf-8", ".alto.xml", exchange_formats.alto_xml),
    "hocr": DocumentFormat("text/html; charset=utf-8", ".hocr", exchange_formats.hocr_html),
}


def write_format(session: Session, document: Document, form: str) -> Iterator[str]:
    """Return the parts of the format. Errors of reading pages are raised before the first part is sent."""
    return FORMATS[form].write(session, document, structured_pages(session, document.id))
