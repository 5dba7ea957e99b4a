"""Replace the database with a backup.

Jobs that ended after the backup run again; jobs that were enqueued after it are gone. Each later attempt has a
higher fence than any before the restore, so late results match no row. Missing published files are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import Refused
from worker_service.jobs.job import Status
from worker_service.runner.worker_identity import is_free
from worker_service.services.published_files import faults_of_files
from worker_service.settings.config import Settings
from worker_service.store.backup_and_restore import Backup, Restored, check_backup, restore_backup
from worker_service.store.opening import open_store, refuse_network_file_system
from worker_service.workspace import fault_of_workspace


class RestorePlan(Struct, frozen=True):
    backup: Backup
    database: Path
    replaces: bool

    @property
    def jobs(self) -> int:
        return sum(self.backup.jobs.values())

    @property
    def running(self) -> int:
        return self.backup.jobs.get(Status.RUNNING, 0)


class RestoreDone(Struct, frozen=True):
    restored: Restored
    missing: Sequence[str]


def plan_restore(settings: Settings, file: Path) -> RestorePlan:
    refuse_network_file_system(settings.database)
    _refuse_beside_a_daemon(settings.database)
    return RestorePlan(check_backup(file), settings.database, settings.database.exists())


def restore(settings: Settings, plan: RestorePlan, *, clock: Clock = wall_clock) -> RestoreDone:
    def raise_unless_possible(database_id: str) -> None:
        if (fault := fault_of_workspace(settings.workspace, database_id)) is not None:
            raise fault
        # A daemon may have started meanwhile.
        _refuse_beside_a_daemon(plan.database)

    restored = restore_backup(plan.backup, plan.database, clock, agrees=raise_unless_possible)
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
