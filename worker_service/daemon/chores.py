"""What is done now and then: each chore runs once and says in how many seconds to run it again.

A chore that fails is logged and tried again later; it never stops the loop. Recovery has a file of its own.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.clock import Clock, as_text, from_text, parse_duration
from worker_service.config_values import NEVER
from worker_service.daemon.slots import Slots
from worker_service.daemon.systemd import Notifier
from worker_service.jobs.model import Counts, Status
from worker_service.jobs.selector import Selector
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

FREE_BYTES_LEAST = 128 * 1024 * 1024
_WAL_BYTES_MOST = 64 * 1024 * 1024
_PRUNED_AT_ONCE = 500


class Chore(Protocol):
    @property
    def name(self) -> str: ...

    def run(self) -> float:
        """Do it; return in how many seconds to do it again."""


class Prune:
    """Remove what is older than the settings keep it. A little at a time: others want to write, too."""

    name = "prune"

    def __init__(self, store: Store, ages: Mapping[str, str], *, clock: Clock, log: Log) -> None:
        self._store = store
        self._ages = {what: parse_duration(age) for what, age in ages.items() if age != NEVER}
        self._clock = clock
        self._log = log
        self._untold = Counter[str]()

    def run(self) -> float:
        pruned = {what: self._prune(what, self._clock() - age) for what, age in self._ages.items()}
        self._untold.update(pruned)
        if _PRUNED_AT_ONCE in pruned.values():
            return 0.1
        if told := {what: number for what, number in self._untold.items() if number}:
            self._log.info(events.JOBS_PRUNED, **told)
            self._untold.clear()
        return 600.0

    def _prune(self, what: str, before: datetime) -> int:
        if what == "logs":
            return self._store.prune_logs(before, most=_PRUNED_AT_ONCE)
        old = Selector(statuses=(Status(what),), older_than=as_text(before))
        return self._store.prune(old, most=_PRUNED_AT_ONCE)


class Checkpoint:
    """Keep the write-ahead log short. SQLite does it at commits; this is for what was left because of readers."""

    name = "checkpoint"

    def __init__(self, store: Store, database: Path) -> None:
        self._store = store
        self._log_file = database.with_name(f"{database.name}-wal")

    def run(self) -> float:
        with suppress(FileNotFoundError):
            # A look at its size only: to open it here would drop SQLite's locks.
            if self._log_file.stat().st_size > _WAL_BYTES_MOST:
                self._store.shorten_log()
        return 300.0


class DiskSpace:
    """Begin nothing while there is too little room to end it."""

    name = "disk_space"

    def __init__(
        self,
        folders: Sequence[Path],
        say: Callable[[bool], None],
        *,
        log: Log,
        free_bytes_least: int = FREE_BYTES_LEAST,
    ) -> None:
        self._folders = folders
        self._say = say
        self._log = log
        self._free_bytes_least = free_bytes_least
        self._is_low = False

    def run(self) -> float:
        free = min(shutil.disk_usage(folder).free for folder in self._folders)
        # Room to spare before it opens again, or it would open and close with every file.
        is_low = free < self._free_bytes_least * (1.25 if self._is_low else 1)
        if is_low != self._is_low:
            self._say(is_low)
            self._is_low = is_low
            if is_low:
                self._log.error(events.DISK_LOW, free_bytes=free, least_bytes=self._free_bytes_least)
            else:
                self._log.info(events.DISK_FREED, free_bytes=free)
        return 15.0


class StatusLine:
    """What `systemctl status` shows."""

    name = "status_line"

    def __init__(self, store: Store, slots: Slots, notifier: Notifier, *, clock: Clock) -> None:
        self._store = store
        self._slots = slots
        self._notifier = notifier
        self._clock = clock

    def run(self) -> float:
        counts = self._store.counts()
        taken = {name: (self._slots.taken(name), size) for name, size in self._slots.sizes.items()}
        age = None
        if counts.oldest_pending_at is not None:
            age = (self._clock() - from_text(counts.oldest_pending_at)).total_seconds()
        self._notifier.status(status_line(taken, counts, oldest_seconds=age))
        return 10.0


def status_line(taken: Mapping[str, tuple[int, int]], counts: Counts, *, oldest_seconds: float | None) -> str:
    """``2/2 cpu · 1/4 io · 14 pending · oldest 3 min``"""
    parts = [f"{used}/{size} {name}" for name, (used, size) in taken.items()]
    parts.append(f"{counts.by_status.get(Status.PENDING, 0)} pending")
    if oldest_seconds is not None:
        parts.append(f"oldest {_length(oldest_seconds)}")
    return " · ".join(parts)


def _length(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
