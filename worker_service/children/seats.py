"""A slot whose children are kept, as the nursery sees it: one attempt at a time, and the few orders behind it.

The orders that a kept child will take next lie in its socket already, whole ones, so that it goes on without waiting
for us. Whoever reads an order from the socket has it: what the child has not taken can be taken back, by `recall`.
Who may go on waiting, and who goes back to the daemon, is decided by the nursery.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from worker_service.children.attempt import READ_BYTES, Attempt
from worker_service.children.forking import Forked
from worker_service.children.known import Known
from worker_service.children.kept import ORDER_BYTES_MAX
from worker_service.children.model import Happening
from worker_service.children.wire import Garbled, Launch, Next, for_kept, to_kept

IDLE_SECONDS = 10.0
"""After that a kept child with nothing to do is stopped."""
HOLD_SECONDS = 0.1
"""So long an order waits behind an attempt; then it is not begun here."""


@dataclass(slots=True)
class Waiting:
    launch: Launch
    known: Known

    @property
    def fits(self) -> bool:
        """Into the jail and the socket of a kept child."""
        order = self.launch.order
        size = len(order.payload or "") + len(order.state or "")
        return not order.inputs and 4 * size < ORDER_BYTES_MAX and self.known.described.reuse > 1


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
    """After the attempt that runs, with their numbers."""


class Seat:
    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[Waiting] = deque()
        """Not sent to anybody."""
        self.kept: Kept | None = None
        self.running: Attempt | None = None
        self.idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        return self.running is None and not self.waiting

    @property
    def has_followers(self) -> bool:
        return bool(self.waiting or (self.kept is not None and self.kept.sent))

    def next_due(self) -> float | None:
        if self.running is not None and self.has_followers:
            return self.running.began_at + HOLD_SECONDS
        if self.kept is not None and self.running is None:
            return self.idle_since + IDLE_SECONDS
        return None

    # --- giving and taking back ---

    def give(self, kept: Kept) -> None:
        """As many of the waiting orders as it may have and its socket takes."""
        line = kept.forked.orders
        while self.waiting and line is not None and kept.given < kept.reuse:
            one = self.waiting[0]
            if not one.fits or one.launch.order.job_type != kept.job_type:
                return
            number = kept.given + 1
            try:
                line.send(for_kept(Next(number, one.launch.order)), socket.MSG_DONTWAIT)
            except OSError:
                # Full, or it is leaving.
                return
            self.waiting.popleft()
            kept.given = number
            kept.sent.append((number, one))

    def recall(self) -> None:
        """Take back what the child has not taken. The last of them may be running already, unheard of."""
        kept = self.kept
        if kept is None or kept.forked.orders_back is None:
            return
        back: set[int] = set()
        while True:
            try:
                back.add(to_kept(kept.forked.orders_back.recv(ORDER_BYTES_MAX, socket.MSG_DONTWAIT)).number)
            except (OSError, Garbled):
                break
        self.waiting.extendleft(one for number, one in reversed(kept.sent) if number in back)
        kept.sent = deque((number, one) for number, one in kept.sent if number not in back)
        kept.given -= len(back)

    # --- one attempt after the other ---

    def next_attempt(self) -> Attempt | None:
        """Of the order that the child takes next, or has taken."""
        if self.kept is None or not self.kept.sent:
            self.running, self.idle_since = None, time.monotonic()
            return None
        number, one = self.kept.sent.popleft()
        self.running = attempt_of(one, self.kept.forked, self.kept.home, number=number)
        return self.running

    def put_back(self, attempt: Attempt, known: Known, environment: dict[str, str]) -> None:
        """It was never begun: the child has left before."""
        self.waiting.appendleft(Waiting(Launch(attempt.order, environment), known))


def attempt_of(one: Waiting, forked: Forked, staging: Path, *, number: int = 0) -> Attempt:
    seconds = one.launch.order.timeout_seconds or one.known.described.wall_seconds
    return Attempt(one.launch.order, forked, staging, seconds=seconds, number=number)


_ = (os, READ_BYTES, Iterator, Happening)
