"""`pagemill top`: what goes on now, drawn again every second."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import click

from worker_service.clock import as_text, wall_clock
from worker_service.commands import output
from worker_service.commands.desk import Desk, verb
from worker_service.jobs.model import Counts, Job, Status, TypeCounts, WorkerState
from worker_service.jobs.selector import Selector
from worker_service.plurals import counted
from worker_service.queue import state_of

_EVERY_SECONDS = 1.0
_JOBS_MOST = 500
_TYPES_MOST = 8
_JOBS_LEAST = 3


@dataclass(frozen=True, slots=True)
class Scene:
    """What was found at one look."""

    at: datetime
    counts: Counts
    workers: Sequence[tuple[WorkerState, str]]
    """Each with its state in a word."""
    running: Sequence[Job]
    """The longest first; not more than `_JOBS_MOST`."""
    types: Sequence[TypeCounts]
    """Those with pending jobs, the most first."""


@verb
@click.option("--once", is_flag=True, help="Print one frame and end.")
def top(desk: Desk, once: bool) -> None:
    """\b
    pagemill top
    pagemill top --once

    What goes on now, drawn again every second: the slots of each worker, what runs and how far it is, what waits.

    q or Ctrl-C ends it. With --json, or where stdout is no terminal, it looks once.
    """
    if desk.as_json:
        output.show_json(_object(_look(desk)))
    elif once or not output.is_terminal(sys.stdout):
        for line in frame(_look(desk)):
            output.show(line)
    else:
        _draw_until_asked_to_end(desk)


def frame(scene: Scene, *, height: int | None = None) -> list[str]:
    """The lines of one picture. With a height, only as many jobs as fit between what is above and below them."""
    above = [_summary(scene), "", *_worker_lines(scene)]
    below = _pending_lines(scene)
    most = len(scene.running)
    if height is not None:
        # Two lines around the jobs, their headings, the line about the rest, and the last one of the terminal.
        most = max(_JOBS_LEAST, height - len(above) - len(below) - 4)
    lines = [*above, *_running_lines(scene, most), *below]
    return lines if height is None else lines[: max(1, height - 1)]


# ── Looking ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _look(desk: Desk) -> Scene:
    store, now = desk.queue.store, wall_clock()
    workers = [(one.worker, one.state) for one in desk.known_workers(now)]
    running = store.reading.list(Selector(statuses=(Status.RUNNING,)), most=_JOBS_MOST)
    types = [one for one in store.reading.counts_by_type() if one.pending]
    return Scene(
        at=now,
        counts=store.reading.counts(),
        workers=workers,
        running=sorted(running, key=lambda job: (job.started_at or "", job.id)),
        types=sorted(types, key=lambda one: (-one.pending, one.job_type)),
    )


def _object(scene: Scene) -> dict[str, object]:
    return {
        "at": output.iso(as_text(scene.at)),
        "jobs": {status.value: scene.counts.by_status.get(status, 0) for status in Status},
        "oldest_pending_at": output.iso(scene.counts.oldest_pending_at),
        "workers": [{**output.as_object(worker), "state": state} for worker, state in scene.workers],
        "running": [{**output.as_object(job), "state": state_of(job)} for job in scene.running],
        "pending": [output.as_object(one) for one in scene.types],
    }


# ── The picture ─────────────────────────────────────────────────────────────────────────────────────────────────


def _summary(scene: Scene) -> str:
    numbers, oldest = scene.counts.by_status, scene.counts.oldest_pending_at
    waiting = f", the oldest for {output.age(oldest, now=scene.at)}" if oldest else ""
    return (
        f"{as_text(scene.at)[11:19]} UTC · {numbers.get(Status.RUNNING, 0):,} running · "
        f"{numbers.get(Status.PENDING, 0):,} pending{waiting}"
    )


def _worker_lines(scene: Scene) -> list[str]:
    if not scene.workers:
        return ["no worker: start one with `systemctl start pagemill`, or here with `pagemill run`"]
    rows = [
        (worker.id, state, _slots(worker), worker.host, f"{output.age(worker.heartbeat_at, now=scene.at)} ago")
        for worker, state in scene.workers
    ]  # fmt: skip
    return output.table_lines(("WORKER", "STATE", "RUNNING", "HOST", "BEAT"), rows)


def _slots(worker: WorkerState) -> str:
    cpu, io = worker.cpu_slots, worker.io_slots
    return f"{worker.running} of {cpu + io} ({cpu} cpu, {io} io)"


def _running_lines(scene: Scene, most: int) -> list[str]:
    total = max(scene.counts.by_status.get(Status.RUNNING, 0), len(scene.running))
    if not total:
        return ["", "nothing is running"]
    rows = [
        (job.id, job.job_type, job.name, job.account, job.worker_id, _age(job.started_at, scene.at), state_of(job),
         f"{job.progress_percent}%", job.progress_message)
        for job in scene.running[:most]
    ]  # fmt: skip
    headers = ("ID", "TYPE", "NAME", "ACCOUNT", "WORKER", "FOR", "STATE", "DONE", "MESSAGE")
    left_out = total - len(rows)
    rest = [f"… and {output.jobs(left_out)} more"] if left_out > 0 else []
    return ["", *output.table_lines(headers, rows, gives_up=("WORKER", "STATE", "ACCOUNT")), *rest]


def _pending_lines(scene: Scene) -> list[str]:
    if not scene.types:
        return ["", "nothing is pending"]
    rows = [(one.job_type, one.pending, one.held) for one in scene.types[:_TYPES_MOST]]
    rest = [f"… and {counted(len(scene.types) - _TYPES_MOST, 'type')} more"] if len(scene.types) > _TYPES_MOST else []
    return ["", *output.table_lines(("TYPE", "PENDING", "HELD"), rows), *rest]


def _age(text: str | None, now: datetime) -> str | None:
    return None if text is None else output.age(text, now=now)


# ── On a terminal ───────────────────────────────────────────────────────────────────────────────────────────────


def _draw_until_asked_to_end(desk: Desk) -> None:
    try:
        with _keys_at_once():
            click.clear()
            while True:
                output.draw(frame(_look(desk), height=shutil.get_terminal_size().lines))
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
