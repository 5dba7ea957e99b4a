"""Nodes over any command that gives two pipes to `pagemill node` on another machine: ssh, srun, kubectl exec -i.

A message is four bytes of length, a number, and the call or its answer. The commands are started by a process of their
own, which was begun before the gateway's jail was shut and starts no others: what a node says cannot make the gateway
start anything else. A command ends when its pipes are closed, or is made to.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NoReturn

from worker_service.children import jail
from worker_service.children.messages import GatewayBegin, text
from worker_service.clock import boot_clock
from worker_service.cluster import LOCAL, Place, place_of
from worker_service.nodes.agent import Agent
from worker_service.nodes.calls import ANSWER_BYTES_MAX
from worker_service.nodes.engine import Lost

HEADER = struct.Struct(">IQ")
_PIPE_BYTES = 1 << 20
_LEAVING_SECONDS = 3.0
_STARTING_SECONDS = 10.0
_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
        "-o", "ConnectTimeout=5", "-o", "ClearAllForwardings=yes", "-o", "LogLevel=VERBOSE")  # fmt: skip
_REACHED, _OF_SSH = "Authenticated to ", ("Authenticated to ", "Transferred: ", "Bytes per second: ")
"""What ssh says of itself, beside what is wrong."""
_BASHRC = "Does ~/.bashrc there print something, or wait?"
_FIRST_WORD_SECONDS = 5.0
"""So long nobody wonders why a node has not said anything yet."""
_CLOSED = "the line is closed"
_COMPLAINT_CHARACTERS, _NONSENSE_CHARACTERS = 300, 80
_COMPLAINT_SECONDS = 0.01
"""No more often is anything heard on the side: a flood costs its author."""
_LAST_WORD_SECONDS = 0.5
_ALONE_SECONDS = 600.0
"""Without a call, which a head makes every two seconds: who is cut off for ever closes no line."""


def engine(begin: GatewayBegin, lock_fd: int | None) -> Pipes:
    return Pipes(begin, lock_fd)


def local_command(root: Path, slots: int) -> list[str]:
    return [sys.executable, "-P", "-m", "worker_service.nodes.pipes", str(root), str(slots)]


class Pipes:
    """The engine."""

    def __init__(self, begin: GatewayBegin, lock_fd: int | None) -> None:
        self._places = {place.name: place for place in map(place_of, begin.places)}
        commands = {name: _command(begin.engine, place) for name, place in self._places.items()}
        self._slots: dict[str, int | None] = {name: place.slots for name, place in self._places.items()}
        if begin.local_slots:
            commands[LOCAL] = local_command(begin.objects.parent / "node", begin.local_slots)
            self._slots[LOCAL] = begin.local_slots
        self._starter = Starter(commands)

    def door(self) -> jail.Door:
        return jail.Door([], [], network=False, starts_programs=False)

    def connect(self) -> None:
        return

    def nodes(self) -> Mapping[str, int | None]:
        return self._slots

    def ask_for(self, attempts: int) -> None:
        return

    def host(self, node: str) -> Line:
        return self._starter.start(node)

    def close(self) -> None:
        self._starter.close()


def _command(engine: str, place: Place) -> list[str]:
    if engine == "ssh":
        return [*_SSH, "--", place.address, "pagemill", "node"]
    return shlex.split(place.address)


# --- who starts the commands --------------------------------------------------------------------------


class Starter:
    """A process apart. It is asked by a name, and hands back the pipes of a command that it knows by that name."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            # Whoever waits for the gateway to be gone does not wait for its commands as well.
            jail.close_all_but({0, 1, 2, far.fileno()})
            _start_for(far, commands)
        far.close()
        near.settimeout(_STARTING_SECONDS)
        self._near = near
        self._guard = threading.Lock()
        self._number = 0

    def start(self, name: str) -> Line:
        with self._guard:
            self._number += 1
            try:
                self._near.send(f"{self._number} {name}".encode())
                while True:
                    said, descriptors, _, _ = socket.recv_fds(self._near, 4096, 3)
                    number, _, fault = said.decode("utf-8", "replace").partition(" ")
                    if not said or number == str(self._number):
                        break
                    # Of another node, which was asked for, and came when nobody waited for it any more.
                    for one in descriptors:
                        os.close(one)
            except OSError as error:
                raise Lost(f"the command cannot be started: {error}") from error
        if len(descriptors) != 3:
            raise Lost(fault or "nobody is there who starts commands")
        return Line(*descriptors)

    def close(self) -> None:
        self._near.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _start_for(asked: socket.socket, commands: Mapping[str, Sequence[str]]) -> NoReturn:
    started: list[subprocess.Popen[bytes]] = []
    code = 1
    try:
        while said := asked.recv(4096):
            # Whoever has left is waited for here.
            started = [one for one in started if one.poll() is None]
            number, _, name = said.decode().partition(" ")
            try:
                one = subprocess.Popen(
                    commands[name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=jail.calm_signals,
                )
            except OSError as error:
                asked.send(f"{number} the command cannot be started: {error}".encode()[:1000])
                continue
            assert one.stdin is not None
            assert one.stdout is not None
            assert one.stderr is not None
            with one.stdin, one.stdout, one.stderr:
                pipes = [one.stdin.fileno(), one.stdout.fileno(), one.stderr.fileno()]
                socket.send_fds(asked, [number.encode()], pipes)
            started.append(one)
        code = 0
    finally:
        # The gateway is gone, and its ends of all pipes with it.
        deadline = time.monotonic() + _LEAVING_SECONDS
        for one in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, deadline - time.monotonic()))
        for one in started:
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
        os._exit(code)


# --- the head's end -----------------------------------------------------------------------------------


class _Answer:
    """To one call: nobody but its caller is woken when it comes."""

    __slots__ = ("body", "is_here")

    def __init__(self) -> None:
        self.body: bytes | None = None
        """None: nobody answers any more."""
        self.is_here = threading.Lock()
        self.is_here.acquire()


class Line:
    """Calls to one node, by number; its answers come as they like."""

    def __init__(self, says: int, hears: int, complains: int) -> None:
        self._says, self._hears, self._complains = says, hears, complains
        # A node that does not read keeps nobody waiting for ever.
        os.set_blocking(says, False)
        with contextlib.suppress(OSError):
            # Else a file goes in bites, each of which wakes both ends.
            fcntl.fcntl(says, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._numbers = itertools.count(1)
        self._saying = threading.RLock()
        self._guard = threading.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._lost = ""
        self._began_at = time.monotonic()
        self._reached_at: float | None = None
        """By ssh."""
        self._has_answered = False
        self._complaints: deque[str] = deque(maxlen=2)
        """What was said last on the side: ssh's own last words may say less than those before."""
        self._side = threading.Thread(target=self._overhear, name="side", daemon=True)
        self._reader = threading.Thread(target=self._listen, name="line", daemon=True)
        for one in (self._side, self._reader):
            one.start()

    def call(self, body: bytes, *, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        number, answer = next(self._numbers), _Answer()
        with self._guard:
            if self._lost:
                raise Lost(self._lost)
            self._waiting[number] = answer
        try:
            with self._saying:
                # By the number of a pipe that was closed meanwhile somebody else may be reached.
                if self._lost:
                    raise Lost(self._lost)
                self._write(HEADER.pack(len(body), number), body, deadline)
            if not answer.is_here.acquire(timeout=max(0.0, deadline - time.monotonic())):
                if sentence := self.holds_back():
                    raise Lost(sentence)
                raise TimeoutError
        finally:
            self._waiting.pop(number, None)
        if answer.body is None:
            raise Lost(self._lost)
        return answer.body

    def holds_back(self) -> str:
        seconds = time.monotonic() - (self._reached_at or self._began_at)
        if self._has_answered or seconds < _FIRST_WORD_SECONDS:
            return ""
        if self._reached_at is not None:
            sentence = f"ssh reached it {_about(seconds)} ago, but `pagemill node` has not said a word. {_BASHRC}"
        else:
            sentence = f"its command was started {_about(seconds)} ago, and has not said a word."
        return f"{sentence} It complains: {self._complaint}" if self._complaint else sentence

    def close(self) -> None:
        self._lose(_CLOSED)

    def _overhear(self) -> None:
        with contextlib.suppress(OSError), os.fdopen(self._complains, "rb") as pipe:
            while said := pipe.readline(4096):
                line = text(said.decode("utf-8", "replace").strip(), _COMPLAINT_CHARACTERS)
                if line.startswith(_REACHED):
                    self._reached_at = time.monotonic()
                if line and not line.startswith(_OF_SSH):
                    self._complaints.append(line)
                    print(line, file=sys.stderr, flush=True)
                time.sleep(_COMPLAINT_SECONDS)

    @property
    def _complaint(self) -> str:
        return " ".join(self._complaints)

    def _last_words(self) -> str:
        """Why somebody has gone is said on the side."""
        self._side.join(_LAST_WORD_SECONDS)
        return f"{_CLOSED}: {self._complaint}" if self._complaint else _CLOSED

    def _write(self, head: bytes, body: bytes, deadline: float) -> None:
        # Not put together first: a piece of a file would be copied once more.
        parts = [memoryview(head), memoryview(body)]
        has_begun = False
        while parts:
            try:
                written = os.writev(self._says, parts)
                has_begun = True
                while parts and written >= len(parts[0]):
                    written -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][written:]
            except BlockingIOError:
                if not _takes(self._says, max(0.0, deadline - time.monotonic())):
                    # Half a message would be nonsense.
                    if has_begun:
                        self._lose("it does not read what it is told")
                    raise TimeoutError from None
            except OSError as error:
                self._lose(self._last_words())
                raise Lost(self._lost) from error

    def _listen(self) -> None:
        pipe = os.fdopen(self._hears, "rb")
        try:
            while True:
                number, body = read(pipe)
                self._has_answered = True
                if (answer := self._waiting.pop(number, None)) is not None:
                    answer.body = body
                    answer.is_here.release()
        except (EOFError, OSError, ValueError) as error:
            reason = self._last_words() if str(error) in ("", _CLOSED) else str(error)
            self._lose(reason if self._has_answered or reason.startswith(_CLOSED) else f"{reason}. {_BASHRC}")
        finally:
            with contextlib.suppress(OSError):
                pipe.close()

    def _lose(self, reason: str) -> None:
        with self._guard:
            if self._lost:
                return
            self._lost = reason
            waiting = list(self._waiting.values())
        for answer in waiting:
            # It may have come meanwhile.
            with contextlib.suppress(RuntimeError):
                answer.is_here.release()
        # It ends when nobody speaks to it any more.
        with self._saying, contextlib.suppress(OSError):
            os.close(self._says)


def _takes(descriptor: int, seconds: float) -> bool:
    # With hundreds of nodes some have numbers that `select` does not take.
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    return bool(asked.poll(seconds * 1000))


def read(pipe: BufferedReader) -> tuple[int, bytes]:
    head = _exactly(pipe, HEADER.size)
    length, number = HEADER.unpack(head)
    if length > ANSWER_BYTES_MAX:
        os.set_blocking(pipe.fileno(), False)
        said = (head + pipe.peek()).decode("utf-8", "replace").strip()
        raise EOFError(f"it talks nonsense: {text(said, _NONSENSE_CHARACTERS)!r}")
    return number, _exactly(pipe, length)


def _exactly(pipe: BinaryIO, number: int) -> bytes:
    found = pipe.read(number)
    if len(found) < number:
        raise EOFError(_CLOSED)
    return found


def _about(seconds: float) -> str:
    """In steps, so that what is told does not change all the time."""
    return f"{int(seconds // 5) * 5} s"


# --- the node's end -----------------------------------------------------------------------------------


def serve(root: Path, slots: int | None) -> NoReturn:
    """Be a node for whoever is at the other end of stdin and stdout, until there is nobody."""
    hears = os.fdopen(os.dup(0), "rb")
    says = os.dup(1)
    # Whatever prints speaks to the log, and not to the head.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(one, signal.SIG_IGN)
    agent, saying = Agent(root, slots=slots), threading.Lock()
    heard_at = boot_clock()

    def leave() -> NoReturn:
        agent.leave()
        os._exit(0)

    def leave_when_alone() -> None:
        while (left := heard_at + _ALONE_SECONDS + agent.fence_seconds - boot_clock()) > 0:
            time.sleep(left)
        leave()

    def answer(number: int, body: bytes) -> None:
        answered = agent.answer(body)
        left = memoryview(HEADER.pack(len(answered), number) + answered)
        with saying, contextlib.suppress(OSError):
            while left:
                left = left[os.write(says, left) :]

    threading.Thread(target=leave_when_alone, name="alone", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            call = read(hears)
            heard_at = boot_clock()
            threading.Thread(target=answer, args=call, daemon=True).start()
    # The head is gone, or the line is: nothing goes on.
    leave()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
