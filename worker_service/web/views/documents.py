"""The Documents page: the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from worker_service.services.database import Session
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.documents import (
    DocumentsQuery,
    list_documents,
)
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of
from worker_service.web.views.forms import same_page
from worker_service.web.views.template_filters import command

STATES: Mapping[str, str] = {
    "": "All", "success": "Searchable", "indexing": "Reading", "queued": "Queued", "failed": "Failed",
    "not_indexed": "Not read",
}  # fmt: skip


class DocumentsPageQuery(DocumentsQuery, frozen=True, kw_only=True):
    q: str = ""
    """A search, which has a page of its own."""
    sure: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.owner or self.status or self.name or self.batch)


def documents_page(request: Request) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), DocumentsPageQuery)
    if query.q.strip():
        return RedirectResponse(f"/search?{request.url.query}", 303)
    with session_of(request) as session:
        listed = list_documents(session, visitor, query)
        is_asked = query.before or query.is_filtered
        return render(
            request,
            "documents.html",
            title="Documents",
            flash=flash_of(session, request),
            query=query,
            found=None,
            listed=listed,
            newest=same_page(request, before=None) if query.before else "",
            older=same_page(request, before=listed.next) if listed.next else "",
            owners=owners_of(session, visitor),
            states=STATES,
            is_empty=not (is_asked or listed.items or listed.not_brought_in),
            command=_command(query),
        )


def owners_of(session: Session, visitor: Visitor) -> Sequence[str]:
    return [visitor.owner] if visitor.owner is not None else [one for one in session.reading.names("owner", "") if one]


def _command(query: DocumentsPageQuery) -> str:
    filters = [word for owner in query.owner for word in ("--owner", owner)]
    filters += ["--batch", str(query.batch)] if query.batch else []
    status = [word for one in query.status for word in ("--status", one)]
    return command("documents", *status, *filters, *(["--name", query.name] if query.name else []))


routes = [Route("/documents", documents_page)]
