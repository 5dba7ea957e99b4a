"""One running child as the nursery sees it: what it says, made bounded, and how it ended, decided.

Reads the child's three pipes when told to. It forks nothing, and stops nothing beyond its own group.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from worker_service.children import gone
from worker_service.children.child import EXIT_OUT_OF_MEMORY
from worker_service.children.model import Checkpointed, Ended, Happening, How, Logged, Order, Progressed, Started
from worker_service.children.wire import (
    FRAME_BYTES_MAX,
    Checkpoint,
    Finished,
    Garbled,
    Inbox,
    Log,
    Progress,
    Ready,
    clipped,
    from_child,
    last_words,
    printable,
)
from worker_service.jobs.model import Usage

READ_BYTES = 1 << 16
_TAIL_BYTES = 1 << 13
_PROGRESS_SECONDS = 0.1
_LINES_AT_ONCE = 200
_LINES_PER_SECOND = 50
_LINE_CHARACTERS_MAX = 2000
_MESSAGE_CHARACTERS_MAX = 4000


class Attempt:
    def __init__(self, order: Order, pid: int, house: str, staging: Path, pipes: tuple[int, int, int]) -> None:
        self.order = order
        self.key = (order.job_id, order.fence)
        self.pid = pid
        self.pid_started = gone.started_at(pid)
        self.tag = gone.tag_of(house, self.key)
        self.staging = staging
        self.said, self.output, self.errors = pipes
        self.open_pipes = set(pipes)
        self.was_full = False
        """The pipe that was read last had more than one bite."""
        self.stop_at = math.inf
        """When its time is up."""
        self.time_sentence = ""
        self.end_at = math.inf
        """When the grace that it was given is over, and SIGKILL comes."""
        self.status: int | None = None
        """Set once it has been waited for."""
        self._usage: resource.struct_rusage | None = None
        self._reason: tuple[How, str, str] | None = None
        self._finished: Finished | None = None
        self._had_finished = False
        """Before it was stopped: its work is done, and counts."""
        self._inbox = Inbox(FRAME_BYTES_MAX)
        self._tails = {self.output: bytearray(), self.errors: bytearray()}
        self._progress: Progress | None = None
        self._progress_at = -math.inf
        self._lines_allowed = float(_LINES_AT_ONCE)
        self._lines_at = 0.0
        self._lines_left_out = 0

    @property
    def has_left(self) -> bool:
        return self.status is not None

    # --- what it says ---

    def read(self, pipe: int, now: float) -> Iterator[Happening]:
        """One bounded bite, so that a child which floods is served like any other."""
        self.was_full = False
        try:
            received = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return
        self.was_full = len(received) == READ_BYTES
        if not received:
            self.open_pipes.discard(pipe)
            return
        if pipe in self._tails:
            tail = self._tails[pipe]
            tail += received
            del tail[:-_TAIL_BYTES]
            return
        if self._reason is not None and self._reason[0] is How.GARBLED:
            return
        try:
            for body in self._inbox.feed(received):
                yield from self._understand(body, now)
        except Garbled as error:
            self.stop(How.GARBLED, "GARBLED", f"it wrote nonsense to its pipe: {error}", grace=0.0, now=now)

    def drain(self, now: float) -> Iterator[Happening]:
        """What it said before it left; as much as a pipe can hold, and not more."""
        for pipe in sorted(self.open_pipes):
            for _ in range(1 + (1 << 20) // READ_BYTES):
                yield from self.read(pipe, now)
                if not self.was_full:
                    break
        yield from self.due(now, is_last=True)

    def due(self, now: float, *, is_last: bool = False) -> Iterator[Happening]:
        if self._progress is not None and (is_last or now >= self._progress_at + _PROGRESS_SECONDS):
            yield Progressed(*self.key, self._progress.percent, self._progress.message)
            self._progress, self._progress_at = None, now
        self._earn_lines(now)
        if self._lines_left_out and (is_last or self._lines_allowed >= 1):
            yield Logged(*self.key, f"… {self._lines_left_out} lines left out")
            self._lines_left_out = 0
            self._lines_allowed -= 1

    def next_due(self) -> float:
        """When it wants to be looked at although nothing has happened."""
        times = [self.end_at if self._reason else self.stop_at]
        if self._progress is not None:
            times.append(self._progress_at + _PROGRESS_SECONDS)
        if self._lines_left_out:
            times.append(self._lines_at + 1.0)
        return min(times)

    def _understand(self, body: bytes, now: float) -> Iterator[Happening]:
        message = from_child(body)
        if self._finished is not None:
            raise Garbled("it went on after it had finished")
        if isinstance(message, Progress):
            self._progress = Progress(message.percent, clipped(printable(message.message), _LINE_CHARACTERS_MAX))
            yield from self.due(now)
        elif isinstance(message, Log):
            self._earn_lines(now)
            if self._lines_allowed >= 1:
                self._lines_allowed -= 1
                yield Logged(*self.key, clipped(printable(message.line), _LINE_CHARACTERS_MAX))
            else:
                self._lines_left_out += 1
        elif isinstance(message, Checkpoint):
            _check_json(message.state)
            yield Checkpointed(*self.key, message.state, message.follow_ups)
        elif isinstance(message, Ready):
            yield Started(*self.key, self.pid, self.pid_started, message.sandbox)
        else:
            _check_json(message.result)
            self._finished = message

    def _earn_lines(self, now: float) -> None:
        earned = (now - self._lines_at) * _LINES_PER_SECOND
        # In whole steps of a second once they are used up, so that a flood is told of once in a second.
        if self._lines_left_out == 0 or now >= self._lines_at + 1.0:
            self._lines_allowed = min(self._lines_allowed + earned, float(_LINES_AT_ONCE))
            self._lines_at = now

    # --- how it is stopped ---

    def stop(self, how: How, code: str, message: str, *, grace: float, now: float) -> None:
        """SIGTERM to the group; SIGKILL when the grace is over. The first reason stands, the shortest grace too."""
        if self._reason is None:
            self._reason = (how, code, message)
            self._had_finished = self._finished is not None
            self.end_at = now + grace
            if grace > 0:
                self.signal(signal.SIGTERM)
        self.end_at = min(self.end_at, now + grace)

    def act(self, now: float, *, grace: float) -> None:
        """Do what the clock says."""
        if self.has_left:
            return
        if self._reason is None and now >= self.stop_at:
            self.stop(How.TIMED_OUT, "TIMED_OUT", self.time_sentence, grace=grace, now=now)
        if now >= self.end_at:
            self.signal(signal.SIGKILL)
            # Again, should it still be there: somebody may have joined the group meanwhile.
            self.end_at = now + 0.1

    def signal(self, number: signal.Signals) -> None:
        if self.has_left:
            # Its number may be another's by now. What it left behind is found by its marks.
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        # It may not have got as far as a group of its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)

    def left(self, status: int, usage: resource.struct_rusage) -> None:
        self.status, self._usage = status, usage

    # --- how it ended ---

    def ended(self) -> Ended:
        number = os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None
        name = _signal_name(number) if number is not None else None
        usage = Usage()
        if self._usage is not None:
            seconds = round(self._usage.ru_utime + self._usage.ru_stime, 3)
            usage = Usage(seconds, self._usage.ru_maxrss * 1024, name)
        if self._reason is not None and not (self._had_finished and self._reason[0] is not How.GARBLED):
            how, code, message = self._reason
            return Ended(*self.key, how, code=code, message=message, usage=usage)
        if self._finished is not None:
            return self._as_it_says(self._finished, usage)
        words = last_words(self._tails[self.errors]) or last_words(self._tails[self.output])
        how, code, message = self._without_a_word(name)
        return Ended(*self.key, how, code=code, message=f"{message}\n{words}".strip(), usage=usage)

    def _as_it_says(self, said: Finished, usage: Usage) -> Ended:
        if said.how not in (How.DONE, How.RETRYABLE, How.PERMANENT, How.SNOOZED, How.OUT_OF_MEMORY):
            return Ended(*self.key, How.GARBLED, code="GARBLED", message=f"a child cannot say {said.how}", usage=usage)
        # Its processes are gone, so nobody can exchange a file after this look.
        files = [self.staging / name for name in said.files]
        if not all(_is_inside(file, self.staging) for file in files):
            return Ended(*self.key, How.GARBLED, code="GARBLED", message="a file outside its staging", usage=usage)
        return Ended(
            *self.key,
            said.how,
            said.result,
            said.follow_ups,
            files,
            clipped(printable(said.code), 100),
            clipped(printable(said.message), _MESSAGE_CHARACTERS_MAX),
            None if said.after_seconds is None else max(said.after_seconds, 0.0),
            usage,
        )

    def _without_a_word(self, name: str | None) -> tuple[How, str, str]:
        if name == "SIGXCPU":
            return How.TIMED_OUT, "CPU_TIME_USED_UP", "it used more CPU time than its limit allows"
        if name is not None:
            return How.CRASHED, "CRASHED", f"it was ended by {name}"
        code = os.WEXITSTATUS(self.status) if self.status is not None else 0
        if code == EXIT_OUT_OF_MEMORY:
            return How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows"
        return How.GARBLED, "NO_RESULT", f"it ended without a result (exit code {code})"


def _is_inside(file: Path, staging: Path) -> bool:
    return file.resolve().is_relative_to(staging.resolve()) and file.is_file() and not file.is_symlink()


def _check_json(text: str | None) -> None:
    """It goes into a column that takes nothing else."""
    try:
        msgspec.json.decode(text if text is not None else "null")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Garbled(f"a result or state that is no JSON: {error}") from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
