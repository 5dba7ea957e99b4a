from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.runner.messages import LINE_CHARACTERS_MAX

# The prune of log lines removes it with the lines before it.
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
        self._forget_older()

    def put_back(self, lines: Iterable[str]) -> None:
        several = list(lines)
        self._lines.extendleft(reversed(several))
        self.characters += sum(map(len, several))
        self._forget_older()

    def take(self, most: int = LOG_LINES_MOST) -> list[str]:
        taken = [self._lines.popleft() for _ in range(min(most, len(self._lines)))]
        self.characters -= sum(map(len, taken))
        gap, self._has_gap = [GAP] if self._has_gap else [], False
        return [*gap, *taken]

    def _forget_older(self) -> None:
        while len(self._lines) > LOG_LINES_MOST:
            self.characters -= len(self._lines.popleft())
            self._has_gap = True


LINE_BYTES_MAX = 4 * LINE_CHARACTERS_MAX


class OutputLines:
    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self._rest = b""

    def feed(self, received: bytes) -> None:
        *whole, rest = (self._rest + received).split(b"\n")
        self.lines.extend(whole)
        if len(rest) > LINE_BYTES_MAX:
            rest = visible_part(rest)[:LINE_BYTES_MAX]
        self._rest = rest

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


def visible_part(line: bytes) -> bytes:
    # A carriage return overwrites what precedes it.
    return line.rstrip(b"\r").rpartition(b"\r")[2]
