"""A running attempt and its child process, as the fork server sees them: messages, files, stopping, the outcome."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import resource
import shutil
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

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
_PROGRESS_SECONDS = 0.1
_LINES_SECONDS = 0.1
_LINES_PER_SECOND = 2000
"""Also the limit in KiB per second. The table can store more."""
_WAITING_CHARACTERS_MAX = 1 << 20
_LAST_LINES = 12
_LAST_LINES_CHARACTERS_MAX = 2000
_QUESTIONS_BURST = 100
_QUESTIONS_PER_SECOND = 100


class ForkedChild:
    def __init__(
        self,
        number: int,
        home: Path,
        launch: Launch,
        begin: Begin,
        handler: LoadedHandler,
        reuse: int,
    ) -> None:
        self.number = number
        self.job_type = launch.order.job_type
        self.job_class = handler.described.facts.job_class
        self.attempts_left = reuse
        self.home = home
        """Contains the staging directory. Only the fork server can write it."""
        self.inbox = Inbox(FRAME_BYTES_MAX)
        self.output_lines = OutputLines()
        self.unsent = bytearray()
        self.is_watched = False
        self.attempt: RunningAttempt | None = None
        self.served = 0
        self.sandbox = ""
        self.idle_since = 0.0
        self.cpu_seconds = 0.0
        self.was_full = False
        """The last read filled the buffer, so more may wait."""
        self._begun = mmap.mmap(-1, 8) if reuse > 1 else None
        self._staging = os.open(self.staging, directories.OPEN_DIRECTORY)
        try:
            self._fork(launch, begin, handler.loader)
        except BaseException:
            os.close(self._staging)
            raise
        self.pid_started = 0
        self.pipes = (self.messages, self.output)
        self.open_pipes = {*self.pipes}

    def _fork(self, launch: Launch, begin: Begin, loader: HandlerLoader | None) -> None:
        assert loader is not None
        with contextlib.ExitStack() as our_ends, contextlib.ExitStack() as child_ends:
            ends = []
            for child_writes in (True, True, False):
                reading, writing = os.pipe()
                ours, its = (reading, writing) if child_writes else (writing, reading)
                our_ends.callback(os.close, ours)
                child_ends.callback(os.close, its)
                os.set_blocking(ours, False)
                ends.append((ours, its))
            (self.messages, messages), (self.output, output), (self.answers, answers) = ends
            spec = ChildSpec(
                launch=launch,
                begin=begin,
                number=self.number,
                staging=self.staging,
                attempts=self.attempts_left,
                messages=messages,
                output=output,
                answers=answers,
                begun=self._begun,
            )
            self.pid = fork_process(lambda: run_child(spec, loader))
            our_ends.pop_all()

    @property
    def staging(self) -> Path:
        return self.home / "staging"

    @property
    def is_home_empty(self) -> bool:
        """True if the staging directory is empty and still the original one."""
        with contextlib.suppress(OSError):
            is_the_same = os.path.samestat(os.fstat(self._staging), self.staging.lstat())
            return is_the_same and self.sandbox == FULL_SANDBOX and not os.listdir(self._staging)  # noqa: PTH208
        return False

    def move_files(self, ended: Ended, place: Path) -> None:
        """Move the files to publish to where no process can replace them, and check them there."""
        check_paths(ended)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            with directories.open_nested_folder(place) as target:
                for name in {file.path.parts[0] for file in ended.published}:
                    os.rename(name, name, src_dir_fd=self._staging, dst_dir_fd=target)
                check_files(ended, target)
        except BaseException:
            # The home directory is removed by another process, because there may be a million files.
            place.rename(self.home / "refused")
            raise

    @property
    def has_begun_order(self) -> bool:
        return self._begun is None or int.from_bytes(self._begun[:8]) == self.served

    def queue_order(self, message: bytes) -> None:
        self.unsent += wrap_frame(message)

    def send(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: os.write(self.answers, self.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()

    def read_piece(self, pipe: int) -> bytes:
        self.was_full = False
        try:
            received = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        self.was_full = len(received) == READ_BYTES
        if not received:
            self.open_pipes.discard(pipe)
        return received

    def close(self) -> None:
        for descriptor in (*self.pipes, self.answers, self._staging):
            os.close(descriptor)


class RunningAttempt:
    def __init__(self, launch: Launch, child: ForkedChild, *, seconds: int) -> None:
        self.launch = launch
        self.order = launch.order
        self.child = child
        self.began_at = time.monotonic()
        self.stop_at = self.began_at + seconds
        self._timeout_message = f"it was not done after {seconds} s"
        self.end_at = math.inf
        self.status: int | None = None
        self._usage: resource.struct_rusage | None = None
        self._reason: tuple[How, str, str] | None = None
        self._end_report: tuple[Ended, bytes] | None = None
        self._ended_before_stop = False
        """If True, its result counts."""
        self._progress: bytes | None = None
        self._progress_at = -math.inf
        self._lines = LogBuffer()
        self._lines_at = -math.inf
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._open_question: int | None = None
        self._question: bytes | None = None
        """A question held back, because the child asks too often."""
        self._questions_allowed = float(_QUESTIONS_BURST)
        self._questions_counted_at = 0.0
        child.attempt = self
        child.served += 1
        child.attempts_left -= 1

    @property
    def key(self) -> Key:
        return self.order.key

    @property
    def has_exited(self) -> bool:
        return self.status is not None

    @property
    def is_over(self) -> bool:
        return self._end_report is not None and self._end_report[0].is_reusable and self._reason is None

    @property
    def is_stopping(self) -> bool:
        return self._reason is not None

    @property
    def is_not_begun(self) -> bool:
        is_silent = self._end_report is None and self._reason is None
        return is_silent and self.child.served > 1 and not self.child.has_begun_order

    @property
    def must_wait_to_print(self) -> bool:
        return self._lines.characters > _WAITING_CHARACTERS_MAX

    def started_message(self) -> bytes:
        # A reused child sends the message only once.
        child = self.child
        return encode_frame(Started(*self.key, child.pid, child.pid_started, child.sandbox))

    # --- messages of the child ---

    def read(self, pipe: int, now: float) -> Iterator[bytes]:
        received = self.child.read_piece(pipe)
        if pipe == self.child.output:
            self._take_output(received)
        elif self._reason is None or self._reason[0] is not How.GARBLED:
            try:
                for body in self.child.inbox.feed(received):
                    yield from self._handle_message(body, now)
            except Garbled as error:
                self.stop(How.GARBLED, "GARBLED", f"it wrote nonsense to its pipe: {error}", grace=0.0, now=now)

    def drain(self, now: float) -> Iterator[bytes]:
        for pipe in sorted(self.child.open_pipes):
            for _ in range(1 + _PIPE_BYTES // READ_BYTES):
                yield from self.read(pipe, now)
                if not self.child.was_full:
                    break
        yield from self.due_messages(now, is_last=True)

    def due_messages(self, now: float, *, is_last: bool = False) -> Iterator[bytes]:
        if self._progress is not None and (is_last or now >= self._progress_at + _PROGRESS_SECONDS):
            yield wrap_frame(self._progress)
            self._progress, self._progress_at = None, now
        if is_last and (rest := self.child.output_lines.take_rest()):
            self._add_line(rest)
        if self._lines and (is_last or now >= self._lines_at):
            told = max(len(self._lines), self._lines.characters >> 10)
            self._lines_at = now + max(_LINES_SECONDS, told / _LINES_PER_SECOND)
            yield encode_frame(Logged(*self.key, self._lines.take()))
        if self._question is not None:
            earned = (now - self._questions_counted_at) * _QUESTIONS_PER_SECOND
            self._questions_allowed, self._questions_counted_at = (
                min(self._questions_allowed + earned, float(_QUESTIONS_BURST)),
                now,
            )
            if self._questions_allowed >= 1:
                self._questions_allowed -= 1
                yield wrap_frame(self._question)
                self._question = None

    def next_due(self) -> float:
        times = [self.end_at if self._reason else self.stop_at]
        if self._progress is not None:
            times.append(self._progress_at + _PROGRESS_SECONDS)
        if self._lines:
            times.append(self._lines_at)
        if self._question is not None:
            times.append(self._questions_counted_at + 1.0 / _QUESTIONS_PER_SECOND)
        return min(times)

    def _handle_message(self, body: bytes, now: float) -> Iterator[bytes]:
        message = decode_child_message(body, self.order)
        if self._end_report is not None:
            raise Garbled("it went on after it had ended")
        if isinstance(message, Progressed):
            self._progress = body
            yield from self.due_messages(now)
        elif isinstance(message, Asked):
            if self._open_question is not None or self.child.unsent:
                raise Garbled("it asked again before it had taken its answer")
            self._question, self._open_question = body, message.number
            yield from self.due_messages(now)
        elif isinstance(message, Ended):
            if message.is_reusable and (self.child.unsent or not self.child.attempts_left):
                raise Garbled("it stays, and is not asked to")
            self._end_report = message, body
        else:
            if isinstance(message, Started):
                if message.pid != self.child.pid:
                    raise Garbled("it says that it is another")
                self.child.sandbox, self.child.pid_started = message.sandbox, message.pid_started
            yield wrap_frame(body)

    def _take_output(self, received: bytes) -> None:
        output_lines = self.child.output_lines
        output_lines.feed(received)
        while len(output_lines.lines) > LOG_LINES_MOST:
            output_lines.lines.popleft()
        while output_lines.lines:
            self._add_line(output_lines.lines.popleft())

    def _add_line(self, line: bytes) -> None:
        shown = safe_text(visible_part(line)[:LINE_BYTES_MAX].decode("utf-8", "replace"), LINE_CHARACTERS_MAX)
        self._lines.add([shown])
        self._last_lines.append(shown)

    def answer(self, reply: Reply) -> None:
        if reply.number == self._open_question and self._question is None:
            self._open_question = None
            self.child.unsent += encode_frame(reply)

    # --- stopping ---

    def stop(self, how: How, code: str, message: str, *, grace: float, now: float) -> None:
        """Send SIGTERM, later SIGKILL. The first reason and the shortest grace period count."""
        if self._reason is None:
            self._reason = (how, code, message)
            self._ended_before_stop = self._end_report is not None
            self.end_at = now + grace
            if grace > 0:
                self._signal(signal.SIGTERM)
        self.end_at = min(self.end_at, now + grace)

    def enforce_deadlines(self, now: float, *, grace: float) -> None:
        if self.has_exited:
            return
        if self._reason is None and now >= self.stop_at:
            self.stop(How.TIMED_OUT, "TIMED_OUT", self._timeout_message, grace=grace, now=now)
        if now >= self.end_at:
            self._signal(signal.SIGKILL)
            # Repeat while it is alive: a process may have joined the group meanwhile.
            self.end_at = now + 0.1

    def _signal(self, number: signal.Signals) -> None:
        # After its end the pid may belong to another process. Its orphans are found by their marks.
        if not self.has_exited:
            processes.signal_group(self.child.pid, number)

    def set_exit_status(self, status: int, usage: resource.struct_rusage) -> None:
        self.status, self._usage = status, usage

    # --- the outcome ---

    def end_message(self, staging_root: Path) -> bytes:
        """Call only when no process of the attempt is left."""
        ended, body = self._end()
        usage, took_seconds = self._usage_and_duration(ended)
        if ended.published:
            try:
                self.child.move_files(ended, staging_root / attempt_name(self.key))
            except (Garbled, OSError) as error:
                self._reason = How.GARBLED, "GARBLED", str(error)
                body = encode_message(Ended(*self.key, How.GARBLED, code="GARBLED", message=str(error)))
        return encode_frame(AttemptOver(msgspec.Raw(body), usage, took_seconds))

    def _end(self) -> tuple[Ended, bytes]:
        if self._end_report is not None and (
            self._reason is None or (self._ended_before_stop and self._reason[0] is not How.GARBLED)
        ):
            return self._end_report
        how, code, message = self._reason or self._reason_without_end()
        ended = Ended(*self.key, how, code=code, message=message)
        return ended, encode_message(ended)

    def _usage_and_duration(self, ended: Ended) -> tuple[Usage, float | None]:
        seconds = time.monotonic() - self.began_at
        if self._usage is None:
            self.child.cpu_seconds += ended.usage.cpu_seconds or 0.0
            return ended.usage, seconds
        used = self._usage.ru_utime + self._usage.ru_stime - self.child.cpu_seconds
        number = os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None
        name = None if number is None else _signal_name(number)
        return Usage(round(used, 3), self._usage.ru_maxrss * 1024, name), None

    def _reason_without_end(self) -> tuple[How, str, str]:
        how, code, message = self._exit_reason()
        words = "\n".join(filter(None, self._last_lines))[-_LAST_LINES_CHARACTERS_MAX:]
        return how, code, f"{message}\n{words}".strip()

    def _exit_reason(self) -> tuple[How, str, str]:
        status = self.status or 0
        if os.WIFSIGNALED(status):
            name = _signal_name(os.WTERMSIG(status))
            if name == "SIGXCPU":
                return How.TIMED_OUT, "CPU_TIME_USED_UP", "it used more CPU time than its limit allows"
            why = ", as the kernel does where memory runs out: journalctl -k tells" if name == "SIGKILL" else ""
            return How.CRASHED, "CRASHED", f"it was ended by {name}{why}"
        if os.WEXITSTATUS(status) == EXIT_OUT_OF_MEMORY:
            return How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows"
        return How.GARBLED, "NO_RESULT", f"it ended without a result (exit code {os.WEXITSTATUS(status)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
