"""Reasons why a pending job has not started (promise P12), found with the same SQL conditions as the claim's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from worker_service.base.errors import StoreBusy, StoreReadOnly
from worker_service.jobs.job import Gate, Status
from worker_service.store.claim_order import claim_values, make_ready
from worker_service.store.database import Row, StorePart

JOBS_AHEAD_COUNTED_MAX = 1000

# Gates that remain until a user acts or a source's rest ends.
_LASTING_GATES = (
    "WORKER_DOWN", "PAUSED", "DRAINING", "NO_NODE", "CAPABILITY_MISSING", "UNKNOWN_TYPE", "DISK_LOW", "SOURCE_RESTING",
)  # fmt: skip

_UNKNOWN_TYPE = "UNKNOWN_TYPE"
_RANK_ABOVE_ALL = 100

_RunQuery = Callable[..., list[Row]]


class _RankedGate(NamedTuple):
    rank: int
    code: str
    detail: str
    remedy: str = ""


# None: the gates of the job and its lane.
_GatesByWorker = dict[str | None, list[_RankedGate]]


class Gates(StorePart):
    def explain(self, job_id: int, *, dead_workers: Collection[str] = ()) -> Sequence[Gate]:
        """Return the gates of a pending job, or the jobs ahead of it.

        If a claim would first free waiting jobs, rehearse that, unless the database is read-only or busy.
        """
        with self._db.snapshot():
            job = self._store.job_queries.get(job_id)
            if job.status != Status.PENDING:
                return []
            gates = self._gates(job_id, dead_workers, self._db.read)
            if gates:
                return gates
            has_jobs_to_free = self._db.read_flag("has_unsettled_or_due", now=self._db.now())
            if not has_jobs_to_free:
                return self._gate_ahead(job_id, dead_workers, self._db.read)
            # A held job is in no lane, so no job can be ahead of it.
            without_rehearsal = [] if job.held else self._gate_ahead(job_id, dead_workers, self._db.read)
        with suppress(StoreReadOnly, StoreBusy), self._db.rehearsal():
            make_ready(self._db, self._db.now())
            job_now = self._store.job_control.read_job(job_id)
            if job_now is None or job_now.status is not Status.PENDING:
                return []
            gates = self._gates(job_id, dead_workers, self._db.read_locked)
            return gates or self._gate_ahead(job_id, dead_workers, self._db.read_locked)
        # The database is read-only or busy.
        return without_rehearsal

    def standstill(self, *, dead_workers: Collection[str] = ()) -> Sequence[Gate]:
        """Return the gates that keep all ready jobs from starting, or nothing if a lane is open."""
        with self._db.snapshot():
            workers = [worker_id for worker_id, *_ in self._db.read("workers")]
            now = self._db.now()
            # Each lane (ready jobs of one type, owner and source) has at least one row, with an empty code.
            # Only a claiming worker knows how many jobs it has prefetched.
            rows = self._db.read("gates_of_ready_lanes", now=now, stale_before=self._db.stale_before(), prefetched=0)
            resting = self._db.read("rests_of_snoozed_jobs", now=now)
        gates_by_lane: dict[Row, _GatesByWorker] = {}
        for *lane, rank, code, detail, remedy, worker_id in rows:
            gates = gates_by_lane.setdefault(tuple(lane), _initial_gates(workers, dead_workers))
            if code in _LASTING_GATES and _is_relevant(code, worker_id, dead_workers):
                gates.setdefault(worker_id, []).append(_RankedGate(rank, code, detail, remedy))
        gates_of_lanes = [_gates_of_nearest(gates, dead_workers) for gates in gates_by_lane.values()]
        if not all(gates_of_lanes):
            return []
        blocking = [gate for lane_gates in gates_of_lanes for gate in lane_gates]
        return list(dict.fromkeys([*blocking, *(Gate(code, detail) for code, detail in resting)]))

    def _gates(self, job_id: int, dead_workers: Collection[str], run: _RunQuery) -> Sequence[Gate]:
        gates = _initial_gates([worker_id for worker_id, _ in run("workers_for", job_id=job_id)], dead_workers)
        rows = run("explain", job_id=job_id, now=self._db.now(), stale_before=self._db.stale_before(), prefetched=0)
        for rank, code, detail, remedy, worker_id in rows:
            if _is_relevant(code, worker_id, dead_workers):
                gates.setdefault(worker_id, []).append(_RankedGate(rank, code, detail, remedy))
        return _gates_of_nearest(gates, dead_workers)

    def _gate_ahead(self, job_id: int, dead_workers: Collection[str], run: _RunQuery) -> Sequence[Gate]:
        for worker_id, job_class in run("workers_for", job_id=job_id):
            can_run = job_class is not None and worker_id not in dead_workers
            if can_run and (job_id,) in run("next_turn", **claim_values(self._db, worker_id, job_class)):
                return []
        [(jobs_ahead,)] = run("count_ahead", job_id=job_id, most=JOBS_AHEAD_COUNTED_MAX)
        # The count is 0 if only another owner's turn comes first.
        count = max(1, jobs_ahead)
        words = "1 job is" if count == 1 else f"{count}{'+' if count >= JOBS_AHEAD_COUNTED_MAX else ''} jobs are"
        return [Gate("AHEAD_IN_QUEUE", f"{words} ahead of it", count=count)]


def _is_relevant(code: str, worker_id: str | None, dead_workers: Collection[str]) -> bool:
    # The other gates of a dead worker would open with its restart; this gate would not.
    return worker_id not in dead_workers or code == _UNKNOWN_TYPE


def _initial_gates(workers: Sequence[str], dead_workers: Collection[str]) -> _GatesByWorker:
    gates: _GatesByWorker = {None: []}
    for worker_id in workers:
        is_dead = worker_id in dead_workers
        gates[worker_id] = [_RankedGate(1, "WORKER_DOWN", f"worker {worker_id} is dead")] if is_dead else []
    return gates


def _gates_of_nearest(gates: _GatesByWorker, dead_workers: Collection[str]) -> list[Gate]:
    """Return the gates of the job and its lane, and of the worker that is nearest to starting it, by rank."""
    worker_gates = {worker_id: ranked for worker_id, ranked in gates.items() if worker_id is not None}
    nearest_id = min(worker_gates, key=lambda worker_id: _distance(worker_gates[worker_id]), default="")
    nearest = worker_gates.get(nearest_id, [_RankedGate(1, "WORKER_DOWN", "no worker has registered")])
    if nearest_id in dead_workers:
        # UNKNOWN_TYPE of a dead worker only counts for the distance.
        nearest = nearest[:1]
    ranked = sorted([*gates.get(None, []), *nearest], key=lambda gate: gate.rank)
    return [Gate(gate.code, gate.detail, gate.remedy) for gate in ranked]


def _distance(gates: Sequence[_RankedGate]) -> tuple[bool, int, int]:
    """Prefer workers that know the type, then one without gates, then the one whose first gate has the highest rank.

    `gates` are in the order of their ranks.
    """
    is_unknown = any(gate.code == _UNKNOWN_TYPE for gate in gates)
    first_rank = gates[0].rank if gates else _RANK_ABOVE_ALL
    return is_unknown, -first_rank, len(gates)
