"""Which node gets an order. Knows what is said of nodes; touches nothing.

A node that has the files of an order goes before one to which they would have to be carried; of those that have them,
and of those that have not, the one with the most room. So the bytes of a document leave the head seldom, and many
documents spread over many nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from worker_service.jobs.values import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    name: str
    slots: int
    running: int
    has: Container[str]
    """The inputs that lie there, or are on their way."""

    @property
    def share(self) -> float:
        return self.running / self.slots


def choose(rooms: Iterable[Room], needs: Collection[str]) -> str | None:
    """None: nobody has room."""
    free = [room for room in rooms if room.running < room.slots]
    best = min(free, key=lambda room: (-sum(key in room.has for key in needs), room.share, room.name), default=None)
    return None if best is None else best.name
