"""The store and the daemon with one guard taken away each. The simulation has to notice every one of them.

A mutant changes the text of a statement, or puts a function of its own in the place of one; it copies nothing. When the
text that it changes is no longer there, it says so instead of testing nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.room import Room, statements
from worker_service.daemon import recovery
from worker_service.jobs.model import Job
from worker_service.liveness import Fate, Seen
from worker_service.store.intake import make_ready
from worker_service.store.leases import SqliteLeases
from worker_service.store.reading import JOB_COLUMNS, claim_values, job_from

Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    change: Callable[[Texts], Texts] = dict
    put: Callable[[], Iterator[None]] | None = None

    @contextmanager
    def room(self) -> Iterator[Room]:
        """A room in which it is at work."""
        with Room(self.change(statements())) as room:
            if self.put is None:
                yield room
            else:
                with contextmanager(self.put)():
                    yield room


def _without(name: str, *pieces: str) -> Callable[[Texts], Texts]:
    def change(texts: Texts) -> Texts:
        text = texts[name]
        for piece in pieces:
            assert piece in text, f"{name} has no longer {piece!r}: let the mutant take away what is there now"
            text = text.replace(piece, "")
        return {**texts, name: text}

    return change


def _then(*changes: Callable[[Texts], Texts]) -> Callable[[Texts], Texts]:
    def change(texts: Texts) -> Texts:
        for one in changes:
            texts = one(texts)
        return texts

    return change


def _putting(place: object, name: str, value: object) -> Callable[[], Iterator[None]]:
    def put() -> Iterator[None]:
        before = getattr(place, name)
        setattr(place, name, value)
        try:
            yield
        finally:
            setattr(place, name, before)

    return put


def _select_then_update(self: SqliteLeases, worker_id: str, most: int, job_class: str = "cpu") -> list[Job]:
    """A claim that looks first and takes later: between the two, others come in."""
    db = self._db
    values = claim_values(db, worker_id, job_class)
    with db.transaction():
        make_ready(db, values["now"])
    chosen = db.read("next_turn", **values)
    with db.transaction():
        return [job_from(row) for (job_id,) in chosen for row in db.write("take", job_id=job_id, **values)]


def _with_take(texts: Texts) -> Texts:
    take = (
        "UPDATE worker_job_queue SET status = 'running', fence = fence + 1, worker_id = :worker_id,"
        " started_at = :now, heartbeat_at = :now, progress_percent = 0, progress_message = NULL"
        f" WHERE id = :job_id RETURNING {', '.join(JOB_COLUMNS)}"
    )
    return {**texts, "take": take}


def _everybody_is_gone(seen: Seen, *, orphan_after_seconds: float) -> Fate:
    return Fate.GONE


MUTANTS = (
    Mutant(
        "complete without a fence",
        _then(
            _without("close_completed", " AND q.fence = d.value ->> 1 AND q.worker_id = d.value ->> 2"),
            _without("complete", " AND worker_job_queue.fence = d.value ->> 1"),
        ),
    ),
    Mutant("claim that selects, then updates", _with_take, _putting(SqliteLeases, "claim", _select_then_update)),
    Mutant("beat without a fence", _without("beat_leases", " AND fence = l.value ->> 1 AND worker_id = :worker_id")),
    Mutant("no cap of requeues", _without("orphans", "WHEN q.requeue_count >= :requeues_max THEN 'too often'")),
    Mutant(
        "complete that ignores a request to cancel", _without("close_completed", "AND q.cancel_requested_at IS NULL")
    ),
    Mutant("requeue of a worker that lives", put=_putting(recovery, "fate", _everybody_is_gone)),
    Mutant("report without a fence", _without("report", " AND fence = :fence AND worker_id = :worker_id")),
)
