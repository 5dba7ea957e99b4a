"""`pagemill wait`: until jobs have ended."""

from __future__ import annotations

import sys
import time

import click

from worker_service.commands import output
from worker_service.commands.desk import Desk, selecting, verb
from worker_service.commands.progress import watch_on
from worker_service.words import SelectorWords


@verb
@selecting
@click.option("--timeout", metavar="LENGTH", help="Give up after this long: 30s, 10m.")
@click.option("--follow", is_flag=True, help="And for the jobs that come of them.")
@click.option("--progress", is_flag=True, help="Show how far they are: bars on a terminal, else a line every 10 s.")
def wait(desk: Desk, words: SelectorWords, timeout: str | None, follow: bool, progress: bool) -> int:
    """\b
    pagemill wait 42
    pagemill wait 41 42 43 --timeout 10m
    pagemill wait --batch 7 --progress && echo done
    pagemill wait 3 --follow
    pagemill wait $(pagemill enqueue ocr_pages --payload @job.json)

    Wait until the jobs that match now have ended. What --progress shows goes to stderr.

    Exit code 0 if all completed, 1 if some failed or were cancelled, 124 if the time ran out.
    """
    queue = desk.queue
    watch = watch_on(sys.stderr, monotonic=time.monotonic) if progress else None
    waited = queue.wait(
        queue.selector(words),
        timeout=timeout,
        monotonic=time.monotonic,
        sleep=time.sleep,
        watch=watch,
        follows=follow,
    )
    if desk.as_json:
        output.show_json(output.as_object(waited))
    else:
        counts = {word: number for word, number in output.as_object(waited).items() if number}
        output.show(", ".join(f"{number} {word}" for word, number in counts.items()))
    return 0 if waited.is_good else 1
