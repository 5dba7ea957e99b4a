"""The bytes of a file so far, which later attempts continue, and a sidecar file that names their revision."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from job_handlers import file_kinds
from job_handlers.fetch.error_rules import FetchError
from worker_service.base.files import atomic_write
from worker_service.handlers import Retryable

_BLOCK_BYTES = 256 << 10  # Fits into a core's cache, so that the second digest of a block reads no memory.
_WAKE_BYTES = 1 << 20  # Least number of new bytes for which the digest thread is woken.
_POLL_SECONDS = 0.2


class Digests(Struct, frozen=True):
    sha256: str
    md5: str


class FileFacts(Struct, frozen=True):
    name: str
    mime: str
    size: int | None
    # If it is empty, or without `can_resume`, each attempt fetches the file from its start.
    revision: str
    md5: str = ""
    sha256: str = ""
    can_resume: bool = True
    is_of_this_machine: bool = False
    # True if other bytes of the file will always have another `revision`.
    is_settled: bool = False

    def has_same_content(self, other: FileFacts) -> bool:
        content = (self.revision, self.size, self.md5, self.sha256)
        return content == (other.revision, other.size, other.md5, other.sha256)


class PartialFile:
    def __init__(self, keep: Path) -> None:
        self.path = keep / "file.part"
        self._sidecar = keep / "file.json"
        self._saved = self._read_sidecar()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(self.path, flags, 0o600)
        self.length = os.fstat(self.descriptor).st_size
        self._digest_thread: DigestThread | None = None

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._digest_thread is not None:
            self._digest_thread.close()
        os.close(self.descriptor)

    @property
    def deferrals(self) -> int:
        count = self._saved.get("deferrals", 0)
        return count if isinstance(count, int) else 0

    def begin(self, facts: FileFacts, *, has_md5: bool = False) -> None:
        content = {"key": facts.revision, "size": facts.size, "md5": facts.md5, "sha256": facts.sha256}
        has_same_content = all(self._saved.get(name) == value for name, value in content.items())
        is_too_long = facts.size is not None and self.length > facts.size
        if not (has_same_content and facts.revision and facts.can_resume) or is_too_long:
            self.clear()
            self._write_sidecar({**content, "deferrals": self.deferrals})
        if self._digest_thread is not None:
            self._digest_thread.close()
        self._digest_thread = DigestThread(self.descriptor, has_md5=has_md5)
        self._digest_thread.advance(self.length)

    def clear(self) -> None:
        if self._digest_thread is not None:
            self._digest_thread.restart()
        os.ftruncate(self.descriptor, 0)
        self.length = 0

    def append(self, block: bytes) -> int:
        left = memoryview(block)
        while left:
            written = _write_to_disk(os.pwrite, self.descriptor, left, self.length)
            left = left[written:]
            self.length += written
        if self._digest_thread is not None:
            self._digest_thread.advance(self.length)
        return len(block)

    def digests(self, on_progress: Callable[[int], None]) -> Digests:
        if self._digest_thread is None:
            raise ValueError("call begin() first")
        return self._digest_thread.finish(on_progress)

    def head(self) -> bytes:
        return os.pread(self.descriptor, file_kinds.HEAD_BYTES, 0)

    def free_disk_bytes(self) -> int:
        disk = os.fstatvfs(self.descriptor)
        return disk.f_bavail * disk.f_frsize

    def save_deferral(self) -> None:
        self._write_sidecar({**self._saved, "deferrals": self.deferrals + 1})

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self._sidecar.unlink(missing_ok=True)

    def _read_sidecar(self) -> dict[str, Any]:
        try:
            saved = json.loads(self._sidecar.read_bytes())
        except (OSError, ValueError):
            return {}
        return saved if isinstance(saved, dict) else {}

    def _write_sidecar(self, facts: dict[str, Any]) -> None:
        _write_to_disk(self._replace_sidecar, json.dumps(facts).encode())
        self._saved = facts

    def _replace_sidecar(self, content: bytes) -> None:
        # Sync it: after a power cut, bytes must not be found beside the sidecar of another revision.
        with atomic_write(self._sidecar, is_synced=True) as file:
            file.write(content)


def _write_to_disk(call: Callable[..., Any], *values: object) -> Any:
    try:
        return call(*values)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError("DISK_FULL") from error
        raise Retryable(f"the workspace cannot be written: {error.strerror}", code="WORKSPACE_UNWRITABLE") from error


class DigestThread:
    """Reads the bytes back from the file in a thread, and computes digests while the file is still fetched."""

    def __init__(self, descriptor: int, *, has_md5: bool) -> None:
        self._descriptor, self._has_md5 = descriptor, has_md5
        # The thread reads up to each length, then sets the event. 0 makes it start again, None ends it.
        self._requests: SimpleQueue[tuple[int, threading.Event] | None] = SimpleQueue()
        # Lengths of the file that are written, requested from the thread, and digested.
        self._written = self._requested = self._digested = 0
        self._is_closed = False
        self._failure: OSError | None = None
        self._reset()
        self._thread = threading.Thread(target=self._run, name="digests", daemon=True)
        self._thread.start()

    def advance(self, length: int) -> None:
        self._written = length
        if length - self._requested >= _WAKE_BYTES:
            self._request(length)

    def restart(self) -> None:
        self._written = 0
        self._request(0)

    def finish(self, on_progress: Callable[[int], None]) -> Digests:
        is_done = self._request(self._written)
        while not is_done.wait(_POLL_SECONDS):
            on_progress(self._digested)
        if self._failure is not None:
            raise Retryable(
                f"the workspace cannot be read: {self._failure.strerror}", code="WORKSPACE_UNREADABLE"
            ) from self._failure
        return Digests(self._sha256.hexdigest(), self._md5.hexdigest() if self._has_md5 else "")

    def close(self) -> None:
        self._is_closed = True
        self._requests.put(None)
        self._thread.join()

    def _request(self, length: int) -> threading.Event:
        is_done, self._requested = threading.Event(), length
        self._requests.put((length, is_done))
        return is_done

    def _run(self) -> None:
        block = memoryview(bytearray(_BLOCK_BYTES))
        for length, is_done in iter(self._requests.get, None):
            if length == 0:
                self._reset()
            try:
                self._digest_to(length, block)
            except OSError as error:
                self._failure = error
            is_done.set()

    def _digest_to(self, length: int, block: memoryview) -> None:
        while self._digested < length and not self._is_closed:
            count = os.preadv(self._descriptor, [block[: min(length - self._digested, _BLOCK_BYTES)]], self._digested)
            if count == 0:
                # If the writer has just truncated the file, a length of 0 follows, and resets this failure.
                raise OSError(errno.EIO, "the file is shorter than what was written")
            self._sha256.update(block[:count])
            if self._has_md5:
                self._md5.update(block[:count])
            self._digested += count

    def _reset(self) -> None:
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        self._digested, self._failure = 0, None
