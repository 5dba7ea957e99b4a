"""The address of the running server, in a file beside the database.

The running server holds a lock on the file, so the file of a killed server is recognised and ignored. Other users may
be able to write in the directory: links and text that is no address are ignored too.
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
_FILE_CHARACTERS_MAX = 1000


@contextmanager
def published_address(settings: Settings) -> Iterator[None]:
    path = _path_of_file(settings.database)
    with ExitStack() as on_stop:
        with suppress(OSError):  # the server also runs without the file
            # O_NONBLOCK: opening a FIFO, which another user may have put there, must not wait.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            file = on_stop.enter_context(os.fdopen(descriptor, "w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(settings.web_address)
            file.flush()
            on_stop.callback(path.unlink, missing_ok=True)
        yield


def address(settings: Settings) -> str | None:
    try:
        descriptor = os.open(_path_of_file(settings.database), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the server is running
                match = _ADDRESS.fullmatch(file.read(_FILE_CHARACTERS_MAX))
                return match[0] if match else None
    except (OSError, UnicodeDecodeError):
        pass
    return None


def _path_of_file(database: Path) -> Path:
    return database.with_name(f"{database.name}.web-address")
