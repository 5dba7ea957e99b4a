"""The daemon's side of the fork server: start it, send orders and stops to it, receive its messages, survive its death.

Every launched order gets exactly one `Ended`, if the fork server dies after the processes of its attempts are killed.
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from worker_service.base.errors import PagemillError
from worker_service.base.forks import EXIT_OUT_OF_MEMORY
from worker_service.jobs.documents import QuestionAnswer
from worker_service.runner import processes, sandbox
from worker_service.runner.messages import (
    Asked,
    AttemptEvent,
    Begin,
    DaemonMessage,
    Ended,
    HandlerDescription,
    Hello,
    How,
    Key,
    Launch,
    NodesSeen,
    Order,
    Ping,
    Pong,
    Reply,
    Stop,
    attempt_name,
)
from worker_service.runner.protocol import (
    FRAME_BYTES_MAX,
    RELAY_BYTES_MAX,
    Garbled,
    Inbox,
    decode_pool_message,
    encode_frame,
)

PING_SECONDS = 10.0
# A fork server that leaves more pings unanswered is taken for dead.
UNANSWERED_PINGS_MAX = 6
# Until a fork server has described its handlers, besides the time for imports.
_START_SECONDS = 40.0
# Until a fork server has stopped its children and ended, and until one that has closed its socket has exited.
_CLOSE_SECONDS = 15.0
_EXIT_SECONDS = 2.0
# Time in a turn of the loop to kill the processes of a dead fork server. The next turn goes on.
_SWEEP_SECONDS = 0.02
_READ_BYTES = 1 << 16
# Per turn of the loop, so that a flood of messages does not hold it up.
_READS_MAX = 64


class ChildError(PagemillError, code="nursery_failed", exit_code=69):
    """The fork server could not be started, or died. All its processes are gone."""


class _EndedBeforeHello(ChildError):
    pass


@dataclass(slots=True)
class ForkServerConnection:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    inbox: Inbox = field(default_factory=lambda: Inbox(RELAY_BYTES_MAX))
    unsent: bytearray = field(default_factory=bytearray)
    running_keys: set[Key] = field(default_factory=set)
    hello: Hello | None = None
    is_broken: bool = False
    is_waiting_to_send: bool = False
    pinged_at: float = field(default_factory=time.monotonic)
    unanswered_pings: int = 0


class LocalPool:
    module = "worker_service.runner.fork_server"
    ping_seconds: float = PING_SECONDS

    def __init__(self, begin: Begin, *, extra_path: Sequence[Path] = ()) -> None:
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
        # The descriptor for the loop, which stays the same when the fork server is restarted.
        self._epoll = select.epoll()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        self._connection: ForkServerConnection | None = None
        # Names of the environment variables that a handler of the job type gets.
        self._variables_by_type: Mapping[str, Sequence[str]] = {}
        # For the next `take_events`, besides those that it receives.
        self._own_events: list[AttemptEvent] = []

    def start(self, meanwhile: Callable[[], float] | None = None) -> Sequence[HandlerDescription]:
        """Call `meanwhile` until the handlers are loaded. It returns the seconds until its next call."""
        if self._connection is not None:
            raise ChildError("the fork server is running already")
        hello = self._start_process(self._begin, meanwhile or (lambda: math.inf))
        self._variables_by_type = {
            handler.facts.job_type: handler.declared.environment for handler in hello.handlers if handler.declared
        }
        return hello.handlers

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def next_check_at(self) -> float | None:
        return None

    @property
    def pid(self) -> int | None:
        return self._connection.process.pid if self._connection is not None else None

    @property
    def is_alive(self) -> bool:
        return self._connection is not None and not self._connection.is_broken

    def launch(self, order: Order) -> None:
        names = self._variables_by_type.get(order.job_type, ())
        self.launch_with_environment(Launch(order, {name: os.environ[name] for name in names if name in os.environ}))

    def launch_with_environment(self, launch: Launch) -> None:
        connection, order = self._connection, launch.order
        if connection is not None and order.key in connection.running_keys:
            raise ValueError(f"attempt {attempt_name(order.key)} has been launched already")
        if connection is None or connection.is_broken:
            # The attempt never began.
            self._add_events(
                [Ended(*order.key, How.STOPPED, code="FORK_SERVER_DIED", message="the fork server is not running")]
            )
            return
        encoded = encode_frame(launch)
        if len(encoded) > RELAY_BYTES_MAX:
            message = f"its row takes {len(encoded)} bytes, and {RELAY_BYTES_MAX} can be passed to a child"
            self._add_events([Ended(*order.key, How.PERMANENT, code="TOO_LARGE", message=message)])
            return
        connection.running_keys.add(order.key)
        connection.unsent += encoded
        self._flush(connection)

    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None:
        if self._connection is not None and (job_id, fence) in self._connection.running_keys:
            self._send(self._connection, Stop(job_id, fence, now))

    def answer(self, asked: Asked, answer: QuestionAnswer | None, *, code: str = "", message: str = "") -> None:
        # A `code` and `message` refuse the question.
        body = b"null" if answer is None else msgspec.json.encode(answer)
        if len(body) > FRAME_BYTES_MAX:
            message = f"the answer takes {len(body)} bytes, and {FRAME_BYTES_MAX} fit: ask for less at once"
            body, code = b"null", "TOO_LARGE"
        if self._connection is not None and asked.key in self._connection.running_keys:
            self._send(self._connection, Reply(*asked.key, asked.number, msgspec.Raw(body), code, message))

    def take_events(self) -> list[AttemptEvent]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup_fd)
        events, self._own_events = self._own_events, []
        connection = self._connection
        if connection is not None:
            events += self._receive(connection)
            self._ping_if_due(connection)
            if connection.is_broken:
                events += self._clean_up_after(connection, seconds=_SWEEP_SECONDS)
        return events

    def restart(self) -> Sequence[HandlerDescription]:
        connection = self._connection
        if connection is not None:
            if not connection.is_broken:
                raise ChildError("the fork server is running: close it first")
            self._add_events(self._clean_up_after(connection, seconds=_CLOSE_SECONDS))
            if connection.running_keys:
                raise ChildError(f"processes of {_attempt_names(connection.running_keys)} cannot be ended")
        return self.start()

    def close(self) -> None:
        if self._epoll.closed:
            return
        connection, deadline = self._connection, time.monotonic() + _CLOSE_SECONDS
        if connection is not None:
            with contextlib.suppress(OSError):
                # The fork server then reads the end of its input, stops its children and ends.
                connection.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                connection.process.wait(_CLOSE_SECONDS)
            connection.is_broken = True
            self._clean_up_after(connection, seconds=max(deadline - time.monotonic(), 1.0))
        self._epoll.close()
        os.close(self._wakeup_fd)
        if connection is not None and connection.running_keys:
            raise ChildError(f"processes of {_attempt_names(connection.running_keys)} cannot be ended")

    # --- the connection ---

    def _start_process(self, begin: Begin, meanwhile: Callable[[], float]) -> Hello:
        connection = self._connection = self._open_connection(begin)
        try:
            return self._await_hello(connection, meanwhile)
        except _EndedBeforeHello:
            self._forget(connection)
            # Kill what a handler has started at import.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(connection.process.pid, signal.SIGKILL)
            if begin.tries_all or begin.cluster is not None:
                raise
            # A shipped handler may have ended the process when it was imported.
            return self._start_process(msgspec.structs.replace(begin, tries_all=True), meanwhile)
        except ChildError:
            self._forget(connection)
            raise

    def _open_connection(self, begin: Begin) -> ForkServerConnection:
        own_end, far_end = socket.socketpair()
        own_end.setblocking(False)
        lock = self._begin.lock_fd
        inherited_fds = [far_end.fileno(), *([] if lock is None else [lock])]
        python_path = [*map(str, self._extra_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = self._process_environment()
        if python_path:
            environment["PYTHONPATH"] = os.pathsep.join(python_path)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, *map(str, inherited_fds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=inherited_fds,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            own_end.close()
            raise ChildError(f"the fork server could not be started: {error}") from error
        finally:
            far_end.close()
        connection = ForkServerConnection(process, own_end)
        self._epoll.register(own_end, select.EPOLLIN)
        self._send(connection, begin)
        return connection

    def _process_environment(self) -> dict[str, str]:
        return {
            **sandbox.basic_environment(),
            # Otherwise these libraries start a thread for each core, in every child.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def _await_hello(self, connection: ForkServerConnection, meanwhile: Callable[[], float]) -> Hello:
        next_call_at = time.monotonic()
        # Handlers may be imported twice: together, then one by one.
        seconds = _START_SECONDS + 2 * self._begin.import_seconds
        deadline = next_call_at + seconds
        while connection.hello is None:
            if time.monotonic() >= next_call_at:
                next_call_at = time.monotonic() + meanwhile()
            now = time.monotonic()
            if now >= deadline:
                raise ChildError(f"the fork server has not described its handlers within {seconds:g} s")
            seconds_left = max(0.0, min(deadline, next_call_at) - now)
            select.select([connection.socket], [connection.socket] if connection.unsent else [], [], seconds_left)
            self._own_events += self._receive(connection)
            if connection.is_broken:
                try:
                    code = connection.process.wait(_EXIT_SECONDS)
                except subprocess.TimeoutExpired as error:
                    raise ChildError(
                        "the fork server sends garbage, or has closed its socket without ending"
                    ) from error
                why = "out of memory" if code == EXIT_OUT_OF_MEMORY else f"exit code {code}"
                raise _EndedBeforeHello(f"the fork server ended before it had described its handlers ({why})")
        return connection.hello

    def _ping_if_due(self, connection: ForkServerConnection) -> None:
        now = time.monotonic()
        if connection.is_broken or connection.hello is None or now < connection.pinged_at + self.ping_seconds:
            return
        connection.pinged_at = now
        connection.unanswered_pings += 1
        connection.is_broken = connection.unanswered_pings > UNANSWERED_PINGS_MAX
        self._send(connection, Ping())

    def _send(self, connection: ForkServerConnection, message: DaemonMessage) -> None:
        connection.unsent += encode_frame(message)
        self._flush(connection)

    def _flush(self, connection: ForkServerConnection) -> None:
        if connection.is_broken:
            return
        try:
            while connection.unsent:
                del connection.unsent[: connection.socket.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The process is gone, but messages that it sent before may still be in the socket.
            connection.unsent.clear()
        if bool(connection.unsent) is not connection.is_waiting_to_send:
            connection.is_waiting_to_send = bool(connection.unsent)
            self._epoll.modify(connection.socket, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0))

    def _receive(self, connection: ForkServerConnection) -> list[AttemptEvent]:
        if connection.is_broken:
            return []
        self._flush(connection)
        events: list[AttemptEvent] = []
        try:
            for _ in range(_READS_MAX):
                received = connection.socket.recv(_READ_BYTES)
                if not received:
                    connection.is_broken = True
                    break
                for body in connection.inbox.feed(received):
                    events += self._handle_message(connection, body)
        except BlockingIOError:
            pass
        except (Garbled, OSError):
            # A fork server that sends garbage cannot be asked to stop anything.
            connection.is_broken = True
        return events

    def _handle_message(self, connection: ForkServerConnection, body: bytes) -> Iterator[AttemptEvent]:
        message = decode_pool_message(body, self._staging_root)
        if isinstance(message, Hello):
            connection.hello = message
        elif isinstance(message, Pong):
            connection.unanswered_pings = 0
        elif isinstance(message, NodesSeen):
            self._store_nodes(message)
        elif message.key in connection.running_keys:
            # An attempt sends nothing after its end.
            if isinstance(message, Ended):
                connection.running_keys.discard(message.key)
            yield message

    def _store_nodes(self, nodes_seen: NodesSeen) -> None:
        raise Garbled("a fork server has no nodes")

    def _clean_up_after(self, connection: ForkServerConnection, *, seconds: float) -> list[Ended]:
        """Kill its processes. Return an `Ended` for each of its attempts, or nothing while a process is left."""
        self._unregister(connection)
        deadline = time.monotonic() + seconds
        connection.process.kill()
        try:
            connection.process.wait(seconds)
        except subprocess.TimeoutExpired:
            is_gone = False
        else:
            is_gone = processes.sweep_until_gone(self._begin.pool_id, seconds=deadline - time.monotonic())
        if not is_gone:
            # The next turn of the loop tries again.
            os.eventfd_write(self._wakeup_fd, 1)
            return []
        keys = sorted(connection.running_keys)
        # The files of ended attempts are no longer in the homes of children.
        homes = self._staging_root.glob("child-*")
        for folder in (*homes, *(self._staging_root / attempt_name(key) for key in keys)):
            shutil.rmtree(folder, ignore_errors=True)
        connection.running_keys.clear()
        self._forget(connection)
        message = "the fork server died, and the attempt with it"
        return [Ended(*key, How.CRASHED, code="FORK_SERVER_DIED", message=message) for key in keys]

    def _forget(self, connection: ForkServerConnection) -> None:
        self._unregister(connection)
        connection.process.kill()
        connection.process.wait()
        self._connection = None

    def _unregister(self, connection: ForkServerConnection) -> None:
        if connection.socket.fileno() >= 0:
            self._epoll.unregister(connection.socket)
            connection.socket.close()

    def _add_events(self, events: Sequence[AttemptEvent]) -> None:
        self._own_events += events
        if events:
            os.eventfd_write(self._wakeup_fd, 1)


def _attempt_names(keys: set[Key]) -> str:
    return ", ".join(attempt_name(key) for key in sorted(keys))
