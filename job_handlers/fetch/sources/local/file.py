"""One file of this machine, for `fetch`: taken when nobody seems to write it any more, and left where it is."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from job_handlers.fetch.errors import Patience, Trouble
from job_handlers.fetch.partial_file import Facts, Part
from job_handlers.fetch.sources.local import ROOTS
from job_handlers.settings import value_of
from worker_service.handlers import legible, path_of

_STEP_BYTES = 1 << 20
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What systemd hides from the service."""
_NOT_BY_THE_KERNEL = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ETXTBSY, errno.EPERM)


def revision_of(found: os.stat_result) -> str:
    """Another one when somebody has written into it: nobody sets the time of a file's last change at will."""
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


class LocalFile:
    def __init__(self, path: str, patience: Patience) -> None:
        self._path = path
        self._actual = actual_path(path)
        self._patience = patience
        self._by_the_kernel = True
        self._began = time.time()

    def facts(self) -> Facts:
        try:
            found = self._actual.stat()
        except OSError as error:
            raise self._trouble(error) from error
        if not stat.S_ISREG(found.st_mode):
            raise Trouble("NO_FILE", what=self._path)
        age = time.time() - found.st_mtime
        if 0 <= age < self._patience.stable_seconds:
            left = min(self._patience.stable_seconds - age, self._patience.longest_wait)
            raise Trouble("STILL_WRITTEN", after=left, what=self._path)
        return Facts(
            legible(path_of(self._path).name),
            "",
            found.st_size,
            revision_of(found),
            is_of_this_machine=True,
            is_settled=max(found.st_mtime, found.st_ctime) < self._began - self._patience.settled_seconds,
        )

    def pour(self, facts: Facts, part: Part, length: int | None) -> Iterator[int]:
        try:
            descriptor = os.open(self._actual, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise self._trouble(error) from error
        try:
            left = length if length is not None else facts.size or 0
            while left > 0:
                count = self._step(descriptor, part, min(left, _STEP_BYTES))
                if count == 0:
                    # It has become shorter.
                    raise Trouble("CHANGED")
                left -= count
                yield count
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Nothing is held between two steps."""

    def _step(self, descriptor: int, part: Part, most: int) -> int:
        if self._by_the_kernel:
            try:
                return part.copy_from(descriptor, part.length, most)
            except OSError as error:
                if error.errno not in _NOT_BY_THE_KERNEL:
                    raise self._trouble(error) from error
                self._by_the_kernel = False
        try:
            block = os.pread(descriptor, most, part.length)
        except OSError as error:
            raise self._trouble(error) from error
        return part.append(block) if block else 0

    def _trouble(self, error: OSError) -> Trouble:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Trouble("DISK_FULL")
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
            return _unreadable(self._path, error)
        return Trouble("CONNECTION_LOST", host=self._path)


def readable(written: str) -> list[Path]:
    """For the sandbox of a child that is to read it; nothing, if it will be refused in words."""
    try:
        return [actual_path(written)]
    except Trouble:
        return []


def actual_path(written: str) -> Path:
    """Without symbolic links, and only where jobs may read."""
    path = path_of(written)
    if not path.is_absolute() or "\0" in str(path):
        raise Trouble("PATH_REFUSED", what=written[:200])
    try:
        actual = Path(os.path.realpath(path))
    except OSError as error:
        raise _unreadable(written, error) from error
    secret = os.environ.get("CREDENTIALS_DIRECTORY", "")
    roots = value_of(ROOTS)
    is_secret = bool(secret) and actual.is_relative_to(os.path.realpath(secret))
    is_inside = not roots or any(actual.is_relative_to(os.path.realpath(root)) for root in roots)
    # What is no file of a disk tells of other processes, or never ends.
    if is_secret or not is_inside or actual.parts[1:2] in (("proc",), ("sys",), ("dev",)):
        raise Trouble("PATH_REFUSED", what=written)
    return actual


def _unreadable(written: str, error: OSError) -> Trouble:
    reason, remedy = error.strerror or f"error {error.errno}", ""
    if any(path_of(written).is_relative_to(place) for place in _HIDDEN):
        reason += "; homes and /tmp are hidden from a worker under systemd"
        remedy = "put it elsewhere, such as /srv, or show it to the service, as is told in pagemill.service"
    elif error.errno in (errno.EACCES, errno.EPERM):
        file = shlex.quote(legible(path_of(written)))
        reason += " to the user of this worker"
        remedy = f"chgrp pagemill {file} && chmod g+r {file}, then retry"
    return Trouble("UNREADABLE", what=written, reason=reason, remedy=remedy)
