"""Take jobs back from workers that are gone.

Runs while the handlers are still being imported, before the first claim, then every `recovery_interval_seconds`, and
sooner while a worker is dying. On this machine it is known, not guessed, whether a worker is gone: its lock can be
taken. A worker that is there and does not beat is stopped first, its daemon excepted, which may wake up again and will
find that it owns nothing. Of a worker of another host name only its row tells. How often a job may be taken back is the
store's to say.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.children.processes import house_of, sweep_until_gone
from worker_service.clock import Clock
from worker_service.jobs.model import WorkerState
from worker_service.liveness import (
    Fate,
    Identity,
    Seen,
    fate,
    holders,
    is_free,
    lock_path,
    look_at,
    pid_in,
    staging_root,
)
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

DYING_SECONDS_MOST = 5.0
"""How long the children of a dead daemon may take to follow it."""
_SOON_SECONDS = 0.1
_SWEEP_SECONDS = 2.0


class Recovery:
    name = "recovery"

    def __init__(
        self,
        store: Store,
        own: Identity,
        database: Path,
        workspace: Path,
        *,
        interval_seconds: float,
        orphan_after_seconds: float,
        clock: Callable[[], float],
        wall: Clock,
        log: Log,
    ) -> None:
        self._store = store
        self._own = own
        self._database = database
        self._workspace = workspace
        self._interval_seconds = interval_seconds
        self._orphan_after_seconds = orphan_after_seconds
        self._clock = clock
        self._wall = wall
        self._log = log
        self._beats: dict[str, tuple[str, float]] = {}
        self._dying_since: dict[str, float] = {}

    def run(self) -> float:
        """Look at each of the others once; return in how many seconds to look again."""
        known = [*self._store.reading.workers(), *self._store.reading.absent_workers()]
        others = [worker for worker in known if worker.id != self._own.worker_id]
        fates = [self._look(worker) for worker in others]
        there = {worker.id for worker in others}
        self._beats = {name: seen for name, seen in self._beats.items() if name in there}
        return _SOON_SECONDS if Fate.DYING in fates else self._interval_seconds

    def _look(self, worker: WorkerState) -> Fate:
        found = fate(self._seen(worker), orphan_after_seconds=self._orphan_after_seconds)
        if found is Fate.GONE:
            # A grandchild may have closed the lock's descriptor: it is known by the marks that it cannot take off.
            if self._sweep(worker):
                self._requeue(worker, "its processes are gone")
        elif found is Fate.DYING:
            since = self._dying_since.setdefault(worker.id, self._clock())
            if self._clock() - since > DYING_SECONDS_MOST:
                self._stop_rest(worker)
        elif found is Fate.SILENT:
            self._stop_rest(worker)
            if not self._rest(worker) and self._sweep(worker):
                self._requeue(worker, "it has not beaten for too long")
        return found

    def _seen(self, worker: WorkerState) -> Seen:
        now = self._clock()
        beat, since = self._beats.get(worker.id, ("", now))
        if beat != worker.heartbeat_at:
            since = now
        self._beats[worker.id] = (worker.heartbeat_at, since)
        return look_at(
            worker,
            self._database,
            host=self._own.host,
            boot=self._own.boot_id,
            now=self._wall(),
            silent_seconds=now - since,
        )

    def _requeue(self, worker: WorkerState, reason: str) -> None:
        # One that stood still may have woken since it was looked at, and works again.
        jobs = self._store.leases.requeue(worker.id, last_beat=worker.heartbeat_at)
        self._dying_since.pop(worker.id, None)
        if not jobs and any(known.id == worker.id for known in self._store.reading.workers()):
            return
        if is_free(lock_path(self._database, worker.id)):
            lock_path(self._database, worker.id).unlink(missing_ok=True)
            shutil.rmtree(staging_root(self._workspace, worker.id), ignore_errors=True)
        self._log.warning(events.WORKER_RESCUED, worker_id=worker.id, jobs=len(jobs), reason=reason)
        for job in jobs:
            self._log.info(events.JOB_REQUEUED, job_id=job.id, fence=job.fence, status=job.status.value)

    def _sweep(self, worker: WorkerState) -> bool:
        """Stop what is left of its attempts; whether it is gone."""
        house = house_of(staging_root(self._workspace, worker.id))
        return sweep_until_gone(house, seconds=_SWEEP_SECONDS)

    def _rest(self, worker: WorkerState) -> Sequence[int]:
        """What still lives of a worker, its daemon excepted."""
        found = holders(lock_path(self._database, worker.id))
        return [pid for pid in found if pid not in (worker.pid, pid_in(worker.id), os.getpid())]

    def _stop_rest(self, worker: WorkerState) -> None:
        for pid in self._rest(worker):
            # A descriptor of the process, then a second look: the number may be another's by now.
            with suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in self._rest(worker):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        _await_end(fd)
                finally:
                    os.close(fd)


def _await_end(pidfd: int) -> None:
    """A killed process is gone in a moment; one that hangs in the kernel is looked at again next time."""
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(1000)
