"""Begin what the settings schedule, where the daemon is to tick and no timer does (`schedule_in_daemon`).

A chore as those in `chores.py`. Others may tick beside it: each slot begins its job once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker_service.base import events
from worker_service.daemon.attempts import Tools
from worker_service.services.database import Session
from worker_service.services.schedules import Trouble, seconds_to_next, tick

# No longer: somebody may set the clock.
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
        # Once, not each time that it is tried again.
        for trouble in done.troubles:
            if trouble not in self._troubles:
                log.warning(events.SCHEDULE_FAILED, schedule=trouble.schedule, reason=trouble.why)
        self._troubles = done.troubles
        return min(_MOST_SECONDS, seconds_to_next(session))
