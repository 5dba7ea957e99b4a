"""The Documents page: list, search, and a reader for one document.

The reader shows one page at a time: its image with the search hits marked, and its text beside it. Page images are
drawn in a sandboxed child process (see `page_images`), never in the web server. Files are always sent as downloads, so
that a browser never runs an uploaded file as a page of this site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import cast
from urllib.parse import urlencode

from anyio import to_thread
from markupsafe import Markup, escape
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from worker_service.base.errors import BadInput, DocumentNotFound
from worker_service.base.sanitize import harmless
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.job import Job
from worker_service.jobs.library import Document, Hit, PageSummary
from worker_service.jobs.selector import Selector
from worker_service.services import actions, documents, enqueue, jobs
from worker_service.services.database import Session
from worker_service.services.page_images import WIDTHS, Drawer, why_none
from worker_service.services.page_tables import tables_of, write_tables
from worker_service.services.page_views import as_typed, page_view
from worker_service.services.parse import read_document_selector
from worker_service.web.access import Power, Visitor, visitor_of
from worker_service.web.api.documents import drawn
from worker_service.web.database_sessions import opened
from worker_service.web.middleware import form_of
from worker_service.web.read_requests import submit_reindex
from worker_service.web.streaming import WORKBOOK, file_sent
from worker_service.web.views import page
from worker_service.web.views.batches import visible_batch
from worker_service.web.views.template_filters import command

_LISTED = 50
_HITS = 40
_PAGES_SHOWN = 1500
_JOBS_SHOWN = 200
_MARKS = ("\x02", "\x03")
_NUMBER_MAX = 10**9
_WAYS: Mapping[str, str] = {
    "layer": "text layer", "ocr": "OCR", "rows": "spreadsheet rows", "blank": "blank",
    "partial": "damaged, OCR of a part",
    "adopted": "read elsewhere", "too_large": "too large to read", "unreadable": "unreadable",
}  # fmt: skip
_ROLES: Mapping[str, str] = {
    "original": "Original", "text": "Text", "pdf": "Searchable PDF", "pages": "Words with positions", "hocr": "hOCR",
    "thumbnail": "Thumbnail",
}  # fmt: skip
STATES: Mapping[str, str] = {
    "": "All", "success": "Searchable", "indexing": "Reading", "queued": "Queued", "failed": "Failed",
    "not_indexed": "Not read",
}  # fmt: skip


# ── List and search ─────────────────────────────────────────────────────────────────────────────────────────────────


class Wanted(Struct, frozen=True):
    """Search and filters in the URL."""

    query: str
    owner: str
    status: str
    name: str
    batch: int | None
    before: int | None

    @property
    def is_filtered(self) -> bool:
        return bool(self.owner or self.status or self.name or self.batch)

    def link(self, **other: object) -> str:
        said: dict[str, object] = {"q": self.query, "owner": self.owner, "status": self.status, "name": self.name}
        said |= {"batch": self.batch} | other
        kept = {key: value for key, value in said.items() if value}
        return f"/documents?{urlencode(kept)}" if kept else "/documents"


def index(request: Request) -> Response:
    visitor, asked = visitor_of(request), request.query_params
    wanted = Wanted(
        asked.get("q", "").strip()[:500],
        asked.get("owner", "")[:200],
        asked.get("status", ""),
        asked.get("name", "").strip()[:200],
        number_of(asked["batch"]) if asked.get("batch") else None,
        number_of(asked.get("before")) if asked.get("before") else None,
    )
    with opened(request) as session:
        if wanted.batch:
            visible_batch(session, request, wanted.batch)
        selector = visitor.only(
            read_document_selector(
                statuses=[wanted.status] if wanted.status else [],
                owners=[wanted.owner] if wanted.owner else [],
                name=wanted.name,
                batch_ids=[wanted.batch] if wanted.batch else [],
            )
        )
        found = listed = None
        if wanted.query:
            found = _search(session, visitor, wanted)
        else:
            listed = documents.list_documents(session, selector, limit=_LISTED, before_id=wanted.before)
        is_asked = wanted.query or wanted.before or wanted.is_filtered
        owners = owners_of(session, visitor)
        return page(
            request,
            "documents.html",
            title="Documents",
            wanted=wanted,
            found=found,
            listed=listed,
            owners=owners,
            states=STATES,
            is_empty=not (is_asked or listed is None or listed.items or listed.not_brought_in),
            command=_typed(wanted),
            told=_told(asked.get("told", "")),
        )


class Found(Struct, frozen=True):
    pages: Sequence[tuple[Hit, Markup]]
    documents: int
    is_partial: bool
    are_more: bool
    trouble: str = ""


def _search(session: Session, visitor: Visitor, wanted: Wanted) -> Found:
    owner = visitor.owner or wanted.owner or None
    if visitor.owner and wanted.owner not in ("", visitor.owner):
        return Found([], 0, is_partial=False, are_more=False)
    try:
        found = documents.search(
            session, as_typed(wanted.query), owner=owner, batch_id=wanted.batch, limit=_HITS + 1, marks=_MARKS
        )
    except BadInput as error:
        return Found([], 0, is_partial=False, are_more=False, trouble=str(error))
    hits = found.hits[:_HITS]
    return Found(
        [(hit, marked(hit.snippet)) for hit in hits],
        len({hit.document_id for hit in hits}),
        found.is_partial,
        len(found.hits) > _HITS,
    )


def marked(snippet: str) -> Markup:
    """Return the snippet with its hits inside <mark> elements."""
    begin, end = _MARKS
    # The snippet may start with a hit; then the first part is empty.
    first, *rest = " ".join(snippet.splitlines()).split(begin)
    parts = [escape(harmless(first))]
    for one in rest:
        hit, _, plain = one.partition(end)
        parts += [Markup("<mark>"), escape(harmless(hit)), Markup("</mark>"), escape(harmless(plain))]
    return Markup("").join(parts)


def owners_of(session: Session, visitor: Visitor) -> Sequence[str]:
    return [visitor.owner] if visitor.owner is not None else [one for one in session.reading.names("owner", "") if one]


def _typed(wanted: Wanted) -> str:
    """Return the command line that shows the same list."""
    chosen = ["--owner", wanted.owner] if wanted.owner else []
    chosen += ["--batch", str(wanted.batch)] if wanted.batch else []
    if wanted.query:
        return command("search", as_typed(wanted.query), *chosen)
    status = ["--status", wanted.status] if wanted.status else []
    return command("documents", *status, *chosen, *(["--name", wanted.name] if wanted.name else []))


def _told(word: str) -> dict[str, object] | None:
    """Return the message about the previous request."""
    sentences = {"removed": "Document removed", "kept": "Nothing was removed"}
    return {"sentence": sentences[word], "undo": None, "is_bad": False} if word in sentences else None


# ── One document ────────────────────────────────────────────────────────────────────────────────────────────────────


def show(request: Request) -> Response:
    asked = request.query_params
    query = asked.get("q", "").strip()[:500]
    with opened(request) as session:
        document = _seen(session, request)
        whole = documents.document_in_whole(session, document.id)
        summaries = {one.number: one for one in whole.page_items}
        hits = _pages_with(session, document.id, query) if query else []
        number = number_of(asked.get("page")) if asked.get("page") else next(iter(hits), 1)
        view = None
        if summaries:
            number = min(max(number, 1), max(summaries))
            view = page_view(session, document.id, number, query=as_typed(query), drawer=_drawer(request))
        worked = jobs.list_jobs(session, Selector(document_ids=(document.id,)), limit=_JOBS_SHOWN)
        return page(
            request,
            "document.html",
            title=harmless(document.name),
            document=document,
            view=view,
            number=number,
            query=query,
            hits=hits,
            no_image=why_none(document, whole.files),
            widths=WIDTHS,
            pages=_strip(summaries.values(), hits, number),
            last=max(summaries, default=0),
            are_more_pages=len(summaries) > _PAGES_SHOWN,
            files=_newest(whole.files),
            roles=_ROLES,
            ways=_WAYS,
            follows=actions.of_document(session, document.id),
            generations=_generations(worked.items),
            working=[job for job in worked.items if not job.status.is_ended],
            read_as=_read_as(document),
            offered=enqueue.offered(session),
            told=_told_of_one(asked),
            link=_Link(document.id, query),
        )


class _Link(Struct, frozen=True):
    document_id: int
    query: str

    def page(self, number: int) -> str:
        return (
            f"/documents/{self.document_id}?{urlencode({'page': number, **({'q': self.query} if self.query else {})})}"
        )


class PageCell(Struct, frozen=True):
    """A page in the strip of all pages."""

    number: int
    kind: str
    """Confidence of its text, as a CSS class: own, sure, fair, doubtful, empty, or not (unreadable)."""
    about: str
    is_hit: bool
    is_here: bool


def _strip(summaries: object, hits: Sequence[int], here: int) -> list[PageCell]:
    found = set(hits)
    pages = list(cast(Sequence[PageSummary], summaries))
    # A very long document shows only the pages around the current one.
    begin = max(0, min(here - _PAGES_SHOWN // 2, len(pages) - _PAGES_SHOWN))
    return [
        PageCell(one.number, kind_of(one), _about(one), one.number in found, one.number == here)
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
    return "sure" if page.confidence >= 90 else "fair" if page.confidence >= 70 else "doubtful"


def _about(one: PageSummary) -> str:
    way = _WAYS.get(one.method, one.method)
    return (
        f"page {one.number}: {way}"
        if one.confidence is None
        else f"page {one.number}: {way}, {one.confidence:.0f} % confidence"
    )


def _pages_with(session: Session, document_id: int, query: str) -> list[int]:
    try:
        found = documents.search(session, as_typed(query), document_id=document_id, limit=1000)
    except BadInput:
        return []
    return sorted({hit.number for hit in found.hits})


def _newest(files: Sequence[PublishedFile]) -> list[PublishedFile]:
    """Return the newest file of each role, in the order of `_ROLES`."""
    of_role: dict[str, PublishedFile] = {}
    for file in files:
        of_role.setdefault(file.role, file)
    return [of_role[role] for role in _ROLES if role in of_role]


class Generation(Struct, frozen=True):
    number: int | None
    jobs: Sequence[Job]


def _generations(worked: Sequence[Job]) -> list[Generation]:
    by_number: dict[int | None, list[Job]] = {}
    for job in worked:
        by_number.setdefault(job.generation, []).append(job)
    return [Generation(number, by_number[number]) for number in sorted(by_number, key=lambda one: -(one or 0))]


def _read_as(document: Document) -> dict[str, str]:
    """Return the options of the newest generation that differ from the defaults."""
    try:
        settings = json.loads(document.settings or "{}")
    except ValueError:
        return {}
    said = {key.replace("_", " "): value for key, value in settings.items() if value not in (None, False, [])}
    return {key: ", ".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in said.items()}


def _told_of_one(asked: Mapping[str, str]) -> dict[str, object] | None:
    sentences = {
        "accepted": "The document will be read again.",
        "taken over": "The document will be read again, because earlier work on it had stopped.",
        "under way": "The document is already being read with these options.",
        "unchanged": "The document was already read with these options. To read it anyway, tick “Even if nothing has "
        "changed”.",
        "job": "The file will be fetched again, then read.",
    }
    word = asked.get("told", "")
    if word not in sentences:
        return None
    return {"sentence": sentences[word], "undo": None, "is_bad": word == "unchanged"}


# ── Page images and files ───────────────────────────────────────────────────────────────────────────────────────────


async def image(request: Request) -> Response:
    """Send a page image. Drawing is slow, so it uses threads of its own."""
    return await to_thread.run_sync(_image, request, limiter=request.app.state.drawing)


def _image(request: Request) -> Response:
    number = number_of(request.path_params["number"])
    width = number_of(request.query_params.get("width", str(WIDTHS[1])))
    with opened(request) as session:
        document = _seen(session, request)
        return drawn(request, session, document.id, number, width)


def file(request: Request) -> Response:
    wanted = number_of(request.path_params["file_id"])
    with opened(request) as session:
        document = _seen(session, request)
        for one in documents.document_in_whole(session, document.id).files:
            if one.id == wanted:
                path = session.settings.workspace / one.path
                if not path.is_file():
                    again = "read the document again, even if nothing has changed"
                    raise documents.FileGone(f"{one.name} is no longer in the workspace", again)
                # Always a download: an uploaded HTML file must not run in the browser as a page of this site.
                return FileResponse(path, media_type="application/octet-stream", filename=harmless(one.name))
    raise documents.NotExported(f"document {document.id} has no file {wanted}")


# ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def reindex(request: Request) -> Response:
    """Read the document again. The form fields are the options of `pagemill reindex`."""
    visitor_of(request).must(Power.OPERATE)
    form = form_of(request)
    words = {
        name: [value for value in form.getlist(name) if isinstance(value, str)]
        for name in form
        if name not in ("csrf", "anyway")
    }
    with opened(request) as session:
        document = _seen(session, request)
        wished = submit_reindex(session, document.id, words, is_forced=bool(form.get("anyway")))
    decision = wished.enqueued.decision
    return _see(f"/documents/{document.id}?{urlencode({'told': str(decision) if decision else 'job'})}")


def confirm_removal(request: Request) -> Response:
    visitor_of(request).must(Power.OPERATE)
    with opened(request) as session:
        document = _seen(session, request)
        return page(
            request,
            "document_remove.html",
            title=f"Remove {harmless(document.name)}?",
            document=document,
            weight=documents.weigh(session, [document]),
        )


def workbook(request: Request) -> Response:
    """Send the document's tables as XLSX, one sheet per table."""
    with opened(request) as session, ExitStack() as until_sent:
        document = _seen(session, request)
        file = until_sent.enter_context(TemporaryFile())
        write_tables(file, tables_of(session, document.id))
        until_sent.pop_all()
        return file_sent(file, WORKBOOK, file_name=f"document-{document.id}-tables.xlsx")


def remove(request: Request) -> Response:
    visitor_of(request).must(Power.OPERATE)
    with opened(request) as session:
        document = _seen(session, request)
        removed, _ = documents.remove(session, [document])
    if removed.refused:
        raise BadInput(next(iter(removed.refused.values())))
    return _see("/documents?told=removed")


# ── Helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _seen(session: Session, request: Request) -> Document:
    """Return the document in the path. Raise `DocumentNotFound` if the visitor may not see it."""
    document_id = number_of(request.path_params["document_id"])
    document = session.library.document(document_id)
    if not visitor_of(request).may_see(document.owner):
        raise DocumentNotFound(f"there is no document {document_id}", "`pagemill documents` shows those that are there")
    return document


def number_of(said: str | None) -> int:
    if said is None or not said.isascii() or not said.isdigit() or not 0 < int(said[:12]) <= _NUMBER_MAX:
        raise BadInput(f"{(said or '')[:50]!r} is not a number", "enter a number from 1")
    return int(said)


def _drawer(request: Request) -> Drawer:
    return cast(Drawer, request.app.state.drawer)


def _see(address: str) -> Response:
    return RedirectResponse(address, status_code=303)


routes = [
    Route("/documents", index),
    Route("/documents/{document_id}", show),
    Route("/documents/{document_id}/pages/{number}/image", image),
    Route("/documents/{document_id}/files/{file_id}", file),
    Route("/documents/{document_id}/tables.xlsx", workbook),
    Route("/documents/{document_id}/reindex", reindex, methods=["POST"]),
    Route("/documents/{document_id}/remove", confirm_removal),
    Route("/documents/{document_id}/remove", remove, methods=["POST"]),
]
