"""Messages to systemd, sent only if `NOTIFY_SOCKET` is set."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ marks an abstract socket.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = _watchdog_seconds(environ)
        self._status = ""

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        if text != self._status:
            self._status = text
            self._send(f"STATUS={one_line(text)}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError:
            return  # a service without systemd still works


def one_line(text: str) -> str:
    # A line break would start another message to systemd, and the text may be untrusted.
    return "".join(character if character.isprintable() else " " for character in text)[:500]


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    watchdog_pid = environ.get("WATCHDOG_PID", "")
    microseconds = environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdigit() or (watchdog_pid and watchdog_pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6 or None
