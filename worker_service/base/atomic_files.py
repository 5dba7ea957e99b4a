"""Write files atomically, and sync them to disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(to: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a new file that replaces `to` in one step when the block ends. The umask applies to `mode`."""
    unfinished = to.with_name(f".{to.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "w+b") as file:
            yield file
        unfinished.replace(to)
    except OSError as error:
        error.filename = str(to)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
