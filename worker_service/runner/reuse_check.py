"""Check, in a child, whether an attempt left the process unchanged, so that it can run another one."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from worker_service.base.forks import flush_output
from worker_service.handlers.contract import Limits
from worker_service.jobs.attempts import Usage
from worker_service.runner import processes, sandbox
from worker_service.runner.messages import Publication

_CHECKED_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
_SIGNALS = (
    signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGIO, signal.SIGPIPE, signal.SIGPROF,
    signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM, signal.SIGXCPU,
)  # fmt: skip
_THREADS, _DESCRIPTORS = Path("/proc/self/task"), Path("/proc/self/fd")
# Written to /proc/self/clear_refs.
_RESET_PEAK_MEMORY = b"5"


class ReuseCheck:
    """Compares the process after each attempt with its state before the first. The handler's variables are left out."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._clear_refs: int | None = None
        with contextlib.suppress(OSError):
            # Open it before the sandbox is applied, which forbids this.
            self._clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        self._cpu_seconds_before = 0.0
        self._state_before: object = None

    def begin(self, limits: Limits) -> None:
        sandbox.renew_cpu_limit(limits)
        if self._clear_refs is not None:
            os.write(self._clear_refs, _RESET_PEAK_MEMORY)
        os.chdir(self._staging)
        self._cpu_seconds_before = _cpu_seconds()
        if self._state_before is None:
            self._state_before = self._state()

    def usage(self) -> Usage:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Usage(round(_cpu_seconds() - self._cpu_seconds_before, 6), peak)

    def clean_up_if_unchanged(self, published: Sequence[Publication]) -> bool:
        flush_output()
        if _has_child_process():
            return False
        try:
            if self._state() != self._state_before:
                return False
            # The paths are relative to the staging directory.
            names_to_keep = {file.path.parts[0] for file in published}
            for entry in list(os.scandir(self._staging)):
                if entry.name in names_to_keep:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink()
        except OSError:
            return False
        return True

    def _state(self) -> object:
        return (
            # Each thread adds a link.
            _THREADS.stat().st_nlink,
            # From Linux 6.2, the size of the directory is the number of descriptors.
            _DESCRIPTORS.stat().st_size or len(os.listdir(_DESCRIPTORS)),  # noqa: PTH208
            os.getcwd(),  # noqa: PTH109
            # The mask can only be read by setting it: set it to the value that every child starts with.
            os.umask(0o077),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            [signal.getsignal(number) for number in _SIGNALS],
            [signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
            [resource.getrlimit(limit) for limit in _CHECKED_LIMITS],
            {name: value for name, value in os.environ.items() if name != processes.ATTEMPT},
            tempfile.tempdir,
        )


def _has_child_process() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
