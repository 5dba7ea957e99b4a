from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from worker_service.base.clock import as_text
from worker_service.jobs.job import NewJob
from worker_service.jobs.retries import RetryRule, max_retries_of
from worker_service.store.database import Row
from worker_service.store.statements import COMMON_FIELDS, PLAIN_FIELDS

_plain_values = attrgetter(*PLAIN_FIELDS)
_common_values = attrgetter(*COMMON_FIELDS)
_rare_values = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in COMMON_FIELDS))
_RARE_DEFAULTS = _rare_values(NewJob(""))

NAME_CHARACTERS_MAX = 1000


def shared_statement(job: NewJob) -> str | None:
    """Return the name of the statement that inserts many such jobs, or None if the job must be inserted alone."""
    if _rare_values(job) == _RARE_DEFAULTS:
        return "enqueue_common"
    needs_more_rows = job.after or job.after_earlier or job.on_failure
    may_exist = job.unique_key or job.document or job.adds_document
    return None if needs_more_rows or may_exist else "enqueue"


def common_row_of_job(job: NewJob, now: str, parent_id: int | None, rules: Mapping[str, RetryRule]) -> Row:
    return (*_common_values(job), now, max_retries_of(job, rules), parent_id)


def row_of_job(job: NewJob, now: str, parent_id: int | None, rules: Mapping[str, RetryRule]) -> Row:
    # In the order of `_NEW_COLUMNS`. A tuple binds faster than a dict.
    run_at = None if job.run_at is None else as_text(job.run_at)
    name = job.name and job.name[:NAME_CHARACTERS_MAX]
    return (*_plain_values(job), run_at, now, max_retries_of(job, rules), parent_id, name)
