"""How many jobs are claimed ahead of a free slot, for children that serve several.

As many as such a child gets done in a moment: so few that none waits long while another slot becomes free, and so many
that the child does not wait for us. A guess that was too high is told by the nursery: what has waited too long comes
back, not begun, is released, and then fewer are claimed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from worker_service.children.messages import Described
from worker_service.daemon.slots import Attempt, Slots

MOMENT_SECONDS = 0.02
MOST = 32
"""All slots' together are claimed, and completed, in one short transaction."""
_WEIGHT = 0.3
"""Of what was seen last."""


class Ahead:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._seconds: dict[str, float] = {}
        """What one attempt of the type takes, as far as we have seen."""

    def ended(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.took_seconds is not None:
                known = self._seconds.get(attempt.job.job_type, attempt.took_seconds)
                self._seconds[attempt.job.job_type] = known + (attempt.took_seconds - known) * _WEIGHT

    def room(self, job_class: str, described: Mapping[str, Described]) -> dict[str, int]:
        """The types of which more may wait, and how many."""
        room = {}
        for job_type, number in self._slots.by_type(job_class).items():
            most = self._most(job_type, described.get(job_type)) * min(number, self._slots.sizes[job_class])
            if number <= most // 2:
                room[job_type] = most - number
        return room

    def _most(self, job_type: str, described: Described | None) -> int:
        """For one child."""
        if described is None or described.reuse <= 1:
            return 1
        seconds = max(self._seconds.get(job_type, MOMENT_SECONDS), MOMENT_SECONDS / MOST)
        return max(1, min(int(MOMENT_SECONDS / seconds), described.reuse))
