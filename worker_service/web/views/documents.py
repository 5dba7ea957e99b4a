"""The Documents page: list and search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.base.sanitize import harmless
from worker_service.jobs.library import Hit
from worker_service.services.database import Session
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.documents import (
    DocumentsQuery,
    SearchQuery,
    list_documents,
    search,
)
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of
from worker_service.web.views.forms import same_page
from worker_service.web.views.page_view import with_prefix
from worker_service.web.views.template_filters import command

_HITS_SHOWN = 40
_MARKS = ("\x02", "\x03")
STATES: Mapping[str, str] = {
    "": "All", "success": "Searchable", "indexing": "Reading", "queued": "Queued", "failed": "Failed",
    "not_indexed": "Not read",
}  # fmt: skip


class DocumentsPageQuery(DocumentsQuery, frozen=True, kw_only=True):
    """The list, or with `q` a search."""

    q: str = ""
    sure: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.owner or self.status or self.name or self.batch or self.sure)


class SearchHits(Struct, frozen=True):
    pages: Sequence[tuple[Hit, Markup]]
    documents: int
    is_partial: bool
    are_more: bool
    problem: str = ""


def documents_page(request: Request) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), DocumentsPageQuery)
    with session_of(request) as session:
        found = _search(session, visitor, query) if query.q.strip() else None
        listed = None if found else list_documents(session, visitor, query)
        is_asked = query.before or query.is_filtered
        return render(
            request,
            "documents.html",
            title="Documents",
            flash=flash_of(session, request),
            query=query,
            found=found,
            listed=listed,
            newest=same_page(request, before=None) if query.before else "",
            older=same_page(request, before=listed.next) if listed and listed.next else "",
            owners=owners_of(session, visitor),
            states=STATES,
            is_empty=listed is not None and not (is_asked or listed.items or listed.not_brought_in),
            command=_command(query),
        )


def _search(session: Session, visitor: Visitor, query: DocumentsPageQuery) -> SearchHits:
    wanted = SearchQuery(
        q=with_prefix(query.q.strip()),
        owner=next(iter(query.owner), None),
        batch=query.batch,
        sure=query.sure,
        limit=_HITS_SHOWN + 1,
    )
    try:
        found = search(session, visitor, wanted, marks=_MARKS)
    except BadInput as error:
        return SearchHits([], 0, is_partial=False, are_more=False, problem=str(error))
    hits = found.hits[:_HITS_SHOWN]
    return SearchHits(
        [(hit, marked(hit.snippet)) for hit in hits],
        len({hit.document_id for hit in hits}),
        found.is_partial,
        len(found.hits) > _HITS_SHOWN,
    )


def marked(snippet: str) -> Markup:
    begin, end = _MARKS
    # The snippet may start with a hit; then the first part is empty.
    first, *rest = " ".join(snippet.splitlines()).split(begin)
    parts = [escape(harmless(first))]
    for one in rest:
        hit, _, plain = one.partition(end)
        parts += [Markup("<mark>"), escape(harmless(hit)), Markup("</mark>"), escape(harmless(plain))]
    return Markup("").join(parts)


def owners_of(session: Session, visitor: Visitor) -> Sequence[str]:
    return [visitor.owner] if visitor.owner is not None else [one for one in session.reading.names("owner", "") if one]


def _command(query: DocumentsPageQuery) -> str:
    filters = [word for owner in query.owner for word in ("--owner", owner)]
    filters += ["--batch", str(query.batch)] if query.batch else []
    if query.q.strip():
        return command("search", with_prefix(query.q.strip()), *filters, *(["--sure"] if query.sure else []))
    status = [word for one in query.status for word in ("--status", one)]
    return command("documents", *status, *filters, *(["--name", query.name] if query.name else []))


routes = [Route("/documents", documents_page)]
