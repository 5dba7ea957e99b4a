"""Batches: list, submit, progress, stop, resume, retry, cancel, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import field

from worker_service.base.errors import BadInput, BatchNotFound
from worker_service.base.humanize import counted
from worker_service.jobs.actions import read_action
from worker_service.jobs.batches import Batch, BatchAdded, BatchMoved, BatchState
from worker_service.jobs.job import NewJob
from worker_service.services import batches as operations
from worker_service.services import enqueue as entering
from worker_service.services.batches import BatchInWhole, BatchPage
from worker_service.services.database import Session
from worker_service.services.jobs import require
from worker_service.services.parse import read_job
from worker_service.web.access import Visitor
from worker_service.web.api.endpoint import TEXT, Answer, Call, Endpoint, Field, Param, endpoint, schema_of_body
from worker_service.web.api.jobs import WORDS, action_word, own, refuse_actions, refuse_places, words_of
from worker_service.web.api.selecting import BEFORE, LIMIT, OWNERS
from worker_service.web.read_requests import SourceJobs, source_jobs

_JOBS_MOST = 10_000

_BODY = {
    "name": Field({**TEXT, "maxLength": 200}, "for eyes"),
    "owner": WORDS["owner"],
    "priority": WORDS["priority"],
    "sources": Field(
        {"type": "array", "minItems": 1, "maxItems": _JOBS_MOST, "items": {}},
        "folders, files and addresses, as `pagemill batch add` takes them, with whole paths; or tables, as of a crawl",
    ),
    "read": Field(
        {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
        'how its sources are fetched and read, by the names of the options of `pagemill batch add`: {"lang": ["deu"]}',
    ),
    "jobs": Field(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": _JOBS_MOST,
            "items": schema_of_body({name: one for name, one in WORDS.items() if name not in ("batch_id", "once_per")}),
        },
        "as `POST /api/jobs` takes each",
    ),
    "then": Field(WORDS["on_failure"].schema, "once it has ended, such jobs"),
}


class Submitted(BatchAdded, frozen=True):
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of files left out of directories, by reason."""
    left_out_files: Sequence[Mapping[str, str]] = ()
    """The first thousand of these: `path` and `why`."""
    lacking: Sequence[str] = ()
    """Missing programs or models that its jobs wait for."""


@endpoint(
    "GET",
    "/api/batches",
    "Batches, the newest first, and how far each is.",
    query=(
        OWNERS,
        Param("status", f"{', '.join(BatchState)}; commas stand between several", is_many=True),
        LIMIT,
        BEFORE,
    ),
    answer=BatchPage,
    is_of_the_moment=True,
)
def list_batches(call: Call) -> BatchPage:
    owners = call.query.get("owner", ())
    if call.visitor.owner is not None:
        if owners and call.visitor.owner not in owners:
            return BatchPage((), None)
        owners = (call.visitor.owner,)
    return operations.list_batches(
        call.session,
        owners=owners,
        states=call.query.get("status", ()),
        limit=call.query.get("limit", 50),
        before_id=call.query.get("before"),
    )


@endpoint(
    "GET",
    "/api/batches/{id}",
    "One batch, and how far it is.",
    answer=BatchInWhole,
    refusals=(404,),
    is_of_the_moment=True,
)
def batch(call: Call) -> BatchInWhole:
    require_batch(call, call.id)
    return operations.show(call.session, call.id)


@endpoint(
    "POST",
    "/api/batches",
    "Begin a batch: all its jobs, or none. The owner's other active batches wait until it ends, or it waits for them.",
    body=_BODY,
    answer=Submitted,
    statuses=(201,),
    refusals=(400, 403, 404, 409, 422),
)
def add_batch(call: Call) -> Answer:
    body, owner = call.body, own(call.visitor, call.body.get("owner"))
    if ("sources" in body) == ("jobs" in body):
        raise BadInput("a batch needs either sources or jobs")
    if any(one.get("owner", owner) != owner for one in body.get("jobs", ())):
        raise BadInput(f"all jobs of a batch have its owner, {owner!r}")
    if "jobs" in body and "read" in body:
        raise BadInput("read applies to sources only", "put reading options into the payload of each job")
    refuse_places(call.visitor, [body.get("then")])
    if "sources" in body:
        made = sources_of(call.session, call.visitor, body["sources"], body.get("read", {}), owner=owner)
    else:
        made = SourceJobs([_job(call, {**one, "owner": owner}) for one in body["jobs"]], (), {})
    then = [read_action(action_word(one)) for one in body.get("then", ())]
    for action in then:
        entering.refuse_unfit_action(call.session, action)
    added = operations.add(
        call.session,
        made.jobs,
        owner=owner,
        name=body.get("name", ""),
        priority=body.get("priority", operations.PRIORITY),
        asked={key: body[key] for key in ("sources", "read", "jobs") if key in body},
        actions=body.get("then", ()),
    )
    submitted = Submitted(added.batch, added.jobs, added.replaced, made.left_out, made.left_out_files, made.lacking)
    return Answer(submitted, 201, {"Location": f"/api/batches/{added.batch.id}"})


def sources_of(
    session: Session, visitor: Visitor, sources: Sequence[object], words: Mapping[str, Sequence[str]], *, owner: str
) -> SourceJobs:
    """Return the jobs that read the visitor's sources. Raise `NotAllowed` for files the visitor may not name."""
    refuse_places(visitor, sources)
    refuse_actions(visitor, words)
    made = source_jobs(session, sources, words, owner=owner)
    if len(made.jobs) > _JOBS_MOST:
        # All jobs are inserted in one transaction, and all other writers wait for it.
        raise BadInput(
            f"this would be {counted(len(made.jobs), 'job')}, and a batch has at most {_JOBS_MOST:,}", "split it"
        )
    return made


def _job(call: Call, words: dict[str, Any]) -> NewJob:
    require(call.session, words.get("after", ()), call.visitor.owner)
    job = read_job(words_of(call, words), call.session.settings, now=call.session.clock(), stdin=lambda _: b"")
    entering.refuse_unfit(call.session, job)
    return job


_on_one = partial(endpoint, answer=BatchMoved, refusals=(404, 409))


@_on_one("POST", "/api/batches/{id}/stop", "Begin nothing more of it, and let what runs come back.", answer=Batch)
def stop_batch(call: Call) -> Batch:
    return operations.stop(call.session, require_batch(call, call.id))


@_on_one("POST", "/api/batches/{id}/resume", "Go on with what is pending, failed or cancelled.")
def resume_batch(call: Call) -> BatchMoved:
    return operations.resume(call.session, require_batch(call, call.id))


@_on_one("POST", "/api/batches/{id}/retry", "Try again what has failed, and only that.")
def retry_batch(call: Call) -> BatchMoved:
    return operations.retry(call.session, require_batch(call, call.id))


@_on_one("POST", "/api/batches/{id}/cancel", "Stop it, and cancel all that is left to do.")
def cancel_batch(call: Call) -> BatchMoved:
    return operations.cancel(call.session, require_batch(call, call.id))


@_on_one("DELETE", "/api/batches/{id}", "Forget one of which nothing is left to do; what it made stays.", answer=Batch)
def delete_batch(call: Call) -> Batch:
    return operations.remove(call.session, require_batch(call, call.id))


def require_batch(call: Call, batch_id: int) -> int:
    """Return `batch_id`. Raise `BatchNotFound` if the visitor may not see the batch."""
    if not call.visitor.may_see(operations.batch(call.session, batch_id).owner):
        raise BatchNotFound(f"there is no batch {batch_id}", "`pagemill batch ls` shows those that are there")
    return batch_id


ENDPOINTS: Sequence[Endpoint] = (
    list_batches, add_batch, batch, stop_batch, resume_batch, retry_batch, cancel_batch, delete_batch,
)  # fmt: skip
routes = [one.route for one in ENDPOINTS]
