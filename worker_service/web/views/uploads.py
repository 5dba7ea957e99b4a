"""The Upload page: receives files and shows their progress until they are searchable.

Files are handled as by `/api/uploads`. The form works without JavaScript.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from worker_service.base.errors import JobNotFound
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import documents
from worker_service.services.batches import waiting_for
from worker_service.services.database import Session
from worker_service.web.access import Power, visitor_of
from worker_service.web.api.uploads import take_files
from worker_service.web.database_sessions import opened
from worker_service.web.middleware import turn_of
from worker_service.web.multipart import Received, received
from worker_service.web.views import page
from worker_service.web.views.batches import visible_batch
from worker_service.web.views.documents import number_of, owners_of

_JOBS_MOST = 100


class Sent(Struct, frozen=True):
    """An uploaded file and its progress."""

    name: str
    state: str
    percent: int
    job: Job
    document: Document | None
    trouble: str = ""

    @property
    def code(self) -> str:
        return (self.document and self.document.error_code) or self.job.error_code or ""

    @property
    def is_over(self) -> bool:
        return self.state in ("searchable", "failed")


def show(request: Request) -> Response:
    visitor, query = visitor_of(request), request.query_params
    ids = [number_of(one) for one in query.getlist("job")[:_JOBS_MOST]]
    batch_id = number_of(query["batch"]) if "batch" in query else None
    empty = query.getlist("empty")[:_JOBS_MOST]
    with opened(request) as session:
        found = [session.reading.get(job_id) for job_id in ids]
        for job in found:
            if not visitor.may_see(job.owner):
                raise JobNotFound(f"there is no job {job.id}")
        sent = [_sent(session, job) for job in found]
        others = waiting_for(session, visible_batch(session, request, batch_id)) if batch_id else ()
        return page(
            request,
            "upload.html",
            title="Uploaded files" if sent else "Upload files",
            sent=sent,
            batch_id=batch_id,
            others=others,
            is_over=all(one.is_over for one in sent),
            gates=[gate for job in found[:1] if not job.status.is_ended for gate in session.reading.explain(job.id)],
            owners=owners_of(session, visitor),
            empty=empty,
            address=_address(batch_id, ids, empty),
        )


def _sent(session: Session, job: Job) -> Sent:
    document = _document_of(session, job) if job.status is Status.COMPLETED else None
    name = job.name or f"job {job.id}"
    if job.status in (Status.FAILED, Status.CANCELLED):
        why = job.error_text if job.error_code else "cancelled"
        return Sent(name, "failed", 0, job, None, why)
    if document is None:
        return Sent(name, "adding", 0, job, None)
    if document.status is IndexStatus.FAILED:
        return Sent(name, "failed", document.percent, job, document, document.error_text)
    if document.status is IndexStatus.SUCCESS:
        return Sent(name, "searchable", 100, job, document)
    return Sent(
        name, "reading" if document.status is IndexStatus.INDEXING else "queued", document.percent, job, document
    )


def _document_of(session: Session, job: Job) -> Document | None:
    selector = DocumentSelector(owners=(job.owner,), platforms=(job.platform,), source_keys=(job.source_key or "",))
    found: Sequence[Document] = documents.list_documents(session, selector, limit=1).items
    return next(iter(found), None)


def _taken(request: Request, form: Received) -> dict[str, Any]:
    with opened(request) as session:
        return take_files(session, visitor_of(request), form)


async def take(request: Request) -> Response:
    visitor = visitor_of(request)
    visitor.must(Power.OPERATE)
    async with received(request) as form, turn_of(request):
        taken = await run_in_threadpool(_taken, request, form)
    jobs_of = [one["id"] for one in taken["items"] if one["id"]]
    return RedirectResponse(_address(taken["batch"], jobs_of, [one["name"] for one in taken["refused"]]), 303)


def _address(batch_id: int | None, job_ids: Sequence[int], empty: Sequence[str]) -> str:
    batch = [] if batch_id is None else [("batch", batch_id)]
    words = [*batch, *(("job", one) for one in job_ids), *(("empty", one) for one in empty)]
    return f"/upload?{urlencode(words)}"


routes = [Route("/upload", show), Route("/upload", take, methods=["POST"])]
