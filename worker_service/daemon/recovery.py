"""Take jobs back from workers that are gone.

Runs while the handlers are still being imported, before the first claim, then every `recovery_interval_seconds`, and
sooner while a worker is dying. On this machine it is known, not guessed, whether a worker is gone: its lock can be
taken. A worker that is there and does not beat is stopped first, its daemon excepted, which may wake up again and will
find that it owns nothing. Of a worker of another host name only its row tells. How often a job may be taken back is the
store's to say.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from worker_service.base import events
from worker_service.base.clock import boot_clock
from worker_service.daemon.attempts import Tools
from worker_service.jobs.model import WorkerState
from worker_service.runner.processes import house_of, sweep_until_gone
from worker_service.runner.worker_lock import (
    Fate,
    Seen,
    fate,
    holders,
    is_free,
    lock_path,
    look_at,
    pid_in,
    staging_root,
)

DYING_SECONDS_MOST = 5.0
"""How long the children of a dead daemon may take to follow it."""
_SOON_SECONDS = 0.1
_SWEEP_SECONDS = 2.0


@dataclass(slots=True)
class Recovery:
    tools: Tools
    clock: Callable[[], float] = boot_clock
    _beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    _dying_since: dict[str, float] = field(default_factory=dict)

    def run(self) -> float:
        """Look at each of the others once; return in how many seconds to look again."""
        known = [*self.tools.store.reading.workers(), *self.tools.store.reading.absent_workers()]
        others = [worker for worker in known if worker.id != self.tools.identity.worker_id]
        fates = [self._look(worker) for worker in others]
        there = {worker.id for worker in others}
        self._beats = {name: seen for name, seen in self._beats.items() if name in there}
        if self.tools.settings.cluster is None and self.tools.store.reading.nodes():
            self.tools.store.leases.forget_nodes_of_dead_workers()
        return _SOON_SECONDS if Fate.DYING in fates else self.tools.settings.recovery_interval_seconds

    def _look(self, worker: WorkerState) -> Fate:
        found = fate(self._seen(worker), orphan_after_seconds=self.tools.settings.orphan_after_seconds)
        if found is Fate.GONE:
            # A grandchild may have closed the lock's descriptor: it is known by the marks that it cannot take off.
            if self._sweep(worker):
                self._requeue(worker, "its processes are gone")
        elif found is Fate.DYING:
            since = self._dying_since.setdefault(worker.id, self.clock())
            if self.clock() - since > DYING_SECONDS_MOST:
                self._stop_rest(worker)
        elif found is Fate.SILENT:
            self._stop_rest(worker)
            if not self._rest(worker) and self._sweep(worker):
                self._requeue(worker, "it has not beaten for too long")
        return found

    def _seen(self, worker: WorkerState) -> Seen:
        now = self.clock()
        beat, since = self._beats.get(worker.id, ("", now))
        if beat != worker.heartbeat_at:
            since = now
        self._beats[worker.id] = (worker.heartbeat_at, since)
        return look_at(
            worker,
            self.tools.settings.database,
            host=self.tools.identity.host,
            boot=self.tools.identity.boot_id,
            now=self.tools.clock(),
            silent_seconds=now - since,
        )

    def _requeue(self, worker: WorkerState, reason: str) -> None:
        # One that stood still may have woken since it was looked at, and works again.
        jobs = self.tools.store.leases.requeue(worker.id, last_beat=worker.heartbeat_at)
        self._dying_since.pop(worker.id, None)
        is_known = any(known.id == worker.id for known in self.tools.store.reading.workers())
        if is_known and not jobs:
            return
        # What still may live somewhere is looked for by its lock, and by what is noted in its directory.
        if not is_known and is_free(lock_path(self.tools.settings.database, worker.id)):
            lock_path(self.tools.settings.database, worker.id).unlink(missing_ok=True)
            shutil.rmtree(staging_root(self.tools.settings.workspace, worker.id), ignore_errors=True)
        self.tools.log.warning(events.WORKER_RESCUED, worker_id=worker.id, jobs=len(jobs), reason=reason)
        for job in jobs:
            self.tools.log.info(events.JOB_REQUEUED, job_id=job.id, fence=job.fence, status=job.status.value)

    def _sweep(self, worker: WorkerState) -> bool:
        """Stop what is left of its attempts; whether it is gone."""
        house = house_of(staging_root(self.tools.settings.workspace, worker.id))
        return sweep_until_gone(house, seconds=_SWEEP_SECONDS)

    def _rest(self, worker: WorkerState) -> Sequence[int]:
        """What still lives of a worker, its daemon excepted."""
        found = holders(lock_path(self.tools.settings.database, worker.id))
        return [pid for pid in found if pid not in (worker.pid, pid_in(worker.id), os.getpid())]

    def _stop_rest(self, worker: WorkerState) -> None:
        for pid in self._rest(worker):
            # A descriptor of the process, then a second look: the number may be another's by now.
            with suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in self._rest(worker):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        # It is gone in a moment; one that hangs in the kernel is looked at again next time.
                        select.select([fd], [], [], 1.0)
                finally:
                    os.close(fd)
