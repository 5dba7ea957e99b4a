"""Notice commits of other programs, and a deleted or replaced database file."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Flags of inotify, and its struct of an event: watch, mask, cookie, and length of the name that follows.
_MODIFY, _CREATE, _DELETE, _MOVED, _OVERFLOW = 0x2, 0x100, 0x200, 0xC0, 0x4000
_EVENT = struct.Struct("iIII")

# After a hint, the change counter is read at intervals that double from the first to the last.
_FIRST_INTERVAL_SECONDS, _LAST_INTERVAL_SECONDS = 0.0005, 0.5


class FileWatch:
    """Notices within milliseconds that another connection has committed.

    A hint of the kernel (inotify) comes before the commit is visible, so the change counter is then read at growing
    intervals: 0.03 % of a core, instead of 0.8 % for a read every 10 ms.
    """

    def __init__(
        self,
        database: Path,
        change_counter: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        # The resolved path, as /proc shows it.
        self._path = database.resolve()
        self._file_id = _file_id(self._path)
        self._wal_name = f"{database.name}-wal"
        self._names = {database.name, self._wal_name, f"{database.name}-shm"}
        self._change_counter = change_counter
        self._monotonic = monotonic
        self._on_turn = on_turn
        self._last_counter: int | None = None
        self._seconds_to_next_read = _FIRST_INTERVAL_SECONDS
        self.next_read_at: float | None = None
        """Monotonic time of the next check after a hint."""
        self.may_be_replaced = False
        """SQLite does not notice it: call `fault`."""
        # Subscribe before the first read of the counter; a commit in between would be missed otherwise.
        self._inotify = _watch(database.parent)

    def fileno(self) -> int | None:
        return self._inotify

    def has_changed(self) -> bool:
        self._on_turn()
        has_hint, now = self._read_hints(), self._monotonic()
        if has_hint:
            self._seconds_to_next_read, self.next_read_at = _FIRST_INTERVAL_SECONDS, now + _FIRST_INTERVAL_SECONDS
        counter = self._change_counter()
        if counter != self._last_counter:
            self._last_counter = counter
            if not has_hint:
                # With a new hint, keep checking: the hint may announce a commit after this one.
                self.next_read_at = None
            return True
        if self.next_read_at is not None and now >= self.next_read_at:
            self._seconds_to_next_read *= 2
            was_last = self._seconds_to_next_read > _LAST_INTERVAL_SECONDS
            self.next_read_at = None if was_last else now + self._seconds_to_next_read
        return False

    def fault(self) -> str | None:
        self.may_be_replaced = False
        file_id = _file_id(self._path)
        if file_id is None:
            return f"{self._path} was deleted while it was in use"
        if file_id != self._file_id:
            return f"{self._path} was replaced by another file while it was in use"
        for name in _open_names():
            for suffix in ("", "-wal"):
                if name == f"{self._path}{suffix} (deleted)":
                    return f"{self._path}{suffix} was deleted while it was in use"
        return None

    def close(self) -> None:
        if self._inotify is not None:
            os.close(self._inotify)
            self._inotify = None

    def _read_hints(self) -> bool:
        if self._inotify is None:
            return False
        has_hint = False
        while True:
            try:
                data = os.read(self._inotify, 65536)
            except BlockingIOError:
                return has_hint
            position = 0
            while position < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, position)
                position += _EVENT.size + length
                name = data[position - length : position].rstrip(b"\0").decode("utf-8", "replace")
                has_hint |= name == self._wal_name or bool(mask & _OVERFLOW)
                if (name in self._names and mask & (_CREATE | _DELETE | _MOVED)) or mask & _OVERFLOW:
                    self.may_be_replaced = True


def _watch(folder: Path) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    watch = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if watch < 0:
        return None
    if libc.inotify_add_watch(watch, os.fsencode(folder), _MODIFY | _CREATE | _DELETE | _MOVED) < 0:
        os.close(watch)
        return None
    return watch


def _file_id(path: Path) -> tuple[int, int] | None:
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
