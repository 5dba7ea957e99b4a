"""One attempt, from the fork to its last word. Runs in the child, and never returns into the nursery.

What it says goes over one pipe. Its own exit says nothing that the pipe did not: a child that ends without
`Finished` has crashed.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import json
import math
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from worker_service.children import gone, limits, sandbox
from worker_service.children.model import How, Order
from worker_service.children.wire import (
    FRAME_BYTES_MAX,
    Checkpoint,
    Finished,
    FromChild,
    Log,
    Progress,
    Ready,
    clipped,
    frame,
)
from worker_service.handlers.contract import Done, Handler, Permanent, Retryable, Snooze, Stopped
from worker_service.jobs.model import NewJob

EXIT_OUT_OF_MEMORY = 86
_LINE_CHARACTERS_MAX = 2000
_MESSAGE_CHARACTERS_MAX = 4000
_KEEP_BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Room:
    """What the nursery has made ready for one child."""

    order: Order
    parent: int
    house: str
    staging: Path
    keep_root: Path
    sandbox: str
    environment: Mapping[str, str]
    credentials: Path | None
    said: int
    output: int
    errors: int
    lock_fd: int | None


def live(room: Room, handler: Callable[[], Handler[Any]]) -> NoReturn:
    """`handler` brings the handler; one that is not preloaded is imported by that call."""
    code = 1
    try:
        pipe = _settle(room)
        verdict = _attempt(room, handler, pipe)
        # What is said last is said whole.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pipe.say(verdict)
        limits.flush_output()
        code = 0
    except MemoryError:
        code = EXIT_OUT_OF_MEMORY
    except BaseException:  # the outermost frame: what is left to say goes to the captured stderr
        traceback.print_exc()
        limits.flush_output()
    finally:
        os._exit(code)


class _Pipe:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A handler may have threads.
        self._lock = threading.Lock()

    def say(self, message: FromChild) -> None:
        said = frame(message)
        if len(said) > FRAME_BYTES_MAX:
            # A verdict, not a sentence to be cut: half a result is no result.
            raise Permanent("TOO_LARGE", f"{type(message).__name__} takes {len(said)} bytes; {FRAME_BYTES_MAX} fit")
        with self._lock:
            left = memoryview(said)
            while left:
                left = left[os.write(self._descriptor, left) :]


class _Context:
    """See `worker_service.handlers.Context`."""

    def __init__(self, room: Room, payload: Any, keep: Path | None, pipe: _Pipe, cancel: _Cancel) -> None:
        self.payload = payload
        self.job_type = room.order.job_type
        self.platform = room.order.platform
        self.account = room.order.account
        self.staging = room.staging
        self.state = json.loads(room.order.state) if room.order.state else None
        self.idempotency_key = str(room.order.job_id)
        self._keep = keep
        self._pipe = pipe
        self._cancel = cancel

    @property
    def keep(self) -> Path:
        if self._keep is None:
            raise AttributeError(f"{self.job_type} declares no keep_key, so it has no directory to keep")
        return self._keep

    def progress(self, percent: float, message: str = "") -> None:
        known = percent if math.isfinite(percent) else 0.0
        self._pipe.say(Progress(min(max(float(known), 0.0), 100.0), _line(message)))

    def log(self, line: str) -> None:
        # Cut before it is split: a line may be the whole of a flood.
        for one in clipped(line, 20 * _LINE_CHARACTERS_MAX).splitlines() or [""]:
            self._pipe.say(Log(_line(one)))

    def cancelled(self) -> bool:
        self._cancel.is_asked_for = True
        return self._cancel.has_come

    def checkpoint(self, state: object, follow_ups: Sequence[NewJob] = ()) -> None:
        self._pipe.say(Checkpoint(json.dumps(state, allow_nan=False), list(follow_ups)))


class _Cancel:
    """SIGTERM. Who asks for it is left to finish its piece; who does not is interrupted, once."""

    def __init__(self) -> None:
        self.has_come = False
        self.is_asked_for = False
        signal.signal(signal.SIGTERM, self._come)

    def _come(self, number: int, stack: object) -> None:
        first, self.has_come = not self.has_come, True
        if first and not self.is_asked_for:
            raise Stopped


# --- before the handler -------------------------------------------------------------------------------


def _settle(room: Room) -> _Pipe:
    # A session of its own first: the nursery stops children by group.
    os.setsid()
    limits.die_with(room.parent)
    gone.mark(room.house, (room.order.job_id, room.order.fence))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(room.output, 1)
    os.dup2(room.errors, 2)
    limits.close_all_but({0, 1, 2, room.said, *([] if room.lock_fd is None else [room.lock_fd])})
    limits.set_environment(
        {
            **limits.basic_environment(),
            "HOME": str(room.staging),
            **room.environment,
            gone.ATTEMPT: gone.name_of((room.order.job_id, room.order.fence)),
            gone.HOUSE: room.house,
        }
    )
    os.umask(0o077)
    os.chdir(room.staging)
    # Where a library may have looked for it while the nursery loaded it.
    tempfile.tempdir = str(room.staging)
    limits.calm_signals()
    return _Pipe(room.said)


def _attempt(room: Room, handler: Callable[[], Handler[Any]], pipe: _Pipe) -> Finished:
    """The attempt's one verdict."""
    try:
        cancel = _Cancel()
        chosen = handler()
        if chosen.credentials and room.credentials is not None:
            os.environ["CREDENTIALS_DIRECTORY"] = str(room.credentials)
        payload = _decode(chosen, room.order.payload)
        keep = _hold(chosen, payload, room.keep_root)
        limits.limit(chosen.limits)
        pipe.say(Ready(sandbox.shut(_door(chosen, room, keep), _sandbox(chosen, room))))
        context = _Context(room, payload, keep, pipe, cancel)
        done = chosen.run(context)
        if done is None:
            done = Done()
        if not isinstance(done, Done):
            raise TypeError(f"{chosen.job_type} returned {type(done).__name__}: a handler returns Done or None")
        finished = _finished(done, room.staging)
        if len(frame(finished)) > FRAME_BYTES_MAX:
            raise Permanent("RESULT_TOO_LARGE", f"the result takes more than {FRAME_BYTES_MAX} bytes: write a file")
        return finished
    except Permanent as error:
        return Finished(How.PERMANENT, code=error.code, message=_short(error.message))
    except Retryable as error:
        return Finished(How.RETRYABLE, code=error.code, message=_short(error.message), after_seconds=error.after)
    except Snooze as error:
        return Finished(How.SNOOZED, code="SNOOZED", message=_short(error.message), after_seconds=_wait(error))
    except sandbox.SandboxError as error:
        return Finished(How.RETRYABLE, code="SANDBOX_UNAVAILABLE", message=str(error))
    except MemoryError:
        return Finished(How.OUT_OF_MEMORY, code="OUT_OF_MEMORY", message="it needs more memory than its limit allows")
    except Stopped:
        # Of no account when the nursery has asked for it.
        return Finished(How.RETRYABLE, code="INTERRUPTED", message="somebody else sent it SIGTERM")
    except BaseException as error:  # a handler's exception of whatever kind, sys.exit() included, is an outcome
        return Finished(How.RETRYABLE, code="HANDLER_ERROR", message=_last_lines(error))


def _decode(handler: Handler[Any], payload: str | None) -> Any:
    try:
        return msgspec.json.decode(payload if payload is not None else "{}", type=handler.payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Permanent("PAYLOAD_INVALID", str(error)) from error


def _hold(handler: Handler[Any], payload: Any, keep_root: Path) -> Path | None:
    """The directory of its key, locked for as long as this child lives."""
    if handler.keep_key is None:
        return None
    name = hashlib.blake2s(f"{handler.job_type}\0{handler.keep_key(payload)}".encode(), digest_size=16).hexdigest()
    keep = keep_root / name
    keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(keep, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Snooze("another attempt works on the same thing", after=_KEEP_BUSY_SECONDS) from error
    # For the sweep, which goes by age.
    os.utime(keep)
    return keep


def _door(handler: Handler[Any], room: Room, keep: Path | None) -> sandbox.Door:
    reads = [*sandbox.code_paths(), *handler.reads]
    if room.credentials is not None:
        reads += _credentials(room.credentials, handler.credentials)
    writes = [room.staging, *([] if keep is None else [keep]), *handler.writes]
    return sandbox.Door(reads, writes, handler.limits.network)


def _credentials(directory: Path, patterns: Sequence[str]) -> list[Path]:
    try:
        files = list(directory.iterdir())
    except OSError:
        # The handler will say what it lacks.
        return []
    return [file for file in files if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns)]


def _sandbox(handler: Handler[Any], room: Room) -> str:
    return room.sandbox if handler.sandbox == "default" else handler.sandbox


# --- after it -------------------------------------------------------------------------------------------


def _finished(done: Done, staging: Path) -> Finished:
    files = [_publishable(Path(name), staging) for name in done.files]
    for directory in {file.parent for file in files}:
        _sync(directory)
    result = None if done.result is None else json.dumps(done.result, ensure_ascii=False, allow_nan=False)
    return Finished(How.DONE, result=result, follow_ups=list(done.follow_ups), files=[str(file) for file in files])


def _publishable(name: Path, staging: Path) -> Path:
    file = staging / name
    if not file.resolve().is_relative_to(staging.resolve()) or file.is_symlink() or not file.is_file():
        raise ValueError(f"{name} is not a file in the staging directory: only such files can be published")
    _sync(file)
    return file


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wait(snooze: Snooze) -> float:
    if snooze.until is None:
        return max(float(snooze.after or 0.0), 0.0)
    return max((snooze.until - datetime.now(UTC)).total_seconds(), 0.0)


def _short(message: str) -> str:
    return _sayable(clipped(str(message), _MESSAGE_CHARACTERS_MAX))


def _line(text: str) -> str:
    return _sayable(clipped(text, _LINE_CHARACTERS_MAX))


def _sayable(text: str) -> str:
    """A file's name may hold half a character; a message cannot."""
    return text.encode("utf-8", "replace").decode()


def _last_lines(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return _sayable(text[-_MESSAGE_CHARACTERS_MAX:].strip())
