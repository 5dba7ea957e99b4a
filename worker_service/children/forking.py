"""Fork one child: its pipes, its room, and what the nursery holds of it afterwards. Used by the nursery alone."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service.children import child, gone, limits
from worker_service.children.gone import Key
from worker_service.children.known import Bring
from worker_service.children.lines import Printed
from worker_service.children.wire import FRAME_BYTES_MAX, Begin, Inbox, Launch

if TYPE_CHECKING:
    from worker_service.children.attempt import Attempt
    from worker_service.children.seats import Seat


READ_BYTES = 1 << 16


@dataclass(slots=True)
class Forked:
    """A child, and the near ends of its pipes."""

    pid: int
    pid_started: int
    tag: int
    said: int
    output: int
    answers: int
    orders: socket.socket | None = None
    """Of a child that is kept: where its next orders wait for it, whole ones. We hold its own end, too: what it has
    not taken yet can be taken back."""
    orders_back: socket.socket | None = None
    begun: mmap.mmap | None = None
    """Memory that it shares with us: the number of the attempt that it began last."""
    inbox: Inbox = field(default_factory=lambda: Inbox(FRAME_BYTES_MAX))
    printed: Printed = field(default_factory=Printed)
    open_pipes: set[int] = field(init=False)
    sandbox: str = ""
    """As it says."""
    cpu_seconds: float = 0.0
    """Of those of its attempts that have ended."""
    attempt: Attempt | None = None
    """The one that it runs now."""
    seat: Seat | None = None
    """Whose kept child it is."""
    was_full: bool = False
    """The pipe that was read last had more than one bite."""

    def __post_init__(self) -> None:
        self.open_pipes = {self.said, self.output}

    @property
    def pipes(self) -> tuple[int, int]:
        return self.said, self.output

    def bite(self, pipe: int) -> bytes:
        """One bounded bite, so that a child which floods is served like any other. Empty also where nothing waits."""
        self.was_full = False
        try:
            received = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        self.was_full = len(received) == READ_BYTES
        if not received:
            self.open_pipes.discard(pipe)
        return received

    @property
    def last_begun(self) -> int:
        return 0 if self.begun is None else int.from_bytes(self.begun[:8])

    def close(self) -> None:
        for descriptor in (*self.pipes, self.answers):
            os.close(descriptor)
        for one in (self.orders, self.orders_back):
            if one is not None:
                one.close()


def fork(
    launch: Launch, begin: Begin, bring: Bring, staging: Path, *, reuse: int = 0, mark: Key | None = None
) -> Forked:
    """`reuse`: it may be kept for so many attempts, and `mark` is its own; the order is the first of them."""
    with _closed_on_failure() as near, contextlib.ExitStack() as far:
        reading: list[int] = []
        writing: list[int] = []
        for _ in range(2):
            one, other = os.pipe()
            near.callback(os.close, one)
            far.callback(os.close, other)
            os.set_blocking(one, False)
            reading.append(one)
            writing.append(other)
        answers, answering = os.pipe()
        far.callback(os.close, answers)
        near.callback(os.close, answering)
        os.set_blocking(answering, False)
        orders, orders_back = None, None
        if reuse:
            orders, orders_back = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            near.callback(orders.close)
            near.callback(orders_back.close)
        begun = mmap.mmap(-1, 8) if reuse else None
        key = (launch.order.job_id, launch.order.fence)
        own_mark = key if mark is None else mark
        room = child.Room(
            order=launch.order,
            parent=os.getpid(),
            house=begin.house,
            mark=own_mark,
            staging=staging,
            keep_root=begin.keep_root,
            sandbox=begin.sandbox,
            environment=launch.environment,
            credentials=begin.credentials,
            said=writing[0],
            output=writing[1],
            answers=answers,
            lock_fd=begin.lock_fd,
            orders=None if orders_back is None else orders_back.fileno(),
            reuse=reuse,
            begun=begun,
        )
        pid = os.fork()
        if pid == 0:
            child.live(room, bring)
    tag = gone.tag_of(begin.house, own_mark)
    return Forked(pid, gone.started_at(pid), tag, reading[0], reading[1], answering, orders, orders_back, begun)


def make_empty(directory: Path) -> None:
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        shutil.rmtree(directory)
        directory.mkdir(mode=0o700)


def discard(directory: Path) -> int | None:
    """In a process of its own, whose number it returns, if it holds anything: a million files would keep everybody
    waiting."""
    with contextlib.suppress(OSError):
        directory.rmdir()
        return None
    parent = os.getpid()
    with contextlib.suppress(OSError):
        pid = os.fork()
        if pid == 0:
            try:
                limits.die_with(parent)
                limits.close_all_but({0, 1, 2})
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os._exit(0)
        return pid
    return None


@contextlib.contextmanager
def _closed_on_failure() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack
        stack.pop_all()
