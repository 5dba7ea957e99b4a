"""Faults that tests arm, and the requests that the server has logged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

KINDS = (
    "status", "page", "stall", "drip", "header drip", "cut", "reset", "short", "offset", "total", "whole", "swapped",
    "hang up", "garbage", "call",
)  # fmt: skip
"""`call` only calls `action`, and the answer is right."""


@dataclass
class Fault:
    kind: str
    on: str = "media"
    """media, metadata, list, changes, token, export, plain; or any."""
    times: int = 1
    skip: int = 0
    """Number of such requests that are answered rightly before."""
    beyond: int = 0
    """Applies only to requests for bytes from here on."""
    at: int = 0
    """Number of bytes of the body that are sent before."""
    status: int = 500
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    gap: float = 0.03
    """Seconds between two bytes of a drip."""
    action: Callable[[], None] = lambda: None
    """Called when the fault applies."""
    met: int = 0
    """Number of requests to which it has applied."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


@dataclass(frozen=True)
class LoggedRequest:
    on: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    connection: int
    at: float = field(default_factory=time.monotonic)

    @property
    def begin(self) -> int:
        """Offset of the first requested byte."""
        bytes_range = self.headers.get("range", "")
        return int(bytes_range.removeprefix("bytes=").partition("-")[0]) if bytes_range else 0

    @property
    def end(self) -> int | None:
        last = self.headers.get("range", "").partition("-")[2]
        return int(last) + 1 if last else None


class Faults:
    def __init__(self) -> None:
        self._armed: list[Fault] = []
        self._lock = threading.Lock()

    def arm(self, *faults: Fault) -> None:
        with self._lock:
            self._armed += faults

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

    def armed(self) -> list[Fault]:
        with self._lock:
            return [*self._armed]

    def for_request(self, request: LoggedRequest) -> Fault | None:
        with self._lock:
            for fault in self._armed:
                if fault.on not in (request.on, "any") or request.begin < fault.beyond:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.met += 1
                if fault.met >= fault.times:
                    self._armed.remove(fault)
                return fault
        return None
