"""Who this worker is, and the lock that says for certain whether anything of it still lives.

The lock file is `<folder of the database>/workers/<worker id>.lock`. The daemon holds it with flock, and the nursery
and every child inherit the descriptor: as long as one of them is there, nobody else can take it. A lock that can be
taken means that all of them are dead, and so does another boot.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker_service.errors import StoreReadOnly

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Identity:
    worker_id: str
    host: str
    boot_id: str
    pid: int


def own_identity() -> Identity:
    host, pid = own_host(), os.getpid()
    # The last part, because a pid comes again after a reboot, or in another container.
    return Identity(f"{host}-{pid}-{secrets.token_hex(4)}", host, boot_id(), pid)


def own_host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"


def pid_in(worker_id: str) -> int:
    """The process that gave itself this id; 0 if the id is of another form."""
    found = re.fullmatch(r".+-(\d+)-[0-9a-f]{8}", worker_id)
    return int(found[1]) if found else 0


def boot_id(environ: Mapping[str, str] | None = None) -> str:
    """This life of the machine; '' if nobody tells. The unit hides /proc/sys, and passes on what systemd knows."""
    try:
        found = _BOOT_ID.read_text()
    except OSError:
        found = (os.environ if environ is None else environ).get("PAGEMILL_BOOT_ID", "")
    # systemd writes it without hyphens.
    return found.strip().replace("-", "").lower()


def lock_path(database: Path, worker_id: str) -> Path:
    return database.parent / "workers" / f"{worker_id}.lock"


def staging_root(workspace: Path, worker_id: str) -> Path:
    """Where the attempts of this worker write. One for each, so that the marks on its processes are its own."""
    return workspace / "staging" / worker_id


class LifeLock:
    """The worker's own lock, held until every process that has the descriptor is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(exist_ok=True)
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise StoreReadOnly(
                f"{path.parent} cannot be written ({error.strerror}): a daemon keeps its lock beside its database"
            ) from error
        fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self, *, is_gone: bool) -> None:
        """`is_gone`: the worker's row is gone, too. Else the file stays, for whoever takes its jobs back."""
        if is_gone:
            self.path.unlink(missing_ok=True)
        os.close(self.fd)


def is_free(path: Path) -> bool | None:
    """Whether everything that held the lock is gone. None: there is no such file, so nothing is known."""
    try:
        # Who may only look can ask as well.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return False
    try:
        # Shared: of two who look at once, neither takes the other for its holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def holders(path: Path) -> list[int]:
    """The processes on this machine, as far as we may look, that have the lock file open."""
    try:
        wanted = path.stat()
    except OSError:
        return []
    return [pid for pid in _pids() if _has_open(pid, (wanted.st_dev, wanted.st_ino))]


def is_there(pid: int) -> bool:
    # Not by /proc, which may hide the processes of others from who may only look.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  names are all that is needed


def _has_open(pid: int, wanted: tuple[int, int]) -> bool:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat()
                if (status.st_dev, status.st_ino) == wanted:
                    return True
    return False
