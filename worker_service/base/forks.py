"""Fork processes that end with their parent, and close the descriptors that they must not have."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection

EXIT_OUT_OF_MEMORY = 86
_PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def fork_process(run: Callable[[], object], *, keeps: Collection[int] | None = None) -> int:
    """Fork a process that calls `run` and ends when this one ends.

    Only the descriptors 0, 1, 2 and `keeps` stay open; None keeps all.
    """
    parent = os.getpid()
    # Text that is still in a buffer would be printed twice.
    flush_output()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with(parent)
        if keeps is not None:
            close_all_but({0, 1, 2, *keeps})
        run()
        code = 0
    except MemoryError:
        code = EXIT_OUT_OF_MEMORY
    except BaseException:  # the outermost frame of a process
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)


def prctl(option: int, *values: int) -> None:
    # Some options require that the arguments they do not use are 0.
    if libc.prctl(option, *[*values, 0, 0, 0, 0][:4]):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def die_with(parent: int) -> None:
    # The kernel kills this process when its parent ends.
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before prctl was called.
    if os.getppid() != parent:
        os._exit(1)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def close_all_but(descriptors_to_keep: Collection[int]) -> None:
    begin = 0
    for descriptor in sorted(descriptors_to_keep):
        # os.closerange(0, 0) would close everything.
        if begin < descriptor:
            os.closerange(begin, descriptor)
        begin = descriptor + 1
    end = _DESCRIPTOR_MAX
    if not _HAS_CLOSE_RANGE:
        # os.closerange would try each number up to the end.
        end = max(begin, *map(int, os.listdir("/proc/self/fd"))) + 1  # noqa: PTH208
    os.closerange(begin, end)


def _has_close_range() -> bool:
    # The kernel has this call since 5.9. Try it with a number that no descriptor has.
    try:
        return bool(libc.close_range(ctypes.c_uint(_DESCRIPTOR_MAX - 1), ctypes.c_uint(_DESCRIPTOR_MAX - 1), 0) == 0)
    except AttributeError:
        return False


_DESCRIPTOR_MAX = (1 << 31) - 1
_HAS_CLOSE_RANGE = _has_close_range()
