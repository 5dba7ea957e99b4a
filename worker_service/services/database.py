"""The database as a whole: open it for somebody, make it, migrate it, copy it, see whether it is sound."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from worker_service.base.clock import Clock, wall_clock
from worker_service.base.errors import BadInput, PagemillError
from worker_service.jobs.model import Check
from worker_service.settings.config import Settings
from worker_service.store import opening
from worker_service.store.store import Store

if TYPE_CHECKING:
    from worker_service.store.connection import OnLongWait


class Session(Struct, frozen=True):
    """An open database, the settings it was opened with, and who is asking."""

    store: Store
    settings: Settings
    actor: str
    clock: Clock = wall_clock

    def close(self) -> None:
        self.store.close()


def open_session(settings: Settings, *, actor: str | None = None, on_long_wait: OnLongWait | None = None) -> Session:
    """`on_long_wait`: see `open_store`."""
    return Session(opening.open_as_set(settings, on_long_wait=on_long_wait), settings, actor or _person())


def initialise(settings: Settings, *, on_long_wait: OnLongWait | None = None) -> bool:
    """Make the database. False: it was there already, and is sound."""
    return opening.initialise(
        settings.database, payload_bytes_max=settings.payload_bytes_max, on_long_wait=on_long_wait
    )


def migrate(settings: Settings, *, dry_run: bool, on_long_wait: OnLongWait | None = None) -> list[str]:
    """The steps that were (or would be) taken to bring the database to this version's tables."""
    return opening.migrate(settings.database, dry_run=dry_run, on_long_wait=on_long_wait)


class BackedUp(Struct, frozen=True):
    path: Path
    size: int
    removed: Sequence[Path]
    """Older ones in the same directory."""


def backup(
    settings: Settings,
    target: Path,
    *,
    keep: int | None = None,
    clock: Clock = wall_clock,
    on_long_wait: OnLongWait | None = None,
) -> BackedUp:
    """Write a sound copy while others go on; a file that is there is never overwritten. In a directory it is named by
    the time, and of those named so the newest `keep` stay."""
    path, older = target, list[Path]()
    if target.is_dir():
        path = target / f"{settings.database.stem}-{clock():%Y-%m-%dT%H%M%SZ}.db"
        named = re.compile(rf"{re.escape(settings.database.stem)}-\d{{4}}-\d\d-\d\dT\d{{6}}Z\.db")
        older = sorted(one for one in target.iterdir() if named.fullmatch(one.name))
    elif keep is not None:
        raise BadInput(f"{target} is no directory: what is kept of older copies is said where they have one")
    opening.back_up(settings.database, path, on_long_wait=on_long_wait)
    # Only now: where no copy can be made, the last one is wanted most.
    removed = [] if keep is None else older[: max(0, len(older) - keep + 1)]
    for one in removed:
        one.unlink(missing_ok=True)
    return BackedUp(path, path.stat().st_size, removed)


def check(session: Session) -> Sequence[Check]:
    """What is right and wrong with the database and its surroundings."""
    return session.store.upkeep.check()


def rebuild_search(session: Session) -> int:
    """Build the full-text index again. Return how many pages it has."""
    return session.store.upkeep.rebuild_search()


def versions(settings: Settings) -> dict[str, object]:
    """Of the library, of the tables that are there (None: nobody can tell) and of those that this version makes."""
    there: int | None = None
    with suppress(PagemillError):
        there = opening.schema_version(settings.database)
    return {"library": opening.LIBRARY, "schema": there, "schema_of_this_version": opening.SCHEMA_VERSION}


def _person() -> str:
    """Who is asking, for the audit: the person behind sudo where there is one."""
    if person := os.environ.get("SUDO_USER"):
        return person
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())
