"""Event feed: moves of jobs and notices, each reported once, and the progress of running jobs.

A cursor is the id of the last notice and of the last move read, with the job of that move. Moves are deleted with their
jobs, and the newest move ids may be reused, but job ids never are. So as long as the move still belongs to that job,
everything after it has a higher id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.history import JobMove, Notice
from worker_service.jobs.job import Status
from worker_service.jobs.selector import Selector
from worker_service.services.database import Session

_NUMBER_MOST = 2**62
_RUNNING_MOST = 500


class Place(NamedTuple):
    notice_id: int
    event_id: int
    job_id: int

    def __str__(self) -> str:
        return f"{self.notice_id}-{self.event_id}-{self.job_id}"

    def and_further(self, other: Place) -> Place:
        return Place(max(self.notice_id, other.notice_id), *max(self[1:], other[1:]))


class Step(Struct, frozen=True):
    """Progress of a running job."""

    job_id: int
    owner: str
    job_type: str
    name: str | None
    batch_id: int | None
    document_id: int | None
    progress_percent: int
    progress_message: str | None


class Happened(Struct, frozen=True):
    place: Place
    """Cursor after these events."""
    moves: Sequence[JobMove]
    notices: Sequence[Notice]
    is_all: bool
    """False if there are more events already."""
    is_lost: bool = False
    """The events since the cursor are unknown: it belongs to deleted rows or to another copy of the database."""


def read_place(text: str) -> Place:
    words = text.split("-")
    if len(words) not in (2, 3) or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        raise BadInput(f"{text!r} is no place in the events", "write it as an id of one tells it, such as 12-3400-7")
    return Place(*(min(int(word), _NUMBER_MOST) for word in [*words, "0"][:3]))


def newest(session: Session) -> Place:
    return Place(session.store.notices.newest(), *session.store.reading.newest_event())


def after(session: Session, place: Place, *, owner: str | None = None, most: int = 1000) -> Happened:
    """Return the events after a cursor, oldest first; with `owner`, only that owner's."""
    upto = newest(session)
    moves = session.store.reading.events_after(place.event_id, upto.event_id, owner=owner, most=most)
    read = [one for one in session.store.notices.after(place.notice_id, most=most) if one.id <= upto.notice_id]
    # Checked after reading the moves: if the row still exists now, it existed during the read.
    is_there = not place.event_id or session.store.reading.job_of_event(place.event_id) == place.job_id
    # Notice ids are never reused, unless an older copy replaced the database.
    if not is_there or place.notice_id > upto.notice_id:
        return Happened(upto, [], [], is_all=True, is_lost=True)
    reached = Place(
        read[-1].id if len(read) == most else upto.notice_id,
        *((moves[-1].id, moves[-1].job_id) if len(moves) == most else upto[1:]),
    )
    theirs = [one for one in read if owner is None or one.owner == owner]
    return Happened(reached, moves, theirs, reached == upto)


def steps(session: Session) -> Mapping[int, Step]:
    """Return the progress of the running jobs by job id."""
    running = session.store.reading.list(Selector(statuses=(Status.RUNNING,)), most=_RUNNING_MOST)
    return {
        job.id: Step(
            job.id, job.owner, job.job_type, job.name, job.batch_id, job.document_id, job.progress_percent,
            job.progress_message,
        )
        for job in running
    }  # fmt: skip
