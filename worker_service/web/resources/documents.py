"""Documents: lists, search, keyword counts and images, limited to the visitor's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from worker_service.base.errors import DocumentNotFound
from worker_service.jobs.library import Document, DocumentSelector, DocumentSort
from worker_service.jobs.search import SearchRequest, SearchResult
from worker_service.jobs.tags import read_tags
from worker_service.services import documents, keyword_counts
from worker_service.services.documents import DocumentList
from worker_service.services.keyword_counts import KeywordPart
from worker_service.services.page_images import WIDTH, page_image
from worker_service.services.parse import read_document_order, read_document_selector, read_past
from worker_service.services.search import find_documents
from worker_service.services.session import Session
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import NUMBER_MAX, Id, OwnersParameter, PageQuery, about
from worker_service.web.resources.batches import visible_batch
from worker_service.web.zip_archives import zip_documents

BatchParameter = Annotated[Id, about("Only documents of this batch.")]
TagsParameter = Annotated[tuple[str, ...], about("Only documents with this tag; with several, all of them.")]
OwnerParameter = Annotated[str, about("Only documents of this owner.")]


class DocumentsQuery(PageQuery, frozen=True, kw_only=True):
    id: Annotated[tuple[Id, ...], about("Id of a document.")] = ()
    status: Annotated[tuple[str, ...], about("not_indexed, queued, indexing, success or failed.")] = ()
    owner: OwnersParameter = ()
    name: Annotated[str, about("Part of the name.")] = ""
    batch: BatchParameter | None = None
    tag: TagsParameter = ()
    kind: Annotated[tuple[str, ...], about("Only documents of this kind, such as pdf or image.")] = ()
    since: Annotated[str, about("Only documents added since: 3d (ago), or a time.")] | None = None
    until: Annotated[str, about("Only documents added before: 3d (ago), or a time.")] | None = None
    sort: Annotated[
        str, about("date (newest first, the default), name, pages or state; -name and others for the reverse.")
    ] = "date"


class ImageQuery(Struct, frozen=True):
    width: Annotated[Id, about("In pixels, rounded up to 240, 600, 1200 or 1800; default 1200.")] = WIDTH


class SearchQuery(Struct, frozen=True, kw_only=True):
    q: Annotated[str, about("The query.")]
    owner: OwnerParameter | None = None
    document: Annotated[Id, about("Only this document.")] | None = None
    batch: BatchParameter | None = None
    kind: Annotated[str, about("Only documents of this kind, such as pdf or image.")] | None = None
    tag: TagsParameter = ()
    since: Annotated[str, about("Only documents added since: 3d (ago), or a time.")] | None = None
    until: Annotated[str, about("Only documents added before: 3d (ago), or a time.")] | None = None
    sure: Annotated[bool, about("Leave out pages recognised with less than 50 % confidence.")] = False
    all: Annotated[bool, about("Leave out pages without some of the words.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of documents; default 10.")] = 10
    skip: Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="The `next` of the previous answer.")] = 0
    pages: Annotated[int, Meta(ge=0, le=1000, description="Maximum number of snippets per document; default 3.")] = 3


def list_documents(
    session: Session, visitor: Visitor, query: DocumentsQuery, *, is_readable: bool = False
) -> DocumentList:
    selector = replace(document_selector(session, visitor, query), is_readable=is_readable)
    order = read_document_order(query.sort)
    if query.before is not None and order.sort is not DocumentSort.DATE:
        # The list continues at the place of this document, which would tell its name, pages or state.
        visible_document(session, visitor, query.before)
    return documents.list_documents(session, selector, limit=query.limit, before_id=query.before, order=order)


def document_selector(session: Session, visitor: Visitor, query: DocumentsQuery) -> DocumentSelector:
    batch_ids = () if query.batch is None else (visible_batch(session, visitor, query.batch).id,)
    selector = read_document_selector(
        now=session.clock(),
        ids=query.id,
        statuses=query.status,
        owners=query.owner,
        name=query.name,
        batch_ids=batch_ids,
        tags=query.tag,
        kinds=query.kind,
        since=query.since,
        until=query.until,
    )
    return visitor.limit_selector(selector)


def search(
    session: Session, visitor: Visitor, query: SearchQuery, *, marks: tuple[str, str] = ("[", "]")
) -> SearchResult:
    scope = search_scope(session, visitor, query.owner, query.batch)
    if scope is None:
        return SearchResult()
    request = SearchRequest(
        query.q,
        owner=scope.owner,
        batch_id=scope.batch_id,
        document_id=query.document,
        kind=query.kind,
        tags=read_tags(query.tag),
        since=read_past(query.since or None, now=session.clock()),
        until=read_past(query.until or None, now=session.clock()),
        is_sure=query.sure,
        needs_all=query.all,
        documents=query.limit,
        skip=query.skip,
        pages_each=query.pages,
        marks=marks,
    )
    return find_documents(session, request)


class SearchScope(Struct, frozen=True):
    owner: str | None
    batch_id: int | None


def search_scope(session: Session, visitor: Visitor, owner: str | None, batch_id: int | None) -> SearchScope | None:
    """Return None if the visitor may see none of this owner's documents."""
    if batch_id is not None:
        visible_batch(session, visitor, batch_id)
    if visitor.owner is not None and owner not in (None, visitor.owner):
        return None
    return SearchScope(visitor.owner or owner, batch_id)


def stream_keyword_counts(request: Request, terms: Sequence[str], scope: SearchScope) -> Iterator[KeywordPart]:
    """Count the first part at once, so that errors precede the response, the others while the client reads."""

    def counts() -> Iterator[KeywordPart]:
        with session_of(request) as session:
            yield from keyword_counts.count_keywords(session, terms, owner=scope.owner, batch_id=scope.batch_id)

    parts = counts()
    return chain([next(parts)], parts)


def visible_document(session: Session, visitor: Visitor, document_id: int) -> Document:
    document = session.library.document(document_id)
    if not visitor.may_see(document.owner):
        raise DocumentNotFound(f"there is no document {document_id}", "`pagemill documents` shows those that are there")
    return document


def requested_document(session: Session, request: Request) -> Document:
    return visible_document(session, visitor_of(request), request.path_params["document_id"])


def page_image_response(request: Request, session: Session, document_id: int, number: int, width: int) -> Response:
    visible_document(session, visitor_of(request), document_id)
    image = page_image(session, request.app.state.renderer, document_id, number, width)
    # The name contains file, page and width. Reading the document again may change the file.
    etag = f'"{image.path.stem}"'
    headers = {"Cache-Control": "private, max-age=60", "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(image.path.read_bytes(), media_type="image/webp", headers=headers)


def zip_response(
    request: Request, find: Callable[[Session], Iterable[Document]], kinds: Sequence[str], *, file_name: str
) -> Response:
    """Send a zip, made while the client reads."""

    def pieces() -> Iterator[bytes]:
        with session_of(request) as session:
            yield from zip_documents(session, find(session), kinds)

    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    return StreamingResponse(pieces(), media_type="application/zip", headers=headers)
