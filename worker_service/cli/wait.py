"""`pagemill wait`: wait for jobs, batches or documents."""

from __future__ import annotations

import sys

import click

from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.cli import output
from worker_service.cli.context import Invocation, job_selector_options, verb
from worker_service.cli.progress import Display, await_batches, await_reading, watch_jobs
from worker_service.cli.waiting import wait_for_jobs
from worker_service.jobs.selector import Selector


@verb
@job_selector_options
@click.option("--timeout", metavar="LENGTH", help="Give up after this time, such as 30s or 10m.")
@click.option("--follow", is_flag=True, help="Also wait for the jobs that these jobs create.")
@click.option("--progress", is_flag=True, help="Show the progress: bars on a terminal, else a line every 10 s.")
def wait(call: Invocation, selector: Selector, timeout: str | None, follow: bool, progress: bool) -> int:
    """\b
    pagemill wait 42
    pagemill wait 41 42 43 --timeout 10m
    pagemill wait batch:7 --progress && echo done
    pagemill wait 3 --follow
    pagemill wait document:7 --progress
    pagemill wait $(pagemill enqueue download --set source=/srv/a.pdf)

    Wait until jobs have ended, a batch has ended with everything in it, or documents have been read.

    Jobs named by id or batch count in any status; other selectors choose the jobs that are live now. The
    progress goes to stderr.

    Exit code 0 if all completed, 1 if some failed or were cancelled, 124 after the timeout.
    """
    names_only_batches = selector == Selector(batch_ids=selector.batch_ids)
    if selector.batch_ids and names_only_batches:
        return await_batches(call, selector.batch_ids, timeout=timeout, is_watched=progress)
    if selector.document_ids:
        return _wait_for_documents(call, selector, timeout=timeout, is_watched=progress)
    watch = watch_jobs(Display(sys.stderr if progress else None))
    result = wait_for_jobs(call.session, selector, timeout=timeout, watch=watch, with_follow_ups=follow)
    exit_code = 0 if result.have_all_completed else 1
    if call.print_if_json(result):
        return exit_code
    counts = {name: getattr(result, name) for name in ("completed", "failed", "cancelled", "gone")}
    output.show(", ".join(f"{number} {word}" for word, number in counts.items() if number) or "no live job matches")
    if result.going_on:
        output.note(f"{counted(result.going_on, 'follow-up job')} still live; --follow waits for them, too")
    return exit_code


def _wait_for_documents(call: Invocation, selector: Selector, *, timeout: str | None, is_watched: bool) -> int:
    if selector != Selector(document_ids=selector.document_ids):
        raise BadInput("documents and jobs cannot be awaited together", "pagemill wait document:7 document:8")
    awaited = [call.session.library.document(document_id) for document_id in selector.document_ids]
    return await_reading(call, awaited, timeout=timeout, is_watched=is_watched)
