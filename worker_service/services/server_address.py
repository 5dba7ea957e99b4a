"""Where `pagemill serve` answers now, for whoever prints an address: a file beside the database.

Whoever serves keeps it locked, so that one which was left behind tells nothing. Others may write in that directory:
what is no plain file is not touched, and what is no address is none.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from worker_service.settings.config import Settings

_ADDRESS = re.compile(r"https?://[!-~]{1,300}")


@contextmanager
def told_where(settings: Settings) -> Iterator[None]:
    """For as long as it serves. Of several the first one is told."""
    path = _beside(settings.database)
    with ExitStack() as held:
        # Without it, the address is that of the settings.
        with suppress(OSError):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            file = held.enter_context(os.fdopen(opened, "w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(settings.web_address)
            file.flush()
            held.callback(path.unlink, missing_ok=True)
        yield


def address(settings: Settings) -> str | None:
    """None: nobody serves."""
    try:
        opened = os.open(_beside(settings.database), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found = _ADDRESS.fullmatch(file.read(1000))
                return found[0] if found else None
    except (OSError, UnicodeDecodeError):
        pass
    return None


def _beside(database: Path) -> Path:
    return database.with_name(f"{database.name}.web-address")
