"""Lines that a handler logs and prints, until they are written. The fork server and the daemon both buffer them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.runner.messages import LINE_CHARACTERS_MAX

# Stored in place of dropped lines. The prune of log lines removes it together with the lines before it.
GAP = "… older lines are left out here"


class LogBuffer:
    """Drops the oldest lines when they come faster than they can be written."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self.characters = 0
        self._has_gap = False

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)
            self.characters += len(line)
        self._drop_oldest()

    def restore(self, lines: Iterable[str]) -> None:
        restored = list(lines)
        self._lines.extendleft(reversed(restored))
        self.characters += sum(map(len, restored))
        self._drop_oldest()

    def pop(self, lines_most: int = LOG_LINES_MOST) -> list[str]:
        popped = [self._lines.popleft() for _ in range(min(lines_most, len(self._lines)))]
        self.characters -= sum(map(len, popped))
        gap, self._has_gap = [GAP] if self._has_gap else [], False
        return [*gap, *popped]

    def _drop_oldest(self) -> None:
        while len(self._lines) > LOG_LINES_MOST:
            self.characters -= len(self._lines.popleft())
            self._has_gap = True


# A character of UTF-8 takes at most four bytes.
LINE_BYTES_MAX = 4 * LINE_CHARACTERS_MAX


class OutputLines:
    def __init__(self) -> None:
        self._unfinished = b""

    def feed(self, received: bytes) -> list[bytes]:
        *lines, unfinished = (self._unfinished + received).split(b"\n")
        if len(unfinished) > LINE_BYTES_MAX:
            unfinished = visible_part(unfinished)[:LINE_BYTES_MAX]
        self._unfinished = unfinished
        return lines

    def pop_unfinished(self) -> bytes:
        unfinished, self._unfinished = self._unfinished, b""
        return unfinished


def visible_part(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]
