"""Programs under measurement: wait for them, look at what they use, stop them. Reads /proc; starts nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DEADLINE_SECONDS = 600.0
_END_SECONDS = 30.0


class Failed(RuntimeError):
    """The measured program did not do its work."""


def wait_until(
    is_so: Callable[[], object], what: str, *, seconds: float = _DEADLINE_SECONDS, pause_seconds: float = 0.005
) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds:g} s: {what}")
        time.sleep(pause_seconds)


def stopped(process: subprocess.Popen[Any]) -> None:
    """Terminate the process, then kill it."""
    if process.poll() is None:
        process.terminate()
    try:
        # Read what it still has to say, or it may wait for us.
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def with_all_below(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for one in found:
        for listing in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, listing.read_text().split())
    return found


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time used so far, exact to the nanosecond."""
    return sum(
        int(one.read_text().split()[0]) / 1e9 for pid in pids for one in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def cpu_seconds_of_ended(pids: list[int]) -> float:
    """Return the CPU time of their ended descendants, exact to the tick."""
    told = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[13]) + int(one[14]) for one in told) / os.sysconf("SC_CLK_TCK")


def memory_megabytes(pids: list[int]) -> float:
    """Return the proportional share (PSS), which counts shared memory once."""
    return sum(_pss_kilobytes(pid) for pid in pids) / 1000


def _pss_kilobytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
