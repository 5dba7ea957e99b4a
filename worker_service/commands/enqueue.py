"""`pagemill enqueue`: a job into the queue."""

from __future__ import annotations

import sys
from typing import Any

import click

from worker_service.commands import output
from worker_service.commands.desk import Desk, completes, completes_type, verb
from worker_service.words import JobWords


@verb
@click.argument("job_type", metavar="JOB_TYPE", shell_complete=completes_type)
@click.option("--payload", metavar="JSON|@FILE|-", help="The job's input: JSON, a file, or standard input.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One value in the payload; repeat it.")
@click.option("--platform", metavar="NAME", help="'local' unless given.")
@click.option("--account", metavar="NAME", help="The remote account that the job is about.")
@click.option("--name", metavar="TEXT", help="What it is about, as lists show it: a file's name.")
@click.option("--owner", metavar="NAME", shell_complete=completes("owner"), help="The person it belongs to.")
@click.option("--source", metavar="NAME", help="What may ask for a rest, such as a credential.")
@click.option("--priority", type=int, metavar="1-10", help="1 is the highest; 5 unless given.")
@click.option("--run-at", metavar="TIME", help="Not before: '2026-11-18 10:00' (UTC), or +10m.")
@click.option("--after", metavar="ID,ID", help="Not before these jobs have completed.")
@click.option("--after-any", is_flag=True, help="With --after: once they have ended, in whatever way.")
@click.option("--unique", "unique_key", metavar="KEY", help="Not if a live job has this key; that one's id is printed.")
@click.option("--key", "concurrency_key", metavar="KEY", help="Never two running jobs with this key.")
@click.option("--max-retries", type=int, metavar="N", help="Unless given: as [retries.TYPE] says, else 3.")
@click.option("--timeout", metavar="LENGTH", help="Of one attempt: 10m; a number means seconds, as in every LENGTH.")
@click.option("--batch", "batch_id", type=int, metavar="N", help="The batch that it belongs to.")
@click.option("--no-check", is_flag=True, help="Do not ask first whether the payload fits its handler.")
def enqueue(desk: Desk, no_check: bool, **words: Any) -> None:
    """\b
    pagemill enqueue scrape_account --platform instagram --set scrape_type=full
    pagemill enqueue scrape_account --payload @job.json --priority 1
    echo '{"source": "/srv/a.pdf"}' | pagemill enqueue download --payload -
    pagemill enqueue download --set source=/srv/a.pdf --run-at +10m --unique nightly

    Put a job into the queue and print its id. Once the id is printed, the job survives a power cut.

    A type that nobody knows here is told, and waits. Where a daemon runs that knows the type, a payload that its
    handler cannot read is refused.

    A --set value is JSON where it can be read as JSON, else text; `--set page.from=1` goes one object deeper.
    """
    enqueued = desk.queue.enqueue(JobWords(**words), _read_stdin, is_checked=not no_check)
    doubt = desk.queue.doubt(words["job_type"])
    if desk.as_json:
        more = {"doubt": doubt} if doubt else {}
        output.show_json({"id": enqueued.job_id, "existing": enqueued.existing, **more})
        return
    output.show(str(enqueued.job_id))
    if doubt:
        output.say(f"job {enqueued.job_id} waits: {doubt}")
    if enqueued.existing:
        output.say(f"job {enqueued.job_id} is live and has this unique key already: nothing was added")


def _read_stdin(most: int) -> bytes:
    # None: it was closed before we began.
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""
