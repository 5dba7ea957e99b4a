"""The Home page."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from worker_service.jobs.batches import BatchState
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services.batches import BatchDetails
from worker_service.services.failures import count_failures, list_failures
from worker_service.services.health import Level
from worker_service.services.overview import Overview
from worker_service.services.session import Session
from worker_service.web.access import Visitor, settings_of, visitor_of
from worker_service.web.resources.batches import BatchesQuery, list_batches
from worker_service.web.views import page_route, render
from worker_service.web.views.alerts import list_alerts
from worker_service.web.views.reading_progress import ReadingProgress, batch_progress, reading_progress

_READING_MAX = 6
_LIVE_BATCHES_MAX = 100
"""Live batches that are searched for those of several files."""
_RECENT_MAX = 6
_FAILURES_MAX = 5
_FILES_PICTURED_MAX = 500
"""A larger batch gets no picture: finding a document takes long."""


class ReadingNow(Struct, frozen=True):
    name: str
    path: str
    pictured_document: Document | None
    progress: ReadingProgress


def home(request: Request, session: Session) -> Response:
    visitor = visitor_of(request)
    recent = session.library.documents(visitor.limit_selector(DocumentSelector(is_readable=True)), most=_RECENT_MAX)
    reading = _reading_now(session, visitor)
    sees_all = visitor.owner is None
    overview = Overview(session) if sees_all else None
    alerts = [alert for alert in list_alerts(session, overview, owner=visitor.owner) if alert.level > Level.OK]
    failures = list_failures(session, visitor.owner, limit=_FAILURES_MAX)
    failure_count = sum(reason.count for reason in count_failures(session, visitor.owner)) if failures.items else 0
    return render(
        request,
        "home.html",
        title="Home",
        documents=session.library.count(IndexStatus.SUCCESS, owner=visitor.owner),
        upload_bytes_max=settings_of(request).upload_bytes_max,
        reading=reading,
        recent=recent,
        alerts=alerts,
        failures=failures.items,
        failure_count=failure_count,
        has_nothing_yet=not (recent or reading or failure_count),
    )


def _reading_now(session: Session, visitor: Visitor) -> list[ReadingNow]:
    """Return live batches, then other documents being read. A batch of one file is shown as its document."""
    query = BatchesQuery(status=(BatchState.ACTIVE, BatchState.WAITING), limit=_LIVE_BATCHES_MAX)
    live_batches = list_batches(session, visitor, query).items
    # A batch without a file is looking for its files.
    batches = [details for details in live_batches if details.progress.files != 1][:_READING_MAX]
    entries = [_batch_entry(session, details) for details in batches]
    being_read = visitor.limit_selector(DocumentSelector(statuses=(IndexStatus.INDEXING,)))
    ids = tuple(details.batch.id for details in batches)
    in_batches = set(session.library.document_ids(replace(being_read, batch_ids=ids))) if ids else set()
    # Documents of these batches may be the newest ones, so ask for as many more.
    newest = session.library.documents(being_read, most=_READING_MAX + len(in_batches))
    documents = [document for document in newest if document.id not in in_batches][: _READING_MAX - len(entries)]
    progress = reading_progress(session, documents)
    for document in documents:
        entries.append(ReadingNow(document.name, f"/documents/{document.id}", document, progress[document.id]))
    return entries


def _batch_entry(session: Session, details: BatchDetails) -> ReadingNow:
    batch = details.batch
    pictured: Sequence[Document] = ()
    if details.progress.files <= _FILES_PICTURED_MAX:
        pictured = session.library.documents(DocumentSelector(batch_ids=(batch.id,), is_readable=True), most=1)
    name = batch.name or batch.title
    return ReadingNow(name, f"/batches/{batch.id}", next(iter(pictured), None), batch_progress(details))


routes = [page_route("/", home)]
