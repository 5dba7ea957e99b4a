"""The fork server: a preloaded, single-threaded process that forks the children in which attempts run.

Started by `python -m worker_service.runner.fork_server FD`, where FD is a socket to the daemon. When the socket closes,
the fork server stops everything and ends. It loads the handlers once, each tried in a child first, so that an attempt
starts with a fork and no import. It is a subreaper: orphans of a child become its own children; it recognises them by
their mark and kills them before the attempt counts as ended.

A child that ended cleanly and may serve more attempts waits here for the next order of its type. The daemon may send
orders for such children ahead of a free slot. An order that has waited too long goes back to the daemon unstarted, so
that another daemon with a free slot can run it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from worker_service.jobs.model import Usage
from worker_service.runner import handler_probe, processes, sandbox
from worker_service.runner.attempt import Child, RunningAttempt
from worker_service.runner.handler_probe import LoadedHandler
from worker_service.runner.protocol import (
    RELAY_BYTES_MAX,
    AttemptOver,
    Begin,
    Ended,
    Hello,
    How,
    Inbox,
    Key,
    Launch,
    Ping,
    Pong,
    Reply,
    Stop,
    decode_daemon_message,
    encode_frame,
    encode_message,
)

_READ_BYTES = 1 << 16
_UNSENT_BYTES_MAX = 1 << 20
_REST_SECONDS = 0.002
"""Pause in reading a full pipe: slows down the child that floods it, not the other children."""
_FLOOD_REST = 4
"""Pause after a read from a flooded pipe, as a multiple of the time that the read took."""
_FIRST_REST_SECONDS = 0.005
_GATHER_SECONDS = 0.002
_SWEEP_SECONDS = 0.001
_SWEEP_SECONDS_MAX = 0.2
_PATIENCE_SECONDS = 3600.0
_SWEEPS_AT_ONCE = 20
"""Repeating the sweep at once catches a process that forks and ends for ever."""


class _Waiting(Struct, frozen=True):
    launch: Launch
    said: bytes
    """The encoded launch as received, to be passed on to an idle child."""
    known: LoadedHandler
    since: float

    @property
    def key(self) -> Key:
        return self.launch.order.key

    @property
    def job_class(self) -> str:
        return self.known.described.facts.job_class

    @property
    def reuse(self) -> int:
        """Number of attempts that the child may serve. An order with inputs gets a child of its own, because the
        sandbox of a reused child cannot be fitted to one order."""
        return 1 if self.launch.order.inputs else self.known.described.reuse


class _Nursery:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._unsent = bytearray()
        self._selector = selectors.DefaultSelector()
        self._known: dict[str, LoadedHandler] = {}
        self._children: dict[int, Child] = {}
        """Forked children that have not been waited for, by pid."""
        self._attempts: dict[Key, RunningAttempt] = {}
        self._waiting: defaultdict[str, deque[_Waiting]] = defaultdict(deque)
        """First-in first-out queues by job class."""
        self._flush_at = math.inf
        self._moved_at: dict[str, float] = {}
        """When the last waiting order of a job class was started."""
        self._idle: list[Child] = []
        """Children that can take another order, longest idle first."""
        self._resting: dict[int, tuple[Child, float]] = {}
        self._cleaners: set[int] = set()
        self._forks = 0
        self._homes: list[Path] = []
        """Empty home directories of ended children: checking one is faster than making one."""
        self._sweep_seconds = _SWEEP_SECONDS
        self._is_closing = False
        self._begin: Begin

    def serve(self) -> None:
        rest = self._hear_the_beginning()
        self._watch_for_children()
        sandbox.adopt_orphans()
        self._make_ready()
        self._selector.register(self._control, selectors.EVENT_READ)
        for body in rest:
            self._obey(body)
        while not (self._is_closing and not self._attempts and not self._children and not self._strangers()):
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
                self._send(key.data)
            else:
                self._read(key.fd, key.data)
        now = time.monotonic()
        self._wake_resting_pipes(now)
        self._reap()
        for attempt in self._attempts.values():
            attempt.act(now, grace=self._begin.grace_seconds)
            self._tell(attempt.due(now))
        self._end_those_that_are_gone(now)
        self._start_those_that_wait(now)
        self._retire_those_that_idle(now)
        self._flush()

    def _patience(self) -> float:
        now = time.monotonic()
        if self._is_closing or any(attempt.has_left for attempt in self._attempts.values()):
            return self._sweep_seconds
        times = [attempt.next_due() for attempt in self._attempts.values()]
        times += [until for _, until in self._resting.values()]
        times += [self._goes_back_at(queue[0]) for queue in self._waiting.values() if queue]
        times.append(self._flush_at)
        times += [child.idle_since + self._begin.idle_seconds for child in self._idle[:1]]
        # A time limit from a row may exceed what a system call can wait for.
        return min(max(min(times, default=math.inf) - now, 0.0), _PATIENCE_SECONDS)

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
        begin = decode_daemon_message(bodies[0])
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
        # The daemon is gone, or has asked the fork server to stop.
        self._close("the daemon is gone")

    def _close(self, reason: str) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._selector.unregister(self._control)
        self._waiting.clear()
        for attempt in self._attempts.values():
            attempt.stop(How.STOPPED, "STOPPED", reason, grace=0.0, now=time.monotonic())

    def _obey(self, body: bytes) -> None:
        message = decode_daemon_message(body)
        if isinstance(message, Launch):
            self._launch(message, body)
        elif isinstance(message, Ping):
            self._unsent += encode_frame(Pong())
        elif isinstance(message, Reply):
            asking = self._attempts.get((message.job_id, message.fence))
            if asking is not None:
                asking.answer(message)
                self._send(asking.child)
        elif isinstance(message, Stop):
            self._stop(message)

    def _stop(self, stop: Stop) -> None:
        key = (stop.job_id, stop.fence)
        attempt = self._attempts.get(key)
        if attempt is not None:
            grace = 0.0 if stop.now else self._begin.grace_seconds
            attempt.stop(How.STOPPED, "STOPPED", "it was asked to stop", grace=grace, now=time.monotonic())
        for queue in self._waiting.values():
            for one in [one for one in queue if one.key == key]:
                self._give_back(one, queue)

    def _tell(self, frames: Iterable[bytes]) -> None:
        for one in frames:
            self._unsent += one

    def _refuse(self, key: Key, how: How, code: str, message: str, waited: float | None = None) -> None:
        ended = encode_message(Ended(*key, how, code=code, message=message))
        self._unsent += encode_frame(AttemptOver(msgspec.Raw(ended), Usage(), waited))

    def _flush(self) -> None:
        if self._is_closing:
            self._unsent.clear()
            return
        if self._unsent and any(self._waiting.values()) and self._flush_at == math.inf:
            # While orders wait here, the daemon has no free slot to fill: gather several small messages into one.
            self._flush_at = time.monotonic() + _GATHER_SECONDS
        if time.monotonic() < self._flush_at < math.inf:
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent)]
            self._flush_at = math.inf
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._control).events != wanted:
            self._selector.modify(self._control, wanted)

    def _make_ready(self) -> None:
        gc.disable()
        self._known, introduced = handler_probe.learn(self._begin, self._control.fileno())
        sandbox.prepare()
        # Remove secrets before the fork, so that no child sees them and none has to clean its environment.
        sandbox.set_environment(sandbox.basic_environment())
        # Collect once before forking, so that a collection in a child does not copy shared pages.
        gc.collect()
        gc.freeze()
        gc.enable()
        self._control.setblocking(True)
        with contextlib.suppress(ConnectionError):
            # If the daemon is gone already, the first turn notices it.
            self._control.sendall(encode_frame(Hello(handler_probe.threads(), tuple(introduced))))
        self._control.setblocking(False)

    # --- children ---

    def _launch(self, launch: Launch, said: bytes) -> None:
        order = launch.order
        chosen = self._known.get(order.job_type)
        if self._is_closing or order.key in self._attempts:
            return
        if chosen is None:
            message = f"no handler for {order.job_type} is installed here"
            self._refuse(order.key, How.PERMANENT, "UNKNOWN_TYPE", message)
        elif chosen.bring is None:
            message = chosen.described.set_aside or "it cannot be used"
            self._refuse(order.key, How.RETRYABLE, "HANDLER_SET_ASIDE", message)
        else:
            one = _Waiting(launch, said, chosen, time.monotonic())
            # The daemon orders ahead of a free slot only for types with reuse.
            if chosen.described.reuse > 1 and not self._has_room(one.job_class):
                self._waiting[one.job_class].append(one)
            else:
                self._start(one)

    def _has_room(self, job_class: str) -> bool:
        running = sum(attempt.child.job_class == job_class for attempt in self._attempts.values())
        return running < self._begin.slots.get(job_class, math.inf)

    def _start_those_that_wait(self, now: float) -> None:
        for job_class, queue in self._waiting.items():
            while queue and self._has_room(job_class):
                self._moved_at[job_class] = now
                self._start(queue.popleft())
            while queue and now >= self._goes_back_at(queue[0]):
                self._give_back(queue[0], queue)

    def _goes_back_at(self, one: _Waiting) -> float:
        return max(one.since, self._moved_at.get(one.job_class, 0.0)) + self._begin.wait_seconds

    def _give_back(self, one: _Waiting, queue: deque[_Waiting]) -> None:
        queue.remove(one)
        message = "it was not begun: another attempt was before it"
        self._refuse(one.key, How.STOPPED, "NOT_BEGUN", message, self._begin.wait_seconds)

    def _start(self, one: _Waiting) -> None:
        """Start the attempt in an idle child of its type, or in a new child."""
        seconds = one.launch.order.timeout_seconds or one.known.described.facts.timeout_seconds
        child = self._idle_for(one)
        if child is not None:
            self._idle.remove(child)
            self._attempts[one.key] = attempt = RunningAttempt(one.launch, child, seconds=seconds)
            self._tell([attempt.started()])
            child.give(one.said)
            self._send(child)
            return
        assert one.known.bring is not None
        self._make_room_for(one)
        self._forks += 1
        try:
            child = Child(
                self._forks,
                self._home(),
                one.launch,
                self._begin,
                one.known.bring,
                job_class=one.job_class,
                reuse=one.reuse,
            )
        except OSError as error:
            self._refuse(one.key, How.RETRYABLE, "LAUNCH_FAILED", f"no child could be started: {error}")
            return
        self._attempts[one.key] = RunningAttempt(one.launch, child, seconds=seconds)
        self._children[child.pid] = child
        # Do not read at first: a short attempt ends before, and all its messages are read at once.
        for pipe in child.pipes:
            self._resting[pipe] = (child, time.monotonic() + _FIRST_REST_SECONDS)

    def _home(self) -> Path:
        while self._homes:
            home = self._homes.pop()
            # An administrator may have emptied the workspace by hand.
            if (home / "staging").is_dir():
                return home
        home = self._begin.staging_root / f"child-{self._forks}"
        _make_empty(home)
        (home / "staging").mkdir(mode=0o700)
        return home

    def _idle_for(self, one: _Waiting) -> Child | None:
        if one.reuse == 1:
            return None
        return next((child for child in reversed(self._idle) if child.job_type == one.launch.order.job_type), None)

    # --- messages from children ---

    def _read(self, pipe: int, child: Child) -> None:
        now = time.monotonic()
        # While the daemon does not read, its children wait as well.
        must_rest = len(self._unsent) >= _UNSENT_BYTES_MAX
        is_printed = pipe == child.output
        must_rest |= is_printed and child.attempt is not None and child.attempt.must_wait_to_print
        rest_seconds = _REST_SECONDS
        if not must_rest:
            if child.attempt is None:
                # An idle child has nothing to send: stop it if it does. An empty read means that it has ended.
                if child.bite(pipe):
                    self._retire(child)
            else:
                self._tell(child.attempt.read(pipe, now))
                if child.attempt.is_over:
                    self._end_and_keep(child.attempt, now)
            if pipe not in child.open_pipes:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pipe)
                return
            # More output is waiting in the pipe.
            must_rest = child.was_full
            if is_printed and child.was_full:
                rest_seconds = max(rest_seconds, (time.monotonic() - now) * _FLOOD_REST)
        if must_rest and pipe in self._selector.get_map():
            self._selector.unregister(pipe)
            self._resting[pipe] = (child, now + rest_seconds)

    def _wake_resting_pipes(self, now: float) -> None:
        for pipe, (child, until) in list(self._resting.items()):
            if now >= until:
                del self._resting[pipe]
                if pipe in child.open_pipes:
                    self._selector.register(pipe, selectors.EVENT_READ, child)

    def _send(self, child: Child) -> None:
        """Send what the child's pipe takes. Watch the pipe only while something is left to send."""
        child.send()
        if bool(child.unsent) is child.is_watched:
            return
        child.is_watched = not child.is_watched
        if child.is_watched:
            self._selector.register(child.answers, selectors.EVENT_WRITE, child)
        else:
            self._selector.unregister(child.answers)

    def _unwatch(self, child: Child) -> None:
        for pipe in (*child.pipes, child.answers):
            if self._resting.pop(pipe, None) is None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pipe)

    # --- the end of an attempt ---

    def _end_and_keep(self, attempt: RunningAttempt, now: float) -> None:
        """End an attempt whose child left nothing behind, and keep the child for the next order."""
        # All its output is in the pipe by now, and the next attempt has not started.
        self._tell(attempt.drain(now))
        if not attempt.is_over:
            # It sent a message after its end, and is being stopped.
            return
        self._tell([attempt.gone(self._begin.staging_root)])
        del self._attempts[attempt.key]
        child = attempt.child
        child.attempt, child.idle_since = None, now
        if attempt.is_stopping:
            # The attempt's files were rejected.
            self._retire(child)
            return
        self._idle.append(child)
        self._start_those_that_wait(now)

    def _end_those_that_are_gone(self, now: float) -> None:
        leaving = [attempt for attempt in self._attempts.values() if attempt.has_left]
        if not leaving and not self._is_closing:
            return
        for _ in range(_SWEEPS_AT_ONCE):
            strangers = self._strangers()
            if not strangers:
                break
            for stranger in strangers:
                processes.kill(stranger)
            self._reap()
        else:
            # Try again in the next turn: children of a killed process are reparented only when it is gone. A process
            # that cannot be killed (another user's) is checked at growing intervals.
            self._sweep_seconds = min(self._sweep_seconds * 1.5, _SWEEP_SECONDS_MAX)
            return
        for attempt in leaving:
            self._end(attempt, now)
        self._sweep_seconds = _SWEEP_SECONDS

    def _strangers(self) -> set[int]:
        """Return children that this process did not fork and that belong to no running attempt: leftovers of ended
        attempts."""
        ours = {processes.child_mark(child.number) for child in self._children.values()}
        others = processes.children_of(os.getpid()) - self._children.keys() - self._cleaners
        return {pid for pid in others if (processes.marks_of(pid) or (0, 0))[0] not in ours}

    def _end(self, attempt: RunningAttempt, now: float) -> None:
        self._tell(attempt.drain(now))
        del self._attempts[attempt.key]
        if attempt.is_unbegun:
            # The child died between two attempts, so no work is lost: queue the order again.
            launch = attempt.launch
            again = _Waiting(launch, encode_message(launch), self._known[launch.order.job_type], now)
            self._waiting[again.job_class].appendleft(again)
        else:
            self._tell([attempt.gone(self._begin.staging_root)])
        self._forget(attempt.child)

    # --- the end of a child ---

    def _make_room_for(self, one: _Waiting) -> None:
        """Retire an idle child if the class has as many children, idle ones included, as slots."""
        size = self._begin.slots.get(one.job_class, math.inf)
        there = [child for child in self._children.values() if child.job_class == one.job_class]
        idle = [child for child in self._idle if child in there]
        if idle and len(there) >= size:
            self._retire(idle[0])

    def _retire_those_that_idle(self, now: float) -> None:
        while self._idle and (self._is_closing or now >= self._idle[0].idle_since + self._begin.idle_seconds):
            self._retire(self._idle[0])

    def _retire(self, child: Child) -> None:
        if child in self._idle:
            self._idle.remove(child)
        processes.signal_group(child.pid)

    def _watch_for_children(self) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ)

    def _reap(self) -> None:
        """Wait for every child that has ended, including adopted orphans."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._cleaners.discard(pid)
                child = self._children.pop(pid, None)
                if child is None:
                    continue
                if child.attempt is not None:
                    child.attempt.left(status, usage)
                else:
                    if child in self._idle:
                        self._idle.remove(child)
                    self._forget(child)

    def _forget(self, child: Child) -> None:
        self._unwatch(child)
        is_home_reusable = child.has_left_nothing
        child.close()
        if is_home_reusable:
            self._homes.append(child.home)
            return
        cleaner = _discard(child.home)
        if cleaner is not None:
            self._cleaners.add(cleaner)


def _make_empty(directory: Path) -> None:
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        shutil.rmtree(directory)
        directory.mkdir(mode=0o700)


def _discard(directory: Path) -> int | None:
    """Remove a directory. If it is not empty, fork a process for that and return its pid: deleting a million files
    would block all attempts."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(OSError):
            (directory / "staging").rmdir()
        directory.rmdir()
        return None
    parent = os.getpid()
    with contextlib.suppress(OSError):
        pid = os.fork()
        if pid == 0:
            try:
                sandbox.die_with(parent)
                sandbox.close_all_but({0, 1, 2})
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os._exit(0)
        return pid
    return None


def main() -> None:
    # A handler's print becomes a log line at once, whatever characters it contains.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    if len(sys.argv) > 2:
        os.set_inheritable(int(sys.argv[2]), False)
    # The daemon handles these signals and stops the fork server itself.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    _Nursery(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main()
