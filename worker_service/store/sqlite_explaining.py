"""Why a pending job has not started (P12): the claim's own predicates, then a rehearsal of the next claim."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from worker_service.errors import StoreBusy, StoreReadOnly
from worker_service.jobs.model import Gate, Status
from worker_service.store.sqlite_asking import Asking
from worker_service.store.sqlite_connection import Row
from worker_service.store.sqlite_leases import Leases

AHEAD_MOST = 1000
_STANDING = ("WORKER_DOWN", "PAUSED", "DRAINING", "CAPABILITY_MISSING", "UNKNOWN_TYPE", "DISK_LOW")
"""Behind these a job stands until somebody does something; behind others, until jobs have ended or a time comes."""

_Ask = Callable[..., list[Row]]


class Explaining(Asking, Leases):
    def explain(self, job_id: int, *, dead: Collection[str] = ()) -> Sequence[Gate]:
        """Of one moment: a job that is claimed between two looks would wait for nobody who is there.

        Only where a claim would first free something, this needs a rehearsal. Whoever may not write, or would have
        to wait, hears how things stand without that.
        """
        with self._snapshot():
            job = self.get(job_id)
            if job.status != Status.PENDING:
                return []
            gates = self._gates(job_id, dead, self._read)
            if gates or self._read("unready", now=self._now()) != [(1,)]:
                return gates or self._ahead(job_id, dead, self._read)
            as_it_stands = [] if job.held else self._ahead(job_id, dead, self._read)
        with suppress(StoreReadOnly, StoreBusy), self._rehearsal():
            self._make_ready(self._now())
            is_pending = [row[:1] for row in self._write("row_of", job_id=job_id)] == [(Status.PENDING,)]
            if not is_pending:
                return []
            return self._gates(job_id, dead, self._write) or self._ahead(job_id, dead, self._write)
        return as_it_stands

    def standstill(self, *, dead: Collection[str] = ()) -> Sequence[Gate]:
        """Asked of each lane and each worker, as the claim would."""
        with self._snapshot():
            workers = [worker.id for worker in self.workers()]
            rows = self._read("standing", now=self._now(), stale_before=self._stale_before(), behind=0)
        standing: dict[Row, dict[str | None, list[Row]]] = {}
        for *lane, rank, code, detail, worker_id in rows:
            gates = standing.setdefault(tuple(lane), _of_each(workers, dead))
            if code in _STANDING and worker_id not in dead:
                gates.setdefault(worker_id, []).append((rank, code, detail))
        found = [_nearest(gates) for gates in standing.values()]
        if not all(found):
            return []
        return list(dict.fromkeys(Gate(code, detail) for rows in found for _, code, detail in rows))

    def _gates(self, job_id: int, dead: Collection[str], ask: _Ask) -> list[Gate]:
        """Those of the job and its lane, and those of the worker that is nearest to running it."""
        gates = _of_each([worker_id for worker_id, _ in ask("workers_for", job_id=job_id)], dead)
        rows = ask("explain", job_id=job_id, now=self._now(), stale_before=self._stale_before(), behind=0)
        for rank, code, detail, worker_id in rows:
            if worker_id not in dead:
                gates.setdefault(worker_id, []).append((rank, code, detail))
        return [Gate(code, detail) for _, code, detail in _nearest(gates)]

    def _ahead(self, job_id: int, dead: Collection[str], ask: _Ask) -> list[Gate]:
        """Nothing, if one of the workers that could run it would take it next."""
        workers = [row for row in ask("workers_for", job_id=job_id) if row[1] is not None and row[0] not in dead]
        if any((job_id,) in ask("next_turn", **self._claim_values(*worker)) for worker in workers):
            return []
        [(before,)] = ask("ahead", job_id=job_id, most=AHEAD_MOST)
        # None by priority and age: it is the turn of another owner.
        count = max(1, before)
        words = "1 job is" if count == 1 else f"{count}{'+' if count >= AHEAD_MOST else ''} jobs are"
        return [Gate("AHEAD_IN_QUEUE", f"{words} ahead of it", count)]


def _of_each(workers: Sequence[str], dead: Collection[str]) -> dict[str | None, list[Row]]:
    """For the gates of each worker; under None, those of the job and its lane."""
    down = {
        worker_id: [(1, "WORKER_DOWN", f"worker {worker_id} is dead")] for worker_id in workers if worker_id in dead
    }
    return {None: [], **{worker_id: down.get(worker_id, []) for worker_id in workers}}


def _nearest(gates: dict[str | None, list[Row]]) -> list[Row]:
    """The gates of the job and its lane, and those of the worker that is nearest to running it, in order."""
    of_workers = [found for worker_id, found in gates.items() if worker_id is not None]
    nearest = min(of_workers, key=_distance, default=[(1, "WORKER_DOWN", "no worker has registered")])
    return sorted([*gates.get(None, []), *nearest], key=lambda gate: int(gate[0]))


def _distance(gates: list[Row]) -> tuple[int, int]:
    """A worker without a gate is nearest; then the one that fails latest in the order of `why`."""
    return (-gates[0][0], len(gates)) if gates else (-100, 0)
