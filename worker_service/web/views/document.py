"""One document: a page as image and text. What is chosen is in the address, so each control is a link."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from worker_service.base.humanize import length
from worker_service.base.sanitize import harmless
from worker_service.jobs.documents import IndexStatus, PublishedFile
from worker_service.jobs.job import Gate, Job, Status
from worker_service.jobs.library import Document, PageSummary
from worker_service.jobs.selector import Selector
from worker_service.services import documents, jobs, passwords, tags
from worker_service.services.database import Session
from worker_service.services.failure_sentences import explanation_of, may_read_again
from worker_service.services.page_images import WIDTHS, why_no_image
from worker_service.services.reading_progress import reading_progress
from worker_service.web.parameters import NUMBER_MAX, read_known
from worker_service.web.resources.documents import requested_document
from worker_service.web.views import page, render
from worker_service.web.views.documents import state_words
from worker_service.web.views.page_view import DOUBTFUL, page_view

_PAGES_SHOWN = 41
_HARD_PAGES_SHOWN = 30
_JOBS_SHOWN = 200
_COUNTED_PAGES_MAX = 200
_METHODS: Mapping[str, str] = {
    "layer": "text of its own", "ocr": "recognised", "rows": "rows of a spreadsheet", "blank": "blank",
    "partial": "recognised in part, because its picture is damaged",
    "adopted": "read by another program", "too_large": "too large to read", "unreadable": "could not be read",
}  # fmt: skip
_ROLES: Mapping[str, str] = {
    "pdf": "Searchable PDF", "original": "Original", "text": "Text", "pages": "Words with positions",
}  # fmt: skip
_HARD = ("partial", "too_large", "unreadable")
_ZOOMS = (100, 150, 200, 300)
_LAST = -1


class ReaderQuery(Struct, frozen=True):
    q: str = ""
    page: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None
    match: Annotated[int, Meta(ge=_LAST, le=NUMBER_MAX)] = 0
    """From 1; 0: the first; -1: the last."""
    tab: Literal["text", "tables", "markdown"] = "text"
    zoom: Literal[100, 150, 200, 300] = 100
    """Per cent of the width that there is."""
    turn: Literal[0, 90, 180, 270] = 0
    seen: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    """Generation of the text on display while the document is read again."""

    def link(self, document_id: int, **changes: object) -> str:
        values = {**msgspec.structs.asdict(self), "match": 0, "seen": 0, **changes}
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        return (
            f"/documents/{document_id}?{urlencode({key: one for key, one in values.items() if one != defaults[key]})}"
        )


class RailPage(Struct, frozen=True):
    number: int
    is_here: bool
    is_hit: bool
    is_hard: bool


class MatchPlace(Struct, frozen=True):
    number: int
    on_page: int
    pages: int
    ahead: int
    """Matches on earlier pages, if all are counted."""
    total: int
    """0 if they are on too many pages to count."""
    before: str = ""
    after: str = ""


class Generation(Struct, frozen=True):
    number: int | None
    jobs: Sequence[Job]

    @property
    def took(self) -> str:
        """From the start of the first job to the end of the last; empty until all have ended."""
        started = min((one.started_at for one in self.jobs if one.started_at), default="")
        ended = max(one.completed_at or "~" for one in self.jobs)
        return length(from_text(ended) - from_text(started)) if started and ended != "~" else ""


def document_page(request: Request, session: Session) -> Response:
    asked = read_known(request.query_params.multi_items(), ReaderQuery)
    asked = replace(asked, q=asked.q.strip())
    document = requested_document(session, request)
    whole = documents.get_document_details(session, document.id)
    hits = _pages_with(session, document.id, asked.q) if asked.q else []
    last = max((one.number for one in whole.page_items), default=0)
    number = min(asked.page or next(iter(hits), 1), last) or 1
    asked = replace(asked, page=number)
    view = page_view(session, document.id, number, request.app.state.renderer, query=asked.q) if last else None
    worked = jobs.list_jobs(session, Selector(document_ids=(document.id,)), limit=_JOBS_SHOWN)
    is_read_now = document.status is IndexStatus.INDEXING
    hard = [one.number for one in whole.page_items if _is_hard(one)]
    return render(
        request,
        "document.html",
        title=harmless(document.name),
        document=document,
        asked=asked,
        link=partial(asked.link, document.id),
        view=view,
        number=number,
        last=last,
        match=_match_place(
            asked,
            document.id,
            hits,
            view.hits if view else 0,
            _matches_by_page(session, document.id, hits, asked.q),
        ),
        rail=_rail(whole.page_items, hits, hard, number),
        hard=hard[:_HARD_PAGES_SHOWN],
        hard_count=len(hard),
        zooms=_ZOOMS,
        no_image=why_no_image(session, document),
        widths=WIDTHS,
        files=_newest(whole.files),
        roles=_ROLES,
        methods=_METHODS,
        state_words=state_words(document),
        failure=explanation_of(document.error_code or "") if document.status is IndexStatus.FAILED else None,
        may_read_again=document.status is not IndexStatus.FAILED or may_read_again(document.error_code or ""),
        waits_for=_first_gate(session, worked.items) if document.status is IndexStatus.QUEUED else None,
        failed_job=_failed_job(session, worked.items),
        has_password=passwords.is_stored(session.settings.workspace, document),
        follow_ups=tags.actions_of_document(session, document.id),
        generations=_generations(worked.items),
        reading=reading_progress(session, [document]).get(document.id) if is_read_now else None,
        options=_reading_options(document),
    )


def _rail(pages: Sequence[PageSummary], hits: Sequence[int], hard: Sequence[int], here: int) -> list[RailPage]:
    at = next((place for place, one in enumerate(pages) if one.number >= here), 0)
    begin = max(0, min(at - _PAGES_SHOWN // 2, len(pages) - _PAGES_SHOWN))
    shown = [one.number for one in pages[begin : begin + _PAGES_SHOWN]]
    return [RailPage(one, one == here, one in {*hits}, one in {*hard}) for one in shown]


def _is_hard(page: PageSummary) -> bool:
    return page.method in _HARD or (page.confidence is not None and page.confidence < DOUBTFUL)


def _match_place(
    asked: ReaderQuery, document_id: int, hits: Sequence[int], on_page: int, by_page: Mapping[int, int]
) -> MatchPlace:
    here = asked.page or 1
    number = on_page if asked.match == _LAST else min(max(asked.match, 1), on_page)
    before, after = [one for one in hits if one < here], [one for one in hits if one > here]
    link = partial(asked.link, document_id)
    if on_page and by_page.get(here) != on_page:  # a page with some of the words, where others have all
        by_page = {}
    return MatchPlace(
        number,
        on_page,
        len(hits),
        sum(number for page, number in by_page.items() if page < here),
        sum(by_page.values()),
        link(match=number - 1) if number > 1 else link(page=before[-1], match=_LAST) if before else "",
        link(match=number + 1) if number < on_page else link(page=after[0], match=1) if after else "",
    )


def _pages_with(session: Session, document_id: int, query: str) -> Sequence[int]:
    try:
        return session.search.page_numbers(document_id, query)
    except BadInput:
        return []


def _matches_by_page(session: Session, document_id: int, hits: Sequence[int], query: str) -> Mapping[int, int]:
    if not 0 < len(hits) <= _COUNTED_PAGES_MAX:
        return {}
    return session.search.match_counts(document_id, query)


def _newest(files: Sequence[PublishedFile]) -> list[PublishedFile]:
    """Return the newest file of each role. A PDF that was searchable is its own original."""
    newest = {file.role: file for file in reversed(files)}
    if "pdf" in newest and "original" in newest and newest["pdf"].sha256 == newest["original"].sha256:
        del newest["pdf"]
    return [newest[role] for role in _ROLES if role in newest]


def _generations(worked: Sequence[Job]) -> list[Generation]:
    by_number: dict[int | None, list[Job]] = {}
    for job in worked:
        by_number.setdefault(job.generation, []).append(job)
    return [Generation(number, by_number[number]) for number in sorted(by_number, key=lambda one: -(one or 0))]


def _first_gate(session: Session, worked: Sequence[Job]) -> Gate | None:
    pending = [one.id for one in worked if one.status is Status.PENDING]
    return next(iter(session.gates.explain(pending[-1])), None) if pending else None


def _failed_job(session: Session, worked: Sequence[Job]) -> int | None:
    """Return the job whose failure needs attention."""
    failed = [one.id for one in worked if one.status is Status.FAILED]
    return next(iter(session.reading.failing_jobs(owner=None, code=None, ids=failed)), None) if failed else None


def _reading_options(document: Document) -> dict[str, str]:
    options = json.loads(document.settings or "{}")
    return {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in options.items()
        if value not in (None, False, [])
    }


routes = [page("/documents/{document_id:id}", document_page)]
