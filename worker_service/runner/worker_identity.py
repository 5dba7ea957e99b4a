"""Identity of this worker, and lock files that show which workers are alive (`decide_fate`).

The fork server and every child inherit the daemon's locked descriptor. So the lock is free only if all of them are
dead.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path

from msgspec import Struct

from worker_service.base.clock import from_text
from worker_service.base.errors import StoreReadOnly
from worker_service.jobs.workers import WorkerState

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Identity(Struct, frozen=True):
    worker_id: str
    host: str
    boot_id: str
    pid: int


def own_identity() -> Identity:
    host, pid = own_host(), os.getpid()
    # The random part is needed because a pid recurs after a reboot, or in another container.
    return Identity(f"{host}-{pid}-{secrets.token_hex(4)}", host, boot_id(), pid)


def own_host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"


def pid_in(worker_id: str) -> int:
    match = re.fullmatch(r".+-(\d+)-[0-9a-f]{8}", worker_id)
    return int(match[1]) if match else 0


def boot_id(environ: Mapping[str, str] | None = None) -> str:
    """Return '' if unknown. The systemd unit hides /proc/sys and passes the id in the environment."""
    try:
        text = _BOOT_ID.read_text()
    except OSError:
        text = (os.environ if environ is None else environ).get("PAGEMILL_BOOT_ID", "")
    # systemd writes it without hyphens.
    return text.strip().replace("-", "").lower()


def lock_path(database: Path, worker_id: str) -> Path:
    return database.parent / "workers" / f"{worker_id}.lock"


def staging_root(workspace: Path, worker_id: str) -> Path:
    """No other worker has this directory: the mark of its processes is derived from it."""
    return workspace / "staging" / worker_id


class WorkerLock:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(exist_ok=True)
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise StoreReadOnly(
                f"{path.parent} cannot be written ({error.strerror}): a daemon keeps its lock beside its database"
            ) from error
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.fd)
            raise

    def remove(self) -> None:
        """Call once the worker's row is deleted; until then, recovery needs the file."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.fd)


def is_free(path: Path) -> bool | None:
    """Return None if there is no lock file."""
    try:
        # Read-only, so that users who may not write can check as well.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return False
    try:
        # A shared lock, so that two processes that check at once do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def lock_holders(path: Path) -> list[int]:
    try:
        lock = path.stat()
    except OSError:
        return []
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  names are all that is needed
    return [pid for pid in pids if _has_open(pid, lock)]


def is_running(pid: int) -> bool:
    # A signal, because /proc may hide other users' processes.
    try:
        with suppress(PermissionError):
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _has_open(pid: int, file: os.stat_result) -> bool:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                if os.path.samestat(entry.stat(), file):
                    return True
    return False


# --- liveness ---


class Fate(Enum):
    ALIVE = "alive"
    # Its daemon is dead, but not its fork server or a child.
    DYING = "dying"
    # It has not beaten for `orphan_after`, but may be alive.
    SILENT = "silent"
    # None of its processes holds the lock, or its machine has been restarted.
    GONE = "dead"


class Observation(Struct, frozen=True):
    is_lock_free: bool | None
    # The same host, not rebooted since. The pid then means the same process.
    is_same_machine: bool
    is_rebooted: bool
    is_daemon_running: bool
    # Seconds without a new heartbeat; ignores steps of the wall clock.
    silent_seconds: float
    # Age of the last heartbeat by the wall clock.
    row_silent_seconds: float


def decide_fate(seen: Observation, *, orphan_after_seconds: float) -> Fate:
    if seen.is_lock_free or seen.is_rebooted:
        return Fate.GONE
    if seen.is_lock_free is False and seen.is_same_machine and not seen.is_daemon_running:
        return Fate.DYING
    silent_seconds = seen.silent_seconds
    if seen.is_lock_free is None and not (seen.is_same_machine and seen.is_daemon_running):
        # No process of it can be on this machine. Counting from each start of this daemon could wait for ever.
        silent_seconds = max(silent_seconds, seen.row_silent_seconds)
    return Fate.SILENT if silent_seconds >= orphan_after_seconds else Fate.ALIVE


def observe(
    worker: WorkerState, database: Path, *, host: str, boot: str, now: datetime, silent_seconds: float | None = None
) -> Observation:
    # `host` and `boot` are this machine's.
    row_silent_seconds = (now - from_text(worker.heartbeat_at)).total_seconds()
    return Observation(
        is_lock_free=is_free(lock_path(database, worker.id)),
        is_same_machine=worker.host == host and worker.boot_id == boot,
        is_rebooted=worker.host == host and worker.boot_id != boot and bool(worker.boot_id and boot),
        is_daemon_running=is_running(worker.pid),
        silent_seconds=row_silent_seconds if silent_seconds is None else silent_seconds,
        row_silent_seconds=row_silent_seconds,
    )
