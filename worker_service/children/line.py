"""One nursery process, and the line to it, as the daemon holds them. Used by `nursery` alone."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Sequence

from worker_service.children.gone import Key
from worker_service.children.model import Described, Ended, Happening
from worker_service.children.wire import RELAY_BYTES_MAX, Hello, Inbox

ASK_SECONDS = 10.0
SILENCES_MAX = 6


class Line:
    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self.process = process
        self.socket = line
        self.inbox = Inbox(RELAY_BYTES_MAX)
        self.unsent = bytearray()
        self.keys: set[Key] = set()
        self.seats: set[int] = set()
        """Those that had a kept child."""
        self.forks = 0.0
        self.threads = 0
        self.described: Sequence[Described] = ()
        self.reuse: dict[str, int] = {}
        self.environment: dict[str, Sequence[str]] = {}
        self.has_said_hello = False
        self.is_broken = False
        self.is_waiting_to_send = False
        self._asked_at = time.monotonic()
        self._unanswered = 0

    def introduce(self, hello: Hello) -> None:
        self.has_said_hello = True
        self.threads = hello.threads
        self.described = [each.described for each in hello.handlers]
        self.reuse = {each.described.facts.job_type: each.described.reuse for each in hello.handlers}
        self.environment = {each.described.facts.job_type: each.environment for each in hello.handlers}

    def expects(self, happening: Happening) -> bool:
        """Strike it off when it has ended; nothing is heard of an attempt twice."""
        key = (happening.job_id, happening.fence)
        if key not in self.keys:
            return False
        if isinstance(happening, Ended):
            self.keys.discard(key)
        return True

    def must_ask(self) -> bool:
        """Now and then, whether it still turns. Broken after too many silences, each of which we were there to hear:
        a machine that slept counts as one."""
        now = time.monotonic()
        if not self.has_said_hello or now < self._asked_at + ASK_SECONDS:
            return False
        self._asked_at = now
        self._unanswered += 1
        if self._unanswered > SILENCES_MAX:
            self.is_broken = True
            return False
        return True

    def answered(self) -> None:
        self._unanswered = 0

    def hang_up(self) -> None:
        """It stops what it has, and ends."""
        if self.socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
