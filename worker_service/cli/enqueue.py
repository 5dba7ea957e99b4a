"""`pagemill enqueue`: add one job to the queue."""

from __future__ import annotations

from typing import Any

import click

from worker_service.base.clock import PERIODS
from worker_service.cli import output
from worker_service.cli.context import Function, Invocation, add_options, complete_job_type, completer, read_stdin, verb
from worker_service.jobs.follow_ups import read_action
from worker_service.jobs.selector import SETTABLE_COLUMNS
from worker_service.services import enqueue as operations


def _column_options(function: Function) -> Function:
    options = [
        click.option(
            column.flag,
            column.name,
            type=int if column.is_number else None,
            metavar=column.metavar,
            shell_complete=completer(column.name) if column.name == "owner" else None,
            help=column.setting_help,
        )
        for column in SETTABLE_COLUMNS
    ]
    return add_options(function, *options)


@verb
@click.argument("job_type", metavar="JOB_TYPE", shell_complete=complete_job_type)
@click.option("--payload", metavar="JSON|@FILE|-", help="The job's input: JSON, a file, or standard input.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set one value of the payload. Repeatable."
)
@_column_options
@click.option("--priority", type=int, metavar="1-10", help="1 is the highest. Default: 5.")
@click.option("--run-at", metavar="TIME", help="Start no earlier than '2026-11-18 10:00' (UTC), or +10m.")
@click.option("--after", metavar="ID,ID", help="Start after these jobs have completed.")
@click.option("--after-any", is_flag=True, help="With --after: start also if they fail or are cancelled.")
@click.option("--unique", "unique_key", metavar="KEY", help="If a live job has this key, add none and print its id.")
@click.option(
    "--once-per",
    type=click.Choice(PERIODS),
    help="With --unique: at most one job per hour, day, week or month, even if it has ended.",
)
@click.option("--key", "concurrency_key", metavar="KEY", help="Run only one job with this key at a time.")
@click.option(
    "--max-retries",
    type=int,
    metavar="N",
    help="Retries after a failure. Default: [retries.TYPE] in the settings, else 3.",
)
@click.option("--timeout", metavar="LENGTH", help="Limit of one attempt: 10m, or seconds.")
@click.option("--on-failure", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job if this one fails finally.")
@click.option("--no-check", is_flag=True, help="Do not check the payload against the handler's schema.")
def enqueue(call: Invocation, no_check: bool, **values: Any) -> None:
    """\b
    pagemill enqueue scrape_account --platform instagram --set scrape_type=full
    pagemill enqueue scrape_account --payload @job.json --priority 1
    echo '{"source": "/srv/a.pdf"}' | pagemill enqueue download --payload -
    pagemill enqueue download --set source=/srv/a.pdf --run-at +10m --unique nightly
    pagemill enqueue nightly_report --unique nightly --once-per day

    Add a job to the queue and print its id. When the id is printed, the job is on disk.

    A job of an unknown type waits until a handler for it is installed; a warning says so, and the exit code is 0. If a
    running daemon knows the type, a payload that does not fit the handler is refused.

    A --set value is parsed as JSON if possible, otherwise it is text. `--set page.from=1` sets a value in an object.
    """
    enqueued = operations.enqueue(call.session, values, read_stdin, is_payload_checked=not no_check)
    warning = operations.unknown_type_warning(call.session, values["job_type"])
    answer = {"id": enqueued.job_id, "existing": enqueued.existing, **({"doubt": warning} if warning else {})}
    if call.print_if_json(answer):
        return
    output.show(str(enqueued.job_id))
    if warning:
        output.note(f"job {enqueued.job_id} waits: {warning}")
    failure_actions = [read_action(word) for word in values["on_failure"]]
    for sentence in operations.unknown_type_warnings(call.session, failure_actions):
        output.note(sentence)
    if enqueued.existing:
        in_period = f" or was added this {values['once_per']}" if values["once_per"] else ""
        output.note(f"nothing was added: job {enqueued.job_id} with this unique key is live{in_period}")
