"""Options and submission, shared by the verbs that submit documents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from msgspec.structs import replace

from job_handlers.reading.find_files import LeftOut, in_words
from job_handlers.reading.requests import QUALITIES, ReadOptions
from worker_service.base.errors import BadInput
from worker_service.cli import output
from worker_service.cli.batches import report_batch, report_replaced
from worker_service.cli.context import Function, Invocation
from worker_service.jobs.batches import BatchAdded, InBatch
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.services import batches, enqueue
from worker_service.services.batches import PRIORITY

_LEFT_OUT_SHOWN_MAX = 10
_NAME_CHARACTERS_MAX = 60

priority_option = click.option(
    "--priority",
    type=click.IntRange(1, 10),
    metavar="1-10",
    help=f"1 is the highest. Also applies to follow-up jobs. Default: {PRIORITY}.",
)
batch_option = click.option(
    "--batch", metavar="NAME|N", help="Submit as a new batch with this name, or add to unfinished batch N."
)
owner_option = click.option("--owner", default="", metavar="NAME", help="Owner of the documents.")
tag_option = click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Tag the documents with this word, such as invoice."
)
credential_option = click.option(
    "--credential", default="", metavar="NAME", help="Credential for Google Drive. Default: drive."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show how much there is to read and about how long it takes; submit nothing."
)
timeout_option = click.option("--timeout", metavar="LENGTH", help="With --wait: give up after this time, such as 10m.")

_READ_OPTIONS = (
    click.option("--as-usual", is_flag=True, help="Forget the document's remembered reading settings."),
    click.option(
        "--lang",
        "languages",
        multiple=True,
        metavar="CODE",
        help="OCR language, such as eng+deu. Default: detected for each page.",
    ),
    click.option("--quality", type=click.Choice(QUALITIES), help="OCR quality; better is slower."),
    click.option("--force-ocr", is_flag=True, help="Run OCR on pages with a good text layer, too."),
    click.option("--hocr", is_flag=True, help="Create an hOCR file, too."),
    click.option("--password-file", "password", metavar="NAME", help="Credential with the document's password."),
    click.option("--then", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when a document is read."),
    click.option("--on-failure", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when reading fails."),
)


def read_options(kind: type[ReadOptions]) -> Callable[[Function], Function]:
    """Add the reading options to a verb, whose function receives them, checked, as `options` of this class.

    The verb declares the other options of the class itself.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(call: Invocation, *arguments: Any, **values: Any) -> Any:
            options = kind(**{name: values.pop(name) for name in kind.__struct_fields__ if name in values})
            for action in options.actions():
                enqueue.check_action_payload(call.session, action)
            lacking = enqueue.missing_capability_warnings(call.session, options.asked())
            for sentence in [*lacking, *enqueue.unknown_type_warnings(call.session, options.actions())]:
                output.say(sentence)
            return function(call, *arguments, options=options, **values)

        for option in reversed(_READ_OPTIONS):
            option(run)
        return run

    return decorate


def submit(
    call: Invocation,
    submitted: Sequence[NewJob],
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
    items: Sequence[Enqueued | InBatch]
    added: BatchAdded | None = None
    if batch is not None and (number := _batch_number(batch)) is not None:
        urgent = [replace(one, priority=priority) for one in submitted]
        added = batches.extend_batch(call.session, number, urgent, owner=owner)
        items = added.jobs
    elif batch is not None:
        report_replaced(call, owner)
        added = batches.add_batch(call.session, submitted, owner=owner, name=batch, priority=urgency, asked=asked)
        items = added.jobs
    elif name is not None:
        submission = batches.prepare_submission(call.session, submitted)
        if submission.work.new:
            report_replaced(call, owner)
        title = name if len(name) <= _NAME_CHARACTERS_MAX else f"…{name[1 - _NAME_CHARACTERS_MAX :]}"
        done = batches.submit_batch(call.session, submission, owner=owner, name=title, priority=urgency, asked=asked)
        items, added = done.items, done.added
        for one in done.waiting if not call.as_json else ():
            output.say(f"{one.title} already includes some of this; to start it now: pagemill batch resume {one.id}")
    else:
        items = enqueue.enqueue_jobs(call.session, [replace(one, priority=urgency) for one in submitted])
    if added is not None:
        report_batch(call, added)
    return items, added


def refuse_timeout_without_wait(timeout: str | None, *, is_waiting: bool, is_dry_run: bool) -> None:
    if timeout is not None and not is_waiting:
        raise BadInput("--timeout works only with --wait", "add --wait")
    if is_waiting and is_dry_run:
        raise BadInput("--dry-run submits nothing, so there is nothing to wait for", "leave out --wait or --dry-run")


def say_what_is_left_out(call: Invocation, left_out: LeftOut) -> None:
    if not left_out.counts or call.as_json:
        return
    output.say(f"skipped: {in_words(left_out.counts)}")
    for one in left_out.files[:_LEFT_OUT_SHOWN_MAX]:
        output.say(f"  {one['path']}")
    if (more := left_out.counts.total() - _LEFT_OUT_SHOWN_MAX) > 0:
        output.say(f"  … and {more:,} more; --json lists up to 1,000")


def report_waiting(call: Invocation, job_id: int) -> None:
    for gate in call.session.gates.explain(job_id):
        output.say(f"job {job_id} waits: {gate.detail} ({gate.code}); what to do: pagemill why {job_id}")


def _batch_number(word: str) -> int | None:
    """Return the number in `7` or `batch:7`; None if the word is a name."""
    if not word.strip():
        raise BadInput("--batch is empty", "give the name of a new batch, or the number of an unfinished one")
    digits = word.removeprefix("batch:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
