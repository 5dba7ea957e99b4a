"""Check whether an attempt left its child process unchanged, so that it can be reused."""

from __future__ import annotations

import contextlib
import mmap
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


class ReuseCheck:
    """Cannot see what the handler keeps in variables."""

    def __init__(self, staging: Path, begun: mmap.mmap | None) -> None:
        self._staging = staging
        # Opened before the sandbox is applied. Writing to it resets the peak memory for each attempt.
        self._peak: int | None = None
        with contextlib.suppress(OSError):
            self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        self._cpu_seconds = 0.0
        self._state_before: object = None
        self._begun, self._note = 0, begun

    @property
    def is_new(self) -> bool:
        return self._begun == 1

    def begin(self, allowed: Limits) -> None:
        self._begun += 1
        if self._note is not None:
            # If the child dies before this point, the order counts as not begun.
            self._note[:8] = self._begun.to_bytes(8)
        sandbox.renew_cpu(allowed)
        if self._peak is not None:
            os.write(self._peak, b"5")
        os.chdir(self._staging)
        self._cpu_seconds = _cpu_seconds()
        if self._state_before is None:
            self._state_before = self._state()

    def usage(self) -> Usage:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Usage(round(_cpu_seconds() - self._cpu_seconds, 6), peak)

    def is_unchanged(self, published: Sequence[Publication]) -> bool:
        flush_output()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        else:
            return False
        try:
            if self._state() != self._state_before:
                return False
            kept = {file.path.parts[0] for file in published}
            for entry in list(os.scandir(self._staging)):
                if entry.name not in kept:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    else:
                        Path(entry.path).unlink()
        except OSError:
            return False
        return True

    def _state(self) -> object:
        return (
            _THREADS.stat().st_nlink,
            # From Linux 6.2, the size is the number of descriptors.
            _DESCRIPTORS.stat().st_size or len(os.listdir(_DESCRIPTORS)),  # noqa: PTH208
            os.getcwd(),  # noqa: PTH109
            os.umask(0o077),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            [signal.getsignal(one) for one in _SIGNALS],
            [signal.getitimer(one) for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
            [resource.getrlimit(one) for one in _CHECKED_LIMITS],
            {name: value for name, value in os.environ.items() if name != processes.ATTEMPT},
            tempfile.tempdir,
        )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
