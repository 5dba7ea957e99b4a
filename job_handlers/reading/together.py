"""How urgent a wish is, and in which batch it is: `--priority` and `--batch` of the verbs that bring documents in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from worker_service.handlers import NewJob
from worker_service.verbs import BadInput, BatchAdded, Desk, Enqueued, Function, InBatch, batches, enqueue, say_of_batch

PRIORITY = batches.PRIORITY


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


def submitted(
    desk: Desk,
    jobs: Sequence[NewJob],
    *,
    batch: str | None,
    owner: str,
    priority: int | None,
    asked: Mapping[str, object],
) -> tuple[Sequence[Enqueued | InBatch], BatchAdded | None]:
    """What became of each, and the batch that they are in. What is to be said of that is said."""
    if batch is None:
        return enqueue.enqueue_jobs(desk.session, [replace(one, priority=priority or PRIORITY) for one in jobs]), None
    if (number := _number(batch)) is not None:
        jobs = [replace(one, priority=priority) for one in jobs]
        added = batches.extend(desk.session, number, jobs, owner=owner)
    else:
        added = batches.add(
            desk.session,
            jobs,
            owner=owner,
            name=batch,
            priority=priority or PRIORITY,
            asked=asked,
        )
    if not desk.as_json:
        say_of_batch(desk, added)
    return added.jobs, added


def _number(word: str) -> int | None:
    """7 or batch:7; None: it is a name."""
    if not word.strip():
        raise BadInput("--batch is empty: say the name of a new batch, or the number of one that is there")
    digits = word.removeprefix("batch:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
