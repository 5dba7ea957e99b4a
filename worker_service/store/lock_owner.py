"""Find the process that holds the write lock in /proc/locks, which is hidden inside the systemd unit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_LOCKS = Path("/proc/locks")
# SQLite's file format: a writer in WAL mode locks this byte of the -shm file; a connection with exclusive access locks
# the bytes of `_EXCLUSIVE` in the database file.
_WRITER = range(120, 121)
_EXCLUSIVE = range(1073741826, 1073742336)
_CHARACTERS_MAX = 80
_POLL_SECONDS = 0.02


class LockOwner(Struct, frozen=True):
    pid: int
    command_line: str
    """Empty if it is hidden."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command_line})" if self.command_line else f"process {self.pid}"


def lock_owner_of(database: Path) -> LockOwner | None:
    for path, bytes_locked in ((Path(f"{database}-shm"), _WRITER), (database, _EXCLUSIVE)):
        with suppress(OSError):
            status = path.stat()
            file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
            for pid, first, last in _writers(file):
                # The kernel shows 0 for a process outside our PID namespace.
                if first <= bytes_locked[0] and bytes_locked[-1] <= last and pid not in (os.getpid(), 0):
                    return LockOwner(pid, _command_line_of(pid))
    return None


def lasting_lock_owner_of(database: Path, *, seconds: float) -> LockOwner | None:
    """Return the process that holds the lock during all of these seconds."""
    first = lock_owner_of(database)
    deadline = time.monotonic() + seconds
    while first is not None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        owner = lock_owner_of(database)
        if owner is None or owner.pid != first.pid:
            return None
    return first


def _writers(file: str) -> Iterator[tuple[int, int, int]]:
    """Yield (pid, first byte, last byte)."""
    for line in _LOCKS.read_text().splitlines():
        words = line.split()
        # A waiting request has an arrow as its second word, so it is skipped.
        if words[1] == "POSIX" and words[3] == "WRITE" and words[5] == file:
            yield int(words[4]), int(words[6]), 1 << 63 if words[7] == "EOF" else int(words[7])


def _command_line_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    text = " ".join(filter(None, words))
    return text if len(text) <= _CHARACTERS_MAX else text[: _CHARACTERS_MAX - 1] + "…"
