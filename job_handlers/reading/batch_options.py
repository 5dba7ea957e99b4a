"""The options `--priority` and `--batch` of the commands that submit documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from msgspec.structs import replace

from job_handlers.reading.job_factory import LeftOut, in_words
from worker_service.handlers import NewJob
from worker_service.verbs import (
    BadInput,
    BatchAdded,
    Desk,
    Enqueued,
    Function,
    InBatch,
    batches,
    enqueue,
    output,
    say_of_batch,
    say_what_is_replaced,
)

PRIORITY = batches.PRIORITY

_LEFT_OUT_SHOWN_MAX = 10
_NAME_MAX = 60
"""Maximum length of a batch name made from its sources."""


def priority_option(function: Function) -> Function:
    option = click.option(
        "--priority",
        type=click.IntRange(1, 10),
        metavar="1-10",
        help=f"1 is the highest; {PRIORITY} unless given. Reaches all that comes of it.",
    )
    return option(function)


def batch_option(function: Function) -> Function:
    option = click.option(
        "--batch",
        metavar="NAME|N",
        help="In a new batch of this name; a number adds to one that is there and has not ended.",
    )
    return option(function)


def submit(
    desk: Desk,
    jobs: Sequence[NewJob],
    *,
    batch: str | None,
    name: str | None,
    owner: str,
    priority: int | None,
    asked: Mapping[str, object],
) -> tuple[Sequence[Enqueued | InBatch], BatchAdded | None]:
    """Submit jobs and report what happens to the owner's other batches.

    `batch` is the value of --batch. Without --batch, `name` starts a batch with this name if any of the jobs is new;
    None starts no batch.
    """
    urgency = priority or PRIORITY
    if batch is not None and (number := _batch_number(batch)) is not None:
        jobs = [replace(one, priority=priority) for one in jobs]
        added: BatchAdded | None = batches.extend(desk.session, number, jobs, owner=owner)
        items: Sequence[Enqueued | InBatch] = added.jobs if added is not None else ()
    elif batch is not None:
        say_what_is_replaced(desk, owner)
        added = batches.add(desk.session, jobs, owner=owner, name=batch, priority=urgency, asked=asked)
        items = added.jobs
    elif name is not None:
        submission = batches.prepare(desk.session, jobs)
        if submission.work.new:
            say_what_is_replaced(desk, owner)
        done = batches.submit(desk.session, submission, owner=owner, name=short(name), priority=urgency, asked=asked)
        items, added = done.items, done.added
        if not desk.as_json:
            for one in done.waiting:
                output.say(f"{one.title} already has some of this: pagemill batch resume {one.id} starts it now")
    else:
        items, added = enqueue.enqueue_jobs(desk.session, [replace(one, priority=urgency) for one in jobs]), None
    if added is not None and not desk.as_json:
        say_of_batch(desk, added)
    return items, added


def say_what_is_left_out(desk: Desk, left_out: LeftOut) -> None:
    if not left_out.counts or desk.as_json:
        return
    output.say(f"left out: {in_words(left_out.counts)}")
    for one in left_out.files[:_LEFT_OUT_SHOWN_MAX]:
        output.say(f"  {one['path']}")
    if (more := left_out.counts.total() - _LEFT_OUT_SHOWN_MAX) > 0:
        output.say(f"  … and {more:,} more: --json names up to 1,000")


def short(name: str) -> str:
    """Return the name, shortened at its beginning if necessary."""
    return name if len(name) <= _NAME_MAX else f"…{name[1 - _NAME_MAX :]}"


def _batch_number(word: str) -> int | None:
    """Return the number in `7` or `batch:7`; None if the word is a name."""
    if not word.strip():
        raise BadInput("--batch is empty", "say the name of a new batch, or the number of one that is there")
    digits = word.removeprefix("batch:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
