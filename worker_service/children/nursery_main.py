"""The nursery: a warm, single-threaded process that forks one child for each attempt.

Started by `python -m worker_service.children.nursery_main FD`; FD is a socket to the daemon, and when it closes the
nursery stops everything and ends. It loads the handlers once, each tried in a child first, so that an attempt
starts with a fork and no import. It is a subreaper: whatever a child leaves behind becomes the nursery's own child,
is recognised by its mark, and is SIGKILLed before the attempt counts as ended.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from worker_service.children import child, gone, known, limits, sandbox, trial
from worker_service.children.attempt import Attempt
from worker_service.children.gone import Key
from worker_service.children.known import Bring, Known
from worker_service.children.model import Described, Ended, Happening, How, Order
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
        self._attempts: dict[Key, Attempt] = {}
        self._resting: dict[int, tuple[Attempt, float]] = {}
        self._cleaners: set[int] = set()
        self._sweep_seconds = _SWEEP_SECONDS
        self._is_closing = False
        self._begin: Begin

    def serve(self) -> None:
        rest = self._hear_the_beginning()
        self._watch_for_children()
        limits.adopt_orphans()
        self._make_ready()
        self._selector.register(self._control, selectors.EVENT_READ)
        for body in rest:
            self._obey(body)
        while not (self._is_closing and not self._attempts and not self._strangers()):
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
                self._answer(key.data)
            else:
                self._read(key.fd, key.data)
        now = time.monotonic()
        self._wake_resting_pipes(now)
        self._reap()
        for attempt in self._attempts.values():
            attempt.act(now, grace=self._begin.grace_seconds)
            self._tell(attempt.due(now))
        self._end_those_that_are_gone(now)
        self._flush()

    def _patience(self) -> float | None:
        now = time.monotonic()
        if self._is_closing or any(attempt.has_left for attempt in self._attempts.values()):
            return self._sweep_seconds
        times = [attempt.next_due() for attempt in self._attempts.values()]
        times += [until for _, until in self._resting.values()]
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
        self._begin = begin
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
        for attempt in self._attempts.values():
            attempt.stop(How.STOPPED, "STOPPED", "the daemon is gone", grace=0.0, now=time.monotonic())

    def _obey(self, body: bytes) -> None:
        message = to_nursery(body)
        if isinstance(message, Launch):
            self._launch(message)
        elif isinstance(message, Ping):
            self._unsent += frame(Pong())
        elif isinstance(message, Reply):
            asking = self._attempts.get((message.job_id, message.fence))
            if asking is not None:
                asking.answer(message)
                self._answer(asking)
        elif isinstance(message, Stop):
            attempt = self._attempts.get((message.job_id, message.fence))
            if attempt is not None:
                grace = 0.0 if message.now else self._begin.grace_seconds
                attempt.stop(How.STOPPED, "STOPPED", "it was asked to stop", grace=grace, now=time.monotonic())

    def _tell(self, happenings: Iterable[Happening]) -> None:
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
        self._known, introduced = known.learn(self._begin, self._control.fileno())
        sandbox.prepare()
        # What no child may see is no longer here when it is forked; what it starts with takes nothing to set.
        limits.set_environment({**limits.basic_environment(), gone.HOUSE: self._begin.house})
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
        if self._is_closing or key in self._attempts:
            return
        if chosen is None:
            self._refuse(order, How.PERMANENT, "UNKNOWN_TYPE", f"no handler for {order.job_type} is installed here")
        elif chosen.bring is None:
            self._refuse(order, How.RETRYABLE, "HANDLER_SET_ASIDE", chosen.described.set_aside or "it cannot be used")
        else:
            try:
                self._fork(launch, chosen.described, chosen.bring)
            except OSError as error:
                self._refuse(order, How.RETRYABLE, "LAUNCH_FAILED", f"no child could be started: {error}")

    def _fork(self, launch: Launch, described: Described, bring: Bring) -> None:
        order = launch.order
        key = (order.job_id, order.fence)
        staging = self._begin.staging_root / gone.name_of(key)
        _make_empty(staging)
        with contextlib.ExitStack() as to_close, contextlib.ExitStack() as to_close_on_failure:
            near: list[int] = []
            far: list[int] = []
            for _ in range(3):
                reading, writing = os.pipe()
                near.append(reading)
                far.append(writing)
                to_close_on_failure.callback(os.close, reading)
                to_close.callback(os.close, writing)
                os.set_blocking(reading, False)
            answers, answering = os.pipe()
            to_close.callback(os.close, answers)
            to_close_on_failure.callback(os.close, answering)
            os.set_blocking(answering, False)
            said, output, errors = far
            room = child.Room(
                order=order,
                parent=os.getpid(),
                house=self._begin.house,
                staging=staging,
                keep_root=self._begin.keep_root,
                sandbox=self._begin.sandbox,
                environment=launch.environment,
                credentials=self._begin.credentials,
                said=said,
                output=output,
                errors=errors,
                answers=answers,
                lock_fd=self._begin.lock_fd,
            )
            pid = os.fork()
            if pid == 0:
                child.live(room, bring)
            to_close_on_failure.pop_all()
        attempt = Attempt(order, pid, self._begin.house, staging, (near[0], near[1], near[2]), answering)
        seconds = order.timeout_seconds or described.wall_seconds
        attempt.stop_at = time.monotonic() + seconds
        attempt.time_sentence = f"it was not done after {seconds} s"
        self._attempts[key] = attempt
        # A short attempt is over before anybody has listened: then all that it said is heard at once, at its end.
        for pipe in near:
            self._resting[pipe] = (attempt, time.monotonic() + _FIRST_REST_SECONDS)

    def _read(self, pipe: int, attempt: Attempt) -> None:
        now = time.monotonic()
        # While the daemon does not listen, its children wait with it.
        must_rest = len(self._unsent) >= _UNSENT_BYTES_MAX
        if not must_rest:
            self._tell(attempt.read(pipe, now))
            if pipe not in attempt.open_pipes:
                self._selector.unregister(pipe)
                return
            must_rest = attempt.was_full
        if must_rest:
            self._selector.unregister(pipe)
            self._resting[pipe] = (attempt, now + _REST_SECONDS)

    def _answer(self, attempt: Attempt) -> None:
        """Its pipe is watched only while something is left to be sent."""
        attempt.send()
        is_watched = attempt.answers in self._selector.get_map()
        if attempt.unsent and not is_watched:
            self._selector.register(attempt.answers, selectors.EVENT_WRITE, attempt)
        elif is_watched and not attempt.unsent:
            self._selector.unregister(attempt.answers)

    def _wake_resting_pipes(self, now: float) -> None:
        for pipe, (attempt, until) in list(self._resting.items()):
            if now >= until:
                del self._resting[pipe]
                self._selector.register(pipe, selectors.EVENT_READ, attempt)

    def _refuse(self, order: Order, how: How, code: str, message: str) -> None:
        self._tell([Ended(order.job_id, order.fence, how, code=code, message=message)])

    # --- the end of a child ---

    def _watch_for_children(self) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ)

    def _reap(self) -> None:
        """Every child that has left, the adopted ones too."""
        by_pid = {attempt.pid: attempt for attempt in self._attempts.values() if not attempt.has_left}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._cleaners.discard(pid)
                if pid in by_pid:
                    by_pid.pop(pid).left(status, usage)

    def _end_those_that_are_gone(self, now: float) -> None:
        leaving = [attempt for attempt in self._attempts.values() if attempt.has_left]
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
        running = {attempt.pid: attempt for attempt in self._attempts.values() if not attempt.has_left}
        tags = {attempt.tag for attempt in running.values()}
        others = gone.children_of(os.getpid()) - running.keys() - self._cleaners
        return {pid for pid in others if gone.tag_on(pid) not in tags}

    def _end(self, attempt: Attempt, now: float) -> None:
        self._tell(attempt.drain(now))
        ended = attempt.ended()
        for pipe in (attempt.said, attempt.output, attempt.errors, attempt.answers):
            if self._resting.pop(pipe, None) is None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pipe)
            os.close(pipe)
        del self._attempts[attempt.key]
        if not ended.files:
            self._discard(attempt.staging)
        self._tell([ended])

    def _discard(self, staging: Path) -> None:
        """In a process of its own if it holds anything: a million files would keep everybody waiting."""
        with contextlib.suppress(OSError):
            staging.rmdir()
            return
        parent = os.getpid()
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                try:
                    limits.die_with(parent)
                    limits.close_all_but({0, 1, 2})
                    shutil.rmtree(staging, ignore_errors=True)
                finally:
                    os._exit(0)
            self._cleaners.add(pid)


def _make_empty(staging: Path) -> None:
    staging.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        staging.mkdir(mode=0o700)
    except FileExistsError:
        shutil.rmtree(staging)
        staging.mkdir(mode=0o700)


def main() -> None:
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
