"""A workspace belongs to one database: published files are named by jobs, and two databases have the same numbers."""

from __future__ import annotations

from pathlib import Path

from worker_service.errors import ConfigError

_MARK = ".database"


def take_workspace(workspace: Path, database_id: str) -> None:
    """Mark it as this database's, or refuse one that is marked as another's."""
    workspace.mkdir(parents=True, exist_ok=True)
    mark = workspace / _MARK
    try:
        with mark.open("x") as new:
            new.write(f"{database_id}\n")
    except FileExistsError:
        found = mark.read_text().strip()
        # Nothing yet: another daemon has just made it, or was killed while it did.
        if found not in ("", database_id):
            raise ConfigError(
                f"the workspace {workspace} belongs to another database, made at {found}: give this one a workspace of "
                f"its own (WORKER_WORKSPACE), or, if that database is gone for good, remove {workspace}"
            ) from None
