"""Create, migrate, back up and check the database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import BadInput, PagemillError
from worker_service.services.database import Session
from worker_service.store import opening
from worker_service.store.connection import SCHEMA_VERSION

if TYPE_CHECKING:
    from worker_service.jobs.counts import Check
    from worker_service.settings.config import Settings
    from worker_service.store.connection import OnLongWait


def initialise(settings: Settings, *, on_long_wait: OnLongWait | None = None) -> bool:
    """Return False if the database exists."""
    return opening.initialise(
        settings.database, payload_bytes_max=settings.payload_bytes_max, on_long_wait=on_long_wait
    )


def migrate(settings: Settings, *, dry_run: bool, on_long_wait: OnLongWait | None = None) -> list[str]:
    from worker_service.store import migrations

    return migrations.migrate(settings.database, dry_run=dry_run, on_long_wait=on_long_wait)


class BackedUp(Struct, frozen=True):
    path: Path
    size: int
    removed: Sequence[Path]


def backup(
    settings: Settings,
    target: Path,
    *,
    keep: int | None = None,
    clock: Clock = wall_clock,
    on_long_wait: OnLongWait | None = None,
) -> BackedUp:
    """Write a backup to a new file. In a directory, keep only the newest `keep` backups."""
    from worker_service.store.backup_and_restore import back_up

    path, older = target, list[Path]()
    if target.is_dir():
        path = target / f"{settings.database.stem}-{clock():%Y-%m-%dT%H%M%SZ}.db"
        copy_name = re.compile(rf"{re.escape(settings.database.stem)}-\d{{4}}-\d\d-\d\dT\d{{6}}Z\.db")
        older = sorted(one for one in target.iterdir() if copy_name.fullmatch(one.name))
    elif keep is not None:
        raise BadInput(f"{target} is not a directory: --keep needs one")
    back_up(settings.database, path, on_long_wait=on_long_wait)
    # Only after success: if no copy can be made, the old ones are needed most. The new copy is one of `keep`.
    removed = [] if keep is None else older[: max(0, len(older) - keep + 1)]
    for old_copy in removed:
        old_copy.unlink(missing_ok=True)
    return BackedUp(path, path.stat().st_size, removed)


def check_database(session: Session) -> Sequence[Check]:
    return session.store.integrity.check()


def rebuild_search(session: Session) -> int:
    return session.store.integrity.rebuild_search()


def versions(settings: Settings) -> dict[str, object]:
    schema: int | None = None
    with suppress(PagemillError):
        schema = opening.schema_version(settings.database)
    return {"library": opening.LIBRARY, "schema": schema, "schema_of_this_version": SCHEMA_VERSION}
