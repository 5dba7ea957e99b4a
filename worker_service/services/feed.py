"""What happens, for whoever watches: moves of jobs and notices, each once, and how far running jobs are.

A place is how far somebody has read: of the notices, and of the moves, with the job of the last one. Moves go with
their jobs, and the numbers of the newest come again, those of jobs never: as long as that move is of that job, all that
has happened since has a higher number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.model import JobMove, Notice, Status
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
    """How far a running job is."""

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
    """How far this goes."""
    moves: Sequence[JobMove]
    notices: Sequence[Notice]
    is_all: bool
    """False: there is more already."""
    is_lost: bool = False
    """Nobody can tell what has happened since."""


def read_place(text: str) -> Place:
    words = text.split("-")
    if len(words) not in (2, 3) or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        raise BadInput(f"{text!r} is no place in the events", "write it as an id of one tells it, such as 12-3400-7")
    return Place(*(min(int(word), _NUMBER_MOST) for word in [*words, "0"][:3]))


def newest(session: Session) -> Place:
    return Place(session.store.notices.newest(), *session.store.reading.newest_event())


def after(session: Session, place: Place, *, owner: str | None = None, most: int = 1000) -> Happened:
    """The oldest first. `owner`: only what is theirs."""
    upto = newest(session)
    moves = session.store.reading.events_after(place.event_id, upto.event_id, owner=owner, most=most)
    read = [one for one in session.store.notices.after(place.notice_id, most=most) if one.id <= upto.notice_id]
    # Looked at last: what is still there was there all the time.
    is_there = not place.event_id or session.store.reading.job_of_event(place.event_id) == place.job_id
    # Numbers of notices never come again, unless an older copy has taken the database's place.
    if not is_there or place.notice_id > upto.notice_id:
        return Happened(upto, [], [], is_all=True, is_lost=True)
    reached = Place(
        read[-1].id if len(read) == most else upto.notice_id,
        *((moves[-1].id, moves[-1].job_id) if len(moves) == most else upto[1:]),
    )
    theirs = [one for one in read if owner is None or one.owner == owner]
    return Happened(reached, moves, theirs, reached == upto)


def steps(session: Session) -> Mapping[int, Step]:
    """By the job."""
    running = session.store.reading.list(Selector(statuses=(Status.RUNNING,)), most=_RUNNING_MOST)
    return {
        job.id: Step(
            job.id, job.owner, job.job_type, job.name, job.batch_id, job.document_id, job.progress_percent,
            job.progress_message,
        )
        for job in running
    }  # fmt: skip
