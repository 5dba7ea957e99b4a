"""What can be made to go wrong, and what was asked. A fault is armed beforehand and spent by the requests it meets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

KINDS = (
    "status", "page", "stall", "drip", "header drip", "cut", "reset", "short", "offset", "total", "whole", "swapped",
    "hang up", "garbage", "deed",
)  # fmt: skip


@dataclass
class Fault:
    kind: str
    on: str = "media"
    """media, metadata, list, changes, token, export, plain; or any."""
    times: int = 1
    skip: int = 0
    """Requests of its sort that it lets pass first."""
    beyond: int = 0
    """It meets only requests for bytes from here on."""
    at: int = 0
    """After so many bytes of the body."""
    status: int = 500
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    gap: float = 0.03
    """Between two bytes of a drip."""
    deed: Callable[[], None] = lambda: None
    """Done when it is met."""
    met: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is not a fault")


@dataclass(frozen=True)
class Asked:
    """One request, as the log has it."""

    on: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    connection: int
    at: float = field(default_factory=time.monotonic)

    @property
    def begin(self) -> int:
        """The first byte that was asked for."""
        wanted = self.headers.get("range", "")
        return int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0

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

    def left(self) -> list[Fault]:
        with self._lock:
            return [*self._armed]

    def for_request(self, asked: Asked) -> Fault | None:
        with self._lock:
            for fault in self._armed:
                if fault.on not in (asked.on, "any") or asked.begin < fault.beyond:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.met += 1
                if fault.met >= fault.times:
                    self._armed.remove(fault)
                return fault
        return None
