"""What an attempt logs and prints, on its way to the table: one stream, whole lines of it, the newest of them.

Whatever comes faster than it can be written costs its author: the stream is read at a pace, so that a flood waits in
its own pipe, and of what waits to be written the older lines go first. The table would not keep them either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from worker_service.children.messages import LINE_CHARACTERS_MAX, clipped, printable
from worker_service.jobs.model import LOG_LINES_MOST

GAP = "… older lines are left out here"
"""It is trimmed away with the lines before it once an attempt's newest lines are all written."""
_LINE_BYTES_MAX = 4 * LINE_CHARACTERS_MAX


class Newest:
    """The newest lines that wait to be written, in their order."""

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
        """Those that were taken last, and are older than all that wait."""
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


class Printed:
    """The bytes that come out of a child, line by line. Of a line without an end only the beginning is held."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self._rest = b""

    def feed(self, received: bytes) -> None:
        *whole, rest = (self._rest + received).split(b"\n")
        self.lines.extend(whole)
        if len(rest) > _LINE_BYTES_MAX:
            rest = _shown(rest)[:_LINE_BYTES_MAX]
        self._rest = rest

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


def readable(line: bytes) -> str:
    text = _shown(line)[:_LINE_BYTES_MAX].decode("utf-8", "replace")
    return clipped(printable(text), LINE_CHARACTERS_MAX)


def _shown(line: bytes) -> bytes:
    """As a terminal would leave it: what stands before a carriage return was written over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
