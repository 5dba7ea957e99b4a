"""Jobs: list, details, enqueue, and changes to one job or to all that a selector matches."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.history import Changed, LogLine
from worker_service.jobs.job import Job
from worker_service.jobs.selector import Selector
from worker_service.services import enqueue as enqueuing
from worker_service.services import job_advice, job_control, jobs
from worker_service.services.job_advice import Why
from worker_service.services.job_control import Plan
from worker_service.services.job_details import JobDetails, read_log
from worker_service.services.serialize import as_object
from worker_service.web.access import Visitor
from worker_service.web.api.endpoint import ApiRequest, ApiResponse, Items, endpoint
from worker_service.web.parameters import DryRunParameter, FilledText, Given, Id, Number, about
from worker_service.web.resources import jobs as resource
from worker_service.web.resources.batches import visible_batch
from worker_service.web.resources.jobs import FoundJobs, JobFilters, JobsQuery, visible_job

Priority = Annotated[int, Meta(ge=1, le=10)]
Retries = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Period = Literal["hour", "day", "week", "month"]
AT_MOST_100 = Meta(max_length=100)


class FollowUp(Struct, frozen=True, forbid_unknown_fields=True):
    job_type: FilledText
    payload: Given[dict[str, Any]] = UNSET


class JobOfBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job_type: Annotated[FilledText, about("The handler that runs it.")]
    payload: Annotated[Any, about("Input of the handler; `pagemill handlers show` prints its schema.")] = UNSET
    platform: Given[Annotated[str, about("Default local.")]] = UNSET
    account: Given[Annotated[str, about("The remote account that the job is about.")]] = UNSET
    name: Given[Annotated[str, about("Name shown in lists.")]] = UNSET
    owner: Given[Annotated[str, about("The owner.")]] = UNSET
    source: Given[Annotated[str, about("What may ask for a pause, such as a credential.")]] = UNSET
    priority: Given[Annotated[Priority, about("1 is the highest; default 5.")]] = UNSET
    run_at: Given[Annotated[str, about("Earliest start: 2026-11-18 10:00 (UTC), or +10m.")]] = UNSET
    after: Given[Annotated[list[Id], about("Start when these jobs have completed."), Meta(max_length=10_000)]] = UNSET
    after_any: Given[Annotated[bool, about("With after: start when they have ended in any way.")]] = UNSET
    unique_key: Given[Annotated[FilledText, about("If a live job has this key, return its id; insert none.")]] = UNSET
    concurrency_key: Given[Annotated[FilledText, about("Jobs with the same key run one at a time.")]] = UNSET
    max_retries: Given[Annotated[Retries, about("Default: the setting of the job type, or 3.")]] = UNSET
    timeout: Given[Annotated[str, about("Time limit of an attempt: 10m, or a number of seconds.")]] = UNSET
    on_failure: Given[Annotated[list[FollowUp], about("Jobs to start if it fails for good."), AT_MOST_100]] = UNSET


class JobToEnqueue(JobOfBatch, frozen=True, kw_only=True, forbid_unknown_fields=True):
    batch_id: Given[Annotated[Id, about("The batch it belongs to.")]] = UNSET
    once_per: Given[Annotated[Period, about("With unique_key: one job per such period.")]] = UNSET


class PriorityBody(Struct, frozen=True, forbid_unknown_fields=True):
    priority: Annotated[Priority, about("1 is the highest, 10 the lowest.")]


class EnqueueQuery(Struct, frozen=True):
    check: Annotated[bool, about("false: do not check that the payload fits its handler.")] = True


class LogQuery(Struct, frozen=True):
    after: Annotated[Number, about("Only lines after the one with this id.")] = 0


class NowQuery(Struct, frozen=True):
    now: Annotated[bool, about("Kill running processes at once.")] = False


class JobChangeQuery(JobFilters, frozen=True, kw_only=True):
    dry_run: DryRunParameter = False
    expect: Annotated[Number, about("Refuse unless this many jobs match, see dry_run.")] | None = None


class CancelQuery(JobChangeQuery, frozen=True, kw_only=True):
    now: Annotated[bool, about("Kill running processes at once.")] = False


class EnqueuedJob(Struct, frozen=True):
    id: Id
    existing: bool
    doubt: Given[Annotated[str, about("Reason why the job may never run.")]] = UNSET


class RefusedChange(Struct, frozen=True):
    id: Id
    reason: str


class ChangedJobs(Struct, frozen=True, kw_only=True):
    items: list[Id]
    action: Given[Annotated[int | None, about("Id for `POST /api/actions/{id}/undo`; null: nothing changed.")]] = UNSET
    asked: Given[Annotated[list[Id], about("Running jobs that end once their processes are gone.")]] = UNSET
    refused: Given[list[RefusedChange]] = UNSET
    documents: Given[Annotated[list[Id], about("Documents that fail by it.")]] = UNSET
    batch: Given[Annotated[int | None, about("Undo: the batch that continues.")]] = UNSET
    waiting: Given[Annotated[list[Id], about("Retry: batches that wait because another one started.")]] = UNSET
    dry_run: Given[bool] = UNSET
    jobs: Given[Annotated[int, about("Dry run: number of jobs that match.")]] = UNSET


# `job` returns the fields of a job and of its details in one object.
_fields: dict[str, Any] = {"state": str, **get_type_hints(Job), **get_type_hints(JobDetails)}
del _fields["job"]
JobAnswer = msgspec.defstruct("JobDetails", list(_fields.items()))


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("GET", "/api/jobs")
def list_jobs(call: ApiRequest, query: JobsQuery) -> FoundJobs:
    """List jobs, newest first.

    If no index serves the filters, the search stops after a time limit: then is_partial is true, and the search
    continues from next.
    """
    return resource.list_jobs(call.session, call.visitor, query)


@endpoint("GET", "/api/jobs/{id}", answer=JobAnswer)
def job(call: ApiRequest) -> Any:
    """Return one job with its attempts, history, the jobs it waits for, its files, and the end of its log."""
    fields = as_object(resource.visible_job_details(call.session, call.visitor, call.id))
    return fields.pop("job") | fields


@endpoint("GET", "/api/jobs/{id}/why", is_time_dependent=True)
def why(call: ApiRequest) -> Why:
    """Explain why a job has not started, or has failed: each gate that holds it, and what to do."""
    visible_job(call.session, call.visitor, call.id)
    return job_advice.why(call.session, call.id)


@endpoint("GET", "/api/jobs/{id}/log")
def log(call: ApiRequest, query: LogQuery) -> Items[LogLine]:
    """Return the newest 3,000 lines that a job has logged."""
    visible_job(call.session, call.visitor, call.id)
    return Items([line for line in read_log(call.session, call.id) if line.id > query.after])


# ── Enqueue ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("POST", "/api/jobs", statuses=(201, 200), refusals=(404, 422))
def enqueue(call: ApiRequest, query: EnqueueQuery, body: JobToEnqueue) -> ApiResponse[EnqueuedJob]:
    """Enqueue a job. Once the response is sent, the job survives a power cut."""
    options = enqueue_options(call.visitor, body)
    jobs.require_jobs(call.session, body.after or (), call.visitor.owner)
    if body.batch_id and call.visitor.owner is not None:
        visible_batch(call.session, call.visitor, body.batch_id)
    enqueued = enqueuing.enqueue(call.session, options, read_stdin=lambda _: b"", is_payload_checked=query.check)
    if enqueued.existing:
        resource.refuse_hidden_job(call.session, call.visitor, enqueued.job_id)
    doubt = enqueuing.unknown_type_warning(call.session, body.job_type)
    answer = EnqueuedJob(enqueued.job_id, enqueued.existing, doubt or UNSET)
    return ApiResponse(answer, 200 if enqueued.existing else 201, f"/api/jobs/{enqueued.job_id}")


def enqueue_options(visitor: Visitor, body: JobOfBatch) -> dict[str, Any]:
    """Return the job as the options of `pagemill enqueue`."""
    options: dict[str, Any] = msgspec.to_builtins(body)
    resource.refuse_server_files(visitor, [options.get("payload"), options.get("on_failure")])
    if "payload" in options:
        options["payload"] = json.dumps(options["payload"], ensure_ascii=False, separators=(",", ":"))
    if "after" in options:
        options["after"] = ",".join(map(str, options["after"])) or None
    if "on_failure" in options:
        options["on_failure"] = [resource.action_text(action) for action in options["on_failure"]]
    options["owner"] = resource.owner_for(visitor, options.get("owner"))
    return options


# ── Change one job ──────────────────────────────────────────────────────────────────────────────────────────────────


@endpoint("POST", "/api/jobs/{id}/cancel", statuses=(200, 202))
def cancel_job(call: ApiRequest, query: NowQuery) -> ApiResponse[ChangedJobs]:
    """Cancel a job.

    A pending job ends at once (200); a running one is asked to stop (202), and ends once its processes are gone.
    """
    return _change_one(call, "cancel", is_immediate=query.now)


@endpoint("POST", "/api/jobs/{id}/retry")
def retry_job(call: ApiRequest) -> ApiResponse[ChangedJobs]:
    """Run an ended job again, with a fresh retry budget."""
    return _change_one(call, "retry")


@endpoint("POST", "/api/jobs/{id}/priority")
def priority_of_job(call: ApiRequest, body: PriorityBody) -> ApiResponse[ChangedJobs]:
    """Set the priority of a job and its follow-ups."""
    return _change_one(call, "priority", priority=body.priority)


@endpoint("DELETE", "/api/jobs/{id}")
def delete_job(call: ApiRequest) -> ApiResponse[ChangedJobs]:
    """Delete a job that is not running, with its log and history. This cannot be undone."""
    return _change_one(call, "delete")


def _change_one(
    call: ApiRequest, verb: str, *, priority: int | None = None, is_immediate: bool = False
) -> ApiResponse[ChangedJobs]:
    visible_job(call.session, call.visitor, call.id)
    plan = job_control.make_plan(call.session, verb, Selector(ids=(call.id,)), priority=priority)
    return _apply(call, plan, is_immediate=is_immediate)


# ── Change all jobs of a selector ───────────────────────────────────────────────────────────────────────────────────


@endpoint("POST", "/api/jobs/cancel", refusals=(404,))
def cancel_jobs(call: ApiRequest, query: CancelQuery) -> ApiResponse[ChangedJobs]:
    """Cancel all matching jobs."""
    return _change_many(call, "cancel", query, is_immediate=query.now)


@endpoint("POST", "/api/jobs/retry", refusals=(404,))
def retry_jobs(call: ApiRequest, query: JobChangeQuery) -> ApiResponse[ChangedJobs]:
    """Run all matching jobs again; without status or id, the failed and cancelled ones."""
    return _change_many(call, "retry", query)


@endpoint("POST", "/api/jobs/priority", refusals=(404,))
def priority_of_jobs(call: ApiRequest, query: JobChangeQuery, body: PriorityBody) -> ApiResponse[ChangedJobs]:
    """Set the priority of all matching jobs."""
    return _change_many(call, "priority", query, priority=body.priority)


@endpoint("POST", "/api/jobs/delete", refusals=(404,))
def delete_jobs(call: ApiRequest, query: JobChangeQuery) -> ApiResponse[ChangedJobs]:
    """Delete all matching jobs. This cannot be undone, so `expect` must be their number, as dry_run returns it."""
    return _change_many(call, "delete", query)


def _change_many(
    call: ApiRequest, verb: str, query: JobChangeQuery, *, priority: int | None = None, is_immediate: bool = False
) -> ApiResponse[ChangedJobs]:
    selector = resource.selector_for_change(call.session, call.visitor, query, verb)
    plan = job_control.make_plan(call.session, verb, selector, priority=priority)
    if query.dry_run:
        ids = [job.id for job in plan.sample]
        return ApiResponse(ChangedJobs(items=ids, dry_run=True, jobs=plan.jobs, documents=[*plan.failing]))
    if query.expect is None and verb == "delete":
        raise BadInput("deleting jobs cannot be undone", "add expect=N, the number of jobs that a dry_run returns")
    if query.expect not in (None, plan.jobs):
        raise Refused(f"{counted(plan.jobs, 'job')} would be changed, not {query.expect}; nothing was done")
    return _apply(call, plan, is_immediate=is_immediate)


def _apply(call: ApiRequest, plan: Plan, *, is_immediate: bool) -> ApiResponse[ChangedJobs]:
    changed = job_control.apply_plan(call.session, plan, without_grace=is_immediate)
    if plan.is_single and changed.refused and not changed.job_ids and not changed.asked:
        job_id, reason = next(iter(changed.refused.items()))
        raise Refused(f"job {job_id}: {reason}")
    # Other verbs than cancel and delete have no such code, and make no document fail.
    documents = [*plan.failing] if plan.error_code else UNSET
    answer = replace(changed_jobs(changed), documents=documents, waiting=[*changed.waiting] or UNSET)
    return ApiResponse(answer, 202 if changed.asked else 200)


def changed_jobs(changed: Changed) -> ChangedJobs:
    refused = [RefusedChange(job_id, reason) for job_id, reason in changed.refused.items()]
    return ChangedJobs(action=changed.action_id, items=[*changed.job_ids], asked=[*changed.asked], refused=refused)
