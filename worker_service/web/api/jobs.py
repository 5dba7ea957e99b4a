"""Jobs: list, details, enqueue, and changes to one job or to all that a selector matches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from worker_service.base.clock import PERIODS
from worker_service.base.errors import BadInput, JobNotFound, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.actions import read_action
from worker_service.jobs.history import Changed, LogLine
from worker_service.jobs.job import Job
from worker_service.jobs.selector import Selector
from worker_service.services import enqueue as entering
from worker_service.services import job_control
from worker_service.services import jobs as operations
from worker_service.services.job_control import Plan
from worker_service.services.jobs import FoundJobs, JobInWhole, Why
from worker_service.services.serialize import as_object
from worker_service.web.access import Visitor
from worker_service.web.api.endpoint import ID, TEXT, YES, Answer, Call, Endpoint, Field, Param, endpoint
from worker_service.web.api.schemas import Flat
from worker_service.web.api.selecting import BEFORE, CHOOSING, DRY_RUN, LIMIT, chosen
from worker_service.web.error_responses import NotAllowed

_LOOK_SECONDS = 0.025
_PRIORITY = {"type": "integer", "minimum": 1, "maximum": 10}
_IDS = {"type": "array", "items": ID, "maxItems": 10_000}
_ACTIONS = {
    "type": "array",
    "maxItems": 100,
    "items": {
        "type": "object",
        "properties": {"job_type": {"type": "string", "minLength": 1}, "payload": {"type": "object"}},
        "required": ["job_type"],
        "additionalProperties": False,
    },
}

WORDS: Mapping[str, Field] = {
    "job_type": Field({"type": "string", "minLength": 1}, "which handler runs it", is_needed=True),
    "payload": Field({}, "its input, as the handler of its type takes it"),
    "platform": Field(TEXT, "local unless given"),
    "account": Field(TEXT, "the remote account that it is about"),
    "name": Field(TEXT, "what it is about, as lists show it"),
    "owner": Field(TEXT, "the person it belongs to"),
    "source": Field(TEXT, "what may ask for a rest, such as a credential"),
    "batch_id": Field(ID, "the batch that it belongs to"),
    "priority": Field(_PRIORITY, "1 is the highest; 5 unless given"),
    "run_at": Field(TEXT, "not before: 2026-11-18 10:00 (UTC), or +10m"),
    "after": Field(_IDS, "not before these jobs have completed"),
    "after_any": Field(YES, "with after: once they have ended, in whatever way"),
    "unique_key": Field({"type": "string", "minLength": 1}, "not if a live job has it: that one's id is answered"),
    "once_per": Field({"type": "string", "enum": list(PERIODS)}, "with unique_key: one job in such a period"),
    "concurrency_key": Field({"type": "string", "minLength": 1}, "never two running jobs with it"),
    "max_retries": Field({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "as the settings say, else 3"),
    "timeout": Field(TEXT, "of one attempt: 10m, or a number of seconds"),
    "on_failure": Field(_ACTIONS, "once it has failed for good, such jobs"),
}

_DONE = {
    "action": {"type": ["integer", "null"], "description": "what `POST /api/actions/{id}/undo` takes back"},
    "items": {"type": "array", "items": ID},
    "asked": {"type": "array", "items": ID, "description": "running ones, that end once their processes are gone"},
    "refused": {
        "type": "array",
        "items": {"type": "object", "properties": {"id": ID, "reason": TEXT}, "required": ["id", "reason"]},
    },
    "documents": {"type": "array", "items": ID, "description": "those that fail by it"},
    "batch": {"type": ["integer", "null"], "description": "of an undo: the batch that goes on"},
    "waiting": {
        "type": "array",
        "items": ID,
        "description": "of a retry: batches that wait because another one started",
    },
    "dry_run": YES,
    "jobs": {"type": "integer", "description": "of a dry run: how many it would be"},
}
DONE = {"type": "object", "properties": _DONE, "required": ["items"]}
ENQUEUED = {
    "type": "object",
    "properties": {"id": ID, "existing": YES, "doubt": {**TEXT, "description": "why nobody may ever run it"}},
    "required": ["id", "existing"],
}
_EXPECT = Param(
    "expect",
    "refuse unless it is so many jobs, as a dry run tells",
    {"type": "integer", "minimum": 0, "maximum": 2**53},
)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint(
    "GET",
    "/api/jobs",
    "Jobs, the newest first. What no index knows is looked for only so long: where is_partial is true, others may "
    "follow from next on, however few there are here.",
    query=(*CHOOSING, LIMIT, BEFORE),
    answer=FoundJobs,
)
def list_jobs(call: Call) -> FoundJobs:
    selector, limit = call.visitor.only(chosen(call)), call.query.get("limit", 50)
    return operations.look_for_jobs(
        call.session, selector, limit=limit, before_id=call.query.get("before"), seconds=_LOOK_SECONDS
    )


@endpoint(
    "GET",
    "/api/jobs/{id}",
    "Everything about one job: its row, attempts, history, what it waits for, its files, and the end of its log.",
    answer=Flat(Job, JobInWhole),
    refusals=(404,),
)
def job(call: Call) -> Any:
    seen(call)
    whole = operations.job_in_whole(call.session, call.id)
    if call.visitor.owner is not None:
        whole = replace(whole, waits_for=[one for one in whole.waits_for if _is_seen(call, one.id)])
    told = as_object(whole)
    return told.pop("job") | told


@endpoint(
    "GET",
    "/api/jobs/{id}/why",
    "Why it has not started, or has failed: each gate that holds it, and the next move.",
    answer=Why,
    refusals=(404,),
    is_of_the_moment=True,
)
def why(call: Call) -> Why:
    seen(call)
    return operations.why(call.session, call.id)


@endpoint(
    "GET",
    "/api/jobs/{id}/log",
    "The lines that it has logged: the newest 3,000.",
    query=(
        Param("after", "only lines after the one with this id", {"type": "integer", "minimum": 0, "maximum": 2**53}),
    ),
    answer={"type": "object", "properties": {"items": Sequence[LogLine]}, "required": ["items"]},
    refusals=(404,),
)
def log(call: Call) -> Any:
    seen(call)
    after = call.query.get("after", 0)
    return {"items": [line for line in operations.log(call.session, call.id) if line.id > after]}


def seen(call: Call) -> Job:
    """Return the job in the path. Raise `JobNotFound` if the visitor may not see it."""
    found = call.session.reading.get(call.id)
    if not call.visitor.may_see(found.owner):
        raise JobNotFound(f"there is no job {call.id}", "`pagemill ls` shows those that are there")
    return found


def _is_seen(call: Call, job_id: int) -> bool:
    try:
        operations.require(call.session, [job_id], call.visitor.owner)
    except JobNotFound:
        return False
    return True


# ── Enqueue ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint(
    "POST",
    "/api/jobs",
    "Put a job into the queue. Once it is answered, it survives a power cut.",
    body=WORDS,
    query=(Param("check", "false: do not ask first whether the payload fits its handler", YES),),
    answer=ENQUEUED,
    statuses=(201, 200),
    refusals=(400, 403, 404, 409, 422),
)
def enqueue(call: Call) -> Answer:
    words = words_of(call, call.body)
    operations.require(call.session, call.body.get("after", ()), call.visitor.owner)
    made = entering.enqueue(call.session, words, lambda _: b"", is_checked=call.query.get("check", True))
    if made.existing and call.visitor.owner is not None and not _is_seen(call, made.job_id):
        raise Refused("another job that has not ended has this unique_key", "choose another key")
    doubt = entering.doubt(call.session, words["job_type"])
    told = {"id": made.job_id, "existing": made.existing} | ({"doubt": doubt} if doubt else {})
    where = {"Location": f"/api/jobs/{made.job_id}"}
    return Answer(told, 200 if made.existing else 201, where)


def words_of(call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `body` in the form that `read_job` takes."""
    refuse_places(call.visitor, [body.get("payload"), body.get("on_failure")])
    words = dict(body)
    if "payload" in words:
        words["payload"] = json.dumps(words["payload"], ensure_ascii=False, separators=(",", ":"))
    if "after" in words:
        words["after"] = ",".join(map(str, words["after"])) or None
    if "on_failure" in words:
        words["on_failure"] = [action_word(one) for one in words["on_failure"]]
    words["owner"] = own(call.visitor, words.get("owner"))
    return words


def action_word(action: Mapping[str, Any]) -> str:
    job_type, payload = action["job_type"], action.get("payload")
    if "=" in job_type:
        raise BadInput(f"{job_type!r} is not a job type")
    return job_type if payload is None else f"{job_type}={json.dumps(payload, ensure_ascii=False)}"


def own(visitor: Visitor, owner: str | None) -> str:
    """Return the owner of a new job. Raise `NotAllowed` if the visitor may not submit for `owner`."""
    if visitor.owner is None:
        return owner or ""
    if owner not in (None, visitor.owner):
        raise NotAllowed(visitor.limit)
    return visitor.owner


def refuse_places(visitor: Visitor, value: object) -> None:
    """Raise `NotAllowed` if a visitor of one owner names a file on the server.

    Handlers read files with the daemon's rights, so such a visitor could read other owners' data.
    """
    if visitor.owner is not None and any(_is_place(text) for text in _texts(value)):
        raise NotAllowed(f"{visitor.limit} and cannot read files on the server")


def refuse_actions(visitor: Visitor, words: Mapping[str, Sequence[str]]) -> None:
    """Apply `refuse_places` to the payloads of follow-up jobs."""
    for word in (*words.get("then", ()), *words.get("on-failure", ())):
        refuse_places(visitor, json.loads(read_action(word).payload or "null"))


def _is_place(text: str) -> bool:
    return text.strip().lower().startswith(("/", "~", ".", "file:"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)


# ── Change one job ──────────────────────────────────────────────────────────────────────────────────────────────────

_NOW = Param("now", "without grace: stop its processes by force", YES)
_LEVEL = {"priority": Field(_PRIORITY, "1 is the highest, 10 the lowest", is_needed=True)}
_on_one = partial(endpoint, answer=DONE, refusals=(404, 409))


@_on_one(
    "POST",
    "/api/jobs/{id}/cancel",
    "Stop it. A pending one ends at once (200); a running one is asked to (202), and ends once its processes are gone.",
    query=(_NOW,),
    statuses=(200, 202),
)
def cancel_job(call: Call) -> Answer:
    return _one(call, "cancel")


@_on_one("POST", "/api/jobs/{id}/retry", "Run an ended one again, with a fresh budget of retries.")
def retry_job(call: Call) -> Answer:
    return _one(call, "retry")


@_on_one("POST", "/api/jobs/{id}/priority", "Give it another priority; what it asks for has it as well.", body=_LEVEL)
def priority_of_job(call: Call) -> Answer:
    return _one(call, "priority")


@_on_one("DELETE", "/api/jobs/{id}", "Remove it for good, with its log and history. A running one is refused.")
def delete_job(call: Call) -> Answer:
    return _one(call, "delete")


def _one(call: Call, verb: str) -> Answer:
    seen(call)
    return changed(
        call, job_control.plan(call.session, verb, Selector(ids=(call.id,)), priority=call.body.get("priority"))
    )


# ── Change all jobs of a selector ───────────────────────────────────────────────────────────────────────────────────

_on_many = partial(endpoint, answer=DONE, refusals=(400, 404, 409))


@_on_many("POST", "/api/jobs/cancel", "Stop all that it chooses.", query=(*CHOOSING, DRY_RUN, _EXPECT, _NOW))
def cancel_jobs(call: Call) -> Answer:
    return _many(call, "cancel")


@_on_many(
    "POST",
    "/api/jobs/retry",
    "Run all again that it chooses; without status or id, failed and cancelled ones.",
    query=(*CHOOSING, DRY_RUN, _EXPECT),
)
def retry_jobs(call: Call) -> Answer:
    return _many(call, "retry")


@_on_many(
    "POST",
    "/api/jobs/priority",
    "Give all that it chooses another priority.",
    query=(*CHOOSING, DRY_RUN, _EXPECT),
    body=_LEVEL,
)
def priority_of_jobs(call: Call) -> Answer:
    return _many(call, "priority")


@_on_many(
    "POST",
    "/api/jobs/delete",
    "Remove all that it chooses, for good: so it wants to hear how many (expect), as a dry run tells.",
    query=(*CHOOSING, DRY_RUN, _EXPECT),
)
def delete_jobs(call: Call) -> Answer:
    return _many(call, "delete")


def _many(call: Call, verb: str) -> Answer:
    selector = chosen(call)
    if selector.is_empty:
        raise BadInput(f"no jobs to {verb} are selected", "add id=42, or selectors such as status=failed&since=1d")
    operations.require(call.session, selector.ids, call.visitor.owner)
    plan = job_control.plan(call.session, verb, call.visitor.only(selector), priority=call.body.get("priority"))
    if call.query.get("dry_run"):
        sample = [one.id for one in plan.sample]
        return Answer({"dry_run": True, "jobs": plan.jobs, "items": sample, "documents": plan.failing})
    expected = call.query.get("expect")
    if expected is None and verb == "delete":
        raise BadInput("deleting jobs cannot be undone", "add expect=N, the number of jobs that a dry_run returns")
    if expected not in (None, plan.jobs):
        raise Refused(f"{counted(plan.jobs, 'job')} would be changed, not {expected}; nothing was done")
    return changed(call, plan)


def changed(call: Call, plan: Plan) -> Answer:
    done: Changed = job_control.change(call.session, plan, without_grace=call.query.get("now", False))
    refused = [{"id": job_id, "reason": reason} for job_id, reason in done.refused.items()]
    if plan.is_single and refused and not done.job_ids and not done.asked:
        raise Refused("job {id}: {reason}".format(**refused[0]))
    told = {"action": done.action_id, "items": done.job_ids, "asked": done.asked, "refused": refused}
    told |= {"documents": plan.failing} if plan.error_code else {}
    told |= {"waiting": done.waiting} if done.waiting else {}
    return Answer(told, 202 if done.asked else 200)


ENDPOINTS: Sequence[Endpoint] = (
    list_jobs, enqueue, job, why, log, cancel_job, retry_job, priority_of_job, delete_job, cancel_jobs, retry_jobs,
    priority_of_jobs, delete_jobs,
)  # fmt: skip
routes = [one.route for one in ENDPOINTS]
