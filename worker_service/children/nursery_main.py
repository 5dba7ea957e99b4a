"""The nursery: a warm, single-threaded process that forks one child for each attempt.

Started by `python -m worker_service.children.nursery_main FD`; FD is a socket to the daemon, and when it closes the
nursery stops everything and ends. It loads the handlers once, each tried in a child first, so that an attempt
starts with a fork and no import. It is a subreaper: whatever a child leaves behind becomes the nursery's own child,
is recognised by its mark, and is SIGKILLed before the attempt counts as ended. Children that are kept for several
attempts are `seating`'s.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable

from worker_service.children import gone, known, limits, sandbox, trial
from worker_service.children.attempt import Attempt
from worker_service.children.forking import Forked, discard, fork, make_empty
from worker_service.children.gone import Key
from worker_service.children.known import Known
from worker_service.children.model import Ended, Happening, How
from worker_service.children.seating import Seating
from worker_service.children.seats import Waiting
from worker_service.children.wire import (
    RELAY_BYTES_MAX,
    Begin,
    Hello,
    Inbox,
    Launch,
    Ping,
    Pong,
    Reply,
    Stop,
    frame,
    frame_of_happening,
    to_nursery,
)

_READ_BYTES = 1 << 16
_UNSENT_BYTES_MAX = 1 << 20
_REST_SECONDS = 0.002
"""How long a pipe that was full is left alone: a flood costs its author, not its neighbours."""
_FLOOD_REST = 4
"""Times as long as it took to hear a part of a flood."""
_FIRST_REST_SECONDS = 0.005
_SWEEP_SECONDS = 0.001
_SWEEP_SECONDS_MAX = 0.2
_SWEEPS_AT_ONCE = 20
"""A process that forks and ends for ever is caught by looking again at once."""


class _Nursery:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._unsent = bytearray()
        self._selector = selectors.DefaultSelector()
        self._known: dict[str, Known] = {}
        self._children: dict[int, Forked] = {}
        """By pid: all that were forked and not waited for yet."""
        self.attempts: dict[Key, Attempt] = {}
        self._resting: dict[int, tuple[Forked, float]] = {}
        self.cleaners: set[int] = set()
        self._seating = Seating(self, time.monotonic)
        self._sweep_seconds = _SWEEP_SECONDS
        self._is_closing = False
        self.begin: Begin

    def serve(self) -> None:
        rest = self._hear_the_beginning()
        self._watch_for_children()
        limits.adopt_orphans()
        self._make_ready()
        self._selector.register(self._control, selectors.EVENT_READ)
        for body in rest:
            self._obey(body)
        while not (self._is_closing and not self.attempts and not self._children and not self._strangers()):
            self._turn()

    # --- one turn ---

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._control:
                if events & selectors.EVENT_READ:
                    self._listen()
            elif key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, _READ_BYTES)
            elif key.fd == key.data.answers:
                if key.data.attempt is not None:
                    self._answer(key.data.attempt)
            else:
                self._read(key.fd, key.data)
        now = time.monotonic()
        self._wake_resting_pipes(now)
        self._reap()
        for attempt in list(self.attempts.values()):
            if now < attempt.stop_at or self._seating.catch_up(attempt):
                attempt.act(now, grace=self.begin.grace_seconds)
                self.tell(attempt.due(now))
        self._seating.tend()
        self._end_those_that_are_gone(now)
        self._flush()

    def _patience(self) -> float | None:
        now = time.monotonic()
        if self._is_closing or any(attempt.has_left for attempt in self.attempts.values()):
            return self._sweep_seconds
        times = [attempt.next_due() for attempt in self.attempts.values()]
        times += [until for _, until in self._resting.values()]
        times.append(self._seating.due_at)
        soonest = min(times, default=math.inf)
        return None if soonest == math.inf else max(soonest - now, 0.0)

    # --- the daemon ---

    def _hear_the_beginning(self) -> list[bytes]:
        self._control.setblocking(True)
        bodies: list[bytes] = []
        while not bodies:
            try:
                received = self._control.recv(_READ_BYTES)
            except ConnectionError:
                received = b""
            if not received:
                sys.exit(0)
            bodies = self._inbox.feed(received)
        begin = to_nursery(bodies[0])
        if not isinstance(begin, Begin):
            sys.exit("the daemon did not begin")
        self.begin = begin
        self._control.setblocking(False)
        return bodies[1:]

    def _listen(self) -> None:
        try:
            received = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            received = b""
        if received:
            for body in self._inbox.feed(received):
                self._obey(body)
            return
        # The daemon is gone, or wants us to go.
        self._is_closing = True
        self._selector.unregister(self._control)
        self._seating.close()
        for attempt in self.attempts.values():
            attempt.stop(How.STOPPED, "STOPPED", "the daemon is gone", grace=0.0, now=time.monotonic())

    def _obey(self, body: bytes) -> None:
        message = to_nursery(body)
        if isinstance(message, Launch):
            self._launch(message)
        elif isinstance(message, Ping):
            self._unsent += frame(Pong())
        elif isinstance(message, Reply):
            asking = self.attempts.get((message.job_id, message.fence))
            if asking is not None:
                asking.answer(message)
                self._answer(asking)
        elif isinstance(message, Stop):
            key = (message.job_id, message.fence)
            grace = 0.0 if message.now else self.begin.grace_seconds
            attempt = self.attempts.get(key)
            if not self._seating.stop(key, grace=grace) and attempt is not None:
                attempt.stop(How.STOPPED, "STOPPED", "it was asked to stop", grace=grace, now=time.monotonic())

    def tell(self, happenings: Iterable[Happening]) -> None:
        for happening in happenings:
            self._unsent += frame_of_happening(happening)

    def _flush(self) -> None:
        if self._is_closing:
            self._unsent.clear()
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._control).events != wanted:
            self._selector.modify(self._control, wanted)

    def _make_ready(self) -> None:
        self._known, introduced = known.learn(self.begin, self._control.fileno())
        sandbox.prepare()
        # What no child may see is no longer here when it is forked; what it starts with takes nothing to set.
        limits.set_environment({**limits.basic_environment(), gone.HOUSE: self.begin.house})
        gone.room_for_mark()
        # Once, so that children do not copy pages only because a collection wrote to them.
        gc.collect()
        gc.freeze()
        self._control.setblocking(True)
        with contextlib.suppress(ConnectionError):
            # A daemon that is gone already is noticed by the first turn.
            self._control.sendall(frame(Hello(trial.threads(), tuple(introduced))))
        self._control.setblocking(False)

    # --- children ---

    def _launch(self, launch: Launch) -> None:
        order = launch.order
        key = (order.job_id, order.fence)
        chosen = self._known.get(order.job_type)
        if self._is_closing or key in self.attempts:
            return
        if chosen is None:
            message = f"no handler for {order.job_type} is installed here"
            self.tell([Ended(*key, How.PERMANENT, code="UNKNOWN_TYPE", message=message)])
        elif chosen.bring is None:
            message = chosen.described.set_aside or "it cannot be used"
            self.tell([Ended(*key, How.RETRYABLE, code="HANDLER_SET_ASIDE", message=message)])
        elif chosen.described.reuse > 1 and order.seat is not None:
            self._seating.take(Waiting(launch, chosen), order.seat)
        else:
            self.start_alone(Waiting(launch, chosen))

    def start_alone(self, one: Waiting) -> Attempt | None:
        """In a child of its own. None: that was not possible, and has been told."""
        if one.known.bring is None:
            return None
        staging = self.begin.staging_root / gone.name_of(one.key)
        try:
            make_empty(staging)
            forked = fork(one.launch, self.begin, one.known.bring, staging)
        except OSError as error:
            self.refuse(one, How.RETRYABLE, "LAUNCH_FAILED", f"no child could be started: {error}")
            return None
        forked.attempt = attempt = one.attempt(forked, staging)
        self.attempts[attempt.key] = attempt
        self.watch(forked)
        return attempt

    def watch(self, forked: Forked) -> None:
        self._children[forked.pid] = forked
        # A short attempt is over before anybody has listened: then all that it said is heard at once, at its end.
        for pipe in forked.pipes:
            self._resting[pipe] = (forked, time.monotonic() + _FIRST_REST_SECONDS)

    def unwatch(self, forked: Forked) -> None:
        for pipe in (*forked.pipes, forked.answers):
            if self._resting.pop(pipe, None) is None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pipe)

    def _read(self, pipe: int, forked: Forked) -> None:
        now = time.monotonic()
        is_printed = pipe == forked.output
        # While the daemon does not listen, its children wait with it.
        must_rest = len(self._unsent) >= _UNSENT_BYTES_MAX
        must_rest |= is_printed and forked.attempt is not None and forked.attempt.must_wait_to_print
        rest_seconds = _REST_SECONDS
        if not must_rest:
            if forked.seat is not None:
                self._seating.hear(forked, pipe)
            elif forked.attempt is not None:
                self.tell(forked.attempt.read(pipe, now))
            if pipe not in forked.open_pipes:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pipe)
                return
            # It has more to do, and will have more to say.
            must_rest = forked.was_full or (forked.seat is not None and forked.seat.has_followers)
            if is_printed and forked.was_full:
                rest_seconds = max(rest_seconds, (time.monotonic() - now) * _FLOOD_REST)
        if must_rest and pipe in self._selector.get_map():
            self._selector.unregister(pipe)
            self._resting[pipe] = (forked, now + rest_seconds)

    def _answer(self, attempt: Attempt) -> None:
        """Its pipe is watched only while something is left to be sent."""
        attempt.send()
        answers = attempt.forked.answers
        is_watched = answers in self._selector.get_map()
        if attempt.unsent and not is_watched:
            self._selector.register(answers, selectors.EVENT_WRITE, attempt.forked)
        elif is_watched and not attempt.unsent:
            self._selector.unregister(answers)

    def _wake_resting_pipes(self, now: float) -> None:
        for pipe, (forked, until) in list(self._resting.items()):
            if now >= until:
                del self._resting[pipe]
                if pipe in forked.open_pipes:
                    self._selector.register(pipe, selectors.EVENT_READ, forked)

    def refuse(self, one: Waiting, how: How, code: str, message: str) -> None:
        self.tell([Ended(*one.key, how, code=code, message=message)])

    # --- the end of a child ---

    def _watch_for_children(self) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ)

    def _reap(self) -> None:
        """Every child that has left, the adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                self.cleaners.discard(pid)
                forked = self._children.pop(pid, None)
                if forked is not None:
                    self._seating.has_left(forked)
                    if forked.attempt is not None:
                        forked.attempt.left(status, usage)

    def _end_those_that_are_gone(self, now: float) -> None:
        leaving = [attempt for attempt in self.attempts.values() if attempt.has_left]
        if not leaving and not self._is_closing:
            return
        for _ in range(_SWEEPS_AT_ONCE):
            strangers = self._strangers()
            if not strangers:
                break
            for stranger in strangers:
                gone.stop_at_once(stranger)
            self._reap()
        else:
            # The proof waits for the next look: its own children come to us when it is gone. One that cannot be
            # ended, another user's, is looked at ever more rarely.
            self._sweep_seconds = min(self._sweep_seconds * 1.5, _SWEEP_SECONDS_MAX)
            return
        for attempt in leaving:
            self._end(attempt, now)
        self._sweep_seconds = _SWEEP_SECONDS

    def _strangers(self) -> set[int]:
        """Children that we did not fork and that belong to no running attempt: what ended attempts left behind."""
        tags = {forked.tag for forked in self._children.values() if forked.attempt is not None}
        others = gone.children_of(os.getpid()) - self._children.keys() - self.cleaners
        return {pid for pid in others if gone.tag_on(pid) not in tags}

    def _end(self, attempt: Attempt, now: float) -> None:
        self.tell(attempt.drain(now))
        attempt.move_to(self.begin.staging_root / gone.name_of(attempt.key))
        ended = attempt.ended()
        self.unwatch(attempt.forked)
        attempt.forked.close()
        del self.attempts[attempt.key]
        if not ended.files:
            cleaner = discard(attempt.staging)
            if cleaner is not None:
                self.cleaners.add(cleaner)
        self._seating.end(attempt)
        self.tell([ended])


def main() -> None:
    # A handler's print becomes a log line at once, whatever stands in it.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    if len(sys.argv) > 2:
        os.set_inheritable(int(sys.argv[2]), False)
    # Whoever stops the service stops the daemon, and the daemon stops us.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    _Nursery(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main()
