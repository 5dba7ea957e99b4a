"""The bytes of a file so far, and the sidecar that says of which revision they are. In the directory that outlives
attempts; whether they are right is asked in `fetch`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from job_handlers import file_kinds
from job_handlers.fetch.errors import FetchError
from worker_service.base.files import sync_path
from worker_service.handlers import Retryable

_BLOCK_BYTES = 256 << 10
"""Stays in a core's cache, so that a second digest of it costs no second reading."""
_STRIDE_BYTES = 1 << 20
"""The writer calls the follower that often, not for each of his writes."""
_LOOK_SECONDS = 0.2


class Digests(Struct, frozen=True):
    sha256: str
    md5: str
    """Empty: nobody asked."""


class FileFacts(Struct, frozen=True):
    """What a source says of its file."""

    name: str
    mime: str
    size: int | None
    """None: it cannot tell before the end."""
    key: str
    """Another one means other bytes. Empty: it cannot tell, so that nothing is kept."""
    md5: str = ""
    sha256: str = ""
    can_resume: bool = True
    is_of_this_machine: bool = False
    """A file that we read ourselves: nobody in between could send another one."""
    is_settled: bool = False
    """Its key will never be that of other bytes, also if it is changed while nobody looks."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """What changes with the file, and proves nothing where it does not. Only looked at where nobody names a digest."""

    def has_same_content(self, before: FileFacts) -> bool:
        is_same = (self.key, self.size, self.md5, self.sha256) == (before.key, before.size, before.md5, before.sha256)
        return is_same and all(self.marks.get(name) == value for name, value in before.marks.items())


class PartialFile:
    """The bytes so far, and the sidecar that says of what they are. One writer: the directory is locked. Once it is
    known whose they are, their digests follow them."""

    def __init__(self, keep: Path) -> None:
        self.path = keep / "file.part"
        self._sidecar = sidecar_in(keep)
        self._noted = self._read()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(self.path, flags, 0o600)
        self.length = os.fstat(self.descriptor).st_size
        self._following: DigestThread | None = None

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.close()
        os.close(self.descriptor)

    @property
    def deferrals(self) -> int:
        count = self._noted.get("deferrals", 0)
        return count if isinstance(count, int) else 0

    def adopt(self, facts: FileFacts, *, has_md5: bool = False) -> None:
        """Keep the bytes if they are of this revision; else begin. The sidecar is there before the first byte is."""
        self._adopt(facts)
        if self._following is not None:
            self._following.close()
        self._following = DigestThread(self.descriptor, has_md5=has_md5)
        self._following.reach(self.length)

    def _adopt(self, facts: FileFacts) -> None:
        revision = {"key": facts.key, "size": facts.size, "md5": facts.md5, "sha256": facts.sha256}
        is_same = all(self._noted.get(name) == value for name, value in revision.items())
        is_same = is_same and self._noted.get("marks", {}) == facts.marks
        is_possible = self.length <= facts.size if facts.size is not None else True
        if is_same and is_possible and facts.key and facts.can_resume:
            return
        self.clear()
        self._write({**revision, "marks": dict(facts.marks), "deferrals": self.deferrals})

    def clear(self) -> None:
        if self._following is not None:
            self._following.restart()
        os.ftruncate(self.descriptor, 0)
        self.length = 0

    def append(self, block: bytes) -> int:
        left = memoryview(block)
        while left:
            written = _on_disk(os.pwrite, self.descriptor, left, self.length)
            self.length += written
            left = left[written:]
        self._reach()
        return len(block)

    def copy_from(self, descriptor: int, offset: int, most: int) -> int:
        """Inside the kernel, which may share the blocks instead."""
        count = os.copy_file_range(descriptor, self.descriptor, most, offset, self.length)
        self.length += count
        self._reach()
        return count

    def digests(self, between: Callable[[int], None]) -> Digests:
        """Of all that is here. `between` hears how far it is, and may raise."""
        if self._following is None:
            raise ValueError("nobody has said whose bytes these are: call adopt() first")
        return self._following.finish(between)

    def head(self) -> bytes:
        return os.pread(self.descriptor, file_kinds.HEAD_BYTES, 0)

    def _reach(self) -> None:
        if self._following is not None:
            self._following.reach(self.length)

    def room(self) -> int:
        disk = os.fstatvfs(self.descriptor)
        return disk.f_bavail * disk.f_frsize

    def note_deferral(self) -> None:
        self._write({**self._noted, "deferrals": self.deferrals + 1})

    def _read(self) -> dict[str, Any]:
        try:
            noted = json.loads(self._sidecar.read_bytes())
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def _write(self, noted: dict[str, Any]) -> None:
        fresh = self._sidecar.with_suffix(".fresh")
        _on_disk(fresh.write_text, json.dumps(noted))
        sync_path(fresh)
        fresh.rename(self._sidecar)
        sync_path(self._sidecar.parent)
        self._noted = noted


def sidecar_in(keep: Path) -> Path:
    return keep / "file.json"


def _on_disk(call: Callable[..., Any], *values: object) -> Any:
    try:
        return call(*values)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError("DISK_FULL") from error
        # Not an OSError any more, which would be taken for the network's.
        raise Retryable(f"the workspace cannot be written: {error.strerror}", code="WORKSPACE_UNWRITABLE") from error


# --- their digests ------------------------------------------------------------------------------------
# Of the bytes in the file, not of those in somebody's memory, and there soon after the last one: a thread follows
# behind the writer and reads back what he wrote. hashlib lets go of the interpreter, so that the two run at once.


class DigestThread:
    """One file, one writer: he tells how far he has come (`reach`), that he begins anew (`restart`), and asks."""

    def __init__(self, descriptor: int, *, has_md5: bool) -> None:
        self._descriptor = descriptor
        self._has_md5 = has_md5
        self._said = threading.Condition()
        self._written = 0
        self._wanted = 0
        """How far to go now; it follows `_written` in strides."""
        self._done = 0
        self._beginning = 0
        self._is_over = False
        self._failure: OSError | None = None
        self._found = self._of_nothing()
        self._thread = threading.Thread(target=self._follow, name="digests", daemon=True)
        self._thread.start()

    def reach(self, length: int) -> None:
        self._written = length
        if length - self._wanted >= _STRIDE_BYTES:
            self._go(length)

    def restart(self) -> None:
        """Before the file is cut: what was read meanwhile counts for nothing."""
        with self._said:
            self._beginning += 1
            self._written = self._wanted = self._done = 0
            self._found = self._of_nothing()

    def finish(self, between: Callable[[int], None]) -> Digests:
        """Of all that was written. `between` hears now and then how far it is, and may raise."""
        self._go(self._written)
        with self._said:
            while self._done < self._wanted and self._failure is None:
                self._said.wait(_LOOK_SECONDS)
                between(self._done)
            if self._failure is not None:
                raise Retryable(
                    f"the workspace cannot be read: {self._failure.strerror}", code="WORKSPACE_UNREADABLE"
                ) from self._failure
            return self._found

    def close(self) -> None:
        with self._said:
            self._is_over = True
            self._said.notify_all()
        self._thread.join()

    def _go(self, length: int) -> None:
        with self._said:
            self._wanted = length
            self._said.notify_all()

    # --- the thread -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        block = memoryview(bytearray(_BLOCK_BYTES))
        beginning, sha256, md5 = 0, hashlib.sha256(), self._new_md5()
        while (asked := self._next()) is not None:
            begun, offset, wanted = asked
            if begun != beginning:
                beginning, sha256, md5 = begun, hashlib.sha256(), self._new_md5()
            try:
                count = os.preadv(self._descriptor, [block[: min(wanted - offset, _BLOCK_BYTES)]], offset)
                if count == 0 and self._beginning == begun:
                    raise OSError(errno.EIO, "it holds less than what was written")
            except OSError as error:
                self._fail(error)
                return
            sha256.update(block[:count])
            if md5 is not None:
                md5.update(block[:count])
            with self._said:
                if self._beginning == begun:
                    self._done = offset + count
                    if self._done == self._wanted:
                        self._found = Digests(sha256.hexdigest(), md5.hexdigest() if md5 is not None else "")
                        self._said.notify_all()

    def _next(self) -> tuple[int, int, int] | None:
        with self._said:
            while self._done >= self._wanted and not self._is_over:
                self._said.wait()
            return None if self._is_over else (self._beginning, self._done, self._wanted)

    def _fail(self, error: OSError) -> None:
        with self._said:
            self._failure = error
            self._said.notify_all()

    def _of_nothing(self) -> Digests:
        return Digests(hashlib.sha256().hexdigest(), hashlib.md5(usedforsecurity=False).hexdigest() * self._has_md5)

    def _new_md5(self) -> Any:
        return hashlib.md5(usedforsecurity=False) if self._has_md5 else None
