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
            # Continue working if systemd does not receive.
            return


def one_line(text: str) -> str:
    # A line break would start another message to systemd, and the text may be untrusted.
    return "".join(letter if letter.isprintable() else " " for letter in text)[:500]


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    meant_for = environ.get("WATCHDOG_PID", "")
    given = environ.get("WATCHDOG_USEC", "")
    if not given.isdigit() or (meant_for and meant_for != str(os.getpid())):
        return None
    return int(given) / 1e6 or None
