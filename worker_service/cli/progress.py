"""Wait for batches, documents and jobs, and show the progress on stderr. A `Display` decides when to draw."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple, TextIO

from worker_service.base.clock import from_text, wall_clock
from worker_service.base.humanize import counted
from worker_service.base.path_text import display_path, path_of
from worker_service.base.sanitize import harmless
from worker_service.cli import output
from worker_service.cli.context import Invocation
from worker_service.cli.waiting import (
    DocumentsProgress,
    JobsProgress,
    QueryProgress,
    UnreadDocument,
    WatchDocuments,
    WatchJobs,
    wait_for_documents,
)
from worker_service.jobs.batches import BatchState
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job, Status
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services.batches import BatchDetails, describe_progress, titled_progress, wait_for_batch
from worker_service.services.documents import list_documents
from worker_service.services.jobs import progress_in_words, state_of, title_of_job

_DRAW_INTERVAL_SECONDS = 0.2
_LINE_INTERVAL_SECONDS = 10.0
_FAILED_SHOWN_MAX = 20
_RATE_PERIOD_SECONDS = 30.0
_RATE_UNCERTAIN_SECONDS = 5.0
_BARS_MAX = 20
_JOBS_IN_LINE_MAX = 3
_BAR_COLUMNS = 10
_TYPE_COLUMNS = 16
_NAME_COLUMNS = 30


class Display:
    """Draws over the previous lines on a terminal; elsewhere prints every ten seconds.

    `stream` is None if nothing is to be shown, or if stderr was closed before the start.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
    ) -> None:
        self.stream = stream
        self.monotonic = monotonic
        self.is_terminal = output.is_terminal(stream)
        self.size = size
        self._lines_drawn = 0
        self._next_at = monotonic()

    def update(self, make_lines: Callable[[], Sequence[str]], *, is_over: bool) -> None:
        """Show the lines if it is time; at the end, on a terminal only, where they replace the last ones."""
        now = self.monotonic()
        is_due = self.is_terminal if is_over else now >= self._next_at
        if self.stream is None or not is_due:
            return
        self._next_at = now + (_DRAW_INTERVAL_SECONDS if self.is_terminal else _LINE_INTERVAL_SECONDS)
        lines = make_lines()
        if self.is_terminal:
            columns, _ = self.size()
            fitting = [output.truncate(line, columns - 1) for line in lines]
            self.stream.write(output.overwriting(fitting, lines_above=self._lines_drawn))
            self._lines_drawn = len(lines)
        else:
            self.stream.write("".join(f"{harmless(line)}\n" for line in lines))
        self.stream.flush()


# ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def watch_jobs(display: Display) -> WatchJobs:
    is_utf8 = (getattr(display.stream, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    full_and_empty = ("█", "░") if is_utf8 else ("#", ".")

    def watch(query_progress: QueryProgress, is_over: bool) -> None:
        def make_lines() -> list[str]:
            if not display.is_terminal:
                return [_jobs_line(query_progress(_JOBS_IN_LINE_MAX))]
            _columns, rows = display.size()
            # Leave a line for the count of all jobs, and the terminal's last line.
            progress = query_progress(max(1, min(_BARS_MAX, rows - 2)))
            bars = [_bar(job, now=wall_clock(), full_and_empty=full_and_empty) for job in progress.jobs]
            return [*bars, _status_counts(progress)] if progress.total > len(progress.jobs) else bars

        display.update(make_lines, is_over=is_over)

    return watch


def _bar(job: Job, *, now: datetime, full_and_empty: tuple[str, str]) -> str:
    """Return a line such as ``42 ocr_pages  ████░░░░░░  40%  3 min  report.pdf  page 4 of 10``."""
    full, empty = full_and_empty
    columns_full = round(_BAR_COLUMNS * job.progress_percent / 100)
    parts = [
        f"{job.id:>5} {harmless(job.job_type)[:_TYPE_COLUMNS]:{_TYPE_COLUMNS}}",
        full * columns_full + empty * (_BAR_COLUMNS - columns_full),
        f"{job.progress_percent:>3}%",
        f"{_duration(job, now=now):>6}",
        *([output.truncate(harmless(job.name), _NAME_COLUMNS)] if job.name else []),
        _state_or_message(job, now),
    ]
    return "  ".join(parts).rstrip()


def _jobs_line(progress: JobsProgress) -> str:
    now = wall_clock()
    running = [
        f"{harmless(title_of_job(job))} {job.progress_percent}% {_state_or_message(job, now)}".rstrip()
        for job in progress.jobs
        if job.status is Status.RUNNING
    ]
    return "; ".join([f"{progress.ended:,} of {counted(progress.total, 'job')} ended", *running])


def _status_counts(progress: JobsProgress) -> str:
    counts = ", ".join(f"{number:,} {status}" for status, number in progress.by_status.items() if number)
    return f"{progress.ended:,} of {counted(progress.total, 'job')} ended: {counts}"


def _state_or_message(job: Job, now: datetime) -> str:
    if job.status is Status.RUNNING and job.cancel_requested_at is None:
        return harmless(progress_in_words(job, now=now))
    return " ".join(filter(None, [state_of(job), job.error_code if job.status is Status.FAILED else None]))


def _duration(job: Job, *, now: datetime) -> str:
    if job.started_at is None:
        return ""
    end = from_text(job.completed_at) if job.completed_at else now
    return output.format_length(end - from_text(job.started_at))


# ── Batches and documents ───────────────────────────────────────────────────────────────────────────────────────


def await_batches(call: Invocation, ids: Sequence[int], *, timeout: str | None, is_watched: bool = True) -> int:
    ended = []
    for batch_id in ids:
        display = Display(sys.stderr if is_watched else None)
        ended.append(wait_for_batch(call.session, batch_id, timeout=timeout, watch=_watch_batch(display)))
    if not call.print_if_json({"items": ended}):
        for details in ended:
            batch_id = details.batch.id
            output.show(titled_progress(details))
            _note_failures(_unread_files(call, batch_id), f"pagemill documents --status failed --batch {batch_id}")
    return 1 if any(details.batch.state is BatchState.FAILED for details in ended) else 0


def _watch_batch(display: Display) -> Callable[[BatchDetails], None]:
    def watch(details: BatchDetails) -> None:
        display.update(lambda: [describe_progress(details)], is_over=details.batch.state.is_ended)

    return watch


def await_reading(call: Invocation, awaited: Sequence[Document], *, timeout: str | None, is_watched: bool) -> int:
    display = Display(sys.stderr if is_watched else None)
    progress = wait_for_documents(call.session, awaited, timeout=timeout, watch=watch_reading(display))
    failed = progress.failed
    items = [
        {"name": document.name, "document_id": document.id, "state": document.state} for document in progress.existing
    ]
    answer = {"documents": progress.documents, "pages": progress.pages, "failed": failed, "items": items}
    read = progress.ended - len(failed)
    call.show_result(answer, f"{read} read, {len(failed)} failed, {counted(progress.pages, 'page')}")
    _note_failures(failed, "pagemill documents --status failed")
    return 1 if failed else 0


def _unread_files(call: Invocation, batch_id: int) -> Sequence[UnreadDocument]:
    selector = DocumentSelector(statuses=(IndexStatus.FAILED,), batch_ids=(batch_id,))
    page = list_documents(call.session, selector, limit=_FAILED_SHOWN_MAX + 1)
    unread: list[Document | Job] = [*page.items, *page.not_brought_in]
    return [UnreadDocument(_path_or_name(file), file.error_code or "FAILED", file.error_text) for file in unread]


def _path_or_name(file: Document | Job) -> str:
    if file.platform == "local":
        return display_path(path_of(file.source_key or ""))
    return file.name or file.source_key or ""


def _note_failures(failed: Sequence[UnreadDocument], list_command: str) -> None:
    for document in failed[:_FAILED_SHOWN_MAX]:
        output.note(f"{document.name}: {document.code}: {document.message}")
    if len(failed) > _FAILED_SHOWN_MAX:
        output.note(f"and more: {list_command}")


class PagesSample(NamedTuple):
    at: float
    pages_done: int


def watch_reading(display: Display) -> WatchDocuments:
    samples: deque[PagesSample] = deque()
    first: PagesSample | None = None

    def watch(progress: DocumentsProgress) -> None:
        nonlocal first
        now, is_over = display.monotonic(), progress.ended == progress.documents
        samples.append(PagesSample(now, progress.pages_done))
        first = first or samples[0]
        # Keep one sample that is older than the period of the rate.
        while len(samples) > 2 and samples[1].at <= now - _RATE_PERIOD_SECONDS:
            samples.popleft()
        # The last line shows the rate of the whole wait.
        start = first if is_over else samples[0]
        display.update(lambda: [reading_in_words(progress, now - start.at, start.pages_done)], is_over=is_over)

    return watch


def reading_in_words(progress: DocumentsProgress, seconds: float, done_before: int) -> str:
    """Return a line such as ``1/3 documents · 40/120 pages · 4.0 pages/s · 20 s left``.

    The rate counts from `seconds` ago, when `done_before` pages were done.
    """
    parts = [f"{progress.ended}/{counted(progress.documents, 'document')}"]
    if progress.pages:
        parts.append(f"{progress.pages_done}/{counted(progress.pages, 'page')}")
    rate = (progress.pages_done - done_before) / seconds if seconds > 0 else 0.0
    if rate > 0:
        parts.append(f"{rate:.1f} pages/s")
        seconds_left = (progress.pages_left or 0) / rate
        if seconds_left >= 1 and seconds >= _RATE_UNCERTAIN_SECONDS:
            parts.append(f"{output.format_length(timedelta(seconds=seconds_left))} left")
    return " · ".join(parts)


@contextmanager
def reporting_interruption() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if output.is_terminal(sys.stderr):
            # The terminal has shown ^C on the line of the progress.
            output.note("")
        output.note("stopped waiting; the jobs continue: pagemill documents shows their progress")
        raise
