"""`pagemill batch`: list, show and change batches."""

from __future__ import annotations

import json
import shlex

import click

from worker_service.base.clock import wall_clock
from worker_service.base.humanize import counted
from worker_service.base.sanitize import as_json
from worker_service.cli import VerbGroup, output
from worker_service.cli.context import (
    BatchId,
    Invocation,
    confirm,
    confirmation_options,
    number_option,
    owners_option,
    status_option,
    verb,
)
from worker_service.cli.job_control import show_refusals
from worker_service.jobs.batches import BatchAdded, BatchMoved, BatchState
from worker_service.services import batches as operations
from worker_service.services.batches import BatchDetails, describe_progress, titled_progress
from worker_service.services.serialize import as_object

_COLUMNS = ("ID", "STATE", "OWNER", "NAME", "FILES", "FAILED", "PAGES", "PRIORITY", "STARTED", "NOTE")

_batch_argument = click.argument("batch_id", metavar="BATCH", type=BatchId())


@verb
@status_option([*BatchState])
@owners_option("batches")
@number_option("--limit", "limit", 50, "Number of batches.")
@click.option("--before", "before_id", type=BatchId(), metavar="ID", help="Next page: batches with smaller ids.")
def ls(call: Invocation, statuses: tuple[str, ...], owners: tuple[str, ...], limit: int, before_id: int | None) -> None:
    """\b
    pagemill batch ls
    pagemill batch ls --owner alice --status active,waiting

    List batches, newest first, with the number of files that are read or failed, and of pages. A + means that more
    files may be found. A batch that ended with failures is shown as finished; to find it: --status failed.
    """
    page = operations.list_batches(call.session, owners=owners, states=statuses, limit=limit, before_id=before_id)
    if call.print_if_json(page):
        return
    if not page.items:
        has_filters = owners or statuses or before_id is not None
        output.note("no batch matches" if has_filters else "there are no batches yet: pagemill add reports/")
        return
    output.show_table(_COLUMNS, list(map(_batch_cells, page.items)), drop_first=("NOTE", "STARTED", "PRIORITY"))
    if page.next is not None:
        output.note(f"for more, add --before {page.next}")


@verb
@_batch_argument
def show(call: Invocation, batch_id: int) -> None:
    """\b
    pagemill batch show 7
    pagemill batch show 7 --json

    Show everything about one batch: its request, state and progress.
    """
    details = operations.get_batch_details(call.session, batch_id)
    if call.print_if_json(details):
        return
    output.show(titled_progress(details))
    output.show()
    output.show_values(_facts_of(details))
    next_step = _next_step(details)
    if next_step:
        output.note(next_step)


@verb
@_batch_argument
def stop(call: Invocation, batch_id: int) -> None:
    """\b
    pagemill batch stop 7

    Stop a batch: start none of its jobs, and return running ones to the queue after the current page. Jobs that do not
    stop within the grace period are killed. Nothing is lost, and no retry is spent.
    """
    batch = operations.stop_batch(call.session, batch_id)
    if not call.print_if_json(batch):
        output.show(f"stopped {batch.title}")
        output.note(f"to continue: pagemill batch resume {batch.id}")


@verb
@_batch_argument
def resume(call: Invocation, batch_id: int) -> int:
    """\b
    pagemill batch resume 7

    Continue a batch that was stopped or replaced, and retry its failed and cancelled jobs. No file is downloaded twice,
    and no page read twice. With owner_policy = "replace", the owner's other active batch waits until this one ends.
    """
    _note_batches_replaced_by(call, batch_id)
    resumed = operations.resume_batch(call.session, batch_id)
    retries = f", retrying {counted(len(resumed.job_ids), 'job')}" if resumed.job_ids else ""
    return _show_continued_batch(call, resumed, f"continues{retries}")


@verb
@_batch_argument
def retry(call: Invocation, batch_id: int) -> int:
    """\b
    pagemill batch retry 7

    Retry the failed jobs of a batch, with all their retries. A batch that has ended becomes active again.
    """
    _note_batches_replaced_by(call, batch_id)
    retried = operations.retry_batch(call.session, batch_id)
    if not retried.job_ids and not retried.refused and not call.as_json:
        output.note(f"no job of {retried.batch.title} has failed; nothing changed")
        return 0
    return _show_continued_batch(call, retried, f"retries {counted(len(retried.job_ids), 'job')}")


@verb
@_batch_argument
@confirmation_options
def cancel(call: Invocation, batch_id: int, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill batch cancel 7
    pagemill batch cancel 7 --dry-run

    Cancel all remaining jobs of a batch, and stop it. Documents that are read stay. Documents that were being read fail
    (CANCELLED) until `pagemill batch resume 7` continues them.
    """
    details = operations.get_batch_details(call.session, batch_id)
    live_jobs = details.progress.jobs - details.progress.jobs_ended
    jobs_of_batch = f"{counted(live_jobs, 'job')} of {details.batch.title}"
    if dry_run:
        call.show_result({"dry_run": True, "batch": batch_id, "jobs": live_jobs}, f"would cancel {jobs_of_batch}")
        return
    if live_jobs and not details.batch.state.is_ended:
        confirm(f"Cancel {jobs_of_batch}?", yes=yes, sample=[describe_progress(details)])
    cancelled = operations.cancel_batch(call.session, batch_id)
    if call.print_if_json(cancelled):
        return
    output.show(f"cancelled {counted(len(cancelled.job_ids), 'job')} of {cancelled.batch.title}")
    if cancelled.asked:
        output.show(f"asked {counted(len(cancelled.asked), 'job')} to stop")
    output.note(f"to continue: pagemill batch resume {batch_id}")


@verb
@_batch_argument
@confirmation_options
def rm(call: Invocation, batch_id: int, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill batch rm 7
    pagemill batch rm 7 --yes

    Delete the record of a batch that has ended. Its jobs and documents stay. To delete the documents, too, first run
    `pagemill documents rm --batch 7`.
    """
    details = operations.get_batch_details(call.session, batch_id)
    description = f"{details.batch.title} ({details.batch.state.word}, {counted(details.progress.files, 'file')})"
    if dry_run:
        call.show_result({"dry_run": True, **as_object(details)}, f"would delete {description}")
        return
    confirm(f"Delete {description}? This cannot be undone.", yes=yes)
    batch = operations.remove_batch(call.session, batch_id)
    call.show_result(batch, f"deleted {batch.title}; its jobs and documents stay")


batch = VerbGroup(
    "batch",
    "\b\npagemill batch ls\npagemill batch stop 7\npagemill batch resume 7\npagemill wait batch:7 --progress\n\n"
    "List, stop and resume batches. `pagemill add` starts one.",
    *(ls, show, stop, resume, retry, cancel, rm),
    module_by_hidden_verb={"add": "add"},
    prefix="batch ",
)


def note_added_batch(call: Invocation, added: BatchAdded) -> None:
    if call.as_json:
        return
    batch = added.batch
    if batch.state is BatchState.STOPPED:
        output.note(f"{batch.title} is stopped: pagemill batch resume {batch.id}")
    elif batch.replaced_by is not None:
        output.note(f"{batch.title} resumes when batch {batch.replaced_by} ends; now: pagemill batch resume {batch.id}")
    elif batch.state is BatchState.WAITING:
        owner = shlex.quote(batch.owner)
        output.note(f"{batch.title} waits for the owner's other batch: pagemill batch ls --owner {owner}")
    else:
        output.note(f"{batch.title}: pagemill wait batch:{batch.id} --progress")


def note_replaced_batches(call: Invocation, owner: str, *, by: int | None = None) -> None:
    """Name the batches that will wait for a new batch, or for the batch `by`."""
    if call.as_json:
        return
    for replaced in operations.batches_to_replace(call.session, owner, by=by):
        output.note(f"replaces {titled_progress(replaced)}; it resumes when the new batch ends")


def _note_batches_replaced_by(call: Invocation, batch_id: int) -> None:
    details = operations.get_batch_details(call.session, batch_id)
    # A batch that is active or has nothing left to do replaces no other.
    is_idle = details.batch.state is not BatchState.ACTIVE
    has_work_left = details.progress.jobs_failed or not details.batch.state.is_ended
    if is_idle and has_work_left:
        note_replaced_batches(call, details.batch.owner, by=batch_id)


def _show_continued_batch(call: Invocation, change: BatchMoved, outcome: str) -> int:
    exit_code = 1 if change.refused else 0
    if call.print_if_json(change):
        return exit_code
    is_waiting = change.batch.state is BatchState.WAITING
    output.show(f"{change.batch.title} {'waits for its turn' if is_waiting else outcome}")
    show_refusals(change.refused)
    return exit_code


def _facts_of(details: BatchDetails) -> dict[str, object]:
    batch, progress, request = details.batch, details.progress, json.loads(details.batch.asked)
    sources = request.pop("sources", ())
    files = {
        "read": progress.files_ended - progress.files_failed - progress.files_cancelled,
        "failed": progress.files_failed,
        "cancelled": progress.files_cancelled,
        "to read": progress.files - progress.files_ended,
    }
    pages = [f"{progress.pages_read:,} read"] if progress.pages_read else []
    if progress.pages_left is not None and not batch.state.is_ended:
        pages = [f"{progress.pages_read:,} read", f"{progress.pages_left:,} to read"]
    return {
        "state": batch.note or batch.state.word,
        "owner": batch.owner,
        "added (UTC)": output.whole_seconds(batch.created_at),
        "ended (UTC)": output.whole_seconds(batch.ended_at),
        "sources": [source if isinstance(source, str) else as_json(source) for source in sources],
        "options": as_json(request) if request else "",
        "files": [f"{number:,} {word}" for word, number in files.items() if number],
        "pages": pages,
        "originals": output.format_size(progress.size) if progress.size else "",
        "priority": batch.priority,
        "jobs": [f"{number:,} {status}" for status, number in progress.by_job_status.items() if number],
        "when it has ended": as_json(json.loads(batch.actions)) if batch.actions != "[]" else "",
    }


def _next_step(details: BatchDetails) -> str:
    batch, progress = details.batch, details.progress
    if batch.state is BatchState.STOPPED:
        return f"to continue: pagemill batch resume {batch.id}"
    if batch.replaced_by is not None:
        return f"it resumes when batch {batch.replaced_by} ends; now: pagemill batch resume {batch.id}"
    if batch.state is BatchState.WAITING:
        return f"batches before it: pagemill batch ls --owner {shlex.quote(batch.owner)} --status active"
    if progress.files_failed or progress.jobs_failed:
        return f"failures: pagemill ls --batch {batch.id} --status failed; to retry: pagemill batch retry {batch.id}"
    return ""


def _batch_cells(details: BatchDetails) -> tuple[object, ...]:
    batch, progress = details.batch, details.progress
    more = "+" if progress.may_find_more else ""
    files = f"{progress.files_ended}/{progress.files}{more}" if progress.files else None
    failed = progress.files_failed or progress.jobs_failed or None
    started = output.short_time(batch.created_at, now=wall_clock())
    return (
        batch.id, batch.state.word, batch.owner, batch.name, files, failed, progress.pages_read or None, batch.priority,
        started, batch.note,
    )  # fmt: skip
