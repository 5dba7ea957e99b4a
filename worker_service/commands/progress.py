"""How far jobs are, while somebody waits for them: bars on a terminal, drawn again; elsewhere a line now and then.

All of it goes to stderr, for stdout is data. How often to look is decided here; what there is to see comes from the
queue.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TextIO

from worker_service.clock import Clock, from_text, wall_clock
from worker_service.commands import output
from worker_service.harmless import harmless
from worker_service.jobs.model import Job, Status
from worker_service.queue import Waiting, Watch, named, state_of

_DRAW_SECONDS = 0.2
_LINE_SECONDS = 10.0
_JOBS_MOST = 20
_BAR_COLUMNS = 10
_TYPE_COLUMNS = 16
_NAME_COLUMNS = 30

Look = Callable[[int], Waiting]


class Screen(Protocol):
    """What is drawn on."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


def watch_on(stream: TextIO | None, *, monotonic: Callable[[], float]) -> Watch:
    """Bars where a person looks, else lines."""
    if stream is None:
        return lambda look, is_over: None
    if output.is_terminal(stream):
        is_plain = (stream.encoding or "").lower().replace("-", "") != "utf8"
        return Bars(stream, monotonic=monotonic, size=shutil.get_terminal_size, fill="#." if is_plain else "█░")
    return Lines(stream, monotonic=monotonic)


class Bars:
    """A line for each job, drawn over the ones before; of too many, for those that run or failed, and one for all."""

    def __init__(
        self,
        screen: Screen,
        *,
        monotonic: Callable[[], float],
        size: Callable[[], tuple[int, int]],
        fill: str = "█░",
        clock: Clock = wall_clock,
    ) -> None:
        self._screen = screen
        self._monotonic = monotonic
        self._size = size
        self._fill = fill
        self._clock = clock
        self._drawn = 0
        self._again_at = 0.0

    def __call__(self, look: Look, is_over: bool) -> None:
        now = self._monotonic()
        # The last picture is how it ended.
        if now < self._again_at and not is_over:
            return
        columns, rows = self._size()
        self._again_at = now + _DRAW_SECONDS
        # The last line of the terminal stays free, and one tells of the rest.
        waiting = look(max(1, min(_JOBS_MOST, rows - 2)))
        lines = [bar(job, now=self._clock(), fill=self._fill) for job in waiting.jobs]
        if waiting.total > len(waiting.jobs):
            lines.append(_counted(waiting))
        self._screen.write(output.picture([output.cut(line, columns - 1) for line in lines], over=self._drawn))
        self._screen.flush()
        self._drawn = len(lines)


class Lines:
    """A line at once, then one every ten seconds."""

    def __init__(self, screen: Screen, *, monotonic: Callable[[], float]) -> None:
        self._screen = screen
        self._monotonic = monotonic
        self._again_at = monotonic()

    def __call__(self, look: Look, is_over: bool) -> None:
        now = self._monotonic()
        # How it ended is said on stdout.
        if now < self._again_at or is_over:
            return
        self._again_at = now + _LINE_SECONDS
        self._screen.write(f"{summary(look(3))}\n")
        self._screen.flush()


def bar(job: Job, *, now: datetime, fill: str = "█░") -> str:
    """``42 ocr_pages  ████░░░░░░  40%  3 min  report.pdf  page 4 of 10``"""
    full = round(_BAR_COLUMNS * job.progress_percent / 100)
    parts = [
        f"{job.id:>5} {harmless(job.job_type)[:_TYPE_COLUMNS]:{_TYPE_COLUMNS}}",
        fill[0] * full + fill[1] * (_BAR_COLUMNS - full),
        f"{job.progress_percent:>3}%",
        f"{_time(job, now=now):>6}",
        *([output.cut(harmless(job.name), _NAME_COLUMNS)] if job.name else []),
        _said(job),
    ]
    return "  ".join(parts).rstrip()


def summary(waiting: Waiting) -> str:
    """``2 of 5 jobs ended; job 42 (ocr_pages, report.pdf) 40% page 4 of 10``"""
    running = [job for job in waiting.jobs if job.status is Status.RUNNING]
    begun = f"{waiting.ended:,} of {output.jobs(waiting.total)} ended"
    return "; ".join([begun, *(_in_words(job) for job in running)])


def _counted(waiting: Waiting) -> str:
    """``48 of 60 jobs have ended: 10 pending, 2 running, 45 completed, 3 failed``"""
    counts = ", ".join(f"{number:,} {status}" for status, number in waiting.by_status.items() if number)
    return f"{waiting.ended:,} of {output.jobs(waiting.total)} have ended: {counts}"


def _in_words(job: Job) -> str:
    return f"{harmless(named(job))} {job.progress_percent}% {_said(job)}".rstrip()


def _said(job: Job) -> str:
    if job.status is Status.RUNNING and job.cancel_requested_at is None:
        return harmless(job.progress_message or "")
    return " ".join(filter(None, [state_of(job), job.error_code if job.status is Status.FAILED else None]))


def _time(job: Job, *, now: datetime) -> str:
    """How long it runs or ran."""
    if job.started_at is None:
        return ""
    return output.length((from_text(job.completed_at) if job.completed_at else now) - from_text(job.started_at))
