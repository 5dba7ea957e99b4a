"""Remove what nobody will read: files whose attempt did not complete (P5), and kept directories that nobody comes for.

A daemon that is killed between the move of the files and the commit of the completion leaves them; nobody reads them.
The files of a completed attempt, or of a job that is no longer in the table, are somebody's, and are not touched.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.clock import Clock
from worker_service.documents import FORGOTTEN_AT_ONCE, sweep_gone
from worker_service.plurals import counted
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

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
        return 5.0 if self._store.forget_pages(FORGOTTEN_AT_ONCE) else 3600.0

    def _is_left_over(self, job_id: int, fence: int) -> bool:
        """An attempt that is still open may be about to complete."""
        outcomes = [attempt.outcome for attempt in self._store.attempts(job_id) if attempt.fence == fence]
        return outcomes not in ([], [None], ["completed"])


class Forget:
    """Documents that were removed, or read anew: their files first, which may be what somebody waits for."""

    name = "forget"

    def __init__(self, store: Store, workspace: Path) -> None:
        self._store = store
        self._workspace = workspace

    def run(self) -> float:
        is_more = self._store.forget_gone(FORGOTTEN_AT_ONCE)
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
