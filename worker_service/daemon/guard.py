"""See that the files we have open are still the database.

If somebody deletes or replaces the database or its write-ahead log, our commits go on answering "done" and are lost.
SQLite does not notice; the descriptors of this process do. Looks at names and numbers only: opening the file here
would drop SQLite's own locks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class Guard:
    def __init__(self, database: Path) -> None:
        # As /proc spells it.
        self._path = database.resolve()
        self._identity = _identity(self._path)

    def fault(self) -> str | None:
        """What is wrong, in a sentence; None: nothing."""
        identity = _identity(self._path)
        if identity is None:
            return f"{self._path} was deleted while it was in use"
        if identity != self._identity:
            return f"{self._path} was replaced by another file while it was in use"
        for name in _open_names():
            for suffix in ("", "-wal"):
                if name == f"{self._path}{suffix} (deleted)":
                    return f"{self._path}{suffix} was deleted while it was in use"
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _open_names() -> list[str]:
    names = []
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                names.append(os.readlink(entry.path))  # noqa: PTH115  a Path would cost more than the call
    return names
