"""The Jobs page: list, bulk changes with a preview, enqueue, and details."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.clock import from_text
from worker_service.base.errors import BadInput, BadPayload, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.attempts import AttemptRow
from worker_service.jobs.follow_ups import read_json
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.jobs.selector import Selector
from worker_service.services import enqueue as enqueuing
from worker_service.services import job_advice, job_control
from worker_service.services.failure_sentences import explain_failure, may_read_again
from worker_service.services.job_control import LIVE
from worker_service.services.job_details import JobDetails, read_log
from worker_service.services.jobs import progress_in_words, state_of
from worker_service.services.session import Session
from worker_service.web.access import TokenScope, Visitor, visitor_of
from worker_service.web.database_sessions import session_of
from worker_service.web.error_responses import NoSuchPage, NotAllowed, status_of
from worker_service.web.middleware import form_of
from worker_service.web.parameters import parse_number, query_of, read_known_parameters
from worker_service.web.resources import jobs as resource
from worker_service.web.resources.batches import find_visible_batch
from worker_service.web.resources.jobs import SEARCH_SECONDS_MAX, JobFilters, JobsQuery, visible_job
from worker_service.web.sign_in import safe_path
from worker_service.web.views import page_route, render
from worker_service.web.views.filter_links import FilterLink, same_page
from worker_service.web.views.flash_messages import redirect, redirect_after
from worker_service.web.views.template_filters import command, format_size, length

_LOG_LINES_MAX = 400
# States of a job, as `state_of` returns them.
_URGENT_FIRST = ("failed", "running", "pending", "backoff", "waiting", "stopped")
VERBS = {"cancel": "Cancel", "retry": "Retry", "priority": "Set the priority of", "delete": "Delete"}
_CONSEQUENCES = {
    "cancel": "Pending jobs are cancelled at once; running jobs are asked to stop. Undo retries them.",
    "retry": "The jobs run again with a fresh retry budget. Undo cancels them.",
    "priority": "1 is the highest. Undo restores the previous priorities.",
    "delete": "Their attempts, events and logs are deleted, too. This cannot be undone.",
}


class JobRow(Struct, frozen=True):
    job: Job
    state: str
    about: str
    changed_at: str


class JobGroup(Struct, frozen=True):
    """The jobs of a document on this page, or one job without a document."""

    rows: Sequence[JobRow]
    document: Document | None = None

    @property
    def ids(self) -> str:
        return ",".join(str(row.job.id) for row in self.rows)

    @property
    def state(self) -> str:
        states = {row.state for row in self.rows}
        return next((state for state in _URGENT_FIRST if state in states), self.rows[0].state)

    @property
    def states_in_words(self) -> str:
        counts = Counter(row.state for row in self.rows)
        return ", ".join(f"{number} {state}" for state, number in counts.items())


class Filters(Struct, frozen=True):
    pairs: Sequence[tuple[str, str]]

    @classmethod
    def read(cls, parameters: ImmutableMultiDict[str, str]) -> Filters:
        """Split the ids of a ticked document, which are one value of the form."""
        pairs: list[tuple[str, str]] = []
        for name, value in parameters.multi_items():
            if name in JobFilters.__struct_fields__ and value:
                values = value.split(",") if name == "id" else [value]
                pairs += [(name, single_value) for single_value in values]
        return cls(pairs)

    def get(self, name: str) -> str:
        return next((value for filter_name, value in self.pairs if filter_name == name), "")

    def values(self, name: str) -> list[str]:
        joined = ",".join(value for filter_name, value in self.pairs if filter_name == name)
        return [value.strip() for value in joined.split(",") if value.strip()]

    def __bool__(self) -> bool:
        return bool(self.pairs)

    @property
    def has_more_than_status(self) -> bool:
        return any(name != "status" for name, _ in self.pairs)

    def in_scope(self, scope: str | None) -> Filters:
        """Return the filters of a change. "all" ignores ticked jobs; "ticked", or a tick, ignores other filters."""
        if scope == "all":
            without_ids = Filters([(name, value) for name, value in self.pairs if name != "id"])
            # Without filters, name all statuses: a change refuses an empty selector.
            return without_ids or Filters([("status", ",".join(Status))])
        ticked = Filters([(name, value) for name, value in self.pairs if name == "id"])
        return ticked if ticked or scope == "ticked" else self

    def shell_arguments(self) -> list[str]:
        flags: list[str] = []
        for name, value in self.pairs:
            if name != "id":
                flags += [f"--{name.replace('_', '-')}", value]
        return [*flags, *self.values("id")]


# ── The list ────────────────────────────────────────────────────────────────────────────────────────────────────────


def jobs_page(request: Request, session: Session) -> Response:
    visitor, filters = visitor_of(request), Filters.read(request.query_params)
    query = query_of(request, JobsQuery)
    listing = resource.list_jobs(session, visitor, query)
    sees_all = visitor.owner is None
    counts = session.overview.count_by_status() if sees_all and not filters.has_more_than_status else {}
    is_complete = query.before is None and listing.next is None
    return render(
        request,
        "jobs.html",
        title="Jobs",
        filters=filters,
        tabs=_tabs(request, filters, counts),
        groups=_groups(session, listing.items),
        searched_back_to=listing.next,
        newest=same_page(request, before=None) if query.before else "",
        older=same_page(request, before=listing.next) if listing.next else "",
        is_partial=listing.is_partial,
        matching=len(listing.items) if is_complete else _count_matching(filters, counts),
        command=command("ls", *filters.shell_arguments()),
        types=session.job_queries.names("job_type", prefix="") if sees_all else (),
        owners=session.job_queries.names("owner", prefix="") if sees_all else (),
    )


def _groups(session: Session, jobs: Sequence[Job]) -> Sequence[JobGroup]:
    ids = tuple({job.document_id for job in jobs if job.document_id})
    documents = session.library.documents(DocumentSelector(ids=ids), most=len(ids)) if ids else ()
    document_by_id = {document.id: document for document in documents}
    document_by_source = _documents_of_sources(session, [job for job in jobs if job.source_key and not job.document_id])
    groups: dict[tuple[str, int], tuple[list[JobRow], Document | None]] = {}
    for job in jobs:
        source = job.owner, job.platform, job.source_key or ""
        document = document_by_id.get(job.document_id or 0) or document_by_source.get(source)
        key = ("job", job.id) if document is None else ("document", document.id)
        rows, _ = groups.setdefault(key, ([], document))
        rows.append(_job_row(job))
    return [JobGroup(rows, document) for rows, document in groups.values()]


def _documents_of_sources(session: Session, fetches: Sequence[Job]) -> Mapping[tuple[str, str, str], Document]:
    """Return the documents that these jobs fetched, by owner, platform and source key."""
    if not fetches:
        return {}
    selector = DocumentSelector(
        owners=tuple({job.owner for job in fetches}),
        platforms=tuple({job.platform for job in fetches}),
        source_keys=tuple({job.source_key or "" for job in fetches}),
    )
    documents = session.library.documents(selector, most=len(fetches))
    return {(document.owner, document.platform, document.source_key): document for document in documents}


def _job_row(job: Job) -> JobRow:
    about = " · ".join(filter(None, [job.job_type, job.owner, job.account or ""]))
    return JobRow(job, state_of(job), about, job.completed_at or job.started_at or job.created_at)


def _tabs(request: Request, filters: Filters, counts: Mapping[Status, int]) -> Sequence[FilterLink]:
    chosen = filters.values("status")
    all_count = sum(counts.values()) if counts else None
    tabs = [FilterLink("All", same_page(request, status=None, before=None), not chosen, all_count)]
    for status in Status:
        path = same_page(request, status=status, before=None)
        tabs.append(FilterLink(status.capitalize(), path, chosen == [status], counts.get(status)))
    return tabs


def _count_matching(filters: Filters, counts: Mapping[Status, int]) -> int | None:
    """Return None if counting would need another query."""
    if not counts:
        return None
    statuses = filters.values("status")
    return sum(count for status, count in counts.items() if not statuses or status in statuses)


# ── Bulk changes ────────────────────────────────────────────────────────────────────────────────────────────────────


def preview_change(request: Request, session: Session) -> Response:
    query, visitor = request.query_params, visitor_of(request)
    verb, filters = _verb(query.get("verb")), Filters.read(query).in_scope(query.get("scope"))
    if not filters:
        return redirect("/jobs", message="nothing")
    priority = _priority(verb, query.get("priority"))
    priority_field = [] if priority is None else [("priority", priority)]
    selector = _selector(session, visitor, filters, verb)
    plan = job_control.make_plan(session, verb, selector, priority=priority, seconds=SEARCH_SECONDS_MAX)
    number = counted(plan.jobs, "job")
    if plan.is_partial:
        number = f"at least {number}" if plan.jobs else "all jobs that match"
    return render(
        request,
        "change.html",
        title=f"{VERBS[verb]} {number}",
        plan=plan,
        sample=[_job_row(job) for job in plan.sample],
        fields=[*filters.pairs, *priority_field],
        consequences=_CONSEQUENCES[verb],
        label=VERBS[verb],
        command=command(verb, *([priority] if priority else []), *filters.shell_arguments()),
    )


def change(request: Request, session: Session) -> Response:
    form = form_of(request)
    verb, filters = _verb(form.get("verb")), Filters.read(form).in_scope(form.get("scope"))
    selector = _selector(session, visitor_of(request), filters, verb)
    plan = job_control.make_plan(session, verb, selector, priority=_priority(verb, form.get("priority")), seconds=0)
    return redirect_after(safe_path(form.get("back"), "/jobs"), job_control.apply_plan(session, plan))


def _selector(session: Session, visitor: Visitor, filters: Filters, verb: str) -> Selector:
    return resource.selector_for_change(session, visitor, read_known_parameters(filters.pairs, JobFilters), verb)


def _verb(text: str | None) -> str:
    if text not in VERBS:
        raise BadInput(f"jobs have no action {text!r}", f"choose {', '.join(VERBS)}")
    return text


def _priority(verb: str, text: str | None) -> int | None:
    return parse_number(text or "", "priority") if verb == "priority" else None


# ── Enqueue ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_EMPTY_FORM = {"job_type": "", "priority": "5", "name": "", "owner": "", "payload": ""}


def enqueue_form(request: Request) -> Response:
    visitor_of(request).require(TokenScope.OPERATE)
    # Ignore the query: a link from another site must not fill in a job for the user to submit.
    return _form_page(request, _EMPTY_FORM)


def enqueue(request: Request) -> Response:
    form = {name: form_of(request).get(name, "") for name in _EMPTY_FORM}
    try:
        with session_of(request) as session:
            enqueued = enqueuing.enqueue(session, _job_fields(visitor_of(request), form), read_stdin=lambda _: b"")
    except (BadInput, BadPayload, Refused, NotAllowed) as error:
        # Show the form again with the user's input.
        return _form_page(request, form, str(error), status_of(error))
    return redirect(f"/jobs/{enqueued.job_id}", message="existing" if enqueued.existing else "enqueued")


def _job_fields(visitor: Visitor, form: Mapping[str, str]) -> dict[str, object]:
    fields: dict[str, object] = {
        "job_type": form["job_type"],
        "priority": parse_number(form["priority"] or "5", "priority"),
        "name": form["name"].strip() or None,
        "owner": resource.owner_for(visitor, form["owner"].strip() or None),
    }
    if form["payload"].strip():
        # Parse it here, because `enqueue` would read a file for `@name`.
        payload = read_json(form["payload"])
        resource.refuse_server_files(visitor, payload)
        fields["payload"] = json.dumps(payload, ensure_ascii=False)
    return fields


def _form_page(request: Request, form: Mapping[str, str], problem: str = "", status: int = 200) -> Response:
    with session_of(request) as session:
        types = {*session.job_queries.names("handler", prefix="")}
        if visitor_of(request).owner is None:
            types |= {*session.job_queries.names("job_type", prefix="")}
    return render(
        request, "job_new.html", title="Enqueue a job", form=form, problem=problem, types=sorted(types), status=status
    )


# ── One job ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class HistoryEntry(Struct, frozen=True):
    at: str
    title: str
    kind: str
    details: Sequence[str] = ()


def job_page(request: Request, session: Session) -> Response:
    visitor = visitor_of(request)
    details = resource.visible_job_details(session, visitor, request.path_params["job_id"])
    job = details.job
    return render(
        request,
        "job.html",
        title=f"Job {job.id}",
        job=job,
        state=state_of(job),
        progress=progress_in_words(job),
        stops_at=job_advice.stops_at(session, job) if job.status is Status.RUNNING else None,
        details=details,
        history=_history(details),
        why=None if job.status is Status.COMPLETED else job_advice.why(session, job.id),
        explanation=explain_failure(job) if job.status is Status.FAILED else None,
        log=read_log(session, job.id)[-_LOG_LINES_MAX:],
        log_lines_max=_LOG_LINES_MAX,
        actions=_allowed_actions(job),
        batch=find_visible_batch(session, visitor, job.batch_id),
        size=format_size,
    )


def change_one(request: Request, session: Session) -> Response:
    verb = request.path_params["verb"]
    if verb not in VERBS:
        raise NoSuchPage(f"a job has no action {verb!r}")
    job = visible_job(session, visitor_of(request), request.path_params["job_id"])
    priority = _priority(verb, form_of(request).get("priority"))
    plan = job_control.make_plan(session, verb, Selector(ids=(job.id,)), priority=priority)
    changed = job_control.apply_plan(session, plan)
    if reason := changed.refused.get(job.id):
        raise Refused(reason)
    return redirect_after("/jobs" if verb == "delete" else f"/jobs/{job.id}", changed)


def _allowed_actions(job: Job) -> Sequence[str]:
    if job.status not in LIVE:
        can_succeed = job.status is not Status.FAILED or may_read_again(job.error_code or "")
        return [*(["retry"] if can_succeed else []), "delete"]
    cancel = [] if job.cancel_requested_at else ["cancel"]
    return [*cancel, *(["priority", "delete"] if job.status is Status.PENDING else [])]


def _history(details: JobDetails) -> Sequence[HistoryEntry]:
    job, attempts = details.job, details.attempts
    entries = [HistoryEntry(job.created_at, "Created", "created")]
    for attempt in attempts:
        entries += _attempt_entries(attempt)
    was_cancelled_later = (
        bool(attempts) and job.status is Status.CANCELLED and (job.completed_at or "") > (attempts[-1].ended_at or "")
    )
    # A job that ended with its last attempt has the entry of this attempt.
    if job.completed_at is not None and (not attempts or was_cancelled_later):
        entries.append(HistoryEntry(job.completed_at, str(job.status).capitalize(), str(job.status)))
    if job.status is Status.PENDING and job.run_at is not None:
        entries.append(HistoryEntry(job.run_at, "May start again" if attempts else "May start", "pending"))
    return sorted(entries, key=lambda entry: entry.at, reverse=True)


def _attempt_entries(attempt: AttemptRow) -> Sequence[HistoryEntry]:
    title = f"Attempt {attempt.fence}"
    kind = "running" if attempt.ended_at is None else "began"
    where = f"on {attempt.worker_id}" if attempt.node is None else f"on {attempt.node}, for {attempt.worker_id}"
    entries = [HistoryEntry(attempt.started_at, f"{title} started", kind, [where])]
    if attempt.ended_at is not None:
        outcome = attempt.outcome or ""
        entries.append(HistoryEntry(attempt.ended_at, f"{title}: {outcome}", outcome, _attempt_details(attempt)))
    return entries


def _attempt_details(attempt: AttemptRow) -> Sequence[str]:
    seconds = (from_text(attempt.ended_at or "") - from_text(attempt.started_at)).total_seconds()
    used = [f"took {seconds:.1f} s" if seconds < 60 else f"took {length(seconds)}"]
    if attempt.cpu_seconds is not None:
        used.append(f"{attempt.cpu_seconds:.1f} s of CPU")
    if attempt.memory_peak_bytes is not None:
        used.append(f"{format_size(attempt.memory_peak_bytes)} of memory")
    if attempt.signal is not None:
        used.append(attempt.signal)
    error = ": ".join(filter(None, [attempt.error_code, attempt.error_text]))
    return [" · ".join(used), *([error] if error else [])]


routes = [
    page_route("/jobs", jobs_page),
    page_route("/jobs/change", preview_change),
    page_route("/jobs/change", change, methods=["POST"]),
    Route("/jobs/new", enqueue_form),
    Route("/jobs/new", enqueue, methods=["POST"]),
    page_route("/jobs/{job_id:id}", job_page),
    page_route("/jobs/{job_id:id}/{verb}", change_one, methods=["POST"]),
]
