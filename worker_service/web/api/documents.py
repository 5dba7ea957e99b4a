"""Documents: list, details, pages, files, search and keyword counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from worker_service.base.errors import DocumentNotFound, Refused
from worker_service.base.sanitize import as_json
from worker_service.jobs.library import Document, Hit, Removed, Weight
from worker_service.services import documents as operations
from worker_service.services.database import Session
from worker_service.services.documents import ROLES, DocumentInWhole, DocumentPage, Keywords, TermCounts
from worker_service.services.page_images import WIDTHS, page_image
from worker_service.services.page_tables import tables_of
from worker_service.services.parse import read_document_selector
from worker_service.web.api.batches import require_batch
from worker_service.web.api.endpoint import ID, TEXT, YES, Answer, Call, Endpoint, Field, Param, endpoint
from worker_service.web.api.jobs import refuse_actions
from worker_service.web.api.jobs import seen as seen_job
from worker_service.web.api.selecting import BEFORE, DRY_RUN, LIMIT, OWNERS
from worker_service.web.database_sessions import opened
from worker_service.web.read_requests import ReadRequested, submit_reindex
from worker_service.web.streaming import lines_sent

_OWNER = Param("owner", "only in documents of this person")
_BATCH = Param("batch", "documents that this batch asked for", ID)
_SAID = {
    "read": Field(
        {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
        'how, by the names of the options of `pagemill reindex`: {"lang": ["deu"]}',
    ),
    "force": Field(YES, "read again what was read already"),
}
WISHED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": ["integer", "null"], "description": "of the job; null: nothing is to be done"},
        "existing": YES,
        "document_id": {"type": ["integer", "null"]},
        "decision": {"type": ["string", "null"]},
        "lacking": {"type": "array", "items": TEXT, "description": "what the machine lacks, and the job waits for"},
    },
    "required": ["id", "existing", "lacking"],
}


@endpoint(
    "GET",
    "/api/documents",
    "Documents, the newest first; on the first page also the jobs that failed before there was one.",
    query=(
        Param("id", "of a document", ID, is_many=True),
        Param("status", "not_indexed, queued, indexing, success or failed", is_many=True),
        OWNERS,
        Param("name", "a part of its name"),
        _BATCH,
        LIMIT,
        BEFORE,
    ),
    answer=DocumentPage,
    refusals=(404,),
)
def list_documents(call: Call) -> DocumentPage:
    said = call.query
    if "batch" in said:
        require_batch(call, said["batch"])
    selector = read_document_selector(
        said.get("id", ()),
        said.get("status", ()),
        said.get("owner", ()),
        said.get("name", ""),
        [said["batch"]] if "batch" in said else (),
    )
    return operations.list_documents(
        call.session, call.visitor.only(selector), limit=said.get("limit", 50), before_id=said.get("before")
    )


@endpoint(
    "GET",
    "/api/documents/{id}",
    "One document: how far it is, its pages and how each was read, and its files.",
    answer=DocumentInWhole,
    refusals=(404,),
)
def document(call: Call) -> DocumentInWhole:
    seen(call)
    return operations.document_in_whole(call.session, call.id)


@endpoint(
    "GET",
    "/api/documents/{id}/text",
    "Its text, page by page.",
    query=(Param("pages", "3, 3-5, 3- or -5"),),
    answer={
        "type": "object",
        "properties": {"document": ID, "name": TEXT, "items": {"type": "array", "items": {"type": "object"}}},
        "required": ["document", "name", "items"],
    },
    refusals=(404,),
)
def text(call: Call) -> Any:
    seen(call)
    document, found = operations.text(call.session, call.id, pages=call.query.get("pages"))
    items = [
        {"number": one.number, "method": one.method, "confidence": one.confidence, "text": one.text} for one in found
    ]
    return {"document": call.id, "name": document.name, "items": items}


@endpoint(
    "GET",
    "/api/documents/{id}/tables",
    "The tables on its pages: rows of cells, as text.",
    query=(Param("pages", "3, 3-5, 3- or -5"),),
    answer={
        "type": "object",
        "properties": {
            "document": ID,
            "name": TEXT,
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "page": ID,
                        "number": ID,
                        "box": {
                            "type": "array",
                            "items": {"type": "number"},
                            "description": "in points from the top left; empty where the text flows",
                        },
                        "rows": {"type": "array", "items": {"type": "array", "items": TEXT}},
                    },
                    "required": ["page", "number", "box", "rows"],
                },
            },
        },
        "required": ["document", "name", "items"],
    },
    refusals=(400, 404),
)
def tables(call: Call) -> Any:
    one = seen(call)
    return {
        "document": call.id,
        "name": one.name,
        "items": list(tables_of(call.session, call.id, pages=call.query.get("pages"))),
    }


_PAGE = {
    "type": "object",
    "properties": {
        "number": ID,
        "method": {**TEXT, "description": "layer, ocr, partial, rows, blank, too_large or unreadable"},
        "confidence": {"type": ["number", "null"]},
        "text": {"type": ["string", "null"]},
        "layout": {
            "description": "its size in points; lines of words, each x0, y0, x1, y1, confidence, text; of a page with "
            "a text of its own blocks, each x0, y0, x1, y1, and from where to where its words stand in the text"
        },
    },
    "required": ["number", "method", "confidence", "text", "layout"],
}


@endpoint(
    "GET",
    "/api/documents/{id}/pages/{number}",
    "One page: its text, how it was read, and where its words are.",
    answer=_PAGE,
    refusals=(404,),
)
def page(call: Call) -> Any:
    seen(call)
    number = call.path("number")
    found = operations.page(call.session, call.id, number)
    if found is None:
        raise DocumentNotFound(f"document {call.id} has no page {number} that can be read")
    return {
        "number": found.number,
        "method": found.method,
        "confidence": found.confidence,
        "text": found.text,
        "layout": parsed(found.layout),
    }


@endpoint(
    "GET",
    "/api/documents/{id}/pages/{number}/image",
    "One page as an image. It is drawn where nobody has looked at it lately, in a child.",
    query=(Param("width", "in pixels, 1200 unless given; the next of 600, 1200 and 1800", ID),),
    media="image/webp",
    statuses=(200, 304),
    refusals=(404,),
)
def image(call: Call) -> Response:
    seen(call)
    return drawn(call.request, call.session, call.id, call.path("number"), call.query.get("width", WIDTHS[1]))


def drawn(request: Request, session: Session, document_id: int, number: int, width: int) -> Response:
    found = page_image(session, request.app.state.drawer, document_id, number, width)
    # The name contains file, page and width. Reading the document again may change the file.
    tag = f'"{found.path.stem}"'
    headers = {"Cache-Control": "private, max-age=60", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(found.path.read_bytes(), media_type="image/webp", headers=headers)


def parsed(text: str | None) -> Any:
    import json

    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


@endpoint(
    "GET",
    "/api/documents/{id}/files/{form}",
    f"One of its files, whole or a range of it: {', '.join(ROLES)}.",
    media="application/octet-stream",
    statuses=(200, 206),
    refusals=(400, 404, 410, 416),
)
def file(call: Call) -> Response:
    seen(call)
    found, name = operations.file_of(call.session, call.id, call.path("form"))
    return FileResponse(found.path, media_type="application/octet-stream", filename=name)


@endpoint(
    "GET",
    "/api/jobs/{id}/files/{number}",
    "One of the files that a job has published, by the number that `/api/jobs/{id}` tells.",
    media="application/octet-stream",
    statuses=(200, 206),
    refusals=(404, 410, 416),
)
def file_of_job(call: Call) -> Response:
    seen_job(call)
    found = operations.file_of_job(call.session, call.id, call.path("number"))
    return FileResponse(found.path, media_type="application/octet-stream", filename=found.name)


@endpoint(
    "POST",
    "/api/documents/{id}/reindex",
    "Read it again: what has changed, or all of it with force.",
    body=_SAID,
    answer=WISHED,
    statuses=(202,),
    refusals=(400, 404, 409),
)
def reindex(call: Call) -> Answer:
    seen(call)
    words = call.body.get("read", {})
    refuse_actions(call.visitor, words)
    made = submit_reindex(call.session, call.id, words, is_forced=bool(call.body.get("force", False)))
    return wished(made, 202)


def wished(made: ReadRequested, status: int) -> Answer:
    one = made.enqueued
    told = {
        "id": one.job_id or None,
        "existing": one.existing,
        "document_id": one.document_id,
        "decision": one.decision,
        "lacking": list(made.lacking),
    }
    return Answer(told, status, {"Location": f"/api/jobs/{one.job_id}"} if one.job_id else {})


@endpoint(
    "DELETE",
    "/api/documents/{id}",
    "Remove it with its pages and files, for good. One that is being read is refused.",
    query=(DRY_RUN,),
    answer={"anyOf": [Removed, Weight]},
    refusals=(404, 409),
)
def delete_document(call: Call) -> Any:
    one = seen(call)
    if call.query.get("dry_run"):
        return operations.weigh(call.session, [one])
    removed, _ = operations.remove(call.session, [one])
    for reason in removed.refused.values():
        raise Refused(f"document {call.id}: {reason}")
    return removed


def seen(call: Call) -> Document:
    """Return the document in the path. Raise `DocumentNotFound` if the visitor may not see it."""
    found = call.session.library.document(call.id)
    if not call.visitor.may_see(found.owner):
        raise DocumentNotFound(f"there is no document {call.id}", "`pagemill documents` shows those that are there")
    return found


# ── Search and keywords ─────────────────────────────────────────────────────────────────────────────────────────────


@endpoint(
    "GET",
    "/api/search",
    'The best pages: words, "a phrase", a NEAR b, a OR b, a NOT b, begin*. Hits stand between [ and ].',
    query=(
        Param("q", "what to find", is_needed=True),
        _OWNER,
        Param("document", "only in this one", ID),
        _BATCH,
        Param("sure", "leave out pages recognised with less than 50 % confidence", YES),
        LIMIT,
    ),
    answer={
        "type": "object",
        "properties": {"items": Sequence[Hit], "is_partial": YES},
        "required": ["items", "is_partial"],
    },
    refusals=(400, 404),
)
def search(call: Call) -> Any:
    if (among := _among(call)) is None:
        return {"items": [], "is_partial": False}
    said = call.query
    found = operations.search(
        call.session,
        said["q"],
        document_id=said.get("document"),
        limit=said.get("limit", 20),
        is_sure=said.get("sure", False),
        **among,
    )
    return {"items": found.hits, "is_partial": found.is_partial}


def _among(call: Call) -> dict[str, Any] | None:
    """Return the search scope for this visitor; None if it is empty."""
    owner, batch_id = call.query.get("owner"), call.query.get("batch")
    if batch_id is not None:
        require_batch(call, batch_id)
    if call.visitor.owner is not None:
        if owner not in (None, call.visitor.owner):
            return None
        owner = call.visitor.owner
    return {"owner": owner, "batch_id": batch_id}


@endpoint(
    "GET",
    "/api/keywords",
    "How often each term stands in each document, zeros included; null where nothing of it can be read yet.",
    query=(
        Param("term", "a word, a phrase or begin*", is_many=True, is_needed=True),
        _OWNER,
        _BATCH,
        Param(
            "by", "document unless given; page: each page on which one stands", {**TEXT, "enum": ["document", "page"]}
        ),
    ),
    answer={
        "type": "object",
        "properties": {
            "terms": {"type": "array", "items": TEXT},
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"document_id": ID, "name": TEXT, "page": ID, "counts": {"type": ["object", "null"]}},
                    "required": ["document_id", "name", "counts"],
                },
            },
        },
        "required": ["terms", "items"],
    },
    refusals=(400, 404),
)
def keywords(call: Call) -> Any:
    terms = call.query["term"]
    if (among := _among(call)) is None:
        return {"terms": terms, "items": []}
    terms = operations.terms_of("\n".join(terms))
    found = counted_terms(call.request, terms, **among)
    is_by_page = call.query.get("by") == "page"
    rows = (row for part in found for row in (part.by_page if is_by_page else part.by_document))
    return lines_sent(_keywords_written(terms, rows), "application/json")


def counted_terms(
    request: Request, terms: Sequence[str], *, owner: str | None, batch_id: int | None
) -> Iterator[Keywords]:
    """Count terms while the client reads. Counts the first portion at once, so that errors precede the response."""

    def told() -> Iterator[Keywords]:
        with opened(request) as session:
            yield from operations.keywords(session, terms, owner=owner, batch_id=batch_id)

    found = told()
    return chain([next(found)], found)


def _keywords_written(terms: Sequence[str], rows: Iterable[TermCounts]) -> Iterator[str]:
    yield f'{{"terms": {_json(terms)}, "items": ['
    before = ""
    for row in rows:
        yield before + _json(row.as_object(terms))
        before = ", "
    yield "]}\n"


def _json(value: object) -> str:
    return as_json(value, indent=None, is_ascii=False)


ENDPOINTS: Sequence[Endpoint] = (
    list_documents, document, text, tables, page, image, file, file_of_job, reindex, delete_document, search, keywords,
)  # fmt: skip
routes = [one.route for one in ENDPOINTS]
