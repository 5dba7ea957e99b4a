"""Start scheduled work exactly once: per slot of a schedule, or per key and period.

Taking a slot is one transaction, which records the slot, inserts the job or batch, and advances the schedule.
"""

from __future__ import annotations

from datetime import datetime

from worker_service.base.clock import as_text, from_text
from worker_service.jobs.batches import BatchOfJobs
from worker_service.jobs.job import Enqueued, NewJob, ScheduleRun, StartedWork
from worker_service.store.batches import Batches
from worker_service.store.database import Database
from worker_service.store.intake import Intake

Work = NewJob | BatchOfJobs

_ONCE = "once:"
_NOW = "now "


class Schedules:
    def __init__(self, database: Database, intake: Intake, batches: Batches) -> None:
        self._db = database
        self._intake = intake
        self._batches = batches

    def seen_until(self, schedule: str, plan: str) -> datetime | None:
        """Return the time of the last slot handled. None: the schedule or its plan is new."""
        for (until,) in self._db.read("seen_until", schedule=schedule, plan=plan):
            return from_text(until)
        return None

    def begin(self, schedule: str, plan: str) -> None:
        with self._db.transaction():
            self._db.write("begin_plan", schedule=schedule, plan=plan, now=self._db.now())

    def take(self, schedule: str, plan: str, slot: datetime, work: Work, missed: str = "") -> StartedWork | None:
        """Take a slot and all slots before it, and insert the job or batch that it starts.

        Return None if this slot or a later one has been taken. `missed` tells of skipped slots in a notice.
        """
        owner = work.owner if isinstance(work, NewJob) else work.new.owner
        with self._db.transaction():
            if not self._advance(schedule, plan, slot, missed, owner):
                return None
            return self._start(schedule, as_text(slot), work)

    def pass_over(self, schedule: str, plan: str, until: datetime, missed: str, owner: str = "") -> bool:
        """Skip the slots up to a time. Return False if they have been handled already."""
        with self._db.transaction():
            return self._advance(schedule, plan, until, missed, owner)

    def run_now(self, schedule: str, work: Work) -> StartedWork | None:
        with self._db.transaction():
            # Use a separate slot, so that none of the plan's slots is taken.
            return self._start(schedule, f"{_NOW}{self._db.now()}", work)

    def enqueue_once(self, key: str, period: str, job: NewJob) -> Enqueued:
        """Insert a job unless one was inserted with this key in this period, whatever its status."""
        slot = {"schedule": f"{_ONCE}{key}", "slot": period}
        with self._db.transaction():
            for (job_id,) in self._db.write("job_of_slot", **slot):
                return Enqueued(job_id, existing=True)
            enqueued = self._intake.insert_many([job])[0]
            if not enqueued.existing:
                self._db.write("take_slot", **slot, now=self._db.now())
                self._db.write("slot_has", **slot, job_id=enqueued.job_id, batch_id=None)
            return enqueued

    def last_run(self, schedule: str) -> ScheduleRun | None:
        for slot, at, job_id, batch_id in self._db.read("last_run", schedule=schedule):
            return ScheduleRun(None if slot.startswith(_NOW) else slot, at, job_id, batch_id)
        return None

    def _advance(self, schedule: str, plan: str, until: datetime, missed: str, owner: str) -> bool:
        has_moved = bool(self._db.write("move_plan", schedule=schedule, plan=plan, until=as_text(until)))
        if has_moved and missed:
            self._db.write("note_missed", now=self._db.now(), owner=owner, message=missed)
        return has_moved

    def _start(self, schedule: str, slot: str, work: Work) -> StartedWork | None:
        if not self._db.write("take_slot", schedule=schedule, slot=slot, now=self._db.now()):
            return None
        if isinstance(work, NewJob):
            enqueued = self._intake.insert_many([work])[0]
            taken = StartedWork(enqueued.job_id, None, enqueued.existing)
        else:
            taken = StartedWork(None, self._batches.insert(work.new, work.jobs, work.policy).batch.id)
        self._db.write("slot_has", schedule=schedule, slot=slot, job_id=taken.job_id, batch_id=taken.batch_id)
        return taken
