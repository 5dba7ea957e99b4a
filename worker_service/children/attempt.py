"""One running child as the nursery sees it: what it says, made bounded, and how it ended, decided.

Reads the child's two pipes and writes its third when told to. It forks nothing, and stops nothing beyond its own
group. What a message may hold is looked at in `looking`.
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
from typing import TYPE_CHECKING

from worker_service.children.child import EXIT_OUT_OF_MEMORY
from worker_service.children.forking import READ_BYTES, Forked
from worker_service.children.lines import LINE_CHARACTERS_MAX, Newest, end_mark, readable
from worker_service.children.looking import asked, check_checkpoint, check_json, check_page, publications, text
from worker_service.children.model import (
    Asked,
    Checkpointed,
    Ended,
    Happening,
    How,
    Logged,
    Order,
    PagesRead,
    Progressed,
    Started,
)
from worker_service.children.wire import (
    Ask,
    Checkpoint,
    Finished,
    Garbled,
    Pages,
    Progress,
    Ready,
    Reply,
    frame,
    from_child,
)
from worker_service.jobs.model import LOG_LINES_MOST, Usage

if TYPE_CHECKING:
    from worker_service.children.seats import Seat

_PROGRESS_SECONDS = 0.1
_LINES_SECONDS = 0.1
_LINES_PER_SECOND = 2000
"""And as many KiB: after it has told so much it waits. Less than the table takes, more than a person reads."""
_WAITING_CHARACTERS_MAX = 1 << 20
_LAST_WORDS = 12
_LAST_WORDS_CHARACTERS_MAX = 2000
_ASKS_AT_ONCE = 100
_ASKS_PER_SECOND = 100
_MESSAGE_CHARACTERS_MAX = 4000


class Attempt:
    def __init__(self, order: Order, forked: Forked, staging: Path, *, seconds: int, number: int = 0) -> None:
        """`number`: of a kept child's attempts."""
        self.order = order
        self.key = (order.job_id, order.fence)
        self.forked = forked
        self.pid = forked.pid
        self.staging = staging
        self.seat: Seat | None = None
        self.number = number
        self.began_at = time.monotonic()
        self.unsent = bytearray()
        """The answer that it has not taken yet. One at a time, so it is bounded."""
        self.stop_at = self.began_at + seconds
        """When its time is up."""
        self._time_sentence = f"it was not done after {seconds} s"
        self.end_at = math.inf
        """When the grace that it was given is over, and SIGKILL comes."""
        self.status: int | None = None
        """Set once it has been waited for."""
        self._usage: resource.struct_rusage | None = None
        self._reason: tuple[How, str, str] | None = None
        self._finished: Finished | None = None
        self._had_finished = False
        """Before it was stopped: its work is done, and counts."""
        self._progress: Progress | None = None
        self._progress_at = -math.inf
        self._lines = Newest()
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self.lines_at = -math.inf
        """When it may tell of lines again."""
        self.has_printed_all = False
        """Its mark was read: what a kept child prints from now on is the next attempt's."""
        self._open_question: int | None = None
        self._asked: Asked | None = None
        """Waits for its turn: a child that asks and asks is slowed down."""
        self._asks_allowed = float(_ASKS_AT_ONCE)
        self._asks_at = 0.0

    @property
    def has_left(self) -> bool:
        return self.status is not None

    @property
    def is_over(self) -> bool:
        """It has ended, and its child stays for the next one."""
        return self._finished is not None and self._finished.stays and self._reason is None

    @property
    def is_stopping(self) -> bool:
        return self._reason is not None

    @property
    def must_wait_to_print(self) -> bool:
        """Others are not kept waiting by its flood: it is."""
        return self.has_printed_all or self._lines.characters > _WAITING_CHARACTERS_MAX

    def started(self, sandbox: str) -> Started:
        return Started(*self.key, self.pid, self.forked.pid_started, sandbox)

    # --- what it says ---

    def read(self, pipe: int, now: float) -> Iterator[Happening]:
        yield from self.hear(pipe, self.forked.bite(pipe), now)

    def hear(self, pipe: int, received: bytes, now: float) -> Iterator[Happening]:
        if pipe == self.forked.output:
            self.forked.printed.feed(received)
            self.take_printed()
            return
        if self._reason is not None and self._reason[0] is How.GARBLED:
            return
        try:
            for body in self.forked.inbox.feed(received):
                yield from self.understand(body, now)
        except Garbled as error:
            self.garbled(error, now)

    def take_printed(self) -> None:
        lines, mark = self.forked.printed.lines, end_mark(self.number)
        while not self.number and len(lines) > LOG_LINES_MOST:
            lines.popleft()
        while lines and not self.has_printed_all:
            line = lines.popleft()
            if self.number and line.endswith(mark):
                self.has_printed_all = True
                line = line.removesuffix(mark)
                if not line:
                    break
            self._logged(line)

    def _logged(self, line: bytes) -> None:
        text = readable(line)
        self._lines.add([text])
        self._last_words.append(text)

    def drain(self, now: float) -> Iterator[Happening]:
        """What it said before it left; as much as a pipe can hold, and not more."""
        for pipe in sorted(self.forked.open_pipes):
            for _ in range(1 + (1 << 20) // READ_BYTES):
                yield from self.read(pipe, now)
                if not self.forked.was_full:
                    break
        yield from self.due(now, is_last=True)

    def due(self, now: float, *, is_last: bool = False) -> Iterator[Happening]:
        if self._progress is not None and (is_last or now >= self._progress_at + _PROGRESS_SECONDS):
            yield Progressed(*self.key, self._progress.percent, self._progress.message)
            self._progress, self._progress_at = None, now
        if is_last and not self.has_printed_all and (rest := self.forked.printed.take_rest()):
            self._logged(rest)
        if self._lines and (is_last or now >= self.lines_at):
            told = max(len(self._lines), self._lines.characters >> 10)
            self.lines_at = now + max(_LINES_SECONDS, told / _LINES_PER_SECOND)
            yield Logged(*self.key, self._lines.take())
        if self._asked is not None:
            self._asks_allowed = min(
                self._asks_allowed + (now - self._asks_at) * _ASKS_PER_SECOND, float(_ASKS_AT_ONCE)
            )
            self._asks_at = now
            if self._asks_allowed >= 1:
                self._asks_allowed -= 1
                question, self._asked = self._asked, None
                yield question

    def next_due(self) -> float:
        """When it wants to be looked at although nothing has happened."""
        times = [self.end_at if self._reason else self.stop_at]
        if self._progress is not None:
            times.append(self._progress_at + _PROGRESS_SECONDS)
        if self._lines:
            times.append(self.lines_at)
        if self._asked is not None:
            times.append(self._asks_at + 1.0 / _ASKS_PER_SECOND)
        return min(times)

    def garbled(self, error: Garbled, now: float) -> None:
        self.stop(How.GARBLED, "GARBLED", f"it wrote nonsense to its pipe: {error}", grace=0.0, now=now)

    def understand(self, body: bytes, now: float) -> Iterator[Happening]:
        message = from_child(body)
        if self._finished is not None:
            raise Garbled("it went on after it had finished")
        if isinstance(message, Progress):
            self._progress = Progress(message.percent, text(message.message, LINE_CHARACTERS_MAX))
            yield from self.due(now)
        elif isinstance(message, Checkpoint):
            check_checkpoint(message)
            yield Checkpointed(*self.key, message.state, message.follow_ups, message.crawl)
        elif isinstance(message, Pages):
            for page in message.pages:
                check_page(page, self.order)
            yield PagesRead(*self.key, message.pages)
        elif isinstance(message, Ask):
            if self._open_question is not None or self.unsent:
                raise Garbled("it asked again before it had taken its answer")
            self._asked, self._open_question = asked(message, self.order), message.number
            yield from self.due(now)
        elif isinstance(message, Ready):
            self.forked.sandbox = message.sandbox
            yield self.started(message.sandbox)
        else:
            check_json(message.result)
            if message.number != self.number:
                raise Garbled(f"the end of its attempt {message.number} during attempt {self.number}")
            if message.stays and (self.unsent or message.files):
                raise Garbled("it stays, and is not done")
            self._finished = message

    # --- what it is answered ---

    def answer(self, reply: Reply) -> None:
        """What nobody has asked is not answered."""
        if reply.number == self._open_question and self._asked is None:
            self._open_question = None
            self.unsent += frame(reply)
            self.send()

    def send(self) -> None:
        """As much as its pipe takes; it may never read it."""
        try:
            while self.unsent:
                del self.unsent[: os.write(self.forked.answers, self.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()

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
            self.stop(How.TIMED_OUT, "TIMED_OUT", self._time_sentence, grace=grace, now=now)
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

    def move_to(self, place: Path) -> None:
        """Out of the directory of a kept child, once that is gone. What is published is found in a place of its own."""
        if self.number and self._finished is not None and self._finished.files:
            shutil.rmtree(place, ignore_errors=True)
            self.staging = self.staging.rename(place)

    def ended(self) -> Ended:
        number = os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None
        name = _signal_name(number) if number is not None else None
        usage = Usage()
        if self._usage is not None:
            seconds = self._usage.ru_utime + self._usage.ru_stime
            usage = Usage(round(seconds - self.forked.cpu_seconds, 3), self._usage.ru_maxrss * 1024, name)
        if self._finished is not None and self._finished.used is not None:
            used = self._finished.used
            usage = Usage(round(used.cpu_seconds, 6), used.memory_peak_bytes, name)
            self.forked.cpu_seconds += used.cpu_seconds
        if self._reason is not None and not (self._had_finished and self._reason[0] is not How.GARBLED):
            how, code, message = self._reason
            return Ended(*self.key, how, code=code, message=message, usage=usage)
        if self._finished is not None:
            return self._as_it_says(self._finished, usage)
        words = "\n".join(filter(None, self._last_words))[-_LAST_WORDS_CHARACTERS_MAX:]
        how, code, message = self._without_a_word(name)
        return Ended(*self.key, how, code=code, message=f"{message}\n{words}".strip(), usage=usage)

    def _as_it_says(self, said: Finished, usage: Usage) -> Ended:
        if said.how not in (How.DONE, How.RETRYABLE, How.PERMANENT, How.SNOOZED, How.OUT_OF_MEMORY):
            return Ended(*self.key, How.GARBLED, code="GARBLED", message=f"a child cannot say {said.how}", usage=usage)
        try:
            # Its processes are gone, so nobody can exchange a file after this look.
            published, published_again = publications(said, self.staging)
        except Garbled as error:
            return Ended(*self.key, How.GARBLED, code="GARBLED", message=str(error), usage=usage)
        return Ended(
            *self.key,
            said.how,
            said.result,
            said.follow_ups,
            published,
            text(said.code, 100),
            text(said.message, _MESSAGE_CHARACTERS_MAX),
            None if said.after_seconds is None else max(said.after_seconds, 0.0),
            usage,
            published_again,
            said.document,
            said.publishes,
            said.rests_source,
            said.used.seconds if said.used is not None else None,
        )

    def _without_a_word(self, name: str | None) -> tuple[How, str, str]:
        if name == "SIGXCPU":
            return How.TIMED_OUT, "CPU_TIME_USED_UP", "it used more CPU time than its limit allows"
        if name is not None:
            why = ", as the kernel does where memory runs out: journalctl -k tells" if name == "SIGKILL" else ""
            return How.CRASHED, "CRASHED", f"it was ended by {name}{why}"
        code = os.WEXITSTATUS(self.status) if self.status is not None else 0
        if code == EXIT_OUT_OF_MEMORY:
            return How.OUT_OF_MEMORY, "OUT_OF_MEMORY", "it needs more memory than its limit allows"
        return How.GARBLED, "NO_RESULT", f"it ended without a result (exit code {code})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
