"""The Batches page: list, progress and failures of a batch, and actions on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput, BadPayload, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.batches import Batch, BatchAdded, BatchState
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import batches
from worker_service.services.batches import BatchDetails, describe_progress
from worker_service.services.database import Session
from worker_service.services.documents import each_with_origin
from worker_service.services.jobs import find_jobs
from worker_service.services.spreadsheets import LIST_COLUMNS, csv_lines, list_row
from worker_service.web.access import Power, Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.error_responses import NoSuchPage, NotAllowed, status_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import read_known
from worker_service.web.resources.batches import BatchesQuery, jobs_of_sources, list_batches, visible_batch
from worker_service.web.resources.jobs import LOOK_SECONDS, owner_for
from worker_service.web.streaming import stream_lines
from worker_service.web.views import render
from worker_service.web.views.flash import flash_of, redirect
from worker_service.web.views.forms import parse_number, same_page
from worker_service.web.views.template_filters import command, length, size

BATCHES_PER_PAGE = 20
_FAILURES_MAX = 500
_SOURCES_KEPT_MAX = 100
"""Sources of a batch that are stored for display."""


class BatchAction(Struct, frozen=True):
    label: str
    run: Callable[[Session, int], object]
    message: str
    """Key of the sentence that the next page shows."""
    warning: str = ""
    """Text of the confirmation page; empty if the action needs no confirmation."""


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


class BatchRow(Struct, frozen=True):
    batch: Batch
    progress: str
    percent: int
    actions: Sequence[str]
    """Keys of `ACTIONS` that the batch allows in its state."""


class BatchFailures(Struct, frozen=True):
    by_code: Sequence[tuple[str, int, Job]]
    is_all: bool
    """False if only the newest failures were counted."""


def batches_page(request: Request) -> Response:
    query = read_known(request.query_params.multi_items(), BatchesQuery)
    with session_of(request) as session:
        found = list_batches(session, visitor_of(request), replace(query, limit=BATCHES_PER_PAGE))
        return render(
            request,
            "batches.html",
            title="Batches",
            flash=flash_of(session, request),
            rows=[_row(one) for one in found.items],
            states=list(BatchState),
            query=query,
            newest=same_page(request, before=None) if query.before else "",
            older=same_page(request, before=found.next) if found.next else "",
            labels=ACTIONS,
        )


# ── One batch ───────────────────────────────────────────────────────────────────────────────────────────────────────


def batch_page(request: Request) -> Response:
    with session_of(request) as session:
        batch = _visible(session, request)
        found = batches.get_batch_details(session, batch.id)
        return render(
            request,
            "batch.html",
            title=batch.title,
            flash=flash_of(session, request),
            row=_row(found),
            facts=_facts(found),
            failures=_failures(session, batch.id) if found.progress.jobs_failed else None,
            labels=ACTIONS,
        )


def file_list_csv(request: Request) -> Response:
    """Send a CSV of every file in the batch, like `pagemill documents --batch`."""
    with session_of(request) as session:
        batch_id = _visible(session, request).id

    def lines() -> Iterator[str]:
        selector = visitor_of(request).only(DocumentSelector(batch_ids=(batch_id,)))
        with session_of(request) as session:
            yield from csv_lines(LIST_COLUMNS, map(list_row, each_with_origin(session, selector)))

    return stream_lines(lines(), "text/csv; charset=utf-8", file_name=f"batch-{batch_id}.csv")


def confirm_action(request: Request) -> Response:
    verb = request.path_params["verb"]
    action = ACTIONS.get(verb)
    if action is None or not action.warning:
        raise NoSuchPage(f"{request.url.path} does not exist")
    with session_of(request) as session:
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


def run_action(request: Request) -> Response:
    verb = request.path_params["verb"]
    action = ACTIONS.get(verb)
    if action is None:
        raise NoSuchPage(f"a batch has no action {verb!r}")
    with session_of(request) as session:
        batch = _visible(session, request)
        action.run(session, batch.id)
    return redirect("/batches" if verb == "rm" else f"/batches/{batch.id}", message=action.message)


def _visible(session: Session, request: Request) -> Batch:
    return visible_batch(session, visitor_of(request), request.path_params["batch_id"])


def _row(found: BatchDetails) -> BatchRow:
    return BatchRow(found.batch, describe_progress(found), found.progress.percent, _allowed_actions(found))


def _allowed_actions(found: BatchDetails) -> Sequence[str]:
    batch, progress = found.batch, found.progress
    retry = ["retry"] if progress.jobs_failed or progress.files_failed else []
    if batch.state is BatchState.STOPPED:
        return ["resume", "rm" if progress.jobs == progress.jobs_ended else "cancel"]
    if batch.state.is_ended:
        return [*retry, "rm"]
    return [*(["resume"] if batch.replaced_by is not None else []), "stop", *retry, "cancel"]


def _facts(batch: BatchDetails) -> Sequence[tuple[str, str]]:
    now, is_live = batch.progress, not batch.batch.state.is_ended
    more = "+" if now.may_find_more else ""
    facts = [
        ("Files", f"{now.files_ended:,} of {now.files:,}{more}" if now.files else ""),
        ("Pages", f"{now.pages_read:,} of {now.pages:,}{more}" if now.pages else ""),
        ("Jobs", f"{now.jobs_ended:,} of {now.jobs:,}{more}"),
        ("Failed", f"{now.files_failed or now.jobs_failed:,}"),
        ("Cancelled", f"{now.files_cancelled:,}" if now.files_cancelled else ""),
        ("Rate", f"{now.pages_a_minute:.0f} pages/min" if is_live and now.pages_a_minute is not None else ""),
        ("Time left", length(now.seconds_left) if now.seconds_left is not None else ""),
        ("Originals", size(now.size) if now.size else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _failures(session: Session, batch_id: int) -> BatchFailures:
    failed = Selector(batch_id=batch_id, statuses=(Status.FAILED,))
    found = find_jobs(session, failed, limit=_FAILURES_MAX, seconds=LOOK_SECONDS)
    newest: dict[str, Job] = {}
    for job in found.items:
        newest.setdefault(job.error_code or "", job)
    counts = Counter(job.error_code or "" for job in found.items)
    return BatchFailures([(code, number, newest[code]) for code, number in counts.most_common()], found.next is None)


# ── A new batch ─────────────────────────────────────────────────────────────────────────────────────────────────────

_EMPTY_FORM = {"sources": "", "name": "", "owner": "", "lang": "", "priority": str(batches.PRIORITY)}


def new_batch_form(request: Request) -> Response:
    visitor_of(request).must(Power.OPERATE)
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
    Route("/batches", batches_page),
    Route("/batches/new", new_batch_form),
    Route("/batches/new", add_batch, methods=["POST"]),
    Route("/batches/{batch_id:id}.csv", file_list_csv),
    Route("/batches/{batch_id:id}", batch_page),
    Route("/batches/{batch_id:id}/{verb}", confirm_action),
    Route("/batches/{batch_id:id}/{verb}", run_action, methods=["POST"]),
]
