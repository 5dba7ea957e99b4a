"""The Documents page: pictures or a table, with filters, an order, and the list as CSV and Excel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import documents, tags
from worker_service.services.batches import newest_batches
from worker_service.services.csv_and_xlsx import DOCUMENT_COLUMNS, csv_lines, document_row, write_document_list
from worker_service.services.failure_sentences import explain_failure, explanation_of
from worker_service.services.parse import read_document_order
from worker_service.services.session import Session
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import query_of
from worker_service.web.resources.documents import DocumentsQuery, document_selector, list_documents
from worker_service.web.streaming import WORKBOOK, stream_lines, stream_made_file
from worker_service.web.views import in_rendering_thread, page_route, render
from worker_service.web.views.filter_links import FilterChip, FilterLink, filter_chip, same_page
from worker_service.web.views.template_filters import capitalised

_BATCHES_OFFERED = 12

STATES: Mapping[str, str] = {
    "success": "Read", "indexing": "Reading", "queued": "Waiting", "failed": "Couldn’t be read",
    "not_indexed": "Not read",
}  # fmt: skip
KINDS: Mapping[str, str] = {
    "pdf": "PDF", "image": "Scan or photo", "docx": "Word", "sheet": "Spreadsheet", "csv": "CSV", "pptx": "PowerPoint",
    "odt": "OpenDocument text", "odp": "OpenDocument slides", "mail": "Email", "html": "Web page", "epub": "E-book",
    "text": "Text", "zip": "Zip archive",
}  # fmt: skip
PERIODS: Mapping[str, str] = {
    "1d": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days", "365d": "Last 12 months",
}  # fmt: skip
ORDERS: Mapping[str, str] = {
    "date": "Newest first", "-date": "Oldest first", "name": "Name", "pages": "Most pages", "state": "State",
}  # fmt: skip


class DocumentsPageQuery(DocumentsQuery, frozen=True, kw_only=True):
    q: str = ""
    view: Literal["grid", "table"] = "grid"


class SortHeader(Struct, frozen=True):
    label: str
    url: str
    aria_sort: str


def documents_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, DocumentsPageQuery)
    if query.q.strip():
        return RedirectResponse(f"/search?{request.url.query}", 303)
    listing = list_documents(session, visitor, query)
    totals = session.library.totals(document_selector(session, visitor, query))
    all_documents = visitor.limit_selector(DocumentSelector())
    has_documents = bool(totals.documents or session.library.documents(all_documents, most=1))
    return render(
        request,
        "documents.html",
        title="Documents",
        query=query,
        listing=listing,
        totals=totals,
        has_documents=has_documents,
        chips=_chips(request, session, visitor, query),
        dates=_dates(request, query),
        orders=[FilterLink(label, _sort_link(request, sort), sort == query.sort) for sort, label in ORDERS.items()],
        order=ORDERS.get(query.sort, "Sorted"),
        columns={column: _header(request, query.sort, column) for column in ("name", "state", "pages", "date")},
        views={view: same_page(request, view=None if view == "grid" else view) for view in ("grid", "table")},
        first=same_page(request, before=None) if query.before else "",
        next=same_page(request, before=listing.next) if listing.next else "",
        state_words=state_words,
        why_failed=why_failed,
        explain_failure=explain_failure,
        filter_fields=_filter_fields(request),
        query_string=request.url.query,
    )


def state_words(document: Document) -> str:
    if document.status is IndexStatus.FAILED:
        explanation = explanation_of(document.error_code or "")
        if explanation is not None and explanation.helps == "password":
            return "Needs a password"
        return "New version couldn’t be read" if document.has_failed_anew else STATES["failed"]
    state = STATES[document.status]
    return f"{state}, {document.percent} %" if document.status is IndexStatus.INDEXING and document.pages else state


def why_failed(document: Document) -> str:
    if document.status is not IndexStatus.FAILED:
        return ""
    explanation = explanation_of(document.error_code or "")
    if explanation is None:
        return capitalised(document.error_text)
    return f"{explanation.happened} {explanation.advice or document.error_remedy or ''}".strip()


def _filter_fields(request: Request) -> list[tuple[str, str]]:
    filter_names = {*DocumentsQuery.__struct_fields__, "view"} - {"id", "limit", "before"}
    return [(name, value) for name, value in request.query_params.multi_items() if name in filter_names and value]


def _chips(request: Request, session: Session, visitor: Visitor, query: DocumentsPageQuery) -> Iterator[FilterChip]:
    owners = owners_of(session, visitor) if visitor.owner is None else ()
    if owners:
        yield filter_chip(request, "Owner", "owner", query.owner, {owner: owner for owner in owners})
    yield filter_chip(request, "State", "status", query.status, STATES)
    batches = newest_batches(session, visitor.owner, most=_BATCHES_OFFERED)
    if batches:
        titles = {str(batch.id): capitalised(batch.title) for batch in batches}
        yield filter_chip(request, "Batch", "batch", [] if query.batch is None else [str(query.batch)], titles)
    # Another tag is added to the chosen ones.
    tags_to_add = [tag for tag in tags.tag_names(session, visitor.owner) if tag not in query.tag]
    options = [FilterLink(tag, same_page(request, tag=[*query.tag, tag], before=None)) for tag in tags_to_add]
    tag_chip = filter_chip(request, "Tag", "tag", query.tag, {})
    yield replace(tag_chip, options=[*options, FilterLink("Tags and their actions…", "/tags")])
    yield filter_chip(request, "Kind", "kind", query.kind, KINDS)


def _dates(request: Request, query: DocumentsPageQuery) -> FilterChip:
    def path(since: str | None) -> str:
        return same_page(request, since=since, until=None, before=None)

    chosen = ""
    if query.since and query.until:
        chosen = f"{query.since} – {query.until}"
    elif query.until:
        chosen = f"before {query.until}"
    elif query.since:
        chosen = PERIODS.get(query.since, f"since {query.since}")
    options = [FilterLink(label, path(period), chosen == label) for period, label in PERIODS.items()]
    return FilterChip("Date", chosen, path(None), options)


def _sort_link(request: Request, order: str) -> str:
    return same_page(request, sort=None if order == "date" else order, before=None)


def _header(request: Request, sorted_by: str, column: str) -> SortHeader:
    is_sorted = sorted_by.removeprefix("-") == column
    direction = "descending" if read_document_order(sorted_by).is_descending else "ascending"
    label = "Added" if column == "date" else capitalised(column)
    next_order = f"-{column}" if sorted_by == column else column
    return SortHeader(label, _sort_link(request, next_order), direction if is_sorted else "")


def owners_of(session: Session, visitor: Visitor) -> Sequence[str]:
    if visitor.owner is not None:
        return [visitor.owner]
    return session.job_queries.names("owner", prefix="")


# ── The list as a file ──────────────────────────────────────────────────────────────────────────────────────────────


def list_csv(request: Request) -> Response:
    return stream_lines(
        csv_lines(DOCUMENT_COLUMNS, _rows(request)), "text/csv; charset=utf-8", file_name="documents.csv"
    )


@in_rendering_thread
def list_workbook(request: Request) -> Response:
    rows = _rows(request)
    return stream_made_file(lambda file: write_document_list(file, rows), WORKBOOK, file_name="documents.xlsx")


def _rows(request: Request) -> Iterator[tuple[object, ...]]:
    """Check the filters before the response, and read the rows during it."""
    query = query_of(request, DocumentsQuery)
    with session_of(request) as session:
        selector = document_selector(session, visitor_of(request), query)

    def rows() -> Iterator[tuple[object, ...]]:
        with session_of(request) as session:
            yield from map(document_row, documents.each_with_origin(session, selector))

    return rows()


routes = [
    page_route("/documents", documents_page),
    Route("/documents.csv", list_csv),
    Route("/documents.xlsx", list_workbook),
]
