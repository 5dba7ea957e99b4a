"""The Ray task: passes one attempt to the server of its node. It imports little, because each slot has a process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from worker_service.base.directories import open_nested_folder

# Messages of a node are gathered for this time after the first one.
GATHER_SECONDS = 0.25
# A task without messages yields an empty list this often, which shows the driver that the stream works.
ALIVE_SECONDS = 5.0
# Longest system call: Ray cancels a task by a KeyboardInterrupt, which Python raises only after the call.
INTERRUPT_SECONDS = 0.5
# Longest wait until the server of the node is ready, and until a stopped attempt has ended.
START_SECONDS = 60.0
# While so many items wait for the driver, `yield` blocks, and the node server notices the silence.
ITEMS_AHEAD = 2

# Frames on the connection: kind, length of the body, body. A server sends HELLO, MESSAGE and ENDED.
HELLO, LAUNCH, FILE, ALIVE, STOP, MESSAGE, ENDED = b"H", b"L", b"F", b"A", b"S", b"M", b"E"
HEADER = struct.Struct(">cQ")


class NodeUnfit(Exception): ...


class NodeServerLost(Exception): ...


def run_attempt(launch: bytes, terms: bytes, *files: bytes) -> Iterator[list[bytes]]:
    """Yield the node's id, then the messages in order; the last one begins with `ENDED`."""
    node_id = _node_id()
    yield [node_id.encode()]
    connection = _connect(terms, node_id)
    try:
        connection.send([(FILE, body) for body in files] + [(LAUNCH, launch)])
        while True:
            messages = connection.receive()
            yield messages
            if messages and messages[-1].startswith(ENDED):
                return
            connection.send([(ALIVE, b"")])
    except BaseException:
        # Also if Ray cancels the task, or the driver closes the stream.
        connection.stop()
        raise


def probe(terms: bytes) -> None:
    _connect(terms, _node_id())


def frame(kind: bytes, body: bytes) -> bytes:
    return HEADER.pack(kind, len(body)) + body


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


class _NodeConnection:
    def __init__(self, server: socket.socket) -> None:
        self._socket = server
        self._unread = bytearray()
        kind, fault = self._next_frame(START_SECONDS) or (b"", b"")
        self.fault = fault.decode()
        if kind != HELLO:
            raise ConnectionError("the node server ended before it was ready")

    @property
    def is_usable(self) -> bool:
        return self._socket.fileno() >= 0 and not self._unread and not select.select([self._socket], [], [], 0)[0]

    def send(self, frames: Sequence[tuple[bytes, bytes]]) -> None:
        self._socket.settimeout(None)
        try:
            self._socket.sendall(b"".join(frame(kind, body) for kind, body in frames))
        except OSError as error:
            raise NodeServerLost(f"the fork server of the node ended: {error}") from error

    def receive(self) -> list[bytes]:
        """Return the next message and those that follow within `GATHER_SECONDS`, or [] after `ALIVE_SECONDS`."""
        messages: list[bytes] = []
        until = time.monotonic() + ALIVE_SECONDS
        while time.monotonic() < until:
            received = self._next_frame(until - time.monotonic())
            if received is None:
                break
            kind, body = received
            messages.append(kind + body)
            if kind == ENDED:
                break
            if len(messages) == 1:
                until = min(until, time.monotonic() + GATHER_SECONDS)
        return messages

    def stop(self) -> None:
        """Stop the attempt, and return when all its processes are gone."""
        global _connection
        _connection = None
        with contextlib.suppress(OSError, ConnectionError, NodeServerLost), self._socket:
            self.send([(STOP, b"")])
            kind: bytes | None = None
            while kind != ENDED:
                kind, _ = self._next_frame(START_SECONDS) or (ENDED, b"")

    def _next_frame(self, seconds: float) -> tuple[bytes, bytes] | None:
        until = time.monotonic() + seconds
        while True:
            if len(self._unread) >= HEADER.size:
                kind, length = HEADER.unpack_from(self._unread)
                end = HEADER.size + length
                if len(self._unread) >= end:
                    body = bytes(self._unread[HEADER.size : end])
                    del self._unread[:end]
                    return kind, body
            seconds_left = until - time.monotonic()
            # A timeout of 0 would make the socket non-blocking.
            self._socket.settimeout(max(0.001, min(seconds_left, INTERRUPT_SECONDS)))
            try:
                received = self._socket.recv(1 << 16)
            except TimeoutError:
                if seconds_left <= INTERRUPT_SECONDS:
                    return None
                continue
            except OSError as error:
                raise NodeServerLost(f"the fork server of the node ended: {error}") from error
            if not received:
                raise NodeServerLost("the fork server of the node ended")
            self._unread += received


_connection: _NodeConnection | None = None


def _connect(terms: bytes, node_id: str) -> _NodeConnection:
    global _connection
    if _connection is None or not _connection.is_usable:
        _connection = _open_connection(_server_directory(terms, node_id), terms)
    if fault := _connection.fault:
        _connection = None
        raise NodeUnfit(fault)
    return _connection


def _open_connection(directory: Path, terms: bytes) -> _NodeConnection:
    deadline = time.monotonic() + START_SECONDS
    while True:
        # A server that ends removes its directory.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        server = socket.socket(socket.AF_UNIX)
        try:
            # The path may be longer than the 107 bytes of an address.
            with open_nested_folder(directory) as folder:
                server.connect(f"/proc/self/fd/{folder}/socket")
            return _NodeConnection(server)
        except (OSError, NodeServerLost) as error:
            server.close()
            if time.monotonic() > deadline:
                raise NodeServerLost(f"the fork server of the node does not start: {error}") from error
        # The command returns when the socket exists, or when another process is starting the server.
        command = [sys.executable, "-P", "-m", "worker_service.cluster.node_server", str(directory)]
        subprocess.run(command, input=terms, check=False)
        time.sleep(0.05)


def _server_directory(terms: bytes, node_id: str) -> Path:
    user_state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(user_state) if user_state.startswith("/") else Path.home() / ".local" / "state"
    service_state = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    directory = Path(service_state) if service_state else base / "pagemill-node"
    return directory / f"{node_id[:16]}-{hashlib.blake2s(terms, digest_size=8).hexdigest()}"
