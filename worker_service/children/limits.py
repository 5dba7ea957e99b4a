"""What a child may use, and what it is handed: resource limits, descriptors, environment. Set by the child itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Collection, Mapping

from worker_service.handlers.contract import Limits

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CPU_SECONDS_TO_END = 5

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *values: int) -> None:
    padded = [*values, 0, 0, 0, 0][:4]
    if libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(value) for value in padded)):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def adopt_orphans() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before it was asked to tell.
    if os.getppid() != parent:
        os._exit(1)


def limit(limits: Limits) -> None:
    _set(resource.RLIMIT_CORE, 0, 0)
    if limits.memory_bytes is not None:
        _set(resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes)
    if limits.cpu_seconds is not None:
        # First a signal that has a name, SIGXCPU; then the one that nothing ignores.
        _set(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + _CPU_SECONDS_TO_END)
    if limits.open_files is not None:
        _set(resource.RLIMIT_NOFILE, limits.open_files, limits.open_files)
    if limits.file_bytes is not None:
        _set(resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes)


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
    os.closerange(begin, max([begin, *_open_descriptors()]) + 1)


def _open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208


def set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


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
        with contextlib.suppress(OSError):
            signal.signal(one, signal.SIG_IGN if one is signal.SIGPIPE else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
