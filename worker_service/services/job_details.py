"""Details of one job, which a list of jobs does not need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from worker_service.jobs.attempts import AttemptRow
from worker_service.jobs.documents import PublishedFile
from worker_service.jobs.history import LOG_LINES_MOST, Event, LogLine
from worker_service.jobs.job import Job
from worker_service.services.documents import with_full_path
from worker_service.services.session import Session, poll

_LOG_LINES_SHOWN = 10


class Needed(NamedTuple):
    id: int
    status: str


class JobDetails(Struct, frozen=True):
    job: Job
    attempts: Sequence[AttemptRow]
    events: Sequence[Event]
    waits_for: Sequence[Needed]
    files: Sequence[PublishedFile]
    log: Sequence[LogLine]


def get_job_details(session: Session, job_id: int, *, owner: str | None = None) -> JobDetails:
    """Leave out the jobs of other owners that it waits for, unless `owner` is None."""
    queries, history = session.job_queries, session.history
    return JobDetails(
        queries.get(job_id),
        history.attempts(job_id),
        history.events(job_id),
        [Needed(needed_id, status) for needed_id, status in queries.waits_for(job_id, owner=owner)],
        [with_full_path(session, file) for file in session.library.job_files(job_id)],
        history.logs(job_id, most=LOG_LINES_MOST)[-_LOG_LINES_SHOWN:],
    )


def read_log(session: Session, job_id: int) -> Sequence[LogLine]:
    session.job_queries.get(job_id)  # raises `JobNotFound`
    return session.history.logs(job_id, most=LOG_LINES_MOST)


def follow_log(session: Session, job_id: int) -> Iterator[LogLine]:
    after_id = 0
    for has_ended in poll(session, lambda: session.job_queries.get(job_id).status.is_ended):
        while lines := session.history.logs(job_id, after_id=after_id):
            yield from lines
            after_id = lines[-1].id
        if has_ended:
            return
