"""`pagemill top`: show running work, updated every second."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import click

from worker_service.base.clock import as_text
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Invocation, verb
from worker_service.cli.output import NODE_COLUMNS, node_row
from worker_service.jobs.job import Status
from worker_service.services.batches import titled_progress
from worker_service.services.jobs import progress_in_words, state_of
from worker_service.services.overview import CheckedWorker, Overview
from worker_service.services.serialize import iso

_REDRAW_SECONDS = 1.0
_TYPES_SHOWN_MAX = 8
_JOBS_SHOWN_MIN = 3
_LINES_AROUND_JOBS = 4
"""The empty line, the headings, the count of the other jobs, and the last line of the terminal."""


@verb
@click.option("--once", is_flag=True, help="Print once and exit.")
def top(call: Invocation, once: bool) -> None:
    """\b
    pagemill top
    pagemill top --once

    Show batches, workers, running jobs and pending jobs, updated every second.

    Press q or Ctrl-C to quit. With --json, or without a terminal, it prints once.
    """
    if call.as_json:
        overview = Overview(call.session)
        counts = {"jobs": overview.counts.by_status, "oldest_pending_at": iso(overview.counts.oldest_pending_at)}
        now = {"running": overview.running_jobs, "pending": overview.pending_types, "batches": overview.batches}
        output.show_json({"at": overview.at, **counts, "workers": overview.workers, **now})
    elif once or not output.is_terminal(sys.stdout):
        for line in frame(Overview(call.session)):
            output.show(line)
    else:
        _draw_until_quit(call)


def frame(overview: Overview, *, height: int | None = None) -> list[str]:
    """Return the lines of the screen. With a height, leave out running jobs that do not fit."""
    above = [_summary(overview), *map(titled_progress, overview.batches), "", *_worker_lines(overview)]
    below = _pending_lines(overview)
    jobs_max = len(overview.running_jobs)
    if height is not None:
        jobs_max = max(_JOBS_SHOWN_MIN, height - len(above) - len(below) - _LINES_AROUND_JOBS)
    lines = [*above, *_running_lines(overview, jobs_max), *below]
    return lines if height is None else lines[: max(1, height - 1)]


# ── Parts of the frame ──────────────────────────────────────────────────────────────────────────────────────────────


def _summary(overview: Overview) -> str:
    numbers, oldest = overview.counts.by_status, overview.counts.oldest_pending_at
    waiting = f", the oldest for {output.age(oldest, now=overview.at)}" if oldest else ""
    return (
        f"{as_text(overview.at)[11:19]} UTC · {numbers[Status.RUNNING]:,} running · "
        f"{numbers[Status.PENDING]:,} pending{waiting}"
    )


def _worker_lines(overview: Overview) -> list[str]:
    if not overview.workers:
        return [f"no daemon is running; to start one: {overview.settings.start_command}"]
    rows = [
        (
            worker.id,
            worker.state,
            _slots(worker),
            worker.host,
            f"{output.age(worker.heartbeat_at, now=overview.at)} ago",
        )
        for worker in overview.workers
    ]
    lines = output.table_lines(("WORKER", "STATE", "RUNNING", "HOST", "BEAT"), rows)
    if overview.nodes:
        lines += ["", *output.table_lines(NODE_COLUMNS, list(map(node_row, overview.nodes)))]
    return lines


def _slots(worker: CheckedWorker) -> str:
    """Return, for example, ``1 of 6 (2 cpu, 4 io)``."""
    classes = [f"{worker.cpu_slots} cpu", f"{worker.io_slots} io"]
    classes += [f"{worker.node_slots} on nodes"] if worker.node_slots else []
    slots = worker.cpu_slots + worker.io_slots + worker.node_slots
    return f"{worker.running} of {slots} ({', '.join(classes)})"


def _running_lines(overview: Overview, jobs_max: int) -> list[str]:
    total = max(overview.counts.by_status[Status.RUNNING], len(overview.running_jobs))
    if not total:
        return ["", "no job is running"]
    rows = [
        (
            job.id, job.job_type, job.name, job.account, job.worker_id,
            job.started_at and output.age(job.started_at, now=overview.at), state_of(job), f"{job.progress_percent}%",
            progress_in_words(job, now=overview.at),
        )
        for job in overview.running_jobs[:jobs_max]
    ]  # fmt: skip
    headers = ("ID", "TYPE", "NAME", "ACCOUNT", "WORKER", "FOR", "STATE", "DONE", "MESSAGE")
    left_out = total - len(rows)
    more = [f"… and {counted(left_out, 'job')} more"] if left_out > 0 else []
    return ["", *output.table_lines(headers, rows, drop_first=("WORKER", "STATE", "ACCOUNT")), *more]


def _pending_lines(overview: Overview) -> list[str]:
    if not overview.pending_types:
        return ["", "no job is pending"]
    rows = [(count.job_type, count.pending, count.held) for count in overview.pending_types[:_TYPES_SHOWN_MAX]]
    left_out = len(overview.pending_types) - len(rows)
    more = [f"… and {counted(left_out, 'type')} more"] if left_out else []
    return ["", *output.table_lines(("TYPE", "PENDING", "HELD"), rows), *more]


# ── On a terminal ───────────────────────────────────────────────────────────────────────────────────────────────


def _draw_until_quit(call: Invocation) -> None:
    try:
        with _raw_keyboard():
            click.clear()
            while True:
                output.draw_screen(frame(Overview(call.session), height=shutil.get_terminal_size().lines))
                if _is_quit_pressed():
                    return
    except KeyboardInterrupt:
        return


def _is_quit_pressed() -> bool:
    """Wait for a key until the next redraw is due. A closed terminal counts as q."""
    if not output.is_terminal(sys.stdin):
        time.sleep(_REDRAW_SECONDS)
        return False
    keyboard = sys.stdin.fileno()
    readable, _, _ = select.select([keyboard], [], [], _REDRAW_SECONDS)
    if not readable:
        return False
    return os.read(keyboard, 1) in (b"q", b"Q", b"")


@contextmanager
def _raw_keyboard() -> Iterator[None]:
    """Read keys without Enter and without echo."""
    if not output.is_terminal(sys.stdin):
        yield
        return
    keyboard = sys.stdin.fileno()
    attributes = termios.tcgetattr(keyboard)
    try:
        # TCSADRAIN keeps what was typed during the start.
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        output.show_cursor(is_shown=False)
        yield
    finally:
        output.show_cursor(is_shown=True)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, attributes)
