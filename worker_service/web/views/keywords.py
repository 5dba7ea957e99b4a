"""The Keywords page: one row per document, one column per term."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.services import keyword_counts
from worker_service.services.csv_and_xlsx import csv_lines
from worker_service.services.keyword_counts import KeywordPart, TermCounts, count_cells, count_headers, write_workbook
from worker_service.services.session import Session
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import query_of
from worker_service.web.resources.documents import DocumentsQuery, list_documents, search_scope, stream_keyword_counts
from worker_service.web.streaming import WORKBOOK, stream_lines, stream_made_file
from worker_service.web.views import in_rendering_thread, page_route, render

ROWS = 25
COLUMNS_MAX = 12
"""Terms shown on the page; CSV and XLSX have all."""
_TERMS_CHARACTERS_MAX = 20_000
_SHADES = 4


class KeywordsPageQuery(DocumentsQuery, frozen=True, kw_only=True):
    terms: str = ""
    limit: int = ROWS  # ignored: the page has a fixed length

    @property
    def term_list(self) -> Sequence[str]:
        if len(self.terms) > _TERMS_CHARACTERS_MAX:
            raise BadInput("too many terms for this form", "pagemill keywords terms.txt --xlsx counts.xlsx")
        return keyword_counts.parse_terms(self.terms)

    @property
    def single_owner(self) -> str | None:
        return self.owner[0] if self.owner else None


def keywords(request: Request, session: Session) -> Response:
    query = query_of(request, KeywordsPageQuery)
    terms = query.term_list
    shown_terms = terms[:COLUMNS_MAX]
    # Without terms, the list only tells whether there are documents.
    query = replace(query, limit=ROWS if shown_terms else 1)
    listing = list_documents(session, visitor_of(request), query, is_readable=True)
    rows: Sequence[TermCounts] = ()
    if shown_terms and listing.items:
        rows = keyword_counts.count_keywords_in(session, shown_terms, listing.items)
    highest = max((count for row in rows for count in row.counts if count), default=0)
    parameters = {"terms": query.terms, "owner": query.single_owner or "", "batch": query.batch or ""}
    return render(
        request,
        "keywords.html",
        title="Keywords",
        query=query,
        terms=shown_terms,
        left_out=len(terms) - len(shown_terms),
        rows=[(row, [(count, _shade(count, highest)) for count in row.counts]) for row in rows],
        has_documents=bool(listing.items),
        next=listing.next if shown_terms else None,
        query_string=urlencode(parameters),
    )


def counts_csv(request: Request) -> Response:
    terms, parts = _all_counts(request)
    cells = (count_cells(row) for part in parts for row in part.by_document)
    lines = csv_lines(count_headers(terms), cells)
    return stream_lines(lines, "text/csv; charset=utf-8", file_name="keywords.csv")


@in_rendering_thread
def counts_workbook(request: Request) -> Response:
    terms, parts = _all_counts(request)
    return stream_made_file(lambda file: write_workbook(file, terms, parts), WORKBOOK, file_name="keywords.xlsx")


def _all_counts(request: Request) -> tuple[Sequence[str], Iterator[KeywordPart]]:
    query = query_of(request, KeywordsPageQuery)
    if not query.term_list:
        raise BadInput("enter at least one term, one per line")
    with session_of(request) as session:
        scope = search_scope(session, visitor_of(request), query.single_owner, query.batch)
    parts = iter(()) if scope is None else stream_keyword_counts(request, query.term_list, scope)
    return query.term_list, parts


def _shade(count: int | None, highest: int) -> int:
    """Return the heat-map class: 0 without occurrences, `_SHADES` for the highest count."""
    if not count:
        return 0
    return max(1, round(_SHADES * math.sqrt(count / highest)))


routes = [
    page_route("/keywords", keywords),
    Route("/keywords.csv", counts_csv),
    Route("/keywords.xlsx", counts_workbook),
]
