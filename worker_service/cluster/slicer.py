"""Cut the pages that an attempt needs out of an original, so that a node does not get the whole file.

A process forks a sandboxed child for each original, and keeps it: starting one takes seven times as long as a slice. If
slicing fails, the whole file is sent.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from worker_service.base.entry_points import EntryPoint
from worker_service.base.forks import fork_process
from worker_service.handlers.contract import Handler
from worker_service.handlers.registry import load
from worker_service.runner import sandbox as confinement
from worker_service.runner.messages import Order

# Role of the only file that an attempt with a slice gets.
SLICE = "slice"
ORIGINAL = "original"
SLICED_BYTES_MIN = 32 << 10
_PAYLOAD_BYTES_MAX = 16 << 10
_MESSAGE_BYTES_MAX = 64 << 10
SLICE_SECONDS_MAX = 10.0
_CHILD_CPU_SECONDS = 60
_CHILDREN_MAX = 8
# All children end when no slice was requested for this time.
_IDLE_SECONDS = 60.0
_SLICED, _WHOLE = b"1", b"0"
_OUTPUT = "slice"


class _Request(msgspec.Struct):
    job_type: str
    original: str
    payload: str | None
    target: str


class Slicer:
    def __init__(self, specs: Mapping[str, str], directory: Path, sandbox: str) -> None:
        """`specs`: entry points of handlers with a slicer, by job type."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True)
        self._specs, self._directory = specs, directory
        self._count = 0
        self._lock = threading.Lock()
        self._socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = _SlicerProcess(specs, directory, sandbox)
        self.pid = fork_process(lambda: process.serve(far_end), keeps=[far_end.fileno()])
        far_end.close()
        # Longer than the slicer process waits for its child.
        self._socket.settimeout(2 * SLICE_SECONDS_MAX)

    def can_slice(self, order: Order) -> bool:
        original = order.inputs.get(ORIGINAL)
        # If the digest of the original is not known, the handler computes it, and needs the whole file.
        has_digest = order.document is not None and order.document.content
        if original is None or not has_digest or len(order.payload or "") > _PAYLOAD_BYTES_MAX:
            return False
        return order.job_type in self._specs and original.stat().st_size >= SLICED_BYTES_MIN

    def slice(self, order: Order) -> Path | None:
        """Return a file, which the caller removes, or None if the whole original is to be sent."""
        with self._lock:
            self._count += 1
            original = order.inputs[ORIGINAL]
            target = self._directory / f"{self._count}{original.suffix}"
            request = _Request(order.job_type, str(original), order.payload, str(target))
            try:
                self._socket.send(msgspec.msgpack.encode(request))
                return target if self._socket.recv(16) == _SLICED else None
            except OSError:
                # A late answer could be taken for the answer to the next request.
                self._socket.close()
                return None


# --- the slicer process ---


class _SlicerProcess:
    def __init__(self, specs: Mapping[str, str], directory: Path, sandbox: str) -> None:
        self._specs, self._directory, self._sandbox = specs, directory, sandbox
        # By job type and original. The least recently used child comes first.
        self._children: dict[tuple[str, str], _Child] = {}
        self._bad_originals: set[tuple[str, str]] = set()

    def serve(self, requests: socket.socket) -> None:
        confinement.reset_signals()
        confinement.set_environment(confinement.basic_environment())
        confinement.prepare()
        while True:
            if not select.select([requests], [], [], _IDLE_SECONDS)[0]:
                self._end_children(keep=0)
                continue
            received = requests.recv(_MESSAGE_BYTES_MAX)
            if not received:
                return
            requests.send(_SLICED if self._slice(msgspec.msgpack.decode(received, type=_Request)) else _WHOLE)

    def _slice(self, request: _Request) -> bool:
        key = (request.job_type, request.original)
        if key in self._bad_originals:
            return False
        child = self._children.pop(key, None)
        if child is None:
            self._end_children(keep=_CHILDREN_MAX - 1)
            child = self._start_child(request)
        try:
            is_sliced = child.slice(request)
        except _ChildLost:
            child.end()
            self._bad_originals.add(key)
            return False
        self._children[key] = child
        return is_sliced

    def _start_child(self, request: _Request) -> _Child:
        offer = load(EntryPoint(request.job_type, self._specs[request.job_type], ""), {})
        handler = next(handler for handler in offer.handlers if handler.job_type == request.job_type)
        directory = Path(tempfile.mkdtemp(prefix="child-", dir=self._directory))
        return _Child(handler, Path(request.original), directory, self._sandbox)

    def _end_children(self, *, keep: int) -> None:
        while len(self._children) > keep:
            self._children.pop(next(iter(self._children))).end()


class _ChildLost(Exception):
    pass


class _Child:
    def __init__(self, handler: Handler[Any], original: Path, directory: Path, sandbox: str) -> None:
        self._directory = directory
        self._socket, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeps = [far_end.fileno(), *confinement.rule_descriptors()]
        self._pid = fork_process(lambda: _run_child(far_end, handler, original, directory, sandbox), keeps=keeps)
        far_end.close()
        self._socket.settimeout(SLICE_SECONDS_MAX)

    def slice(self, request: _Request) -> bool:
        target = Path(request.target)
        try:
            self._socket.send((request.payload or "{}").encode())
            answer = self._socket.recv(16)
            if not answer:
                raise _ChildLost
            if answer != _SLICED:
                return False
            # Move the file out of the child's directory first: then the child cannot replace it.
            (self._directory / _OUTPUT).rename(target)
        except OSError as error:
            raise _ChildLost from error
        if target.is_symlink() or not target.is_file():
            target.unlink()
            raise _ChildLost
        return True

    def end(self) -> None:
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._directory, ignore_errors=True)


# --- the children of the slicer ---


def _run_child(requests: socket.socket, handler: Handler[Any], original: Path, directory: Path, sandbox: str) -> None:
    confinement.raise_oom_score()
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    os.chdir(directory)
    os.umask(0o077)
    size = original.stat().st_size
    bytes_max = min(handler.limits.file_bytes or size, size)
    limits = replace(handler.limits, cpu_seconds=_CHILD_CPU_SECONDS, file_bytes=bytes_max)
    confinement.set_limits(limits, attempts=1)
    rules = confinement.SandboxRules([*handler.reads, original], [directory], network=False, starts_programs=False)
    confinement.apply(rules, sandbox if handler.sandbox == "default" else handler.sandbox)
    assert handler.slicer is not None
    write_slice = handler.slicer(original)
    while payload := requests.recv(_MESSAGE_BYTES_MAX):
        is_sliced = write_slice(msgspec.json.decode(payload, type=handler.payload), directory / _OUTPUT)
        requests.send(_SLICED if is_sliced else _WHOLE)
