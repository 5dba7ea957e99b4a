"""What an attempt reads of its original, cut out of it before it goes to a node, so that no node gets all of it.

A process apart, begun before the gateway has shut its jail, forks a child for each file, into the jail and the limits
of the handler that cuts it. The child keeps its file open for as long as parts of it are asked for. Whatever goes wrong
costs no more than bytes: the node gets the whole file; and of a file at which a child was lost nobody asks again.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from worker_service.children import jail
from worker_service.children.messages import Order
from worker_service.entry_points import EntryPoint
from worker_service.handlers.contract import Handler
from worker_service.handlers.registry import load

PORTION = "portion"
"""The role that it has for the attempt; no other file goes with it."""
ORIGINAL = "original"
BYTES_LEAST = 32 << 10
"""What is smaller goes whole."""
_PAYLOAD_BYTES_MOST = 16 << 10
_MESSAGE_BYTES = 64 << 10
_SECONDS_MOST = 10.0
_CPU_SECONDS = 60
"""Of one child."""
_OPEN_MOST = 8
_IDLE_SECONDS = 60.0
_LOST_MOST = 1000
_DONE, _WHOLE = b"1", b"0"


class _Wish(msgspec.Struct):
    job_type: str
    original: str
    payload: str | None
    target: str


class Cutter:
    """The gateway's side."""

    def __init__(
        self, specs: Mapping[str, str], place: Path, sandbox: str, *, seconds_most: float = _SECONDS_MOST
    ) -> None:
        """`specs`: by the job types that cut, where their handler is."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, parents=True)
        self._specs, self._place = specs, place
        self._number = 0
        self._guard = threading.Lock()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _cut_for(far, parent, _Shop(specs, place, sandbox, seconds_most))
        far.close()
        near.settimeout(2 * seconds_most)
        self._near = near

    def cuts(self, order: Order) -> bool:
        original = order.inputs.get(ORIGINAL)
        # An attempt that wants the digest of its original has to have been told of it.
        is_known = order.document is not None and order.document.content
        if original is None or not is_known or len(order.payload or "") > _PAYLOAD_BYTES_MOST:
            return False
        try:
            return order.job_type in self._specs and original.stat().st_size >= BYTES_LEAST
        except OSError:
            # Whoever carries it tells why it cannot be read.
            return False

    def cut(self, order: Order) -> Path | None:
        """Whoever gets it removes it. None: the whole file is to go."""
        with self._guard:
            self._number += 1
            original = order.inputs[ORIGINAL]
            target = self._place / f"{self._number}{original.suffix}"
            wish = _Wish(order.job_type, str(original), order.payload, str(target))
            try:
                self._near.send(msgspec.msgpack.encode(wish))
                return target if self._near.recv(16) == _DONE else None
            except OSError:
                # Nobody is there, or it answers too late to be understood.
                self._near.close()
                return None

    def close(self) -> None:
        self._near.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


# --- the process apart --------------------------------------------------------------------------------


def _cut_for(asked: socket.socket, gateway: int, shop: _Shop) -> NoReturn:
    try:
        jail.die_with(gateway)
        jail.close_all_but({0, 1, 2, asked.fileno()})
        jail.calm_signals()
        jail.set_environment(jail.basic_environment())
        jail.prepare()
        shop.serve(asked)
    finally:
        os._exit(0)


class _Shop:
    def __init__(self, specs: Mapping[str, str], place: Path, sandbox: str, seconds_most: float) -> None:
        self._specs, self._place, self._sandbox, self._seconds_most = specs, place, sandbox, seconds_most
        self._handlers: dict[str, Handler[Any]] = {}
        self._children: dict[tuple[str, str], _Child] = {}
        """By type and file, the one that has rested longest first."""
        self._lost: dict[tuple[str, str], None] = {}
        """Those at which a child was lost."""
        self._number = 0

    def serve(self, asked: socket.socket) -> None:
        decoder = msgspec.msgpack.Decoder(_Wish)
        while True:
            if not select.select([asked], [], [], _IDLE_SECONDS)[0]:
                self._retire(0)
                continue
            said = asked.recv(_MESSAGE_BYTES)
            if not said:
                return
            asked.send(_DONE if self._answer(decoder.decode(said)) else _WHOLE)

    def _answer(self, wish: _Wish) -> bool:
        key = (wish.job_type, wish.original)
        if key in self._lost:
            return False
        child = self._children.pop(key, None)
        try:
            if child is None:
                self._retire(_OPEN_MOST - 1)
                child = self._start(wish)
            is_cut = child.cut(wish)
        except _Lost:
            if child is not None:
                child.end()
            self._lost[key] = None
            if len(self._lost) > _LOST_MOST:
                del self._lost[next(iter(self._lost))]
            return False
        self._children[key] = child
        return is_cut

    def _start(self, wish: _Wish) -> _Child:
        handler = self._handlers.get(wish.job_type)
        if handler is None:
            offer = load(EntryPoint(wish.job_type, self._specs[wish.job_type], ""), {})
            self._handlers.update({one.job_type: one for one in offer.handlers})
            handler = self._handlers[wish.job_type]
        self._number += 1
        place = self._place / f"child-{self._number}"
        place.mkdir(mode=0o700)
        return _Child(handler, Path(wish.original), place, self._sandbox, self._seconds_most)

    def _retire(self, most: int) -> None:
        while len(self._children) > most:
            self._children.pop(next(iter(self._children))).end()


class _Lost(Exception):
    """A child that died, or took too long."""


class _Child:
    def __init__(self, handler: Handler[Any], original: Path, place: Path, sandbox: str, seconds_most: float) -> None:
        self._place = place
        self._near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _live(far, parent, handler, original, place, sandbox)
        far.close()
        self._near.settimeout(seconds_most)

    def cut(self, wish: _Wish) -> bool:
        try:
            self._near.send((wish.payload or "{}").encode())
            said = self._near.recv(16)
        except OSError as error:
            raise _Lost from error
        if not said:
            raise _Lost
        if said != _DONE:
            return False
        # In its own place it could become another file, or a way to one.
        made, target = self._place / _MADE, Path(wish.target)
        try:
            made.rename(target)
        except OSError as error:
            raise _Lost from error
        if target.is_symlink() or not target.is_file():
            target.unlink()
            raise _Lost
        return True

    def end(self) -> None:
        self._near.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._place, ignore_errors=True)


# --- its child ----------------------------------------------------------------------------------------

_MADE = "made"


def _live(
    asked: socket.socket, parent: int, handler: Handler[Any], original: Path, place: Path, sandbox: str
) -> NoReturn:
    try:
        jail.die_with(parent)
        jail.go_first_where_memory_ends()
        jail.close_all_but({0, 1, 2, asked.fileno(), *jail.held()})
        nothing = os.open(os.devnull, os.O_RDWR)
        for one in (0, 1, 2):
            os.dup2(nothing, one)
        os.chdir(place)
        os.umask(0o077)
        most = min(handler.limits.file_bytes or original.stat().st_size, original.stat().st_size)
        jail.limit(replace(handler.limits, cpu_seconds=_CPU_SECONDS, file_bytes=most))
        door = jail.Door([*handler.reads, original], [place], network=False, starts_programs=False)
        jail.shut(door, sandbox if handler.sandbox == "default" else handler.sandbox)
        assert handler.portion is not None
        cut = handler.portion(original)
        while said := asked.recv(_MESSAGE_BYTES):
            is_cut = cut(msgspec.json.decode(said, type=handler.payload), place / _MADE)
            asked.send(_DONE if is_cut else _WHOLE)
    finally:
        os._exit(0)
