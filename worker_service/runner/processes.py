"""Find and kill the processes of an attempt or a pool, even if they hide.

A child marks itself by a resource limit without effect on it (RLIMIT_RTTIME), which descendants inherit in any session.
The hard limit is a digest of the pool's staging root, because two services may both run job 1; the soft limit is the
child's number.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import time
from pathlib import Path
from typing import NamedTuple

# Environment variable of a child with the name of its attempt.
ATTEMPT = "PAGEMILL_ATTEMPT"
# Scans of /proc without a result that prove that no process of a pool is left.
_SCANS_MIN = 30


class ProcessMarks(NamedTuple):
    child: int = 0
    pool: int = 0


def pool_id_of(staging_root: Path) -> str:
    return hashlib.blake2s(os.fsencode(staging_root.resolve()), digest_size=8).hexdigest()


def pool_mark(pool_id: str) -> int:
    # Bit 61 and 60 bits of the digest: no administrator sets such a limit by accident.
    return 1 << 61 | int(pool_id, 16) >> 4


def child_mark(number: int) -> int:
    return 1 << 60 | number


def mark_process(pool_id: str, number: int) -> None:
    # If the service runs with a lower limit, this fails, and only the fork server knows its children.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (child_mark(number), pool_mark(pool_id)))


def marks_of(pid: int) -> ProcessMarks:
    with contextlib.suppress(OSError):
        for line in _read(f"/proc/{pid}/limits").splitlines():
            if line.startswith(b"Max realtime timeout"):
                soft, hard = line.split()[-3:-1]
                return ProcessMarks(int(soft) if soft.isdigit() else 0, int(hard) if hard.isdigit() else 0)
    return ProcessMarks()


def started_at(pid: int) -> int:
    """Return clock ticks from boot to the start of the process, or 0."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def children_of(pid: int) -> set[int]:
    path = f"/proc/{pid}/task/{pid}/children"
    try:
        # Read the list twice: the kernel may skip a child while another ends.
        return {int(child) for child in _read(path).split() + _read(path).split()}
    except FileNotFoundError:
        # The kernel was built without this file.
        return {child for child in _pids() if _parent_of(child) == pid}


def sweep(pool_id: str) -> list[int]:
    """Kill every process of the pool, and return their pids. Call again until the result is empty.

    A process that forks and ends for ever may slip through a scan, so an empty result needs many scans.
    """
    pids_of_others: set[int] = set()
    for _ in range(_SCANS_MIN):
        killed = _sweep_once(pool_id, pids_of_others)
        if killed:
            return killed
    return []


def sweep_until_gone(pool_id: str, *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while sweep(pool_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def signal_group(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    # The child may not have created its own group yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _sweep_once(pool_id: str, pids_of_others: set[int]) -> list[int]:
    killed = []
    # Newest first: they are the most likely to end during the scan.
    for pid in sorted(set(_pids()) - pids_of_others, reverse=True):
        if marks_of(pid).pool == pool_mark(pool_id) and pid != os.getpid() and _is_alive(pid):
            kill(pid)
            killed.append(pid)
        else:
            pids_of_others.add(pid)
    return killed


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def _parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[bytes]:
    try:
        # The name before these fields may contain any character.
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def _read(path: str) -> bytes:
    # A third of the time of `Path.read_bytes`; this runs for each attempt.
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
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # ten times as fast
