"""The daemon as a process: the signals that end it, and what it tells systemd.

SIGTERM and SIGINT: the first asks the daemon to finish, the second to stop at once. The handler only counts, and writes
a byte that ends the loop's wait; what follows is the loop's to decide.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
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


# ── systemd ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Notifier:
    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ means Linux's abstract names.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = _watchdog_seconds(environ)
        self._status = ""

    def ready(self) -> None:
        self._say("READY=1")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def alive(self) -> None:
        self._say("WATCHDOG=1")

    def status(self, text: str) -> None:
        if text != self._status:
            self._status = text
            self._say(f"STATUS={one_line(text)}")

    def _say(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
                speaker.setblocking(False)
                speaker.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError:
            # A manager that does not listen is no reason to stop working.
            return


def one_line(text: str) -> str:
    """A line break would begin a message of its own: text from outside must not speak to systemd."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:500]


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    meant_for = environ.get("WATCHDOG_PID", "")
    given = environ.get("WATCHDOG_USEC", "")
    if not given.isdigit() or (meant_for and meant_for != str(os.getpid())):
        return None
    return int(given) / 1e6 or None
