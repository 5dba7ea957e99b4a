"""Batches: list, submit, progress, stop, resume, retry, cancel, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, field
from msgspec.structs import replace

from worker_service.base.errors import BadInput
from worker_service.jobs.batches import Batch, BatchAdded, BatchMoved
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.job import NewJob
from worker_service.services import batches
from worker_service.services import enqueue as enqueuing
from worker_service.services.batches import BatchDetails, BatchPage
from worker_service.services.jobs import require_jobs
from worker_service.services.parse_job import read_job
from worker_service.web.api.endpoint import ApiRequest, ApiResponse, endpoint
from worker_service.web.api.jobs import FollowUp, JobOfBatch, Priority, enqueue_options
from worker_service.web.parameters import Given, about
from worker_service.web.resources import batches as resource
from worker_service.web.resources.batches import BatchesQuery, visible_batch
from worker_service.web.resources.jobs import action_text, owner_for, refuse_server_files
from worker_service.web.resources.read_requests import BATCH_JOBS_MAX, SourceJobs, notify_address, source_jobs

_BATCH_SIZE = Meta(min_length=1, max_length=BATCH_JOBS_MAX)


class BatchToAdd(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, about("Name shown in lists."), Meta(max_length=200)] = ""
    owner: Given[Annotated[str, about("The owner.")]] = UNSET
    priority: Annotated[Priority, about("1 is the highest; default 3.")] = batches.PRIORITY
    sources: Given[
        Annotated[
            list[Any],
            about("Absolute paths and URLs, as for `pagemill add`; or objects, as for a crawl."),
            _BATCH_SIZE,
        ]
    ] = UNSET
    read: Annotated[
        dict[str, list[str]], about('Reading options for sources, as for `pagemill add`: {"lang": ["deu"]}.')
    ] = field(default_factory=dict)
    jobs: Given[Annotated[list[JobOfBatch], about("Jobs as for `POST /api/jobs`."), _BATCH_SIZE]] = UNSET
    notify: Annotated[
        str,
        about("Report its end to `me`, or to an address that `notify_allow` permits."),
        Meta(max_length=2000),
    ] = ""
    then: Annotated[list[FollowUp], about("Jobs to start when the batch has ended."), Meta(max_length=100)] = []


class BatchSubmitted(BatchAdded, frozen=True):
    left_out: Annotated[Mapping[str, int], about("Number of files left out of folders, by reason.")] = field(
        default_factory=dict
    )
    left_out_files: Annotated[
        Sequence[Mapping[str, str]], about("The first thousand of these files: `path` and `why`.")
    ] = ()
    lacking: Annotated[Sequence[str], about("Missing programs or models that its jobs wait for.")] = ()


@endpoint("GET", "/api/batches", is_time_dependent=True)
def list_batches(call: ApiRequest, query: BatchesQuery) -> BatchPage:
    """List batches with their progress, newest first."""
    return resource.list_batches(call.session, call.visitor, query)


@endpoint("GET", "/api/batches/{id}", is_time_dependent=True)
def batch(call: ApiRequest) -> BatchDetails:
    """Return one batch and its progress."""
    return batches.get_batch_details(call.session, _visible_batch_id(call))


@endpoint("POST", "/api/batches", statuses=(201,), refusals=(404, 422))
def add_batch(call: ApiRequest, body: BatchToAdd) -> ApiResponse[BatchSubmitted]:
    """Start a batch: all of its jobs are inserted, or none.

    The setting owner_policy decides whether the owner's other active batches wait until it ends, or it waits for
    them.
    """
    if (body.sources is UNSET) == (body.jobs is UNSET):
        raise BadInput("a batch needs either sources or jobs")
    if body.jobs is not UNSET and body.read:
        raise BadInput("read applies to sources only", "put reading options into the payload of each job")
    owner = owner_for(call.visitor, body.owner or None)
    fields = msgspec.to_builtins(body)
    actions = fields.get("then", [])
    refuse_server_files(call.visitor, actions)
    if body.sources is not UNSET:
        batch_jobs = source_jobs(call.session, call.visitor, body.sources, body.read, owner=owner)
    else:
        batch_jobs = SourceJobs([_new_job(call, job, owner) for job in body.jobs or ()], (), {})
    for action in actions:
        enqueuing.check_action_payload(call.session, read_action(action_text(action)))
    added = batches.add_batch(
        call.session,
        batch_jobs.jobs,
        batches.BatchRequest(
            owner,
            name=body.name,
            priority=body.priority,
            asked={name: fields[name] for name in ("sources", "read", "jobs") if fields.get(name)},
            actions=actions,
            notify=notify_address(call.session, body.notify, owner=owner),
        ),
    )
    answer = BatchSubmitted(
        added.batch,
        added.jobs,
        added.replaced,
        batch_jobs.left_out,
        batch_jobs.left_out_files,
        batch_jobs.lacking,
    )
    return ApiResponse(answer, 201, f"/api/batches/{added.batch.id}")


def _new_job(call: ApiRequest, job: JobOfBatch, owner: str) -> NewJob:
    if (job.owner or owner) != owner:
        raise BadInput(f"all jobs of a batch have its owner, {owner!r}")
    require_jobs(call.session, job.after or (), call.visitor.owner)
    options = enqueue_options(call.visitor, replace(job, owner=owner))
    new_job = read_job(options, call.session.settings, now=call.session.clock(), read_stdin=lambda _: b"")
    enqueuing.check_payload(call.session, new_job)
    return new_job


@endpoint("POST", "/api/batches/{id}/stop")
def stop_batch(call: ApiRequest) -> Batch:
    """Stop a batch: no more of its jobs start, and running ones go back to the queue."""
    return batches.stop_batch(call.session, _visible_batch_id(call))


@endpoint("POST", "/api/batches/{id}/resume")
def resume_batch(call: ApiRequest) -> BatchMoved:
    """Resume a batch with its pending, failed and cancelled jobs."""
    return batches.resume_batch(call.session, _visible_batch_id(call))


@endpoint("POST", "/api/batches/{id}/retry")
def retry_batch(call: ApiRequest) -> BatchMoved:
    """Retry the failed jobs of a batch."""
    return batches.retry_batch(call.session, _visible_batch_id(call))


@endpoint("POST", "/api/batches/{id}/cancel")
def cancel_batch(call: ApiRequest) -> BatchMoved:
    """Stop a batch and cancel its remaining jobs."""
    return batches.cancel_batch(call.session, _visible_batch_id(call))


@endpoint("DELETE", "/api/batches/{id}")
def delete_batch(call: ApiRequest) -> Batch:
    """Remove a batch that has no live jobs. Its jobs and documents are kept."""
    return batches.remove_batch(call.session, _visible_batch_id(call))


def _visible_batch_id(call: ApiRequest) -> int:
    return visible_batch(call.session, call.visitor, call.id).id
