"""Documents: list, details, pages, files, search and keyword counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, field
from starlette.responses import FileResponse, Response

from worker_service.base.errors import DocumentNotFound, Refused
from worker_service.base.sanitize import as_json
from worker_service.jobs.library import Document, Removed, Weight
from worker_service.jobs.page_structure import TableOnPage
from worker_service.jobs.search import SearchResult
from worker_service.services import document_removal, documents, exports, keyword_counts, passwords
from worker_service.services.document_formats import FORMATS
from worker_service.services.documents import DocumentDetails, DocumentList
from worker_service.services.keyword_counts import TermCounts
from worker_service.services.page_tables import tables_of
from worker_service.web.api.endpoint import ApiRequest, ApiResponse, endpoint
from worker_service.web.api.passage_feed import PassageChanges, changed_passages
from worker_service.web.parameters import DryRunQuery, Given, Id, about
from worker_service.web.resources import documents as resource
from worker_service.web.resources.documents import (
    BatchParameter,
    DocumentsQuery,
    ImageQuery,
    OwnerParameter,
    SearchQuery,
    page_image_response,
    search_scope,
    stream_keyword_counts,
    visible_document,
    zip_response,
)
from worker_service.web.resources.jobs import refuse_server_files, visible_job
from worker_service.web.resources.read_requests import ReadRequest, submit_reindex, unlock_document
from worker_service.web.streaming import stream_lines, stream_made_file

_FILE_RESPONSES: dict[str, Any] = {"media": "application/octet-stream", "statuses": (200, 206), "refusals": (410, 416)}


class PagesQuery(Struct, frozen=True):
    pages: Annotated[str, about("3, 3-5, 3- or -5.")] | None = None


class KeywordsQuery(Struct, frozen=True, kw_only=True):
    term: Annotated[tuple[str, ...], about("A word, a phrase, or the beginning of a word followed by *.")]
    owner: OwnerParameter | None = None
    batch: BatchParameter | None = None
    by: Annotated[
        Literal["document", "page"], about("page: count per page, only pages with matches. Default document.")
    ] = "document"


class PassagesQuery(Struct, frozen=True):
    since: Annotated[str, about("The `next` of an earlier answer; leave it out to begin.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of documents; default 20.")] = 20


class ReindexBody(Struct, frozen=True, forbid_unknown_fields=True):
    read: Annotated[dict[str, list[str]], about('Reading options, as for `pagemill reindex`: {"lang": ["deu"]}.')] = (
        field(default_factory=dict)
    )
    force: Annotated[bool, about("Read again what was read already.")] = False


class PasswordBody(Struct, frozen=True, forbid_unknown_fields=True):
    password: str
    remember: Annotated[bool, about("Keep it, to show the pages and to read the document again.")] = False


class TextOfPage(Struct, frozen=True):
    number: int
    method: Annotated[str, about("layer, ocr, partial, rows, blank, too_large or unreadable.")]
    confidence: float | None
    text: str | None


class PageWithLayout(TextOfPage, frozen=True):
    layout: Annotated[
        Any,
        about(
            "Page size in points. Recognised pages: lines of words, each x0, y0, x1, y1, confidence, text. Pages with "
            "a text layer: blocks, each x0, y0, x1, y1, the range of its words in the text, role, level, height of its "
            "font, and style (1 bold, 2 italic, 4 monospaced, 8 stated by the file)."
        ),
    ]


class DocumentText(Struct, frozen=True):
    document: Id
    name: str
    items: Sequence[TextOfPage]


class DocumentTables(Struct, frozen=True):
    document: Id
    name: str
    items: Sequence[TableOnPage]


class KeywordRow(Struct, frozen=True):
    document_id: Id
    name: str
    counts: Annotated[dict[str, int] | None, about("Occurrences by term; null: the document has no text yet.")]
    page: Given[Id] = UNSET


class KeywordTable(Struct, frozen=True):
    terms: Sequence[str]
    items: Sequence[KeywordRow]


@endpoint("GET", "/api/documents", refusals=(404,))
def list_documents(call: ApiRequest, query: DocumentsQuery) -> DocumentList:
    """List documents, newest first; the first page also has the jobs that failed before there was a document."""
    return resource.list_documents(call.session, call.visitor, query)


@endpoint("GET", "/api/documents/{id}")
def document(call: ApiRequest) -> DocumentDetails:
    """Return one document: its progress, its pages and how each was read, and its files."""
    _visible_document(call)
    return documents.get_document_details(call.session, call.id)


@endpoint("GET", "/api/documents/{id}/text")
def text(call: ApiRequest, query: PagesQuery) -> DocumentText:
    """Return the text of a document, page by page."""
    _visible_document(call)
    document, pages = documents.document_text(call.session, call.id, pages=query.pages)
    texts = [TextOfPage(page.number, page.method, page.confidence, page.text) for page in pages]
    return DocumentText(call.id, document.name, texts)


@endpoint("GET", "/api/documents/{id}/tables")
def tables(call: ApiRequest, query: PagesQuery) -> DocumentTables:
    """Return the tables of a document: rows of cells, as text."""
    name = _visible_document(call).name
    return DocumentTables(call.id, name, [*tables_of(call.session, call.id, pages=query.pages)])


@endpoint("GET", "/api/documents/{id}/pages/{number}")
def page(call: ApiRequest) -> PageWithLayout:
    """Return one page: its text, how it was read, and the positions of its words."""
    _visible_document(call)
    number = call.path("number")
    page_result = next(iter(call.session.library.page_texts(call.id, number, number, with_layout=True)), None)
    if page_result is None:
        raise DocumentNotFound(f"document {call.id} has no page {number} that can be read")
    layout = None if page_result.layout is None else json.loads(page_result.layout)
    return PageWithLayout(page_result.number, page_result.method, page_result.confidence, page_result.text, layout)


@endpoint("GET", "/api/documents/{id}/pages/{number}/image", media="image/webp", statuses=(200, 304))
def image(call: ApiRequest, query: ImageQuery) -> Response:
    """Return one page as an image, rendered in a sandboxed process if it is not cached."""
    return page_image_response(call.request, call.session, call.id, call.path("number"), query.width)


@endpoint("GET", "/api/documents/{id}/files/{form}", **{**_FILE_RESPONSES, "media": "*/*"})
def file(call: ApiRequest) -> Response:
    """Send one file of a document, whole or a range; formats made from its text (md, …) whole only."""
    document, form = _visible_document(call), call.path("form")
    source = exports.find_source(call.session, document, form)
    if isinstance(source.content, Path):
        exports.require_in_workspace(call.session, source.content, f"pagemill reindex {call.id} --force")
        return FileResponse(source.content, media_type="application/octet-stream", filename=source.name)
    pieces = source.content()
    return stream_made_file(lambda file: file.writelines(pieces), FORMATS[form].media_type, file_name=source.name)


@endpoint("GET", "/api/passages")
def passages(call: ApiRequest, query: PassagesQuery) -> PassageChanges:
    """Return the documents that were published or removed since a cursor, each with all of its passages.

    The passages of a document replace the ones of its earlier generations. Store `next` together with them.
    """
    return changed_passages(call.session, query.since, owner=call.visitor.owner, most=query.limit)


@endpoint("GET", "/api/exports/{form}", media="application/zip", refusals=(404,))
def zip_of_files(call: ApiRequest, query: DocumentsQuery) -> Response:
    """Send a zip with one file of each document of a list: `limit` of them at most, `before` for more."""
    form = call.path("form")
    chosen = resource.list_documents(call.session, call.visitor, query, is_readable=True).items
    return zip_response(call.request, lambda _: chosen, [form], file_name=f"documents-{form}.zip")


@endpoint("GET", "/api/jobs/{id}/files/{number}", **_FILE_RESPONSES)
def file_of_job(call: ApiRequest) -> Response:
    """Send one file that a job has published. `/api/jobs/{id}` lists their ids."""
    visible_job(call.session, call.visitor, call.id)
    published_file = exports.find_job_file(call.session, call.id, call.path("number"))
    return FileResponse(published_file.path, media_type="application/octet-stream", filename=published_file.name)


@endpoint("POST", "/api/documents/{id}/reindex", statuses=(202,))
def reindex(call: ApiRequest, body: ReindexBody) -> ApiResponse[ReadRequest]:
    """Read a document again if its file or the options have changed; with force, in any case."""
    _visible_document(call)
    refuse_server_files(call.visitor, body.read)
    requested = submit_reindex(call.session, call.id, body.read, is_forced=body.force)
    return ApiResponse(requested, 202, f"/api/jobs/{requested.id}" if requested.id else None)


@endpoint("PUT", "/api/documents/{id}/password", statuses=(202,))
def put_password(call: ApiRequest, body: PasswordBody) -> ApiResponse[ReadRequest]:
    """Open a locked PDF: read it with this password, which is then deleted unless it is to be remembered."""
    renderer = call.request.app.state.renderer
    requested = unlock_document(call.session, renderer, _visible_document(call), body.password, is_kept=body.remember)
    return ApiResponse(requested, 202)


@endpoint("DELETE", "/api/documents/{id}/password")
def delete_password(call: ApiRequest) -> Document:
    """Forget the password of a document. Its text stays readable."""
    document = _visible_document(call)
    passwords.forget(call.session.settings.workspace, document)
    return document


@endpoint("DELETE", "/api/documents/{id}")
def delete_document(call: ApiRequest, query: DryRunQuery) -> Removed | Weight:
    """Remove a document that is not being read, with its pages and files. This cannot be undone."""
    document = _visible_document(call)
    if query.dry_run:
        return document_removal.weigh_removal(call.session, [document])
    removed, _ = document_removal.remove_documents(call.session, [document])
    if removed.refused:
        [reason] = removed.refused.values()
        raise Refused(f"document {call.id}: {reason}")
    return removed


def _visible_document(call: ApiRequest) -> Document:
    return visible_document(call.session, call.visitor, call.id)


# ── Search and keywords ─────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("GET", "/api/search", refusals=(404,))
def search(call: ApiRequest, query: SearchQuery) -> SearchResult:
    """Find documents by the text of their pages: words, "a phrase", a NEAR b, a OR b, a NOT b, begin*.

    Documents with all words in name and tags (`is_named`) or on one page come first (`has_all_words`), then those with
    some of them, each with its best pages. Snippets mark matches with [ and ]. Documents with the same content are
    listed once, with their `copies`.
    """
    return resource.search(call.session, call.visitor, query)


@endpoint("GET", "/api/keywords", answer=KeywordTable, refusals=(404,))
def keywords(call: ApiRequest, query: KeywordsQuery) -> Any:
    """Count how often each term occurs in each document, zeros included; null if the document has no text yet."""
    scope = search_scope(call.session, call.visitor, query.owner, query.batch)
    if scope is None:
        return {"terms": query.term, "items": []}
    terms = keyword_counts.parse_terms("\n".join(query.term))
    parts = stream_keyword_counts(call.request, terms, scope)
    rows = (row for part in parts for row in (part.by_page if query.by == "page" else part.by_document))
    return stream_lines(_keyword_json(terms, rows), "application/json")


def _keyword_json(terms: Sequence[str], rows: Iterable[TermCounts]) -> Iterator[str]:
    yield f'{{"terms": {_json(terms)}, "items": ['
    separator = ""
    for row in rows:
        yield separator + _json(row.as_object(terms))
        separator = ", "
    yield "]}\n"


def _json(value: object) -> str:
    return as_json(value, indent=None, is_ascii=False)
