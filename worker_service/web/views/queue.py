"""The Queue page: documents that are being read or wait, what slows them down, and rates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from markupsafe import Markup
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.clock import from_text
from worker_service.base.humanize import counted, format_length
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Pause, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import job_control
from worker_service.services.jobs import progress_in_words, state_of
from worker_service.services.overview import CheckedWorker, Overview
from worker_service.services.session import Session
from worker_service.services.work_rates import WorkRate, work_rates
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import parse_number, query_of
from worker_service.web.resources.batches import find_visible_batch
from worker_service.web.views import page_route, render
from worker_service.web.views.flash_messages import redirect
from worker_service.web.views.reading_progress import ReadingProgress, reading_progress
from worker_service.web.views.template_filters import capitalised

_RUNNING_MAX = 200
_READING_MAX = 20
_WAITING_MAX = 10
_STEPS_PER_DOCUMENT_MAX = 40
_COUNTED_MAX = 1001
"""One more than the largest number that is shown exactly."""
_TILES_MAX = 4
LABEL_BY_HOURS = {24: "24 hours", 24 * 7: "7 days"}
_DEFAULT_HOURS = 24

_STEP_TITLES = {
    "download": "Fetch the file", "ingest": "Count pages", "ocr_pages": "Read pages", "extract_rows": "Read rows",
    "assemble": "Put together", "crawl": "Look for files", "adopt": "Take over the text", "notify": "Send a message",
}  # fmt: skip
# Beginnings of the titles of jobs for some pages: "Read pages 3–5".
_PAGE_TITLES = {"ocr_pages": "Read", "extract_rows": "Read rows of"}
_WORK_TITLES = {
    "download": "Fetching files", "ingest": "Counting pages", "ocr_pages": "Reading scans",
    "extract_rows": "Reading rows", "assemble": "Putting together",
    "crawl": "Looking for files", "notify": "Sending messages",
}  # fmt: skip
_READING_TYPES = ("ingest", "ocr_pages", "extract_rows", "assemble")
# Of the states of a job that `state_of` returns.
_WAIT_TEXT_BY_STATE = {
    "waiting": "Waiting for other steps", "backoff": "Trying again later", "stopped": "Batch is stopped",
}  # fmt: skip


class QueueQuery(Struct, frozen=True):
    hours: int = _DEFAULT_HOURS


class Step(Struct, frozen=True):
    job_id: int
    title: str
    state: str
    state_text: str
    worker: str
    took: str


class QueueRow(Struct, frozen=True):
    element_id: str
    name: str
    path: str
    about: str
    since: str | None
    document: Document | None
    progress: ReadingProgress | None
    steps: Sequence[Step] = ()
    has_more_steps: bool = False


class RateTile(Struct, frozen=True):
    title: str
    count_text: str
    unit: str
    details: str
    curve: Markup


def queue(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, QueueQuery)
    hours = query.hours if query.hours in LABEL_BY_HOURS else _DEFAULT_HOURS
    sees_all = visitor.owner is None
    overview = Overview(session) if sees_all else None
    waiting_ids = session.overview.documents_in_line(visitor.owner, most=_WAITING_MAX)
    pauses = job_control.list_pauses(session, visitor.owner)
    reading_total = session.library.count(IndexStatus.INDEXING, owner=visitor.owner)
    waiting_total = session.library.count(IndexStatus.QUEUED, owner=visitor.owner)
    return render(
        request,
        "queue.html",
        title="Queue",
        headline=_headline(reading_total, waiting_total),
        reading=_rows_being_read(session, visitor),
        waiting=[_waiting_row(session, visitor, document) for document in _documents_in_order(session, waiting_ids)],
        waiting_total=waiting_total,
        other_work=[*_other_work(session, visitor)],
        pauses=pauses,
        own_pause=_pause_of_all_jobs(visitor, pauses),
        source_pauses=session.overview.source_rests() if sees_all else (),
        # With several workers, the buttons for slots could not tell which one is meant.
        worker=None if overview is None else _only_worker(overview),
        # A visitor of one owner may not see workers, so no missing worker is reported.
        has_worker=overview is None or bool(overview.live_workers),
        tiles=[_tile(rate) for rate in work_rates(session, hours=hours)[:_TILES_MAX]] if sees_all else (),
        label_by_hours=LABEL_BY_HOURS,
        hours=hours,
        default_hours=_DEFAULT_HOURS,
    )


def change_slots(request: Request, session: Session) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    visitor.require_all_owners()
    job_control.set_slots(session, parse_number(form.get("slots", ""), "slots"), form.get("worker"))
    return redirect("/queue", message="slots")


def _headline(reading_total: int, waiting_total: int) -> str:
    if reading_total:
        waiting = f", {waiting_total:,} waiting" if waiting_total else ""
        return f"Reading {counted(reading_total, 'document')}{waiting}"
    return f"{counted(waiting_total, 'document')} waiting" if waiting_total else "Nothing is waiting to be read"


def _pause_of_all_jobs(visitor: Visitor, pauses: Sequence[Pause]) -> Pause | None:
    """Return the pause of the visitor's owner, or the one of all owners."""
    of_owner = [pause for pause in pauses if pause.scope == "owner" and pause.name == visitor.owner]
    of_all_owners = [pause for pause in pauses if pause.scope == "all"]
    return next(iter([*of_owner, *of_all_owners]), None)


def _only_worker(overview: Overview) -> CheckedWorker | None:
    alive = overview.live_workers
    return alive[0] if len(alive) == 1 else None


# ── Documents and jobs ──────────────────────────────────────────────────────────────────────────────────────────────


def _rows_being_read(session: Session, visitor: Visitor) -> list[QueueRow]:
    """Return documents with running jobs, other documents being read, then jobs that read none."""
    running = session.job_queries.list(visitor.limit_selector(Selector(statuses=(Status.RUNNING,))), most=_RUNNING_MAX)
    oldest_first = sorted(running, key=lambda job: job.started_at or "")
    running_ids = [job.document_id for job in oldest_first if job.document_id and _reads_document(job)]
    other_jobs = [job for job in oldest_first if not _reads_document(job)]
    selector = visitor.limit_selector(DocumentSelector(statuses=(IndexStatus.INDEXING,)))
    newest_ids = [document.id for document in session.library.documents(selector, most=_READING_MAX)]
    ids = list(dict.fromkeys([*running_ids, *reversed(newest_ids)]))[:_READING_MAX]
    documents = _documents_in_order(session, ids)
    progress = reading_progress(session, documents)
    rows = [_document_row(session, visitor, document, progress.get(document.id)) for document in documents]
    return rows + [_job_row(session, visitor, job) for job in other_jobs]


def _reads_document(job: Job) -> bool:
    # Other jobs of a document, such as its actions, have no generation.
    return bool(job.document_id and job.generation)


def _documents_in_order(session: Session, ids: Sequence[int]) -> Sequence[Document]:
    if not ids:
        return []
    documents = session.library.documents(DocumentSelector(ids=tuple(ids)), most=len(ids))
    document_by_id = {document.id: document for document in documents}
    return [document_by_id[document_id] for document_id in ids if document_id in document_by_id]


def _document_row(session: Session, visitor: Visitor, document: Document, progress: ReadingProgress | None) -> QueueRow:
    newest_first = session.job_queries.list(Selector(document_ids=(document.id,)), most=_STEPS_PER_DOCUMENT_MAX + 1)
    jobs = [job for job in newest_first if job.generation == document.index_generation]
    started = min((job.started_at for job in jobs if job.started_at), default=None)
    return QueueRow(
        element_id=f"document-{document.id}",
        name=document.name,
        path=f"/documents/{document.id}",
        about=_owner_and_batch(session, visitor, document.owner, jobs[0].batch_id if jobs else None),
        since=started,
        document=document,
        progress=progress,
        steps=[_step(job) for job in sorted(jobs[:_STEPS_PER_DOCUMENT_MAX], key=lambda job: job.id)],
        has_more_steps=len(jobs) > _STEPS_PER_DOCUMENT_MAX,
    )


def _waiting_row(session: Session, visitor: Visitor, document: Document) -> QueueRow:
    newest_job = next(iter(session.job_queries.list(Selector(document_ids=(document.id,)), most=1)), None)
    batch_id = None if newest_job is None else newest_job.batch_id
    pages = counted(document.pages, "page") if document.pages else ""
    about = " · ".join(filter(None, [_owner_and_batch(session, visitor, document.owner, batch_id), pages]))
    reason = "Waiting" if newest_job is None else _WAIT_TEXT_BY_STATE.get(state_of(newest_job), "Waiting")
    return QueueRow(
        element_id=f"document-{document.id}",
        name=document.name,
        path=f"/documents/{document.id}",
        about=about,
        since=None,
        document=document,
        progress=ReadingProgress(done=0, total=None, sentence=reason),
    )


def _job_row(session: Session, visitor: Visitor, job: Job) -> QueueRow:
    sentence = progress_in_words(job) or "Running"
    # Jobs without a file may be about a remote account.
    name, title = job.name or job.account, _STEP_TITLES.get(job.job_type, job.job_type)
    about = _owner_and_batch(session, visitor, job.owner, job.batch_id)
    if name:
        about = " · ".join(filter(None, [title, about]))
    return QueueRow(
        element_id=f"job-{job.id}",
        name=name or title,
        path=f"/jobs/{job.id}",
        about=about,
        since=job.started_at,
        document=None,
        progress=ReadingProgress(done=job.progress_percent, total=100, sentence=sentence),
        steps=[_step(job)],
    )


def _owner_and_batch(session: Session, visitor: Visitor, owner: str, batch_id: int | None) -> str:
    batch = find_visible_batch(session, visitor, batch_id)
    batch_name = "" if batch is None else batch.name or batch.title
    return " · ".join(filter(None, [owner, batch_name]))


def _step(job: Job) -> Step:
    state = state_of(job)
    state_texts = {"completed": "Done", "running": progress_in_words(job) or "Running", "pending": "Waiting"}
    state_text = state_texts.get(state) or _WAIT_TEXT_BY_STATE.get(state, state)
    ended = from_text(job.completed_at) if job.completed_at else None
    took = format_length(ended - from_text(job.started_at)) if ended and job.started_at else ""
    title, pages = _STEP_TITLES.get(job.job_type, job.job_type), _pages_in_payload(job.payload)
    if pages:
        title = f"{_PAGE_TITLES.get(job.job_type, title)} {'page' if pages.isdigit() else 'pages'} {pages}"
    return Step(
        job_id=job.id,
        title=title,
        state=state,
        state_text=capitalised(state_text),
        worker=job.worker_id or "",
        took=took,
    )


def _pages_in_payload(payload: str | None) -> str:
    """Return the pages that the job reads, such as 3, 3–5 or 3,7."""
    try:
        pages = json.loads(payload or "{}").get("pages", "")
    except (ValueError, AttributeError):
        return ""
    return pages.replace("-", "–") if isinstance(pages, str) else ""


class OtherWork(NamedTuple):
    job_type: str
    title: str
    count_text: str


def _other_work(session: Session, visitor: Visitor) -> Iterator[OtherWork]:
    """Count pending jobs that read no documents."""
    for job_type, count in session.overview.ready_by_type(visitor.owner, most=_COUNTED_MAX).items():
        if count and job_type not in _READING_TYPES:
            count_text = f"{count:,}" if count < _COUNTED_MAX else f"over {count - 1:,}"
            yield OtherWork(job_type, _WORK_TITLES.get(job_type, job_type), count_text)


# ── Rates ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tile(rate: WorkRate) -> RateTile:
    count, unit = (rate.pages, "page") if rate.pages else (rate.jobs, "job")
    seconds = rate.seconds_each * rate.jobs / rate.pages if rate.pages else rate.seconds_each
    details = f"{_seconds(seconds)} a {unit} on average · waited {_seconds(rate.waited_seconds_each)}"
    if rate.failed:
        details += f" · {rate.failed:,} failed"
    unit += "" if count == 1 else "s"
    title = _WORK_TITLES.get(rate.job_type, rate.job_type)
    return RateTile(title, f"{count:,}", unit, details, _draw_curve(rate.hourly))


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return "under 0.1\N{NO-BREAK SPACE}s"
    return f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds < 60 else format_length(timedelta(seconds=seconds))


def _draw_curve(values: Sequence[int]) -> Markup:
    # In units of the view box, whose top is 0: the highest value is at 2, and 0 at 23, so that no line is cut off.
    highest, step = max([*values, 1]), 100 / max(1, len(values) - 1)
    points = " ".join(f"{number * step:.1f},{23 - 21 * value / highest:.1f}" for number, value in enumerate(values))
    return Markup(
        '<svg viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="0,24 {points} 100,24"/><polyline points="{points}"/></svg>'
    )


routes = [page_route("/queue", queue), page_route("/workers/slots", change_slots, methods=["POST"])]
