"""What is begun at its time, once for ever: a slot of a schedule, or a key in its period.

Which slots are due, and what each begins, arrives as values. A slot is one transaction: the note that it was taken, the
job or batch, and how far the schedule has come. So a tick that is cut off anywhere has taken a slot or has not.
"""

from __future__ import annotations

from datetime import datetime

from worker_service.base.clock import as_text, from_text
from worker_service.jobs.batches import BatchOfJobs
from worker_service.jobs.model import Enqueued, NewJob, ScheduleRun, Taken
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
        """Return up to when the slots of a schedule are dealt with; None if it is new or had another plan."""
        for (until,) in self._db.read("seen_until", schedule=schedule, plan=plan):
            return from_text(until)
        return None

    def begin(self, schedule: str, plan: str) -> None:
        """Let a new schedule start now, without slots in the past."""
        with self._db.transaction():
            self._db.write("begin_plan", schedule=schedule, plan=plan, now=self._db.now())

    def take(self, schedule: str, plan: str, slot: datetime, work: Work, missed: str = "") -> Taken | None:
        """Take a slot and all slots before it, together with the job or batch that it starts.

        Return None if that slot, or a later one, was taken already. `missed`: a sentence about the slots passed over.
        """
        owner = work.owner if isinstance(work, NewJob) else work.new.owner
        with self._db.transaction():
            if not self._move(schedule, plan, slot, missed, owner):
                return None
            return self._begin(schedule, as_text(slot), work)

    def pass_over(self, schedule: str, plan: str, until: datetime, missed: str, owner: str = "") -> bool:
        """Mark the slots up to this time as passed over, with a notice. Return False if that was done already."""
        with self._db.transaction():
            return self._move(schedule, plan, until, missed, owner)

    def run_now(self, schedule: str, work: Work) -> Taken | None:
        """Start the work outside its slots. Return None if somebody did in the same millisecond."""
        with self._db.transaction():
            # A slot of its own, or it would take one of the plan's.
            return self._begin(schedule, f"{_NOW}{self._db.now()}", work)

    def enqueue_once(self, key: str, period: str, job: NewJob) -> Enqueued:
        """Insert a job unless one was inserted with this key in this period, whatever became of that one."""
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

    def _move(self, schedule: str, plan: str, until: datetime, missed: str, owner: str) -> bool:
        has_moved = bool(self._db.write("move_plan", schedule=schedule, plan=plan, until=as_text(until)))
        if has_moved and missed:
            self._db.write("note_missed", now=self._db.now(), owner=owner, message=missed)
        return has_moved

    def _begin(self, schedule: str, slot: str, work: Work) -> Taken | None:
        if not self._db.write("take_slot", schedule=schedule, slot=slot, now=self._db.now()):
            return None
        if isinstance(work, NewJob):
            enqueued = self._intake.insert_many([work])[0]
            taken = Taken(enqueued.job_id, None, enqueued.existing)
        else:
            taken = Taken(None, self._batches.insert(work.new, work.jobs, work.policy).batch.id)
        self._db.write("slot_has", schedule=schedule, slot=slot, job_id=taken.job_id, batch_id=taken.batch_id)
        return taken
