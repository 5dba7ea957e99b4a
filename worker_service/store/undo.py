from __future__ import annotations

from worker_service.base.errors import Refused
from worker_service.jobs.history import OPPOSITE, Changed
from worker_service.store.database import StorePart
from worker_service.store.job_control import JobToChange


class Undo(StorePart):
    def undo(self, action_id: int, *, actor: str) -> Changed:
        found = self._db.read("undoable_verb", action_id=action_id)
        if not found:
            raise Refused(f"action {action_id} cannot be undone", "`pagemill undo --list` shows what became of it")
        verb = OPPOSITE[found[0][0]]
        items = {row[0]: row[1:] for row in self._db.read("action_items", action_id=action_id)}

        def undo_one(job: JobToChange) -> None:
            left_as, priority = items[job.id]
            if job.state != left_as:
                raise Refused(f"it has moved since: it is {job.status}, with priority {job.priority}")
            self._store.steering.refuse(verb, job)
            self._db.write(verb, job_id=job.id, priority=priority, now=self._db.now())

        done, asked, refused = self._store.steering.apply_to_each(list(items), undo_one, asks=verb == "cancel")
        if done:
            with self._db.transaction():
                self._db.write("undone", action_id=action_id, now=self._db.now(), actor=actor)
        return Changed(action_id, done, asked, refused)
