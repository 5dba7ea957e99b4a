"""The process on a node that owns the fork server, and runs attempts in it for the Ray worker processes.

Each connection belongs to a Ray worker process with one attempt at a time. An attempt is stopped if its connection
closes, or is silent for `SILENCE_SECONDS`: then the node has lost the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from worker_service import VERSION
from worker_service.cluster.ray_task import ALIVE, ENDED, FILE, HEADER, HELLO, LAUNCH, MESSAGE, STOP, frame
from worker_service.jobs.documents import KnownDigests, KnownPages
from worker_service.runner import sandbox
from worker_service.runner.messages import (
    Asked,
    AttemptOver,
    Begin,
    Ended,
    HandlerDescription,
    How,
    Key,
    Launch,
    attempt_name,
)
from worker_service.runner.pool import LocalPool
from worker_service.runner.protocol import decode_as, encode_message
from worker_service.runner.questions import decode_question, empty_answer

SILENCE_SECONDS = 30.0
# A server without a connection ends after this time.
IDLE_SECONDS = 5.0
_TICK_SECONDS = 1.0
_FRAME_BYTES_MAX = 1 << 32


class Terms(msgspec.Struct, frozen=True):
    version: str
    sandbox: str
    # What the head's results depend on, by job type. A node must have all of it.
    identity: Mapping[str, Sequence[str]]


class NodeServer:
    def __init__(self, directory: Path, terms: Terms) -> None:
        self._staging = directory / f"staging-{time.time_ns()}"
        begin = Begin(self._staging, directory / "keep", sandbox=terms.sandbox, types=tuple(terms.identity))
        self._inputs = directory / "inputs"
        self._inputs.mkdir(mode=0o700, exist_ok=True)
        self._pool = LocalPool(begin)
        self._connections: set[_WorkerConnection] = set()
        self._connection_by_attempt: dict[Key, _WorkerConnection] = {}
        # Why this node cannot run attempts; empty if it can.
        self._fault = ""
        self._terms = terms

    def serve(self, listener: socket.socket) -> None:
        try:
            handlers_by_type = {handler.facts.job_type: handler for handler in self._pool.start()}
            self._fault = fault_of(self._terms, handlers_by_type)
            asyncio.run(self._serve(listener))
        finally:
            self._pool.close()

    async def _serve(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(self._pool.fileno(), self._forward_events)
        server = await asyncio.start_unix_server(self._handle_connection, sock=listener)
        idle_since = time.monotonic()
        # If the fork server died, serve on until its last process is gone and its attempts have ended.
        while (self._pool.is_alive or self._connection_by_attempt) and time.monotonic() < idle_since + IDLE_SECONDS:
            await asyncio.sleep(_TICK_SECONDS if self._pool.is_alive else 0.02)
            self._forward_events()
            if self._connections:
                idle_since = time.monotonic()
            for connection in self._connections:
                if connection.running_key is not None and time.monotonic() > connection.heard_at + SILENCE_SECONDS:
                    self._pool.stop(*connection.running_key, now=True)
        server.close()
        for connection in self._connections:
            connection.writer.close()
        while self._connections:
            await asyncio.sleep(0.01)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._pool.is_alive:
            # The task tries again until another server has started.
            writer.close()
            return
        connection = _WorkerConnection(writer)
        self._connections.add(connection)
        connection.send(HELLO, self._fault.encode())
        try:
            while True:
                kind, length = HEADER.unpack(await reader.readexactly(HEADER.size))
                if length > _FRAME_BYTES_MAX:
                    break
                body = await reader.readexactly(length)
                connection.heard_at = time.monotonic()
                if kind == FILE:
                    connection.input_contents.append(body)
                elif kind == LAUNCH:
                    self._launch(connection, body)
                elif kind == STOP and connection.running_key is not None:
                    self._pool.stop(*connection.running_key)
                elif kind != ALIVE:
                    # A STOP without an attempt: closing the connection tells the task that nothing runs.
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(connection)
            if connection.running_key is not None:
                self._pool.stop(*connection.running_key, now=True)
            writer.close()

    def _launch(self, connection: _WorkerConnection, body: bytes) -> None:
        launch = decode_as(Launch, body)
        order = launch.order
        directory = self._inputs / attempt_name(order.key)
        directory.mkdir(mode=0o700, exist_ok=True)
        paths = {role: directory / f"{role}{path.suffix}" for role, path in order.inputs.items()}
        for path, content in zip(paths.values(), connection.input_contents, strict=True):
            path.write_bytes(content)
        connection.input_contents.clear()
        connection.running_key = order.key
        connection.known_digests = frozenset(order.known_digests)
        self._connection_by_attempt[order.key] = connection
        self._pool.launch_with_environment(replace(launch, order=replace(order, inputs=paths)))

    def _forward_events(self) -> None:
        for event in self._pool.take_events():
            connection = self._connection_by_attempt.get(event.key)
            if connection is None:
                continue
            if isinstance(event, Asked):
                self._answer(event, connection)
            elif isinstance(event, Ended):
                self._end_attempt(event, connection)
            else:
                connection.send(MESSAGE, encode_message(event))

    def _answer(self, asked: Asked, connection: _WorkerConnection) -> None:
        # A node cannot ask the daemon: it answers from the order.
        question = decode_question(asked.kind, asked.body)
        if isinstance(question, KnownPages):
            known_digests = [digest for digest in question.digests if digest in connection.known_digests]
            self._pool.answer(asked, KnownDigests(known_digests))
        else:
            self._pool.answer(asked, empty_answer(question))

    def _end_attempt(self, ended: Ended, connection: _WorkerConnection) -> None:
        if ended.published:
            message = "it has published files, which an attempt on a cluster node cannot: leave `runs_on_cluster` out"
            ended = Ended(*ended.key, How.PERMANENT, code="FILES_ON_NODE", message=message, usage=ended.usage)
        over = AttemptOver(msgspec.Raw(encode_message(ended)), ended.usage, ended.took_seconds)
        connection.send(ENDED, encode_message(over))
        shutil.rmtree(self._staging / attempt_name(ended.key), ignore_errors=True)
        shutil.rmtree(self._inputs / attempt_name(ended.key), ignore_errors=True)
        connection.running_key = None
        del self._connection_by_attempt[ended.key]


class _WorkerConnection:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.running_key: Key | None = None
        self.known_digests: frozenset[str] = frozenset()
        self.input_contents: list[bytes] = []
        self.heard_at = time.monotonic()

    def send(self, kind: bytes, body: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(frame(kind, body))


def fault_of(terms: Terms, handlers_by_type: Mapping[str, HandlerDescription]) -> str:
    """Return why this node cannot run attempts for the daemon, or ''."""
    if terms.version != VERSION:
        return f"pagemill {VERSION} is installed here and {terms.version} on the head: install the same version"
    if terms.sandbox == "strict" and not sandbox.landlock_version():
        return "the kernel has no Landlock, so children cannot be confined: use a kernel 5.13 or newer"
    for job_type, identity in terms.identity.items():
        handler = handlers_by_type.get(job_type)
        if handler is None:
            return f"the handler of {job_type} is not installed here"
        if handler.set_aside or handler.facts.missing:
            return f"{job_type} cannot run here: {handler.set_aside or handler.facts.missing_text}"
        different = sorted({*identity} - {*handler.identity})
        if different:
            return f"{job_type} would give other results here: the head has {', '.join(different)}"
    return ""


def _lock(folder: Path) -> int | None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _remove_directories_of_dead_servers(root: Path, own: Path) -> None:
    for directory in root.iterdir():
        with contextlib.suppress(OSError):
            lock = None if directory == own else _lock(directory)
            if lock is not None:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock)


def main() -> None:
    directory = Path(sys.argv[1])
    terms = msgspec.json.decode(sys.stdin.buffer.read(), type=Terms)
    lock = _lock(directory)
    if lock is None:
        # A server runs here, or another process is starting it.
        return
    # A server that was killed has left files.
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    # The path itself may be too long for an address.
    listener.bind(f"/proc/self/fd/{lock}/socket")
    listener.listen(128)
    if os.fork():
        # The Ray worker process waits for this exit. The server is not its child any more: when a worker process ends,
        # Ray kills its children.
        os._exit(0)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _remove_directories_of_dead_servers(directory.parent, directory)
    listener.setblocking(False)
    NodeServer(directory, terms).serve(listener)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
