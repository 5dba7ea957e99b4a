"""The Keywords page: counts of terms, one row per document and one column per term, zeros included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from urllib.parse import urlencode

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.jobs.library import DocumentSelector
from worker_service.services import documents as operations
from worker_service.services.spreadsheets import count_cells, count_headers, csv_lines, write_workbook
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.api.documents import counted_terms
from worker_service.web.database_sessions import opened
from worker_service.web.streaming import WORKBOOK, file_sent, lines_sent
from worker_service.web.views import page
from worker_service.web.views.forms import number

AT_ONCE = 25
TERMS_MOST = 12
"""Terms shown on the page; CSV and XLSX files have no such limit."""
_TERMS_BYTES_MOST = 20_000
_SHADES = 4


def keywords(request: Request) -> Response:
    visitor, query = visitor_of(request), request.query_params
    text, owner, batch, before = (
        _text(request),
        _owner(visitor, query.get("owner")),
        query.get("batch"),
        query.get("before"),
    )
    terms = operations.terms_of(text)
    shown = terms[:TERMS_MOST]
    chosen = DocumentSelector(
        owners=() if owner is None else (owner,),
        batch_ids=() if not batch else (number(batch, "batch") or 0,),
        is_readable=True,
    )
    with opened(request) as session:
        limit = AT_ONCE if shown else 1
        found = operations.list_documents(session, chosen, limit=limit, before_id=number(before, "before"))
        rows = operations.keywords_of(session, shown, found.items) if shown and found.items else []
        top = max((count for row in rows for count in row.counts if count), default=0)
        said = {"terms": text, "owner": query.get("owner") or "", "batch": batch or ""}
        return page(
            request,
            "keywords.html",
            title="Keywords",
            text=text,
            terms=shown,
            left_out=len(terms) - len(shown),
            rows=[(row, [(count, _shade(count, top)) for count in row.counts]) for row in rows],
            has_documents=bool(found.items),
            owner=query.get("owner") or "",
            batch=batch or "",
            next=found.next if shown else None,
            is_first=not before,
            address=urlencode(said),
        )


def counts_csv(request: Request) -> Response:
    terms, owner, batch_id = _asked(request)
    found = counted_terms(request, terms, owner=owner, batch_id=batch_id)
    lines = csv_lines(count_headers(terms), (count_cells(row) for part in found for row in part.by_document))
    return lines_sent(lines, "text/csv; charset=utf-8", file_name="keywords.csv")


async def counts_workbook(request: Request) -> Response:
    """Send the counts as XLSX. A workbook is built before it is sent, so it uses threads of its own."""
    return await to_thread.run_sync(_workbook, request, limiter=request.app.state.drawing)


def _workbook(request: Request) -> Response:
    terms, owner, batch_id = _asked(request)
    found = counted_terms(request, terms, owner=owner, batch_id=batch_id)
    with ExitStack() as until_sent:
        file = until_sent.enter_context(TemporaryFile())
        write_workbook(file, terms, found)
        until_sent.pop_all()
        return file_sent(file, WORKBOOK, file_name="keywords.xlsx")


def _asked(request: Request) -> tuple[Sequence[str], str | None, int | None]:
    terms, query = operations.terms_of(_text(request)), request.query_params
    if not terms:
        raise BadInput("enter at least one term, one per line")
    return terms, _owner(visitor_of(request), query.get("owner")), number(query.get("batch"), "batch")


def _text(request: Request) -> str:
    text = request.query_params.get("terms", "")
    if len(text) > _TERMS_BYTES_MOST:
        raise BadInput("too many terms for this form", "pagemill keywords terms.txt --xlsx counts.xlsx")
    return text


def _owner(visitor: Visitor, asked: str | None) -> str | None:
    return visitor.owner if visitor.owner is not None else asked or None


def _shade(count: int | None, top: int) -> int:
    """Return the heat-map class: 0 for no hits, `_SHADES` for the highest count on the page."""
    if not count:
        return 0
    return max(1, round(_SHADES * math.sqrt(count / top)))


routes = [
    Route("/keywords", keywords),
    Route("/keywords.csv", counts_csv),
    Route("/keywords.xlsx", counts_workbook),
]
