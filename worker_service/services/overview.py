"""The state of workers, nodes, queue and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property

from msgspec import Struct
from msgspec.structs import asdict

from worker_service.base.clock import from_text
from worker_service.base.errors import FileSystemReadOnly
from worker_service.jobs.batches import BatchState
from worker_service.jobs.counts import Counts, LiveCounts, PlatformCount, TypeCounts
from worker_service.jobs.job import Gate, Job, Pause, Status
from worker_service.jobs.library import OwnerSize
from worker_service.jobs.selector import Selector
from worker_service.jobs.workers import NodeRow, WorkerState
from worker_service.runner.worker_identity import Fate, boot_id, decide_fate, observe, own_host
from worker_service.services.batches import BatchDetails, list_batches
from worker_service.services.session import Session
from worker_service.store.errors import read_only_error

_RUNNING_JOBS_LISTED_MAX = 500
_BATCHES_LISTED_MAX = 3
_MISSED_HEARTBEATS_MAX = 3


class CheckedWorker(WorkerState, frozen=True):
    state: str = ""
    """One of dead, dying, silent, no row, draining, disk low, alive."""

    @property
    def is_alive(self) -> bool:
        return self.state in ("alive", "draining", "disk low")


class CheckedNode(NodeRow, frozen=True):
    """The state is `down` if the daemon of the node is dead."""

    jobs: Sequence[int] = ()

    @property
    def running(self) -> int:
        return len(self.jobs)


class Overview:
    """Each part is queried once, when it is first used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.settings = session.settings
        self.at = session.clock()

    @cached_property
    def counts(self) -> Counts:
        return self._session.overview.counts()

    @cached_property
    def pauses(self) -> Sequence[Pause]:
        return self._session.job_queries.pauses()

    @cached_property
    def workers(self) -> Sequence[CheckedWorker]:
        """All workers, and those without a row that running jobs name."""
        overview = self._session.overview
        checked = [CheckedWorker(**asdict(row), state=self._state_of(row)) for row in overview.workers()]
        for row in overview.absent_workers():
            state = "dead" if self._fate_of(row) is Fate.GONE else "no row"
            checked.append(CheckedWorker(**asdict(row), state=state))
        return checked

    @property
    def live_workers(self) -> list[CheckedWorker]:
        return [worker for worker in self.workers if worker.is_alive]

    @property
    def lost_workers(self) -> list[CheckedWorker]:
        return [worker for worker in self.workers if not worker.is_alive]

    @property
    def dead_worker_ids(self) -> list[str]:
        return [worker.id for worker in self.workers if worker.state in ("dead", "dying")]

    @property
    def has_recent_heartbeat(self) -> bool:
        oldest = self.at - timedelta(seconds=_MISSED_HEARTBEATS_MAX * self._session.settings.heartbeat_interval_seconds)
        return any(from_text(worker.heartbeat_at) >= oldest for worker in self.live_workers)

    @cached_property
    def nodes(self) -> Sequence[CheckedNode]:
        rows = self._session.overview.nodes()
        if not rows:
            return []
        attempts = self._session.overview.work_on_nodes()
        live_worker_ids = {worker.id for worker in self.live_workers}
        checked = []
        for row in rows:
            fields = asdict(row)
            if row.worker_id not in live_worker_ids:
                fields |= {"state": "down", "slots": 0, "reason": "its daemon is dead"}
            job_ids = [attempt.job_id for attempt in attempts if attempt.node == row.name]
            checked.append(CheckedNode(**fields, jobs=job_ids))
        return checked

    @cached_property
    def standstill(self) -> Sequence[Gate]:
        """Gates that keep every pending job from starting."""
        return self._session.gates.standstill(dead_workers=self.dead_worker_ids)

    @cached_property
    def running_jobs(self) -> Sequence[Job]:
        return running_jobs(self._session)

    @cached_property
    def pending_types(self) -> Sequence[LiveCounts]:
        types = [counts for counts in self._session.overview.live_by_type() if counts.pending or counts.held]
        return sorted(types, key=lambda counts: (-counts.pending, counts.job_type))

    @cached_property
    def batches(self) -> Sequence[BatchDetails]:
        live_states = (BatchState.ACTIVE, BatchState.WAITING)
        return list_batches(self._session, states=live_states, limit=_BATCHES_LISTED_MAX).items

    @cached_property
    def failures(self) -> int:
        return sum(self._session.job_queries.count_failures(None).values())

    @cached_property
    def batches_replaced(self) -> int:
        return self._session.store.batches.count_replaced()

    @cached_property
    def database_fault(self) -> FileSystemReadOnly | None:
        return read_only_error(self._session.settings.database)

    def _fate_of(self, worker: WorkerState) -> Fate:
        settings = self._session.settings
        observation = observe(worker, settings.database, host=own_host(), boot=boot_id(), now=self.at)
        return decide_fate(observation, orphan_after_seconds=settings.orphan_after_seconds)

    def _state_of(self, worker: WorkerState) -> str:
        fate = self._fate_of(worker)
        if fate is not Fate.ALIVE:
            return str(fate.value)
        if worker.is_draining:
            return "draining"
        return "disk low" if worker.is_disk_low else "alive"


def running_jobs(session: Session, owner: str | None = None) -> Sequence[Job]:
    selector = Selector(statuses=(Status.RUNNING,), owners=() if owner is None else (owner,))
    return sorted(
        session.job_queries.list(selector, most=_RUNNING_JOBS_LISTED_MAX),
        key=lambda job: (job.started_at or "", job.id),
    )


class Statistics(Struct, frozen=True):
    items: Sequence[TypeCounts]
    pending_by_platform: Sequence[PlatformCount]
    by_owner: Sequence[OwnerSize]
    files: int
    size: int


def statistics(session: Session) -> Statistics:
    overview, removal = session.overview, session.store.removal
    files, size = removal.size_of_all()
    return Statistics(overview.counts_by_type(), overview.pending_by_platform(), removal.sizes_by_owner(), files, size)


def title_of_pause(scope: str, name: str) -> str:
    return "everything" if scope == "all" else f"{scope} {name}"
