"""A child that is kept for several attempts of one type, from inside: its jail is shut once, its attempts follow each
other, and after each of them it looks whether it is as it was.

It stays only where that look finds nothing: no thread, no descriptor, no file outside the attempt's staging, no other
directory, mask, environment, limit or signal. It could not start a process if it wanted to. What a handler keeps in
its own variables nobody sees.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from worker_service.children import gone, limits
from worker_service.children.context import Cancel, Pipe
from worker_service.children.lines import end_mark
from worker_service.children.model import How, Order
from worker_service.children.wire import Finished, Next, Used, to_kept
from worker_service.handlers.contract import Limits

ORDER_BYTES_MAX = 1 << 16
"""Of an order for a kept child, all in all. A larger one gets a child of its own."""
JAILED = "landlock+seccomp"
"""Where the kernel gives less, nothing is kept."""

_ALLOWED = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
_SIGNALS = (
    signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGIO, signal.SIGPIPE, signal.SIGPROF,
    signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM, signal.SIGXCPU,
)  # fmt: skip
_THREADS, _DESCRIPTORS = Path("/proc/self/task"), Path("/proc/self/fd")
_CLEAN = (How.DONE, How.PERMANENT, How.RETRYABLE, How.SNOOZED)
_NOT_CLEAN = ("HANDLER_ERROR", "SANDBOX_UNAVAILABLE", "INTERRUPTED")


class Housekeeping:
    """The child's own directory with the staging of the attempt in it, and all else that attempts may disturb."""

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        self._home = staging.parent
        # Opened before the door is shut: with it the peak of the memory begins anew for each attempt.
        self._peak: int | None = None
        with contextlib.suppress(OSError):
            self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        self._cpu_seconds = self._began_at = 0.0
        self._before: object = None

    def begin(self) -> None:
        if self._peak is not None:
            os.write(self._peak, b"5")
        self._cpu_seconds, self._began_at = _cpu_seconds(), time.monotonic()
        if self._before is None:
            self._before = self._seen()

    def used(self) -> Used:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_seconds = round(usage.ru_utime + usage.ru_stime - self._cpu_seconds, 6)
        return Used(round(time.monotonic() - self._began_at, 6), cpu_seconds, usage.ru_maxrss * 1024)

    def is_as_before(self) -> bool:
        """Empties the staging directory. What else is not as it was ends the child."""
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        else:
            return False
        try:
            if self._seen() != self._before:
                return False
            if os.listdir(self.staging):  # noqa: PTH208
                self._empty()
        except OSError:
            return False
        return True

    def _empty(self) -> None:
        shutil.rmtree(self.staging)
        self.staging.mkdir(mode=0o700)
        os.chdir(self.staging)

    def _seen(self) -> object:
        return (
            _THREADS.stat().st_nlink,
            _descriptors(),
            os.listdir(self._home),  # noqa: PTH208
            os.getcwd(),  # noqa: PTH109
            os.umask(0o077),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            [signal.getsignal(one) for one in _SIGNALS],
            [signal.getitimer(one) for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
            [resource.getrlimit(one) for one in _ALLOWED],
            {name: value for name, value in os.environ.items() if name != gone.ATTEMPT},
            tempfile.tempdir,
        )


def serve(
    first: Order,
    orders: int,
    house: Housekeeping,
    *,
    limits_of_attempt: Limits,
    level: str,
    reuse: int,
    begun: mmap.mmap | None,
    pipe_of_attempt: Callable[[], Pipe],
    cancel: Cancel,
    attempt: Callable[[Order, Pipe, Path], Finished],
) -> None:
    """One attempt after the other, until there are no more orders or one of them did not end clean."""
    following: Next | None = Next(1, first)
    line = socket.socket(fileno=orders)
    while following is not None:
        pipe = pipe_of_attempt()
        limits.renew_cpu(limits_of_attempt)
        _show(following.order)
        house.begin()
        if begun is not None:
            # A child that dies while it takes an order has not begun it.
            begun[:8] = following.number.to_bytes(8)
        said = attempt(following.order, pipe, house.staging)
        limits.flush_output()
        pipe.log(end_mark(following.number).decode() + "\n")
        # Whoever has kept the context speaks for no attempt any more.
        pipe.is_shut = True
        stays = _is_clean(said) and level == JAILED and not cancel.has_come and following.number < reuse
        stays = stays and house.is_as_before()
        pipe_of_attempt().say(replace(said, number=following.number, stays=stays, used=house.used()))
        if not stays:
            return
        following = _next(line)


def _next(line: socket.socket) -> Next | None:
    received = line.recv(ORDER_BYTES_MAX)
    return to_kept(received) if received else None


def _show(order: Order) -> None:
    """In its environment: who looks for the processes of an attempt finds the one that runs it now."""
    name = gone.name_of((order.job_id, order.fence))
    os.environ[gone.ATTEMPT] = name
    gone.show(name)


def _is_clean(said: Finished) -> bool:
    return said.how in _CLEAN and said.code not in _NOT_CLEAN and not said.files


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _descriptors() -> int:
    # The kernel says how many, from 6.2 on.
    return _DESCRIPTORS.stat().st_size or len(os.listdir(_DESCRIPTORS))  # noqa: PTH208
