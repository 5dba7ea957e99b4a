"""A file that a person asked for: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(to: Path, content: bytes, *, mode: int = 0o666) -> None:
    """In one step over what may be there. `mode`: less what the umask takes."""
    unfinished = to.with_name(f".{to.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        unfinished.replace(to)
    except OSError as error:
        error.filename = str(to)
        raise
    finally:
        unfinished.unlink(missing_ok=True)
