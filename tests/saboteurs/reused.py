"""Handlers that declare `reuse`: some behave, others leave something behind for the next attempt."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_service.handlers import Context, Done, Handler, KnownPages, Limits, Permanent, Retryable, Snooze
from worker_service.runner.messages import Ended, How, Publication
from worker_service.runner.protocol import encode_frame

MIB = 1 << 20
REUSE = 4

handlers: list[Handler[Any]] = []


@dataclass(frozen=True, slots=True)
class Request:
    how: str = ""


Run = Callable[[Context[Request]], Done | None]

_kept: list[Any] = []


def reusable(**declared: Any) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        handlers.append(Handler(run.__name__, run, Request, **{"reuse": REUSE, **declared}))
        return run

    return register


@reusable()
def tells(context: Context[Request]) -> Done:
    context.progress(50, "half")
    found = sorted(path.name for path in context.staging.iterdir())
    (context.staging / "mine").write_text("x")
    (context.staging / "folder").mkdir()
    with tempfile.NamedTemporaryFile(delete=False):
        pass
    return Done(
        {
            "pid": os.getpid(),
            "found": found,
            "attempt": os.environ["PAGEMILL_ATTEMPT"],
            "home": os.environ["HOME"] == str(context.staging) == str(Path.cwd()),
            "key": context.idempotency_key,
        }
    )


@reusable(reuse=50)
def prints(context: Context[Request]) -> None:
    for _ in range(int(context.payload.how)):
        os.write(1, f"line of {context.idempotency_key}\n".encode())
    os.write(2, f"end of {context.idempotency_key}".encode())


@reusable(reuse=100)
def quick(context: Context[Request]) -> Done:
    return Done(os.getpid())


@reusable()
def says_how(context: Context[Request]) -> Done:
    match context.payload.how:
        case "retryable":
            raise Retryable("later", after=1)
        case "permanent":
            raise Permanent("NO", "never")
        case "snooze":
            raise Snooze("not now", after=1)
        case "error":
            raise ZeroDivisionError
        case "memory":
            raise MemoryError
        case "file":
            (context.staging / "file.txt").write_text("text")
            return Done(os.getpid(), files=["file.txt"])
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
    return Done(os.getpid())


@reusable(limits=Limits(network=True))
def leaves(context: Context[Request]) -> Done:
    if context.payload.how:
        LEFT[context.payload.how](context)
    return Done(os.getpid())


def _a_thread(context: Context[Request]) -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


LEFT: dict[str, Callable[[Context[Request]], object]] = {
    "thread": _a_thread,
    "open file": lambda context: _kept.append((context.staging / "open").open("w")),
    "directory": lambda context: os.chdir("/"),
    "mask": lambda context: os.umask(0o022),
    "variable": lambda context: os.environ.update(LEFT="behind"),
    "signal": lambda context: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "timer": lambda context: signal.setitimer(signal.ITIMER_REAL, 600),
    "limit": lambda context: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 256)),
}


@reusable()
def writes_beside_its_staging(context: Context[Request]) -> Done:
    staging = context.staging
    tried = {
        "a file beside it": lambda: (staging.parent / "outside").write_text("x"),
        "another name for it": lambda: staging.rename(staging.with_name("old")),
        "none of it": staging.rmdir,
        "a link beside it": lambda: (staging.parent / "link").symlink_to("/"),
    }
    return Done({what: _tried(attempt) for what, attempt in tried.items()})


@reusable()
def starts_a_program(context: Context[Request]) -> Done:
    return Done({"program": _tried(_a_program), "fork": _tried(os.fork), "thread": _tried(_a_thread_that_ends)})


def _a_program() -> object:
    return subprocess.run(["/bin/true"], check=True)


def _a_thread_that_ends() -> object:
    thread = threading.Thread(target=time.time)
    thread.start()
    thread.join()
    return None


def _tried(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "allowed"


@reusable()
def keeps_its_context(context: Context[Request]) -> Done:
    _kept.append(context)
    _kept[0].progress(77, "from the past")
    return Done(os.getpid())


@reusable()
def answers_for_the_one_before(context: Context[Request]) -> Done:
    _kept.append(context)
    if len(_kept) == 2:
        first = _kept[0]._order
        forged = Ended(first.job_id, first.fence, How.DONE, result='"forged"', is_reusable=True)
        os.write(_pipe_of(context), encode_frame(forged))
        time.sleep(600)
    return Done(os.getpid())


@reusable()
def publishes_what_is_not_its_own(context: Context[Request]) -> Done:
    if context.payload.how:
        order = context._order  # type: ignore[attr-defined]
        files = [Publication(Path("../../outside"))]
        forged = Ended(order.job_id, order.fence, How.DONE, published=files, is_reusable=True)
        os.write(_pipe_of(context), encode_frame(forged))
        time.sleep(600)
    return Done(os.getpid())


@reusable()
def hangs_after_its_end(context: Context[Request]) -> Done:
    if context.payload.how:
        _kept.append(_HangsWhenForgotten())
        _kept.clear()
    return Done(os.getpid())


class _HangsWhenForgotten:
    def __del__(self) -> None:
        time.sleep(600)


@reusable()
def waits(context: Context[Request]) -> Done:
    context.progress(1, "waiting")
    while context.payload.how and not context.cancelled():
        time.sleep(0.001)
    return Done(os.getpid())


@reusable()
def never_asks(context: Context[Request]) -> Done:
    context.progress(1, "busy")
    while context.payload.how:
        time.sleep(600)
    return Done(os.getpid())


@reusable(reuse=10)
def takes(context: Context[Request]) -> Done:
    if context.payload.how == "memory":
        block = bytearray(64 * MIB)
        del block
    if context.payload.how == "time":
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
    return Done(os.getpid())


@reusable(limits=Limits(cpu_seconds=1), reuse=10)
def takes_its_time(context: Context[Request]) -> Done:
    # Each attempt may take 1 s.
    until = time.process_time() + (60 if context.payload.how else 0.55)
    while time.process_time() < until:
        pass
    return Done(os.getpid())


@reusable()
def asks(context: Context[Request]) -> Done:
    known = context.ask(KnownPages(["d1"]))
    context.checkpoint({"known": list(known.digests)})
    return Done(os.getpid())


@reusable(sandbox="default")
def counts(context: Context[Request]) -> Done:
    _kept.append(None)
    return Done(len(_kept))


def _pipe_of(context: Any) -> int:
    return int(context._pipe._messages)
