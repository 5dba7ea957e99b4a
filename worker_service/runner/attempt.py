"""A child process (`ForkedChild`) and the attempt that it runs (`RunningAttempt`), as the fork server sees them.

A reused child runs several attempts in turn. `ForkedChild` owns the parent's ends of three pipes: `messages` and
`output` (log lines) from the child, `answers` (replies and further orders) to it.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from worker_service.base import directories
from worker_service.base.forks import EXIT_OUT_OF_MEMORY, fork_process
from worker_service.base.sanitize import safe_text
from worker_service.jobs.attempts import Usage
from worker_service.jobs.history import LOG_LINES_MOST
from worker_service.runner import processes
from worker_service.runner.child import ChildSpec, HandlerLoader, run_child
from worker_service.runner.handler_probe import LoadedHandler
from worker_service.runner.log_lines import LINE_BYTES_MAX, LogBuffer, OutputLines, visible_part
from worker_service.runner.messages import (
    LINE_CHARACTERS_MAX,
    Asked,
    AttemptOver,
    Begin,
    Ended,
    How,
    Key,
    Launch,
    Logged,
    Progressed,
    Reply,
    Started,
    attempt_name,
)
from worker_service.runner.protocol import (
    FRAME_BYTES_MAX,
    Garbled,
    Inbox,
    check_files,
    check_paths,
    decode_child_message,
    encode_frame,
    encode_message,
    wrap_frame,
)
from worker_service.runner.sandbox import FULL_SANDBOX

READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
# Shortest time between two messages with progress, and between two with log lines.
_PROGRESS_SECONDS = 0.1
_LINES_SECONDS = 0.1
# The same number also limits the KiB of log lines per second. The database can store more.
_LINES_PER_SECOND = 2000
# The output pipe is not read while more characters of log lines wait.
_WAITING_CHARACTERS_MAX = 1 << 20
# The last lines before a crash become a part of the error message.
_LAST_LINES = 12
_LAST_LINES_CHARACTERS_MAX = 2000
_KILL_AGAIN_SECONDS = 0.1
# Questions that one attempt may ask at once, and per second: the daemon answers them in its main loop.
_QUESTIONS_BURST = 100
_QUESTIONS_PER_SECOND = 100


class EndReason(Struct, frozen=True):
    how: How
    code: str
    message: str


class ForkedChild:
    def __init__(
        self,
        number: int,
        home: Path,
        launch: Launch,
        begin: Begin,
        handler: LoadedHandler,
        attempts_most: int,
    ) -> None:
        # Unique in this fork server; the child's processes are marked with it.
        self.number = number
        self.job_type = launch.order.job_type
        self.job_class = handler.described.facts.job_class
        self.attempts_left = attempts_most
        # Parent of the staging directory. A sandboxed child cannot write here.
        self.home = home
        self.inbox = Inbox(FRAME_BYTES_MAX)
        self.output_lines = OutputLines()
        self.unsent = bytearray()
        # True while the fork server waits until it can write more of `unsent`.
        self.is_waiting_to_write = False
        self.attempt: RunningAttempt | None = None
        self.sandbox = ""
        self.idle_since = 0.0
        # Of its earlier attempts.
        self.past_cpu_seconds = 0.0
        # True if the last read filled the buffer.
        self.may_have_more = False
        self._staging_fd = os.open(self.staging, directories.OPEN_DIRECTORY)
        try:
            self._fork(launch, begin, handler.loader)
        except BaseException:
            os.close(self._staging_fd)
            raise
        self.pid_started = 0
        self.pipes = (self.messages, self.output)
        self.open_pipes = {*self.pipes}

    def _fork(self, launch: Launch, begin: Begin, loader: HandlerLoader | None) -> None:
        assert loader is not None
        with contextlib.ExitStack() as parent_ends, contextlib.ExitStack() as child_ends:
            pipes = []
            # The child writes to `messages` and `output`, and reads `answers`.
            for child_writes in (True, True, False):
                reading, writing = os.pipe()
                parent_end, child_end = (reading, writing) if child_writes else (writing, reading)
                parent_ends.callback(os.close, parent_end)
                child_ends.callback(os.close, child_end)
                os.set_blocking(parent_end, False)
                pipes.append((parent_end, child_end))
            (self.messages, child_messages), (self.output, child_output), (self.answers, child_answers) = pipes
            spec = ChildSpec(
                launch=launch,
                begin=begin,
                number=self.number,
                staging=self.staging,
                attempts=self.attempts_left,
                messages=child_messages,
                output=child_output,
                answers=child_answers,
            )
            self.pid = fork_process(lambda: run_child(spec, loader))
            # The parent's ends stay open after a successful fork.
            parent_ends.pop_all()

    @property
    def staging(self) -> Path:
        return self.home / "staging"

    @property
    def is_home_reusable(self) -> bool:
        """True if the child was fully sandboxed, and its staging directory is empty and still the original one."""
        with contextlib.suppress(OSError):
            is_original = os.path.samestat(os.fstat(self._staging_fd), self.staging.lstat())
            return is_original and self.sandbox == FULL_SANDBOX and not os.listdir(self._staging_fd)  # noqa: PTH208
        return False

    def move_published_files(self, ended: Ended, folder: Path) -> None:
        """Move the files to `folder`, where the child cannot replace them, and check them there."""
        check_paths(ended)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            with directories.open_nested_folder(folder) as target:
                for name in {file.path.parts[0] for file in ended.published}:
                    os.rename(name, name, src_dir_fd=self._staging_fd, dst_dir_fd=target)
                check_files(ended, target)
        except BaseException:
            # There may be a million files: a separate process will delete them with the home directory.
            folder.rename(self.home / "refused")
            raise

    def send_unsent(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: os.write(self.answers, self.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()

    def read_piece(self, pipe: int) -> bytes:
        self.may_have_more = False
        try:
            received = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        self.may_have_more = len(received) == READ_BYTES
        if not received:
            self.open_pipes.discard(pipe)
        return received

    def close(self) -> None:
        for descriptor in (*self.pipes, self.answers, self._staging_fd):
            os.close(descriptor)


class RunningAttempt:
    def __init__(self, launch: Launch, child: ForkedChild, *, seconds: int) -> None:
        self.launch = launch
        self.order = launch.order
        self.child = child
        self.began_at = time.monotonic()
        self.timeout_at = self.began_at + seconds
        self._timeout_message = f"it was not done after {seconds} s"
        self.kill_at = math.inf
        # Wait status and usage of the child, once it has exited.
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self._stop_reason: EndReason | None = None
        self._ended: Ended | None = None
        # `_ended` as the child encoded it.
        self._ended_body = b""
        # If True, the result counts in spite of the stop.
        self._ended_before_stop = False
        self._unsent_progress: bytes | None = None
        self._progress_sent_at = -math.inf
        self._lines = LogBuffer()
        self._lines_due_at = -math.inf
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        # Number of the question whose answer the child waits for.
        self._open_question: int | None = None
        # That question, encoded, if it is held back because the child asks too often.
        self._held_question: bytes | None = None
        self._questions_allowed = float(_QUESTIONS_BURST)
        self._questions_counted_at = 0.0
        child.attempt = self
        child.attempts_left -= 1

    @property
    def key(self) -> Key:
        return self.order.key

    @property
    def has_exited(self) -> bool:
        return self.status is not None

    @property
    def has_ended_reusably(self) -> bool:
        """The handler has ended, and its child waits for another order."""
        return self._ended is not None and self._ended.is_reusable and not self.is_stopping

    @property
    def is_stopping(self) -> bool:
        return self._stop_reason is not None

    @property
    def has_log_backlog(self) -> bool:
        return self._lines.characters > _WAITING_CHARACTERS_MAX

    def started_message(self) -> bytes:
        # For a reused child, which sends `Started` only in its first attempt.
        child = self.child
        return encode_frame(Started(*self.key, child.pid, child.pid_started, child.sandbox))

    # --- messages of the child ---

    def read(self, pipe: int, now: float) -> Iterator[bytes]:
        received = self.child.read_piece(pipe)
        if pipe == self.child.output:
            # Do not decode lines that the buffer would drop.
            for line in self.child.output_lines.feed(received)[-LOG_LINES_MOST:]:
                self._add_line(line)
        elif self._stop_reason is None or self._stop_reason.how is not How.GARBLED:
            try:
                for body in self.child.inbox.feed(received):
                    yield from self._handle_message(body, now)
            except Garbled as error:
                reason = EndReason(How.GARBLED, "GARBLED", f"it sent invalid data: {error}")
                self.stop(reason, grace=0.0, now=now)

    def drain(self, now: float) -> Iterator[bytes]:
        # Read all that the pipes can hold, but no more: another process may write to them for ever.
        for pipe in sorted(self.child.open_pipes):
            for _ in range(1 + _PIPE_BYTES // READ_BYTES):
                yield from self.read(pipe, now)
                if not self.child.may_have_more:
                    break
        yield from self.due_messages(now, is_last=True)

    def due_messages(self, now: float, *, is_last: bool = False) -> Iterator[bytes]:
        if self._unsent_progress is not None and (is_last or now >= self._progress_sent_at + _PROGRESS_SECONDS):
            yield wrap_frame(self._unsent_progress)
            self._unsent_progress, self._progress_sent_at = None, now
        if is_last:
            unfinished_line = self.child.output_lines.pop_unfinished()
            if unfinished_line:
                self._add_line(unfinished_line)
        if self._lines and (is_last or now >= self._lines_due_at):
            lines_or_kib = max(len(self._lines), self._lines.characters >> 10)
            self._lines_due_at = now + max(_LINES_SECONDS, lines_or_kib / _LINES_PER_SECOND)
            yield encode_frame(Logged(*self.key, self._lines.pop()))
        if self._held_question is not None and self._use_question_allowance(now):
            yield wrap_frame(self._held_question)
            self._held_question = None

    def _use_question_allowance(self, now: float) -> bool:
        # A token bucket: allowances accrue at a constant rate, up to the burst.
        earned = (now - self._questions_counted_at) * _QUESTIONS_PER_SECOND
        self._questions_allowed = min(self._questions_allowed + earned, float(_QUESTIONS_BURST))
        self._questions_counted_at = now
        if self._questions_allowed < 1:
            return False
        self._questions_allowed -= 1
        return True

    def next_due(self) -> float:
        times = [self.kill_at if self.is_stopping else self.timeout_at]
        if self._unsent_progress is not None:
            times.append(self._progress_sent_at + _PROGRESS_SECONDS)
        if self._lines:
            times.append(self._lines_due_at)
        if self._held_question is not None:
            times.append(self._questions_counted_at + 1.0 / _QUESTIONS_PER_SECOND)
        return min(times)

    def _handle_message(self, body: bytes, now: float) -> Iterator[bytes]:
        message = decode_child_message(body, self.order)
        if self._ended is not None:
            raise Garbled("it went on after it had ended")
        if isinstance(message, Progressed):
            self._unsent_progress = body
            yield from self.due_messages(now)
        elif isinstance(message, Asked):
            if self._open_question is not None or self.child.unsent:
                raise Garbled("it asked again before it had taken its answer")
            self._held_question, self._open_question = body, message.number
            yield from self.due_messages(now)
        elif isinstance(message, Ended):
            if message.is_reusable and (self.child.unsent or not self.child.attempts_left):
                raise Garbled("it stays, and is not asked to")
            self._ended, self._ended_body = message, body
        else:
            if isinstance(message, Started):
                if message.pid != self.child.pid:
                    raise Garbled("it says that it is another")
                self.child.sandbox, self.child.pid_started = message.sandbox, message.pid_started
            yield wrap_frame(body)

    def _add_line(self, line: bytes) -> None:
        shown = safe_text(visible_part(line)[:LINE_BYTES_MAX].decode("utf-8", "replace"), LINE_CHARACTERS_MAX)
        self._lines.add([shown])
        self._last_lines.append(shown)

    def answer(self, reply: Reply) -> None:
        if reply.number == self._open_question and self._held_question is None:
            self._open_question = None
            self.child.unsent += encode_frame(reply)

    # --- stopping ---

    def stop(self, reason: EndReason, *, grace: float, now: float) -> None:
        """Send SIGTERM, and SIGKILL `grace` seconds later. The first reason and the shortest grace period count."""
        if not self.is_stopping:
            self._stop_reason = reason
            self._ended_before_stop = self._ended is not None
            if grace > 0:
                self._signal(signal.SIGTERM)
        self.kill_at = min(self.kill_at, now + grace)

    def enforce_deadlines(self, now: float, *, grace: float) -> None:
        if self.has_exited:
            return
        if not self.is_stopping and now >= self.timeout_at:
            self.stop(EndReason(How.TIMED_OUT, "TIMED_OUT", self._timeout_message), grace=grace, now=now)
        if now >= self.kill_at:
            self._signal(signal.SIGKILL)
            # Repeat while the child is alive: a process may have joined its group meanwhile.
            self.kill_at = now + _KILL_AGAIN_SECONDS

    def _signal(self, number: signal.Signals) -> None:
        # Once the child has exited, its pid may belong to another process. Orphans are found by their marks instead.
        if not self.has_exited:
            processes.signal_group(self.child.pid, number)

    # --- the outcome ---

    def end_message(self, staging_root: Path) -> bytes:
        """Call only when no process of the attempt is left."""
        ended, body = self._outcome()
        usage, took_seconds = self._usage_and_duration(ended)
        if ended.published:
            try:
                self.child.move_published_files(ended, staging_root / attempt_name(self.key))
            except (Garbled, OSError) as error:
                self._stop_reason = EndReason(How.GARBLED, "GARBLED", str(error))
                body = encode_message(self._ended_for(self._stop_reason))
        return encode_frame(AttemptOver(msgspec.Raw(body), usage, took_seconds))

    def _outcome(self) -> tuple[Ended, bytes]:
        reason = self._stop_reason
        if self._ended is not None:
            counts_after_stop = self._ended_before_stop and reason is not None and reason.how is not How.GARBLED
            if reason is None or counts_after_stop:
                return self._ended, self._ended_body
        ended = self._ended_for(reason or self._reason_with_last_lines())
        return ended, encode_message(ended)

    def _ended_for(self, reason: EndReason) -> Ended:
        return Ended(*self.key, reason.how, code=reason.code, message=reason.message)

    def _usage_and_duration(self, ended: Ended) -> tuple[Usage, float | None]:
        # Return a duration only if the child lives on: the daemon claims only jobs of reused children ahead.
        seconds = time.monotonic() - self.began_at
        if self.usage is None:
            self.child.past_cpu_seconds += ended.usage.cpu_seconds or 0.0
            return ended.usage, seconds
        # The kernel counts the CPU time of all attempts of the child.
        used = self.usage.ru_utime + self.usage.ru_stime - self.child.past_cpu_seconds
        number = os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None
        name = None if number is None else _signal_name(number)
        return Usage(round(used, 3), self.usage.ru_maxrss * 1024, name), None

    def _reason_with_last_lines(self) -> EndReason:
        reason = _exit_reason(self.status or 0)
        lines = "\n".join(filter(None, self._last_lines))[-_LAST_LINES_CHARACTERS_MAX:]
        return EndReason(reason.how, reason.code, f"{reason.message}\n{lines}".strip())


def _exit_reason(status: int) -> EndReason:
    if os.WIFSIGNALED(status):
        name = _signal_name(os.WTERMSIG(status))
        if name == "SIGXCPU":
            return EndReason(How.TIMED_OUT, "CPU_TIME_USED_UP", "it used more CPU time than its limit allows")
        why = ", as the kernel does where memory runs out: journalctl -k tells" if name == "SIGKILL" else ""
        return EndReason(How.CRASHED, "CRASHED", f"it was ended by {name}{why}")
    if os.WEXITSTATUS(status) == EXIT_OUT_OF_MEMORY:
        return EndReason(How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows")
    return EndReason(How.GARBLED, "NO_RESULT", f"it ended without a result (exit code {os.WEXITSTATUS(status)})")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
