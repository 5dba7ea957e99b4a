"""Create, migrate, back up, restore and check the database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.jobs.job import Status
from worker_service.runner.worker_identity import is_free
from worker_service.services.published_files import find_file_faults
from worker_service.services.session import Session, open_session
from worker_service.store import opening
from worker_service.store.backup_and_restore import Backup, Restored, back_up, check_backup, restore_backup
from worker_service.store.connection import SCHEMA_VERSION
from worker_service.workspace import fault_of_workspace

if TYPE_CHECKING:
    from worker_service.jobs.counts import BrokenPromise, Check
    from worker_service.settings.config import Settings
    from worker_service.store.connection import OnLongWait


def initialise(settings: Settings, *, on_long_wait: OnLongWait | None = None) -> bool:
    """Return False if the database exists already."""
    return opening.initialise(
        settings.database, payload_bytes_max=settings.payload_bytes_max, on_long_wait=on_long_wait
    )


def migrate(settings: Settings, *, dry_run: bool, on_long_wait: OnLongWait | None = None) -> list[str]:
    from worker_service.store import migrations

    return migrations.migrate(settings.database, dry_run=dry_run, on_long_wait=on_long_wait)


def check_database(session: Session) -> Sequence[Check]:
    return session.store.integrity.check()


def audit_database(session: Session) -> Sequence[BrokenPromise]:
    return session.store.integrity.audit()


def rebuild_search(session: Session) -> int:
    return session.store.integrity.rebuild_search()


def versions(settings: Settings) -> dict[str, object]:
    schema: int | None = None
    with suppress(PagemillError):
        schema = opening.schema_version(settings.database)
    return {"library": opening.LIBRARY, "schema": schema, "schema_of_this_version": SCHEMA_VERSION}


# ── Backups ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class WrittenBackup(Struct, frozen=True):
    path: Path
    size: int
    removed: Sequence[Path]


def backup(
    settings: Settings,
    target: Path,
    *,
    keep: int | None = None,
    on_long_wait: OnLongWait | None = None,
) -> WrittenBackup:
    """Write a backup to a new file. In a directory, keep only the newest `keep` backups."""
    path, earlier_backups = target, list[Path]()
    if target.is_dir():
        path = target / f"{settings.database.stem}-{wall_clock():%Y-%m-%dT%H%M%SZ}.db"
        backup_name = re.compile(rf"{re.escape(settings.database.stem)}-\d{{4}}-\d\d-\d\dT\d{{6}}Z\.db")
        earlier_backups = sorted(file for file in target.iterdir() if backup_name.fullmatch(file.name))
    elif keep is not None:
        raise BadInput(f"{target} is not a directory: --keep needs one")
    back_up(settings.database, path, on_long_wait=on_long_wait)
    # Delete only after success: if no backup can be written, the earlier ones are needed most. `keep` includes the new.
    removed = [] if keep is None else earlier_backups[: max(0, len(earlier_backups) - keep + 1)]
    for file in removed:
        file.unlink(missing_ok=True)
    return WrittenBackup(path, path.stat().st_size, removed)


# ── Restore ───────────────────────────────────────────────────────────────────────────────────────────────────────────
# Jobs that ended after the backup run again; jobs that were enqueued after it are gone. Each later attempt has a higher
# fence than any before the restore, so late results match no row.


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
    """Published files that are missing or have another size."""


def plan_restore(settings: Settings, file: Path) -> RestorePlan:
    opening.refuse_network_file_system(settings.database)
    _refuse_while_a_daemon_runs(settings.database)
    return RestorePlan(check_backup(file), settings.database, settings.database.exists())


def restore(settings: Settings, plan: RestorePlan) -> RestoreDone:
    def raise_unless_possible(database_id: str) -> None:
        if (fault := fault_of_workspace(settings.workspace, database_id)) is not None:
            raise fault
        # A daemon may have started since the plan was made.
        _refuse_while_a_daemon_runs(plan.database)

    restored = restore_backup(plan.backup, plan.database, wall_clock, agrees=raise_unless_possible)
    with closing(open_session(settings)) as session:
        return RestoreDone(restored, [fault.path for fault in find_file_faults(session)])


def _refuse_while_a_daemon_runs(database: Path) -> None:
    for lock in sorted((database.parent / "workers").glob("*.lock")):
        # None: it cannot be found out whether the lock is held.
        if is_free(lock) is False:
            raise Refused(
                f"a daemon works with {database} (worker {lock.stem})",
                "stop it first, by systemctl stop pagemill pagemill-commands, or Ctrl-C where it was started by hand",
            )
