"""The page Queue: documents in progress and in line, what slows them down, and rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from markupsafe import Markup
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from worker_service.base.clock import from_text
from worker_service.base.errors import BatchNotFound
from worker_service.base.humanize import counted, length
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Pause, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import job_control
from worker_service.services.database import Session
from worker_service.services.jobs import progress_in_words, state_of
from worker_service.services.overview import CheckedWorker, Overview
from worker_service.services.reading_progress import ReadingProgress, reading_progress
from worker_service.services.work_rates import WorkRate, work_rates
from worker_service.web.access import Visitor, visitor_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.batches import visible_batch
from worker_service.web.resources.system import list_pauses
from worker_service.web.views import page, render
from worker_service.web.views.flash import redirect
from worker_service.web.views.forms import parse_number
from worker_service.web.views.template_filters import capitalised

_RUNNING_MAX = 200
_READING_MAX = 20
_WAITING_MAX = 10
_STEPS_MAX = 40
_COUNTED_MAX = 1001
_RATES_MAX = 4
SPANS = ((24, "24 hours"), (24 * 7, "7 days"))

_STEPS = {
    "download": "Fetch the file", "ingest": "Count pages", "ocr_pages": "Read pages", "extract_rows": "Read rows",
    "assemble": "Put together", "crawl": "Look for files", "adopt": "Take over the text", "notify": "Send a message",
}  # fmt: skip
_WORK = {
    "download": "Fetching files", "ingest": "Counting pages", "ocr_pages": "Reading scans",
    "extract_rows": "Reading rows", "assemble": "Putting together",
    "crawl": "Looking for files", "notify": "Sending messages",
}  # fmt: skip
_OF_DOCUMENTS = ("ingest", "ocr_pages", "extract_rows", "assemble")
_WAITS = {"waiting": "Waiting for other steps", "backoff": "Trying again later", "stopped": "Batch is stopped"}


class QueueQuery(Struct, frozen=True):
    hours: int = SPANS[0][0]


class Step(Struct, frozen=True):
    job_id: int
    title: str
    state: str
    words: str
    worker: str
    took: str


class QueueRow(Struct, frozen=True):
    id: str
    name: str
    path: str
    about: str
    since: str | None
    document: Document | None
    progress: ReadingProgress | None
    steps: Sequence[Step] = ()
    steps_left_out: bool = False


class RateTile(Struct, frozen=True):
    title: str
    number: str
    unit: str
    each: str
    line: Markup


def queue(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), QueueQuery)
    hours = query.hours if query.hours in dict(SPANS) else SPANS[0][0]
    sees_all = visitor.owner is None
    overview = Overview(session) if sees_all else None
    reading = _reading(session, visitor)
    waiting = session.overview.documents_in_line(visitor.owner, most=_WAITING_MAX)
    pauses = list_pauses(session, visitor)
    own = [one for one in pauses if one.scope == "all" or (one.scope == "owner" and one.name == visitor.owner)]
    counts = {
        one: session.library.count(one, owner=visitor.owner) for one in (IndexStatus.INDEXING, IndexStatus.QUEUED)
    }
    return render(
        request,
        "queue.html",
        title="Queue",
        headline=_headline(counts[IndexStatus.INDEXING], counts[IndexStatus.QUEUED]),
        reading=reading,
        waiting=[_waiting_row(session, visitor, one) for one in _documents(session, waiting)],
        waiting_total=counts[IndexStatus.QUEUED],
        other=_other_work(session, visitor),
        pauses=pauses,
        own_pause=_pause_of(own),
        rests=session.overview.source_rests() if sees_all else (),
        worker=None if overview is None else _only_worker(overview),
        has_worker=overview is None or bool(overview.live_workers),
        tiles=[_tile(one) for one in work_rates(session, hours=hours)[:_RATES_MAX]] if sees_all else (),
        spans=SPANS,
        hours=hours,
        hours_word=dict(SPANS)[hours],
    )


def change_slots(request: Request, session: Session) -> Response:
    visitor, form = visitor_of(request), form_of(request)
    visitor.require_all_owners()
    job_control.set_slots(session, parse_number(form.get("slots", ""), "slots"), form.get("worker"))
    return redirect("/queue", message="slots")


def _headline(reading: int, waiting: int) -> str:
    if not reading and not waiting:
        return "Nothing is waiting to be read"
    parts = [f"Reading {counted(reading, 'document')}" if reading else "", f"{waiting:,} waiting" if waiting else ""]
    sentence = ", ".join(filter(None, parts))
    return sentence if reading else f"{counted(waiting, 'document')} waiting"


def _pause_of(pauses: Sequence[Pause]) -> Pause | None:
    return next((one for one in pauses if one.scope == "owner"), next(iter(pauses), None))


def _only_worker(overview: Overview) -> CheckedWorker | None:
    alive = overview.live_workers
    return alive[0] if len(alive) == 1 else None


# ── Documents and jobs ──────────────────────────────────────────────────────────────────────────────────────────────


def _reading(session: Session, visitor: Visitor) -> list[QueueRow]:
    """Return the longest running documents first, then others being read, and other jobs."""
    running = session.reading.list(visitor.limit_selector(Selector(statuses=(Status.RUNNING,))), most=_RUNNING_MAX)
    oldest_first = sorted(running, key=lambda job: job.started_at or "")
    ids = list(dict.fromkeys(job.document_id for job in oldest_first if job.document_id and job.generation))
    selector = visitor.limit_selector(DocumentSelector(statuses=(IndexStatus.INDEXING,)))
    begun = [one.id for one in session.library.documents(selector, most=_READING_MAX)]
    documents = _documents(session, list(dict.fromkeys([*ids, *reversed(begun)]))[:_READING_MAX])
    progress = reading_progress(session, documents)
    rows = [_document_row(session, visitor, one, progress.get(one.id)) for one in documents]
    return rows + [_job_row(session, visitor, job) for job in oldest_first if not (job.document_id and job.generation)]


def _documents(session: Session, ids: Sequence[int]) -> Sequence[Document]:
    found = (
        {one.id: one for one in session.library.documents(DocumentSelector(ids=tuple(ids)), most=len(ids))}
        if ids
        else {}
    )
    return [found[one] for one in ids if one in found]


def _document_row(session: Session, visitor: Visitor, document: Document, progress: ReadingProgress | None) -> QueueRow:
    jobs = session.reading.list(Selector(document_ids=(document.id,)), most=_STEPS_MAX + 1)
    jobs = [job for job in jobs if job.generation == document.index_generation]
    started = min((job.started_at for job in jobs if job.started_at), default=None)
    return QueueRow(
        f"document-{document.id}",
        document.name,
        f"/documents/{document.id}",
        _about(session, visitor, document.owner, jobs[0].batch_id if jobs else None),
        started,
        document,
        progress,
        [_step(job) for job in sorted(jobs[:_STEPS_MAX], key=lambda job: job.id)],
        len(jobs) > _STEPS_MAX,
    )


def _waiting_row(session: Session, visitor: Visitor, document: Document) -> QueueRow:
    [*jobs] = session.reading.list(Selector(document_ids=(document.id,)), most=1)
    held = state_of(jobs[0]) if jobs else ""
    pages = counted(document.pages, "page") if document.pages else ""
    about = " · ".join(
        filter(None, [_about(session, visitor, document.owner, jobs[0].batch_id if jobs else None), pages])
    )
    progress = ReadingProgress(0, None, _WAITS.get(held, "Waiting"))
    return QueueRow(
        f"document-{document.id}", document.name, f"/documents/{document.id}", about, None, document, progress
    )


def _job_row(session: Session, visitor: Visitor, job: Job) -> QueueRow:
    percent = ReadingProgress(job.progress_percent, 100, progress_in_words(job) or "Running")
    name, step = job.name or job.account, _STEPS.get(job.job_type, job.job_type)
    about = " · ".join(filter(None, [step if name else "", _about(session, visitor, job.owner, job.batch_id)]))
    return QueueRow(
        f"job-{job.id}", name or step, f"/jobs/{job.id}", about, job.started_at, None, percent, [_step(job)]
    )


def _about(session: Session, visitor: Visitor, owner: str, batch_id: int | None) -> str:
    batch = ""
    if batch_id is not None:
        with suppress(BatchNotFound):
            found = visible_batch(session, visitor, batch_id)
            batch = found.name or found.title
    return " · ".join(filter(None, [owner, batch]))


def _step(job: Job) -> Step:
    state = state_of(job)
    words = {"completed": "Done", "running": progress_in_words(job) or "Running", "pending": "Waiting"}.get(state)
    ended = from_text(job.completed_at) if job.completed_at else None
    took = length(ended - from_text(job.started_at)) if ended and job.started_at else ""
    pages, title = _pages(job.payload), _STEPS.get(job.job_type, job.job_type)
    if pages:
        title = f"{title if '–' in pages or ',' in pages else title.removesuffix('s')} {pages}"
    return Step(job.id, title, state, capitalised(words or _WAITS.get(state, state)), job.worker_id or "", took)


def _pages(payload: str | None) -> str:
    try:
        pages = json.loads(payload or "{}").get("pages", "")
    except (ValueError, AttributeError):
        return ""
    return pages.replace("-", "–") if isinstance(pages, str) else ""


def _other_work(session: Session, visitor: Visitor) -> Sequence[tuple[str, str, str]]:
    """Return (job type, its work in words, number) of ready jobs that read no document."""
    ready = session.overview.ready_by_type(visitor.owner, most=_COUNTED_MAX)
    return [
        (job_type, _WORK.get(job_type, job_type), f"{number:,}" if number < _COUNTED_MAX else f"over {number - 1:,}")
        for job_type, number in ready.items()
        if number and job_type not in _OF_DOCUMENTS
    ]


# ── Rates ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tile(rate: WorkRate) -> RateTile:
    number, unit = (rate.pages, "page") if rate.pages else (rate.jobs, "job")
    seconds = rate.seconds_each * rate.jobs / rate.pages if rate.pages else rate.seconds_each
    each = f"{_seconds(seconds)} a {unit} on average · waited {_seconds(rate.waited_seconds_each)}"
    if rate.failed:
        each += f" · {rate.failed:,} failed"
    unit += "" if number == 1 else "s"
    return RateTile(_WORK.get(rate.job_type, rate.job_type), f"{number:,}", unit, each, _line(rate.hourly))


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return "under 0.1\N{NO-BREAK SPACE}s"
    return f"{seconds:.1f}\N{NO-BREAK SPACE}s" if seconds < 60 else length(timedelta(seconds=seconds))


def _line(values: Sequence[int]) -> Markup:
    top, step = max([*values, 1]), 100 / max(1, len(values) - 1)
    points = " ".join(f"{at * step:.1f},{23 - 21 * value / top:.1f}" for at, value in enumerate(values))
    return Markup(
        '<svg viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="0,24 {points} 100,24"/><polyline points="{points}"/></svg>'
    )


routes = [page("/queue", queue), page("/workers/slots", change_slots, methods=["POST"])]
