"""State of the service: workers and their states, jobs by status, pauses, and current activity.

Plain `pagemill`, `status`, `workers`, `top` and `doctor` each show parts of the same overview.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from worker_service.base.clock import as_text, from_text
from worker_service.jobs.counts import Counts, ErrorCount, LiveCounts, PlatformCount, TypeCounts
from worker_service.jobs.job import Job, Pause, Status
from worker_service.jobs.library import OwnerSize
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import WorkerState
from worker_service.runner.worker_lock import Fate, boot_id, decide_fate, observe, own_host
from worker_service.services.batches import BatchInWhole, under_way
from worker_service.services.database import Session
from worker_service.services.nodes import CheckedNode, checked_nodes
from worker_service.services.parse import read_past

_JOBS_MOST = 500
_BEATS_MOST = 3
"""Missed heartbeats after which no worker counts as healthy. It is declared dead much later."""


class CheckedWorker(WorkerState, frozen=True):
    """A worker and its state in one word."""

    state: str = ""
    """dead, dying, silent, no row, draining, disk low or alive."""

    @property
    def is_alive(self) -> bool:
        return self.state in ("alive", "draining", "disk low")


class Overview(Struct, frozen=True):
    at: datetime
    counts: Counts
    workers: Sequence[CheckedWorker]
    pauses: Sequence[Pause]
    nodes: Sequence[CheckedNode] = ()

    @property
    def workers_alive(self) -> int:
        return sum(one.is_alive for one in self.workers)


class Activity(Struct, frozen=True):
    """Running and pending work."""

    running: Sequence[Job]
    """Longest running first; at most 500."""
    pending: Sequence[LiveCounts]
    """Types with pending or held jobs; most pending jobs first."""
    batches: Sequence[BatchInWhole]
    """The newest few that have not ended."""


class SchedulerStatus(Struct, frozen=True):
    running: Sequence[Job]
    """Ordered by start; at most 500."""
    pending_counts: Sequence[PlatformCount]
    worker_healthy: bool


class Numbers(Struct, frozen=True):
    items: Sequence[TypeCounts]
    """Number of jobs by type."""
    pending_by_platform: Sequence[PlatformCount]
    by_owner: Sequence[OwnerSize]
    files: int
    """All published files; a file shared by two owners counts once."""
    size: int


def look(session: Session) -> Overview:
    store = session.store
    found = workers(session)
    return Overview(session.clock(), store.reading.counts(), found, store.reading.pauses(), nodes(session, found))


def activity(session: Session) -> Activity:
    running = session.store.reading.list(Selector(statuses=(Status.RUNNING,)), most=_JOBS_MOST)
    types = [one for one in session.store.reading.live_by_type() if one.pending or one.held]
    return Activity(
        sorted(running, key=lambda job: (job.started_at or "", job.id)),
        sorted(types, key=lambda one: (-one.pending, one.job_type)),
        under_way(session),
    )


def scheduler_status(session: Session, owner: str | None = None) -> SchedulerStatus:
    """Return the running jobs and the pending counts; with `owner`, only that owner's."""
    own = () if owner is None else (owner,)
    running = session.store.reading.list(Selector(statuses=(Status.RUNNING,), owners=own), most=_JOBS_MOST)
    return SchedulerStatus(
        sorted(running, key=lambda job: (job.started_at or "", job.id)),
        session.store.reading.pending_by_platform(owner),
        is_healthy(session),
    )


def is_healthy(session: Session) -> bool:
    """Return whether a worker is alive: its processes exist and its last heartbeats are recent."""
    patience = timedelta(seconds=_BEATS_MOST * session.settings.heartbeat_interval_seconds)
    now = session.clock()
    return any(one.is_alive and now - from_text(one.heartbeat_at) <= patience for one in workers(session))


def errors(session: Session, *, since: str, owner: str | None = None) -> Sequence[ErrorCount]:
    """Return the failures since then (1d: a day ago) by code and type, most frequent first."""
    return session.store.reading.errors(since=as_text(read_past(since, now=session.clock())), owner=owner)


def numbers(session: Session) -> Numbers:
    store = session.store
    return Numbers(
        store.reading.counts_by_type(),
        store.reading.pending_by_platform(),
        store.upkeep.sizes_by_owner(),
        *store.upkeep.size_of_all(),
    )


# ── Workers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def workers(session: Session) -> list[CheckedWorker]:
    """Return all workers with a row, and workers without a row that jobs name as theirs."""
    store, settings, now = session.store, session.settings, session.clock()
    host, boot = own_host(), boot_id()

    def fate_of(worker: WorkerState) -> Fate:
        seen = observe(worker, settings.database, host=host, boot=boot, now=now)
        return decide_fate(seen, orphan_after_seconds=settings.orphan_after_seconds)

    of_rows = [_checked(worker, _state(worker, fate_of(worker))) for worker in store.reading.workers()]
    absent = [(worker, fate_of(worker)) for worker in store.reading.absent_workers()]
    return [*of_rows, *(_checked(worker, "dead" if of is Fate.GONE else "no row") for worker, of in absent)]


def nodes(session: Session, checked: Sequence[CheckedWorker] | None = None) -> Sequence[CheckedNode]:
    rows = session.store.reading.nodes()
    if not rows:
        return ()
    alive = [one.id for one in (workers(session) if checked is None else checked) if one.is_alive]
    return checked_nodes(rows, session.store.reading.on_nodes(), alive)


def dead_ids(checked: Sequence[CheckedWorker]) -> list[str]:
    """Return the ids of dead workers, whose rows may still show recent heartbeats."""
    return [one.id for one in checked if one.state in ("dead", "dying")]


def _checked(worker: WorkerState, state: str) -> CheckedWorker:
    return CheckedWorker(**{name: getattr(worker, name) for name in worker.__struct_fields__}, state=state)


def _state(worker: WorkerState, found: Fate) -> str:
    if found is not Fate.ALIVE:
        return str(found.value)
    if worker.is_draining:
        return "draining"
    return "disk low" if worker.is_disk_low else "alive"


def title_of_pause(scope: str, name: str) -> str:
    return "everything" if scope == "all" else f"{scope} {name}"
