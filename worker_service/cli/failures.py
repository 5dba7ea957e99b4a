"""`pagemill failures`: the files that need attention, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

import click

from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import Invocation, JobId, completer, confirm, confirmation_options, number_option, verb
from worker_service.services import failures as operations

_COLUMNS = ("JOB", "WHEN (UTC)", "OWNER", "FILE", "WHAT HAPPENED", "WHAT YOU CAN DO")

_owner_option = click.option("--owner", metavar="NAME", shell_complete=completer("owner"), help="Only this owner's.")
_code_option = click.option("--error", "code", metavar="CODE", help="Only failures with this error code.")


@verb
@_owner_option
@_code_option
@number_option("--limit", "limit", 50, "Number of files.")
def ls(call: Invocation, owner: str | None, code: str | None, limit: int) -> None:
    """\b
    pagemill failures
    pagemill failures ls --error PDF_ENCRYPTED
    pagemill failures dismiss 42

    List the files that need attention: what happened, and what you can do. A retry, a later success and `dismiss`
    remove a file from the list; the next failure brings it back.
    """
    page = operations.list_failures(call.session, owner, code=code, limit=limit)
    reasons = operations.count_failures(call.session, owner)
    if call.print_if_json({"items": page.items, "next": page.next, "reasons": reasons}):
        return
    if not page.items:
        output.note("nothing needs attention")
        return
    rows = [
        (file.job_id, output.whole_seconds(file.at), file.owner or None, file.name, file.happened, file.advice or None)
        for file in page.items
    ]
    output.show_table(_COLUMNS, rows, drop_first=("OWNER", "WHEN (UTC)"), never_cut=("JOB",))
    if len(reasons) > 1:
        output.show_section(("REASON", "FILES"), [(reason.code or None, reason.count) for reason in reasons])
    output.note("details: pagemill show ID; to run them again: pagemill retry --error CODE")


@verb
@click.argument("ids", metavar="[ID]...", nargs=-1, type=JobId(), shell_complete=completer("id"))
@click.option("--all", "is_all", is_flag=True, help="All failures, or all of --owner and --error.")
@_owner_option
@_code_option
@confirmation_options
def dismiss(
    call: Invocation, ids: Sequence[int], is_all: bool, owner: str | None, code: str | None, dry_run: bool, yes: bool
) -> None:
    """\b
    pagemill failures dismiss 42 43
    pagemill failures dismiss --error FILE_EMPTY --all
    pagemill failures dismiss --all --yes

    Remove failures from the list. Their jobs stay failed, and a new failure is listed again. `pagemill undo` lists
    them again.
    """
    has_ids = bool(ids)
    if is_all == has_ids:  # both, or neither
        raise BadInput("name jobs as `pagemill failures` lists them, or give --all")
    job_ids = operations.select_failures(call.session, owner, ids or None, code)
    if dry_run:
        call.show_result({"dry_run": True, "items": job_ids}, f"would dismiss {counted(len(job_ids), 'failure')}")
        return
    if is_all and job_ids:
        confirm(f"Dismiss {counted(len(job_ids), 'failure')}?", yes=yes)
    changed = operations.dismiss_failures(call.session, owner, job_ids=job_ids)
    answer = {"action": changed.action_id, "items": changed.job_ids}
    call.show_result(answer, f"dismissed {counted(len(changed.job_ids), 'failure')}")


failures = DefaultVerbGroup("failures", ls, dismiss)
