"""Whose process is this, and is it gone? Reads /proc; decides nothing about when to look.

Every process of an attempt is marked twice, and both marks pass to whatever it starts: by its environment
(PAGEMILL_ATTEMPT and PAGEMILL_HOUSE), as /proc shows it, and by a resource limit that means nothing to it, the
realtime timeout, which survives a program that clears its environment, leaves its session and closes its files.
The house is a digest of the staging root: two services on one machine may both run job 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ATTEMPT = "PAGEMILL_ATTEMPT"
HOUSE = "PAGEMILL_HOUSE"
ROOM_FOR_ATTEMPT = "." * 48
"""What the nursery is started with, so that a forked child finds room for its own in the same place."""

_EMPTY_LOOKS = 30

Key = tuple[int, int]
"""Job id and fence."""


def house_of(staging_root: Path) -> str:
    return hashlib.blake2s(os.fsencode(staging_root.resolve()), digest_size=8).hexdigest()


def name_of(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def key_of_kept(nursery_pid: int, seat: int) -> Key:
    """What a child is marked with that is kept: no job has such a number."""
    return -nursery_pid, seat


def home_of_kept(nursery_pid: int) -> str:
    """How the directories of a nursery's kept children are called; a number follows."""
    return f"kept-{nursery_pid}-"


def tag_of(house: str, key: Key) -> int:
    """A number that hardly anything else has: bit 61, and 61 bits of digest."""
    digest = hashlib.blake2s(f"{house}/{name_of(key)}".encode(), digest_size=8).digest()
    return 1 << 61 | int.from_bytes(digest) >> 3


# --- marking, by the child itself ------------------------------------------------------------------


def mark(house: str, key: Key, mark: Key | None = None) -> None:
    """`mark`: another one than that of its attempt, where it is kept for several."""
    tag = tag_of(house, mark or key)
    # A lower limit that somebody has set for the whole service stays; the environment is the other mark.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (tag, tag))
    show(name_of(key))


def show(name: str) -> None:
    """In place: /proc/PID/environ shows the memory that exec filled, and nothing that was set later."""
    place = room_for_mark()
    if place is not None:
        text = f"{ATTEMPT}={name}".encode()[: place[1]].ljust(place[1], b"\0")
        ctypes.memmove(place[0], text, place[1])


@functools.cache
def room_for_mark() -> tuple[int, int] | None:
    """Where it is and how long; asked by the nursery before it forks, for its children have it in the same place."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    if not 0 < begin < end:
        return None
    region = ctypes.string_at(begin, end - begin)
    wanted = f"{ATTEMPT}={ROOM_FOR_ATTEMPT}".encode()
    at = (b"\0" + region).find(b"\0" + wanted + b"\0")
    return (begin + at, len(wanted)) if at >= 0 else None


# --- looking ----------------------------------------------------------------------------------------


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


def tag_on(pid: int) -> int | None:
    """None: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/limits").read_bytes()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(b"Max realtime timeout"):
            hard = line.split()[-2]
            return int(hard) if hard.isdigit() else 0
    return 0


def left_of(house: str, keys: Iterable[Key]) -> dict[Key, list[int]]:
    """The living processes of these attempts. A zombie is dead; its parent will hear of it."""
    return _look(house, keys, strangers=set(), found_one=lambda pid: None)


def sweep(house: str, keys: Sequence[Key]) -> dict[Key, list[int]]:
    """SIGKILL what is left of these attempts; what it returns was there, and has to be looked for again.

    Empty only after many empty looks in a row: a process that forks and ends for ever may slip through one of them,
    between the listing and the look. All but the first look only at what is new, which takes a fraction of a
    millisecond.
    """
    strangers: set[int] = set()
    for _ in range(_EMPTY_LOOKS):
        left = _look(house, keys, strangers=strangers, found_one=stop_at_once)
        if left:
            return left
    return {}


def sweep_until_gone(house: str, keys: Sequence[Key], *, seconds: float) -> bool:
    """For those who may wait: a daemon that starts after a crash, and the tests."""
    deadline = time.monotonic() + seconds
    while sweep(house, keys):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def stop_at_once(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _look(
    house: str, keys: Iterable[Key], *, strangers: set[int], found_one: Callable[[int], None]
) -> dict[Key, list[int]]:
    tags = {tag_of(house, key): key for key in keys}
    names = {name_of(key): key for key in tags.values()}
    left: dict[Key, list[int]] = {}
    # The newest first: they are the ones that will not be there for long.
    for pid in sorted(set(_pids()) - strangers, reverse=True):
        key = tags.get(tag_on(pid) or 0) or _key_in_environment(pid, house, names)
        if key is not None and pid != os.getpid() and _is_alive(pid):
            found_one(pid)
            left.setdefault(key, []).append(pid)
        else:
            strangers.add(pid)
    return left


def _key_in_environment(pid: int, house: str, names: Mapping[str, Key]) -> Key | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    if f"{HOUSE}={house}".encode() not in environment:
        return None
    prefix = f"{ATTEMPT}=".encode()
    for entry in environment:
        if entry.startswith(prefix):
            return names.get(entry[len(prefix) :].decode("ascii", "replace"))
    return None


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
