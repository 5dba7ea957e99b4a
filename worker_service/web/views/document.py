"""One document: a page as image and text. The URL holds page, zoom and tab, so each control is a link."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.clock import from_text
from worker_service.base.errors import BadInput
from worker_service.base.humanize import format_length
from worker_service.base.sanitize import harmless
from worker_service.jobs.documents import IndexStatus, PublishedFile
from worker_service.jobs.job import Gate, Job, Status
from worker_service.jobs.library import Document, PageSummary
from worker_service.jobs.selector import Selector
from worker_service.services import documents, jobs, passwords, tags
from worker_service.services.failure_sentences import explanation_of, may_read_again
from worker_service.services.page_images import WIDTHS, why_no_image
from worker_service.services.session import Session
from worker_service.web.parameters import NUMBER_MAX, query_of
from worker_service.web.resources.documents import requested_document
from worker_service.web.views import page_route, render
from worker_service.web.views.documents import state_words
from worker_service.web.views.page_view import DOUBTFUL, page_view
from worker_service.web.views.reading_progress import reading_progress

_RAIL_PAGES_MAX = 41
_HARD_PAGES_SHOWN = 30
_JOBS_SHOWN = 200
_COUNTED_MATCHING_PAGES_MAX = 200
_METHODS: Mapping[str, str] = {
    "layer": "text of its own", "ocr": "recognised", "rows": "rows of a spreadsheet", "blank": "blank",
    "partial": "recognised in part, because its picture is damaged",
    "adopted": "read by another program", "too_large": "too large to read", "unreadable": "could not be read",
}  # fmt: skip
_ROLES: Mapping[str, str] = {
    "pdf": "Searchable PDF", "original": "Original", "text": "Text", "pages": "Words with positions",
}  # fmt: skip
_HARD_METHODS = ("partial", "too_large", "unreadable")
_ZOOMS = (100, 150, 200, 300)
_LAST_MATCH = -1


class ReaderQuery(Struct, frozen=True):
    q: str = ""
    page: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None
    match: Annotated[int, Meta(ge=_LAST_MATCH, le=NUMBER_MAX)] = 0
    """Number on the page from 1; 0: the first; -1: the last."""
    tab: Literal["text", "tables", "markdown"] = "text"
    zoom: Literal[100, 150, 200, 300] = 100
    """Per cent of the available width."""
    turn: Literal[0, 90, 180, 270] = 0
    seen: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    """Generation of the text on display while the document is read again."""

    def link(self, document_id: int, **changes: object) -> str:
        """`match` and `seen` are dropped unless they are among the changes."""
        values = {**msgspec.structs.asdict(self), "match": 0, "seen": 0, **changes}
        defaults = msgspec.structs.asdict(ReaderQuery())
        parameters = {name: value for name, value in values.items() if value != defaults[name]}
        return f"/documents/{document_id}?{urlencode(parameters)}"


class RailPage(Struct, frozen=True):
    """A link in the strip of pages."""

    number: int
    is_current: bool
    has_match: bool
    is_hard_to_read: bool


class MatchPlace(Struct, frozen=True):
    number_on_page: int
    matches_on_page: int
    page_count: int
    matches_before: int
    """Matches on earlier pages; 0, as is `total`, if there are too many to count."""
    total: int
    previous_url: str
    next_url: str


class Generation(Struct, frozen=True):
    number: int | None
    jobs: Sequence[Job]

    @property
    def took(self) -> str:
        """Time from the first start to the last end of a job; empty until all have ended."""
        started = [job.started_at for job in self.jobs if job.started_at]
        ended = [job.completed_at for job in self.jobs if job.completed_at]
        if not started or len(ended) < len(self.jobs):
            return ""
        return format_length(from_text(max(ended)) - from_text(min(started)))


def document_page(request: Request, session: Session) -> Response:
    query = query_of(request, ReaderQuery)
    query = replace(query, q=query.q.strip())
    document = requested_document(session, request)
    details = documents.get_document_details(session, document.id)
    matching_pages = _matching_pages(session, document.id, query.q) if query.q else []
    last = max((page.number for page in details.page_items), default=0)
    number = min(query.page or next(iter(matching_pages), 1), last) or 1
    query = replace(query, page=number)
    view = page_view(session, document.id, number, request.app.state.renderer, query=query.q) if last else None
    match_counts = _matches_by_page(session, document.id, matching_pages, query.q)
    jobs_of_document = jobs.list_jobs(session, Selector(document_ids=(document.id,)), limit=_JOBS_SHOWN).items
    is_being_read = document.status is IndexStatus.INDEXING
    has_failed = document.status is IndexStatus.FAILED
    hard_pages = [page.number for page in details.page_items if _is_hard(page)]
    return render(
        request,
        "document.html",
        title=harmless(document.name),
        document=document,
        query=query,
        link=partial(query.link, document.id),
        view=view,
        number=number,
        last=last,
        match=_match_place(query, document.id, matching_pages, view.match_count if view else 0, match_counts),
        rail=_rail(details.page_items, set(matching_pages), set(hard_pages), number),
        is_hard_to_read=number in hard_pages,
        hard_pages=hard_pages[:_HARD_PAGES_SHOWN],
        hard_count=len(hard_pages),
        zooms=_ZOOMS,
        image_problem=why_no_image(session, document),
        widths=WIDTHS,
        files=_newest_files(details.files),
        roles=_ROLES,
        methods=_METHODS,
        state_words=state_words(document),
        failure=explanation_of(document.error_code or "") if has_failed else None,
        may_read_again=not has_failed or may_read_again(document.error_code or ""),
        waits_for=_first_gate(session, jobs_of_document) if document.status is IndexStatus.QUEUED else None,
        failed_job_id=_failed_job_id(session, jobs_of_document),
        has_password=passwords.is_stored(session.settings.workspace, document),
        follow_ups=tags.actions_of_document(session, document.id),
        generations=_generations(jobs_of_document),
        reading=reading_progress(session, [document]).get(document.id) if is_being_read else None,
        options=_reading_options(document),
    )


def _rail(
    pages: Sequence[PageSummary], matching: Collection[int], hard: Collection[int], current: int
) -> list[RailPage]:
    index = next((index for index, page in enumerate(pages) if page.number >= current), 0)
    begin = max(0, min(index - _RAIL_PAGES_MAX // 2, len(pages) - _RAIL_PAGES_MAX))
    numbers = [page.number for page in pages[begin : begin + _RAIL_PAGES_MAX]]
    return [RailPage(number, number == current, number in matching, number in hard) for number in numbers]


def _is_hard(page: PageSummary) -> bool:
    return page.method in _HARD_METHODS or (page.confidence is not None and page.confidence < DOUBTFUL)


def _match_place(
    query: ReaderQuery, document_id: int, matching_pages: Sequence[int], matches_on_page: int, counts: Mapping[int, int]
) -> MatchPlace:
    """Return the place of the chosen match. `counts` has the matches by page, or is empty."""
    current_page = query.page or 1
    number = matches_on_page if query.match == _LAST_MATCH else min(max(query.match, 1), matches_on_page)
    if matches_on_page and counts.get(current_page) != matches_on_page:
        # This page has only some of the words, and `counts` has the pages with all of them.
        counts = {}
    link = partial(query.link, document_id)
    earlier = [page for page in matching_pages if page < current_page]
    later = [page for page in matching_pages if page > current_page]
    previous_url = next_url = ""
    if number > 1:
        previous_url = link(match=number - 1)
    elif earlier:
        previous_url = link(page=earlier[-1], match=_LAST_MATCH)
    if number < matches_on_page:
        next_url = link(match=number + 1)
    elif later:
        next_url = link(page=later[0], match=1)
    matches_before = sum(count for page, count in counts.items() if page < current_page)
    return MatchPlace(
        number_on_page=number,
        matches_on_page=matches_on_page,
        page_count=len(matching_pages),
        matches_before=matches_before,
        total=sum(counts.values()),
        previous_url=previous_url,
        next_url=next_url,
    )


def _matching_pages(session: Session, document_id: int, query: str) -> Sequence[int]:
    try:
        return session.search.page_numbers(document_id, query)
    except BadInput:  # the query has no letter and no digit
        return []


def _matches_by_page(
    session: Session, document_id: int, matching_pages: Sequence[int], query: str
) -> Mapping[int, int]:
    """Return nothing if there are too many pages to count."""
    if not 0 < len(matching_pages) <= _COUNTED_MATCHING_PAGES_MAX:
        return {}
    return session.search.match_counts(document_id, query)


def _newest_files(files: Sequence[PublishedFile]) -> list[PublishedFile]:
    """Return the newest file of each role. A PDF that was searchable is its own original."""
    newest = {file.role: file for file in reversed(files)}
    if "pdf" in newest and "original" in newest and newest["pdf"].sha256 == newest["original"].sha256:
        del newest["pdf"]
    return [newest[role] for role in _ROLES if role in newest]


def _generations(jobs_of_document: Sequence[Job]) -> list[Generation]:
    """Return the newest first, last the jobs without one, such as the fetch of the file."""
    jobs_by_generation: dict[int | None, list[Job]] = {}
    for job in jobs_of_document:
        jobs_by_generation.setdefault(job.generation, []).append(job)
    newest_first = sorted(jobs_by_generation, key=lambda number: number or 0, reverse=True)
    return [Generation(number, jobs_by_generation[number]) for number in newest_first]


def _first_gate(session: Session, jobs_of_document: Sequence[Job]) -> Gate | None:
    pending_ids = [job.id for job in jobs_of_document if job.status is Status.PENDING]
    return next(iter(session.gates.explain(min(pending_ids))), None) if pending_ids else None


def _failed_job_id(session: Session, jobs_of_document: Sequence[Job]) -> int | None:
    """Return a job whose failure needs attention."""
    failed = [job.id for job in jobs_of_document if job.status is Status.FAILED]
    return next(iter(session.job_queries.failing_jobs(owner=None, code=None, ids=failed)), None) if failed else None


def _reading_options(document: Document) -> dict[str, str]:
    options = json.loads(document.settings or "{}")
    return {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in options.items()
        if value not in (None, False, [])
    }


routes = [page_route("/documents/{document_id:id}", document_page)]
