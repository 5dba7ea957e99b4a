"""How far jobs or documents are, while somebody waits: drawn again on a terminal; elsewhere a line now and then.

Of jobs there are bars; of documents one line, with pages, pages a second, and the time left. All of it goes to stderr,
for stdout is data. How often to look is decided here; what there is to see comes from `operations.wait`.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol, TextIO

from worker_service.base.clock import Clock, from_text, wall_clock
from worker_service.base.humanize import counted
from worker_service.base.sanitize import harmless
from worker_service.cli import output
from worker_service.cli.context import Invocation
from worker_service.jobs.batches import BatchState
from worker_service.jobs.job import Job, Status
from worker_service.services.batches import BatchDetails, describe_progress, titled_progress, wait_for_batch
from worker_service.services.jobs import progress_in_words, state_of, title_of_job
from worker_service.services.wait import (
    AwaitedDocument,
    JobsProgress,
    ReadingProgress,
    WatchDocuments,
    WatchJobs,
    wait_for_documents,
)

_DRAW_SECONDS = 0.2
_LINE_SECONDS = 10.0
_FAILED_SHOWN = 20
_RATE_SECONDS = 30.0
_SURE_SECONDS = 5.0
_JOBS_MOST = 20
_BAR_COLUMNS = 10
_TYPE_COLUMNS = 16
_NAME_COLUMNS = 30

Look = Callable[[int], JobsProgress]


class Screen(Protocol):
    """What is drawn on."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


def watch_jobs(stream: TextIO | None, *, monotonic: Callable[[], float]) -> WatchJobs:
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
        progress = look(max(1, min(_JOBS_MOST, rows - 2)))
        lines = [bar(job, now=self._clock(), fill=self._fill) for job in progress.jobs]
        if progress.total > len(progress.jobs):
            lines.append(_counted(progress))
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
        _said(job, now),
    ]
    return "  ".join(parts).rstrip()


def summary(progress: JobsProgress) -> str:
    """``2 of 5 jobs ended; job 42 (ocr_pages, report.pdf) 40% page 4 of 10``"""
    running = [job for job in progress.jobs if job.status is Status.RUNNING]
    begun = f"{progress.ended:,} of {output.jobs(progress.total)} ended"
    return "; ".join([begun, *(_in_words(job) for job in running)])


def _counted(progress: JobsProgress) -> str:
    """``48 of 60 jobs have ended: 10 pending, 2 running, 45 completed, 3 failed``"""
    counts = ", ".join(f"{number:,} {status}" for status, number in progress.by_status.items() if number)
    return f"{progress.ended:,} of {output.jobs(progress.total)} have ended: {counts}"


def _in_words(job: Job) -> str:
    return f"{harmless(title_of_job(job))} {job.progress_percent}% {_said(job, wall_clock())}".rstrip()


def _said(job: Job, now: datetime) -> str:
    if job.status is Status.RUNNING and job.cancel_requested_at is None:
        return harmless(progress_in_words(job, now=now))
    return " ".join(filter(None, [state_of(job), job.error_code if job.status is Status.FAILED else None]))


def _time(job: Job, *, now: datetime) -> str:
    """How long it runs or ran."""
    if job.started_at is None:
        return ""
    return output.length((from_text(job.completed_at) if job.completed_at else now) - from_text(job.started_at))


# ── Documents ───────────────────────────────────────────────────────────────────────────────────────────────────


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


def await_reading(
    call: Invocation, awaited: Sequence[AwaitedDocument], *, timeout: str | None, is_watched: bool = True
) -> int:
    """Wait, say what could not be read, and return the exit code."""
    watch = watch_reading(sys.stderr, monotonic=time.monotonic) if is_watched else None
    done = wait_for_documents(call.session, awaited, timeout=timeout, watch=watch)
    items = [
        {"name": one.name, "document_id": found and found.id, "state": found and found.state}
        for one, found in zip(awaited, done.found, strict=True)
    ]
    if not call.printed_json({"documents": done.documents, "pages": done.pages, "failed": done.failed, "items": items}):
        output.show(f"{done.ended - len(done.failed)} read, {len(done.failed)} failed, {counted(done.pages, 'page')}")
    for one in done.failed[:_FAILED_SHOWN]:
        output.say(f"{one.name}: {one.code}: {one.message}")
    if len(done.failed) > _FAILED_SHOWN:
        output.say(f"and {len(done.failed) - _FAILED_SHOWN} more: pagemill documents --status failed")
    return 1 if done.failed else 0


def await_batches(call: Invocation, ids: Sequence[int], *, timeout: str | None, is_watched: bool = True) -> int:
    """Wait until they have ended, say how, and return the exit code."""
    watch = watch_batch(sys.stderr, monotonic=time.monotonic) if is_watched else None
    ended = [wait_for_batch(call.session, batch_id, timeout=timeout, watch=watch) for batch_id in ids]
    if not call.printed_json({"items": ended}):
        for one in ended:
            output.show(titled_progress(one))
    return 1 if any(one.batch.state is BatchState.FAILED for one in ended) else 0


def watch_reading(stream: TextIO | None, *, monotonic: Callable[[], float]) -> WatchDocuments:
    """One line, drawn again, where a person looks; else a line now and then."""
    if stream is None:
        return lambda progress: None
    is_terminal = output.is_terminal(stream)
    every = _DRAW_SECONDS if is_terminal else _LINE_SECONDS
    begun = monotonic()
    told = begun - _DRAW_SECONDS if is_terminal else begun
    # What was done before anybody waited says nothing of how fast it goes, nor does what is long ago.
    seen: deque[tuple[float, int]] = deque()
    first: tuple[float, int] | None = None

    def watch(progress: ReadingProgress) -> None:
        nonlocal told, first
        now = monotonic()
        seen.append((now, progress.pages_done))
        first = first or seen[0]
        is_over = progress.ended == progress.documents
        while len(seen) > 2 and seen[1][0] <= now - _RATE_SECONDS:
            seen.popleft()
        if now - told < every and not (is_over and is_terminal):
            return
        told = now
        since, done = first if is_over else seen[0]
        line = reading_in_words(progress, now - since, done)
        stream.write(output.over_line(line) + ("\n" if is_over else "") if is_terminal else f"{line}\n")
        stream.flush()

    return watch


def watch_batch(stream: TextIO, *, monotonic: Callable[[], float]) -> Callable[[BatchDetails], None]:
    """One line, drawn again, where a person looks; else a line at once, and then every ten seconds."""
    is_terminal = output.is_terminal(stream)
    again_at = monotonic()

    def watch(found: BatchDetails) -> None:
        nonlocal again_at
        now, is_over = monotonic(), found.batch.state.is_ended
        if now < again_at and not (is_over and is_terminal):
            return
        again_at = now + (_DRAW_SECONDS if is_terminal else _LINE_SECONDS)
        line = harmless(describe_progress(found))
        stream.write(output.over_line(line) + ("\n" if is_over else "") if is_terminal else f"{line}\n")
        stream.flush()

    return watch


def reading_in_words(progress: ReadingProgress, seconds: float, done_before: int = 0) -> str:
    """`seconds`: since `done_before` were done. The time left is said where it can be known: all pages are counted,
    and what comes now comes as what came in the last half a minute."""
    parts = [f"{progress.ended}/{counted(progress.documents, 'document')}"]
    if progress.pages:
        parts.append(f"{progress.pages_done}/{counted(progress.pages, 'page')}")
    rate = (progress.pages_done - done_before) / seconds if seconds > 0 else 0.0
    if rate > 0:
        parts.append(f"{rate:.1f} pages/s")
        left = (progress.pages_left or 0) / rate
        if left >= 1 and seconds >= _SURE_SECONDS:
            parts.append(f"{output.length(timedelta(seconds=left))} left")
    return " · ".join(parts)
