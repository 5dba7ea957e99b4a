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
from worker_service.services.csv_and_xlsx import LIST_COLUMNS, csv_lines, list_row, write_list
from worker_service.services.database import Session
from worker_service.services.failure_sentences import explain_failure, explanation_of
from worker_service.services.parse import read_document_order
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.documents import DocumentsQuery, list_documents, selected
from worker_service.web.streaming import WORKBOOK, stream_lines, stream_written
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
    listed = list_documents(session, visitor, query)
    selector = selected(session, visitor, query)
    totals = session.library.totals(selector)
    return render(
        request,
        "documents.html",
        title="Documents",
        query=query,
        listed=listed,
        totals=totals,
        has_any=bool(totals.documents or session.library.documents(visitor.limit_selector(DocumentSelector()), most=1)),
        chips=_chips(request, session, visitor, query),
        dates=_dates(request, query),
        orders=[(label, word == query.sort, _sorted(request, word)) for word, label in ORDERS.items()],
        order=ORDERS.get(query.sort, "Sorted"),
        columns={column: _header(request, query.sort, column) for column in ("name", "state", "pages", "date")},
        views={view: same_page(request, view=None if view == "grid" else view) for view in ("grid", "table")},
        first=same_page(request, before=None) if query.before else "",
        next=same_page(request, before=listed.next) if listed.next else "",
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


def filters_of(request: Request, *without: str) -> list[tuple[str, str]]:
    known = {*DocumentsQuery.__struct_fields__, "view"} - {"id", "limit", "before", *without}
    return [(name, word) for name, word in request.query_params.multi_items() if name in known and word]


def _chips(request: Request, session: Session, visitor: Visitor, query: DocumentsPageQuery) -> Iterator[FilterChip]:
    def chip(name: str, parameter: str, chosen: str, choices: Mapping[str, object]) -> FilterChip:
        def address(value: object) -> str:
            return same_page(request, **{parameter: value}, before=None)

        return FilterChip(
            name, chosen, address(None), [(word, None, address(value)) for word, value in choices.items()]
        )

    def words(labels: Mapping[str, str], chosen: Sequence[str]) -> str:
        return ", ".join(labels.get(one, one) for one in chosen)

    if visitor.owner is None and (owners := owners_of(session, visitor)):
        yield chip("Owner", "owner", ", ".join(query.owner), {one: one for one in owners})
    yield chip("State", "status", words(STATES, query.status), {label: word for word, label in STATES.items()})
    found = newest_batches(session, visitor.owner, most=_BATCHES_OFFERED)
    if batches := {str(one.id): capitalised(one.title) for one in found}:
        chosen = [] if query.batch is None else [str(query.batch)]
        yield chip("Batch", "batch", words(batches, chosen), {label: number for number, label in batches.items()})
    # Another tag is added to the chosen ones.
    others = {one: [*query.tag, one] for one in tags.name_tags(session, visitor.owner) if one not in query.tag}
    tag_chip = chip("Tag", "tag", ", ".join(query.tag), others)
    yield replace(tag_chip, options=[*tag_chip.options, ("Tags and their actions…", None, "/tags")])
    yield chip("Kind", "kind", words(KINDS, query.kind), {label: word for word, label in KINDS.items()})


def _dates(request: Request, query: DocumentsPageQuery) -> FilterChip:
    def address(since: str | None) -> str:
        return same_page(request, since=since, until=None, before=None)

    chosen = PERIODS.get(query.since or "", f"since {query.since}" if query.since else "")
    if query.until:
        chosen = f"{query.since} – {query.until}" if query.since else f"before {query.until}"
    return FilterChip("Date", chosen, address(None), [(label, None, address(word)) for word, label in PERIODS.items()])


def _sorted(request: Request, order: str) -> str:
    return same_page(request, sort=None if order == "date" else order, before=None)


def _header(request: Request, sorted_by: str, column: str) -> SortHeader:
    is_sorted = sorted_by.removeprefix("-") == column
    direction = "descending" if read_document_order(sorted_by).is_descending else "ascending"
    label = {"date": "Added"}.get(column, capitalised(column))
    other = f"-{column}" if sorted_by == column else column
    return SortHeader(label, _sorted(request, other), direction if is_sorted else "")


def owners_of(session: Session, visitor: Visitor) -> Sequence[str]:
    return [visitor.owner] if visitor.owner is not None else [one for one in session.reading.names("owner", "") if one]


# ── The list as a file ──────────────────────────────────────────────────────────────────────────────────────────────


def list_csv(request: Request) -> Response:
    return stream_lines(csv_lines(LIST_COLUMNS, _rows(request)), "text/csv; charset=utf-8", file_name="documents.csv")


@in_rendering_thread
def list_workbook(request: Request) -> Response:
    rows = _rows(request)
    return stream_written(lambda file: write_list(file, rows), WORKBOOK, file_name="documents.xlsx")


def _rows(request: Request) -> Iterator[tuple[object, ...]]:
    query = read_known(request.query_params.multi_items(), DocumentsQuery)
    with session_of(request) as session:
        selector = selected(session, visitor_of(request), query)

    def rows() -> Iterator[tuple[object, ...]]:
        with session_of(request) as session:
            yield from map(list_row, documents.each_with_origin(session, selector))

    return rows()


routes = [
    page("/documents", documents_page),
    Route("/documents.csv", list_csv),
    Route("/documents.xlsx", list_workbook),
]
