"""`pagemill run-one`: run one attempt without a database."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from worker_service.base.errors import in_a_sentence
from worker_service.cli import output
from worker_service.cli.context import Invocation, complete_job_type, read_stdin, verb
from worker_service.cli.handlers import HandlerAbsent, find_handler
from worker_service.runner.messages import AttemptEvent, Begin, Ended, How, Logged, Order, Progressed
from worker_service.runner.without_daemon import attempt_events, open_pool
from worker_service.services.parse_job import read_payload
from worker_service.services.serialize import as_object
from worker_service.settings.config import Settings

_EXIT_CODE_NOT_DONE = 1
_EXIT_CODE_BY_ERROR = {"PAYLOAD_INVALID": 65, "HANDLER_SET_ASIDE": 69, "SANDBOX_UNAVAILABLE": 69}


@verb
@click.option(
    "--type",
    "job_type",
    required=True,
    metavar="TYPE",
    shell_complete=complete_job_type,
    help="The job type.",
)
@click.option("--payload", metavar="JSON|@FILE|-", help="The job's input: JSON, a file, or standard input.")
@click.option("--account", metavar="NAME", help="The remote account that the job is about.")
@click.option("--platform", default="local", metavar="NAME", help="Default: local.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work in this directory and keep its files. Default: a temporary one.",
)
def run_one(
    call: Invocation, job_type: str, payload: str | None, account: str | None, platform: str, directory: Path | None
) -> int:
    """\b
    pagemill run-one --type webhook --payload @job.json
    pagemill run-one --type scrape_account --account user123 --payload '{"scrape_type": "full"}'

    Run one attempt in a child process, with its limits and sandbox, but without a database.

    Log lines and progress go to stderr, the result to stdout. Nothing is enqueued, retried or published. Exit code 0 if
    the attempt succeeded, 1 if it failed, 65 if the payload does not fit, 69 if no installed handler can run it.
    """
    text = read_payload(payload, (), call.settings.payload_bytes_max, read_stdin)
    order = Order(job_id=1, fence=1, job_type=job_type, platform=platform, account=account, payload=text)
    for event in _run_attempt(call.settings, order, directory):
        if isinstance(event, Ended):
            return _show_end(call, event)
        _show_event(event)
    raise AssertionError("an attempt that was launched has an end")


def _run_attempt(settings: Settings, order: Order, directory: Path | None) -> Iterator[AttemptEvent]:
    """Yield the events of the attempt, its end last. Without a `directory`, its files are deleted afterwards."""
    settings.export_handler_settings()
    with ExitStack() as stack:
        if directory is None:
            # Child processes that were stopped may still be deleting their files.
            temporary = tempfile.TemporaryDirectory(prefix="pagemill-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
        begin = Begin(
            directory / "staging",
            directory / "keep",
            commands=settings.commands,
            sandbox=settings.sandbox,
            types=[order.job_type],
            handlers_dir=settings.handlers_dir,
            grace_seconds=1.0,
        )
        fork_server, handlers = stack.enter_context(open_pool(begin))
        handler = find_handler(order.job_type, handlers)
        reason = handler.set_aside or handler.facts.missing_text
        if reason:
            raise HandlerAbsent(f"{order.job_type} cannot be run here: {reason}")
        fork_server.launch(order)
        yield from attempt_events(fork_server)


def _show_event(event: AttemptEvent) -> None:
    if isinstance(event, Logged):
        for line in event.lines:
            output.note(line)
    elif isinstance(event, Progressed):
        output.note(f"{event.percent:3.0f} % {event.message}".rstrip())


def _show_end(call: Invocation, ended: Ended) -> int:
    is_done = ended.how is How.DONE
    if call.as_json:
        output.show_json(
            {
                "outcome": ended.how.value,
                "result": as_object(ended)["result"],
                "error_code": ended.code or None,
                "error_message": ended.message or None,
                "error_remedy": ended.remedy or None,
                "after_seconds": ended.after_seconds,
                "files": ended.files,
                "follow_ups": [follow_up.job_type for follow_up in ended.follow_ups],
                **as_object(ended.usage),
            }
        )
    elif is_done:
        output.show_json_text("null" if ended.result is None else ended.result)
    for file in ended.files:
        output.note(f"file: {file}")
    for follow_up in ended.follow_ups:
        output.note(f"follow-up job: {follow_up.job_type}")
    if not is_done and not call.as_json:
        _show_failure(ended)
    return 0 if is_done else _EXIT_CODE_BY_ERROR.get(ended.code, _EXIT_CODE_NOT_DONE)


def _show_failure(ended: Ended) -> None:
    code = f" ({ended.code})" if ended.code else ""
    retry = "" if ended.after_seconds is None else f", again after {ended.after_seconds:g} s"
    output.note(f"{ended.how.value.replace('_', ' ')}{code}{retry}")
    for line in in_a_sentence(ended.message, ended.remedy).splitlines():
        output.note(f"    {line}")
