"""One attempt, from the fork to its last word. Runs in the child, and never returns into the nursery.

Its own exit says nothing that its pipe did not: a child that ends without `Finished` has crashed. What the handler
holds meanwhile is in `context`.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import mmap
import os
import re
import signal
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from worker_service.children import gone, kept, limits, sandbox
from worker_service.children.context import Cancel, ChildContext, Pipe, sayable
from worker_service.children.gone import Key
from worker_service.children.model import How, Order, Publication
from worker_service.children.wire import FRAME_BYTES_MAX, Finished, Ready, clipped, frame
from worker_service.handlers.contract import (
    Done,
    File,
    Handler,
    Permanent,
    Rest,
    Retryable,
    SameFile,
    Snooze,
    Stopped,
)
from worker_service.jobs.documents import FileAgain

EXIT_OUT_OF_MEMORY = 86
_MESSAGE_CHARACTERS_MAX = 4000
_KEEP_BUSY_SECONDS = 30.0
_DIGEST = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Room:
    """What the nursery has made ready for one child."""

    order: Order
    parent: int
    house: str
    mark: Key
    staging: Path
    keep_root: Path
    sandbox: str
    environment: Mapping[str, str]
    credentials: Path | None
    said: int
    output: int
    """What it logs and prints, C libraries and programs that it starts included."""
    answers: int
    lock_fd: int | None
    orders: int | None = None
    """Where a child that is kept finds its next order."""
    reuse: int = 0
    begun: mmap.mmap | None = None


def live(room: Room, handler: Callable[[], Handler[Any]]) -> NoReturn:
    """`handler` brings the handler; one that is not preloaded is imported by that call."""
    code = 1
    try:
        _settle(room)
        cancel = Cancel()
        if room.orders is not None:
            _serve(room, room.orders, handler, cancel)
        else:
            pipe = Pipe(room.said, room.answers, room.output, cancel.held)
            verdict = _attempt(room, handler, pipe, cancel)
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


# --- before the handler -------------------------------------------------------------------------------


def _settle(room: Room) -> None:
    # A session of its own first: the nursery stops children by group.
    os.setsid()
    limits.die_with(room.parent)
    limits.go_first_where_memory_ends()
    gone.mark(room.house, (room.order.job_id, room.order.fence), room.mark)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(room.output, 1)
    os.dup2(room.output, 2)
    lock = [] if room.lock_fd is None else [room.lock_fd]
    orders = [] if room.orders is None else [room.orders]
    limits.close_all_but({0, 1, 2, room.said, room.output, room.answers, *sandbox.held(), *lock, *orders})
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


def _attempt(room: Room, handler: Callable[[], Handler[Any]], pipe: Pipe, cancel: Cancel) -> Finished:
    def attempt() -> Finished:
        cancel.listen()
        chosen = _brought(room, handler)
        payload = _decode(chosen, room.order.payload)
        keep = _hold(chosen, payload, room.keep_root)
        limits.limit(chosen.limits)
        pipe.say(Ready(sandbox.shut(_door(chosen, room, keep, payload), _sandbox(chosen, room))))
        return _run(
            chosen, ChildContext(room.order, payload, staging=room.staging, keep=keep, pipe=pipe, cancel=cancel)
        )

    return _judged(attempt)


def _serve(room: Room, orders: int, handler: Callable[[], Handler[Any]], cancel: Cancel) -> None:
    """A child that is kept: the door is shut once, around the directory in which each attempt gets its staging."""
    house = kept.Housekeeping(room.staging)
    shut: list[tuple[Handler[Any], str]] = []

    def shut_door() -> Finished:
        cancel.listen()
        chosen = _brought(room, handler)
        limits.limit(chosen.limits, room.reuse)
        door = replace(_door(chosen, room, None, None), writes=[room.staging.parent, *chosen.writes])
        shut.append((chosen, sandbox.shut(replace(door, starts_programs=False), _sandbox(chosen, room))))
        return Finished(How.DONE)

    def pipe() -> Pipe:
        return Pipe(room.said, room.answers, room.output, cancel.held)

    verdict = _judged(shut_door)
    if not shut:
        pipe().say(msgspec.structs.replace(verdict, number=1))
        return
    [(chosen, level)] = shut
    pipe().say(Ready(level))

    def attempt(order: Order, pipe: Pipe, staging: Path) -> Finished:
        return _judged(
            lambda: _run(
                chosen,
                ChildContext(
                    order, _decode(chosen, order.payload), staging=staging, keep=None, pipe=pipe, cancel=cancel
                ),
            )
        )

    with contextlib.suppress(Stopped):
        kept.serve(
            room.order,
            orders,
            house,
            limits_of_attempt=chosen.limits,
            level=level,
            reuse=room.reuse,
            begun=room.begun,
            pipe_of_attempt=pipe,
            cancel=cancel,
            attempt=attempt,
        )


def _brought(room: Room, handler: Callable[[], Handler[Any]]) -> Handler[Any]:
    chosen = handler()
    if chosen.credentials and room.credentials is not None:
        os.environ["CREDENTIALS_DIRECTORY"] = str(room.credentials)
    return chosen


def _run(handler: Handler[Any], context: ChildContext) -> Finished:
    done = handler.run(context)
    if done is None:
        done = Done()
    if not isinstance(done, Done):
        raise TypeError(f"{handler.job_type} returned {type(done).__name__}: a handler returns Done or None")
    finished = _finished(done, context.staging)
    if len(frame(finished)) > FRAME_BYTES_MAX:
        raise Permanent("RESULT_TOO_LARGE", f"the result takes more than {FRAME_BYTES_MAX} bytes: write a file")
    return finished


def _judged(attempt: Callable[[], Finished]) -> Finished:
    """The attempt's one verdict."""
    try:
        return attempt()
    except Permanent as error:
        return Finished(How.PERMANENT, code=error.code, message=_short(error.message))
    except Retryable as error:
        return Finished(How.RETRYABLE, code=error.code, message=_short(error.message), after_seconds=error.after)
    except Snooze as error:
        return Finished(How.SNOOZED, code="SNOOZED", message=_short(error.message), after_seconds=_wait(error))
    except Rest as error:
        wait = max(float(error.after), 0.0)
        message = _short(error.message)
        return Finished(How.SNOOZED, code="RESTING", message=message, after_seconds=wait, rests_source=True)
    except sandbox.SandboxError as error:
        return Finished(How.RETRYABLE, code="SANDBOX_UNAVAILABLE", message=str(error))
    except MemoryError:
        return Finished(How.OUT_OF_MEMORY, code="OUT_OF_MEMORY", message="it needs more memory than its limit allows")
    except Stopped:
        # Of no account when the nursery has asked for it.
        return Finished(How.RETRYABLE, code="INTERRUPTED", message="somebody else sent it SIGTERM")
    except BaseException as error:  # a handler's exception of whatever kind, sys.exit() included, is an outcome
        return _bug(error)


def _bug(error: BaseException) -> Finished:
    """The whole traceback is for the log; people are told the end of it first."""
    steps = error.__traceback__
    while steps is not None and steps.tb_frame.f_code.co_filename == __file__:
        steps = steps.tb_next
    with contextlib.suppress(Exception):  # what the handler has made of stderr may be broken
        traceback.print_exception(type(error), error, steps)
    first, newline, more = _sentence(error).partition("\n")
    return Finished(
        How.RETRYABLE, code="HANDLER_ERROR", message=_short(f"{first}{_place(steps)}{newline}{more}".strip())
    )


def _sentence(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        said = str(error)
    except Exception:  # its own __str__ is as broken as it likes
        said = ""
    return f"{name}: {said}" if said else name


def _place(steps: TracebackType | None) -> str:
    """Where in the handler's own directory; the libraries below it are in the log."""
    frames = traceback.extract_tb(steps)
    if not frames:
        return ""
    home = Path(frames[0].filename).parent
    *_, inner = [frame for frame in frames if Path(frame.filename).parent.is_relative_to(home)]
    return f" ({Path(inner.filename).name}:{inner.lineno} in {inner.name})"


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
    try:
        while True:
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(keep, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # For the sweep, which goes by age.
                os.utime(lock)
                # It may have been swept between the two calls: then this is no longer the one of that name.
                if os.path.samestat(os.fstat(lock), keep.stat()):
                    return keep
                os.close(lock)
    except BlockingIOError as error:
        raise Snooze("another attempt works on the same thing", after=_KEEP_BUSY_SECONDS) from error


def _door(handler: Handler[Any], room: Room, keep: Path | None, payload: Any) -> sandbox.Door:
    reads = [*handler.reads, *room.order.inputs.values()]
    if handler.reads_payload is not None:
        reads += handler.reads_payload(payload)
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
    files: list[Publication] = []
    files_again: list[FileAgain] = []
    for one in done.files:
        if isinstance(one, SameFile):
            files_again.append(FileAgain(one.file_id, one.role, sayable(one.name)))
        else:
            files.append(_publication(one if isinstance(one, File) else File(one), staging))
    for directory in {staging / file.path.parent for file in files}:
        _sync(directory)
    result = None if done.result is None else json.dumps(done.result, ensure_ascii=False, allow_nan=False)
    return Finished(
        How.DONE,
        result=result,
        follow_ups=list(done.follow_ups),
        files=files,
        files_again=files_again,
        document=done.document,
        publishes=done.publishes,
    )


def _publication(file: File, staging: Path) -> Publication:
    path = staging / file.path
    if not path.resolve().is_relative_to(staging.resolve()) or path.is_symlink() or not path.is_file():
        raise ValueError(f"{file.path} is not a file in the staging directory: only such files can be published")
    for digest, length in ((file.sha256, 64), (file.md5, 32)):
        if digest and (len(digest) != length or not _DIGEST.fullmatch(digest)):
            raise ValueError(f"{file.path}: {digest[:80]!r} is no digest: give {length} hexadecimal digits, small ones")
    _sync(path)
    # The nursery knows where the directory lies by then.
    path = path.resolve().relative_to(staging.resolve())
    return Publication(path, file.role, sayable(file.name), file.sha256, file.md5, sayable(file.note))


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
    return sayable(clipped(str(message), _MESSAGE_CHARACTERS_MAX))
