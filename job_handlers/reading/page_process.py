"""Read pages in a separate process with a CPU limit for each page, so that a bad page costs only itself."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from worker_service.base.forks import EXIT_OUT_OF_MEMORY, fork_process

R = TypeVar("R")

_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<i")
_PENDING_MOST = 128
# With so many pages pending, wait a moment for several answers: a wake-up costs more than an ordinary page.
_PENDING_TO_NAP = 64
_NAP_SECONDS = 0.01
_PIPE_BYTES = 1 << 18
_READ_BYTES = 1 << 16
_OBJECTS_PER_COLLECTION = 50_000

MakeReader = Callable[[], Callable[[int], Any]]
"""Called in the page process."""


class TooLarge(Exception):
    """The page exceeds its limit of time or memory."""


class Lost(Exception):
    """The process crashed on the page."""


class Refusal(msgspec.Struct, tag=True, frozen=True):
    code: str
    message: str
    remedy: str = ""


class PageProcess(Generic[R]):
    def __init__(self, make_reader: MakeReader, answer_type: Any, *, cpu_seconds: int) -> None:
        self._make_reader = make_reader
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(answer_type)
        self._cpu_seconds = cpu_seconds
        self._pending: deque[int] = deque()
        self._pid = 0
        # Ends of two pipes: page numbers to the process, its answers back.
        self._numbers = self._answers = -1
        self._received = bytearray()
        self._seconds_allowed = -1

    def __enter__(self) -> PageProcess[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self) -> None:
        """Open the file while the caller does something else."""
        if not self._pid:
            self._start()

    def read(self, number: int) -> R:
        _, answer = next(self.read_all([number]))
        if isinstance(answer, TooLarge | Lost):
            raise answer
        return answer

    def read_all(self, numbers: Iterable[int]) -> Iterator[tuple[int, R | TooLarge | Lost]]:
        unsent = iter(numbers)
        while True:
            if len(self._pending) <= _PENDING_MOST // 2:
                self.request(*islice(unsent, _PENDING_MOST - len(self._pending)))
            if not self.has_pending:
                return
            yield self.receive()

    def request(self, *numbers: int) -> None:
        self._pending += numbers
        self._send_numbers(numbers)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def receive(self) -> tuple[int, R | TooLarge | Lost]:
        """Return the first pending number, and its answer."""
        body = self._receive_answer(may_nap=len(self._pending) >= _PENDING_TO_NAP)
        number = self._pending.popleft()
        if body is not None:
            return number, self._decoder.decode(body)
        error = self._reap_and_explain()
        # A new process reads the other pages.
        self._send_numbers(self._pending)
        return number, error

    def stop(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()

    # --- in the parent process ---

    def _send_numbers(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        if not self._pid:
            self._start()
        # If the process is dead, reading its answer reports that.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._numbers, b"".join(map(_NUMBER.pack, numbers)))

    def _receive_answer(self, *, may_nap: bool) -> bytes | None:
        """Return None if the pipe was closed before the answer was complete."""
        received = self._received
        if may_nap and len(received) < _LENGTH.size:
            time.sleep(_NAP_SECONDS)
        while True:
            if len(received) >= _LENGTH.size:
                [length] = _LENGTH.unpack_from(received)
                end = _LENGTH.size + length
                if len(received) >= end:
                    break
            block = os.read(self._answers, _READ_BYTES)
            if not block:
                return None
            received += block
        body = bytes(received[_LENGTH.size : end])
        del received[:end]
        return body

    def _reap_and_explain(self) -> TooLarge | Lost:
        status = self._reap()
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            if name == "SIGXCPU":
                return TooLarge(f"it takes more than {self._cpu_seconds} s")
            if name == "SIGKILL":
                return TooLarge("it takes more memory than there is")
            return Lost(f"it crashed with {name}")
        if os.WEXITSTATUS(status) == EXIT_OUT_OF_MEMORY:
            return TooLarge("it takes more memory than a page may")
        return Lost(f"it ended with exit code {os.WEXITSTATUS(status)}")

    def _reap(self) -> int:
        os.close(self._numbers)
        os.close(self._answers)
        self._received.clear()
        pid, self._pid = self._pid, 0
        return os.waitpid(pid, 0)[1]

    def _start(self) -> None:
        numbers, self._numbers = os.pipe()
        self._answers, answers = os.pipe()
        with contextlib.suppress(OSError):
            # If the user's pipes have reached the system's limit, the pipe keeps its usual size.
            fcntl.fcntl(answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # No signal may interrupt between the fork and the assignment of the pid.
        signals_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._pid = fork_process(lambda: self._run_child(numbers, answers))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals_before)
        os.close(numbers)
        os.close(answers)

    # --- in the page process ---

    def _run_child(self, numbers: int, answers: int) -> None:
        # SIGTERM asks the attempt to stop, which still waits for this page.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(self._numbers)
        os.close(self._answers)
        encoder = msgspec.msgpack.Encoder()
        # Python would look for reference cycles at every other page, which costs 3 %. Pages leave none.
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        self._allow_seconds()
        read = self._make_reader()
        while block := os.read(numbers, _NUMBER.size * _PENDING_MOST):
            for (number,) in _NUMBER.iter_unpack(block):
                self._allow_seconds()
                body = encoder.encode(read(number))
                unsent = memoryview(_LENGTH.pack(len(body)) + body)
                while unsent:
                    unsent = unsent[os.write(answers, unsent) :]

    def _allow_seconds(self) -> None:
        # The kernel counts whole seconds. The hard limit is the attempt's.
        soft = int(time.process_time()) + self._cpu_seconds
        if soft != self._seconds_allowed:
            self._seconds_allowed = soft
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
