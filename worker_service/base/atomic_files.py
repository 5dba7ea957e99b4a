"""Files that are there whole or not at all; and what a power cut must not take back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole(to: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A new file, which takes the place of what may be there in one step. `mode`: less what the umask takes."""
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
    """What was written to it, and of a folder the names in it, is on the disk afterwards."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
