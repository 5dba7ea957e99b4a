"""The search page: documents found, each with its best passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from markupsafe import Markup, escape
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from job_handlers.file_kinds import FileKind
from worker_service.base.errors import BadInput
from worker_service.base.sanitize import harmless
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.search import FoundDocument, SearchResult
from worker_service.services import tags
from worker_service.services.page_images import WIDTHS
from worker_service.services.session import Session
from worker_service.web.access import visitor_of
from worker_service.web.parameters import query_of
from worker_service.web.resources.documents import SearchQuery, search
from worker_service.web.views import page_route, render
from worker_service.web.views.documents import PERIODS, owners_of
from worker_service.web.views.filter_links import FilterChip, filter_chip, same_page
from worker_service.web.views.template_filters import command

_MARKS = ("\x02", "\x03")  # control characters, which snippets hardly contain
_FURTHER_PAGES_SHOWN = 12


class SearchPageQuery(SearchQuery, frozen=True, kw_only=True):
    q: str = ""


def search_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, SearchPageQuery)

    def page_path(document: FoundDocument, number: int) -> str:
        return f"/documents/{document.document_id}?{urlencode({'page': number, 'q': query.q})}"

    result, problem = SearchResult(), ""
    if query.q.strip():
        try:
            result = search(session, visitor, query, marks=_MARKS)
        except BadInput as error:
            problem = str(error)
    ids = [document.document_id for document in result.items]
    documents = session.library.documents(DocumentSelector(ids=ids), most=len(ids)) if ids else []
    previous_skip = max(query.skip - query.limit, 0)
    return render(
        request,
        "search.html",
        title=f"{query.q} – search" if query.q else "Search",
        query=query,
        result=result,
        documents={document.id: document for document in documents},
        problem=problem,
        filters=_filters(request, query, owners_of(session, visitor), tags.tag_names(session, visitor.owner)),
        next_page=same_page(request, skip=result.next) if result.next else "",
        previous_page=same_page(request, skip=previous_skip or None) if query.skip else "",
        only_all=same_page(request, all="yes", skip=None),
        suggested=same_page(request, q=result.suggestion, skip=None),
        tag_page=lambda tag: same_page(request, tag=tag, skip=None),
        page_path=page_path,
        snippet_as_html=snippet_as_html,
        numbers_shown=_FURTHER_PAGES_SHOWN,
        width=WIDTHS[0],
        command_line=_command_line(query),
    )


def _filters(request: Request, query: SearchPageQuery, owners: Sequence[str], tags: Sequence[str]) -> list[FilterChip]:
    # Label, parameter, chosen values, and the values to offer with their labels.
    filters: Sequence[tuple[str, str, Sequence[object], Mapping[str, str]]] = (
        ("Owner", "owner", [query.owner], {owner: owner for owner in owners}),
        ("Tag", "tag", query.tag, {tag: tag for tag in tags}),
        ("Batch", "batch", [query.batch], {}),
        ("Kind", "kind", [query.kind], {kind.value: kind.value for kind in FileKind}),
        ("Added", "since", [query.since], PERIODS),
        ("Added before", "until", [query.until], {}),
        ("All words", "all", ["yes"] if query.all else [], {}),
        ("Only well recognised pages", "sure", ["yes"] if query.sure else [], {}),
    )
    chips = []
    for label, parameter, values, labels in filters:
        chosen = [str(value) for value in values if value]
        if chosen or len(labels) > 1:
            chips.append(filter_chip(request, label, parameter, chosen, labels))
    return chips


def snippet_as_html(snippet: str) -> Markup:
    begin, end = _MARKS
    before_first_match, *pieces = " ".join(snippet.splitlines()).split(begin)
    html = escape(harmless(before_first_match))
    for piece in pieces:
        match, _, text_after = piece.partition(end)
        html += Markup("<mark>{match}</mark>{text}").format(match=harmless(match), text=harmless(text_after))
    return html


def _command_line(query: SearchPageQuery) -> str:
    values = asdict(query)
    options: list[object] = []
    for name in ("owner", "batch", "kind", "since", "until"):
        options += [f"--{name}", values[name]] if values[name] else []
    for tag in query.tag:
        options += ["--tag", tag]
    options += [f"--{name}" for name in ("sure", "all") if values[name]]
    return command("search", query.q.strip(), *options)


routes = [page_route("/search", search_page)]
