from __future__ import annotations

from datetime import datetime, timedelta

from worker_service.base.clock import as_text
from worker_service.jobs.selector import Selector
from worker_service.store.database import StorePart, chunks

UNDO_DAYS = 7

# The period of a schedule is at most a month.
_SCHEDULE_RUNS_RETENTION_DAYS = 62
_HOURLY_STATISTICS_RETENTION_DAYS = 31
_ROWS_PER_TRANSACTION = 500


class Pruning(StorePart):
    def prune(self, selector: Selector, *, most: int = 1000) -> int:
        """Delete up to `most` ended jobs; return their number."""
        job_ids = self._store.job_queries.oldest_ended_ids(selector, most)
        for chunk in chunks(job_ids, _ROWS_PER_TRANSACTION):
            with self._db.transaction():
                for job_id in chunk:
                    self._db.write("prune", job_id=job_id)
        for statement, days in (("forget_action_items", UNDO_DAYS), ("forget_runs", _SCHEDULE_RUNS_RETENTION_DAYS)):
            self._delete_before(statement, days)
        with self._db.transaction():
            self._db.write("forget_old_actions", before=self._before(UNDO_DAYS))
            first_hour = self._before(_HOURLY_STATISTICS_RETENTION_DAYS)[:13]  # such as 2026-11-18 10
            self._db.write("forget_hours", before=first_hour)
        return len(job_ids)

    def prune_logs(self, before: datetime, *, most: int = 1000) -> int:
        with self._db.transaction():
            return len(self._db.write("prune_logs", before=as_text(before), most=most))

    def _delete_before(self, statement: str, days: int) -> None:
        deleted = _ROWS_PER_TRANSACTION
        while deleted == _ROWS_PER_TRANSACTION:
            with self._db.transaction():
                deleted = len(self._db.write(statement, before=self._before(days), most=_ROWS_PER_TRANSACTION))

    def _before(self, days: int) -> str:
        return as_text(self._db.clock() - timedelta(days=days))
