"""Enqueue scheduled jobs from the daemon, where `schedule_in_daemon` is on and no timer calls `pagemill`.

A chore like those in `chores.py`. Other processes may tick too: each slot enqueues its job once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker_service.base import events
from worker_service.daemon.attempts import Tools
from worker_service.services.database import Session
from worker_service.services.schedules import Trouble, seconds_to_next, tick

# Not longer: the system clock may be changed.
_MOST_SECONDS = 20.0


@dataclass(slots=True)
class BeginScheduled:
    tools: Tools
    _troubles: Sequence[Trouble] = ()

    def run(self) -> float:
        tools, log = self.tools, self.tools.log
        session = Session(tools.store, tools.settings, "schedule", tools.clock)
        done = tick(session)
        for begun in done.items:
            log.info(events.SCHEDULE_BEGUN, schedule=begun.schedule, slot=begun.slot, job_id=begun.job_id)
        for missed in done.missed:
            log.warning(events.SCHEDULE_MISSED, schedule=missed.schedule, slots=missed.slots, until=missed.until)
        # Log each problem once, not at every retry.
        for trouble in done.troubles:
            if trouble not in self._troubles:
                log.warning(events.SCHEDULE_FAILED, schedule=trouble.schedule, reason=trouble.why)
        self._troubles = done.troubles
        return min(_MOST_SECONDS, seconds_to_next(session))
