"""The Jobs page: a filtered list, bulk changes with a preview, enqueue, and details of one job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker_service.base.clock import from_text
from worker_service.base.errors import BadInput, BadPayload, BatchNotFound, JobNotFound, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.actions import read_json
from worker_service.jobs.attempts import AttemptRow
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.services import batches, job_control
from worker_service.services import enqueue as entering
from worker_service.services import jobs as operations
from worker_service.services.database import Session
from worker_service.services.job_control import ENDED, LIVE, Plan
from worker_service.services.jobs import JobInWhole, state_of
from worker_service.web.access import Power, Visitor, visitor_of
from worker_service.web.api.jobs import own, refuse_places
from worker_service.web.database_sessions import opened
from worker_service.web.error_responses import NotAllowed, status_of
from worker_service.web.views import page
from worker_service.web.views.forms import Filters, back_to, number, outcome, posted, said, told
from worker_service.web.views.home import follow
from worker_service.web.views.template_filters import command, length, size

AT_ONCE = 50
LOOK_SECONDS = 0.015
"""Time limit for filters that no index serves. The page then says how far the search got."""
_LOG_MOST = 400
VERBS = {"cancel": "Cancel", "retry": "Retry", "priority": "Set the priority of", "delete": "Delete"}
_GONE = {
    "cancel": "Pending jobs are cancelled at once; running jobs are asked to stop. Undo retries them.",
    "retry": "They run again with a fresh retry budget. Undo cancels them.",
    "priority": "1 is the highest. Undo restores the previous priorities.",
    "delete": "Their attempts, events and logs are deleted, too. This cannot be undone.",
}


class Row(Struct, frozen=True):
    job: Job
    state: str
    under: str
    """Line below the name."""
    at: str
    """Time of its last change of state."""


# ── The list ────────────────────────────────────────────────────────────────────────────────────────────────────────


def jobs(request: Request) -> Response:
    visitor, filters = visitor_of(request), Filters.of(request.query_params)
    before = number(request.query_params.get("before"), "before")
    with opened(request) as session:
        selector = visitor.only(filters.selector())
        found = operations.look_for_jobs(session, selector, limit=AT_ONCE, before_id=before, seconds=LOOK_SECONDS)
        is_counted = visitor.owner is None and not filters.beside_status
        counts = session.reading.counts().by_status if is_counted else {}
        return page(
            request,
            "jobs.html",
            title="Jobs",
            told=told(session, request),
            filters=filters,
            tabs=_tabs(filters, counts),
            rows=[_row(job) for job in found.items],
            next=found.next,
            is_partial=found.is_partial,
            is_first=before is None,
            matching=_matching(filters, counts, found.items, is_all=before is None and found.next is None),
            command=command("ls", *filters.words()),
            names={column: session.reading.names(column, "") for column in ("job_type", "owner")}
            if visitor.owner is None
            else {},
            is_empty=not any(counts.values()) if counts else False,
        )


def _row(job: Job) -> Row:
    state = state_of(job)
    under = [job.job_type, job.owner, job.account or ""]
    return Row(job, state, " · ".join(filter(None, under)), job.completed_at or job.started_at or job.created_at)


def _tabs(filters: Filters, counts: Mapping[Status, int]) -> Sequence[tuple[str, str, int | None, bool]]:
    chosen = filters.all("status")
    rest = [
        (str(one).capitalize(), filters.address(status=str(one)), counts.get(one), chosen == [one]) for one in Status
    ]
    return [("All", filters.address(status=None), sum(counts.values()) if counts else None, not chosen), *rest]


def _matching(filters: Filters, counts: Mapping[Status, int], shown: Sequence[Job], *, is_all: bool) -> int | None:
    """Return how many jobs match, or None if counting would need another query."""
    if is_all:
        return len(shown)
    if not counts:
        return None
    statuses = filters.all("status")
    return sum(count for status, count in counts.items() if not statuses or status in statuses)


# ── Bulk changes ────────────────────────────────────────────────────────────────────────────────────────────────────


def plan_change(request: Request) -> Response:
    """Show what a bulk change would do."""
    query, visitor = request.query_params, visitor_of(request)
    verb, filters = _verb(query.get("verb")), Filters.of(query)
    level = _priority(verb, query.get("priority"))
    with opened(request) as session:
        if not _chosen(filters, query.get("scope")):
            return back_to("/jobs", said="nothing")
        chosen = _of_theirs(session, visitor, filters, query.get("scope"))
        plan = job_control.plan(session, verb, chosen, priority=level, seconds=LOOK_SECONDS)
        how_many = f"at least {counted(plan.jobs, 'job')}" if plan.jobs else "all jobs that match"
        return page(
            request,
            "change.html",
            title=f"{VERBS[verb]} {how_many if plan.is_partial else counted(plan.jobs, 'job')}",
            plan=plan,
            sample=[_row(job) for job in plan.sample],
            fields=[*_fields(filters, query.get("scope")), *([("priority", level)] if level else [])],
            what=_GONE[verb],
            word=VERBS[verb],
            command=_command(plan, _kept(filters, query.get("scope"))),
        )


def change(request: Request, form: FormData) -> Response:
    visitor, verb, filters = visitor_of(request), _verb(said(form, "verb")), Filters.of(form)
    with opened(request) as session:
        selector = _of_theirs(session, visitor, filters, said(form, "scope") or None)
        level = _priority(verb, said(form, "priority"))
        plan = job_control.plan(session, verb, selector, priority=level, seconds=0)
        return back_to("/jobs", **outcome(job_control.change(session, plan)))


def _verb(word: str | None) -> str:
    if word not in VERBS:
        raise BadInput(f"jobs have no action {word!r}: choose {', '.join(VERBS)}")
    return word


def _priority(verb: str, word: str | None) -> int | None:
    return number(word, "priority") if verb == "priority" else None


def _chosen(filters: Filters, scope: str | None) -> bool:
    return bool(_kept(filters, scope))


def _kept(filters: Filters, scope: str | None) -> Filters:
    """Return the filters for `scope`: all matching jobs, or only the ticked ones."""
    if scope == "all":
        kept = Filters([(name, word) for name, word in filters.said if name != "id"])
        # Without filters every job is meant, and a selector must not be empty.
        return kept or Filters([("status", ",".join(Status))])
    ticked = Filters([(name, word) for name, word in filters.said if name == "id"])
    return ticked if ticked or scope == "ticked" else filters


def _meant(filters: Filters, scope: str | None) -> Selector:
    return _kept(filters, scope).selector()


def _of_theirs(session: Session, visitor: Visitor, filters: Filters, scope: str | None) -> Selector:
    meant = _meant(filters, scope)
    operations.require(session, meant.ids, visitor.owner)
    return visitor.only(meant)


def _fields(filters: Filters, scope: str | None) -> Sequence[tuple[str, str]]:
    return [*_kept(filters, scope).said, *([("scope", scope)] if scope else [])]


def _command(plan: Plan, filters: Filters) -> str:
    level = [plan.priority] if plan.verb == "priority" else []
    return command(plan.verb, *level, *filters.words())


# ── Enqueue ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_SAID = {"job_type": "", "priority": "5", "name": "", "owner": "", "payload": ""}


def ask_for_one(request: Request) -> Response:
    visitor_of(request).must(Power.OPERATE)
    # Ignore the query: a link from another site must not fill in a job for the user to submit.
    return _form_of_one(request, _SAID)


def enqueue(request: Request, form: FormData) -> Response:
    typed = {name: said(form, name) for name in _SAID}
    try:
        with opened(request) as session:
            made = entering.enqueue(session, _words(visitor_of(request), typed), lambda _: b"")
            return back_to(f"/jobs/{made.job_id}", said="existing" if made.existing else "enqueued")
    except (BadInput, BadPayload, Refused, NotAllowed) as error:
        # Show the form again with the user's input.
        return _form_of_one(request, typed, str(error), status_of(error))


def _words(visitor: Visitor, typed: Mapping[str, str]) -> dict[str, object]:
    words: dict[str, object] = {"job_type": typed["job_type"], "priority": number(typed["priority"], "priority")}
    words["name"] = typed["name"].strip() or None
    words["owner"] = own(visitor, typed["owner"].strip() or None)
    if typed["payload"].strip():
        # Parse it here, because `enqueue` would read a file for `@name`.
        payload = read_json(typed["payload"])
        refuse_places(visitor, payload)
        words["payload"] = json.dumps(payload, ensure_ascii=False)
    return words


def _form_of_one(request: Request, typed: Mapping[str, str], refused: str = "", status: int = 200) -> Response:
    with opened(request) as session:
        types = session.reading.names("job_type", "") if visitor_of(request).owner is None else []
        known = {*types, *session.reading.names("handler", "")}
    return page(
        request, "job_new.html", title="Enqueue a job", said=typed, refused=refused, types=sorted(known), status=status
    )


# ── One job ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Step(Struct, frozen=True):
    """An event in a job's history."""

    at: str
    what: str
    kind: str
    more: Sequence[str] = ()


def one(request: Request) -> Response:
    visitor, job_id = visitor_of(request), _id(request)
    with opened(request) as session:
        found = _visible(session, visitor, job_id)
        whole = operations.job_in_whole(session, job_id)
        pending_or_failed = found.status in (Status.PENDING, Status.RUNNING, Status.FAILED, Status.CANCELLED)
        return page(
            request,
            "job.html",
            title=f"Job {job_id}",
            told=told(session, request),
            job=found,
            state=state_of(found),
            running=follow(found),
            stops_at=operations.stops_at(session, found) if found.status is Status.RUNNING else None,
            whole=whole,
            course=_course(whole),
            why=operations.why(session, job_id) if pending_or_failed else None,
            log=operations.log(session, job_id)[-_LOG_MOST:],
            log_most=_LOG_MOST,
            can=_can(found),
            batch=_batch(session, visitor, found),
            size=size,
        )


def _id(request: Request) -> int:
    text = request.path_params["job_id"]
    return number(text, "the id of a job") or 0


def _visible(session: Session, visitor: Visitor, job_id: int) -> Job:
    job = session.reading.get(job_id)
    if not visitor.may_see(job.owner):
        raise JobNotFound(f"there is no job {job_id}", "`pagemill ls` shows those that are there")
    return job


def _batch(session: Session, visitor: Visitor, job: Job) -> str | None:
    if job.batch_id is None:
        return None
    try:
        batch = batches.batch(session, job.batch_id)
    except BatchNotFound:
        return f"batch {job.batch_id} (removed)"
    return batch.title if visitor.may_see(batch.owner) else None


def _can(job: Job) -> Sequence[str]:
    if job.status in LIVE:
        asked = job.cancel_requested_at is not None
        return [*([] if asked else ["cancel"]), *(["priority", "delete"] if job.status is Status.PENDING else [])]
    assert job.status in ENDED
    return ["retry", "delete"]


def _course(whole: JobInWhole) -> Sequence[Step]:
    """Return the job's history, newest first."""
    job = whole.job
    steps = [Step(job.created_at, "Created", "created")]
    for attempt in whole.attempts:
        number_of = f"Attempt {attempt.fence}"
        kind = "running" if attempt.ended_at is None else "began"
        where = f"on {attempt.worker_id}" if attempt.node is None else f"on {attempt.node}, for {attempt.worker_id}"
        steps.append(Step(attempt.started_at, f"{number_of} started", kind, [where]))
        if attempt.ended_at is not None:
            steps.append(
                Step(attempt.ended_at, f"{number_of}: {attempt.outcome}", attempt.outcome or "", _cost(attempt))
            )
    if job.completed_at is not None and (not whole.attempts or job.status is Status.CANCELLED):
        last = whole.attempts[-1].ended_at if whole.attempts else None
        if last is None or job.completed_at > last:
            steps.append(Step(job.completed_at, str(job.status).capitalize(), str(job.status)))
    if job.status is Status.PENDING and job.run_at is not None:
        steps.append(Step(job.run_at, "May start" if not whole.attempts else "May start again", "pending"))
    return sorted(steps, key=lambda step: step.at, reverse=True)


def _cost(attempt: AttemptRow) -> Sequence[str]:
    took = (from_text(attempt.ended_at or "") - from_text(attempt.started_at)).total_seconds()
    said = [f"took {took:.1f} s" if took < 60 else f"took {length(took)}"]
    if attempt.cpu_seconds is not None:
        said.append(f"{attempt.cpu_seconds:.1f} s of CPU")
    if attempt.memory_peak_bytes is not None:
        said.append(f"{size(attempt.memory_peak_bytes)} of memory")
    if attempt.signal is not None:
        said.append(attempt.signal)
    error = ": ".join(filter(None, [attempt.error_code, attempt.error_text]))
    return [" · ".join(said), *([error] if error else [])]


def act(request: Request, form: FormData) -> Response:
    visitor, job_id, verb = visitor_of(request), _id(request), _verb(request.path_params["verb"])
    with opened(request) as session:
        _visible(session, visitor, job_id)
        plan = job_control.plan(
            session, verb, Selector(ids=(job_id,)), priority=_priority(verb, said(form, "priority"))
        )
        changed = job_control.change(session, plan)
        if reason := changed.refused.get(job_id):
            raise Refused(reason)
        return back_to("/jobs" if verb == "delete" else f"/jobs/{job_id}", **outcome(changed))


routes = [
    Route("/jobs", jobs),
    Route("/jobs/change", plan_change),
    Route("/jobs/change", posted(change), methods=["POST"]),
    Route("/jobs/new", ask_for_one),
    Route("/jobs/new", posted(enqueue), methods=["POST"]),
    Route("/jobs/{job_id}", one),
    Route("/jobs/{job_id}/{verb}", posted(act), methods=["POST"]),
]
