"""The children of a simulated daemon: what a fork server is to the loop, without a process.

A child does a little at each step, and ends in one of the ways in which real ones do. Asked to stop, it may have come
to its end just before; its `Ended` comes only once it is gone. When its daemon dies it lives on for a moment, and when
its daemon stands still it goes on: that is what the rescuers have to reckon with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker_service.jobs.attempts import Usage
from worker_service.jobs.job import NewJob
from worker_service.jobs.workers import HandlerFacts
from worker_service.runner.messages import (
    AttemptEvent,
    Ended,
    HandlerDescription,
    How,
    Logged,
    Order,
    Progressed,
    Publication,
    Started,
)

Key = tuple[int, int]

STAGING = Path("/staging")
DESCRIBED = (
    HandlerDescription(HandlerFacts("work")),
    HandlerDescription(HandlerFacts("once", at_most_once=True)),
    HandlerDescription(HandlerFacts("leaf", job_class="io")),
)
_ENDS = (How.DONE,) * 6 + (How.RETRYABLE, How.PERMANENT, How.SNOOZED, How.CRASHED, How.TIMED_OUT)


@dataclass(slots=True)
class Child:
    order: Order
    progress: int = -1
    """-1: it has not begun yet."""
    is_asked_to_stop: bool = False

    @property
    def key(self) -> Key:
        return self.order.job_id, self.order.fence


@dataclass(slots=True)
class SimulatedForkServer:
    chance: random.Random
    launched: Callable[[Key], None]
    """Told of each child that begins to live."""
    is_alive: bool = True
    is_calm: bool = False
    living: dict[Key, Child] = field(default_factory=dict)
    _told: list[AttemptEvent] = field(default_factory=list)

    # ── What the loop asks for ──

    def fileno(self) -> int:
        raise AssertionError("a simulated loop never waits")

    def launch(self, order: Order) -> None:
        child = Child(order)
        if not self.is_alive:
            self._told.append(Ended(*child.key, How.CRASHED, code="FORK_SERVER_DIED"))
            return
        self.launched(child.key)
        self.living[child.key] = child

    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None:
        child = self.living.get((job_id, fence))
        if child is not None:
            child.is_asked_to_stop = True
            if now:
                self._end(child, How.STOPPED)

    def take_events(self) -> list[AttemptEvent]:
        told, self._told = self._told, []
        return told

    def answer(self, asked: object, answer: object, *, code: str = "", message: str = "") -> None:
        raise AssertionError("a simulated child asks nothing")

    def restart(self) -> Sequence[HandlerDescription]:
        self.is_alive = True
        return DESCRIBED

    # ── What happens by itself ──

    def step(self) -> None:
        if self.living:
            self._go_on(self.chance.choice(list(self.living.values())))

    def die(self) -> None:
        """The fork server, and all children with it; the loop hears of each once they are gone."""
        self.is_alive = False
        for child in list(self.living.values()):
            self._end(child, How.CRASHED, code="FORK_SERVER_DIED")

    def _go_on(self, child: Child) -> None:
        if child.progress < 0:
            child.progress = 0
            self._told.append(Started(*child.key, 1000 + child.key[0], child.key[1], "simulated"))
        elif child.is_asked_to_stop and self.chance.random() < 0.7:
            self._end(child, How.STOPPED)
        elif child.progress < 80 and self.chance.random() < 0.5:
            # Now and then it says less than before.
            child.progress += self.chance.choice([30, 30, -10])
            self._told.append(Progressed(*child.key, float(max(0, child.progress)), "on its way"))
            self._told.append(Logged(*child.key, [f"at {child.progress}"]))
        else:
            self._end(child, How.DONE if self.is_calm else self.chance.choice(_ENDS))

    def _end(self, child: Child, how: How, code: str = "") -> None:
        del self.living[child.key]
        is_parent = how is How.DONE and child.order.job_type != "leaf"
        self._told.append(
            Ended(
                *child.key,
                how,
                result='{"by":"simulation"}' if how is How.DONE else None,
                follow_ups=[NewJob("leaf")] if is_parent else (),
                published=[Publication(STAGING / "page.txt")] if is_parent else (),
                code=code,
                after_seconds=self.chance.choice([None, 0.0, 5.0, 400.0]) if how is not How.DONE else None,
                usage=Usage(cpu_seconds=0.1),
            )
        )
