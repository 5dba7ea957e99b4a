"""The Batches page: list, progress and failures of a batch, and actions on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

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
from worker_service.services.failures import FailurePage, list_failures
from worker_service.services.session import Session
from worker_service.web.access import TokenScope, Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.error_responses import NoSuchPage, NotAllowed, status_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import parse_number, query_of
from worker_service.web.resources.batches import BatchesQuery, list_batches, visible_batch
from worker_service.web.resources.jobs import owner_for
from worker_service.web.resources.read_requests import source_jobs
from worker_service.web.views import page_route, render
from worker_service.web.views.filter_links import FilterLink, same_page
from worker_service.web.views.flash_messages import redirect
from worker_service.web.views.reading_progress import ReadingProgress, batch_progress, reading_progress, time_left
from worker_service.web.views.template_filters import command, format_size

BATCHES_PER_PAGE = 20
_FAILURES_MAX = 20
_FILES_MAX = 25
_SOURCE_NAMES_MAX = 100


class BatchAction(Struct, frozen=True):
    label: str
    run: Callable[[Session, int], object]
    message_key: str
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
# CSS classes.
_TONES: Mapping[BatchState, str] = {
    BatchState.ACTIVE: "reading", BatchState.WAITING: "wait", BatchState.STOPPED: "warn",
    BatchState.DONE: "ok", BatchState.FAILED: "warn",
}  # fmt: skip
_FILE_STATES: Mapping[IndexStatus, str] = {
    IndexStatus.INDEXING: "Reading", IndexStatus.QUEUED: "Waiting", IndexStatus.FAILED: "Couldn’t be read",
    IndexStatus.SUCCESS: "Read",
}  # fmt: skip


class BatchRow(Struct, frozen=True):
    batch: Batch
    state: str
    """Label, such as "Done, with failures"."""
    tone: str
    progress: ReadingProgress
    actions: Sequence[str]


class MeterPart(NamedTuple):
    kind: Literal["done", "now", "bad", "wait"]  # sets the colour; "wait" is neutral
    number: int
    label: str


class BatchPageQuery(Struct, frozen=True):
    files: IndexStatus | None = None  # show only files in this state


def batches_page(request: Request, session: Session) -> Response:
    query = query_of(request, BatchesQuery)
    listing = list_batches(session, visitor_of(request), replace(query, limit=BATCHES_PER_PAGE))
    return render(
        request,
        "batches.html",
        title="Batches",
        rows=[_batch_row(details) for details in listing.items],
        states=STATES,
        query=query,
        newest=same_page(request, before=None) if query.before else "",
        older=same_page(request, before=listing.next) if listing.next else "",
        batch_actions=ACTIONS,
    )


# ── One batch ───────────────────────────────────────────────────────────────────────────────────────────────────────


def batch_page(request: Request, session: Session) -> Response:
    visitor, query = visitor_of(request), query_of(request, BatchPageQuery)
    batch = _requested_batch(session, request)
    details = batches.get_batch_details(session, batch.id)
    progress = details.progress
    statuses = () if query.files is None else (query.files,)
    documents = session.library.documents(
        visitor.limit_selector(DocumentSelector(batch_ids=(batch.id,), statuses=statuses)), most=_FILES_MAX
    )
    being_read = [document for document in documents if document.status is IndexStatus.INDEXING]
    row = _batch_row(details)
    failures = FailurePage((), None)
    if progress.files_failed or progress.jobs_failed:
        failures = list_failures(session, visitor.owner, batch_id=batch.id, limit=_FAILURES_MAX)
        is_complete_list = bool(failures.items) and failures.next is None
        if is_complete_list and all(failure.helps != "retry" for failure in failures.items):
            # A retry would fail in the same way.
            row = replace(row, actions=[action for action in row.actions if action != "retry"])
    return render(
        request,
        "batch.html",
        title=batch.title,
        row=row,
        progress=progress,
        meter_parts=_meter_parts(progress),
        estimate=_estimate(details),
        facts=_facts(progress),
        failures=failures.items,
        filters=_file_filters(progress, f"/batches/{batch.id}", query.files),
        documents=documents,
        progress_by_document_id=reading_progress(session, being_read),
        batch_actions=ACTIONS,
    )


def confirm_action(request: Request, session: Session) -> Response:
    verb = request.path_params["verb"]
    action = ACTIONS.get(verb)
    if action is None or not action.warning:
        raise NoSuchPage(f"{request.url.path} does not exist")
    batch = _requested_batch(session, request)
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
    batch = _requested_batch(session, request)
    action.run(session, batch.id)
    return redirect("/batches" if verb == "rm" else f"/batches/{batch.id}", message=action.message_key)


def _requested_batch(session: Session, request: Request) -> Batch:
    return visible_batch(session, visitor_of(request), request.path_params["batch_id"])


def _batch_row(details: BatchDetails) -> BatchRow:
    state = details.batch.state
    return BatchRow(details.batch, STATES[state], _TONES[state], batch_progress(details), _allowed_actions(details))


def _allowed_actions(details: BatchDetails) -> Sequence[str]:
    batch, progress = details.batch, details.progress
    retry = ["retry"] if progress.jobs_failed or progress.files_failed else []
    if batch.state is BatchState.STOPPED:
        return ["resume", "rm" if progress.jobs == progress.jobs_ended else "cancel"]
    if batch.state.is_ended:
        return [*retry, "rm"]
    # A replaced batch waits for its replacement, but may be resumed before that has ended.
    resume = ["resume"] if batch.replaced_by is not None else []
    return [*resume, "stop", *retry, "cancel"]


def _meter_parts(progress: BatchProgress) -> Sequence[MeterPart]:
    """Count files, or jobs if the batch has no files."""
    if not progress.files:
        jobs = progress.by_job_status
        return [
            MeterPart("done", jobs.get(Status.COMPLETED, 0), "done"),
            MeterPart("now", jobs.get(Status.RUNNING, 0), "running"),
            MeterPart("bad", jobs.get(Status.FAILED, 0), "failed"),
            MeterPart("wait", jobs.get(Status.CANCELLED, 0), "cancelled"),
            MeterPart("wait", jobs.get(Status.PENDING, 0), "waiting"),
        ]
    read = progress.files_ended - progress.files_failed - progress.files_cancelled
    reading = progress.by_document_state.get(IndexStatus.INDEXING, 0)
    return [
        MeterPart("done", read, "read"),
        MeterPart("now", reading, "reading"),
        MeterPart("bad", progress.files_failed, "could not be read"),
        MeterPart("wait", progress.files_cancelled, "cancelled"),
        MeterPart("wait", progress.files - progress.files_ended - reading, "waiting"),
    ]


def _estimate(details: BatchDetails) -> str:
    if details.batch.state is not BatchState.ACTIVE or not details.progress.files:
        return ""
    seconds = details.progress.seconds_left
    return "No estimate yet" if seconds is None else time_left(seconds).capitalize()


def _facts(progress: BatchProgress) -> str:
    has_files_left = progress.files_ended < progress.files
    facts = []
    if progress.pages:
        has_uncounted_files = progress.pages_left is None and has_files_left
        so_far = " counted so far" if has_uncounted_files else ""
        facts.append(f"{progress.pages_read:,} of {counted(progress.pages, 'page')}{so_far}")
    if progress.pages_a_minute and has_files_left:
        facts.append(f"{counted(round(progress.pages_a_minute), 'page')} a minute")
    if progress.size:
        facts.append(format_size(progress.size))
    return " · ".join(facts)


def _file_filters(progress: BatchProgress, path: str, chosen: IndexStatus | None) -> Sequence[FilterLink]:
    """Return nothing if all files have one state and no filter is chosen."""
    counts = progress.by_document_state
    all_files = FilterLink("All", path, chosen is None, sum(counts.values()))
    by_state = [
        FilterLink(label, f"{path}?files={status}", chosen is status, counts[status])
        for status, label in _FILE_STATES.items()
        if counts.get(status)
    ]
    return [all_files, *by_state] if len(by_state) > 1 or chosen else []


# ── A new batch ─────────────────────────────────────────────────────────────────────────────────────────────────────

_EMPTY_FORM = {"sources": "", "name": "", "owner": "", "lang": "", "priority": str(batches.PRIORITY)}


def new_batch_form(request: Request) -> Response:
    visitor_of(request).require(TokenScope.OPERATE)
    return _form_page(request, _EMPTY_FORM)


def add_batch(request: Request) -> Response:
    form = {name: form_of(request).get(name, "") for name in _EMPTY_FORM}
    try:
        with session_of(request) as session:
            added = _submit_batch(session, visitor_of(request), form)
    except (BadInput, BadPayload, Refused, NotAllowed) as error:
        # Show the form again with the user's input.
        return _form_page(request, form, str(error), status_of(error))
    return redirect(f"/batches/{added.batch.id}", message="submitted")


def _submit_batch(session: Session, visitor: Visitor, form: Mapping[str, str]) -> BatchAdded:
    sources = [line.strip() for line in form["sources"].splitlines() if line.strip()]
    if not sources:
        raise BadInput("enter at least one source: a folder, file or URL on each line")
    owner = owner_for(visitor, form["owner"].strip() or None)
    options = {"lang": [form["lang"].strip()]}  # an empty text means the default
    batch_jobs = source_jobs(session, visitor, sources, options, owner=owner)
    return batches.add_batch(
        session,
        batch_jobs.jobs,
        batches.BatchRequest(
            owner,
            name=form["name"].strip(),
            priority=parse_number(form["priority"] or str(batches.PRIORITY), "priority"),
            asked={"sources": sources[:_SOURCE_NAMES_MAX]},
        ),
    )


def _form_page(request: Request, form: Mapping[str, str], problem: str = "", status: int = 200) -> Response:
    return render(request, "batch_new.html", title="Start a batch", form=form, problem=problem, status=status)


routes = [
    page_route("/batches", batches_page),
    Route("/batches/new", new_batch_form),
    Route("/batches/new", add_batch, methods=["POST"]),
    page_route("/batches/{batch_id:id}", batch_page),
    page_route("/batches/{batch_id:id}/{verb}", confirm_action),
    page_route("/batches/{batch_id:id}/{verb}", run_action, methods=["POST"]),
]
