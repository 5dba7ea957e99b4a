"""What a child may use, and what it is handed: resource limits, descriptors, environment. Set by the child itself."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Collection, Mapping

from worker_service.handlers.contract import Limits

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CPU_SECONDS_TO_END = 5
_OOM_SCORE = b"500"
"""As if it used half of the memory more than it does."""

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def prctl(option: int, *values: int) -> None:
    if libc.prctl(option, *[*values, 0, 0, 0, 0][:4]):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def adopt_orphans() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before it was asked to tell.
    if os.getppid() != parent:
        os._exit(1)


def go_first_where_memory_ends() -> None:
    """The kernel takes a child before daemon, nursery and most of the machine. A child can only offer more."""
    with contextlib.suppress(OSError):
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, _OOM_SCORE)
        finally:
            os.close(file)


def limit(limits: Limits, attempts: int = 1) -> None:
    """Of one attempt; for a child that is kept, `renew_cpu` before each of them."""
    _set(resource.RLIMIT_CORE, 0, 0)
    if limits.memory_bytes is not None:
        _set(resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes)
    if limits.cpu_seconds is not None:
        # First a signal that has a name, SIGXCPU; then the one that nothing ignores.
        _set(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds * attempts + _CPU_SECONDS_TO_END)
    if limits.open_files is not None:
        _set(resource.RLIMIT_NOFILE, limits.open_files, limits.open_files)
    if limits.file_bytes is not None:
        _set(resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes)


def renew_cpu(limits: Limits) -> None:
    """What the attempts before this one have used does not count."""
    if limits.cpu_seconds is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = math.ceil(usage.ru_utime + usage.ru_stime)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = used + limits.cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _set(what: int, soft: int, hard: int) -> None:
    ceiling = resource.getrlimit(what)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(what, (soft, hard))


def close_all_but(kept: Collection[int]) -> None:
    begin = 0
    for descriptor in sorted(kept):
        # An empty range that begins at 0 closes everything.
        if begin < descriptor:
            os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, _HIGHEST if _HAS_CLOSE_RANGE else max([begin, *_open_descriptors()]) + 1)


def _open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208


def _has_close_range() -> bool:
    """Where the kernel closes a range in one call (from 5.9), nobody needs to know which descriptors are open."""
    try:
        return bool(libc.close_range(ctypes.c_uint(_HIGHEST - 1), ctypes.c_uint(_HIGHEST - 1), 0) == 0)
    except AttributeError:
        return False


_HIGHEST = (1 << 31) - 1
_HAS_CLOSE_RANGE = _has_close_range()


def set_environment(environment: Mapping[str, str]) -> None:
    present = os.environ.copy()
    for name in present:
        if name not in environment:
            del os.environ[name]
    for name, value in environment.items():
        if present.get(name) != value:
            os.environ[name] = value


def basic_environment() -> dict[str, str]:
    """For nursery and children alike."""
    wanted = {name: os.environ.get(name) for name in ("PATH", "LANG", "TZ")}
    environment = {name: value for name, value in wanted.items() if value}
    environment.setdefault("PATH", os.defpath)
    environment.setdefault("LANG", "C.UTF-8")
    environment.setdefault("TZ", "UTC")
    return environment


def calm_signals() -> None:
    """As a program expects them at its start, whatever the nursery did with them."""
    signal.set_wakeup_fd(-1)
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE, signal.SIGXCPU):
        wanted = signal.SIG_IGN if one is signal.SIGPIPE else signal.SIG_DFL
        if signal.getsignal(one) is not wanted:
            signal.signal(one, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
