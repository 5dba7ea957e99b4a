"""A slot whose children are kept, as the nursery sees it: one attempt at a time, and the few orders behind it.

The orders that a kept child takes next lie in its socket already, whole ones, so that it goes on without waiting for
us. Whoever reads an order from the socket has it: what the child has not taken can be taken back (`recall`). Forks
nothing and stops nothing; `seating` does.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from worker_service.children.attempt import Attempt
from worker_service.children.forking import Forked
from worker_service.children.gone import Key
from worker_service.children.kept import ORDER_BYTES_MAX
from worker_service.children.known import Known
from worker_service.children.wire import Garbled, Launch, Next, for_kept, to_kept

HOLD_SECONDS = 0.1
"""So long an order waits behind an attempt; then it goes back to the daemon, not begun."""


@dataclass(frozen=True, slots=True)
class Waiting:
    launch: Launch
    known: Known

    @property
    def key(self) -> Key:
        return self.launch.order.job_id, self.launch.order.fence

    @property
    def fits(self) -> bool:
        """Into the jail and the socket of a kept child."""
        order = self.launch.order
        # Escaped, a character takes up to six bytes.
        size = 6 * (len(order.payload or "") + len(order.state or ""))
        return not order.inputs and size < ORDER_BYTES_MAX // 2 and self.known.described.reuse > 1

    def attempt(self, forked: Forked, staging: Path, *, number: int = 0) -> Attempt:
        seconds = self.launch.order.timeout_seconds or self.known.described.facts.timeout_seconds
        return Attempt(self.launch.order, forked, staging, seconds=seconds, number=number)


@dataclass(slots=True)
class Kept:
    """The kept child of a seat."""

    forked: Forked
    job_type: str
    reuse: int
    home: Path
    given: int = 1
    """Orders, the one that it was forked with included."""
    sent: deque[tuple[int, Waiting]] = field(default_factory=deque)
    """With their numbers, those that have not ended; the first of them is the one that runs."""

    def takes(self, one: Waiting) -> bool:
        return self.given < self.reuse and one.fits and one.launch.order.job_type == self.job_type


class Seat:
    def __init__(self, number: int, idle_seconds: float) -> None:
        self.number = number
        self._idle_seconds = idle_seconds
        self.waiting: deque[Waiting] = deque()
        """Not given to anybody."""
        self.kept: Kept | None = None
        self.running: Attempt | None = None
        self.is_closed = False
        """Nothing is given: somebody looks what was taken."""
        self._idle_since = 0.0

    @property
    def has_followers(self) -> bool:
        return bool(self.waiting) or (self.kept is not None and len(self.kept.sent) > 1)

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() >= self.due_at

    @property
    def due_at(self) -> float:
        """When the followers have waited too long, or the idle child."""
        if self.running is not None:
            return self.running.began_at + HOLD_SECONDS if self.has_followers else math.inf
        return self._idle_since + self._idle_seconds if self.kept is not None else math.inf

    def give(self) -> None:
        """As many of the waiting orders as its child may have and its socket takes."""
        kept = self.kept
        while kept is not None and kept.forked.orders is not None and self.waiting and kept.takes(self.waiting[0]):
            number = kept.given + 1
            try:
                kept.forked.orders.send(for_kept(Next(number, self.waiting[0].launch.order)), socket.MSG_DONTWAIT)
            except OSError:
                # It is full, or its child is leaving.
                return
            kept.given = number
            kept.sent.append((number, self.waiting.popleft()))

    def recall(self) -> None:
        """Take back what the child has not taken; what is left of the sent it has taken. Nothing runs that was not."""
        kept = self.kept
        if kept is None or kept.forked.orders_back is None:
            return
        back: set[int] = set()
        while True:
            try:
                received = kept.forked.orders_back.recv(ORDER_BYTES_MAX, socket.MSG_DONTWAIT)
                back.add(to_kept(received).number if received else 0)
            except (OSError, Garbled):
                break
        self.waiting.extendleft(one for number, one in reversed(kept.sent) if number in back)
        kept.sent = deque((number, one) for number, one in kept.sent if number not in back)
        kept.given -= len(back)
        if self.running is not None and self.running.number in back:
            self.running = kept.forked.attempt = None

    def go_on(self) -> Attempt | None:
        """With the order that the child takes next, or has taken."""
        kept = self.kept
        if kept is None or not kept.sent:
            self.running, self._idle_since = None, time.monotonic()
        else:
            number, one = kept.sent[0]
            self.running = one.attempt(kept.forked, kept.home / STAGING, number=number)
        if kept is not None:
            kept.forked.attempt = self.running
        return self.running

    def forget(self, attempt: Attempt) -> None:
        """It has ended."""
        self.running = None
        if self.kept is not None and self.kept.sent and self.kept.sent[0][0] == attempt.number:
            self.kept.sent.popleft()


STAGING = "staging"
"""In the home of a kept child: what the attempt may write to."""
