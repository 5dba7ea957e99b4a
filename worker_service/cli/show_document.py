"""`pagemill show document:7`: one document with its pages and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Invocation
from worker_service.cli.documents import failure_of_generation
from worker_service.jobs.library import Document
from worker_service.services import documents as operations
from worker_service.services.page_blocks import stored_pages
from worker_service.services.serialize import as_object
from worker_service.services.session import Session

_PAGES_SHOWN_MAX = 50


def show_document(call: Invocation, document_id: int) -> None:
    details = operations.get_document_details(call.session, document_id)
    document = details.document
    pages_max = len(details.page_items) if call.as_json else _PAGES_SHOWN_MAX
    recognition_by_page = _recognition_by_page(call.session, document_id, pages_max)
    if call.as_json:
        output.show_json(_details_as_object(details, recognition_by_page))
        return
    output.show_values(_facts_of(document))
    if document.has_failed_anew:
        output.note(
            f"readers see generation {document.current_generation}; {failure_of_generation(document)}. Fix this and "
            f"read it again, or keep what is there: pagemill reindex {document_id} restores its settings"
        )
    elif document.error_code:
        output.note(f"to read it again: pagemill reindex {document_id}; known pages are not read twice")
    _show_pages(details, recognition_by_page)
    files = [(file.role, file.name, file.size, file.path) for file in details.files]
    output.show_section(("ROLE", "NAME", "BYTES", "PATH"), files)


class _PageRecognition(Struct, frozen=True):
    """The fields of the stored layout of a page that are shown."""

    languages: list[str] = field(default=[], name="written_in")
    """Languages detected on the page; empty if the user chose some."""
    engines: list[str] = field(default=[], name="readers")
    """OCR engine of the first pass, and of the second if it contributed words."""
    lines: list[list[msgspec.Raw]] = []
    second_pass_lines: list[int] = field(default=[], name="second")
    """Numbers of the lines with words from the second pass."""

    @property
    def lines_with_words(self) -> int:
        return sum(1 for words in self.lines if words)


def _recognition_by_page(session: Session, document_id: int, pages_max: int) -> Mapping[int, _PageRecognition]:
    decode = msgspec.json.Decoder(_PageRecognition).decode
    return {
        page.number: decode(page.layout)
        for page in stored_pages(session, document_id, 1, pages_max)
        # A cheap check before decoding: a page with text of its own was read by no engine.
        if page.layout and '"readers":' in page.layout
    }


def _details_as_object(
    details: operations.DocumentDetails, recognition_by_page: Mapping[int, _PageRecognition]
) -> dict[str, Any]:
    fields: dict[str, Any] = as_object(details)
    for page in fields["page_items"]:
        recognition = recognition_by_page.get(page["number"])
        if recognition is not None:
            page |= {
                "written_in": recognition.languages,
                "readers": recognition.engines,
                "lines": recognition.lines_with_words,
                "second": len(recognition.second_pass_lines),
            }
    return {**fields.pop("document"), **fields}


def _facts_of(document: Document) -> dict[str, object]:
    return {
        "document": document.id,
        "name": document.name,
        "state": document.state if document.percent in (0, 100) else f"{document.state}, {document.percent} %",
        "error": document.error_message,
        "code": document.error_code,
        "next": document.error_remedy,
        "note": document.note,
        "owner": document.owner,
        "tags": list(document.tags),
        "pages": document.pages,
        "kind": document.kind,
        "size": output.format_size(document.size) if document.size else None,
        "locked": "opens with a password only" if document.is_locked else None,
        "reading options": "" if document.settings == "{}" else document.settings,
        "source": document.source_key,
        "added (UTC)": output.whole_seconds(document.created_at),
        "updated (UTC)": output.whole_seconds(document.updated_at),
        "deleted at source": output.whole_seconds(document.gone_at),
        "sha256": document.content,
    }


def _show_pages(details: operations.DocumentDetails, recognition_by_page: Mapping[int, _PageRecognition]) -> None:
    pages = details.page_items[:_PAGES_SHOWN_MAX]
    headers: tuple[str, ...] = ("PAGE", "METHOD", "CONFIDENCE", "CHARACTERS")
    if recognition_by_page:
        headers += ("LANGUAGE", "READ BY")
    rows = []
    for page in pages:
        row: list[object] = [page.number, page.method, page.confidence and round(page.confidence), page.characters]
        if recognition_by_page:
            recognition = recognition_by_page.get(page.number, _PageRecognition())
            row += ["+".join(recognition.languages), _describe_engines(recognition)]
        rows.append(row)
    output.show_section(headers, rows)
    pages_left = len(details.page_items) - len(pages)
    if pages_left:
        output.note(f"and {counted(pages_left, 'page')} more: --json lists all")


def _describe_engines(recognition: _PageRecognition) -> str:
    """Return, for example, ``tesseract 5.5.4; 3 of 42 lines PP-OCRv6 small``."""
    # The versions of the libraries behind an engine are in parentheses.
    names = [re.sub(r" \(.*\)", "", name) for name in recognition.engines]
    lines = f"{len(recognition.second_pass_lines)} of {counted(recognition.lines_with_words, 'line')}"
    return "; ".join([*names[:1], *(f"{lines} {name}" for name in names[1:])])
