"""Whether another worker lives: one question, asked by recovery and by whoever looks.

On this machine it is known, not guessed: its lock can be taken, or the machine has another boot id. Of a worker of
which nothing can be here only its last beat tells. What follows from the answer is for others to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from worker_service.clock import from_text
from worker_service.daemon.identity import boot_id, is_free, is_there, lock_path, own_host
from worker_service.jobs.model import WorkerState
from worker_service.store.base import Reading


class Fate(Enum):
    ALIVE = "alive"
    DYING = "dying"
    """Its daemon is dead; something of it still lives."""
    SILENT = "silent"
    """It is there, and has not beaten for too long."""
    GONE = "dead"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of another worker."""

    is_lock_free: bool | None
    """None: there is no lock file."""
    is_same_machine: bool
    is_rebooted: bool
    """Its machine is this one, in an earlier life."""
    is_daemon_there: bool
    silent_seconds: float
    """How long we have been watching the same beat. By the boot clock: a stepped wall clock frees nothing."""
    row_silent_seconds: float
    """How old its last beat is by the wall clock."""


def fate(seen: Seen, *, orphan_after_seconds: float) -> Fate:
    if seen.is_lock_free or seen.is_rebooted:
        return Fate.GONE
    if seen.is_lock_free is False and seen.is_same_machine and not seen.is_daemon_there:
        return Fate.DYING
    silent_seconds = seen.silent_seconds
    if seen.is_lock_free is None and not (seen.is_same_machine and seen.is_daemon_there):
        # Nothing of it can be here. To wait for it anew from each start of ours would be to wait for ever.
        silent_seconds = max(silent_seconds, seen.row_silent_seconds)
    return Fate.SILENT if silent_seconds >= orphan_after_seconds else Fate.ALIVE


def look_at(
    worker: WorkerState, database: Path, *, host: str, boot: str, now: datetime, silent_seconds: float | None = None
) -> Seen:
    """`host` and `boot` are ours. `silent_seconds`: how long somebody has watched it; None: nobody has, and its row is
    believed."""
    row_silent_seconds = (now - from_text(worker.heartbeat_at)).total_seconds()
    return Seen(
        is_lock_free=is_free(lock_path(database, worker.id)),
        is_same_machine=worker.host == host and worker.boot_id == boot,
        is_rebooted=worker.host == host and worker.boot_id != boot and bool(worker.boot_id and boot),
        is_daemon_there=is_there(worker.pid),
        silent_seconds=row_silent_seconds if silent_seconds is None else silent_seconds,
        row_silent_seconds=row_silent_seconds,
    )


@dataclass(frozen=True, slots=True)
class Known:
    """A worker, and in a word how it is."""

    worker: WorkerState
    state: str
    """dead, dying, silent, no row, draining, disk low or alive."""

    @property
    def is_alive(self) -> bool:
        return self.state in ("alive", "draining", "disk low")


def known_workers(store: Reading, database: Path, *, now: datetime, orphan_after_seconds: float) -> list[Known]:
    """All that have a row, and those that ought to have one, because jobs run on them by their rows."""
    host, boot = own_host(), boot_id()

    def fate_of(worker: WorkerState) -> Fate:
        return fate(look_at(worker, database, host=host, boot=boot, now=now), orphan_after_seconds=orphan_after_seconds)

    of_rows = [Known(worker, _state(worker, fate_of(worker))) for worker in store.workers()]
    absent = [(worker, fate_of(worker)) for worker in store.absent_workers()]
    return [*of_rows, *(Known(worker, "dead" if found is Fate.GONE else "no row") for worker, found in absent)]


def dead_ids(known: list[Known]) -> list[str]:
    """Of those that have beaten lately by their rows, and will not beat again."""
    return [one.worker.id for one in known if one.state in ("dead", "dying")]


def _state(worker: WorkerState, found: Fate) -> str:
    if found is not Fate.ALIVE:
        return str(found.value)
    if worker.is_draining:
        return "draining"
    return "disk low" if worker.is_disk_low else "alive"
