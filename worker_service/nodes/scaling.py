"""Which nodes are used where an autoscaler starts and ends machines. Knows what is said of nodes; touches nothing.

Ray takes a machine for idle when nothing of ours is on it, and an agent is something. So a node is used when it is
needed for what is wanted; and it is let go when it has had nothing to run for a while, and the others are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker_service.jobs.values import dataclass


@dataclass(frozen=True, slots=True)
class Used:
    """A node that is used."""

    may_run: bool
    """It is one that gets attempts, now or soon."""
    idle_seconds: float
    """0: it runs something."""


def to_use(there: Mapping[str, int], used: Mapping[str, Used], wanted: float) -> Sequence[str]:
    """Of the nodes that are there: those that are used from now on as well, for so many attempts at once."""
    room = _room(there, used)
    more = []
    for name, slots in sorted(there.items()):
        if room < wanted and name not in used:
            more.append(name)
            room += slots
    return more


def to_let_go(there: Mapping[str, int], used: Mapping[str, Used], wanted: int, *, idle_most: float) -> Sequence[str]:
    """Of those that are used: who is not needed, the one with nothing to run for longest first; and whose machine has
    gone."""
    room = _room(there, used)
    gone = []
    for name, one in sorted(used.items(), key=lambda item: -item[1].idle_seconds):
        slots = there.get(name)
        if not one.idle_seconds:
            continue
        if slots is None:
            gone.append(name)
        elif one.may_run and one.idle_seconds > idle_most and room - slots >= wanted:
            gone.append(name)
            room -= slots
    return gone


def _room(there: Mapping[str, int], used: Mapping[str, Used]) -> int:
    return sum(there.get(name, 0) for name, one in used.items() if one.may_run)
