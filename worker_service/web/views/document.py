"""The page of one document: its pages as images with the matches marked, its text beside them, and its files.

Page images are drawn in a sandboxed child process (see `page_images`), never in the web server. Files are always sent
as downloads, so that a browser never runs an uploaded file as a page of this site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Annotated
from urllib.parse import urlencode

from anyio import to_thread
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from worker_service.base.errors import BadInput
from worker_service.base.sanitize import harmless
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.job import Job
from worker_service.jobs.library import Document, PageSummary
from worker_service.jobs.selector import Selector
from worker_service.services import documents, enqueue, exports, jobs, tags
from worker_service.services.database import Session
from worker_service.services.page_images import WIDTHS, reason_for_no_image
from worker_service.services.page_layouts import tables_of, write_tables
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.parameters import NUMBER_MAX, Id, read_known
from worker_service.web.resources.documents import page_image_response, visible_document
from worker_service.web.streaming import WORKBOOK, stream_file
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of
from worker_service.web.views.page_view import FAIR, SURE, page_view

_PAGES_SHOWN = 1500
_JOBS_SHOWN = 200
_METHODS: Mapping[str, str] = {
    "layer": "text layer", "ocr": "OCR", "rows": "spreadsheet rows", "blank": "blank",
    "partial": "damaged, OCR of a part",
    "adopted": "read elsewhere", "too_large": "too large to read", "unreadable": "unreadable",
}  # fmt: skip
_ROLES: Mapping[str, str] = {
    "original": "Original", "text": "Text", "pdf": "Searchable PDF", "pages": "Words with positions", "hocr": "hOCR",
    "thumbnail": "Thumbnail",
}  # fmt: skip


class ReaderQuery(Struct, frozen=True):
    q: str = ""
    page: Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None = None


class ReaderLink(Struct, frozen=True):
    document_id: int
    query: str

    def page(self, number: int) -> str:
        query = {"q": self.query} if self.query else {}
        return f"/documents/{self.document_id}?{urlencode({'page': number, **query})}"


class PageCell(Struct, frozen=True):
    number: int
    kind: str
    """CSS class: own, sure, fair, doubtful, empty, or not (unreadable)."""
    label: str
    is_hit: bool
    is_here: bool


class Generation(Struct, frozen=True):
    number: int | None
    jobs: Sequence[Job]


def document_page(request: Request) -> Response:
    asked = read_known(request.query_params.multi_items(), ReaderQuery)
    query = asked.q.strip()
    with session_of(request) as session:
        document = _visible(session, request)
        whole = documents.get_document_details(session, document.id)
        hits = _pages_with(session, document.id, query) if query else []
        last = max((one.number for one in whole.page_items), default=0)
        number = min(asked.page or next(iter(hits), 1), last) or 1
        view = page_view(session, document.id, number, request.app.state.renderer, query=query) if last else None
        worked = jobs.list_jobs(session, Selector(document_ids=(document.id,)), limit=_JOBS_SHOWN)
        return render(
            request,
            "document.html",
            title=harmless(document.name),
            flash=flash_of(session, request),
            document=document,
            view=view,
            number=number,
            query=query,
            hits=hits,
            no_image=reason_for_no_image(session, document, whole.files),
            widths=WIDTHS,
            pages=_strip(whole.page_items, hits, number),
            last=last,
            are_more_pages=len(whole.page_items) > _PAGES_SHOWN,
            files=_newest(whole.files),
            roles=_ROLES,
            methods=_METHODS,
            follow_ups=tags.actions_of_document(session, document.id),
            generations=_generations(worked.items),
            live_jobs=[job for job in worked.items if not job.status.is_ended],
            options=_reading_options(document),
            offered=enqueue.offered_choices(session),
            link=ReaderLink(document.id, query),
        )


def _strip(pages: Sequence[PageSummary], hits: Sequence[int], here: int) -> list[PageCell]:
    # A very long document shows only the pages around the current one.
    begin = max(0, min(here - _PAGES_SHOWN // 2, len(pages) - _PAGES_SHOWN))
    return [
        PageCell(one.number, kind_of(one), _label(one), one.number in {*hits}, one.number == here)
        for one in pages[begin : begin + _PAGES_SHOWN]
    ]


def kind_of(page: PageSummary) -> str:
    if page.method in ("too_large", "unreadable"):
        return "not"
    if page.method == "partial":
        return "doubtful"
    if page.method == "blank" or not page.characters:
        return "empty"
    if page.confidence is None:
        return "own"
    return "sure" if page.confidence >= SURE else "fair" if page.confidence >= FAIR else "doubtful"


def _label(page: PageSummary) -> str:
    confidence = "" if page.confidence is None else f", {page.confidence:.0f} % confidence"
    return f"page {page.number}: {_METHODS.get(page.method, page.method)}{confidence}"


def _pages_with(session: Session, document_id: int, query: str) -> Sequence[int]:
    try:
        return session.search.page_numbers(document_id, query)
    except BadInput:
        return []


def _newest(files: Sequence[PublishedFile]) -> list[PublishedFile]:
    """Return the newest file of each role, in the order of `_ROLES`."""
    newest = {file.role: file for file in reversed(files)}
    return [newest[role] for role in _ROLES if role in newest]


def _generations(worked: Sequence[Job]) -> list[Generation]:
    by_number: dict[int | None, list[Job]] = {}
    for job in worked:
        by_number.setdefault(job.generation, []).append(job)
    return [Generation(number, by_number[number]) for number in sorted(by_number, key=lambda one: -(one or 0))]


def _reading_options(document: Document) -> dict[str, str]:
    """Return the options of the newest generation that differ from the defaults."""
    options = json.loads(document.settings or "{}")
    return {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in options.items()
        if value not in (None, False, [])
    }


# ── Page images and files ───────────────────────────────────────────────────────────────────────────────────────────


class ImageWidth(Struct, frozen=True):
    width: Id = WIDTHS[1]


async def image(request: Request) -> Response:
    """Send a page image. Drawing is slow, so it uses threads of its own."""
    return await to_thread.run_sync(_image, request, limiter=request.app.state.rendering)


def _image(request: Request) -> Response:
    width = read_known(request.query_params.multi_items(), ImageWidth).width
    ids = request.path_params
    with session_of(request) as session:
        return page_image_response(request, session, ids["document_id"], ids["number"], width)


async def thumbnail(request: Request) -> Response:
    """Send the picture of the first page. `?of=` names its generation, so that browsers can cache it."""
    return await to_thread.run_sync(_thumbnail, request, limiter=request.app.state.rendering)


def _thumbnail(request: Request) -> Response:
    with session_of(request) as session:
        document = _visible(session, request)
        for one in session.library.files(document.id):
            path = session.settings.workspace / one.path
            if one.role == "thumbnail" and path.is_file():
                return FileResponse(path, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"})
        # There is none while the document is read for the first time.
        return page_image_response(request, session, document.id, 1, WIDTHS[0])


def file(request: Request) -> Response:
    with session_of(request) as session:
        document = _visible(session, request)
        for one in documents.get_document_details(session, document.id).files:
            if one.id == request.path_params["file_id"]:
                path = session.settings.workspace / one.path
                if not path.is_file():
                    remedy = "read the document again, even if nothing has changed"
                    raise exports.FileGone(f"{one.name} is no longer in the workspace", remedy)
                # Always a download: an uploaded HTML file must not run in the browser as a page of this site.
                return FileResponse(path, media_type="application/octet-stream", filename=harmless(one.name))
    raise exports.NotExported(f"document {document.id} has no such file")


def workbook(request: Request) -> Response:
    with session_of(request) as session, ExitStack() as until_sent:
        document = _visible(session, request)
        content = until_sent.enter_context(TemporaryFile())
        write_tables(content, tables_of(session, document.id))
        until_sent.pop_all()
        return stream_file(content, WORKBOOK, file_name=f"document-{document.id}-tables.xlsx")


def _visible(session: Session, request: Request) -> Document:
    return visible_document(session, visitor_of(request), request.path_params["document_id"])


routes = [
    Route("/documents/{document_id:id}", document_page),
    Route("/documents/{document_id:id}/pages/{number:id}/image", image),
    Route("/documents/{document_id:id}/thumbnail", thumbnail),
    Route("/documents/{document_id:id}/files/{file_id:id}", file),
    Route("/documents/{document_id:id}/tables.xlsx", workbook),
]
