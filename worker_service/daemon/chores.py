"""What is done now and then: each chore runs once and says in how many seconds to run it again.

A chore that fails is logged and tried again later; it never stops the loop. Recovery has a file of its own.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from worker_service import events
from worker_service.clock import Clock, as_text, from_text, parse_duration
from worker_service.config_values import NEVER
from worker_service.daemon.attempts import Slots
from worker_service.daemon.heartbeat import Notifier
from worker_service.jobs.model import Counts, Status
from worker_service.jobs.selector import Selector
from worker_service.plurals import counted
from worker_service.store.base import Store
from worker_service.workspace import FORGOTTEN_AT_ONCE, FREE_BYTES_LEAST, link, link_due, sweep_gone

if TYPE_CHECKING:
    from worker_service.events import Log

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
            return self._store.steering.prune_logs(before, most=_PRUNED_AT_ONCE)
        old = Selector(statuses=(Status(what),), older_than=as_text(before))
        return self._store.steering.prune(old, most=_PRUNED_AT_ONCE)


class Tidy:
    name = "tidy"

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self) -> float:
        self._store.upkeep.tidy()
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
        counts = self._store.reading.counts()
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


# ── Files that nobody will read ───────────────────────────────────────────────────────────────────────────────────────

KEEP_AGE = timedelta(days=30)
_SWEPT = ".swept-"
_FOLDER = re.compile(r"(\d+)-(\d+)")


class SweepObjects:
    name = "sweep_objects"

    def __init__(self, store: Store, workspace: Path, *, log: Log) -> None:
        self._store = store
        self._workspace = workspace
        self._objects = workspace / "objects"
        self._log = log

    def run(self) -> float:
        swept = 0
        for folder in self._objects.iterdir():
            named = _FOLDER.fullmatch(folder.name)
            if named and self._is_left_over(int(named[1]), int(named[2])):
                shutil.rmtree(folder, ignore_errors=True)
                swept += 1
        if swept:
            self._log.info(events.OBJECTS_SWEPT, folders=swept)
        # A little at a time: the loop waits meanwhile, and so does everybody who writes.
        return 5.0 if self._store.upkeep.forget_pages(FORGOTTEN_AT_ONCE) else 3600.0

    def _is_left_over(self, job_id: int, fence: int) -> bool:
        """An attempt that is still open may be about to complete."""
        outcomes = [attempt.outcome for attempt in self._store.reading.attempts(job_id) if attempt.fence == fence]
        return outcomes not in ([], [None], ["completed"])


class Forget:
    """Documents that were removed, or read anew: their files first, which may be what somebody waits for."""

    name = "forget"

    def __init__(self, store: Store, workspace: Path) -> None:
        self._store = store
        self._workspace = workspace

    def run(self) -> float:
        is_more = self._store.upkeep.forget_gone(FORGOTTEN_AT_ONCE)
        if left := sweep_gone(self._store, self._workspace):
            raise PermissionError(
                f"{counted(len(left), 'file')} may not be removed, such as {self._workspace / left[0]}"
            )
        return 0.1 if is_more else 5.0


class SweepKept:
    """The directories that handlers keep from attempt to attempt, such as half a download: each holder touches its own
    and locks it for as long as it lives."""

    name = "sweep_kept"

    def __init__(self, keep: Path, *, clock: Clock, log: Log, age: timedelta = KEEP_AGE) -> None:
        self._keep = keep
        self._clock = clock
        self._log = log
        self._age = age

    def run(self) -> float:
        oldest = (self._clock() - self._age).timestamp()
        swept = sum(self._sweep(folder, oldest) for folder in list(self._keep.iterdir()))
        if swept:
            self._log.info(events.KEPT_SWEPT, folders=swept)
        return 3600.0

    def _sweep(self, folder: Path, oldest: float) -> bool:
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_mtime >= oldest:
                return False
            if not folder.name.startswith(_SWEPT):
                # Out of the way at once: who opens it while it is emptied would find half of it.
                folder = folder.rename(folder.with_name(f"{_SWEPT}{folder.name}"))
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            return False
        finally:
            os.close(lock)
        return True


# ── Types that nobody knows ───────────────────────────────────────────────────────────────────────────────────────────

_LOOK_SECONDS = 60.0
_SOON_SECONDS = 0.1
_FAILED_AT_ONCE = 500


class FailUnknown:
    name = "unknown_types"

    def __init__(
        self,
        store: Store,
        *,
        grace_seconds: float,
        known: Collection[str],
        clock: Clock,
        monotonic: Callable[[], float],
        log: Log,
    ) -> None:
        self._store = store
        self._grace_seconds = grace_seconds
        self._known = known
        self._clock = clock
        self._monotonic = monotonic
        self._log = log
        self._unknown_since: dict[str, float] = {}

    def run(self) -> float:
        now = self._monotonic()
        unknown = [job_type for job_type in self._store.upkeep.unknown_types() if job_type not in self._known]
        self._unknown_since = {job_type: self._unknown_since.get(job_type, now) for job_type in unknown}
        is_more = False
        for job_type, since in self._unknown_since.items():
            if now - since >= self._grace_seconds:
                is_more |= self._fail(job_type)
        return _SOON_SECONDS if is_more else min(_LOOK_SECONDS, self._grace_seconds)

    def _fail(self, job_type: str) -> bool:
        """Whether there may be more of them."""
        since = self._clock() - timedelta(seconds=self._grace_seconds)
        failed = self._store.upkeep.fail_unknown(job_type, since=since, most=_FAILED_AT_ONCE)
        if failed:
            self._log.warning(events.TYPE_UNKNOWN, job_type=job_type, jobs=len(failed))
        return bool(failed)


# ── Names in the workspace ────────────────────────────────────────────────────────────────────────────────────────────

EVERY_SECONDS = 3600.0
_AT_ONCE = 25
_ALL = 0


class NameDocuments:
    name = "name_documents"

    def __init__(
        self, store: Store, workspace: Path, *, log: Log, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._workspace = workspace
        self._log = log
        self._monotonic = monotonic
        self._seen: int | None = None
        """As far as a look at all has come; None: none goes on."""
        self._all_at = monotonic()

    def run(self) -> float:
        due = self._store.upkeep.links_due(_AT_ONCE)
        if _ALL in due or self._monotonic() >= self._all_at:
            self._store.upkeep.links_made([_ALL])
            self._seen, self._all_at = 0, self._monotonic() + EVERY_SECONDS
        ids: Sequence[int] = [document_id for document_id in due if document_id != _ALL]
        if not ids and self._seen is not None:
            ids = self._store.upkeep.document_ids(self._seen, _AT_ONCE)
            self._seen = ids[-1] if ids else None
        if not ids:
            return 5.0
        self._tell(link(self._store, self._workspace, ids))
        # A little at a time: the loop waits meanwhile.
        return 0.05

    def finish(self) -> None:
        """The daemon ends: what was published last has its names."""
        self._tell(link_due(self._store, self._workspace))

    def _tell(self, troubles: Sequence[str]) -> None:
        if troubles:
            self._log.warning(events.DOCUMENTS_UNNAMED, documents=len(troubles), reason=troubles[0])
