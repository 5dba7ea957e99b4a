"""The fork server: a preloaded, single-threaded process that forks the children in which attempts run.

It ends when its socket to the daemon closes. As a subreaper it inherits a child's orphans, and kills them before the
attempt counts as ended. The daemon may send orders ahead of free slots; those that wait too long go back to it.
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

from worker_service.base.forks import EXIT_OUT_OF_MEMORY, fork_process
from worker_service.jobs.attempts import Usage
from worker_service.runner import handler_probe, processes, sandbox
from worker_service.runner.attempt import EndReason, ForkedChild, RunningAttempt
from worker_service.runner.handler_probe import LoadedHandler
from worker_service.runner.messages import AttemptOver, Begin, Ended, Hello, How, Key, Launch, Ping, Pong, Reply, Stop
from worker_service.runner.protocol import (
    RELAY_BYTES_MAX,
    Inbox,
    decode_daemon_message,
    encode_frame,
    encode_message,
    receive_begin,
    take_control_socket,
    wrap_frame,
)

_READ_BYTES = 1 << 16
# No child is read while more bytes wait for the daemon.
_UNSENT_BYTES_MAX = 1 << 20
# After a full read, a pipe is not read for this time; an output pipe for the factor times the duration of the read, if
# that is longer.
_PAUSE_SECONDS = 0.002
_FLOOD_PAUSE_FACTOR = 4
# A new child is first read after this time: a short attempt has ended by then, and one read gets all its messages.
_FIRST_READ_SECONDS = 0.005
# While orders wait here, messages to the daemon are gathered for this time.
_GATHER_SECONDS = 0.002
# Time between two searches for the orphans of an attempt, which grows while one cannot be killed.
_SWEEP_SECONDS, _SWEEP_SECONDS_MAX = 0.001, 0.2
# A turn searches several times, to catch a process that forks and ends for ever.
_SWEEPS_AT_ONCE = 20
# The time limit of a job may exceed what a system call can wait for.
_SELECT_SECONDS_MAX = 3600.0


class _QueuedOrder(Struct, frozen=True):
    launch: Launch
    encoded_launch: bytes
    handler: LoadedHandler
    queued_at: float

    @property
    def key(self) -> Key:
        return self.launch.order.key

    @property
    def job_class(self) -> str:
        return self.handler.described.facts.job_class

    @property
    def attempts_most(self) -> int:
        return 1 if self.launch.order.inputs else self.handler.described.reuse


class ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._unsent = bytearray()
        self._selector = selectors.DefaultSelector()
        self._handlers_by_type: dict[str, LoadedHandler] = {}
        self._children_by_pid: dict[int, ForkedChild] = {}
        self._attempts: dict[Key, RunningAttempt] = {}
        self._queues_by_class: defaultdict[str, deque[_QueuedOrder]] = defaultdict(deque)
        self._last_start_by_class: dict[str, float] = {}
        self._idle_children: list[ForkedChild] = []
        # By pipe: its child, and when it is read again.
        self._paused_pipes: dict[int, tuple[ForkedChild, float]] = {}
        # Processes that delete directories.
        self._cleaner_pids: set[int] = set()
        self._forks = 0
        # Kept for other children, because making and removing a directory takes 1 ms of an attempt's 12.
        self._free_homes: list[Path] = []
        # When gathered messages are sent; infinite while none are gathered.
        self._flush_at = math.inf
        self._sweep_seconds = _SWEEP_SECONDS
        self._is_closing = False
        self._begin: Begin

    def serve(self) -> None:
        self._begin, remaining = receive_begin(self._control, self._inbox)
        self._control.setblocking(False)
        self._watch_sigchld()
        sandbox.adopt_orphans()
        self._load_handlers()
        self._selector.register(self._control, selectors.EVENT_READ)
        for body in remaining:
            self._handle_message(body)
        while not (self._is_closing and not self._attempts and not self._children_by_pid and not self._orphans()):
            self._turn()

    # --- one turn ---

    def _turn(self) -> None:
        for key, events in self._selector.select(self._select_timeout()):
            if key.fileobj is self._control:
                if events & selectors.EVENT_READ:
                    self._read_control()
            elif key.data is None:
                # A SIGCHLD has written to the wake-up pipe. `_reap` below collects the exited children.
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, _READ_BYTES)
            elif key.fd == key.data.answers:
                self._send_to_child(key.data)
            else:
                self._read(key.fd, key.data)
        now = time.monotonic()
        self._resume_paused_pipes(now)
        self._reap()
        for attempt in self._attempts.values():
            attempt.enforce_deadlines(now, grace=self._begin.grace_seconds)
            self._add_unsent(attempt.due_messages(now))
        self._end_exited_attempts(now)
        self._start_queued_orders(now)
        self._retire_idle_children(now)
        self._flush()

    def _select_timeout(self) -> float:
        now = time.monotonic()
        if self._is_closing or any(attempt.has_exited for attempt in self._attempts.values()):
            return self._sweep_seconds
        times = [attempt.next_due() for attempt in self._attempts.values()]
        times += [resume_at for _, resume_at in self._paused_pipes.values()]
        times += [self._return_time(queue[0]) for queue in self._queues_by_class.values() if queue]
        times.append(self._flush_at)
        times += [child.idle_since + self._begin.idle_seconds for child in self._idle_children[:1]]
        return min(max(min(times, default=math.inf) - now, 0.0), _SELECT_SECONDS_MAX)

    # --- the daemon ---

    def _read_control(self) -> None:
        try:
            received = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            received = b""
        if received:
            for body in self._inbox.feed(received):
                self._handle_message(body)
            return
        # The daemon is gone, or has asked the fork server to stop.
        self._close("the daemon is gone")

    def _close(self, reason: str) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._selector.unregister(self._control)
        self._queues_by_class.clear()
        for attempt in self._attempts.values():
            attempt.stop(EndReason(How.STOPPED, "STOPPED", reason), grace=0.0, now=time.monotonic())

    def _handle_message(self, body: bytes) -> None:
        message = decode_daemon_message(body)
        if isinstance(message, Launch):
            self._launch(message, body)
        elif isinstance(message, Ping):
            self._unsent += encode_frame(Pong())
        elif isinstance(message, Reply):
            attempt = self._attempts.get(message.key)
            if attempt is not None:
                attempt.answer(message)
                self._send_to_child(attempt.child)
        elif isinstance(message, Stop):
            self._stop(message)

    def _stop(self, stop: Stop) -> None:
        attempt = self._attempts.get(stop.key)
        if attempt is not None:
            grace = 0.0 if stop.now else self._begin.grace_seconds
            attempt.stop(EndReason(How.STOPPED, "STOPPED", "it was asked to stop"), grace=grace, now=time.monotonic())
        for queue in self._queues_by_class.values():
            for queued in [queued for queued in queue if queued.key == stop.key]:
                self._return_order(queued, queue)

    def _add_unsent(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self._unsent += frame

    def _refuse(self, key: Key, how: How, code: str, message: str, *, waited_seconds: float | None = None) -> None:
        ended = encode_message(Ended(*key, how, code=code, message=message))
        self._unsent += encode_frame(AttemptOver(msgspec.Raw(ended), Usage(), waited_seconds))

    def _flush(self) -> None:
        if self._is_closing:
            self._unsent.clear()
            return
        if self._unsent and any(self._queues_by_class.values()) and self._flush_at == math.inf:
            # The daemon has no free slot to fill, so messages may wait.
            self._flush_at = time.monotonic() + _GATHER_SECONDS
        if time.monotonic() < self._flush_at < math.inf:
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent)]
            self._flush_at = math.inf
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._control).events != events:
            self._selector.modify(self._control, events)

    def _load_handlers(self) -> None:
        gc.disable()
        self._handlers_by_type = handler_probe.load_handlers(self._begin, self._control.fileno())
        sandbox.prepare()
        # Remove secrets from the environment once here, so that no child inherits them.
        sandbox.set_environment(sandbox.basic_environment())
        # Collect once before forking, so that a collection in a child does not copy shared pages.
        gc.collect()
        gc.freeze()
        gc.enable()
        self._control.setblocking(True)
        with contextlib.suppress(ConnectionError):
            # If the daemon is gone already, the first turn notices it.
            described = [handler.described for handler in self._handlers_by_type.values()]
            self._control.sendall(encode_frame(Hello(described)))
        self._control.setblocking(False)

    # --- children ---

    def _launch(self, launch: Launch, body: bytes) -> None:
        order = launch.order
        handler = self._handlers_by_type.get(order.job_type)
        if self._is_closing or order.key in self._attempts:
            return
        if handler is None:
            message = f"no handler for {order.job_type} is installed here"
            self._refuse(order.key, How.PERMANENT, "UNKNOWN_TYPE", message)
        elif handler.loader is None:
            message = handler.described.set_aside or "it cannot be used"
            self._refuse(order.key, How.RETRYABLE, "HANDLER_SET_ASIDE", message)
        else:
            queued = _QueuedOrder(launch, body, handler, time.monotonic())
            # The daemon orders ahead of a free slot only for types with reuse.
            if handler.described.reuse > 1 and not self._has_free_slot(queued.job_class):
                self._queues_by_class[queued.job_class].append(queued)
            else:
                self._start(queued)

    def _has_free_slot(self, job_class: str) -> bool:
        running = sum(attempt.child.job_class == job_class for attempt in self._attempts.values())
        return running < self._begin.slots.get(job_class, math.inf)

    def _start_queued_orders(self, now: float) -> None:
        for job_class, queue in self._queues_by_class.items():
            while queue and self._has_free_slot(job_class):
                self._last_start_by_class[job_class] = now
                self._start(queue.popleft())
            while queue and now >= self._return_time(queue[0]):
                self._return_order(queue[0], queue)

    def _return_time(self, queued: _QueuedOrder) -> float:
        # Not while the class goes on starting orders.
        return max(queued.queued_at, self._last_start_by_class.get(queued.job_class, 0.0)) + self._begin.wait_seconds

    def _return_order(self, queued: _QueuedOrder, queue: deque[_QueuedOrder]) -> None:
        queue.remove(queued)
        message = "it was not begun: another attempt was before it"
        self._refuse(queued.key, How.STOPPED, "NOT_BEGUN", message, waited_seconds=self._begin.wait_seconds)

    def _start(self, queued: _QueuedOrder) -> None:
        seconds = queued.launch.order.timeout_seconds or queued.handler.described.facts.timeout_seconds
        child = self._find_idle_child(queued)
        if child is not None:
            self._idle_children.remove(child)
            self._attempts[queued.key] = attempt = RunningAttempt(queued.launch, child, seconds=seconds)
            self._add_unsent([attempt.started_message()])
            child.unsent += wrap_frame(queued.encoded_launch)
            self._send_to_child(child)
        else:
            self._start_in_new_child(queued, seconds)

    def _start_in_new_child(self, queued: _QueuedOrder, seconds: int) -> None:
        self._retire_surplus_child(queued)
        self._forks += 1
        home = self._take_home()
        try:
            child = ForkedChild(self._forks, home, queued.launch, self._begin, queued.handler, queued.attempts_most)
        except OSError as error:
            self._refuse(queued.key, How.RETRYABLE, "LAUNCH_FAILED", f"no child could be started: {error}")
            return
        self._attempts[queued.key] = RunningAttempt(queued.launch, child, seconds=seconds)
        self._children_by_pid[child.pid] = child
        for pipe in child.pipes:
            self._paused_pipes[pipe] = (child, time.monotonic() + _FIRST_READ_SECONDS)

    def _take_home(self) -> Path:
        while self._free_homes:
            home = self._free_homes.pop()
            # An administrator may have emptied the workspace by hand.
            if (home / "staging").is_dir():
                return home
        self._begin.staging_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = self._begin.staging_root / f"child-{self._forks}"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        (home / "staging").mkdir(mode=0o700)
        return home

    def _find_idle_child(self, queued: _QueuedOrder) -> ForkedChild | None:
        if queued.attempts_most == 1:
            return None
        return next(
            (child for child in reversed(self._idle_children) if child.job_type == queued.launch.order.job_type), None
        )

    # --- messages from children ---

    def _read(self, pipe: int, child: ForkedChild) -> None:
        now = time.monotonic()
        is_output = pipe == child.output
        has_log_backlog = is_output and child.attempt is not None and child.attempt.has_log_backlog
        # While the daemon does not read, the children wait, too.
        if has_log_backlog or len(self._unsent) >= _UNSENT_BYTES_MAX:
            self._pause_pipe(pipe, child, now + _PAUSE_SECONDS)
            return
        if child.attempt is None:
            # An idle child has nothing to send: stop it if it does. An empty read means that it has ended.
            if child.read_piece(pipe):
                self._retire(child)
        else:
            self._add_unsent(child.attempt.read(pipe, now))
            if child.attempt.has_ended_reusably:
                self._end_and_keep_child(child.attempt, now)
        if pipe not in child.open_pipes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
        elif child.may_have_more:
            flood_seconds = (time.monotonic() - now) * _FLOOD_PAUSE_FACTOR if is_output else 0.0
            self._pause_pipe(pipe, child, now + max(_PAUSE_SECONDS, flood_seconds))

    def _pause_pipe(self, pipe: int, child: ForkedChild, resume_at: float) -> None:
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)
            self._paused_pipes[pipe] = (child, resume_at)

    def _resume_paused_pipes(self, now: float) -> None:
        for pipe, (child, resume_at) in list(self._paused_pipes.items()):
            if now >= resume_at:
                del self._paused_pipes[pipe]
                if pipe in child.open_pipes:
                    self._selector.register(pipe, selectors.EVENT_READ, child)

    def _send_to_child(self, child: ForkedChild) -> None:
        child.send_unsent()
        if bool(child.unsent) is child.is_waiting_to_write:
            return
        child.is_waiting_to_write = not child.is_waiting_to_write
        if child.is_waiting_to_write:
            self._selector.register(child.answers, selectors.EVENT_WRITE, child)
        else:
            self._selector.unregister(child.answers)

    def _unwatch(self, child: ForkedChild) -> None:
        for pipe in (*child.pipes, child.answers):
            if self._paused_pipes.pop(pipe, None) is None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(pipe)

    # --- the end of an attempt ---

    def _end_and_keep_child(self, attempt: RunningAttempt, now: float) -> None:
        # All output of this attempt is in the pipe by now, and the child has not begun another.
        self._add_unsent(attempt.drain(now))
        if not attempt.has_ended_reusably:
            # The child sent a message after the end of the attempt, and is being stopped.
            return
        self._add_unsent([attempt.end_message(self._begin.staging_root)])
        del self._attempts[attempt.key]
        child = attempt.child
        child.attempt, child.idle_since = None, now
        if attempt.is_stopping:
            # The attempt's files were rejected.
            self._retire(child)
            return
        self._idle_children.append(child)
        self._start_queued_orders(now)

    def _end_exited_attempts(self, now: float) -> None:
        exited = [attempt for attempt in self._attempts.values() if attempt.has_exited]
        if not exited and not self._is_closing:
            return
        for _ in range(_SWEEPS_AT_ONCE):
            orphans = self._orphans()
            if not orphans:
                break
            for orphan in orphans:
                processes.kill(orphan)
            self._reap()
        else:
            # Try again in the next turn: the fork server inherits the children of a killed process only when that is
            # gone. A process that cannot be killed (another user's) is checked at growing intervals.
            self._sweep_seconds = min(self._sweep_seconds * 1.5, _SWEEP_SECONDS_MAX)
            return
        for attempt in exited:
            self._end(attempt, now)
        self._sweep_seconds = _SWEEP_SECONDS

    def _orphans(self) -> set[int]:
        marks_in_use = {processes.child_mark(child.number) for child in self._children_by_pid.values()}
        inherited = processes.children_of(os.getpid()) - self._children_by_pid.keys() - self._cleaner_pids
        return {pid for pid in inherited if processes.marks_of(pid).child not in marks_in_use}

    def _end(self, attempt: RunningAttempt, now: float) -> None:
        self._add_unsent(attempt.drain(now))
        del self._attempts[attempt.key]
        self._add_unsent([attempt.end_message(self._begin.staging_root)])
        self._forget(attempt.child)

    # --- the end of a child ---

    def _retire_surplus_child(self, queued: _QueuedOrder) -> None:
        size = self._begin.slots.get(queued.job_class, math.inf)
        children = [child for child in self._children_by_pid.values() if child.job_class == queued.job_class]
        idle_children = [child for child in self._idle_children if child in children]
        if idle_children and len(children) >= size:
            self._retire(idle_children[0])

    def _retire_idle_children(self, now: float) -> None:
        while self._idle_children and (
            self._is_closing or now >= self._idle_children[0].idle_since + self._begin.idle_seconds
        ):
            self._retire(self._idle_children[0])

    def _retire(self, child: ForkedChild) -> None:
        if child in self._idle_children:
            self._idle_children.remove(child)
        processes.signal_group(child.pid)

    def _watch_sigchld(self) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._cleaner_pids.discard(pid)
                child = self._children_by_pid.pop(pid, None)
                if child is None:
                    continue
                if child.attempt is not None:
                    child.attempt.status, child.attempt.usage = status, usage
                else:
                    if child in self._idle_children:
                        self._idle_children.remove(child)
                    self._forget(child)

    def _forget(self, child: ForkedChild) -> None:
        self._unwatch(child)
        is_home_reusable = child.is_home_reusable
        child.close()
        if is_home_reusable:
            self._free_homes.append(child.home)
        else:
            self._delete_home(child.home)

    def _delete_home(self, home: Path) -> None:
        # Delete the directory, in another process if it has files: a million of them would block all attempts.
        with contextlib.suppress(OSError):
            with contextlib.suppress(OSError):
                (home / "staging").rmdir()
            home.rmdir()
            return
        with contextlib.suppress(OSError):
            self._cleaner_pids.add(fork_process(lambda: shutil.rmtree(home, ignore_errors=True), keeps=()))


def main() -> None:
    # In children, text that a handler prints becomes a log line at once, whatever characters it contains.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    try:
        ForkServer(take_control_socket()).serve()
    except MemoryError:
        os._exit(EXIT_OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
