"""The Batches page: list, progress and failures of a batch, and actions on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput, BadPayload, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.batches import Batch, BatchAdded, BatchState
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Status
from worker_service.jobs.library import DocumentSelector
from worker_service.services import batches
from worker_service.services.batches import BatchDetails, BatchProgress
from worker_service.services.database import Session
from worker_service.services.failures import list_failures
from worker_service.services.reading_progress import ReadingProgress, batch_progress, reading_progress, time_left
from worker_service.web.access import Power, Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.error_responses import NoSuchPage, NotAllowed, status_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.batches import BatchesQuery, jobs_of_sources, list_batches, visible_batch
from worker_service.web.resources.jobs import owner_for
from worker_service.web.views import page, render
from worker_service.web.views.flash import redirect
from worker_service.web.views.forms import parse_number, same_page
from worker_service.web.views.template_filters import command, size

BATCHES_PER_PAGE = 20
_FAILURES_MAX = 20
_FILES_MAX = 25
_SOURCES_KEPT_MAX = 100


class BatchAction(Struct, frozen=True):
    label: str
    run: Callable[[Session, int], object]
    message: str
    warning: str = ""
    """Text of the confirmation page; empty if the action needs none."""


ACTIONS: Mapping[str, BatchAction] = {
    "stop": BatchAction("Stop", batches.stop_batch, "stopped"),
    "resume": BatchAction("Resume", batches.resume_batch, "resumed"),
    "retry": BatchAction("Retry failed", batches.retry_batch, "retried"),
    "cancel": BatchAction(
        "Cancel the rest",
        batches.cancel_batch,
        "cancelled",
        "Pending jobs are cancelled at once; running jobs are asked to stop. Text already read is kept.",
    ),
    "rm": BatchAction(
        "Remove",
        batches.remove_batch,
        "batch-removed",
        "Only the batch is removed; its jobs and documents are kept. This cannot be undone.",
    ),
}


STATES: Mapping[BatchState, str] = {
    BatchState.ACTIVE: "Reading", BatchState.WAITING: "Waiting", BatchState.STOPPED: "Stopped",
    BatchState.DONE: "Done", BatchState.FAILED: "Done, with failures",
}  # fmt: skip
_TONES: Mapping[BatchState, str] = {
    BatchState.ACTIVE: "reading", BatchState.WAITING: "wait", BatchState.STOPPED: "warn",
    BatchState.DONE: "ok", BatchState.FAILED: "warn",
}  # fmt: skip
_FILES: Mapping[IndexStatus, str] = {
    IndexStatus.INDEXING: "Reading", IndexStatus.QUEUED: "Waiting", IndexStatus.FAILED: "Couldn’t be read",
    IndexStatus.SUCCESS: "Read",
}  # fmt: skip


class BatchRow(Struct, frozen=True):
    batch: Batch
    state: str
    """A batch with 42 of 47 files read has not failed."""
    tone: str
    progress: ReadingProgress
    actions: Sequence[str]


class FileFilter(Struct, frozen=True):
    label: str
    count: int
    path: str
    is_chosen: bool


class BatchPageQuery(Struct, frozen=True):
    files: IndexStatus | None = None


def batches_page(request: Request, session: Session) -> Response:
    query = read_known(request.query_params.multi_items(), BatchesQuery)
    found = list_batches(session, visitor_of(request), replace(query, limit=BATCHES_PER_PAGE))
    return render(
        request,
        "batches.html",
        title="Batches",
        rows=[_row(one) for one in found.items],
        states=STATES,
        query=query,
        newest=same_page(request, before=None) if query.before else "",
        older=same_page(request, before=found.next) if found.next else "",
        labels=ACTIONS,
    )


# ── One batch ───────────────────────────────────────────────────────────────────────────────────────────────────────


def batch_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), read_known(request.query_params.multi_items(), BatchPageQuery)
    batch = _visible(session, request)
    found = batches.get_batch_details(session, batch.id)
    statuses = () if query.files is None else (query.files,)
    listed = session.library.documents(
        visitor.limit_selector(DocumentSelector(batch_ids=(batch.id,), statuses=statuses)), most=_FILES_MAX
    )
    is_failing = found.progress.files_failed or found.progress.jobs_failed
    failures = list_failures(session, visitor.owner, batch_id=batch.id, limit=_FAILURES_MAX) if is_failing else None
    row = _row(found)
    if failures and failures.items and not failures.next and all(one.helps != "retry" for one in failures.items):
        row = replace(row, actions=[one for one in row.actions if one != "retry"])
    return render(
        request,
        "batch.html",
        title=batch.title,
        row=row,
        now=found.progress,
        meter_parts=_meter(found.progress),
        estimate=_estimate(found),
        facts=_facts(found.progress),
        failures=failures.items if failures else (),
        filters=_file_filters(found.progress, f"/batches/{batch.id}", query.files),
        listed=listed,
        reading=reading_progress(session, [one for one in listed if one.status is IndexStatus.INDEXING]),
        labels=ACTIONS,
    )


def confirm_action(request: Request, session: Session) -> Response:
    verb = request.path_params["verb"]
    action = ACTIONS.get(verb)
    if action is None or not action.warning:
        raise NoSuchPage(f"{request.url.path} does not exist")
    batch = _visible(session, request)
    progress = batches.get_batch_details(session, batch.id).progress
    return render(
        request,
        "batch_confirm.html",
        title=f"{action.label}: {batch.title}",
        batch=batch,
        verb=verb,
        action=action,
        jobs_left=counted(progress.jobs - progress.jobs_ended, "job"),
        command_line=command("batch", verb, batch.id),
    )


def run_action(request: Request, session: Session) -> Response:
    verb = request.path_params["verb"]
    action = ACTIONS.get(verb)
    if action is None:
        raise NoSuchPage(f"a batch has no action {verb!r}")
    batch = _visible(session, request)
    action.run(session, batch.id)
    return redirect("/batches" if verb == "rm" else f"/batches/{batch.id}", message=action.message)


def _visible(session: Session, request: Request) -> Batch:
    return visible_batch(session, visitor_of(request), request.path_params["batch_id"])


def _row(found: BatchDetails) -> BatchRow:
    state = found.batch.state
    return BatchRow(found.batch, STATES[state], _TONES[state], batch_progress(found), _allowed_actions(found))


def _allowed_actions(found: BatchDetails) -> Sequence[str]:
    batch, progress = found.batch, found.progress
    retry = ["retry"] if progress.jobs_failed or progress.files_failed else []
    if batch.state is BatchState.STOPPED:
        return ["resume", "rm" if progress.jobs == progress.jobs_ended else "cancel"]
    if batch.state.is_ended:
        return [*retry, "rm"]
    return [*(["resume"] if batch.replaced_by is not None else []), "stop", *retry, "cancel"]


def _meter(now: BatchProgress) -> Sequence[tuple[str, int, str]]:
    """Return (kind, number, word) in files, or in jobs if the batch has no files."""
    if not now.files:
        jobs = now.by_job_status
        return [
            ("done", jobs.get(Status.COMPLETED, 0), "done"),
            ("now", jobs.get(Status.RUNNING, 0), "running"),
            ("bad", jobs.get(Status.FAILED, 0), "failed"),
            ("wait", jobs.get(Status.CANCELLED, 0), "cancelled"),
            ("wait", jobs.get(Status.PENDING, 0), "waiting"),
        ]
    read = now.files_ended - now.files_failed - now.files_cancelled
    reading = now.by_document_state.get(IndexStatus.INDEXING, 0)
    return [
        ("done", read, "read"),
        ("now", reading, "reading"),
        ("bad", now.files_failed, "could not be read"),
        ("wait", now.files_cancelled, "cancelled"),
        ("wait", now.files - now.files_ended - reading, "waiting"),
    ]


def _estimate(found: BatchDetails) -> str:
    if found.batch.state is not BatchState.ACTIVE or not found.progress.files:
        return ""
    left = found.progress.seconds_left
    return "No estimate yet" if left is None else time_left(left).capitalize()


def _facts(now: BatchProgress) -> str:
    more = " counted so far" if now.pages_left is None and now.files_ended < now.files else ""
    pages = f"{now.pages_read:,} of {counted(now.pages, 'page')}{more}" if now.pages else ""
    rate = (
        f"{counted(round(now.pages_a_minute), 'page')} a minute"
        if now.pages_a_minute and now.files_ended < now.files
        else ""
    )
    return " · ".join(filter(None, [pages, rate, size(now.size) if now.size else ""]))


def _file_filters(now: BatchProgress, path: str, chosen: IndexStatus | None) -> Sequence[FileFilter]:
    counts = now.by_document_state
    every = FileFilter("All", sum(counts.values()), path, chosen is None)
    some = [
        FileFilter(label, counts[status], f"{path}?files={status}", chosen is status)
        for status, label in _FILES.items()
        if counts.get(status)
    ]
    return [every, *some] if len(some) > 1 or chosen else []


# ── A new batch ─────────────────────────────────────────────────────────────────────────────────────────────────────

_EMPTY_FORM = {"sources": "", "name": "", "owner": "", "lang": "", "priority": str(batches.PRIORITY)}


def new_batch_form(request: Request) -> Response:
    visitor_of(request).require(Power.OPERATE)
    return _form_page(request, _EMPTY_FORM)


def add_batch(request: Request) -> Response:
    form = {name: form_of(request).get(name, "") for name in _EMPTY_FORM}
    try:
        with session_of(request) as session:
            added = _add(session, visitor_of(request), form)
    except (BadInput, BadPayload, Refused, NotAllowed) as error:
        # Show the form again with the user's input.
        return _form_page(request, form, str(error), status_of(error))
    return redirect(f"/batches/{added.batch.id}", message="submitted")


def _add(session: Session, visitor: Visitor, form: Mapping[str, str]) -> BatchAdded:
    sources = [line.strip() for line in form["sources"].splitlines() if line.strip()]
    if not sources:
        raise BadInput("enter at least one source: a folder, file or URL on each line")
    owner = owner_for(visitor, form["owner"].strip() or None)
    made = jobs_of_sources(session, visitor, sources, {"lang": [form["lang"].strip()]}, owner=owner)
    return batches.add_batch(
        session,
        made.jobs,
        owner=owner,
        name=form["name"].strip(),
        priority=parse_number(form["priority"] or str(batches.PRIORITY), "priority"),
        asked={"sources": sources[:_SOURCES_KEPT_MAX]},
    )


def _form_page(request: Request, form: Mapping[str, str], refused: str = "", status: int = 200) -> Response:
    return render(request, "batch_new.html", title="Start a batch", form=form, refused=refused, status=status)


routes = [
    page("/batches", batches_page),
    Route("/batches/new", new_batch_form),
    Route("/batches/new", add_batch, methods=["POST"]),
    page("/batches/{batch_id:id}", batch_page),
    page("/batches/{batch_id:id}/{verb}", confirm_action),
    page("/batches/{batch_id:id}/{verb}", run_action, methods=["POST"]),
]
