"""Schedules and their runs. A slot is one planned time of a schedule.

Work starts exactly once: one transaction takes the slot and inserts the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from worker_service.base.clock import as_text, from_text
from worker_service.base.errors import Refused
from worker_service.jobs.batches import BatchOfJobs
from worker_service.jobs.job import Enqueued, NewJob, ScheduleRun, StartedWork, StoredSchedule
from worker_service.store.database import StorePart
from worker_service.store.job_control import add_action_item, begin_action

Work = NewJob | BatchOfJobs

_ENQUEUE_ONCE_KEY_PREFIX = "once:"
_USER_RUN_SLOT_PREFIX = "now "


class _Change(Struct, frozen=True):
    before: StoredSchedule | None
    after: StoredSchedule | None


class Schedules(StorePart):
    def stored(self, name: str | None = None) -> Sequence[StoredSchedule]:
        return [StoredSchedule(*row) for row in self._db.read("stored_schedules", name=name)]

    def change(self, before: StoredSchedule | None, after: StoredSchedule | None, *, actor: str) -> int:
        """Raise `Refused` if the schedule is no longer as in `before`. Return the action."""
        verb = "add_schedule" if before is None else "remove_schedule" if after is None else "change_schedule"
        with self._db.transaction():
            self._change(before, after)
            action_id = begin_action(self._db, verb, actor)
            add_action_item(self._db, action_id, 0, msgspec.json.encode(_Change(before, after)).decode())
        return action_id

    def undo(self, action_id: int, *, actor: str) -> None:
        with self._db.transaction():
            for (change,) in self._db.read_locked("schedule_change", action_id=action_id):
                done = msgspec.json.decode(change, type=_Change)
                self._change(done.after, done.before)
                self._db.write("mark_undone", action_id=action_id, now=self._db.now(), actor=actor)

    def _change(self, before: StoredSchedule | None, after: StoredSchedule | None) -> None:
        schedule = before or after
        assert schedule is not None
        stored = [StoredSchedule(*row) for row in self._db.read_locked("stored_schedules", name=schedule.name)]
        expected = [] if before is None else [before]
        if stored != expected:
            raise Refused(f"schedule {schedule.name!r} has been changed meanwhile", "look at it again")
        if after is not None:
            self._db.write("store_schedule", **msgspec.structs.asdict(after))
            return
        # A later schedule of this name must not continue the plan and the runs of this one.
        for statement in ("remove_schedule", "forget_plan", "forget_runs_of"):
            self._db.write(statement, name=schedule.name)

    def last_handled_slot(self, schedule: str, plan: str) -> datetime | None:
        """Return None if the schedule or its plan is new."""
        for (until,) in self._db.read("last_handled_slot", schedule=schedule, plan=plan):
            return from_text(until)
        return None

    def begin_plan(self, schedule: str, plan: str) -> None:
        """Start the plan now, without earlier slots. A plan identifies the sequence of a schedule's slots."""
        with self._db.transaction():
            self._db.write("begin_plan", schedule=schedule, plan=plan, now=self._db.now())

    def run_slot(self, schedule: str, plan: str, slot: datetime, work: Work, missed: str = "") -> StartedWork | None:
        """Take all slots up to this one, and insert the work once. Return None if the slot was taken.

        `missed` is the text of a notice about the earlier slots, whose work is not inserted.
        """
        owner = work.owner if isinstance(work, NewJob) else work.new.owner
        with self._db.transaction():
            if not self._advance(schedule, plan, slot, missed, owner):
                return None
            return self._start(schedule, as_text(slot), work)

    def skip_slots(self, schedule: str, plan: str, until: datetime, missed: str, owner: str = "") -> bool:
        """Take all slots up to this time without work. Return False if they were taken."""
        with self._db.transaction():
            return self._advance(schedule, plan, until, missed, owner)

    def run_now(self, schedule: str, work: Work) -> StartedWork | None:
        with self._db.transaction():
            # Use a separate slot, so that none of the plan's slots is taken.
            return self._start(schedule, f"{_USER_RUN_SLOT_PREFIX}{self._db.now()}", work)

    def enqueue_once(self, key: str, period: str, job: NewJob) -> Enqueued:
        """Insert a job unless one was inserted with this key in this period, whatever its status."""
        slot = {"schedule": f"{_ENQUEUE_ONCE_KEY_PREFIX}{key}", "slot": period}
        with self._db.transaction():
            for (job_id,) in self._db.read_locked("job_of_slot", **slot):
                return Enqueued(job_id, existing=True)
            enqueued = self._store.intake.insert_many([job])[0]
            if not enqueued.existing:
                self._db.write("take_slot", **slot, now=self._db.now())
                self._db.write("set_work_of_slot", **slot, job_id=enqueued.job_id, batch_id=None)
            return enqueued

    def last_run(self, schedule: str) -> ScheduleRun | None:
        for slot, at, job_id, batch_id in self._db.read("last_run", schedule=schedule):
            return ScheduleRun(None if slot.startswith(_USER_RUN_SLOT_PREFIX) else slot, at, job_id, batch_id)
        return None

    def _advance(self, schedule: str, plan: str, until: datetime, missed: str, owner: str) -> bool:
        has_moved = bool(self._db.write("move_plan", schedule=schedule, plan=plan, until=as_text(until)))
        if has_moved and missed:
            self._db.write("add_missed_notice", now=self._db.now(), owner=owner, message=missed)
        return has_moved

    def _start(self, schedule: str, slot: str, work: Work) -> StartedWork | None:
        if not self._db.write("take_slot", schedule=schedule, slot=slot, now=self._db.now()):
            return None
        if isinstance(work, NewJob):
            enqueued = self._store.intake.insert_many([work])[0]
            started = StartedWork(enqueued.job_id, None, enqueued.existing)
        else:
            started = StartedWork(None, self._store.batches.insert(work.new, work.jobs, work.policy).batch.id)
        place = {"schedule": schedule, "slot": slot}
        self._db.write("set_work_of_slot", **place, job_id=started.job_id, batch_id=started.batch_id)
        return started
