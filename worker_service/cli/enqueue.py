"""`pagemill enqueue`: a job into the queue."""

from __future__ import annotations

from typing import Any

import click

from worker_service.base.clock import PERIODS
from worker_service.cli import output
from worker_service.cli.context import Function, Invocation, completes, completes_type, read_stdin, verb
from worker_service.jobs.actions import read_action
from worker_service.jobs.selector import WRITTEN
from worker_service.services import enqueue as operations


def _columns(function: Function) -> Function:
    """The flags of the columns that people write."""
    for column in reversed(WRITTEN):
        click.option(
            column.flag,
            column.name,
            type=int if column.is_number else None,
            metavar=column.metavar,
            shell_complete=completes(column.name) if column.name == "owner" else None,
            help=column.written,
        )(function)
    return function


@verb
@click.argument("job_type", metavar="JOB_TYPE", shell_complete=completes_type)
@click.option("--payload", metavar="JSON|@FILE|-", help="The job's input: JSON, a file, or standard input.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One value in the payload; repeat it.")
@_columns
@click.option("--priority", type=int, metavar="1-10", help="1 is the highest; 5 unless given.")
@click.option("--run-at", metavar="TIME", help="Not before: '2026-11-18 10:00' (UTC), or +10m.")
@click.option("--after", metavar="ID,ID", help="Not before these jobs have completed.")
@click.option("--after-any", is_flag=True, help="With --after: once they have ended, in whatever way.")
@click.option("--unique", "unique_key", metavar="KEY", help="Not if a live job has this key; that one's id is printed.")
@click.option(
    "--once-per",
    type=click.Choice(PERIODS),
    help="With --unique: nor if a job with this key was enqueued in this one before, whatever has become of it.",
)
@click.option("--key", "concurrency_key", metavar="KEY", help="Never two running jobs with this key.")
@click.option("--max-retries", type=int, metavar="N", help="Unless given: as [retries.TYPE] says, else 3.")
@click.option("--timeout", metavar="LENGTH", help="Of one attempt: 10m; a number means seconds, as in every LENGTH.")
@click.option("--on-failure", multiple=True, metavar="TYPE[=JSON]", help="Once it has failed for good, such a job.")
@click.option("--no-check", is_flag=True, help="Do not ask first whether the payload fits its handler.")
def enqueue(call: Invocation, no_check: bool, **words: Any) -> None:
    """\b
    pagemill enqueue scrape_account --platform instagram --set scrape_type=full
    pagemill enqueue scrape_account --payload @job.json --priority 1
    echo '{"source": "/srv/a.pdf"}' | pagemill enqueue download --payload -
    pagemill enqueue download --set source=/srv/a.pdf --run-at +10m --unique nightly
    pagemill enqueue nightly_report --unique nightly --once-per day

    Put a job into the queue and print its id. Once the id is printed, the job survives a power cut.

    A job whose type no handler here knows waits until one is installed: a warning on stderr says so, and the exit
    code is 0. Where a running daemon knows the type, a payload that its handler cannot read is refused.

    A --set value is JSON where it can be read as JSON, else text; `--set page.from=1` goes one object deeper.
    """
    enqueued = operations.enqueue(call.session, words, read_stdin, is_checked=not no_check)
    doubt = operations.unknown_type_warning(call.session, words["job_type"])
    more = {"doubt": doubt} if doubt else {}
    if call.printed_json({"id": enqueued.job_id, "existing": enqueued.existing, **more}):
        return
    output.show(str(enqueued.job_id))
    if doubt:
        output.say(f"job {enqueued.job_id} waits: {doubt}")
    for sentence in operations.unknown_type_warnings(call.session, [read_action(word) for word in words["on_failure"]]):
        output.say(sentence)
    if enqueued.existing:
        before = f" or was enqueued in this {words['once_per']}," if words["once_per"] else ""
        output.say(f"job {enqueued.job_id} is live{before} and has this unique key already: nothing was added")
