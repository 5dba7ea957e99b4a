"""The Batches page: list, progress and failures of a batch, and actions on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.errors import BadInput, BadPayload, BatchNotFound, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.batches import Batch, BatchAdded, BatchState
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import batches as operations
from worker_service.services.batches import BatchInWhole, in_words
from worker_service.services.database import Session
from worker_service.services.documents import hand_over
from worker_service.services.jobs import look_for_jobs
from worker_service.services.spreadsheets import HAND_OVER_COLUMNS, csv_lines, hand_over_row
from worker_service.web.access import Power, Visitor, visitor_of
from worker_service.web.api.batches import sources_of
from worker_service.web.api.jobs import own
from worker_service.web.database_sessions import opened
from worker_service.web.error_responses import NoSuchPage, NotAllowed, status_of
from worker_service.web.streaming import lines_sent
from worker_service.web.views import page
from worker_service.web.views.forms import back_to, number, posted, said, told
from worker_service.web.views.jobs import LOOK_SECONDS
from worker_service.web.views.template_filters import command, length, size

AT_ONCE = 20
_FAILED_MOST = 500
_TOLD_MOST = 100
"""Sources stored for display."""

_DO: dict[str, tuple[Callable[[Session, int], object], str]] = {
    "stop": (operations.stop, "stopped"),
    "resume": (operations.resume, "resumed"),
    "retry": (operations.retry, "retried"),
    "cancel": (operations.cancel, "cancelled"),
    "rm": (operations.remove, "forgotten"),
}
_WORDS = {
    "stop": "Stop", "resume": "Resume", "retry": "Retry failed", "cancel": "Cancel the rest", "rm": "Remove",
}  # fmt: skip
_ASKED = {
    "cancel": "Pending jobs are cancelled at once; running jobs are asked to stop. Text already read is kept.",
    "rm": "Only the batch is removed; its jobs and documents are kept. This cannot be undone.",
}


class Row(Struct, frozen=True):
    batch: Batch
    words: str
    percent: int
    can: Sequence[str]


class Failures(Struct, frozen=True):
    """The newest failures of a batch."""

    by_code: Sequence[tuple[str, int, Job]]
    """Code, number of jobs, newest job."""
    is_all: bool


def list_batches(request: Request) -> Response:
    visitor, query = visitor_of(request), request.query_params
    state, owner, before = query.get("state"), query.get("owner"), number(query.get("before"), "before")
    owners = [visitor.owner] if visitor.owner is not None else [owner] if owner else []
    with opened(request) as session:
        found = operations.list_batches(
            session, owners=owners, states=[state] if state else [], limit=AT_ONCE, before_id=before
        )
        return page(
            request,
            "batches.html",
            title="Batches",
            told=told(session, request),
            rows=[_row(one) for one in found.items],
            states=list(BatchState),
            state=state or "",
            owner=owner or "",
            next=found.next,
            is_first=before is None,
            words=_WORDS,
        )


_SAID = {"sources": "", "name": "", "owner": "", "lang": "", "priority": str(operations.PRIORITY)}


def ask_for_one(request: Request) -> Response:
    visitor_of(request).must(Power.OPERATE)
    return _form_of_one(request, _SAID)


def add(request: Request, form: FormData) -> Response:
    typed = {name: said(form, name) for name in _SAID}
    try:
        with opened(request) as session:
            added = _added(session, visitor_of(request), typed)
    except (BadInput, BadPayload, Refused, NotAllowed) as error:
        # Show the form again with the user's input.
        return _form_of_one(request, typed, str(error), status_of(error))
    return back_to(f"/batches/{added.batch.id}", said="submitted")


def _added(session: Session, visitor: Visitor, typed: Mapping[str, str]) -> BatchAdded:
    sources = [line.strip() for line in typed["sources"].splitlines() if line.strip()]
    if not sources:
        raise BadInput("enter at least one source: a folder, file or URL on each line")
    owner, words = own(visitor, typed["owner"].strip() or None), {"lang": [typed["lang"].strip()]}
    made = sources_of(session, visitor, sources, words, owner=owner)
    level = number(typed["priority"], "priority")
    return operations.add(
        session,
        made.jobs,
        owner=owner,
        name=typed["name"].strip(),
        priority=operations.PRIORITY if level is None else level,
        asked={"sources": sources[:_TOLD_MOST]},
    )


def _form_of_one(request: Request, typed: Mapping[str, str], refused: str = "", status: int = 200) -> Response:
    return page(request, "batch_new.html", title="Start a batch", said=typed, refused=refused, status=status)


def one(request: Request) -> Response:
    batch_id = _id(request)
    with opened(request) as session:
        batch = visible_batch(session, request, batch_id)
        found = operations.show(session, batch_id)
        return page(
            request,
            "batch.html",
            title=batch.title,
            told=told(session, request),
            row=_row(found),
            now=found.progress,
            facts=_facts(found),
            failures=_failures(session, batch_id) if found.progress.jobs_failed else None,
            words=_WORDS,
        )


def hand_over_csv(request: Request) -> Response:
    """Send a CSV of every file in the batch, like `pagemill documents --batch`."""
    batch_id = _id(request)
    with opened(request) as session:
        visible_batch(session, request, batch_id)

    def written() -> Iterator[str]:
        chosen = visitor_of(request).only(DocumentSelector(batch_ids=(batch_id,)))
        with opened(request) as session:
            yield from csv_lines(HAND_OVER_COLUMNS, map(hand_over_row, hand_over(session, chosen)))

    return lines_sent(written(), "text/csv; charset=utf-8", file_name=f"batch-{batch_id}.csv")


def ask(request: Request) -> Response:
    """Ask for confirmation of an action that cannot simply be undone."""
    batch_id, verb = _id(request), request.path_params["verb"]
    if verb not in _ASKED:
        raise NoSuchPage(f"{request.url.path} does not exist")
    with opened(request) as session:
        batch = visible_batch(session, request, batch_id)
        left = operations.show(session, batch_id).progress
        return page(
            request,
            "batch_ask.html",
            title=f"{_WORDS[verb]}: {batch.title}",
            batch=batch,
            verb=verb,
            word=_WORDS[verb],
            what=_ASKED[verb],
            left=counted(left.jobs - left.jobs_ended, "job"),
            command_line=command("batch", verb, batch_id),
        )


def act(request: Request, form: FormData) -> Response:
    batch_id, verb = _id(request), request.path_params["verb"]
    if verb not in _DO:
        raise NoSuchPage(f"a batch has no action {verb!r}")
    do, what = _DO[verb]
    with opened(request) as session:
        visible_batch(session, request, batch_id)
        do(session, batch_id)
        return back_to("/batches" if verb == "rm" else f"/batches/{batch_id}", said=what)


def _id(request: Request) -> int:
    return number(str(request.path_params["batch_id"]), "the id of a batch") or 0


def visible_batch(session: Session, request: Request, batch_id: int) -> Batch:
    batch = operations.batch(session, batch_id)
    if not visitor_of(request).may_see(batch.owner):
        raise BatchNotFound(f"there is no batch {batch_id}", "`pagemill batch ls` shows those that are there")
    return batch


def _row(found: BatchInWhole) -> Row:
    return Row(found.batch, in_words(found), found.progress.percent, _can(found))


def _can(found: BatchInWhole) -> Sequence[str]:
    batch, now = found.batch, found.progress
    is_done = now.jobs == now.jobs_ended
    failed = ["retry"] if (now.jobs_failed or now.files_failed) and batch.state is not BatchState.STOPPED else []
    if batch.state is BatchState.STOPPED:
        return ["resume", *([] if is_done else ["cancel"]), *(["rm"] if is_done else [])]
    if batch.state.is_ended:
        return [*failed, "rm"]
    return [*(["resume"] if batch.replaced_by is not None else []), "stop", *failed, "cancel"]


def _facts(batch: BatchInWhole) -> Sequence[tuple[str, str]]:
    now, goes_on = batch.progress, not batch.batch.state.is_ended
    more = "+" if now.may_find_more else ""
    found = [
        ("Files", f"{now.files_ended:,} of {now.files:,}{more}" if now.files else ""),
        ("Pages", f"{now.pages_read:,} of {now.pages:,}{more}" if now.pages else ""),
        ("Jobs", f"{now.jobs_ended:,} of {now.jobs:,}{more}"),
        ("Failed", f"{now.files_failed or now.jobs_failed:,}"),
        ("Cancelled", f"{now.files_cancelled:,}" if now.files_cancelled else ""),
        ("Rate", f"{now.pages_a_minute:.0f} pages/min" if goes_on and now.pages_a_minute is not None else ""),
        ("Time left", length(now.seconds_left) if now.seconds_left is not None else ""),
        ("Originals", size(now.size) if now.size else ""),
    ]
    return [(name, value) for name, value in found if value]


def _failures(session: Session, batch_id: int) -> Failures:
    chosen = Selector(batch_id=batch_id, statuses=(Status.FAILED,))
    found = look_for_jobs(session, chosen, limit=_FAILED_MOST, seconds=LOOK_SECONDS)
    newest: dict[str, Job] = {}
    for job in found.items:
        newest.setdefault(job.error_code or "", job)
    counts = Counter(job.error_code or "" for job in found.items)
    return Failures([(code, many, newest[code]) for code, many in counts.most_common()], found.next is None)


routes = [
    Route("/batches", list_batches),
    Route("/batches/new", ask_for_one),
    Route("/batches/new", posted(add), methods=["POST"]),
    Route("/batches/{batch_id:int}.csv", hand_over_csv),
    Route("/batches/{batch_id}", one),
    Route("/batches/{batch_id}/{verb}", ask),
    Route("/batches/{batch_id}/{verb}", posted(act), methods=["POST"]),
]
