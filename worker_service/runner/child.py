"""A child process, from its fork to its exit (`run_child`): prepare, sandbox, call the handler, report the outcome.

A reusable child then waits for another order. A child that exits without sending `Ended` has crashed.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

from worker_service.base.directories import OPEN_DIRECTORY
from worker_service.base.files import sync_path
from worker_service.base.forks import close_all_but
from worker_service.base.sanitize import clip, strip_surrogates
from worker_service.handlers.contract import (
    Done,
    File,
    Handler,
    PauseSource,
    Permanent,
    Retryable,
    Snooze,
    Stopped,
)
from worker_service.jobs.documents import RepublishedFile
from worker_service.runner import processes, sandbox
from worker_service.runner.context import Cancellation, ChildContext, Pipe
from worker_service.runner.messages import (
    MESSAGE_CHARACTERS_MAX,
    Begin,
    Ended,
    How,
    Launch,
    Order,
    Publication,
    Started,
    attempt_name,
)
from worker_service.runner.protocol import FRAME_BYTES_MAX, encode_frame
from worker_service.runner.reuse_check import ReuseCheck

_KEEP_RETRY_SECONDS = 30.0
_DIGEST = re.compile(r"[0-9a-f]*")
_OWN_DIRECTORY = Path(__file__).parent
HandlerLoader = Handler[Any] | Callable[[], Handler[Any]]
"""A handler that was imported before the fork, or a function with which the child imports it."""


class ChildSpec(Struct, frozen=True):
    launch: Launch
    begin: Begin
    number: int
    staging: Path
    # How many this child may run in turn.
    attempts: int
    # Descriptors of its pipes.
    messages: int
    # Log lines, stdout and stderr, also of C libraries and started programs.
    output: int
    # Replies to questions, and the orders after the first.
    answers: int


def run_child(spec: ChildSpec, loader: HandlerLoader) -> None:
    _prepare_process(spec)
    cancel = Cancellation()
    # SIGTERM may also come outside of an attempt, as while the child waits for an order.
    with contextlib.suppress(Stopped):
        _serve(spec, loader, Pipe(spec.messages, spec.answers, spec.output, cancel.deferred), cancel)


def _serve(spec: ChildSpec, loader: HandlerLoader, pipe: Pipe, cancel: Cancellation) -> None:
    order: Order | None = spec.launch.order
    setup = _ChildSetup(spec, loader)
    reuse_check = ReuseCheck(spec.staging) if spec.attempts > 1 else None
    attempts_left = spec.attempts
    while order is not None:
        attempts_left -= 1
        with contextlib.ExitStack() as locks:
            run = partial(_run_order, order, setup, reuse_check, pipe, cancel, locks)
            ended = _outcome_of(order, run)
            is_reusable = (
                reuse_check is not None
                and attempts_left > 0
                and not cancel.is_requested
                and setup.sandbox_level == sandbox.FULL_SANDBOX
                and ended.is_handlers_decision
                and reuse_check.clean_up_if_unchanged(ended.published)
            )
        if not is_reusable:
            # A SIGTERM must not cut the last message short.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if reuse_check is not None:
            ended = msgspec.structs.replace(ended, is_reusable=is_reusable, usage=reuse_check.usage())
        pipe.send(ended)
        order = pipe.next_order() if is_reusable else None


def _run_order(
    order: Order,
    setup: _ChildSetup,
    reuse_check: ReuseCheck | None,
    pipe: Pipe,
    cancel: Cancellation,
    locks: contextlib.ExitStack,
) -> Ended:
    cancel.begin_attempt()
    os.environ[processes.ATTEMPT] = attempt_name(order.key)
    handler = setup.handler()
    payload = _decode_payload(handler, order.payload)
    keep = _lock_keep(handler, payload, setup.spec.begin.keep_root, locks)
    if not setup.sandbox_level:
        setup.apply_sandbox(order, keep, payload)
        pipe.send(Started(*order.key, os.getpid(), processes.started_at(os.getpid()), setup.sandbox_level))
    if reuse_check is not None:
        reuse_check.begin(handler.limits)
    keep_path = None if keep is None else keep.path
    context = ChildContext(order, payload, staging=setup.spec.staging, keep=keep_path, pipe=pipe, cancel=cancel)
    return _call_handler(handler, order, context)


def _prepare_process(spec: ChildSpec) -> None:
    os.setsid()
    sandbox.raise_oom_score()
    processes.mark_process(spec.begin.pool_id, spec.number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(spec.output, 1)
    os.dup2(spec.output, 2)
    lock = [] if spec.begin.lock_fd is None else [spec.begin.lock_fd]
    close_all_but({0, 1, 2, spec.messages, spec.output, spec.answers, *sandbox.rule_descriptors(), *lock})
    # All other variables are the basic ones of the fork server.
    os.environ.update({"HOME": str(spec.staging), **spec.launch.environment})
    os.umask(0o077)
    os.chdir(spec.staging)
    # `tempfile` may have cached another directory while the fork server loaded a library.
    tempfile.tempdir = str(spec.staging)
    sandbox.reset_signals()


class _ChildSetup:
    def __init__(self, spec: ChildSpec, loader: HandlerLoader) -> None:
        self.spec = spec
        # What `sandbox.apply` has reached; empty until it was called.
        self.sandbox_level = ""
        self._loader = loader
        self._handler: Handler[Any] | None = None

    def handler(self) -> Handler[Any]:
        if self._handler is None:
            self._handler = self._loader if isinstance(self._loader, Handler) else self._loader()
            if self._handler.credentials and self.spec.begin.credentials is not None:
                os.environ["CREDENTIALS_DIRECTORY"] = str(self.spec.begin.credentials)
        return self._handler

    def apply_sandbox(self, order: Order, keep: KeepDirectory | None, payload: Any) -> None:
        handler, begin = self.handler(), self.spec.begin
        sandbox.set_limits(handler.limits, self.spec.attempts)
        reads = [*handler.reads, *order.inputs.values()]
        if handler.reads_payload is not None:
            reads += handler.reads_payload(payload)
        if begin.credentials is not None:
            reads += _find_credentials(begin.credentials, handler.credentials)
        runs_one_attempt = self.spec.attempts == 1
        writes: list[Path | int] = [self.spec.staging, *handler.writes]
        if keep is not None:
            # Later attempts have other keep directories, and the sandbox cannot be changed then.
            writes.append(keep.descriptor if runs_one_attempt else begin.keep_root)
        rules = sandbox.SandboxRules(reads, writes, handler.limits.network, starts_programs=runs_one_attempt)
        self.sandbox_level = sandbox.apply(rules, begin.sandbox if handler.sandbox == "default" else handler.sandbox)


def _decode_payload(handler: Handler[Any], payload: str | None) -> Any:
    try:
        return msgspec.json.decode(payload if payload is not None else "{}", type=handler.payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Permanent("PAYLOAD_INVALID", str(error)) from error


class KeepDirectory(Struct, frozen=True):
    path: Path
    descriptor: int


def _lock_keep(
    handler: Handler[Any], payload: Any, keep_root: Path, locks: contextlib.ExitStack
) -> KeepDirectory | None:
    # Attempts of a job type with the same keep key share a directory, one at a time.
    if handler.keep_key is None:
        return None
    name = hashlib.blake2s(f"{handler.job_type}\0{handler.keep_key(payload)}".encode(), digest_size=16).hexdigest()
    keep = keep_root / name
    try:
        while True:
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                # Do not follow links: a reused child can write all keep directories, and could put a link here.
                lock = os.open(keep, OPEN_DIRECTORY)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The daemon deletes keep directories that were not touched for long.
                os.utime(lock)
                # If the daemon deleted the directory before it was locked, try again.
                if os.path.samestat(os.fstat(lock), keep.lstat()):
                    locks.callback(os.close, lock)
                    return KeepDirectory(keep, lock)
                os.close(lock)
    except BlockingIOError as error:
        raise Snooze("another attempt works on the same thing", after=_KEEP_RETRY_SECONDS) from error


def _find_credentials(directory: Path, patterns: Sequence[str]) -> list[Path]:
    try:
        files = list(directory.iterdir())
    except OSError:
        # The handler reports which credential is missing.
        return []
    return [file for file in files if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns)]


# --- the outcome ---


def _call_handler(handler: Handler[Any], order: Order, context: ChildContext) -> Ended:
    try:
        done = handler.run(context)
    finally:
        # The handler may have kept a reference, with which it must not report for a later attempt.
        context.is_over = True
    if done is None:
        done = Done()
    if not isinstance(done, Done):
        raise TypeError(f"{handler.job_type} returned {type(done).__name__}: a handler returns Done or None")
    ended = _done_outcome(order, done, context.staging)
    # Encode only results that may be large.
    if (ended.result or ended.follow_ups or ended.published) and len(encode_frame(ended)) > FRAME_BYTES_MAX:
        raise Permanent("RESULT_TOO_LARGE", f"the result takes more than {FRAME_BYTES_MAX} bytes", "write a file")
    return ended


def _outcome_of(order: Order, run: Callable[[], Ended]) -> Ended:
    try:
        return run()
    except Permanent as error:
        return _end_early(order, How.PERMANENT, *error.problem)
    except Retryable as error:
        return _end_early(order, How.RETRYABLE, *error.problem, after_seconds=error.after)
    except Snooze as error:
        return _end_early(order, How.SNOOZED, *error.problem, after_seconds=_delay_of(error))
    except PauseSource as error:
        ended = _end_early(order, How.SNOOZED, *error.problem, after_seconds=max(float(error.after), 0.0))
        return msgspec.structs.replace(ended, pauses_source=True)
    except sandbox.SandboxError as error:
        return _end_early(order, How.RETRYABLE, "SANDBOX_UNAVAILABLE", error)
    except MemoryError:
        return _end_early(order, How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows")
    except Stopped:
        # The fork server ignores this outcome if it sent the signal itself.
        return _end_early(order, How.RETRYABLE, "INTERRUPTED", "another process sent it SIGTERM")
    except BaseException as error:  # any exception of a handler is an outcome, sys.exit() included
        return _end_early(order, How.RETRYABLE, "HANDLER_ERROR", _print_and_describe_bug(error))


def _end_early(
    order: Order, how: How, code: str, message: object, remedy: object = "", *, after_seconds: float | None = None
) -> Ended:
    detail, remedy_text = (strip_surrogates(clip(str(text), MESSAGE_CHARACTERS_MAX)) for text in (message, remedy))
    return Ended(*order.key, how, code=code, message=detail, remedy=remedy_text, after_seconds=after_seconds)


def _print_and_describe_bug(error: BaseException) -> str:
    # Leave out the frames of this package that called the handler.
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == _OWN_DIRECTORY:
        trace = trace.tb_next
    with contextlib.suppress(Exception):  # the handler may have broken stderr
        traceback.print_exception(type(error), error, trace)
    first, newline, more = _describe_exception(error).partition("\n")
    return f"{first}{_location(trace)}{newline}{more}".strip()


def _describe_exception(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # its __str__ may raise anything
        message = ""
    return f"{name}: {message}" if message else name


def _location(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)
    if not frames:
        return ""
    directory = Path(frames[0].filename).parent
    inner = [frame for frame in frames if Path(frame.filename).parent.is_relative_to(directory)][-1]
    return f" ({Path(inner.filename).name}:{inner.lineno} in {inner.name})"


def _done_outcome(order: Order, done: Done, staging: Path) -> Ended:
    publications: list[Publication] = []
    published_again: list[RepublishedFile] = []
    for file in done.files:
        if isinstance(file, RepublishedFile):
            published_again.append(msgspec.structs.replace(file, name=strip_surrogates(file.name)))
        else:
            publications.append(_publication(file if isinstance(file, File) else File(file), staging))
    for directory in {staging / publication.path.parent for publication in publications}:
        sync_path(directory)
    result = None if done.result is None else json.dumps(done.result, ensure_ascii=False, allow_nan=False)
    return Ended(
        *order.key,
        How.DONE,
        result=result,
        follow_ups=list(done.follow_ups),
        published=publications,
        published_again=published_again,
        document=done.document,
        publishes=done.publishes,
    )


def _publication(file: File, staging: Path) -> Publication:
    path = staging / file.path
    if not path.resolve().is_relative_to(staging.resolve()) or path.is_symlink() or not path.is_file():
        raise ValueError(f"{file.path} is not a file in the staging directory: only such files can be published")
    for digest, length in ((file.sha256, 64), (file.md5, 32)):
        if digest and (len(digest) != length or not _DIGEST.fullmatch(digest)):
            raise ValueError(f"{file.path}: {digest[:80]!r} is not a digest of {length} lowercase hex digits")
    sync_path(path)
    # Relative, because the fork server moves the directory.
    path = path.resolve().relative_to(staging.resolve())
    return Publication(path, file.role, strip_surrogates(file.name), file.sha256, file.md5, strip_surrogates(file.note))


def _delay_of(snooze: Snooze) -> float:
    if snooze.until is None:
        return max(float(snooze.after or 0.0), 0.0)
    return max((snooze.until - datetime.now(UTC)).total_seconds(), 0.0)
