"""`pagemill batch`: list, stop and resume batches."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import ClassVar

import click

from worker_service.base.clock import wall_clock
from worker_service.base.humanize import counted
from worker_service.cli import Verbs, group, output
from worker_service.cli.context import BatchId, Invocation, completes, confirm, confirming, status_option, verb
from worker_service.jobs.batches import Batch, BatchAdded, BatchMoved, BatchState
from worker_service.services import batches as operations
from worker_service.services.batches import BatchDetails, describe_progress, titled_progress
from worker_service.services.serialize import as_object

_COLUMNS = ("ID", "STATE", "OWNER", "NAME", "FILES", "FAILED", "PAGES", "PRIORITY", "BEGAN", "NOTE")
_REFUSALS_SHOWN = 10

_one = click.argument("batch_id", metavar="BATCH", type=BatchId())


@verb
@status_option([*BatchState])
@click.option("--owner", "owners", multiple=True, metavar="NAME", shell_complete=completes("owner"))
@click.option("--limit", type=click.IntRange(1, 1000), default=50, metavar="N", help="50 unless given.")
@click.option("--before", "before_id", type=BatchId(), metavar="ID", help="The next page: smaller ids.")
def ls(call: Invocation, statuses: tuple[str, ...], owners: tuple[str, ...], limit: int, before_id: int | None) -> None:
    """\b
    pagemill batch ls
    pagemill batch ls --owner alice --status active,waiting

    List batches, the newest first: how many files of each have been read or failed, and how many pages. A + means that
    more files may be found. "finished" is a batch that ended with failures: --status failed.
    """
    page = operations.list_batches(call.session, owners=owners, states=statuses, limit=limit, before_id=before_id)
    if call.printed_json(page):
        return
    if not page.items:
        chosen = owners or statuses or before_id is not None
        output.say("no batch is like that" if chosen else "there is no batch yet: pagemill batch add reports/")
        return
    output.show_table(_COLUMNS, [_row(one) for one in page.items], gives_up=("NOTE", "BEGAN", "PRIORITY"))
    if page.next is not None:
        output.say(f"more: the same with --before {page.next}")


@verb
@_one
def show(call: Invocation, batch_id: int) -> None:
    """\b
    pagemill batch show 7
    pagemill batch show 7 --json

    Everything about one batch: what was asked for, why it is in its state, and how far it is.
    """
    found = operations.get_batch_details(call.session, batch_id)
    if call.printed_json(found):
        return
    output.show(titled_progress(found))
    output.show()
    whole = as_object(found)
    times = {"created_at": output.seconds(found.batch.created_at), "ended_at": output.seconds(found.batch.ended_at)}
    output.show_values(_in_lines(whole["batch"] | times))
    output.show()
    paces = {name: whole["progress"][name] for name in ("pages_a_minute", "seconds_left")}
    rounded = {name: "" if value is None else f"{value:.0f}" for name, value in paces.items()}
    output.show_values(_in_lines(whole["progress"] | rounded))
    for sentence in _moves(found):
        output.say(sentence)


@verb
@_one
def stop(call: Invocation, batch_id: int) -> None:
    """\b
    pagemill batch stop 7

    Start nothing more of a batch, and let what runs of it come back: the page that is being read is kept. What does not
    stop within the grace period is stopped by force. Nothing is lost, and no retry is spent.
    """
    batch = operations.stop_batch(call.session, batch_id)
    if not call.printed_json(batch):
        output.show(f"stopped {batch.title}")
        output.say(f"to go on with it: pagemill batch resume {batch.id}")


@verb
@_one
def resume(call: Invocation, batch_id: int) -> int:
    """\b
    pagemill batch resume 7

    Resume a batch that was stopped or replaced, and retry what failed or was cancelled in it. No file is fetched again,
    and no page read again. With owner_policy = "replace" the owner's other active batch waits until it ends.
    """
    _say_what_is_replaced_by(call, batch_id)
    return _show_moved(call, operations.resume_batch(call.session, batch_id), "goes on")


@verb
@_one
def retry(call: Invocation, batch_id: int) -> int:
    """\b
    pagemill batch retry 7

    Try again what failed in a batch, and only that, with a fresh budget of retries. One that has ended begins again.
    """
    _say_what_is_replaced_by(call, batch_id)
    moved = operations.retry_batch(call.session, batch_id)
    if not moved.job_ids and not moved.refused and not call.as_json:
        output.say(f"nothing of {moved.batch.title} has failed so far: it goes on as it did")
        return 0
    return _show_moved(call, moved, "tries again")


@verb
@_one
@confirming
def cancel(call: Invocation, batch_id: int, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill batch cancel 7
    pagemill batch cancel 7 --dry-run

    Cancel all that is left to do of a batch; it is then stopped. What has been read stays. Documents that were being
    read are failed (CANCELLED), until `pagemill batch resume 7` has them read on.
    """
    found = operations.get_batch_details(call.session, batch_id)
    left = found.progress.jobs - found.progress.jobs_ended
    if dry_run:
        if not call.printed_json({"dry_run": True, "batch": batch_id, "jobs": left}):
            output.show(f"would cancel {output.jobs(left)} of {found.batch.title}")
        return 0
    if left and not found.batch.state.is_ended:
        confirm(f"Cancel {output.jobs(left)} of {found.batch.title}?", yes=yes, sample=[describe_progress(found)])
    moved = operations.cancel_batch(call.session, batch_id)
    if call.printed_json(moved):
        return 0
    output.show(f"cancelled {output.jobs(len(moved.job_ids))} of {moved.batch.title}")
    if moved.asked:
        output.show(f"asked {output.jobs(len(moved.asked))} to stop")
    output.say(f"to go on with it: pagemill batch resume {batch_id}")
    return 0


@verb
@_one
@confirming
def rm(call: Invocation, batch_id: int, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill batch rm 7
    pagemill batch rm 7 --yes

    Forget a batch of which nothing is left to do. Its jobs and its documents stay: `pagemill documents rm --batch 7`,
    said before, removes those.
    """
    found = operations.get_batch_details(call.session, batch_id)
    files = counted(found.progress.files, "file")
    if dry_run:
        if not call.printed_json({"dry_run": True, **as_object(found)}):
            output.show(f"would forget {found.batch.title} ({found.batch.state.word}, {files})")
        return
    confirm(f"Forget {found.batch.title} ({found.batch.state.word}, {files})? Nothing brings it back.", yes=yes)
    batch = operations.remove_batch(call.session, batch_id)
    if not call.printed_json(batch):
        output.show(f"forgot {batch.title}; its jobs and documents stay")


class _Batches(Verbs):
    begins = "batch "
    imported_later: ClassVar = {"add": "batch_add"}


batch = group(
    "batch",
    "\b\npagemill batch add reports/ https://example.org/report.pdf --owner alice --name reports\n"
    "pagemill batch ls\npagemill batch stop 7\npagemill batch resume 7\npagemill wait batch:7 --progress\n\n"
    "What was submitted together: jobs and documents, with all that comes of them.",
    *(ls, show, stop, resume, retry, cancel, rm),
    cls=_Batches,
)


def say_of_batch(call: Invocation, added: BatchAdded) -> None:
    """In which batch what was asked for is, and what holds it."""
    batch = added.batch
    if batch.state is BatchState.STOPPED:
        output.say(f"{batch.title} is stopped: pagemill batch resume {batch.id}")
    elif batch.replaced_by is not None:
        output.say(f"{batch.title} resumes when batch {batch.replaced_by} ends; now: pagemill batch resume {batch.id}")
    elif batch.state is BatchState.WAITING:
        output.say(f"{batch.title} waits for the owner's other batch: pagemill batch ls --owner {_owner(batch)}")
    else:
        output.say(f"{batch.title}: pagemill wait batch:{batch.id} --progress")


def say_what_is_replaced(call: Invocation, owner: str, *, by: int | None = None) -> None:
    """Say before a new batch, or the batch `by`, starts which batches of the owner will wait for it."""
    if call.as_json:
        return
    for other in operations.batches_to_replace(call.session, owner, by=by):
        output.say(f"replaces {titled_progress(other)}; it resumes when the new batch ends")


def _say_what_is_replaced_by(call: Invocation, batch_id: int) -> None:
    found = operations.get_batch_details(call.session, batch_id)
    is_idle = found.batch.state is not BatchState.ACTIVE
    if is_idle and (found.progress.jobs_failed or not found.batch.state.is_ended):
        say_what_is_replaced(call, found.batch.owner, by=batch_id)


def _show_moved(call: Invocation, moved: BatchMoved, what: str) -> int:
    exit_code = 1 if moved.refused else 0
    if call.printed_json(moved):
        return exit_code
    again = f", with {output.jobs(len(moved.job_ids))} again" if moved.job_ids else ""
    waits = moved.batch.state is BatchState.WAITING
    output.show(f"{moved.batch.title} {'waits its turn' if waits else what}{again}")
    for job_id, reason in list(moved.refused.items())[:_REFUSALS_SHOWN]:
        output.say(f"job {job_id}: {reason}")
    if len(moved.refused) > _REFUSALS_SHOWN:
        output.say(f"… and {len(moved.refused) - _REFUSALS_SHOWN:,} more")
    return exit_code


def _owner(batch: Batch) -> str:
    return shlex.quote(batch.owner)


def _in_lines(values: Mapping[str, object]) -> dict[str, object]:
    """What holds other things as JSON; counts as ``3 pending, 70 completed``."""
    lines = dict(values)
    for name, value in values.items():
        if isinstance(value, dict):
            is_counts = name.startswith("by_")
            lines[name] = [f"{number:,} {word}" for word, number in value.items()] if is_counts else _json(value)
        elif isinstance(value, list):
            lines[name] = [_json(one) for one in value]
    return lines


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if value else ""


def _moves(found: BatchDetails) -> list[str]:
    """What somebody may want to do next."""
    batch, now = found.batch, found.progress
    if batch.state is BatchState.STOPPED:
        return [f"to go on with it: pagemill batch resume {batch.id}"]
    if batch.replaced_by is not None:
        return [f"it resumes when batch {batch.replaced_by} ends; to start it now: pagemill batch resume {batch.id}"]
    if batch.state is BatchState.WAITING:
        return [f"what is before it: pagemill batch ls --owner {_owner(batch)} --status active"]
    if now.files_failed or now.jobs_failed:
        return [f"what failed: pagemill ls --batch {batch.id} --status failed; again: pagemill batch retry {batch.id}"]
    return []


def _row(one: BatchDetails) -> tuple[object, ...]:
    batch, now = one.batch, one.progress
    more = "+" if now.may_find_more else ""
    files = f"{now.files_ended}/{now.files}{more}" if now.files else None
    began = output.when(batch.created_at, now=wall_clock())
    return (
        batch.id, batch.state.word, batch.owner, batch.name, files, now.files_failed or now.jobs_failed or None,
        now.pages_read or None, batch.priority, began, batch.note,
    )  # fmt: skip
