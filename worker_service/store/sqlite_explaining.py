"""Why a pending job has not started (P12): the claim's own predicates, then a rehearsal of the next claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from worker_service.errors import StoreBusy, StoreReadOnly
from worker_service.jobs.model import Gate, Status
from worker_service.store.sqlite_asking import Asking
from worker_service.store.sqlite_connection import Row
from worker_service.store.sqlite_leases import Leases

AHEAD_MOST = 1000

_Ask = Callable[..., list[Row]]


class Explaining(Asking, Leases):
    def explain(self, job_id: int) -> Sequence[Gate]:
        """Of one moment: a job that is claimed between two looks would wait for nobody who is there.

        Only where a claim would first free something, this needs a rehearsal. Whoever may not write, or would have
        to wait, hears how things stand without that.
        """
        with self._snapshot():
            job = self.get(job_id)
            if job.status != Status.PENDING:
                return []
            gates = self._gates(job_id, self._read)
            if gates or self._read("unready", now=self._now()) != [(1,)]:
                return gates or self._ahead(job_id, self._read)
            as_it_stands = [] if job.held else self._ahead(job_id, self._read)
        with suppress(StoreReadOnly, StoreBusy), self._rehearsal():
            self._make_ready(self._now())
            is_pending = [row[:1] for row in self._write("row_of", job_id=job_id)] == [(Status.PENDING,)]
            return self._gates(job_id, self._write) or self._ahead(job_id, self._write) if is_pending else []
        return as_it_stands

    def _gates(self, job_id: int, ask: _Ask) -> list[Gate]:
        """Those of the job and its lane, and those of the worker that is nearest to running it."""
        of_worker: dict[str, list[Row]] = {worker_id: [] for worker_id, _ in ask("workers_for", job_id=job_id)}
        of_job: list[Row] = []
        rows = ask("explain", job_id=job_id, now=self._now(), stale_before=self._stale_before(), behind=0)
        for row in rows:
            rank, code, detail, worker_id = row
            (of_job if worker_id is None else of_worker.setdefault(worker_id, [])).append((rank, code, detail))
        nearest = min(of_worker.values(), key=_distance, default=[(1, "WORKER_DOWN", "no worker has registered")])
        return [Gate(code, detail) for _, code, detail in sorted([*of_job, *nearest], key=lambda gate: int(gate[0]))]

    def _ahead(self, job_id: int, ask: _Ask) -> list[Gate]:
        """Nothing, if one of the workers that could run it would take it next."""
        workers = [row for row in ask("workers_for", job_id=job_id) if row[1] is not None]
        if any((job_id,) in ask("next_turn", **self._claim_values(*worker)) for worker in workers):
            return []
        [(before,)] = ask("ahead", job_id=job_id, most=AHEAD_MOST)
        # None by priority and age: it is the turn of another owner.
        count = max(1, before)
        words = "1 job is" if count == 1 else f"{count}{'+' if count >= AHEAD_MOST else ''} jobs are"
        return [Gate("AHEAD_IN_QUEUE", f"{words} ahead of it", count)]


def _distance(gates: list[Row]) -> tuple[int, int]:
    """A worker without a gate is nearest; then the one that fails latest in the order of `why`."""
    return (-gates[0][0], len(gates)) if gates else (-100, 0)
