"""`pagemill top`: what goes on now, drawn again every second."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
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

_EVERY_SECONDS = 1.0
_TYPES_MOST = 8
_JOBS_LEAST = 3


@verb
@click.option("--once", is_flag=True, help="Print one frame and end.")
def top(call: Invocation, once: bool) -> None:
    """\b
    pagemill top
    pagemill top --once

    What goes on now, drawn again every second: how far batches are, the slots of each worker, what runs and how far it
    is, what waits.

    q or Ctrl-C ends it. With --json, or where stdout is no terminal, it looks once.
    """
    if call.as_json:
        found = Overview(call.session)
        counts = {"jobs": found.counts.by_status, "oldest_pending_at": iso(found.counts.oldest_pending_at)}
        now = {"running": found.running_jobs, "pending": found.pending_types, "batches": found.batches}
        output.show_json({"at": found.at, **counts, "workers": found.workers, **now})
    elif once or not output.is_terminal(sys.stdout):
        for line in frame(Overview(call.session)):
            output.show(line)
    else:
        _draw_until_asked_to_end(call)


def frame(overview: Overview, *, height: int | None = None) -> list[str]:
    """The lines of one picture. With a height, only as many jobs as fit between what is above and below them."""
    above = [_summary(overview), *map(titled_progress, overview.batches), "", *_worker_lines(overview)]
    below = _pending_lines(overview)
    most = len(overview.running_jobs)
    if height is not None:
        # Two lines around the jobs, their headings, the line about the rest, and the last one of the terminal.
        most = max(_JOBS_LEAST, height - len(above) - len(below) - 4)
    lines = [*above, *_running_lines(overview, most), *below]
    return lines if height is None else lines[: max(1, height - 1)]


# ── The picture ─────────────────────────────────────────────────────────────────────────────────────────────────


def _summary(overview: Overview) -> str:
    numbers, oldest = overview.counts.by_status, overview.counts.oldest_pending_at
    waiting = f", the oldest for {output.age(oldest, now=overview.at)}" if oldest else ""
    return (
        f"{as_text(overview.at)[11:19]} UTC · {numbers[Status.RUNNING]:,} running · "
        f"{numbers[Status.PENDING]:,} pending{waiting}"
    )


def _worker_lines(overview: Overview) -> list[str]:
    if not overview.workers:
        return ["no worker: start one with `systemctl start pagemill`, or here with `pagemill run`"]
    rows = [
        (one.id, one.state, _room(one), one.host, f"{output.age(one.heartbeat_at, now=overview.at)} ago")
        for one in overview.workers
    ]
    lines = output.table_lines(("WORKER", "STATE", "RUNNING", "HOST", "BEAT"), rows)
    if overview.nodes:
        lines += ["", *output.table_lines(NODE_COLUMNS, [node_row(one) for one in overview.nodes])]
    return lines


def _room(worker: CheckedWorker) -> str:
    classes = [f"{worker.cpu_slots} cpu", f"{worker.io_slots} io"]
    classes += [f"{worker.node_slots} on nodes"] if worker.node_slots else []
    slots = worker.cpu_slots + worker.io_slots + worker.node_slots
    return f"{worker.running} of {slots} ({', '.join(classes)})"


def _running_lines(overview: Overview, most: int) -> list[str]:
    total = max(overview.counts.by_status[Status.RUNNING], len(overview.running_jobs))
    if not total:
        return ["", "nothing is running"]
    rows = [
        (
            job.id, job.job_type, job.name, job.account, job.worker_id,
            job.started_at and output.age(job.started_at, now=overview.at), state_of(job), f"{job.progress_percent}%",
            progress_in_words(job, now=overview.at),
        )
        for job in overview.running_jobs[:most]
    ]  # fmt: skip
    headers = ("ID", "TYPE", "NAME", "ACCOUNT", "WORKER", "FOR", "STATE", "DONE", "MESSAGE")
    left_out = total - len(rows)
    rest = [f"… and {output.jobs(left_out)} more"] if left_out > 0 else []
    return ["", *output.table_lines(headers, rows, gives_up=("WORKER", "STATE", "ACCOUNT")), *rest]


def _pending_lines(overview: Overview) -> list[str]:
    if not overview.pending_types:
        return ["", "nothing is pending"]
    rows = [(one.job_type, one.pending, one.held) for one in overview.pending_types[:_TYPES_MOST]]
    left_out = len(overview.pending_types) - len(rows)
    rest = [f"… and {counted(left_out, 'type')} more"] if left_out else []
    return ["", *output.table_lines(("TYPE", "PENDING", "HELD"), rows), *rest]


# ── On a terminal ───────────────────────────────────────────────────────────────────────────────────────────────


def _draw_until_asked_to_end(call: Invocation) -> None:
    try:
        with _keys_at_once():
            click.clear()
            while True:
                output.draw(frame(Overview(call.session), height=shutil.get_terminal_size().lines))
                if _is_asked_to_end():
                    return
    except KeyboardInterrupt:
        return


def _is_asked_to_end() -> bool:
    """Wait for a key, and not longer than until the next picture."""
    if not output.is_terminal(sys.stdin):
        select.select([], [], [], _EVERY_SECONDS)
        return False
    keyboard = sys.stdin.fileno()
    if not select.select([keyboard], [], [], _EVERY_SECONDS)[0]:
        return False
    # Nothing: the terminal has been closed.
    return os.read(keyboard, 1) in (b"q", b"Q", b"")


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys reach us without Enter, and are not shown. However it ends, the terminal is as it was."""
    if not output.is_terminal(sys.stdin):
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        # What was typed while we started counts.
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        output.show_cursor(is_shown=False)
        yield
    finally:
        output.show_cursor(is_shown=True)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
