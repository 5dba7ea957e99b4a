"""What people may want to be told: read by whoever tells them, each from where it had come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from worker_service.base.clock import as_text
from worker_service.jobs.model import Enqueued, Episode, NewJob, Notice
from worker_service.store.database import Database
from worker_service.store.intake import Intake

NOTICE_COLUMNS = Notice.__struct_fields__


class Notices:
    def __init__(self, database: Database, intake: Intake) -> None:
        self._db = database
        self._intake = intake

    def newest(self) -> int:
        """Return the id of the newest notice, or 0."""
        [(notice_id,)] = self._db.read("newest_notice")
        return int(notice_id)

    def after(self, notice_id: int, *, most: int = 1000) -> Sequence[Notice]:
        """Return the oldest first."""
        return [Notice(*row) for row in self._db.read("notices_after", after_id=notice_id, most=most)]

    def prune(self, before: datetime, *, most: int = 1000) -> int:
        """Remove up to `most` of the oldest notices from before this time."""
        with self._db.transaction():
            return len(self._db.write("prune_notices", before=as_text(before), most=most))

    def begin(self, reader: str) -> int:
        """Return how far this reader has come. A new reader begins with the next notice."""
        # Asked every few seconds, and nearly always there: whoever only looks keeps nobody from writing.
        for (notice_id,) in self._db.read("notice_reader", name=reader):
            return int(notice_id)
        with self._db.transaction():
            self._db.write("begin_reading_notices", name=reader)
            [(notice_id,)] = self._db.write("notice_reader", name=reader)
        return int(notice_id)

    def tell(self, reader: str, since: int, upto: int, jobs: Sequence[NewJob]) -> Sequence[Enqueued] | None:
        """Move a reader from `since` to `upto` and insert its jobs, or return None if another process did."""
        with self._db.transaction():
            if not self._db.write("notices_read", name=reader, since=since, upto=upto):
                return None
            return self._intake.insert_many(jobs)

    def note(self, kind: str, episodes: Sequence[Episode]) -> None:
        """Note the episodes that last now. A new one becomes a notice; one that is missing has ended."""
        keys = [f"{kind}:{one.key}" for one in episodes]
        if {key for (key,) in self._db.read("episodes", kind=kind)} == set(keys):
            return
        now = self._db.now()
        with self._db.transaction():
            self._db.write("end_episodes", kind=kind, keys=json.dumps(keys))
            for key, one in zip(keys, episodes, strict=True):
                facts = {"job_id": one.job_id, "code": one.code, "message": one.message, "remedy": one.remedy}
                self._db.write("begin_episode", now=now, kind=kind, key=key, **facts)
