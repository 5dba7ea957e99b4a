from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict

from worker_service.base.clock import as_text
from worker_service.jobs.history import Episode, Notice
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.store.database import StorePart


class Notices(StorePart):
    def newest(self) -> int:
        return int(self._db.read_value("newest_notice"))

    def after(self, notice_id: int, *, most: int = 1000) -> Sequence[Notice]:
        return [Notice(*row) for row in self._db.read("notices_after", after_id=notice_id, most=most)]

    def prune(self, before: datetime, *, most: int = 1000) -> int:
        with self._db.transaction():
            return len(self._db.write("prune_notices", before=as_text(before), most=most))

    def has_reader(self, reader: str) -> bool:
        return bool(self._db.read("notice_reader", name=reader))

    def begin(self, reader: str) -> int:
        """Return the last notice that this reader has processed. A new reader starts with the next one."""
        # Called every few seconds, and the row nearly always exists, so try a read first: it takes no write lock.
        for (notice_id,) in self._db.read("notice_reader", name=reader):
            return int(notice_id)
        with self._db.transaction():
            self._db.write("begin_reading_notices", name=reader)
            [(notice_id,)] = self._db.read_locked("notice_reader", name=reader)
        return int(notice_id)

    def advance(self, reader: str, since: int, upto: int, jobs: Sequence[NewJob]) -> Sequence[Enqueued] | None:
        """Insert jobs and set the reader's position. Return None if another process has set it."""
        with self._db.transaction():
            if not self._db.write("advance_notice_reader", name=reader, since=since, upto=upto):
                return None
            return self._store.intake.insert_many(jobs)

    def note(self, kind: str, episodes: Sequence[Episode]) -> None:
        """Write a notice of each new episode of this kind. A stored episode that is not in `episodes` has ended."""
        keys = [f"{kind}:{episode.key}" for episode in episodes]
        if {key for (key,) in self._db.read("episodes", kind=kind)} == set(keys):
            return
        now = self._db.now()
        with self._db.transaction():
            self._db.write("end_episodes", kind=kind, keys=json.dumps(keys))
            for key, episode in zip(keys, episodes, strict=True):
                facts = asdict(episode) | {"key": key}
                self._db.write("begin_episode", now=now, kind=kind, **facts)
