"""Remove published files whose attempt did not complete (P5).

A daemon that is killed between the move of the files and the commit of the completion leaves them; nobody reads them.
The files of a completed attempt, or of a job that is no longer in the table, are somebody's, and are not touched.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.store.base import Store

if TYPE_CHECKING:
    from worker_service.events import Log

_FOLDER = re.compile(r"(\d+)-(\d+)")


class SweepObjects:
    name = "sweep_objects"

    def __init__(self, store: Store, workspace: Path, *, log: Log) -> None:
        self._store = store
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
        return 3600.0

    def _is_left_over(self, job_id: int, fence: int) -> bool:
        """An attempt that is still open may be about to complete."""
        outcomes = [attempt.outcome for attempt in self._store.attempts(job_id) if attempt.fence == fence]
        return outcomes not in ([], [None], ["completed"])
