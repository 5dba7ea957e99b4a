"""The digests of a file that is still being written: a thread follows behind the writer and reads back what he wrote.

So what is told is of the bytes in the file, not of those in somebody's memory, and it is there soon after the last one.
hashlib lets go of the interpreter, so that the two run at once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker_service.handlers import Retryable

_BLOCK_BYTES = 256 << 10
"""Stays in a core's cache, so that a second digest of it costs no second reading."""
_STRIDE_BYTES = 1 << 20
"""The writer calls the follower that often, not for each of his writes."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Digests:
    sha256: str
    md5: str
    """Empty: nobody asked."""


class Following:
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
