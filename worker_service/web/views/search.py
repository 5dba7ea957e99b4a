"""The search page: documents found, each with its best passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from markupsafe import Markup, escape
from msgspec import Struct
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
from worker_service.web.parameters import read_known
from worker_service.web.resources.documents import SearchQuery, search
from worker_service.web.views import page, render
from worker_service.web.views.documents import PERIODS, FilterChip, owners_of
from worker_service.web.views.forms import same_page
from worker_service.web.views.template_filters import command

_MARKS = ("\x02", "\x03")
_NUMBERS_SHOWN = 12


class SearchPageQuery(SearchQuery, frozen=True, kw_only=True):
    q: str = ""


class SearchLink(Struct, frozen=True):
    query: str

    def page(self, document: FoundDocument, number: int) -> str:
        return f"/documents/{document.document_id}?{urlencode({'page': number, 'q': self.query})}"


def search_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), SearchPageQuery)
    found, problem = SearchResult(), ""
    if query.q.strip():
        try:
            found = search(session, visitor, query, marks=_MARKS)
        except BadInput as error:
            problem = str(error)
    ids = [one.document_id for one in found.items]
    documents = session.library.documents(DocumentSelector(ids=ids), most=len(ids)) if ids else []
    previous_skip = max(query.skip - query.limit, 0)
    return render(
        request,
        "search.html",
        title=f"{query.q} – search" if query.q else "Search",
        query=query,
        found=found,
        documents={document.id: document for document in documents},
        problem=problem,
        filters=_filters(request, query, owners_of(session, visitor), tags.name_tags(session, visitor.owner)),
        next_page=same_page(request, skip=found.next) if found.next else "",
        previous_page=same_page(request, skip=previous_skip or None) if query.skip else "",
        only_all=same_page(request, all="yes", skip=None),
        suggested=same_page(request, q=found.suggestion, skip=None),
        tag_page=lambda tag: same_page(request, tag=tag, skip=None),
        link=SearchLink(query.q),
        marked=marked,
        numbers_shown=_NUMBERS_SHOWN,
        width=WIDTHS[0],
        command_line=_command(query),
    )


def _filters(request: Request, query: SearchPageQuery, owners: Sequence[str], tags: Sequence[str]) -> list[FilterChip]:
    # Parameter, label, value now, and the choices with their labels.
    filters: Sequence[tuple[str, str, object, Mapping[str, str]]] = (
        ("owner", "Owner", query.owner, {owner: owner for owner in owners}),
        ("tag", "Tag", ", ".join(query.tag), {tag: tag for tag in tags}),
        ("batch", "Batch", query.batch, {}),
        ("kind", "Kind", query.kind, {one.value: one.value for one in FileKind}),
        ("since", "Added", query.since, PERIODS),
        ("until", "Added before", query.until, {}),
        ("all", "All words", "yes" if query.all else None, {}),
        ("sure", "Only well recognised pages", "yes" if query.sure else None, {}),
    )
    return [
        FilterChip(
            label,
            choices.get(str(value), str(value)) if value else "",
            same_page(request, **{name: None, "skip": None}),
            [(text, None, same_page(request, **{name: choice, "skip": None})) for choice, text in choices.items()],
        )
        for name, label, value, choices in filters
        if value or len(choices) > 1
    ]


def marked(snippet: str) -> Markup:
    begin, end = _MARKS
    # The snippet may start with a match; then the first part is empty.
    first, *rest = " ".join(snippet.splitlines()).split(begin)
    parts = [escape(harmless(first))]
    for part in rest:
        match, _, plain = part.partition(end)
        parts += [Markup("<mark>"), escape(harmless(match)), Markup("</mark>"), escape(harmless(plain))]
    return Markup("").join(parts)


def _command(query: SearchPageQuery) -> str:
    values = asdict(query)
    words: list[object] = []
    for name in ("owner", "batch", "kind", "since", "until"):
        words += [f"--{name}", values[name]] if values[name] else []
    for tag in query.tag:
        words += ["--tag", tag]
    words += [f"--{name}" for name in ("sure", "all") if values[name]]
    return command("search", query.q.strip(), *words)


routes = [page("/search", search_page)]
