"""How often terms stand in documents: a row for each document, a column for each term, zeros included."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from worker_service.errors import BadInput
from worker_service.jobs.library import DocumentSelector
from worker_service.operations import documents as operations
from worker_service.operations.tables import count_cells, count_headers, csv_lines, write_workbook
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.pages import page
from worker_service.web.pages.asking import number
from worker_service.web.sessions import opened

AT_ONCE = 25
TERMS_MOST = 12
"""On the page; a file may have as many as it likes."""
_TERMS_BYTES_MOST = 20_000
_SHADES = 4
_WORKBOOK = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


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
    def written() -> Iterator[str]:
        with opened(request) as session:
            found = operations.keywords(session, text, owner=owner, batch_id=batch_id)
            yield from csv_lines(count_headers(found.terms), map(count_cells, found.by_document))

    text, owner, batch_id = _asked(request)
    name = {"Content-Disposition": 'attachment; filename="keywords.csv"'}
    return StreamingResponse(written(), media_type="text/csv; charset=utf-8", headers=name)


def counts_workbook(request: Request) -> Response:
    text, owner, batch_id = _asked(request)
    with opened(request) as session:
        found = operations.keywords(session, text, owner=owner, batch_id=batch_id)
    file = io.BytesIO()
    write_workbook(file, found)
    name = {"Content-Disposition": 'attachment; filename="keywords.xlsx"'}
    return Response(file.getvalue(), media_type=_WORKBOOK, headers=name)


def _asked(request: Request) -> tuple[str, str | None, int | None]:
    text, query = _text(request), request.query_params
    if not operations.terms_of(text):
        raise BadInput("write the terms first, one a line")
    return text, _owner(visitor_of(request), query.get("owner")), number(query.get("batch"), "batch")


def _text(request: Request) -> str:
    text = request.query_params.get("terms", "")
    if len(text) > _TERMS_BYTES_MOST:
        raise BadInput("so many terms are for a file: pagemill keywords terms.txt --xlsx counts.xlsx")
    return text


def _owner(visitor: Visitor, asked: str | None) -> str | None:
    return visitor.owner if visitor.owner is not None else asked or None


def _shade(count: int | None, top: int) -> int:
    """0: it does not stand there; the most: as often as anywhere on this page."""
    if not count:
        return 0
    return max(1, round(_SHADES * math.sqrt(count / top)))


routes = [
    Route("/keywords", keywords),
    Route("/keywords.csv", counts_csv),
    Route("/keywords.xlsx", counts_workbook),
]
