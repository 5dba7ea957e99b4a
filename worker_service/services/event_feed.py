"""Events: status changes of jobs, notices, and the progress of running jobs.

A cursor has the ids of the last notice, of the last status change, and of the job that changed. The database may reuse
the id of a change but not of a job: while the change still belongs to this job, all later changes have higher ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.history import JobMove, Notice
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.services.session import Session

_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})", re.ASCII)
"""18 digits fit an integer of the database."""
_RUNNING_MAX = 500


class EventCursor(NamedTuple):
    notice_id: int
    event_id: int
    job_id: int

    def __str__(self) -> str:
        return f"{self.notice_id}-{self.event_id}-{self.job_id}"


class JobProgress(Struct, frozen=True):
    job_id: int
    owner: str
    job_type: str
    name: str | None
    batch_id: int | None
    document_id: int | None
    progress_percent: int
    progress_message: str | None


class NewEvents(Struct, frozen=True):
    cursor: EventCursor
    moves: Sequence[JobMove]
    notices: Sequence[Notice]
    is_all: bool
    """False: more events are waiting."""
    is_lost: bool = False
    """The cursor is of rows that were deleted, or of another copy of the database."""


def parse_cursor(text: str) -> EventCursor:
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise BadInput(f"{text!r} is not the id of an event", "use the id of an event, such as 12-3400-7")
    return EventCursor(*(int(number) for number in match.groups()))


def newest_cursor(session: Session) -> EventCursor:
    return EventCursor(session.store.notices.newest(), *session.history.newest_event())


def events_after(session: Session, cursor: EventCursor, *, owner: str | None = None, most: int = 1000) -> NewEvents:
    newest = newest_cursor(session)
    moves = session.history.events_after(cursor.event_id, newest.event_id, owner=owner, most=most)
    later_notices = session.store.notices.after(cursor.notice_id, most=most)
    notices = [notice for notice in later_notices if notice.id <= newest.notice_id]
    # Checked after reading the moves: if the cursor's row exists now, it existed during the read.
    has_row = not cursor.event_id or session.history.job_of_event(cursor.event_id) == cursor.job_id
    # Notice ids are never reused, unless an older copy replaced the database.
    if not has_row or cursor.notice_id > newest.notice_id:
        return NewEvents(newest, [], [], is_all=True, is_lost=True)
    notice_id = notices[-1].id if len(notices) == most else newest.notice_id
    event_id, job_id = newest.event_id, newest.job_id
    if len(moves) == most:
        event_id, job_id = moves[-1].id, moves[-1].job_id
    next_cursor = EventCursor(notice_id, event_id, job_id)
    notices_of_owner = [notice for notice in notices if owner is None or notice.owner == owner]
    return NewEvents(next_cursor, moves, notices_of_owner, is_all=next_cursor == newest)


def progress_of_running_jobs(session: Session) -> Mapping[int, JobProgress]:
    running = session.job_queries.list(Selector(statuses=(Status.RUNNING,)), most=_RUNNING_MAX)
    return {
        job.id: JobProgress(
            job.id, job.owner, job.job_type, job.name, job.batch_id, job.document_id, job.progress_percent,
            job.progress_message,
        )
        for job in running
    }  # fmt: skip
