"""SIGTERM and SIGINT: the first asks the daemon to finish, the second to stop at once.

The handler only counts, and writes a byte that ends the loop's wait; what follows is the loop's to decide.
"""

from __future__ import annotations

import signal
import socket
from types import FrameType


class Signals:
    """Only in the main thread: Python runs handlers there."""

    def __init__(self) -> None:
        self.asked_to_stop = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {name: signal.signal(name, self._count) for name in (signal.SIGTERM, signal.SIGINT)}

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self) -> None:
        """Take the bytes, so that the next wait waits."""
        try:
            while self._reader.recv(64):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)
        signal.set_wakeup_fd(self._before_wakeup)
        self._reader.close()
        self._writer.close()

    def _count(self, _: int, __: FrameType | None) -> None:
        self.asked_to_stop += 1
