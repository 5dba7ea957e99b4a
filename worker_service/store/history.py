from __future__ import annotations

from collections.abc import Sequence

from worker_service.jobs.attempts import AttemptRow
from worker_service.jobs.history import Action, Event, JobMove, LogLine
from worker_service.store.database import StorePart


class History(StorePart):
    def attempts(self, job_id: int) -> Sequence[AttemptRow]:
        return [AttemptRow(*row) for row in self._db.read("attempts", job_id=job_id)]

    def events(self, job_id: int) -> Sequence[Event]:
        return [Event(*row) for row in self._db.read("events", job_id=job_id)]

    def newest_events(self, *, most: int) -> Sequence[Event]:
        return [Event(*row) for row in self._db.read("newest_events", most=most)]

    def logs(self, job_id: int, *, after_id: int = 0, most: int = 1000) -> Sequence[LogLine]:
        return [LogLine(*row) for row in self._db.read("logs", job_id=job_id, after_id=after_id, most=most)]

    def actions(self, *, most: int = 20) -> Sequence[Action]:
        return [Action(*row) for row in self._db.read("actions", most=most)]

    def newest_event(self) -> tuple[int, int]:
        """Return (event id, job id), or (0, 0). Event ids may be reused after a prune."""
        for event_id, job_id in self._db.read("newest_event"):
            return event_id, job_id
        return 0, 0

    def job_of_event(self, event_id: int) -> int | None:
        for (job_id,) in self._db.read("job_of_event", id=event_id):
            return int(job_id)
        return None

    def events_after(
        self, event_id: int, upto: int, *, owner: str | None = None, most: int = 1000
    ) -> Sequence[JobMove]:
        values = {"after_id": event_id, "upto": upto, "owner": owner, "most": most}
        return [JobMove(*row) for row in self._db.read("events_after", **values)]
