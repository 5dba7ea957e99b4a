"""The daemon's side of the children: one nursery, started by exec, replaced when it is old, and buried when it dies.

Every order that was launched gets exactly one `Ended`, whatever happens to the child, to the nursery or to what they
say. The staging directory of an attempt is removed with its `Ended`, unless that names files: then whoever
publishes them removes it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from worker_service.children import gone, limits
from worker_service.children.gone import Key
from worker_service.children.line import Line
from worker_service.children.model import Asked, ChildError, Described, Ended, Happening, How, Order
from worker_service.children.wire import (
    FRAME_BYTES_MAX,
    Begin,
    Garbled,
    Hello,
    Launch,
    Ping,
    Pong,
    Reply,
    Stop,
    ToNursery,
    frame,
    from_nursery,
    plain,
)
from worker_service.jobs.documents import Answer

__all__ = ["ChildError", "Nursery"]

GRACE_SECONDS = 10.0
IDLE_SECONDS = 10.0
"""After that a kept child with nothing to do is stopped."""
_IMPORT_SECONDS = 20.0
_START_SECONDS = 40.0
"""Beyond what the trials may take."""
_CLOSE_SECONDS = 15.0
_LEAVING_SECONDS = 2.0
_BITE_BYTES = 1 << 16
_BITES = 64
"""In one look; what is more waits for the next."""


class Nursery:
    def __init__(
        self,
        *,
        staging_root: Path,
        keep_root: Path,
        lock_fd: int | None,
        commands: Mapping[str, Mapping[str, object]] | None = None,
        sandbox: str = "strict",
        forks_max: int = 10_000,
        grace_seconds: float = GRACE_SECONDS,
        import_seconds: float = _IMPORT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        extra_path: Sequence[Path] = (),
        extra_handlers: Sequence[str] = (),
        is_without_installed: bool = False,
        types: Sequence[str] = (),
    ) -> None:
        """`extra_path` and `extra_handlers` ("module:attribute") are for tests, where nothing is installed."""
        if sandbox not in ("strict", "best-effort", "off"):
            raise ValueError(f"sandbox is strict, best-effort or off, not {sandbox!r}")
        self._staging_root = staging_root.absolute()
        self._house = gone.house_of(self._staging_root)
        self._forks_max = forks_max
        self._extra_path = extra_path
        self._start_seconds = _START_SECONDS + import_seconds
        credentials = os.environ.get("CREDENTIALS_DIRECTORY")
        self._begin = Begin(
            staging_root=self._staging_root,
            keep_root=keep_root.absolute(),
            house=self._house,
            commands=plain(commands or {}),
            sandbox=sandbox,
            grace_seconds=grace_seconds,
            import_seconds=import_seconds,
            idle_seconds=idle_seconds,
            extra_handlers=tuple(extra_handlers),
            is_without_installed=is_without_installed,
            types=tuple(types),
            lock_fd=lock_fd,
            credentials=Path(credentials) if credentials else None,
        )
        # One descriptor for ever, although nurseries come and go.
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._current: Line | None = None
        self._coming: Line | None = None
        self._old: list[Line] = []
        self._waiting: list[Happening] = []

    def start(self, meanwhile: Callable[[], float] | None = None) -> Sequence[Described]:
        """Start it and wait, within bounds, until it has described its handlers. `meanwhile` is what can be done while
        it imports them; it says in how many seconds to do it again."""
        if self._current is not None:
            raise ChildError("the nursery is there already")
        line = self._open()
        try:
            self._await_hello(line, meanwhile or (lambda: math.inf))
        except ChildError:
            self._forget(line)
            raise
        self._current = line
        return line.described

    def fileno(self) -> int:
        """Readable when something has happened."""
        return self._epoll.fileno()

    @property
    def pid(self) -> int | None:
        return self._current.process.pid if self._current is not None else None

    @property
    def threads(self) -> int | None:
        """Of the nursery, once everything was loaded; anything but 1 is a fault."""
        return self._current.threads if self._current is not None else None

    @property
    def is_alive(self) -> bool:
        return self._current is not None and not self._current.is_broken

    def launch(self, order: Order) -> None:
        """Ask for a child. What becomes of it, its refusal too, is heard by `happened`."""
        key = (order.job_id, order.fence)
        if any(key in line.keys for line in self._lines()):
            raise ValueError(f"attempt {gone.name_of(key)} has been launched already")
        line = self._current
        if line is None or line.is_broken:
            # Nothing was begun.
            self._notice([Ended(*key, How.STOPPED, code="NURSERY_DIED", message="the nursery is not there")])
            return
        wanted = line.environment.get(order.job_type, ())
        message = Launch(order, {name: os.environ[name] for name in wanted if name in os.environ})
        if len(order.payload or "") + len(order.state or "") > FRAME_BYTES_MAX:
            self._notice(
                [Ended(*key, How.PERMANENT, code="TOO_LARGE", message="its payload is too large to be passed")]
            )
            return
        line.keys.add(key)
        # A kept child is one fork for many.
        reuse = 1 if order.seat is None else max(1, line.reuse.get(order.job_type, 1))
        line.forks += 1 / reuse
        if reuse > 1 and order.seat is not None:
            line.seats.add(order.seat)
        self._send(line, message)
        if line.forks >= self._forks_max and self._coming is None:
            line.forks = 0
            with contextlib.suppress(OSError):
                self._coming = self._open()

    def stop(self, job_id: int, fence: int, *, now: bool = False) -> None:
        """SIGTERM to its group, and after the grace (`now`: without one) SIGKILL, until it is gone; then its `Ended`
        comes. Of an attempt that has ended already nothing more is heard."""
        for line in self._lines():
            if (job_id, fence) in line.keys:
                self._send(line, Stop(job_id, fence, now))

    def answer(self, asked: Asked, answer: Answer | None, *, code: str = "", message: str = "") -> None:
        """To a child that waits for it; to none if it has ended. Without an answer: why there is none."""
        body = b"null" if answer is None else msgspec.json.encode(answer)
        if len(body) > FRAME_BYTES_MAX:
            message = f"the answer takes {len(body)} bytes, and {FRAME_BYTES_MAX} fit: ask for less at once"
            body, code = b"null", "TOO_LARGE"
        for line in self._lines():
            if (asked.job_id, asked.fence) in line.keys:
                reply = Reply(asked.job_id, asked.fence, asked.number, msgspec.Raw(body), code, message)
                self._send(line, reply)

    def happened(self) -> list[Happening]:
        """What has come since. Never blocks longer than the kernel takes to end a process (20 ms at the most)."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        happenings, self._waiting = self._waiting, []
        for line in self._lines():
            happenings += self._listen(line)
            if not line.is_broken and line.must_ask():
                self._send(line, Ping())
            if line.is_broken:
                happenings += self._bury(line, seconds=0.02)
        if self._coming is not None and self._coming.has_said_hello:
            self._succeed(self._coming)
        for line in self._old:
            if not line.keys:
                line.hang_up()
        return happenings

    def restart(self) -> Sequence[Described]:
        """After it died. Endings that `happened` has not told yet are told by its next call."""
        for line in self._lines():
            if not line.is_broken and line is self._current:
                raise ChildError("the nursery is alive: close it first")
            if line.is_broken:
                self._notice(self._bury(line, seconds=_CLOSE_SECONDS))
                if line.keys:
                    raise ChildError(f"processes of {_names(line.keys)} cannot be ended")
        return self.start()

    def close(self) -> None:
        """Stop everything, and return when it is gone. A second call changes nothing."""
        if self._epoll.closed:
            return
        lines = self._lines()
        for line in lines:
            line.hang_up()
        left: set[Key] = set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for line in lines:
            with contextlib.suppress(subprocess.TimeoutExpired):
                line.process.wait(max(deadline - time.monotonic(), 0.1))
            line.is_broken = True
            self._bury(line, seconds=max(deadline - time.monotonic(), 1.0))
            left |= line.keys
        self._epoll.close()
        os.close(self._bell)
        if left:
            raise ChildError(f"processes of {_names(left)} cannot be ended")

    # --- lines ---

    def _lines(self) -> list[Line]:
        return [line for line in (self._current, self._coming, *self._old) if line is not None]

    def _open(self) -> Line:
        near, far = socket.socketpair()
        near.setblocking(False)
        lock = self._begin.lock_fd
        passed = [far.fileno(), *([] if lock is None else [lock])]
        path = [*map(str, self._extra_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **limits.basic_environment(),
            gone.HOUSE: self._house,
            gone.ATTEMPT: gone.ROOM_FOR_ATTEMPT,
            # Libraries that start a thread for each core would start them in every child.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if path:
            environment["PYTHONPATH"] = os.pathsep.join(path)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "worker_service.children.nursery_main", *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            near.close()
            raise ChildError(f"the nursery could not be started: {error}") from error
        finally:
            far.close()
        line = Line(process, near)
        self._epoll.register(near, select.EPOLLIN)
        self._send(line, self._begin)
        return line

    def _await_hello(self, line: Line, meanwhile: Callable[[], float]) -> None:
        again_at = time.monotonic()
        deadline = again_at + self._start_seconds
        while not line.has_said_hello:
            if time.monotonic() >= again_at:
                again_at = time.monotonic() + meanwhile()
            now = time.monotonic()
            if now >= deadline:
                raise ChildError(f"the nursery has not described its handlers within {self._start_seconds:g} s")
            left = max(0.0, min(deadline, again_at) - now)
            select.select([line.socket], [line.socket] if line.unsent else [], [], left)
            self._waiting += self._listen(line)
            if line.is_broken:
                try:
                    code = line.process.wait(_LEAVING_SECONDS)
                except subprocess.TimeoutExpired as error:
                    raise ChildError("the nursery talks nonsense, or has closed its line and stays") from error
                raise ChildError(f"the nursery ended before it had described its handlers (exit code {code})")

    def _succeed(self, line: Line) -> None:
        if self._current is not None:
            self._old.append(self._current)
        self._current, self._coming = line, None

    def _send(self, line: Line, message: ToNursery) -> None:
        line.unsent += frame(message)
        self._flush(line)

    def _flush(self, line: Line) -> None:
        if line.is_broken:
            return
        try:
            while line.unsent:
                del line.unsent[: line.socket.send(line.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # It is gone; what it has said before is still to be read.
            line.unsent.clear()
        if bool(line.unsent) is not line.is_waiting_to_send:
            line.is_waiting_to_send = bool(line.unsent)
            self._epoll.modify(line.socket, select.EPOLLIN | (select.EPOLLOUT if line.unsent else 0))

    def _listen(self, line: Line) -> list[Happening]:
        if line.is_broken:
            return []
        self._flush(line)
        happenings: list[Happening] = []
        try:
            for _ in range(_BITES):
                received = line.socket.recv(_BITE_BYTES)
                if not received:
                    line.is_broken = True
                    break
                for body in line.inbox.feed(received):
                    message = from_nursery(body)
                    if isinstance(message, Hello):
                        line.introduce(message)
                    elif isinstance(message, Pong):
                        line.answered()
                    elif line.expects(message):
                        happenings.append(message)
        except BlockingIOError:
            pass
        except (Garbled, OSError):
            # A nursery that talks nonsense cannot be asked to stop anything.
            line.is_broken = True
        return happenings

    def _bury(self, line: Line, *, seconds: float) -> list[Happening]:
        """End what is left of a dead nursery; only then its attempts have ended. Looks again at the next call."""
        self._unregister(line)
        deadline = time.monotonic() + seconds
        if line.process.poll() is None:
            line.process.kill()
        keys = sorted(line.keys)
        sought = [*keys, *(gone.key_of_kept(line.process.pid, seat) for seat in sorted(line.seats))]
        if not _until(lambda: line.process.poll() is not None, deadline) or not _until(
            lambda: not sought or not gone.sweep(self._house, sought), deadline
        ):
            os.eventfd_write(self._bell, 1)
            return []
        for key in keys:
            shutil.rmtree(self._staging_root / gone.name_of(key), ignore_errors=True)
        for home in self._staging_root.glob(f"{gone.home_of_kept(line.process.pid)}*"):
            shutil.rmtree(home, ignore_errors=True)
        line.keys.clear()
        self._forget(line)
        message = "the nursery died, and the attempt with it"
        return [Ended(*key, How.CRASHED, code="NURSERY_DIED", message=message) for key in keys]

    def _forget(self, line: Line) -> None:
        self._unregister(line)
        if line.process.poll() is None:
            line.process.kill()
            line.process.wait()
        if line is self._current:
            self._current = None
        if line is self._coming:
            self._coming = None
        if line in self._old:
            self._old.remove(line)

    def _unregister(self, line: Line) -> None:
        if line.socket.fileno() >= 0:
            self._epoll.unregister(line.socket)
            line.socket.close()

    def _notice(self, happenings: Sequence[Happening]) -> None:
        self._waiting += happenings
        if happenings:
            os.eventfd_write(self._bell, 1)


def _until(is_so: Callable[[], bool], deadline: float) -> bool:
    """Look at least once; a process that got SIGKILL is gone within a millisecond or two."""
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _names(keys: set[Key]) -> str:
    return ", ".join(gone.name_of(key) for key in sorted(keys))
