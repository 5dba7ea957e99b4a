"""Whose process is this, and is it gone? Reads /proc; decides nothing about when to look.

Every child is marked by a resource limit that means nothing to it, the realtime timeout, and the mark passes to
whatever it starts: it survives a program that clears its environment, leaves its session and closes its files. The hard
limit names the house, a digest of the staging root, for two services on one machine may both run job 1; the soft one
names the child.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import time
from pathlib import Path

ATTEMPT = "PAGEMILL_ATTEMPT"
"""The variable that tells a program, and whoever looks at it, which attempt it works for."""

_EMPTY_LOOKS = 30


def house_of(staging_root: Path) -> str:
    return hashlib.blake2s(os.fsencode(staging_root.resolve()), digest_size=8).hexdigest()


def mark_of_house(house: str) -> int:
    """A number that hardly anything else has: bit 61, and 60 bits of digest."""
    return 1 << 61 | int(house, 16) >> 4


def mark_of_child(number: int) -> int:
    """Below every house's, as a soft limit has to be."""
    return 1 << 60 | number


def mark(house: str, number: int) -> None:
    # A lower limit that somebody has set for the whole service stays; then the nursery alone knows its children.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark_of_child(number), mark_of_house(house)))


def marks_on(pid: int) -> tuple[int, int] | None:
    """The child's and the house's; zeros where there are none. None: there is no such process."""
    try:
        text = _read(f"/proc/{pid}/limits")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(b"Max realtime timeout"):
            soft, hard = line.split()[-3:-1]
            return (int(soft) if soft.isdigit() else 0, int(hard) if hard.isdigit() else 0)
    return 0, 0


def started_at(pid: int) -> int:
    """Clock ticks since the boot; with the pid it names one process for ever. 0: there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def children_of(pid: int) -> set[int]:
    """Children of a single-threaded process. Read twice: the kernel may skip one while another ends."""
    path = f"/proc/{pid}/task/{pid}/children"
    try:
        return {int(one) for _ in range(2) for one in _read(path).split()}
    except FileNotFoundError:
        return {one for one in _pids() if (fields := _stat(one)) and int(fields[1]) == pid}


def sweep(house: str) -> list[int]:
    """SIGKILL what is left of the house; what it returns was there, and has to be looked for again. A zombie is dead;
    its parent will hear of it.

    Empty only after many empty looks in a row: a process that forks and ends for ever may slip through one of them,
    between the listing and the look. All but the first look only at what is new, which takes a fraction of a
    millisecond.
    """
    strangers: set[int] = set()
    for _ in range(_EMPTY_LOOKS):
        if left := _sweep_once(house, strangers):
            return left
    return []


def sweep_until_gone(house: str, *, seconds: float) -> bool:
    """For those who may wait: a daemon that starts after a crash, and the tests."""
    deadline = time.monotonic() + seconds
    while sweep(house):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def stop_at_once(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def stop_group(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    # It may not have got as far as a group of its own.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _sweep_once(house: str, strangers: set[int]) -> list[int]:
    wanted = mark_of_house(house)
    left = []
    # The newest first: they are the ones that will not be there for long.
    for pid in sorted(set(_pids()) - strangers, reverse=True):
        marks = marks_on(pid)
        if marks is not None and marks[1] == wanted and pid != os.getpid() and _is_alive(pid):
            stop_at_once(pid)
            left.append(pid)
        else:
            strangers.add(pid)
    return left


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """The fields after the name, which may hold anything."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def _read(path: str) -> bytes:
    """A third of what `Path.read_bytes` takes, which counts where it is done for each attempt."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = received = os.read(descriptor, 1 << 16)
        while received:
            received = os.read(descriptor, 1 << 16)
            whole += received
        return whole
    finally:
        os.close(descriptor)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # ten times as quick
