"""Where `pagemill serve` answers now, for whoever prints an address: a file beside the database.

Whoever serves keeps it locked, so that one which was left behind tells nothing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from worker_service.config import Settings


@contextmanager
def told_where(settings: Settings) -> Iterator[None]:
    """For as long as it serves. Of several the first one is told."""
    path = _beside(settings.database)
    with ExitStack() as held:
        # Without it, the address is that of the settings.
        with suppress(OSError):
            file = held.enter_context(path.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(settings.web_address)
            file.flush()
            held.callback(path.unlink, missing_ok=True)
        yield


def address(settings: Settings) -> str | None:
    """None: nobody serves."""
    try:
        with _beside(settings.database).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read()
    except OSError:
        pass
    return None


def _beside(database: Path) -> Path:
    return database.with_name(f"{database.name}.web-address")
