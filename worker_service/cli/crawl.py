"""`pagemill crawl`: read a folder, or watch it; `crawl ls`, `crawl now` and `crawl stop` steer what is watched."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.crawl.requests import CrawlOptions, crawl_job, for_batch
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.base.path_text import legible, written
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import (
    Function,
    Invocation,
    completes_directory,
    confirm,
    confirming,
    verb,
)
from worker_service.cli.estimate import count_folder, describe_duration, estimate_duration
from worker_service.cli.submit import (
    Submission,
    credential_option,
    folder_options,
    read_options,
    submission_options,
    submit,
    tag_option,
)
from worker_service.jobs.job import Job, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.services import job_control, jobs
from worker_service.services.job_details import get_job_details

_PRIORITY_OF_WATCHING = 5
"""Lower than that of a folder that a user waits for."""
_LIVE = (Status.PENDING, Status.RUNNING)
_FOLDERS_MAX = 1000


@verb
@click.argument("folder", shell_complete=completes_directory)
@submission_options("owner", "batch", "priority", "dry_run")
@folder_options("--name")
@credential_option
@tag_option
@read_options(CrawlOptions)
@click.option("--reconcile", is_flag=True, help="Rescan the whole folder and detect deleted files.")
@click.option("--watch", metavar="LENGTH", help="Repeat at this interval until stopped, such as 1h.")
def crawl_folder(
    call: Invocation, folder: str, watch: str | None, *, submission: Submission, options: CrawlOptions
) -> int:
    """\b
    pagemill add https://drive.google.com/drive/folders/1a2B3c… --owner alice
    pagemill crawl now /srv/reports

    The earlier form of `pagemill add FOLDER`, for scripts: a folder that is being crawled is not crawled twice, and the
    daemon lists directories, too. Prints the id of a job.
    """
    owner = submission.owner
    asked = crawl_job(folder, options, owner=owner, watch=watch, is_dry_run=submission.dry_run)
    if submission.batch is not None and watch is not None:
        raise BadInput("a watched folder cannot be in a batch, because it never ends", "leave out --watch or --batch")
    if submission.dry_run:
        return _show_dry_run(call, asked)
    if watch is not None:
        submission = replace(submission, priority=submission.priority or _PRIORITY_OF_WATCHING)
    [enqueued], added = submit(
        call,
        [asked if submission.batch is None else for_batch(asked)],
        submission,
        name=legible(folder) if watch is None else None,
        asked={"sources": [legible(folder)], **options.reading_settings(), **options.actions_and_tags(standing=True)},
    )
    of_batch = {} if added is None else {"batch": added.batch.id}
    if not call.printed_json({"id": enqueued.job_id, "existing": enqueued.existing, **of_batch}):
        output.show(str(enqueued.job_id))
    if enqueued.existing and enqueued.job_id is not None:
        _report_existing(call.session.reading.get(enqueued.job_id), asked)
    return 0


def _report_existing(job: Job, asked: NewJob) -> None:
    """Say whether the live crawl of the folder, found instead of a new one, does what was asked for."""
    if not _covers(job, asked):
        output.say(
            f"job {job.id} already crawls this folder with other options; to use the new ones: pagemill cancel "
            f"{job.id}, then repeat this command"
        )
    elif job.run_at is not None and job.status is Status.PENDING:
        next_at = output.to_the_second(job.run_at)
        output.say(
            f"job {job.id} already watches this folder; next run {next_at} UTC; now: pagemill crawl now {job.id}"
        )
    else:
        output.say(f"job {job.id} already crawls this folder")


def _covers(job: Job, asked: NewJob) -> bool:
    """Return whether the job does all that is asked for, even if it also watches the folder."""
    does, wanted = json.loads(job.payload or "{}"), json.loads(asked.payload or "{}")
    if job.source == asked.source:
        # One credential may have several names.
        does["credential"] = wanted["credential"]
    return bool({"watch_seconds": does.get("watch_seconds"), **wanted} == {"watch_seconds": None, **does})


def _show_dry_run(call: Invocation, crawl: NewJob) -> int:
    counts = count_folder(call, crawl)
    size = counts.get("bytes", 0)
    if call.printed_json({**counts, **estimate_duration(call, size)}):
        return 0
    for name in counts.get("would_enqueue", ()):
        output.show(name)
    words = [
        counted(number, "folder") if what == "folders" else f"{number} {what}"
        for what, number in counts.items()
        if what not in ("bytes", "would_enqueue", "dry_run")
    ]
    output.say(", ".join(words) or "nothing found")
    if counts.get("enqueued"):
        output.say(f"{output.size(size)} to download and read; {describe_duration(call, size)}")
    return 0


# ── Watched folders ──


class WatchedFolder(Struct, frozen=True):
    job_id: int
    folder: str
    name: str
    owner: str
    every_seconds: int | None
    """None if the crawl does not repeat."""
    state: str
    next_at: str | None
    """None if the crawl runs, or starts as soon as a slot is free."""
    found: str | None
    """Result of the last run."""


def _folder_arguments(function: Function) -> Function:
    click.option("--owner", metavar="NAME", help="Only folders of this owner.")(function)
    click.option("--all", "everything", is_flag=True, help="All watched folders.")(function)
    return click.argument("folders", metavar="[FOLDER|ID]...", nargs=-1)(function)


@verb
@click.option("--owner", metavar="NAME", help="Only folders of this owner.")
def ls(call: Invocation, owner: str | None) -> None:
    """\b
    pagemill crawl ls
    pagemill crawl ls --owner alice --json

    List folders that are watched or being crawled: the interval, the next run, and what the last run found.
    """
    found = _live_crawls(call, owner)
    if call.printed_json({"items": found}):
        return
    if not found:
        output.say("no folder is watched or being crawled; to watch one: pagemill add FOLDER --watch")
        return
    rows = [
        (
            one.job_id,
            one.state,
            one.name,
            one.owner,
            _interval(one),
            output.to_the_second(one.next_at) or "now",
            one.found,
        )
        for one in found
    ]
    columns = ("JOB", "STATE", "FOLDER", "OWNER", "INTERVAL", "NEXT RUN (UTC)", "FOUND")
    output.show_table(columns, rows, gives_up=("FOUND", "STATE"))


@verb
@_folder_arguments
def now(call: Invocation, folders: Sequence[str], everything: bool, owner: str | None) -> None:
    """\b
    pagemill crawl now /srv/reports
    pagemill crawl now 42
    pagemill crawl now --all

    Crawl watched folders now. The next run follows after the usual interval.
    """
    chosen = _chosen(call, folders, owner, everything=everything)
    brought = job_control.bring_forward(call.session, [one.job_id for one in chosen])
    if call.printed_json({"items": [{"id": one.job_id, "brought_forward": one.job_id in brought} for one in chosen]}):
        return
    for one in chosen:
        output.show(str(one.job_id))
        if one.job_id not in brought:
            output.say(f"{one.name}: job {one.job_id} is running, or starts as soon as a slot is free")


@verb
@_folder_arguments
@confirming
def stop(
    call: Invocation, folders: Sequence[str], everything: bool, owner: str | None, dry_run: bool, yes: bool
) -> int:
    """\b
    pagemill crawl stop /srv/reports
    pagemill crawl stop 42
    pagemill crawl stop --owner alice --dry-run

    Stop watching folders. Documents that were found stay, and those being read are finished. `pagemill undo` watches
    the folders again.
    """
    chosen = _chosen(call, folders, owner, everything=everything)
    if dry_run:
        if not call.printed_json({"dry_run": True, "items": chosen}):
            output.show_table(("JOB", "FOLDER", "OWNER"), [(one.job_id, one.name, one.owner) for one in chosen])
        return 0
    if len(chosen) > 1:
        confirm(f"Stop watching {counted(len(chosen), 'folder')}?", yes=yes, sample=[one.name for one in chosen[:5]])
    selector = Selector(tuple(one.job_id for one in chosen))
    changed = job_control.apply_plan(call.session, job_control.make_plan(call.session, "cancel", selector))
    if not call.printed_json(changed):
        for one in chosen:
            output.show(f"{one.name}: {changed.refused.get(one.job_id, 'no longer watched')}")
    return 1 if changed.refused else 0


def _live_crawls(call: Invocation, owner: str | None) -> list[WatchedFolder]:
    selector = Selector(statuses=_LIVE, job_types=("crawl", "drive_crawl"), owners=() if owner is None else (owner,))
    page = jobs.list_jobs(call.session, selector, limit=_FOLDERS_MAX)
    found = [(job, json.loads(job.payload or "null")) for job in reversed(page.items)]
    return [
        _watched_folder(call, job, payload)
        for job, payload in found
        if isinstance(payload, Mapping) and not payload.get("dry_run")
    ]


def _watched_folder(call: Invocation, job: Job, payload: Mapping[str, object]) -> WatchedFolder:
    every, folder = payload.get("watch_seconds"), str(payload.get("folder"))
    ended = [one for one in get_job_details(call.session, job.id).attempts if one.ended_at is not None]
    return WatchedFolder(
        job_id=job.id,
        folder=folder,
        name=job.name or folder,
        owner=job.owner,
        every_seconds=every if isinstance(every, int) else None,
        state=jobs.state_of(job),
        next_at=job.run_at if job.status is Status.PENDING else None,
        found=ended[-1].error_text if ended else None,
    )


def _chosen(call: Invocation, folders: Sequence[str], owner: str | None, *, everything: bool) -> list[WatchedFolder]:
    if not (folders or everything or owner is not None):
        raise BadInput("name the folders", "give a folder or its job id, as pagemill crawl ls shows them, or --all")
    watched = [one for one in _live_crawls(call, owner) if one.every_seconds is not None]
    chosen: dict[int, WatchedFolder] = {} if folders else {one.job_id: one for one in watched}
    for word in folders:
        path = written(Path(word).expanduser().absolute())
        found = [one for one in watched if word in (str(one.job_id), one.folder, one.name) or path == one.folder]
        if not found:
            raise BadInput(f"{word!r} is not a watched folder", "pagemill crawl ls lists them")
        chosen |= {one.job_id: one for one in found}
    if not chosen:
        raise BadInput("no folder is watched", "pagemill add FOLDER --watch")
    return list(chosen.values())


def _interval(one: WatchedFolder) -> str:
    return "once" if one.every_seconds is None else output.length(timedelta(seconds=one.every_seconds))


crawl = DefaultVerbGroup("crawl", crawl_folder, ls, now, stop)
