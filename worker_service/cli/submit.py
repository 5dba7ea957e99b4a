"""Options and submission of documents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading.find_files import LeftOut, in_words
from job_handlers.reading.requests import QUALITIES, ReadOptions
from worker_service.base.errors import BadInput
from worker_service.cli import output
from worker_service.cli.batches import report_batch, report_replaced
from worker_service.cli.context import BatchId, Function, Invocation
from worker_service.jobs.batches import BatchAdded, BatchState, InBatch
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.services import batches, enqueue
from worker_service.services.batches import PRIORITY
from worker_service.services.notifications import channel_warnings, read_address

_LEFT_OUT_SHOWN_MAX = 10
_NAME_CHARACTERS_MAX = 60


class Submission(Struct, frozen=True, kw_only=True):
    """Options of a submission, except those for reading."""

    owner: str = ""
    title: str = ""
    batch: str | None = None
    """Name of a new batch, or number of an unfinished one."""
    batch_id: int | None = None
    priority: int | None = None
    notify: str = ""
    then_batch: tuple[str, ...] = ()
    is_waiting: bool = False
    timeout: str | None = None
    dry_run: bool = False

    @property
    def urgency(self) -> int:
        return self.priority or PRIORITY


_SUBMISSION_OPTIONS = {
    "owner": click.option("--owner", default="", metavar="NAME", help="Owner of the documents."),
    "title": click.option(
        "--name", "title", default="", metavar="NAME", help="Name of the batch. Default: that of the first source."
    ),
    "batch": click.option(
        "--batch", metavar="NAME|N", help="Submit as a new batch with this name, or add to unfinished batch N."
    ),
    "batch_id": click.option("--batch", "batch_id", type=BatchId(), metavar="N", help="Add to this unfinished batch."),
    "notify": click.option(
        "--notify", default="", metavar="ADDRESS", help="Send a message at the end: me, ann@example.com, https://…"
    ),
    "then_batch": click.option(
        "--then-batch", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when the batch has ended."
    ),
    "priority": click.option(
        "--priority",
        type=click.IntRange(1, 10),
        metavar="1-10",
        help=f"1 is the highest. Also applies to follow-up jobs. Default: {PRIORITY}.",
    ),
    "is_waiting": click.option(
        "--wait", "is_waiting", is_flag=True, help="Show the progress and wait until everything is read."
    ),
    "timeout": click.option("--timeout", metavar="LENGTH", help="With --wait: give up after this time, such as 10m."),
    "dry_run": click.option(
        "--dry-run", is_flag=True, help="Show how much there is to read and about how long it takes; submit nothing."
    ),
}


def submission_options(*names: str) -> Callable[[Function], Function]:

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(call: Invocation, *arguments: Any, **values: Any) -> Any:
            submission = Submission(**{name: values.pop(name) for name in names})
            if submission.timeout is not None and not submission.is_waiting:
                raise BadInput("--timeout works only with --wait", "add --wait")
            if submission.is_waiting and submission.dry_run:
                raise BadInput(
                    "--dry-run submits nothing, so there is nothing to wait for", "leave out --wait or --dry-run"
                )
            return function(call, *arguments, submission=submission, **values)

        for name in reversed(names):
            _SUBMISSION_OPTIONS[name](run)
        return run

    return decorate


force_option = click.option("--force", is_flag=True, help="Read files again that were read and have not changed.")
tag_option = click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Tag the documents with this word, such as invoice."
)
credential_option = click.option(
    "--credential", default="", metavar="NAME", help="Credential for Google Drive. Default: drive."
)
_MIME = click.option(
    "--mime",
    multiple=True,
    metavar="TYPE",
    help="In folders, only files of this type: application/pdf, image/*. Default: all readable types.",
)
_MAX_SIZE = click.option(
    "--max-size", "size_max", type=click.IntRange(1), metavar="BYTES", help="In folders, only files up to this size."
)
_SINCE = click.option(
    "--since",
    "newer_than",
    metavar="TIME",
    help="In folders, only files changed since 2h or 3d (ago), or since a time such as 2026-01-31.",
)
_NEWER_THAN = click.option("--newer-than", "newer_than", metavar="DATE", hidden=True)
_DEPTH = click.option(
    "--depth", type=click.IntRange(0), metavar="N", help="Levels of subfolders; 0: none. Default: all."
)


def folder_options(pattern_flag: str) -> Callable[[Function], Function]:
    pattern = click.option(
        pattern_flag, "name", metavar="PATTERN", help="In folders, only files with such names: '*report*.pdf'."
    )

    def decorate(function: Function) -> Function:
        for option in (_DEPTH, _NEWER_THAN, _SINCE, _MAX_SIZE, pattern, _MIME):
            option(function)
        return function

    return decorate


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
    click.option(
        "--password-file",
        metavar="FILE",
        help="Read the password from this file or credential. All files get it.",
    ),
    click.option("--then", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when a document is read."),
    click.option("--on-failure", multiple=True, metavar="TYPE[=JSON]", help="Enqueue this job when reading fails."),
)


def read_options(kind: type[ReadOptions]) -> Callable[[Function], Function]:
    """Add the reading options to a verb, which declares the other options of the class itself."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(call: Invocation, *arguments: Any, **values: Any) -> Any:
            options = kind(**{name: values.pop(name) for name in kind.__struct_fields__ if name in values})
            for action in options.actions():
                enqueue.check_action_payload(call.session, action)
            lacking = enqueue.missing_capability_warnings(call.session, options.reading_settings())
            for sentence in [*lacking, *enqueue.unknown_type_warnings(call.session, options.actions())]:
                output.say(sentence)
            return function(call, *arguments, options=options, **values)

        for option in reversed(_READ_OPTIONS):
            option(run)
        return run

    return decorate


# ── Submission ──


def start_batch(
    call: Invocation,
    jobs: Sequence[NewJob],
    submission: Submission,
    *,
    asked: Mapping[str, object],
    actions: Sequence[Mapping[str, Any]] = (),
) -> BatchAdded:
    notify = read_address(call.session, submission.notify, owner=submission.owner)
    for sentence in channel_warnings(call.session, notify):
        output.say(sentence)
    report_replaced(call, submission.owner)
    added = batches.add_batch(
        call.session,
        jobs,
        owner=submission.owner,
        name=submission.title,
        priority=submission.urgency,
        asked=asked,
        actions=actions,
        notify=notify,
    )
    if not submission.is_waiting or added.batch.state is not BatchState.ACTIVE:
        report_batch(call, added)
    return added


def extend_batch(call: Invocation, number: int, jobs: Sequence[NewJob], submission: Submission) -> BatchAdded:
    urgent = [replace(one, priority=submission.priority) for one in jobs]
    added = batches.extend_batch(call.session, number, urgent, owner=submission.owner)
    report_batch(call, added)
    return added


def submit(
    call: Invocation, jobs: Sequence[NewJob], submission: Submission, *, name: str | None, asked: Mapping[str, object]
) -> tuple[Sequence[Enqueued | InBatch], BatchAdded | None]:
    """Submit jobs. Without --batch, `name` starts a batch if any job is new; None starts no batch."""
    if submission.batch is not None:
        number = _batch_number(submission.batch)
        if number is not None:
            added = extend_batch(call, number, jobs, submission)
        else:
            added = start_batch(call, jobs, replace(submission, title=submission.batch), asked=asked)
        return added.jobs, added
    if name is None:
        return enqueue.enqueue_jobs(call.session, [replace(one, priority=submission.urgency) for one in jobs]), None
    prepared = batches.prepare_submission(call.session, jobs)
    if prepared.work.new:
        report_replaced(call, submission.owner)
    done = batches.submit_batch(
        call.session,
        prepared,
        owner=submission.owner,
        name=shorten_name(name),
        priority=submission.urgency,
        asked=asked,
    )
    for one in done.waiting if not call.as_json else ():
        output.say(f"{one.title} already includes some of this; to start it now: pagemill batch resume {one.id}")
    if done.added is not None:
        report_batch(call, done.added)
    return done.items, done.added


def shorten_name(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else f"…{name[1 - _NAME_CHARACTERS_MAX :]}"


def _batch_number(word: str) -> int | None:
    """Return the number in `7` or `batch:7`; None for a name."""
    if not word.strip():
        raise BadInput("--batch is empty", "give the name of a new batch, or the number of an unfinished one")
    digits = word.removeprefix("batch:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def say_what_is_left_out(call: Invocation, left_out: LeftOut) -> None:
    if not left_out.counts or call.as_json:
        return
    output.say(f"skipped: {in_words(left_out.counts)}")
    for one in left_out.files[:_LEFT_OUT_SHOWN_MAX]:
        output.say(f"  {one['path']}")
    if (more := left_out.counts.total() - _LEFT_OUT_SHOWN_MAX) > 0:
        output.say(f"  … and {more:,} more; --json lists up to 1,000")


def report_waiting(call: Invocation, jobs: Sequence[Enqueued | InBatch]) -> None:
    """Say why the first job does not start at once."""
    job_id = next((one.job_id for one in jobs if one.job_id), None)
    for gate in () if job_id is None else call.session.gates.explain(job_id):
        if gate.code == "WORKER_DOWN":
            output.say(f"no daemon is running, so nothing is read yet; to start one: {call.settings.start_command}")
        else:
            output.say(f"job {job_id} waits: {gate.detail} ({gate.code}); what to do: pagemill why {job_id}")
