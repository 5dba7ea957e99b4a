"""A child process as the fork server sees it, and its current attempt: checks and limits its messages, decides how it
ended.

Reads the child's two pipes and writes its third. Forks the child, and signals only its process group. A child serves as
many attempts as its handler declares, usually one, and one at a time.
"""

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
from worker_service.jobs.model import LOG_LINES_MOST, Usage
from worker_service.runner import processes
from worker_service.runner.child import EXIT_OUT_OF_MEMORY, WHOLE, Bring, Room, live
from worker_service.runner.protocol import (
    FRAME_BYTES_MAX,
    LINE_CHARACTERS_MAX,
    Asked,
    AttemptOver,
    Begin,
    Ended,
    Garbled,
    How,
    Inbox,
    Key,
    Launch,
    LogBuffer,
    Logged,
    Progressed,
    Reply,
    Started,
    attempt_name,
    check_files,
    check_paths,
    decode_child_message,
    encode_frame,
    encode_message,
    safe_text,
    wrap_frame,
)

READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_PROGRESS_SECONDS = 0.1
_LINES_SECONDS = 0.1
_LINES_PER_SECOND = 2000
"""Also the limit in KiB per second; more output waits. Less than the table can store, and more than a person can
read."""
_WAITING_CHARACTERS_MAX = 1 << 20
_LINE_BYTES_MAX = 4 * LINE_CHARACTERS_MAX
_LAST_WORDS = 12
_LAST_WORDS_CHARACTERS_MAX = 2000
_ASKS_AT_ONCE = 100
_ASKS_PER_SECOND = 100


class Child:
    """The process and this side of its pipes."""

    def __init__(
        self, number: int, home: Path, launch: Launch, begin: Begin, bring: Bring, *, job_class: str, reuse: int
    ) -> None:
        self.number = number
        """Number of the child in this fork server; its processes are marked with it."""
        self.job_type = launch.order.job_type
        self.job_class = job_class
        self.attempts_left = reuse
        self.home = home
        """Contains the staging directory; only the fork server can write it."""
        self.inbox = Inbox(FRAME_BYTES_MAX)
        self.printed = Printed()
        self.unsent = bytearray()
        """Data that its pipe has not taken yet: an answer or its next order."""
        self.is_watched = False
        """True while the selector waits until the pipe takes more."""
        self.attempt: RunningAttempt | None = None
        self.served = 0
        """Number of attempts, including the current one."""
        self.sandbox = ""
        """The level that `Started` reported."""
        self.idle_since = 0.0
        self.cpu_seconds = 0.0
        """CPU time of its attempts that have ended."""
        self.was_full = False
        """True if the last read filled the buffer, so that more may wait."""
        self._begun = mmap.mmap(-1, 8) if reuse > 1 else None
        self._staging = directories.open_directory(self.staging)
        try:
            self._fork(launch, begin, bring)
        except BaseException:
            os.close(self._staging)
            raise
        self.pid_started = 0
        self.pipes = (self.said, self.output)
        self.open_pipes = {*self.pipes}

    def _fork(self, launch: Launch, begin: Begin, bring: Bring) -> None:
        with contextlib.ExitStack() as near, contextlib.ExitStack() as far:
            ends = []
            for does_it_write in (True, True, False):
                reading, writing = os.pipe()
                ours, its = (reading, writing) if does_it_write else (writing, reading)
                near.callback(os.close, ours)
                far.callback(os.close, its)
                os.set_blocking(ours, False)
                ends.append((ours, its))
            (self.said, said), (self.output, output), (self.answers, answers) = ends
            room = Room(
                launch=launch,
                begin=begin,
                number=self.number,
                parent=os.getpid(),
                staging=self.staging,
                attempts=self.attempts_left,
                said=said,
                output=output,
                answers=answers,
                begun=self._begun,
            )
            self.pid = os.fork()
            if self.pid == 0:
                live(room, bring)
            near.pop_all()

    @property
    def staging(self) -> Path:
        return self.home / "staging"

    @property
    def has_left_nothing(self) -> bool:
        """True if the staging directory is empty and still the original one."""
        with contextlib.suppress(OSError):
            is_the_same = os.path.samestat(os.fstat(self._staging), self.staging.lstat())
            return is_the_same and self.sandbox == WHOLE and not os.listdir(self._staging)  # noqa: PTH208
        return False

    def move_files(self, ended: Ended, place: Path) -> None:
        """Move the files that the attempt publishes out of the child's reach, and check them there, where no process
        can replace them.

        Raise `Garbled` if a path leads out of the staging directory or to anything but a regular file.
        """
        check_paths(ended)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            with directories.opened(place) as target:
                for name in {file.path.parts[0] for file in ended.published}:
                    os.rename(name, name, src_dir_fd=self._staging, dst_dir_fd=target)
                check_files(ended, target)
        except BaseException:
            # The home directory is removed by another process, because there may be a million files.
            place.rename(self.home / "refused")
            raise

    @property
    def has_begun_the_last(self) -> bool:
        return self._begun is None or int.from_bytes(self._begun[:8]) == self.served

    def give(self, said: bytes) -> None:
        """Queue the next order, encoded as received."""
        self.unsent += wrap_frame(said)

    def send(self) -> None:
        """Write as much as the pipe takes; the child may never read it."""
        try:
            while self.unsent:
                del self.unsent[: os.write(self.answers, self.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()

    def bite(self, pipe: int) -> bytes:
        """Read a bounded piece, so that a child with much output gets no more time than others. Return b"" if nothing
        waits."""
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
    def __init__(self, launch: Launch, child: Child, *, seconds: int) -> None:
        self.launch = launch
        self.order = launch.order
        self.child = child
        self.began_at = time.monotonic()
        self.stop_at = self.began_at + seconds
        """When the time limit is reached."""
        self._time_sentence = f"it was not done after {seconds} s"
        self.end_at = math.inf
        """When the grace period ends and SIGKILL follows."""
        self.status: int | None = None
        """Set once its child has been waited for."""
        self._usage: resource.struct_rusage | None = None
        self._reason: tuple[How, str, str] | None = None
        self._last_word: tuple[Ended, bytes] | None = None
        self._had_ended = False
        """True if it ended before it was stopped; then its result counts."""
        self._progress: bytes | None = None
        self._progress_at = -math.inf
        self._lines = LogBuffer()
        self._lines_at = -math.inf
        """When the next lines may be sent."""
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._open_question: int | None = None
        self._question: bytes | None = None
        """A question that is held back, because the child asks too often."""
        self._asks_allowed = float(_ASKS_AT_ONCE)
        self._asks_at = 0.0
        child.attempt = self
        child.served += 1
        child.attempts_left -= 1

    @property
    def key(self) -> Key:
        return self.order.key

    @property
    def has_left(self) -> bool:
        return self.status is not None

    @property
    def is_over(self) -> bool:
        """True if it has ended and its child stays for the next order."""
        return self._last_word is not None and self._last_word[0].is_reusable and self._reason is None

    @property
    def is_stopping(self) -> bool:
        return self._reason is not None

    @property
    def is_unbegun(self) -> bool:
        """True if its reused child died before it took this order."""
        is_silent = self._last_word is None and self._reason is None
        return is_silent and self.child.served > 1 and not self.child.has_begun_the_last

    @property
    def must_wait_to_print(self) -> bool:
        """True if its unsent output exceeds the limit; then its pipe is not read."""
        return self._lines.characters > _WAITING_CHARACTERS_MAX

    def started(self) -> bytes:
        """Return the message for a reused child, which sends it only once."""
        child = self.child
        return encode_frame(Started(*self.key, child.pid, child.pid_started, child.sandbox))

    # --- messages of the child ---

    def read(self, pipe: int, now: float) -> Iterator[bytes]:
        """Read a pipe and yield the messages to pass on."""
        received = self.child.bite(pipe)
        if pipe == self.child.output:
            self._take_printed(received)
        elif self._reason is None or self._reason[0] is not How.GARBLED:
            try:
                for body in self.child.inbox.feed(received):
                    yield from self._understand(body, now)
            except Garbled as error:
                self.stop(How.GARBLED, "GARBLED", f"it wrote nonsense to its pipe: {error}", grace=0.0, now=now)

    def drain(self, now: float) -> Iterator[bytes]:
        """Yield the remaining messages of an ended child, at most as much as a pipe can hold."""
        for pipe in sorted(self.child.open_pipes):
            for _ in range(1 + _PIPE_BYTES // READ_BYTES):
                yield from self.read(pipe, now)
                if not self.child.was_full:
                    break
        yield from self.due(now, is_last=True)

    def due(self, now: float, *, is_last: bool = False) -> Iterator[bytes]:
        if self._progress is not None and (is_last or now >= self._progress_at + _PROGRESS_SECONDS):
            yield wrap_frame(self._progress)
            self._progress, self._progress_at = None, now
        if is_last and (rest := self.child.printed.take_rest()):
            self._logged(rest)
        if self._lines and (is_last or now >= self._lines_at):
            told = max(len(self._lines), self._lines.characters >> 10)
            self._lines_at = now + max(_LINES_SECONDS, told / _LINES_PER_SECOND)
            yield encode_frame(Logged(*self.key, self._lines.take()))
        if self._question is not None:
            earned = (now - self._asks_at) * _ASKS_PER_SECOND
            self._asks_allowed, self._asks_at = min(self._asks_allowed + earned, float(_ASKS_AT_ONCE)), now
            if self._asks_allowed >= 1:
                self._asks_allowed -= 1
                yield wrap_frame(self._question)
                self._question = None

    def next_due(self) -> float:
        """Return when `due` or `act` has work although nothing has happened."""
        times = [self.end_at if self._reason else self.stop_at]
        if self._progress is not None:
            times.append(self._progress_at + _PROGRESS_SECONDS)
        if self._lines:
            times.append(self._lines_at)
        if self._question is not None:
            times.append(self._asks_at + 1.0 / _ASKS_PER_SECOND)
        return min(times)

    def _understand(self, body: bytes, now: float) -> Iterator[bytes]:
        said = decode_child_message(body, self.order)
        if self._last_word is not None:
            raise Garbled("it went on after it had ended")
        if isinstance(said, Progressed):
            self._progress = body
            yield from self.due(now)
        elif isinstance(said, Asked):
            if self._open_question is not None or self.child.unsent:
                raise Garbled("it asked again before it had taken its answer")
            self._question, self._open_question = body, said.number
            yield from self.due(now)
        elif isinstance(said, Ended):
            if said.is_reusable and (self.child.unsent or not self.child.attempts_left):
                raise Garbled("it stays, and is not asked to")
            self._last_word = said, body
        else:
            if isinstance(said, Started):
                if said.pid != self.child.pid:
                    raise Garbled("it says that it is another")
                self.child.sandbox, self.child.pid_started = said.sandbox, said.pid_started
            yield wrap_frame(body)

    def _take_printed(self, received: bytes) -> None:
        printed = self.child.printed
        printed.feed(received)
        while len(printed.lines) > LOG_LINES_MOST:
            printed.lines.popleft()
        while printed.lines:
            self._logged(printed.lines.popleft())

    def _logged(self, line: bytes) -> None:
        shown = safe_text(_shown(line)[:_LINE_BYTES_MAX].decode("utf-8", "replace"), LINE_CHARACTERS_MAX)
        self._lines.add([shown])
        self._last_words.append(shown)

    def answer(self, reply: Reply) -> None:
        """Pass a reply to the child; ignore it if no question is open."""
        if reply.number == self._open_question and self._question is None:
            self._open_question = None
            self.child.unsent += encode_frame(reply)

    # --- stopping ---

    def stop(self, how: How, code: str, message: str, *, grace: float, now: float) -> None:
        """Send SIGTERM to the process group; SIGKILL follows after the grace period. The first reason and the shortest
        grace period count."""
        if self._reason is None:
            self._reason = (how, code, message)
            self._had_ended = self._last_word is not None
            self.end_at = now + grace
            if grace > 0:
                self._signal(signal.SIGTERM)
        self.end_at = min(self.end_at, now + grace)

    def act(self, now: float, *, grace: float) -> None:
        """Stop the attempt at its time limit, and kill it when the grace period is over."""
        if self.has_left:
            return
        if self._reason is None and now >= self.stop_at:
            self.stop(How.TIMED_OUT, "TIMED_OUT", self._time_sentence, grace=grace, now=now)
        if now >= self.end_at:
            self._signal(signal.SIGKILL)
            # Repeat while it is alive: a process may have joined the group meanwhile.
            self.end_at = now + 0.1

    def _signal(self, number: signal.Signals) -> None:
        # After its end the pid may belong to another process. Its orphans are found by their marks.
        if not self.has_left:
            processes.signal_group(self.child.pid, number)

    def left(self, status: int, usage: resource.struct_rusage) -> None:
        self.status, self._usage = status, usage

    # --- the outcome ---

    def gone(self, staging_root: Path) -> bytes:
        """Move the files to a directory of their own and return the end message. Call only when no process of the
        attempt is left."""
        ended, body = self._end()
        usage, took_seconds = self._used(ended)
        if ended.published:
            try:
                self.child.move_files(ended, staging_root / attempt_name(self.key))
            except (Garbled, OSError) as error:
                self._reason = How.GARBLED, "GARBLED", str(error)
                body = encode_message(Ended(*self.key, How.GARBLED, code="GARBLED", message=str(error)))
        return encode_frame(AttemptOver(msgspec.Raw(body), usage, took_seconds))

    def _end(self) -> tuple[Ended, bytes]:
        if self._last_word is not None and (
            self._reason is None or (self._had_ended and self._reason[0] is not How.GARBLED)
        ):
            return self._last_word
        how, code, message = self._reason or self._without_a_word()
        ended = Ended(*self.key, how, code=code, message=message)
        return ended, encode_message(ended)

    def _used(self, ended: Ended) -> tuple[Usage, float | None]:
        """Return usage and duration: from the kernel once the child has ended, from a reused child's own message
        otherwise."""
        seconds = time.monotonic() - self.began_at
        if self._usage is None:
            self.child.cpu_seconds += ended.usage.cpu_seconds or 0.0
            return ended.usage, seconds
        used = self._usage.ru_utime + self._usage.ru_stime - self.child.cpu_seconds
        number = os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None
        name = None if number is None else _signal_name(number)
        return Usage(round(used, 3), self._usage.ru_maxrss * 1024, name), None

    def _without_a_word(self) -> tuple[How, str, str]:
        how, code, message = self._crashed()
        words = "\n".join(filter(None, self._last_words))[-_LAST_WORDS_CHARACTERS_MAX:]
        return how, code, f"{message}\n{words}".strip()

    def _crashed(self) -> tuple[How, str, str]:
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


class Printed:
    """Output of a child, split into lines. Of an unfinished line only the beginning is kept."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self._rest = b""

    def feed(self, received: bytes) -> None:
        *whole, rest = (self._rest + received).split(b"\n")
        self.lines.extend(whole)
        if len(rest) > _LINE_BYTES_MAX:
            rest = _shown(rest)[:_LINE_BYTES_MAX]
        self._rest = rest

    def take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


def _shown(line: bytes) -> bytes:
    """Return the line as a terminal shows it: a carriage return overwrites what precedes it."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
