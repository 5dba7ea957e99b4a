from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from worker_service.base.clock import as_text
from worker_service.jobs.job import NewJob
from worker_service.jobs.retries import RetryRule, max_retries_of
from worker_service.store.statements import PLAIN_FIELDS

_plain_values = attrgetter(*PLAIN_FIELDS)

NAME_CHARACTERS_MAX = 1000


def can_share_statement(job: NewJob) -> bool:
    needs_more_rows = job.after or job.after_earlier or job.on_failure
    may_exist = job.unique_key or job.document or job.adds_document
    return not needs_more_rows and not may_exist


def row_of_job(job: NewJob, now: str, parent_id: int | None, rules: Mapping[str, RetryRule]) -> tuple[object, ...]:
    # In the order of `_NEW_COLUMNS`. A tuple binds faster than a dict.
    run_at = None if job.run_at is None else as_text(job.run_at)
    name = job.name and job.name[:NAME_CHARACTERS_MAX]
    return (*_plain_values(job), run_at, now, max_retries_of(job, rules), parent_id, name)
