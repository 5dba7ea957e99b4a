"""What a daemon may take for its own: a workspace belongs to one database, and the service's database to the service.

Published files are named by jobs, and two databases have the same numbers. What somebody else's daemon would publish
for the service, the service could neither change nor remove.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from worker_service.config import Settings
from worker_service.errors import ConfigError

_MARK = ".database"


def refuse_the_services(settings: Settings) -> None:
    """Refuse a database that was only found because it is the service's, unless the service's user asks."""
    if not settings.is_of_the_service or not settings.database.exists():
        return
    owner = settings.database.stat().st_uid
    if owner != os.geteuid():
        raise ConfigError(
            f"{settings.database} is the service's, and its jobs run as {pwd.getpwuid(owner).pw_name}: systemctl start "
            "pagemill; for a queue of your own: --database PATH, or database in ~/.config/pagemill/pagemill.toml"
        )


def take_workspace(workspace: Path, database_id: str) -> None:
    """Mark it as this database's, or refuse one that is marked as another's."""
    workspace.mkdir(parents=True, exist_ok=True)
    mark = workspace / _MARK
    try:
        with mark.open("x") as new:
            new.write(f"{database_id}\n")
    except FileExistsError:
        if (fault := fault_of_workspace(workspace, database_id)) is not None:
            raise ConfigError(fault) from None


def fault_of_workspace(workspace: Path, database_id: str) -> str | None:
    """Why no daemon may use it for this database."""
    try:
        found = (workspace / _MARK).read_text().strip()
    except FileNotFoundError:
        return None
    # Nothing yet: another daemon has just made it, or was killed while it did.
    if found in ("", database_id):
        return None
    return (
        f"the workspace {workspace} belongs to another database, made at {found}: give this one a workspace of "
        f"its own (WORKER_WORKSPACE), or, if that database is gone for good, remove {workspace}"
    )
