from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from worker_service.base.clock import as_text
from worker_service.jobs.job import NewJob
from worker_service.store.statements import PLAIN_FIELDS, USUAL_FIELDS

if TYPE_CHECKING:
    from worker_service.jobs.retries import RetryRule

_plain_values = attrgetter(*PLAIN_FIELDS)
usual_values = attrgetter(*USUAL_FIELDS)
_unusual_values = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in USUAL_FIELDS))
_UNUSUAL_DEFAULTS = _unusual_values(NewJob(""))

NAME_CHARACTERS_MAX = 1000


def statement_of(job: NewJob) -> str:
    """Return "" if the job must be inserted alone."""
    if _unusual_values(job) == _UNUSUAL_DEFAULTS:
        return "enqueue_usual"
    needs_more_rows = job.after or job.after_earlier or job.on_failure
    may_exist = job.unique_key or job.document or job.adds_document
    return "" if needs_more_rows or may_exist else "enqueue"


def row_of_job(job: NewJob, now: str, parent_id: int | None, rules: Mapping[str, RetryRule]) -> tuple[object, ...]:
    # A tuple binds faster than a dict.
    run_at = None if job.run_at is None else as_text(job.run_at)
    name = job.name and job.name[:NAME_CHARACTERS_MAX]
    retries = job.max_retries
    if rules:
        from worker_service.jobs.retries import retries_of

        retries = retries_of(job, rules)
    return (*_plain_values(job), run_at, now, retries, parent_id, name)
