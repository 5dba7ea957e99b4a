"""The Upload page, complete without JavaScript."""

from __future__ import annotations

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import documents
from worker_service.services.batches import batches_replaced_by
from worker_service.services.failure_sentences import explanation_of
from worker_service.services.session import Session
from worker_service.web.access import visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.middleware import write_slot_of
from worker_service.web.multipart import ReceivedForm, receive_form
from worker_service.web.parameters import Id, query_of
from worker_service.web.resources.batches import visible_batch
from worker_service.web.resources.jobs import visible_job
from worker_service.web.resources.read_requests import Upload, submit_upload
from worker_service.web.views import page_route, render
from worker_service.web.views.documents import owners_of
from worker_service.web.views.flash_messages import redirect
from worker_service.web.views.reading_progress import ReadingProgress, reading_progress
from worker_service.web.views.template_filters import capitalised

_FILES_MAX = 100


class UploadedQuery(Struct, frozen=True):
    job: tuple[Id, ...] = ()
    empty: tuple[str, ...] = ()
    """Names of the empty files, which were not accepted."""
    batch: Id | None = None
    again: Id | None = None
    """The failed job that the files replace."""


class UploadRow(Struct, frozen=True):
    name: str
    state: str
    """adding (its job has not ended), waiting (its document is queued), reading, read or failed."""
    job: Job
    document: Document | None = None
    progress: ReadingProgress | None = None
    problem: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in ("read", "failed")


def upload_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, UploadedQuery)
    jobs = [visible_job(session, visitor, job_id) for job_id in query.job[:_FILES_MAX]]
    files = [_uploaded_file(session, job) for job in jobs]
    failed_job = visible_job(session, visitor, query.again) if query.again else None
    replaced = batches_replaced_by(session, visible_batch(session, visitor, query.batch)) if query.batch else ()
    return render(
        request,
        "upload.html",
        title="Uploaded files" if files else "Upload files",
        files=files,
        failed_job=failed_job,
        tags=session.library.document(failed_job.document_id).tags if failed_job and failed_job.document_id else (),
        batch_id=query.batch,
        replaced=replaced,
        is_over=all(file.is_over for file in files),
        gates=session.gates.explain(jobs[0].id) if jobs and not jobs[0].status.is_ended else (),
        owners=owners_of(session, visitor),
        may_notify=bool(session.settings.addresses or session.settings.notify_allow),
        empty=query.empty[:_FILES_MAX],
    )


def _uploaded_file(session: Session, job: Job) -> UploadRow:
    name = job.name or f"job {job.id}"
    if job.status in (Status.FAILED, Status.CANCELLED):
        return UploadRow(name, "failed", job, problem=_problem(job, job.error_text or "cancelled"))
    document = _document_of(session, job) if job.status is Status.COMPLETED else None
    if document is None:
        return UploadRow(name, "adding", job)
    if document.status is IndexStatus.INDEXING:
        progress = reading_progress(session, [document])[document.id]
        return UploadRow(name, "reading", job, document, progress)
    state = {IndexStatus.FAILED: "failed", IndexStatus.SUCCESS: "read"}.get(document.status, "waiting")
    problem = _problem(document, document.error_text) if document.status is IndexStatus.FAILED else ""
    return UploadRow(name, state, job, document, problem=problem)


def _problem(failed: Job | Document, error: str) -> str:
    explanation = explanation_of(failed.error_code or "")
    return capitalised(error) if explanation is None else f"{explanation.happened} {explanation.advice}".strip()


def _document_of(session: Session, job: Job) -> Document | None:
    selector = DocumentSelector(owners=(job.owner,), platforms=(job.platform,), source_keys=(job.source_key or "",))
    return next(iter(documents.list_documents(session, selector, limit=1).items), None)


async def receive_upload(request: Request) -> Response:
    async with receive_form(request) as form, write_slot_of(request):
        upload = await run_in_threadpool(_submit, request, form)
    job_ids = [request.id for _name, request in upload.accepted if request.id is not None]
    return redirect("/upload", batch=upload.batch_id, job=job_ids, empty=upload.empty_names)


def _submit(request: Request, form: ReceivedForm) -> Upload:
    with session_of(request) as session:
        return submit_upload(session, visitor_of(request), form)


routes = [page_route("/upload", upload_page), Route("/upload", receive_upload, methods=["POST"])]
