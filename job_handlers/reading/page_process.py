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
_AHEAD = 128
_MANY = 64
_NAP_SECONDS = 0.01
"""Batches answers: a wake-up costs more than an ordinary page."""
_PIPE_BYTES = 1 << 18
_READ_BYTES = 1 << 16
_OBJECTS_AT_ONCE = 50_000

Make = Callable[[], Callable[[int], Any]]
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
    def __init__(self, make: Make, kind: Any, *, cpu_seconds: int) -> None:
        self._make = make
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(kind)
        self._cpu_seconds = cpu_seconds
        self._pending: deque[int] = deque()
        self._pid = 0
        self._numbers = self._said = -1
        self._inbox = bytearray()
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
        found = next(iter(self.read_all([number])))[1]
        if isinstance(found, TooLarge | Lost):
            raise found
        return found

    def read_all(self, numbers: Iterable[int]) -> Iterator[tuple[int, R | TooLarge | Lost]]:
        waiting = iter(numbers)
        while True:
            if len(self._pending) <= _AHEAD // 2:
                self.request(*islice(waiting, _AHEAD - len(self._pending)))
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
        body = self._receive_answer(is_hurried=len(self._pending) < _MANY)
        number = self._pending.popleft()
        if body is not None:
            return number, self._decoder.decode(body)
        why = self._loss_reason()
        self._send_numbers(self._pending)
        return number, why

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

    def _receive_answer(self, *, is_hurried: bool) -> bytes | None:
        """None if the pipe was closed before the answer was complete."""
        inbox = self._inbox
        if not is_hurried and len(inbox) < _LENGTH.size:
            time.sleep(_NAP_SECONDS)
        while len(inbox) < _LENGTH.size or len(inbox) < (end := _LENGTH.size + _LENGTH.unpack_from(inbox)[0]):
            some = os.read(self._said, _READ_BYTES)
            if not some:
                return None
            inbox += some
        body = bytes(inbox[_LENGTH.size : end])
        del inbox[:end]
        return body

    def _loss_reason(self) -> TooLarge | Lost:
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
        os.close(self._said)
        self._inbox.clear()
        pid, self._pid = self._pid, 0
        return os.waitpid(pid, 0)[1]

    def _start(self) -> None:
        there, self._numbers = os.pipe()
        self._said, here = os.pipe()
        with contextlib.suppress(OSError):
            # The system limits how much pipe buffer a user may have.
            fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # No signal may interrupt between the fork and the assignment of the pid.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._pid = fork_process(lambda: self._run_child(there, here))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.close(there)
        os.close(here)

    # --- in the page process ---

    def _run_child(self, numbers: int, said: int) -> None:
        # Ignore SIGTERM, so that the page can be finished.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(self._numbers)
        os.close(self._said)
        encoder = msgspec.msgpack.Encoder()
        # The process lives for one file and pages leave no reference cycles: collecting at every other page costs 3 %.
        gc.set_threshold(_OBJECTS_AT_ONCE)
        self._allow_seconds()
        read = self._make()
        while block := os.read(numbers, _NUMBER.size * _AHEAD):
            for (number,) in _NUMBER.iter_unpack(block):
                self._allow_seconds()
                body = encoder.encode(read(number))
                left = memoryview(_LENGTH.pack(len(body)) + body)
                while left:
                    left = left[os.write(said, left) :]

    def _allow_seconds(self) -> None:
        # The kernel counts whole seconds. The hard limit is the attempt's.
        soft = int(time.process_time()) + self._cpu_seconds
        if soft != self._seconds_allowed:
            self._seconds_allowed = soft
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
