"""The daemon's side of the child processes: start one fork server, end it when it dies, and start it again.

Every launched order gets exactly one `Ended`, even if the child or the fork server crashes or sends garbage. When its
`Ended` arrives, the staging directory of an attempt is empty or removed, unless the `Ended` names files: then the code
that publishes them removes it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from worker_service.jobs.documents import Answer, Question
from worker_service.runner import processes, sandbox
from worker_service.runner.protocol import (
    FRAME_BYTES_MAX,
    RELAY_BYTES_MAX,
    Asked,
    AttemptEvent,
    Begin,
    ChildError,
    DaemonMessage,
    Described,
    Ended,
    Garbled,
    Hello,
    How,
    Inbox,
    Key,
    Launch,
    NodesSeen,
    Order,
    Ping,
    Pong,
    Reply,
    Stop,
    attempt_name,
    decode_pool_message,
    decode_question,
    empty_answer,
    encode_frame,
)

PING_SECONDS = 10.0
UNANSWERED_PINGS_MAX = 6
_START_SECONDS = 40.0
"""Time limit of the start, without the time for handler trials."""
_CLOSE_SECONDS = 15.0
_LEAVING_SECONDS = 2.0
_BITE_BYTES = 1 << 16
_BITES = 64
"""Reads in one call; the rest waits for the next call."""


class _EndedEarly(ChildError):
    """The fork server ended before it had described its handlers."""


@dataclass(slots=True)
class _Line:
    """One fork server process and the socket to it."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    inbox: Inbox = field(default_factory=lambda: Inbox(RELAY_BYTES_MAX))
    unsent: bytearray = field(default_factory=bytearray)
    keys: set[Key] = field(default_factory=set)
    """Attempts that have not ended."""
    hello: Hello | None = None
    is_broken: bool = False
    is_waiting_to_send: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    unanswered: int = 0

    def must_ask(self, ping_seconds: float) -> bool:
        """Return whether it is time for another ping. Mark the connection broken after
        `UNANSWERED_PINGS_MAX` unanswered pings. A machine that slept counts as one, because pings are only counted
        while the daemon runs."""
        now = time.monotonic()
        if self.is_broken or self.hello is None or now < self.asked_at + ping_seconds:
            return False
        self.asked_at = now
        self.unanswered += 1
        self.is_broken = self.unanswered > UNANSWERED_PINGS_MAX
        return not self.is_broken

    def hang_up(self) -> None:
        """Close the sending side. The fork server then stops its children and ends."""
        if self.socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)


class LocalPool:
    module = "worker_service.runner.fork_server"
    """The program at the other end of the socket. Any program that speaks the protocol can replace it."""
    ping_seconds: float = PING_SECONDS
    """Interval between pings."""

    def __init__(self, begin: Begin, *, extra_path: Sequence[Path] = ()) -> None:
        """Create the pool without starting a process. `extra_path` is for tests, where nothing is installed."""
        if begin.sandbox not in ("strict", "best-effort", "off"):
            raise ValueError(f"sandbox is strict, best-effort or off, not {begin.sandbox!r}")
        self._staging_root = begin.staging_root.absolute()
        self._extra_path = extra_path
        credentials = os.environ.get("CREDENTIALS_DIRECTORY")
        self._begin = msgspec.structs.replace(
            begin,
            staging_root=self._staging_root,
            keep_root=begin.keep_root.absolute(),
            pool_id=processes.pool_id_of(self._staging_root),
            credentials=Path(credentials) if credentials else None,
        )
        # The descriptor stays the same when the fork server is restarted.
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._line: _Line | None = None
        self._environment: Mapping[str, Sequence[str]] = {}
        self._waiting: list[AttemptEvent] = []

    def start(self, meanwhile: Callable[[], float] | None = None) -> Sequence[Described]:
        """Start the fork server and wait, within bounds, until it has described its handlers.

        While it imports them, `meanwhile` is called; it returns the number of seconds until its next call.
        """
        if self._line is not None:
            raise ChildError("the nursery is there already")
        hello = self._greeted(self._begin, meanwhile or (lambda: math.inf))
        self._environment = {each.described.facts.job_type: each.environment for each in hello.handlers}
        return [each.described for each in hello.handlers]

    def fileno(self) -> int:
        """Return a descriptor that is readable when something has happened."""
        return self._epoll.fileno()

    @property
    def next_check_at(self) -> float | None:
        """When to call `take_events` although nothing is readable, by the monotonic clock; None for never."""
        return None

    @property
    def pid(self) -> int | None:
        return self._line.process.pid if self._line is not None else None

    @property
    def threads(self) -> int | None:
        """Threads of the fork server after loading all handlers; any number but 1 is a fault."""
        return self._line.hello.threads if self._line is not None and self._line.hello is not None else None

    @property
    def is_alive(self) -> bool:
        return self._line is not None and not self._line.is_broken

    def launch(self, order: Order) -> None:
        """Ask for a child process. `take_events` reports the outcome, including a refusal."""
        wanted = self._environment.get(order.job_type, ())
        self.pass_launch(Launch(order, {name: os.environ[name] for name in wanted if name in os.environ}))

    def pass_launch(self, launch: Launch) -> None:
        """Send a launch whose environment the caller has chosen."""
        line, order = self._line, launch.order
        if line is not None and order.key in line.keys:
            raise ValueError(f"attempt {attempt_name(order.key)} has been launched already")
        if line is None or line.is_broken:
            # The attempt never began.
            self._notice([Ended(*order.key, How.STOPPED, code="NURSERY_DIED", message="the nursery is not there")])
            return
        wrap_frame = encode_frame(launch)
        if len(wrap_frame) > RELAY_BYTES_MAX:
            message = f"its row takes {len(wrap_frame)} bytes, and {RELAY_BYTES_MAX} can be passed to a child"
            self._notice([Ended(*order.key, How.PERMANENT, code="TOO_LARGE", message=message)])
            return
        line.keys.add(order.key)
        line.unsent += wrap_frame
        self._flush(line)

    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None:
        """Stop an attempt: SIGTERM to its process group, then SIGKILL after the grace period (at once if `now`).

        Its `Ended` comes when all of it is gone. Does nothing for an attempt that has ended already.
        """
        if self._line is not None and (job_id, fence) in self._line.keys:
            self._send(self._line, Stop(job_id, fence, now))

    def answer(self, asked: Asked, answer: Answer | None, *, code: str = "", message: str = "") -> None:
        """Send an answer to the child that waits for it, if it is still running. Without an answer, `code` and
        `message` say why."""
        body = b"null" if answer is None else msgspec.json.encode(answer)
        if len(body) > FRAME_BYTES_MAX:
            message = f"the answer takes {len(body)} bytes, and {FRAME_BYTES_MAX} fit: ask for less at once"
            body, code = b"null", "TOO_LARGE"
        if self._line is not None and asked.key in self._line.keys:
            self._send(self._line, Reply(*asked.key, asked.number, msgspec.Raw(body), code, message))

    def take_events(self) -> list[AttemptEvent]:
        """Return what has happened since the last call. Blocks for 20 ms at most, while the kernel ends a process."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        events, self._waiting = self._waiting, []
        line = self._line
        if line is not None:
            events += self._listen(line)
            if line.must_ask(self.ping_seconds):
                self._send(line, Ping())
            if line.is_broken:
                events += self._bury(line, seconds=0.02)
        return events

    def restart(self) -> Sequence[Described]:
        """Start a new fork server after the old one died. The next call of `take_events` returns the endings that
        it has not returned yet."""
        line = self._line
        if line is not None:
            if not line.is_broken:
                raise ChildError("the nursery is alive: close it first")
            self._notice(self._bury(line, seconds=_CLOSE_SECONDS))
            if line.keys:
                raise ChildError(f"processes of {_names(line.keys)} cannot be ended")
        return self.start()

    def close(self) -> None:
        """Stop everything, and return when it is gone. A second call does nothing."""
        if self._epoll.closed:
            return
        line, deadline = self._line, time.monotonic() + _CLOSE_SECONDS
        if line is not None:
            line.hang_up()
            with contextlib.suppress(subprocess.TimeoutExpired):
                line.process.wait(_CLOSE_SECONDS)
            line.is_broken = True
            self._bury(line, seconds=max(deadline - time.monotonic(), 1.0))
        self._epoll.close()
        os.close(self._bell)
        if line is not None and line.keys:
            raise ChildError(f"processes of {_names(line.keys)} cannot be ended")

    # --- the connection ---

    def _greeted(self, begin: Begin, meanwhile: Callable[[], float]) -> Hello:
        line = self._line = self._open(begin)
        try:
            return self._await_hello(line, meanwhile)
        except _EndedEarly:
            self._forget(line)
            # Kill what a handler has started at import.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(line.process.pid, signal.SIGKILL)
            if begin.tries_all or begin.cluster is not None:
                raise
            return self._greeted(msgspec.structs.replace(begin, tries_all=True), meanwhile)
        except ChildError:
            self._forget(line)
            raise

    def _open(self, begin: Begin) -> _Line:
        near, far = socket.socketpair()
        near.setblocking(False)
        lock = self._begin.lock_fd
        passed = [far.fileno(), *([] if lock is None else [lock])]
        path = [*map(str, self._extra_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = self._surroundings()
        if path:
            environment["PYTHONPATH"] = os.pathsep.join(path)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            near.close()
            raise ChildError(f"the nursery could not be started: {error}") from error
        finally:
            far.close()
        line = _Line(process, near)
        self._epoll.register(near, select.EPOLLIN)
        self._send(line, begin)
        return line

    def _surroundings(self) -> dict[str, str]:
        return {
            **sandbox.basic_environment(),
            # Libraries that start a thread for each core would start them in every child.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def _await_hello(self, line: _Line, meanwhile: Callable[[], float]) -> Hello:
        again_at = time.monotonic()
        # Handlers may be tried twice: together, then one by one.
        seconds = _START_SECONDS + 2 * self._begin.import_seconds
        deadline = again_at + seconds
        while line.hello is None:
            if time.monotonic() >= again_at:
                again_at = time.monotonic() + meanwhile()
            now = time.monotonic()
            if now >= deadline:
                raise ChildError(f"the nursery has not described its handlers within {seconds:g} s")
            left = max(0.0, min(deadline, again_at) - now)
            select.select([line.socket], [line.socket] if line.unsent else [], [], left)
            self._waiting += self._listen(line)
            if line.is_broken:
                try:
                    code = line.process.wait(_LEAVING_SECONDS)
                except subprocess.TimeoutExpired as error:
                    raise ChildError("the nursery talks nonsense, or has closed its line and stays") from error
                raise _EndedEarly(f"the nursery ended before it had described its handlers (exit code {code})")
        return line.hello

    def _send(self, line: _Line, message: DaemonMessage) -> None:
        line.unsent += encode_frame(message)
        self._flush(line)

    def _flush(self, line: _Line) -> None:
        if line.is_broken:
            return
        try:
            while line.unsent:
                del line.unsent[: line.socket.send(line.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The process is gone; what it has sent is still to be read.
            line.unsent.clear()
        if bool(line.unsent) is not line.is_waiting_to_send:
            line.is_waiting_to_send = bool(line.unsent)
            self._epoll.modify(line.socket, select.EPOLLIN | (select.EPOLLOUT if line.unsent else 0))

    def _listen(self, line: _Line) -> list[AttemptEvent]:
        if line.is_broken:
            return []
        self._flush(line)
        events: list[AttemptEvent] = []
        try:
            for _ in range(_BITES):
                received = line.socket.recv(_BITE_BYTES)
                if not received:
                    line.is_broken = True
                    break
                for body in line.inbox.feed(received):
                    events += self._hear(line, body)
        except BlockingIOError:
            pass
        except (Garbled, OSError):
            # A fork server that sends garbage cannot be asked to stop anything.
            line.is_broken = True
        return events

    def _hear(self, line: _Line, body: bytes) -> Iterator[AttemptEvent]:
        message = decode_pool_message(body, self._staging_root)
        if isinstance(message, Hello):
            line.hello = message
        elif isinstance(message, Pong):
            line.unanswered = 0
        elif isinstance(message, NodesSeen):
            self._see(message)
        elif message.key in line.keys:
            # An attempt sends nothing after its end.
            if isinstance(message, Ended):
                line.keys.discard(message.key)
            yield message

    def _see(self, seen: NodesSeen) -> None:
        raise Garbled("a nursery has no nodes")

    def _bury(self, line: _Line, *, seconds: float) -> list[AttemptEvent]:
        """Kill what is left of a dead fork server, and return the endings of its attempts.

        If processes are left after `seconds`, return nothing and let the next call try again.
        """
        self._unregister(line)
        deadline = time.monotonic() + seconds
        if line.process.poll() is None:
            line.process.kill()
        if not _until(lambda: line.process.poll() is not None, deadline) or not _until(
            lambda: not processes.sweep(self._begin.pool_id), deadline
        ):
            os.eventfd_write(self._bell, 1)
            return []
        # Files to be published were reported and moved out of these directories; the rest is discarded.
        keys = sorted(line.keys)
        for folder in (*self._staging_root.glob("child-*"), *(self._staging_root / attempt_name(key) for key in keys)):
            shutil.rmtree(folder, ignore_errors=True)
        line.keys.clear()
        self._forget(line)
        message = "the nursery died, and the attempt with it"
        return [Ended(*key, How.CRASHED, code="NURSERY_DIED", message=message) for key in keys]

    def _forget(self, line: _Line) -> None:
        self._unregister(line)
        if line.process.poll() is None:
            line.process.kill()
            line.process.wait()
        self._line = None

    def _unregister(self, line: _Line) -> None:
        if line.socket.fileno() >= 0:
            self._epoll.unregister(line.socket)
            line.socket.close()

    def _notice(self, events: Sequence[AttemptEvent]) -> None:
        self._waiting += events
        if events:
            os.eventfd_write(self._bell, 1)


def _until(is_so: Callable[[], bool], deadline: float) -> bool:
    """Check at least once. A process that got SIGKILL is gone within a millisecond or two."""
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _names(keys: set[Key]) -> str:
    return ", ".join(attempt_name(key) for key in sorted(keys))


# --- without a daemon: `run-one`, `handlers`, `doctor`, and the tests of handlers ---------------------------


@contextmanager
def open_pool(begin: Begin, *, extra_path: Sequence[Path] = ()) -> Iterator[tuple[LocalPool, Sequence[Described]]]:
    """Start a fork server, yield the pool and its handlers, and stop everything at the end of the block."""
    nursery = LocalPool(begin, extra_path=extra_path)
    try:
        yield nursery, nursery.start()
    finally:
        nursery.close()


def describe(
    commands: Mapping[str, Mapping[str, object]], sandbox: str, handlers_dir: Path | None
) -> Sequence[Described]:
    """Start a fork server and return the descriptions of the installed handlers."""
    with tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True) as directory:
        # It runs no jobs: no handler has the empty name, so none is preloaded.
        begin = Begin(
            Path(directory) / "staging",
            Path(directory) / "keep",
            commands=commands,
            sandbox=sandbox,
            types=[""],
            handlers_dir=handlers_dir,
        )
        with open_pool(begin) as (_, described):
            return described


def attempt_events(
    nursery: LocalPool,
    *,
    seconds: float | None = None,
    answer: Callable[[Question[Answer]], Answer] = empty_answer,
) -> Iterator[AttemptEvent]:
    """Yield what the one launched attempt reports; its `Ended` is the last.

    `seconds` bounds the wait; None relies on the attempt's own time limit. Without `answer`, questions are answered as
    from an empty database.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"the handler was still running after {seconds:g} s: pass timeout_seconds")
        select.select([nursery], [], [], left)
        for one in nursery.take_events():
            yield one
            if isinstance(one, Asked):
                nursery.answer(one, answer(decode_question(one.kind, one.body)))
            if isinstance(one, Ended):
                return
