"""Requeue the jobs of dead workers, after killing what is left of their processes.

On this host a lock file proves death. For a worker of another host, only the heartbeat in its row counts.
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
from worker_service.daemon.attempts import DaemonContext
from worker_service.jobs.workers import WorkerState
from worker_service.runner.processes import pool_id_of, sweep_until_gone
from worker_service.runner.worker_identity import (
    Fate,
    Observation,
    decide_fate,
    is_free,
    lock_holders,
    lock_path,
    observe,
    pid_in,
    staging_root,
)

# The fork server of a dead daemon has this time to end its children by itself.
DYING_SECONDS_MOST = 5.0
# Time between two runs while a worker is dying.
_DYING_CHECK_SECONDS = 0.1
# Longest time in one run to kill a worker's processes, and to wait for the exit of one.
_SWEEP_SECONDS = 2.0
_EXIT_SECONDS = 1.0


@dataclass(slots=True)
class Recovery:
    context: DaemonContext
    clock: Callable[[], float] = boot_clock
    # By worker id: newest heartbeat, and when this daemon first saw it.
    _beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    _dying_since: dict[str, float] = field(default_factory=dict)

    def run(self) -> float:
        workers = [*self.context.store.overview.workers(), *self.context.store.overview.absent_workers()]
        other_workers = [worker for worker in workers if worker.id != self.context.identity.worker_id]
        fates = [self._recover(worker) for worker in other_workers]
        other_ids = {worker.id for worker in other_workers}
        self._beats = {worker_id: beat for worker_id, beat in self._beats.items() if worker_id in other_ids}
        if self.context.settings.cluster is None and self.context.store.overview.nodes():
            self.context.store.workers.forget_nodes_of_dead_workers()
        return _DYING_CHECK_SECONDS if Fate.DYING in fates else self.context.settings.recovery_interval_seconds

    def _recover(self, worker: WorkerState) -> Fate:
        fate = decide_fate(self._observe(worker), orphan_after_seconds=self.context.settings.orphan_after_seconds)
        if fate is Fate.GONE:
            # A grandchild may have closed the lock's descriptor; the sweep finds it by marks that it cannot remove.
            if self._sweep(worker):
                self._requeue(worker, "its processes are gone")
        elif fate is Fate.DYING:
            since = self._dying_since.setdefault(worker.id, self.clock())
            if self.clock() - since > DYING_SECONDS_MOST:
                self._stop_processes(worker)
        elif fate is Fate.SILENT:
            self._stop_processes(worker)
            if not self._living_processes(worker) and self._sweep(worker):
                self._requeue(worker, "it has not beaten for too long")
        return fate

    def _observe(self, worker: WorkerState) -> Observation:
        now = self.clock()
        last_beat, first_seen_at = self._beats.get(worker.id, ("", now))
        if last_beat != worker.heartbeat_at:
            first_seen_at = now
        self._beats[worker.id] = (worker.heartbeat_at, first_seen_at)
        return observe(
            worker,
            self.context.settings.database,
            host=self.context.identity.host,
            boot=self.context.identity.boot_id,
            now=self.context.clock(),
            silent_seconds=now - first_seen_at,
        )

    def _requeue(self, worker: WorkerState, reason: str) -> None:
        # The worker may have woken up since the check; the store requeues only if its heartbeat is unchanged.
        jobs = self.context.store.leases.requeue(worker.id, last_beat=worker.heartbeat_at)
        self._dying_since.pop(worker.id, None)
        has_row = any(row.id == worker.id for row in self.context.store.overview.workers())
        if has_row and not jobs:
            # It has woken up.
            return
        # Keep the lock and the staging directory while they may be needed to find processes of the worker.
        if not has_row and is_free(lock_path(self.context.settings.database, worker.id)):
            lock_path(self.context.settings.database, worker.id).unlink(missing_ok=True)
            shutil.rmtree(staging_root(self.context.settings.workspace, worker.id), ignore_errors=True)
        self.context.log.warning(events.WORKER_RESCUED, worker_id=worker.id, jobs=len(jobs), reason=reason)
        for job in jobs:
            self.context.log.info(events.JOB_REQUEUED, job_id=job.id, fence=job.fence, status=job.status.value)

    def _sweep(self, worker: WorkerState) -> bool:
        pool_id = pool_id_of(staging_root(self.context.settings.workspace, worker.id))
        return sweep_until_gone(pool_id, seconds=_SWEEP_SECONDS)

    def _living_processes(self, worker: WorkerState) -> Sequence[int]:
        # Without its daemon, which is fenced while it is silent.
        holders = lock_holders(lock_path(self.context.settings.database, worker.id))
        return [pid for pid in holders if pid not in (worker.pid, pid_in(worker.id), os.getpid())]

    def _stop_processes(self, worker: WorkerState) -> None:
        for pid in self._living_processes(worker):
            # Check again through a descriptor: the pid may have been reused.
            with suppress(OSError):
                fd = os.pidfd_open(pid)
                try:
                    if pid in self._living_processes(worker):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        # Wait until it has exited. A process that hangs in the kernel is checked again later.
                        select.select([fd], [], [], _EXIT_SECONDS)
                finally:
                    os.close(fd)
