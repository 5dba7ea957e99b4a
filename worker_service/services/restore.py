"""Put a backup in the place of the database: whether that may be, what it would do, and doing it.

A backup knows nothing of what came after it. Jobs that have ended since run again, and so what follows them; what came
in since is not there. Late results of before find no row that they fit, for every attempt from now on has a higher
fence. Files never change, so those that the backup names are in the workspace unless they were removed since, or the
workspace is another one: those that are not are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import Refused
from worker_service.jobs.model import Status
from worker_service.runner.worker_lock import is_free
from worker_service.services.published_files import faults_of_files
from worker_service.settings.config import Settings
from worker_service.store.opening import open_store, refuse_network_file_system
from worker_service.store.restore import Backup, Restored, look_at_backup, put_in_place
from worker_service.workspace import fault_of_workspace


class RestorePlan(Struct, frozen=True):
    backup: Backup
    database: Path
    replaces: bool
    """There is a database, which is kept under another name."""

    @property
    def jobs(self) -> int:
        return sum(self.backup.jobs.values())

    @property
    def running(self) -> int:
        return self.backup.jobs.get(Status.RUNNING, 0)


class RestoreDone(Struct, frozen=True):
    restored: Restored
    missing: Sequence[str]
    """Published files that are not in the workspace, or have another size there."""


def plan_restore(settings: Settings, file: Path) -> RestorePlan:
    """Look at the backup, and refuse where it may not be; nothing is changed."""
    refuse_network_file_system(settings.database)
    _refuse_beside_a_daemon(settings.database)
    return RestorePlan(look_at_backup(file), settings.database, settings.database.exists())


def restore(settings: Settings, plan: RestorePlan, *, clock: Clock = wall_clock) -> RestoreDone:
    def agrees(database_id: str) -> None:
        if (fault := fault_of_workspace(settings.workspace, database_id)) is not None:
            raise fault
        # One may have begun meanwhile.
        _refuse_beside_a_daemon(plan.database)

    restored = put_in_place(plan.backup, plan.database, clock, agrees=agrees)
    with closing(open_store(plan.database)) as store:
        missing = [fault.path for fault in faults_of_files(store, settings.workspace)]
    return RestoreDone(restored, missing)


def _refuse_beside_a_daemon(database: Path) -> None:
    for lock in sorted((database.parent / "workers").glob("*.lock")):
        if is_free(lock) is False:
            raise Refused(
                f"a daemon works with {database} (worker {lock.stem})",
                "stop it first, by systemctl stop pagemill pagemill-commands, or Ctrl-C where it was started by hand",
            )
