"""How far documents are, while somebody waits: pages, pages a second, and the time left. On stderr."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TextIO

from worker_service.awaiting import Awaited, Reading, Watch, wait_for
from worker_service.commands import output
from worker_service.commands.desk import Desk
from worker_service.plurals import counted

_DRAW_SECONDS = 0.2
_LINE_SECONDS = 10.0
_FAILED_SHOWN = 20
_RATE_SECONDS = 30.0
_SURE_SECONDS = 5.0


@contextmanager
def telling_that_jobs_go_on() -> Iterator[None]:
    """To whom interrupts us."""
    try:
        yield
    except KeyboardInterrupt:
        if output.is_terminal(sys.stderr):
            output.say("")
        output.say("nobody waits any more, and the jobs go on: pagemill documents shows how far they are")
        raise


def await_reading(desk: Desk, awaited: Sequence[Awaited], *, timeout: str | None, is_watched: bool = True) -> int:
    """Wait, say what could not be read, and return the exit code."""
    done = wait_for(
        desk.queue.store,
        awaited,
        timeout=timeout,
        monotonic=time.monotonic,
        sleep=time.sleep,
        watch=watch_reading(sys.stderr, monotonic=time.monotonic) if is_watched else None,
    )
    if desk.as_json:
        failed = [output.as_object(one) for one in done.failed]
        output.show_json({"documents": done.documents, "pages": done.pages, "failed": failed})
    else:
        output.show(f"{done.ended - len(done.failed)} read, {len(done.failed)} failed, {counted(done.pages, 'page')}")
    for one in done.failed[:_FAILED_SHOWN]:
        output.say(f"{one.name}: {one.code}: {one.message}")
    if len(done.failed) > _FAILED_SHOWN:
        output.say(f"and {len(done.failed) - _FAILED_SHOWN} more: pagemill documents --status failed")
    return 1 if done.failed else 0


def watch_reading(stream: TextIO | None, *, monotonic: Callable[[], float]) -> Watch:
    """One line, drawn again, where a person looks; else a line now and then."""
    if stream is None:
        return lambda reading: None
    is_terminal = output.is_terminal(stream)
    every = _DRAW_SECONDS if is_terminal else _LINE_SECONDS
    begun = monotonic()
    told = begun - _DRAW_SECONDS if is_terminal else begun
    # What was done before anybody waited says nothing of how fast it goes, nor does what is long ago.
    seen: deque[tuple[float, int]] = deque()
    first: tuple[float, int] | None = None

    def watch(reading: Reading) -> None:
        nonlocal told, first
        now = monotonic()
        seen.append((now, reading.pages_done))
        first = first or seen[0]
        is_over = reading.ended == reading.documents
        while len(seen) > 2 and seen[1][0] <= now - _RATE_SECONDS:
            seen.popleft()
        if now - told < every and not (is_over and is_terminal):
            return
        told = now
        since, done = first if is_over else seen[0]
        line = sentence(reading, now - since, done)
        stream.write(output.over_line(line) + ("\n" if is_over else "") if is_terminal else f"{line}\n")
        stream.flush()

    return watch


def sentence(reading: Reading, seconds: float, done_before: int = 0) -> str:
    """`seconds`: since `done_before` were done. The time left is said where it can be known: all pages are counted,
    and what comes now comes as what came in the last half a minute."""
    parts = [f"{reading.ended}/{counted(reading.documents, 'document')}"]
    if reading.pages:
        parts.append(f"{reading.pages_done}/{counted(reading.pages, 'page')}")
    rate = (reading.pages_done - done_before) / seconds if seconds > 0 else 0.0
    if rate > 0:
        parts.append(f"{rate:.1f} pages/s")
        left = (reading.pages_left or 0) / rate
        if left >= 1 and seconds >= _SURE_SECONDS:
            parts.append(f"{output.length(timedelta(seconds=left))} left")
    return " · ".join(parts)
