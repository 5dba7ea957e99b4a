"""HTTP bodies under a clock: no answer takes longer than it may, however cleverly it trickles.

A socket's own time-out begins anew with every byte, and libraries loop inside one read. So a thread watches: when the
time for a chunk is over, or the attempt is to end, it shuts the sockets down, and whoever waits on them, for a header
or a byte, returns. What an answer is about is left to the sources.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from job_handlers.fetch.errors import FetchError, Timeouts
from job_handlers.fetch.partial_file import PartialFile
from job_handlers.fetch.sources.addresses import retry_after
from worker_service.handlers import Stopped

READ_BYTES = 256 << 10
_LOOK_SECONDS = 0.1
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Watchdog:
    """One per attempt. `is_stopping` is asked ten times a second."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._held: list[socket.socket] = []
        self._until = float("inf")
        self._lock = threading.Lock()
        self._end = threading.Event()
        self.is_late = False
        self.has_stopped = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def hold(self, one: socket.socket) -> None:
        with self._lock:
            self._held = [other for other in self._held if other.fileno() >= 0]
            self._held.append(one)

    @contextmanager
    def holding(self, one: socket.socket) -> Iterator[None]:
        """A copy of a socket that is about to be wrapped, for as long as that takes."""
        copy = one.dup()
        self.hold(copy)
        try:
            yield
        finally:
            copy.close()

    def give(self, seconds: float) -> None:
        """So long from now, for what comes next."""
        self.is_late = False
        self._until = time.monotonic() + seconds

    def rest(self) -> None:
        self._until = float("inf")

    def is_over(self) -> bool:
        return time.monotonic() > self._until

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        # An answer that nobody has read, such as the 401 before a fresh token, leaves its connection to us; and as long
        # as its file object lives, close() would only promise to close.
        for one in self._held:
            if one.fileno() >= 0:
                os.close(one.detach())

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            if self._is_stopping():
                self.has_stopped = True
            elif self.is_over():
                self.is_late = True
            else:
                continue
            with self._lock:
                for one in self._held:
                    # The socket's own: a TLS socket would forget that it is one, and hand out what is still encrypted.
                    with suppress(OSError):
                        socket.socket.shutdown(one, socket.SHUT_RDWR)


class Answer(Protocol):
    """What http.client and urllib3 have in common."""

    def read1(self, amount: int, /) -> bytes: ...


class Headers(Protocol):
    """What all libraries' headers have in common."""

    def get(self, name: str, default: str, /) -> str: ...


class Wire:
    """One host's conversations under one watchdog."""

    def __init__(self, host: str, watchdog: Watchdog, timeouts: Timeouts) -> None:
        self.host, self.watchdog, self.timeouts = host, watchdog, timeouts

    @contextmanager
    def talking(self, *errors: type[Exception]) -> Iterator[None]:
        """Whatever breaks inside, in the words of `troubles`. `errors`: what the library adds to the usual ones."""
        lost: tuple[type[Exception], ...] = (OSError, http.client.HTTPException, *errors)
        self.watchdog.give(self.timeouts.chunk_seconds)
        try:
            yield
            self.look()
        except lost as error:
            raise self._broken(error) from error
        finally:
            self.watchdog.rest()

    def body(self, answer: Answer, most: int | None) -> Iterator[bytes]:
        """Its bytes as they come, until it ends or `most` have come. Within `talking`."""
        left, until_next = most, self.timeouts.chunk_bytes
        while left is None or left > 0:
            block = answer.read1(READ_BYTES if left is None else min(READ_BYTES, left))
            if not block:
                self.look()
                return
            yield block
            left = None if left is None else left - len(block)
            until_next -= len(block)
            if until_next <= 0:
                until_next = self.timeouts.chunk_bytes
                self.watchdog.give(self.timeouts.chunk_seconds)
            elif self.watchdog.is_over():
                raise FetchError("CHUNK_TOO_SLOW", host=self.host)

    def poured(self, answer: Answer, part: PartialFile, most: int | None) -> Iterator[int]:
        """Into the part, as it comes. Within `talking`."""
        for block in self.body(answer, most):
            yield part.append(block)

    def look(self) -> None:
        if self.watchdog.has_stopped:
            raise Stopped
        if self.watchdog.is_late:
            raise FetchError("CHUNK_TOO_SLOW", host=self.host)

    def _broken(self, error: Exception) -> FetchError:
        self.look()
        causes = list(_causes(error))
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return FetchError("CERTIFICATE_INVALID", host=self.host, reason=cause.verify_message)
        for cause in causes:
            if isinstance(cause, socket.gaierror):
                return FetchError("HOST_UNKNOWN", host=self.host)
            if isinstance(cause, TimeoutError) or "timed out" in str(cause):
                return FetchError("TIMED_OUT", host=self.host)
            if isinstance(cause, http.client.IncompleteRead):
                return FetchError("CUT_SHORT", host=self.host)
        if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
            return FetchError("ANSWER_GARBLED", host=self.host)
        return FetchError("CONNECTION_LOST", host=self.host)


def check_range(headers: Headers, offset: int, size: int | None, host: str) -> None:
    """Of an answer 206: the bytes that were asked for, of a file as long as it should be."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if found is None or int(found[1]) != offset or (size is not None and found[3] not in ("*", str(size))):
        raise FetchError("RANGE_WRONG", host=host)


def range_total(headers: Headers) -> int | None:
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return int(found[3]) if found and found[3].isdigit() else None


def of_status(status: int, headers: Headers, host: str) -> FetchError:
    """What any server means by a status that is no success."""
    after = retry_after(headers.get("Retry-After", ""))
    if status == 429:
        return FetchError("RATE_LIMITED", host=host, after=after)
    if status == 408 or status == 425 or status >= 500:
        return FetchError("SERVER_ERROR", host=host, status=status, after=after)
    if status == 416:
        return FetchError("RANGE_WRONG", host=host)
    if status in (404, 410):
        return FetchError("GONE", host=host, status=status)
    return FetchError("REFUSED", host=host, status=status)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, and what it holds or came from: each library wraps in its own way."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
