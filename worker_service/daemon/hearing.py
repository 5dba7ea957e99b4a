"""Note what children say with the attempt that says it. Writes nothing; `reporting` and `landing` do that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from worker_service import events
from worker_service.children.messages import Ended, Happening, Logged, Progressed, Started
from worker_service.daemon.landing import Landing
from worker_service.daemon.slots import Slots
from worker_service.jobs.model import Child

if TYPE_CHECKING:
    from worker_service.events import Log


def hear(happenings: Iterable[Happening], slots: Slots, landing: Landing, *, now: float, log: Log) -> None:
    for happening in happenings:
        attempt = slots.get((happening.job_id, happening.fence))
        if attempt is None:
            continue
        if isinstance(happening, Progressed):
            attempt.progressed(happening.percent, happening.message)
        elif isinstance(happening, Logged):
            attempt.logged(happening.lines)
        elif isinstance(happening, Ended):
            attempt.forget_question()
            attempt.took_seconds = happening.took_seconds
            landing.add(attempt, happening)
        elif isinstance(happening, Started):
            attempt.started(Child(happening.pid, happening.pid_started, happening.sandbox))
            (log.debug if attempt.is_small else log.info)(
                events.JOB_STARTED,
                job_id=happening.job_id,
                fence=happening.fence,
                pid=happening.pid,
                sandbox=happening.sandbox,
            )
        else:
            attempt.keep(happening, now=now)
