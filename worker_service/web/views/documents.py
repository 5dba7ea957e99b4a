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
from worker_service.web.parameters import read_known
from worker_service.web.resources.documents import DocumentsQuery, document_selector, list_documents
from worker_service.web.streaming import WORKBOOK, stream_lines, stream_made_file
from worker_service.web.views import in_rendering_thread, page, render
from worker_service.web.views.forms import same_page
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


class FilterChip(Struct, frozen=True):
    name: str
    chosen: str
    clear: str
    options: Sequence[tuple[str, None, str]]


class SortHeader(Struct, frozen=True):
    label: str
    url: str
    aria_sort: str


def documents_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), DocumentsPageQuery)
    if query.q.strip():
        return RedirectResponse(f"/search?{request.url.query}", 303)
    listing = list_documents(session, visitor, query)
    totals = session.library.totals(document_selector(session, visitor, query))
    has_any = bool(totals.documents)
    if not has_any:
        has_any = bool(session.library.documents(visitor.limit_selector(DocumentSelector()), most=1))
    return render(
        request,
        "documents.html",
        title="Documents",
        query=query,
        listing=listing,
        totals=totals,
        has_any=has_any,
        chips=_chips(request, session, visitor, query),
        dates=_dates(request, query),
        orders=[(label, word == query.sort, _sort_link(request, word)) for word, label in ORDERS.items()],
        order=ORDERS.get(query.sort, "Sorted"),
        columns={column: _header(request, query.sort, column) for column in ("name", "state", "pages", "date")},
        views={view: same_page(request, view=None if view == "grid" else view) for view in ("grid", "table")},
        first=same_page(request, before=None) if query.before else "",
        next=same_page(request, before=listing.next) if listing.next else "",
        state_words=state_words,
        why_failed=why_failed,
        explain_failure=explain_failure,
        filters=filters_of(request),
        address=request.url.query,
    )


def state_words(document: Document) -> str:
    if document.status is IndexStatus.FAILED:
        explanation = explanation_of(document.error_code or "")
        if explanation is not None and explanation.helps == "password":
            return "Needs a password"
        return "New version couldn’t be read" if document.has_failed_anew else STATES["failed"]
    words = STATES[document.status]
    return f"{words}, {document.percent} %" if document.status is IndexStatus.INDEXING and document.pages else words


def why_failed(document: Document) -> str:
    if document.status is not IndexStatus.FAILED:
        return ""
    explanation = explanation_of(document.error_code or "")
    if explanation is None:
        return capitalised(document.error_text)
    return f"{explanation.happened} {explanation.advice or document.error_remedy or ''}".strip()


def filters_of(request: Request) -> list[tuple[str, str]]:
    known = {*DocumentsQuery.__struct_fields__, "view"} - {"id", "limit", "before"}
    return [(name, word) for name, word in request.query_params.multi_items() if name in known and word]


def _chips(request: Request, session: Session, visitor: Visitor, query: DocumentsPageQuery) -> Iterator[FilterChip]:
    owners = owners_of(session, visitor) if visitor.owner is None else ()
    if owners:
        yield _chip(request, "Owner", "owner", query.owner, {owner: owner for owner in owners})
    yield _chip(request, "State", "status", query.status, STATES)
    batches = newest_batches(session, visitor.owner, most=_BATCHES_OFFERED)
    if batches:
        titles = {str(batch.id): capitalised(batch.title) for batch in batches}
        yield _chip(request, "Batch", "batch", [] if query.batch is None else [str(query.batch)], titles)
    tag_chip = _chip(request, "Tag", "tag", query.tag, {})
    # Another tag is added to the chosen ones.
    others = [tag for tag in tags.name_tags(session, visitor.owner) if tag not in query.tag]
    options = [(tag, None, same_page(request, tag=[*query.tag, tag], before=None)) for tag in others]
    yield replace(tag_chip, options=[*options, ("Tags and their actions…", None, "/tags")])
    yield _chip(request, "Kind", "kind", query.kind, KINDS)


def _chip(request: Request, name: str, parameter: str, chosen: Sequence[str], labels: Mapping[str, str]) -> FilterChip:
    options = [(label, None, same_page(request, **{parameter: value}, before=None)) for value, label in labels.items()]
    words = ", ".join(labels.get(value, value) for value in chosen)
    return FilterChip(name, words, same_page(request, **{parameter: None}, before=None), options)


def _dates(request: Request, query: DocumentsPageQuery) -> FilterChip:
    def link(since: str | None) -> str:
        return same_page(request, since=since, until=None, before=None)

    chosen = PERIODS.get(query.since or "", f"since {query.since}" if query.since else "")
    if query.until:
        chosen = f"{query.since} – {query.until}" if query.since else f"before {query.until}"
    return FilterChip("Date", chosen, link(None), [(label, None, link(period)) for period, label in PERIODS.items()])


def _sort_link(request: Request, order: str) -> str:
    return same_page(request, sort=None if order == "date" else order, before=None)


def _header(request: Request, sorted_by: str, column: str) -> SortHeader:
    is_sorted = sorted_by.removeprefix("-") == column
    direction = "descending" if read_document_order(sorted_by).is_descending else "ascending"
    label = "Added" if column == "date" else capitalised(column)
    next_order = f"-{column}" if sorted_by == column else column
    return SortHeader(label, _sort_link(request, next_order), direction if is_sorted else "")


def owners_of(session: Session, visitor: Visitor) -> Sequence[str]:
    return (
        [visitor.owner] if visitor.owner is not None else [one for one in session.job_queries.names("owner", "") if one]
    )


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
    query = read_known(request.query_params.multi_items(), DocumentsQuery)
    with session_of(request) as session:
        selector = document_selector(session, visitor_of(request), query)

    def rows() -> Iterator[tuple[object, ...]]:
        with session_of(request) as session:
            yield from map(document_row, documents.each_with_origin(session, selector))

    return rows()


routes = [
    page("/documents", documents_page),
    Route("/documents.csv", list_csv),
    Route("/documents.xlsx", list_workbook),
]
