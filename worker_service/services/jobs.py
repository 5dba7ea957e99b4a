"""List jobs, and describe their state and progress."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from worker_service.base.clock import from_text, wall_clock
from worker_service.base.errors import JobNotFound
from worker_service.base.humanize import format_length, format_size
from worker_service.jobs.job import Job, Status
from worker_service.jobs.selector import Selector
from worker_service.services.session import IDS_AT_ONCE, Session, chunks, cut_page

_FIRST_RANGE_IDS = 10_000

# Bits of the column `held`, with the words for users. `schema.sql` sets them.
_HELD_BY_BATCH = 16
_WORD_BY_TIME_BIT = {1: "scheduled", 2: "backoff"}
_WORD_BY_JOB_BIT = {4: "waiting", 8: "key-busy"}


class JobPage(Struct, frozen=True):
    items: Sequence[Job]
    next: int | None


def list_jobs(session: Session, selector: Selector, *, limit: int = 50, before_id: int | None = None) -> JobPage:
    return JobPage(*cut_page(session.job_queries.list(selector, most=limit + 1, before_id=before_id), limit))


def id_ranges(session: Session, seconds: float, *, before_id: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield ranges of ids (first, before), newest first, for about `seconds`."""
    deadline, ids_in_range = time.monotonic() + seconds, _FIRST_RANGE_IDS
    newest_end = session.job_queries.newest_id() + 1
    range_end = newest_end if before_id is None else min(newest_end, before_id)
    while range_end > 1:
        start, first_id = time.monotonic(), max(1, range_end - ids_in_range)
        yield first_id, range_end
        range_end, now = first_id, time.monotonic()
        if now >= deadline:
            return
        # Double the range only if there is time for 8 searches like this one: a longer one may be slower by more.
        if now - start < (deadline - now) / 8:
            ids_in_range *= 2


def require_jobs(session: Session, ids: Sequence[int], owner: str | None = None) -> None:
    for chunk in chunks(ids):
        existing_ids = set(session.job_queries.ids(Selector(ids=chunk, owners=() if owner is None else (owner,))))
        for job_id in chunk:
            if job_id not in existing_ids:
                raise JobNotFound(f"there is no job {job_id}", "`pagemill ls` shows those that are there")


# ── Descriptions of a job ─────────────────────────────────────────────────────────────────────────────────────────────


def progress_in_words(job: Job, *, now: datetime | None = None) -> str:
    """Return, for example, `page 8 of 44 · 12 pages/min · 3 min left`."""
    from worker_service.jobs.progress import pace_of  # only for running jobs

    pace = pace_of(job, now or wall_clock())
    parts = [job.progress_message or _count_in_words(job)]
    if pace.silent_seconds is not None:
        parts.append(f"no progress for {format_length(timedelta(seconds=pace.silent_seconds))}")
    if pace.rate and job.progress_unit:
        parts.append(_rate_in_words(pace.rate, job.progress_unit))
    if pace.seconds_left is not None:
        parts.append(f"{format_length(timedelta(seconds=pace.seconds_left))} left")
    return " · ".join(filter(None, parts))


def _count_in_words(job: Job) -> str:
    if job.progress_done is None:
        return ""
    total = "" if job.progress_total is None else f" of {job.progress_total:,}"
    return f"{job.progress_done:,}{total} {job.progress_unit or ''}".rstrip()


def _rate_in_words(rate: float, unit: str) -> str:
    if unit == "bytes":
        return f"{format_size(int(rate))}/s"
    return f"{rate:.0f} {unit}/s" if rate >= 10 else f"{60 * rate:.0f} {unit}/min"


def state_of(job: Job, *, now: datetime | None = None) -> str:
    """Return the status, or a more exact word such as `stopping` or `backoff`."""
    if job.status is Status.RUNNING and job.cancel_requested_at is not None:
        return "stopping"
    if job.held & _HELD_BY_BATCH:
        return "stopped"
    # The bits of a time that has passed stay until the next claim clears them.
    is_due = job.run_at is None or from_text(job.run_at) <= (now or wall_clock())
    word_by_bit = _WORD_BY_JOB_BIT if is_due else _WORD_BY_TIME_BIT | _WORD_BY_JOB_BIT
    return next((word for bit, word in word_by_bit.items() if job.held & bit), job.status.value)


def title_of_job(job: Job) -> str:
    """Return, for example, `job 42 (download, report.pdf)`."""
    return f"job {job.id} ({', '.join(filter(None, [job.job_type, job.name]))})"


def each_job(session: Session, ids: Sequence[int], statuses: Sequence[Status] = ()) -> Iterator[Job]:
    for chunk in chunks(ids):
        yield from session.job_queries.list(Selector(ids=chunk, statuses=statuses), most=IDS_AT_ONCE)


def count_jobs(session: Session, ids: Sequence[int], statuses: Sequence[Status]) -> int:
    return sum(session.job_queries.count(Selector(ids=chunk, statuses=statuses)) for chunk in chunks(ids))
