"""A child process from its fork to its exit, and the context that its handler gets. Never returns into the fork server.

Most children serve one attempt. A reused child gives each attempt an empty directory, and continues only if a check
after each attempt finds it unchanged: no new thread, no new descriptor, no file outside the attempt's staging, the same
directory, umask, environment, limits and signals. A reused child starts no other process. The exit status carries no
result: a child that ends without sending `Ended` has crashed.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import math
import mmap
import os
import re
import resource
import select
import shutil
import signal
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.directories import open_directory
from worker_service.base.files import sync_path
from worker_service.base.forks import close_all_but, flush_output
from worker_service.handlers.contract import (
    Done,
    File,
    Handler,
    Limits,
    PauseSource,
    Permanent,
    Retryable,
    SameFile,
    Snooze,
    Stopped,
)
from worker_service.jobs.attempts import Count, Usage
from worker_service.jobs.documents import CrawlPage, FileAgain, PageResult, Question, QuestionAnswer
from worker_service.jobs.job import NewJob
from worker_service.runner import processes, sandbox
from worker_service.runner.protocol import (
    FRAME_BYTES_MAX,
    LINE_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    RELAY_BYTES_MAX,
    Asked,
    Begin,
    Checkpointed,
    ChildInput,
    ChildMessage,
    Ended,
    How,
    Inbox,
    Launch,
    Order,
    PagesRead,
    Progressed,
    Publication,
    Reply,
    Started,
    attempt_name,
    clip,
    decode_answer,
    decode_child_input,
    encode_frame,
    encode_question,
)

FULL_SANDBOX = "landlock+seccomp"
_KEEP_RETRY_SECONDS = 30.0
_DIGEST = re.compile(r"[0-9a-f]*")
_CHECKED_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
_SIGNALS = (
    signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGIO, signal.SIGPIPE, signal.SIGPROF,
    signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM, signal.SIGXCPU,
)  # fmt: skip
_THREADS, _DESCRIPTORS = Path("/proc/self/task"), Path("/proc/self/fd")
_READ_BYTES = 1 << 16
_PAGES_AT_ONCE = 100
_CHARACTERS_AT_ONCE = 1 << 18
"""Limit of one message; a larger page is sent alone."""

A = TypeVar("A", bound=QuestionAnswer)

HandlerLoader = Handler[Any] | Callable[[], Handler[Any]]
"""The handler, or the function that imports it."""


class ChildSpec(Struct, frozen=True):
    """Everything that the fork server has prepared for one child."""

    launch: Launch
    """The first order."""
    begin: Begin
    number: int
    staging: Path
    """Empty before each attempt."""
    attempts: int
    """Maximum number of attempts that the child may serve."""
    messages: int
    output: int
    """Receives log lines and stdout and stderr, including those of C libraries and programs that the child starts."""
    answers: int
    begun: mmap.mmap | None
    """Shared memory where the child counts the attempts that it has begun; None if it serves one."""


def run_child(spec: ChildSpec, loader: HandlerLoader) -> None:
    """Serve all attempts of the child. Called in the forked process."""
    _prepare_process(spec)
    cancel = Cancellation()
    with contextlib.suppress(Stopped):
        _serve(spec, loader, Pipe(spec.messages, spec.answers, spec.output, cancel.deferred), cancel)


def _serve(spec: ChildSpec, loader: HandlerLoader, pipe: Pipe, cancel: Cancellation) -> None:
    """Serve one attempt after another, until the limit is reached or one did not end cleanly."""
    order: Order | None = spec.launch.order
    child_sandbox = _ChildSandbox(spec, loader)
    change_check = _ChangeCheck(spec) if spec.attempts > 1 else None
    left = spec.attempts
    while order is not None:
        left -= 1
        with contextlib.ExitStack() as held:
            ended = _attempt(order, child_sandbox, change_check, pipe, cancel, held)
            continues = (
                left > 0
                and change_check is not None
                and not cancel.is_requested
                and child_sandbox.is_complete
                and _is_clean(ended)
            )
            continues = continues and change_check is not None and change_check.is_unchanged(ended.published)
        if not continues:
            # A SIGTERM must not cut the last message short.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pipe.send(
            ended
            if change_check is None
            else msgspec.structs.replace(ended, is_reusable=continues, usage=change_check.usage())
        )
        order = pipe.next_order() if continues else None


def _attempt(
    order: Order,
    child_sandbox: _ChildSandbox,
    change_check: _ChangeCheck | None,
    pipe: Pipe,
    cancel: Cancellation,
    held: contextlib.ExitStack,
) -> Ended:
    """Run one attempt. `held` releases per-attempt resources once the child's state has been verified."""
    context: ChildContext | None = None

    def attempt() -> Ended:
        nonlocal context
        cancel.listen()
        os.environ[processes.ATTEMPT] = attempt_name(order.key)
        chosen = child_sandbox.handler()
        payload = _decode(chosen, order.payload)
        keep = _lock_keep(chosen, payload, child_sandbox.spec.begin.keep_root, held)
        child_sandbox.apply(order, keep, payload)
        if change_check is not None:
            change_check.begin(chosen.limits)
        if not change_check or change_check.is_new:
            pipe.send(Started(*order.key, os.getpid(), processes.started_at(os.getpid()), child_sandbox.level))
        place = None if keep is None else keep.path
        context = ChildContext(order, payload, staging=child_sandbox.spec.staging, keep=place, pipe=pipe, cancel=cancel)
        return _run(chosen, order, context)

    ended = _outcome_of(order, attempt)
    if context is not None:
        # A handler may have kept a reference; it can no longer report for the attempt.
        context.is_over = True
    return ended


# --- before the handler runs --------------------------------------------------------------------------


def _prepare_process(spec: ChildSpec) -> None:
    os.setsid()
    sandbox.raise_oom_score()
    processes.mark_process(spec.begin.pool_id, spec.number)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(spec.output, 1)
    os.dup2(spec.output, 2)
    lock = [] if spec.begin.lock_fd is None else [spec.begin.lock_fd]
    close_all_but({0, 1, 2, spec.messages, spec.output, spec.answers, *sandbox.rule_descriptors(), *lock})
    # Without these, the environment is the basic one of the fork server.
    os.environ.update({"HOME": str(spec.staging), **spec.launch.environment})
    os.umask(0o077)
    os.chdir(spec.staging)
    # A library may have cached the directory while the fork server loaded it.
    tempfile.tempdir = str(spec.staging)
    sandbox.reset_signals()


class _ChildSandbox:
    """The child's sandbox, applied once before its first attempt."""

    def __init__(self, spec: ChildSpec, loader: HandlerLoader) -> None:
        self.spec = spec
        self.level = ""
        self._loader = loader
        self._handler: Handler[Any] | None = None

    @property
    def is_complete(self) -> bool:
        """True if the kernel provides the whole sandbox; otherwise the child serves only one attempt."""
        return self.level == FULL_SANDBOX

    def handler(self) -> Handler[Any]:
        if self._handler is None:
            self._handler = self._loader if isinstance(self._loader, Handler) else self._loader()
            if self._handler.credentials and self.spec.begin.credentials is not None:
                os.environ["CREDENTIALS_DIRECTORY"] = str(self.spec.begin.credentials)
        return self._handler

    def apply(self, order: Order, keep: KeepDirectory | None, payload: Any) -> None:
        if self.level:
            return
        handler, begin = self.handler(), self.spec.begin
        sandbox.limit(handler.limits, self.spec.attempts)
        reads = [*handler.reads, *order.inputs.values()]
        if handler.reads_payload is not None:
            reads += handler.reads_payload(payload)
        if begin.credentials is not None:
            reads += _credentials(begin.credentials, handler.credentials)
        is_alone = self.spec.attempts == 1
        writes: list[Path | int] = [self.spec.staging, *handler.writes]
        if keep is not None:
            writes.append(keep.descriptor if is_alone else begin.keep_root)
        rules = sandbox.SandboxRules(reads, writes, handler.limits.network, starts_programs=is_alone)
        self.level = sandbox.apply(rules, begin.sandbox if handler.sandbox == "default" else handler.sandbox)


class _ChangeCheck:
    """Checks whether an attempt left its child unchanged. Cannot see what the handler keeps in variables."""

    def __init__(self, spec: ChildSpec) -> None:
        self._staging = spec.staging
        # Opened before the sandbox is applied. Writing to it resets the peak memory for each attempt.
        self._peak: int | None = None
        with contextlib.suppress(OSError):
            self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        self._cpu_seconds = 0.0
        self._state_before: object = None
        self._begun, self._note = 0, spec.begun

    @property
    def is_new(self) -> bool:
        return self._begun == 1

    def begin(self, allowed: Limits) -> None:
        self._begun += 1
        if self._note is not None:
            # If the child dies before this point, the order counts as not begun.
            self._note[:8] = self._begun.to_bytes(8)
        sandbox.renew_cpu(allowed)
        if self._peak is not None:
            os.write(self._peak, b"5")
        os.chdir(self._staging)
        self._cpu_seconds = _cpu_seconds()
        if self._state_before is None:
            self._state_before = self._state()

    def usage(self) -> Usage:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Usage(round(_cpu_seconds() - self._cpu_seconds, 6), peak)

    def is_unchanged(self, published: Sequence[Publication]) -> bool:
        """Return whether the child is unchanged, and remove all files from staging except those to be published, which
        the fork server moves away."""
        flush_output()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        else:
            return False
        try:
            if self._state() != self._state_before:
                return False
            kept = {file.path.parts[0] for file in published}
            for entry in list(os.scandir(self._staging)):
                if entry.name not in kept:
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path)
                    else:
                        Path(entry.path).unlink()
        except OSError:
            return False
        return True

    def _state(self) -> object:
        return (
            _THREADS.stat().st_nlink,
            # From Linux 6.2, the size is the number of descriptors.
            _DESCRIPTORS.stat().st_size or len(os.listdir(_DESCRIPTORS)),  # noqa: PTH208
            os.getcwd(),  # noqa: PTH109
            os.umask(0o077),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            [signal.getsignal(one) for one in _SIGNALS],
            [signal.getitimer(one) for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
            [resource.getrlimit(one) for one in _CHECKED_LIMITS],
            {name: value for name, value in os.environ.items() if name != processes.ATTEMPT},
            tempfile.tempdir,
        )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _decode(handler: Handler[Any], payload: str | None) -> Any:
    try:
        return msgspec.json.decode(payload if payload is not None else "{}", type=handler.payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Permanent("PAYLOAD_INVALID", str(error)) from error


class KeepDirectory(Struct, frozen=True):
    """The directory for an attempt's `keep_key`, locked until the attempt has ended."""

    path: Path
    descriptor: int


def _lock_keep(
    handler: Handler[Any], payload: Any, keep_root: Path, held: contextlib.ExitStack
) -> KeepDirectory | None:
    if handler.keep_key is None:
        return None
    name = hashlib.blake2s(f"{handler.job_type}\0{handler.keep_key(payload)}".encode(), digest_size=16).hexdigest()
    keep = keep_root / name
    try:
        while True:
            keep.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                # A reused child can write all keep directories, and could put a link here.
                lock = open_directory(keep)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The sweep of kept directories goes by this time.
                os.utime(lock)
                # The sweep may have removed the directory between the two calls. Then the lock is on a deleted
                # directory: try again.
                if os.path.samestat(os.fstat(lock), keep.lstat()):
                    held.callback(os.close, lock)
                    return KeepDirectory(keep, lock)
                os.close(lock)
    except BlockingIOError as error:
        raise Snooze("another attempt works on the same thing", after=_KEEP_RETRY_SECONDS) from error


def _credentials(directory: Path, patterns: Sequence[str]) -> list[Path]:
    try:
        files = list(directory.iterdir())
    except OSError:
        # The handler reports which credential is missing.
        return []
    return [file for file in files if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns)]


# --- the outcome ----------------------------------------------------------------------------------------


def _run(handler: Handler[Any], order: Order, context: ChildContext) -> Ended:
    done = handler.run(context)
    if done is None:
        done = Done()
    if not isinstance(done, Done):
        raise TypeError(f"{handler.job_type} returned {type(done).__name__}: a handler returns Done or None")
    ended = _done_outcome(order, done, context.staging)
    # Encode only results that may be large.
    if (ended.result or ended.follow_ups or ended.published) and len(encode_frame(ended)) > FRAME_BYTES_MAX:
        raise Permanent("RESULT_TOO_LARGE", f"the result takes more than {FRAME_BYTES_MAX} bytes", "write a file")
    return ended


def _outcome_of(order: Order, attempt: Callable[[], Ended]) -> Ended:
    """Run the attempt and turn every exception into its outcome."""

    def ended(how: How, code: str, message: object, remedy: object = "", after: float | None = None) -> Ended:
        detail, remedy_text = (strip_surrogates(clip(str(one), MESSAGE_CHARACTERS_MAX)) for one in (message, remedy))
        return Ended(*order.key, how, code=code, message=detail, remedy=remedy_text, after_seconds=after)

    try:
        return attempt()
    except Permanent as error:
        return ended(How.PERMANENT, *error.problem)
    except Retryable as error:
        return ended(How.RETRYABLE, *error.problem, error.after)
    except Snooze as error:
        return ended(How.SNOOZED, *error.problem, _delay_of(error))
    except PauseSource as error:
        return msgspec.structs.replace(
            ended(How.SNOOZED, *error.problem, max(float(error.after), 0.0)), pauses_source=True
        )
    except sandbox.SandboxError as error:
        return ended(How.RETRYABLE, "SANDBOX_UNAVAILABLE", error)
    except MemoryError:
        return ended(How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows")
    except Stopped:
        # The fork server ignores this outcome if it sent the signal itself.
        return ended(How.RETRYABLE, "INTERRUPTED", "somebody else sent it SIGTERM")
    except BaseException as error:  # any exception of a handler is an outcome, sys.exit() included
        return ended(How.RETRYABLE, "HANDLER_ERROR", _describe_bug(error))


def _describe_bug(error: BaseException) -> str:
    """Print the traceback to the log, and return one line for users: the exception and where it was raised."""
    steps = error.__traceback__
    while steps is not None and steps.tb_frame.f_code.co_filename == __file__:
        steps = steps.tb_next
    with contextlib.suppress(Exception):  # the handler may have broken stderr
        traceback.print_exception(type(error), error, steps)
    first, newline, more = _describe_exception(error).partition("\n")
    return f"{first}{_location(steps)}{newline}{more}".strip()


def _describe_exception(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # its __str__ may raise anything
        message = ""
    return f"{name}: {message}" if message else name


def _location(steps: TracebackType | None) -> str:
    """Return the innermost frame in the handler's own directory. Frames of libraries are only in the log."""
    frames = traceback.extract_tb(steps)
    if not frames:
        return ""
    home = Path(frames[0].filename).parent
    *_, inner = [encode_frame for encode_frame in frames if Path(encode_frame.filename).parent.is_relative_to(home)]
    return f" ({Path(inner.filename).name}:{inner.lineno} in {inner.name})"


def _is_clean(ended: Ended) -> bool:
    """Return whether the handler chose this outcome."""
    is_chosen = ended.how in (How.DONE, How.PERMANENT, How.RETRYABLE, How.SNOOZED)
    return is_chosen and ended.code not in ("HANDLER_ERROR", "SANDBOX_UNAVAILABLE", "INTERRUPTED")


def _done_outcome(order: Order, done: Done, staging: Path) -> Ended:
    files: list[Publication] = []
    files_again: list[FileAgain] = []
    for one in done.files:
        if isinstance(one, SameFile):
            files_again.append(FileAgain(one.file_id, one.role, strip_surrogates(one.name)))
        else:
            files.append(_publication(one if isinstance(one, File) else File(one), staging))
    for directory in {staging / file.path.parent for file in files}:
        sync_path(directory)
    result = None if done.result is None else json.dumps(done.result, ensure_ascii=False, allow_nan=False)
    return Ended(
        *order.key,
        How.DONE,
        result=result,
        follow_ups=list(done.follow_ups),
        published=files,
        published_again=files_again,
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
    sync_path(path)
    # Relative, because the fork server moves the directory.
    path = path.resolve().relative_to(staging.resolve())
    return Publication(path, file.role, strip_surrogates(file.name), file.sha256, file.md5, strip_surrogates(file.note))


def _delay_of(snooze: Snooze) -> float:
    if snooze.until is None:
        return max(float(snooze.after or 0.0), 0.0)
    return max((snooze.until - datetime.now(UTC)).total_seconds(), 0.0)


# --- the handler's context ----------------------------------------------------------------------------
#
# Messages go out over one pipe and are never taken back; replies come in over another. A signal may interrupt the
# handler between any two of its lines, but never in the middle of a message.


class Cancellation:
    """The state of a SIGTERM. A handler that calls `cancelled` may finish its current piece of work; any other is
    interrupted once."""

    def __init__(self) -> None:
        self.is_requested = False
        self.is_polled = False
        self._blocks = 0
        self._is_due = False

    def listen(self) -> None:
        """Handle SIGTERM for a new attempt."""
        self.is_polled = False
        signal.signal(signal.SIGTERM, self._on_sigterm)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay the interruption until the end of the block."""
        if threading.current_thread() is not threading.main_thread():
            # Python runs signal handlers only in the main thread.
            yield
            return
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
        if self._is_due and not self._blocks:
            self._is_due = False
            raise Stopped

    def _on_sigterm(self, number: int, stack: object) -> None:
        first, self.is_requested = not self.is_requested, True
        if not first or self.is_polled:
            return
        if self._blocks:
            self._is_due = True
            return
        raise Stopped


class Pipe:
    def __init__(
        self, descriptor: int, answers: int, output: int, held: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._descriptor = descriptor
        self._answers = answers
        self._output = output
        self._deferred = held
        # A handler may use threads.
        self._send_lock, self._ask_lock, self._log_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._inbox = Inbox(RELAY_BYTES_MAX)
        self._received: deque[ChildInput] = deque()
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._asked = self._answered = 0

    def log(self, text: str) -> None:
        """Write to the stream of printed output, so that log lines and output keep their order."""
        with self._deferred(), self._log_lock:
            _write(self._output, text.encode("utf-8", "replace"))

    def send(self, *messages: ChildMessage) -> None:
        frames = [encode_frame(message) for message in messages]
        for message, encoded in zip(messages, frames, strict=True):
            if len(encoded) > FRAME_BYTES_MAX:
                # Fail instead of truncating: half a result is useless.
                name = type(message).__name__
                raise Permanent("TOO_LARGE", f"{name} takes {len(encoded)} bytes; {FRAME_BYTES_MAX} fit")
        with self._deferred(), self._send_lock:
            _write(self._descriptor, b"".join(frames))

    def ask(self, order: Order, kind: str, body: str) -> Reply:
        """Ask one question and wait for its reply. Replies to questions that a signal interrupted are read first."""
        with self._ask_lock:
            while self._answered < self._asked:
                self._next_reply()
            with self._deferred():
                self.send(Asked(*order.key, self._asked + 1, kind, body))
                self._asked += 1
            return self._next_reply()

    def next_order(self) -> Order | None:
        """Wait for the next order of a reused child. Return None if the fork server is gone."""
        while True:
            while self._received:
                message = self._received.popleft()
                if isinstance(message, Launch):
                    return message.order
                self._answered += 1
            # Not held: a SIGTERM here interrupts no work.
            received = os.read(self._answers, _READ_BYTES)
            if not received:
                return None
            self._received += map(decode_child_input, self._inbox.feed(received))

    def _next_reply(self) -> Reply:
        while not self._received:
            self._poll.poll()
            with self._deferred():
                received = os.read(self._answers, _READ_BYTES)
                if not received:
                    raise Retryable("nobody is there to answer", code="ASK_FAILED")
                self._received += map(decode_child_input, self._inbox.feed(received))
        message = self._received.popleft()
        if not isinstance(message, Reply):
            raise RuntimeError("an order came where an answer was due")
        self._answered += 1
        return message


class ChildContext:
    """Implements `worker_service.handlers.Context`."""

    def __init__(
        self, order: Order, payload: Any, *, staging: Path, keep: Path | None, pipe: Pipe, cancel: Cancellation
    ) -> None:
        self.payload = payload
        self.is_over = False
        """True if the attempt has ended while its child lives on."""
        self.job_type = order.job_type
        self.platform = order.platform
        self.account = order.account
        self.owner = order.owner
        self.document_id = order.document_id
        self.generation = order.generation
        self.document = order.document
        self.parent_id = order.parent_id
        self.inputs: Mapping[str, Path] = dict(order.inputs)
        self.staging = staging
        self.state = json.loads(order.state) if order.state else None
        self.idempotency_key = str(order.job_id)
        self.slots = max(order.node_slots, len(os.sched_getaffinity(0)))
        self._order = order
        self._keep = keep
        self._pipe = pipe
        self._cancel = cancel

    @property
    def keep(self) -> Path:
        if self._keep is None:
            raise AttributeError(f"{self.job_type} declares no keep_key, so it has no directory to keep")
        return self._keep

    def progress(
        self,
        percent: float | None = None,
        message: str = "",
        *,
        done: int | None = None,
        total: int | None = None,
        unit: str = "",
        rate: float | None = None,
    ) -> None:
        if percent is None:
            percent = 100 * done / total if done is not None and total else 0.0
        known = percent if math.isfinite(percent) else 0.0
        count = None if done is None else _count(done, total, unit, rate)
        self._send(Progressed(*self._order.key, min(max(float(known), 0.0), 100.0), _line(message), count))

    def log(self, line: str) -> None:
        # Clip before splitting: a single line may be huge.
        lines = clip(line, 20 * LINE_CHARACTERS_MAX).splitlines() or [""]
        self._refuse_if_over()
        self._pipe.log("".join(f"{clip(one, LINE_CHARACTERS_MAX)}\n" for one in lines))

    def cancelled(self) -> bool:
        self._cancel.is_polled = True
        return self._cancel.is_requested

    def checkpoint(self, state: object, follow_ups: Sequence[NewJob] = (), crawl: CrawlPage | None = None) -> None:
        state_json = json.dumps(state, allow_nan=False)
        self._send(Checkpointed(*self._order.key, state_json, list(follow_ups), crawl))

    def save_page(self, page: PageResult) -> None:
        self.save_pages([page])

    def save_pages(self, pages: Sequence[PageResult]) -> None:
        if self.document_id is None:
            raise Permanent("NO_DOCUMENT", f"a job of {self.job_type} without a document has no pages to save")
        self._send(*(PagesRead(*self._order.key, batch) for batch in _in_messages(map(_strip_surrogates_in, pages))))

    def ask(self, question: Question[A]) -> A:
        kind, body = encode_question(question)
        self._refuse_if_over()
        reply = self._pipe.ask(self._order, kind, body)
        if reply.code == "TOO_LARGE":
            raise Permanent("TOO_LARGE", reply.message)
        if reply.code:
            raise Retryable(reply.message, code=reply.code)
        return cast("A", decode_answer(kind, reply.body))

    def _send(self, *messages: ChildMessage) -> None:
        self._refuse_if_over()
        self._pipe.send(*messages)

    def _refuse_if_over(self) -> None:
        if self.is_over:
            raise RuntimeError("this context is of an attempt that has ended")


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _count(done: float, total: float | None, unit: str, rate: float | None) -> Count | None:
    """Return the numbers that a table can store, or None if `done` is not one of them."""

    def to_int(number: float | None) -> int | None:
        return int(number) if number is not None and 0 <= number < 2**53 else None

    measured = rate if rate is not None and math.isfinite(rate) and rate >= 0 else None
    counted = to_int(done)
    return None if counted is None else Count(counted, to_int(total), _line(unit), measured)


def _line(text: str) -> str:
    return strip_surrogates(clip(text, LINE_CHARACTERS_MAX))


def _in_messages(pages: Iterable[PageResult]) -> Iterator[list[PageResult]]:
    batch: list[PageResult] = []
    characters = 0
    for page in pages:
        own = len(page.text or "") + len(page.layout or "")
        if batch and (len(batch) == _PAGES_AT_ONCE or characters + own > _CHARACTERS_AT_ONCE):
            yield batch
            batch, characters = [], 0
        batch.append(page)
        characters += own
    if batch:
        yield batch


def _strip_surrogates_in(page: PageResult) -> PageResult:
    return page if page.text is None else replace(page, text=strip_surrogates(page.text).replace("\0", "�"))


def strip_surrogates(text: str) -> str:
    """Replace lone surrogates, which a file name may contain and a JSON message may not."""
    return text.encode("utf-8", "replace").decode()
