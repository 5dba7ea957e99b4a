"""Jobs: filters in the URL, and which jobs a visitor may see and submit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from worker_service.base.errors import BadInput, JobNotFound, Refused
from worker_service.jobs.follow_ups import names_file
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import FILTER_COLUMNS, Column, Selector
from worker_service.services.job_details import JobDetails, get_job_details
from worker_service.services.jobs import JobPage, id_ranges, require_jobs
from worker_service.services.parse import read_selector
from worker_service.services.session import Session
from worker_service.web.access import Visitor
from worker_service.web.error_responses import NotAllowed
from worker_service.web.parameters import Id, Number, about

S = TypeVar("S", bound=Struct)

SEARCH_SECONDS_MAX = 0.015
"""Time limit of a list whose filters no index serves."""

COLUMN_FILTERS: Mapping[str, Column] = {column.flag.removeprefix("--"): column for column in FILTER_COLUMNS}


def _with_column_filters(kind: type[S]) -> type[S]:
    parameters = [_column_filter(name, column) for name, column in COLUMN_FILTERS.items()]
    return cast(
        type[S],
        msgspec.defstruct(kind.__name__, parameters, bases=(kind,), module=kind.__module__, frozen=True, kw_only=True),
    )


def _column_filter(name: str, column: Column) -> tuple[str, object, object]:
    meta = about(column.filter_help or f"Jobs of this {name}.")
    if column.is_number:
        return name, Annotated[Number, meta] | None, None
    if column.filter_field.endswith("s"):  # repeatable, such as `owners`
        return name, Annotated[tuple[str, ...], meta], ()
    return name, Annotated[str, meta] | None, None


@_with_column_filters
class JobFilters(Struct, frozen=True, kw_only=True):
    id: Annotated[tuple[str, ...], about("42, batch:7 or document:3.")] = ()
    status: Annotated[tuple[str, ...], about(f"{', '.join(Status)}. Separate several by commas.")] = ()
    since: Annotated[str, about("Created or ended since: 2h (ago), or 2026-11-18 10:00 (UTC).")] | None = None
    older_than: Annotated[str, about("Ended before this time; live jobs: created before it.")] | None = None
    match: Annotated[tuple[str, ...], about("A value in the payload: payload.file_id=abc.")] = ()


class JobsQuery(JobFilters, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of items; default 50.")] = 50
    before: Annotated[Id, about("The `next` of the previous page.")] | None = None


class FoundJobs(JobPage, frozen=True):
    is_partial: bool
    """The search took too long; more jobs may be found below `next`."""


def list_jobs(session: Session, visitor: Visitor, query: JobsQuery) -> FoundJobs:
    selector = visitor.limit_selector(selector_of(session, query))
    queries, limit = session.job_queries, query.limit
    jobs, first_id = list[Job](), 1
    for first_id, before_id in id_ranges(session, SEARCH_SECONDS_MAX, before_id=query.before):
        jobs += queries.list(selector, most=limit + 1 - len(jobs), before_id=before_id, from_id=first_id)
        if len(jobs) > limit:
            return FoundJobs(jobs[:limit], jobs[limit - 1].id, is_partial=False)
    # All ids were searched, unless the time was over.
    is_partial = first_id > 1
    return FoundJobs(jobs, first_id if is_partial else None, is_partial)


def selector_of(session: Session, filters: JobFilters) -> Selector:
    """Return the selector, which the caller limits to the visitor's jobs."""
    return read_selector(
        now=session.clock(),
        ids=filters.id,
        statuses=filters.status,
        since=filters.since,
        older_than=filters.older_than,
        match=filters.match,
        **{column.filter_field: getattr(filters, name) or None for name, column in COLUMN_FILTERS.items()},
    )


def selector_for_change(session: Session, visitor: Visitor, filters: JobFilters, verb: str) -> Selector:
    """Raise `JobNotFound` if the filters name another owner's job."""
    selector = selector_of(session, filters)
    if selector.is_empty:
        # Limited to an owner, it would match all jobs of that owner.
        raise BadInput(f"no jobs to {verb} are selected", "add id=42, or selectors such as status=failed&since=1d")
    require_jobs(session, selector.ids, visitor.owner)
    return visitor.limit_selector(selector)


def visible_job(session: Session, visitor: Visitor, job_id: int) -> Job:
    job = session.job_queries.get(job_id)
    if not visitor.may_see(job.owner):
        raise JobNotFound(f"there is no job {job_id}", "`pagemill ls` shows those that are there")
    return job


def visible_job_details(session: Session, visitor: Visitor, job_id: int) -> JobDetails:
    visible_job(session, visitor, job_id)
    return get_job_details(session, job_id, owner=visitor.owner)


# ── Submissions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def owner_for(visitor: Visitor, owner: str | None) -> str:
    """Raise `NotAllowed` if the visitor may not submit for `owner`."""
    if visitor.owner is None:
        return owner or ""
    if owner not in (None, visitor.owner):
        raise NotAllowed(visitor.limit_in_words)
    return visitor.owner


def refuse_server_files(visitor: Visitor, value: object) -> None:
    """Raise `NotAllowed` if a visitor of one owner names a file of the server, which handlers could read."""
    if visitor.owner is not None and any(names_file(text) for text in _texts(value)):
        raise NotAllowed(f"{visitor.limit_in_words} and cannot read files on the server")


def refuse_hidden_job(session: Session, visitor: Visitor, job_id: int) -> None:
    """Raise `Refused` without details of the job."""
    if not visitor.may_see(session.job_queries.get(job_id).owner):
        raise Refused("another job that has not ended has this unique_key", "choose another key")


def action_text(action: Mapping[str, object]) -> str:
    """Return a follow-up job as `read_action` takes it: TYPE or TYPE={…}."""
    job_type, payload = str(action["job_type"]), action.get("payload")
    if "=" in job_type:
        raise BadInput(f"{job_type!r} is not a job type")
    return job_type if payload is None else f"{job_type}={json.dumps(payload, ensure_ascii=False)}"


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in the value, also inside JSON in a text."""
    if isinstance(value, str):
        yield value
        yield from _texts(_json_in(value))
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _json_in(text: str) -> object:
    """Return the payload of TYPE={…}, or the text as JSON; None if there is neither."""
    for candidate in (text, text.partition("=")[2]):
        if candidate.lstrip().startswith(("{", "[")):
            with suppress(ValueError, RecursionError):
                return cast(object, json.loads(candidate))
    return None
