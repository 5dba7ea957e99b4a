"""Which attempt of a seat runs in which child: forks the kept ones, feeds them, and stops them.

A seat runs one attempt at a time. A kept child serves attempts of one type, as many as its handler says, and is
replaced after anything but a clean end; one that idles is stopped. An order that waits too long behind an attempt goes
back to the daemon, not begun: it should not stand in line where another slot is free.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from worker_service.children import gone
from worker_service.children.attempt import Attempt
from worker_service.children.forking import Forked, discard, fork, make_empty
from worker_service.children.gone import Key
from worker_service.children.model import Ended, Happening, How
from worker_service.children.seats import HOLD_SECONDS, STAGING, Kept, Seat, Waiting
from worker_service.children.wire import Begin, Garbled

_BITES = 17
"""What a pipe can hold, and not more."""


class House(Protocol):
    """What seats need of the nursery."""

    begin: Begin
    attempts: dict[Key, Attempt]
    cleaners: set[int]

    def tell(self, happenings: Iterable[Happening]) -> None: ...
    def refuse(self, one: Waiting, how: How, code: str, message: str) -> None: ...
    def start_alone(self, one: Waiting) -> Attempt | None: ...
    def watch(self, forked: Forked) -> None: ...
    def unwatch(self, forked: Forked) -> None: ...


class Seating:
    def __init__(self, house: House, now: Callable[[], float]) -> None:
        self._house = house
        self._now = now
        self._seats: dict[int, Seat] = {}
        self._retired: dict[int, Kept] = {}
        self._homes = 0
        self._is_closing = False

    @property
    def due_at(self) -> float:
        return min((seat.due_at for seat in self._seats.values()), default=math.inf)

    # --- orders ---

    def take(self, one: Waiting, number: int) -> None:
        seat = self._seats.setdefault(number, Seat(number, self._house.begin.idle_seconds))
        seat.waiting.append(one)
        self._fill(seat)

    def _fill(self, seat: Seat) -> None:
        while seat.waiting and seat.running is None and not (self._is_closing or seat.is_closed):
            if seat.kept is None:
                self._start(seat, seat.waiting.popleft())
            elif seat.kept.takes(seat.waiting[0]):
                break
            else:
                self._retire(seat)
        if seat.is_closed or self._is_closing or (seat.running is not None and seat.running.is_stopping):
            return
        seat.give()
        if seat.running is None:
            self._go_on(seat)

    def _start(self, seat: Seat, one: Waiting) -> None:
        if not one.fits or one.known.bring is None:
            seat.running = self._house.start_alone(one)
            if seat.running is not None:
                seat.running.seat = seat
            return
        begin = self._house.begin
        self._homes += 1
        home = begin.staging_root / f"{gone.home_of_kept(os.getpid())}{self._homes}"
        try:
            make_empty(home)
            make_empty(home / STAGING)
            mark = gone.key_of_kept(os.getpid(), seat.number)
            reuse = one.known.described.reuse
            forked = fork(one.launch, begin, one.known.bring, home / STAGING, reuse=reuse, mark=mark)
        except OSError as error:
            self._house.refuse(one, How.RETRYABLE, "LAUNCH_FAILED", f"no child could be started: {error}")
            return
        forked.seat = seat
        seat.kept = Kept(forked, one.launch.order.job_type, reuse, home)
        seat.kept.sent.append((1, one))
        self._house.watch(forked)
        self._go_on(seat)

    def _go_on(self, seat: Seat) -> None:
        attempt = seat.go_on()
        if attempt is None:
            return
        attempt.seat = seat
        attempt.take_printed()
        self._house.attempts[attempt.key] = attempt
        if attempt.forked.sandbox:
            self._house.tell([attempt.started(attempt.forked.sandbox)])

    # --- what a kept child says ---

    def hear(self, forked: Forked, pipe: int) -> None:
        received, attempt, seat = forked.bite(pipe), forked.attempt, forked.seat
        if attempt is not None and (pipe != forked.said or attempt.is_stopping):
            self._house.tell(attempt.hear(pipe, received, self._now()))
            return
        if pipe != forked.said or seat is None:
            return
        try:
            for body in forked.inbox.feed(received):
                if forked.attempt is None:
                    raise Garbled("it speaks between two attempts")
                self._house.tell(forked.attempt.understand(body, self._now()))
                if forked.attempt.is_over:
                    self._end_of(forked.attempt, seat)
        except Garbled as error:
            if forked.attempt is not None:
                forked.attempt.garbled(error, self._now())
            elif seat.kept is not None and seat.kept.forked is forked:
                self._retire(seat)

    def _end_of(self, attempt: Attempt, seat: Seat) -> None:
        """It was clean, and there is nothing that it could have left behind: its child lives on."""
        for _ in range(_BITES):
            if attempt.has_printed_all:
                break
            attempt.forked.printed.feed(attempt.forked.bite(attempt.forked.output))
            attempt.take_printed()
        self._house.tell(attempt.due(self._now(), is_last=True))
        self._house.tell([attempt.ended()])
        self._house.attempts.pop(attempt.key, None)
        seat.forget(attempt)
        self._go_on(seat)
        self._fill(seat)

    # --- stopping ---

    def stop(self, key: Key, *, grace: float) -> bool:
        """Whether it is an attempt of a seat."""
        for seat in self._seats.values():
            if any(one.key == key for one in self._all_of(seat)):
                with self._quiet(seat):
                    if seat.running is not None and seat.running.key == key:
                        seat.running.stop(How.STOPPED, "STOPPED", "it was asked to stop", grace=grace, now=self._now())
                    else:
                        self._give_back(seat, [one for one in seat.waiting if one.key == key])
                return True
        return False

    def catch_up(self, attempt: Attempt) -> bool:
        """Whether it runs still, now that everything is heard that its child has said. It gets no other order."""
        if attempt.seat is None or attempt.seat.kept is None or attempt.is_stopping:
            return True
        with self._quiet(attempt.seat):
            is_running = attempt.seat.running is attempt
            if is_running:
                attempt.act(self._now(), grace=self._house.begin.grace_seconds)
        return is_running

    def tend(self) -> None:
        """What has waited too long, and who idles."""
        for seat in self._seats.values():
            if not seat.is_overdue:
                continue
            if seat.running is None:
                self._retire(seat)
                continue
            running = seat.running
            with self._quiet(seat):
                if seat.running is running:
                    self._give_back(seat, list(seat.waiting))

    @contextlib.contextmanager
    def _quiet(self, seat: Seat) -> Iterator[None]:
        """Meanwhile its child has taken what it has taken, and said what it has said."""
        before = seat.running
        seat.is_closed = True
        try:
            seat.recall()
            if seat.kept is not None:
                self._read_all(seat.kept.forked)
            if before is not None and seat.running is None:
                self._house.attempts.pop(before.key, None)
            yield
        finally:
            seat.is_closed = False
            self._fill(seat)

    def _read_all(self, forked: Forked) -> None:
        for _ in range(_BITES):
            if forked.said not in forked.open_pipes:
                break
            self.hear(forked, forked.said)
            if not forked.was_full:
                break

    def _all_of(self, seat: Seat) -> list[Waiting]:
        return [*(one for _, one in (seat.kept.sent if seat.kept is not None else ())), *seat.waiting]

    def _give_back(self, seat: Seat, several: Iterable[Waiting]) -> None:
        for one in several:
            seat.waiting.remove(one)
            message = "it was not begun: another attempt was before it"
            waited = Ended(*one.key, How.STOPPED, code="NOT_BEGUN", message=message, took_seconds=HOLD_SECONDS)
            self._house.tell([waited])

    def close(self) -> None:
        """The daemon is gone."""
        self._is_closing = True
        for seat in self._seats.values():
            seat.waiting.clear()
            if seat.running is None and seat.kept is not None:
                self._retire(seat)

    # --- the end of a kept child ---

    def _retire(self, seat: Seat) -> None:
        """It idles, so nobody loses anything."""
        kept, seat.kept = seat.kept, None
        if kept is None:
            return
        self._retired[kept.forked.pid] = kept
        kept.forked.seat = None
        self._house.unwatch(kept.forked)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(kept.forked.pid, signal.SIGKILL)
        gone.stop_at_once(kept.forked.pid)

    def has_left(self, forked: Forked) -> None:
        """It was waited for. What it has said last is heard, and what it has not taken goes to the next child."""
        kept = self._retired.pop(forked.pid, None)
        if kept is not None:
            self._bury(kept)
            return
        seat = forked.seat
        if seat is None or seat.kept is None:
            return
        seat.is_closed = True
        before = seat.running
        seat.recall()
        self._read_all(forked)
        last = seat.running
        if last is not None and last.number > max(1, forked.last_begun) and not last.is_stopping:
            seat.waiting.appendleft(seat.kept.sent.popleft()[1])
            self._house.attempts.pop(last.key, None)
            seat.running = forked.attempt = None
        if before is not None and seat.running is None:
            self._house.attempts.pop(before.key, None)
        seat.is_closed = False
        if seat.running is None:
            kept, seat.kept = seat.kept, None
            self._bury(kept)
            self._fill(seat)

    def end(self, attempt: Attempt) -> None:
        """The attempt has ended with its child, or was one without a kept child."""
        seat = attempt.seat
        if seat is None:
            return
        seat.forget(attempt)
        kept, seat.kept = seat.kept, None
        if kept is not None:
            # What it had taken while it was being stopped nobody has heard of: that is run by the next.
            seat.waiting.extendleft(one for _, one in reversed(kept.sent))
            self._bury(kept, is_closed=True)
        self._fill(seat)

    def _bury(self, kept: Kept, *, is_closed: bool = False) -> None:
        if not is_closed:
            self._house.unwatch(kept.forked)
            kept.forked.close()
        cleaner = discard(kept.home)
        if cleaner is not None:
            self._house.cleaners.add(cleaner)
