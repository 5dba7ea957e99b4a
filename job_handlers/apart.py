"""Read pages in a process apart, so that one page can go wrong and cost only itself.

The process is forked by the attempt's own child and lives in its sandbox and its limits. Each page gets a limit of CPU
seconds that the kernel keeps, whatever library holds Python's lock; a process that is lost is replaced, and the page
at which it was lost is told. What it reads is said back as msgpack.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

R = TypeVar("R")

PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<i")
_AHEAD = 16
"""Pages that it may be told of before it has read them."""
_EXIT_OUT_OF_MEMORY = 86

Make = Callable[[], Callable[[int], Any]]
"""Called in the process: opens what there is to open, and returns what reads one page."""

_libc = ctypes.CDLL(None)


class TooLarge(Exception):
    """This page takes more time or memory than a page may."""


class Lost(Exception):
    """The process crashed on this page."""


class Apart(Generic[R]):
    def __init__(self, make: Make, kind: Any, *, cpu_seconds: int) -> None:
        self._make = make
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(kind)
        self._cpu_seconds = cpu_seconds
        self._pid = 0
        self._numbers = self._said = -1

    def __enter__(self) -> Apart[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def read(self, number: int) -> R:
        """One page. Raises TooLarge or Lost."""
        found = next(iter(self.read_all([number])))[1]
        if isinstance(found, TooLarge | Lost):
            raise found
        return found

    def read_all(self, numbers: Iterable[int]) -> Iterator[tuple[int, R | TooLarge | Lost]]:
        """In their order, told ahead so that the process never waits for its next page."""
        waiting = iter(numbers)
        told: list[int] = []
        while True:
            while len(told) < _AHEAD and (number := next(waiting, None)) is not None:
                told.append(number)
                self._tell(number, told)
            if not told:
                return
            body = self._hear()
            number = told.pop(0)
            if body is not None:
                yield number, self._decoder.decode(body)
                continue
            yield number, self._why_lost()
            for again in told:
                self._tell(again, told)

    def stop(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()

    # --- our side ---

    def _tell(self, number: int, told: list[int]) -> None:
        if not self._pid:
            self._start()
        # Lost already: it is noticed when its answer is awaited.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._numbers, _NUMBER.pack(number))

    def _hear(self) -> bytes | None:
        head = _whole(self._said, _LENGTH.size)
        return None if head is None else _whole(self._said, _LENGTH.unpack(head)[0])

    def _why_lost(self) -> TooLarge | Lost:
        status = self._reap()
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            if name == "SIGXCPU":
                return TooLarge(f"it takes more than {self._cpu_seconds} s")
            if name == "SIGKILL":
                return TooLarge("it takes more memory than there is")
            return Lost(f"it crashed with {name}")
        if os.WEXITSTATUS(status) == _EXIT_OUT_OF_MEMORY:
            return TooLarge("it takes more memory than a page may")
        return Lost(f"it ended with exit code {os.WEXITSTATUS(status)}")

    def _reap(self) -> int:
        os.close(self._numbers)
        os.close(self._said)
        pid, self._pid = self._pid, 0
        return os.waitpid(pid, 0)[1]

    def _start(self) -> None:
        there, self._numbers = os.pipe()
        self._said, here = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # Between the fork and the note of its number nothing may interrupt.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._pid = os.fork()
            if self._pid == 0:
                self._live(there, here, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.close(there)
        os.close(here)

    # --- its side ---

    def _live(self, numbers: int, said: int, parent: int) -> NoReturn:
        code = 1
        try:
            # Who is asked to stop may finish its page; and its end is ours.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            os.close(self._numbers)
            os.close(self._said)
            encoder = msgspec.msgpack.Encoder()
            self._allow_seconds()
            read = self._make()
            while (head := _whole(numbers, _NUMBER.size)) is not None:
                self._allow_seconds()
                body = encoder.encode(read(_NUMBER.unpack(head)[0]))
                left = memoryview(_LENGTH.pack(len(body)) + body)
                while left:
                    left = left[os.write(said, left) :]
            code = 0
        except MemoryError:
            code = _EXIT_OUT_OF_MEMORY
        except BaseException:  # the outermost frame of a process; its page is told as lost
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)

    def _allow_seconds(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime) + self._cpu_seconds
        # The kernel counts whole seconds; the hard limit is the attempt's.
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _whole(pipe: int, length: int) -> bytes | None:
    """None: it closed before it had said all."""
    received = bytearray()
    while len(received) < length:
        some = os.read(pipe, length - len(received))
        if not some:
            return None
        received += some
    return bytes(received)
