"""The verbs `crawl ls`, `crawl now` and `crawl stop`: the folders that are looked at again and again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import click
from msgspec import Struct

from worker_service.verbs import (
    BadInput,
    Desk,
    Function,
    Job,
    Selector,
    Status,
    confirm,
    confirming,
    counted,
    job_control,
    jobs,
    output,
    verb,
    written,
)

_LIVE = (Status.PENDING, Status.RUNNING)
_MOST = 1000


class Watched(Struct, frozen=True):
    """A folder that is crawled: now, or again and again."""

    job_id: int
    folder: str
    name: str
    owner: str
    every_seconds: int | None
    """None: it is looked at once."""
    state: str
    next_at: str | None
    """None: it is looked at now, or as soon as there is room."""
    found: str | None
    """What the last look found."""


def _choosing(function: Function) -> Function:
    click.option("--owner", metavar="NAME", help="Those of this owner.")(function)
    click.option("--all", "everything", is_flag=True, help="All that are watched.")(function)
    return click.argument("folders", metavar="[FOLDER|ID]...", nargs=-1)(function)


@verb
@click.option("--owner", metavar="NAME", help="Those of this owner.")
def ls(desk: Desk, owner: str | None) -> None:
    """\b
    pagemill crawl ls
    pagemill crawl ls --owner alice --json

    The folders that are watched, or are being crawled: how often, when next, and what the last look found.
    """
    found = _crawled(desk, owner)
    if desk.answered({"items": found}):
        return
    if not found:
        output.say("no folder is watched or being crawled: pagemill crawl FOLDER --watch 1h")
        return
    rows = [
        (one.job_id, one.state, one.name, one.owner, _every(one), output.seconds(one.next_at) or "now", one.found)
        for one in found
    ]
    columns = ("JOB", "STATE", "FOLDER", "OWNER", "EVERY", "LOOKS NEXT (UTC)", "FOUND")
    output.show_table(columns, rows, gives_up=("FOUND", "STATE"))


@verb
@_choosing
def now(desk: Desk, folders: Sequence[str], everything: bool, owner: str | None) -> None:
    """\b
    pagemill crawl now /srv/reports
    pagemill crawl now 42
    pagemill crawl now --all

    Look at once into folders that are watched. The next look comes after the usual time again.
    """
    chosen = _chosen(desk, folders, owner, everything=everything)
    brought = job_control.bring_forward(desk.session, [one.job_id for one in chosen])
    if desk.answered({"items": [{"id": one.job_id, "brought_forward": one.job_id in brought} for one in chosen]}):
        return
    for one in chosen:
        output.show(str(one.job_id))
        if one.job_id not in brought:
            output.say(f"{one.name}: job {one.job_id} is looking already, or as soon as there is room")


@verb
@_choosing
@confirming
def stop(desk: Desk, folders: Sequence[str], everything: bool, owner: str | None, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill crawl stop /srv/reports
    pagemill crawl stop 42
    pagemill crawl stop --owner alice --dry-run

    Watch folders no more. What was found in them stays, and what is being read is read to its end; `pagemill undo` has
    them watched again.
    """
    chosen = _chosen(desk, folders, owner, everything=everything)
    if dry_run:
        if not desk.answered({"dry_run": True, "items": chosen}):
            output.show_table(("JOB", "FOLDER", "OWNER"), [(one.job_id, one.name, one.owner) for one in chosen])
        return 0
    if len(chosen) > 1:
        confirm(f"Watch {counted(len(chosen), 'folder')} no more?", yes=yes, sample=[one.name for one in chosen[:5]])
    changed = job_control.change(
        desk.session, job_control.plan(desk.session, "cancel", Selector(tuple(c.job_id for c in chosen)))
    )
    if desk.answered(changed):
        return 1 if changed.refused else 0
    for one in chosen:
        why = changed.refused.get(one.job_id)
        output.show(f"{one.name}: {'watched no more' if why is None else why}")
    return 1 if changed.refused else 0


def _crawled(desk: Desk, owner: str | None) -> list[Watched]:
    """The live ones, the oldest first."""
    selector = Selector(statuses=_LIVE, job_types=("drive_crawl",), owners=() if owner is None else (owner,))
    page = jobs.list_jobs(desk.session, selector, limit=_MOST)
    found = [(job, json.loads(job.payload or "null")) for job in reversed(page.items)]
    return [
        _watched(desk, job, payload)
        for job, payload in found
        if isinstance(payload, Mapping) and not payload.get("dry_run")
    ]


def _watched(desk: Desk, job: Job, payload: Mapping[str, object]) -> Watched:
    every, folder = payload.get("watch_seconds"), str(payload.get("folder"))
    looked = [one for one in jobs.job_in_whole(desk.session, job.id).attempts if one.ended_at is not None]
    return Watched(
        job_id=job.id,
        folder=folder,
        name=job.name or folder,
        owner=job.owner,
        every_seconds=every if isinstance(every, int) else None,
        state=jobs.state_of(job),
        next_at=job.run_at if job.status is Status.PENDING else None,
        found=looked[-1].error_text if looked else None,
    )


def _chosen(desk: Desk, folders: Sequence[str], owner: str | None, *, everything: bool) -> list[Watched]:
    if not (folders or everything or owner is not None):
        raise BadInput("say which: a folder or the number of its job, as `pagemill crawl ls` shows them, or --all")
    watched = [one for one in _crawled(desk, owner) if one.every_seconds is not None]
    chosen: dict[int, Watched] = {} if folders else {one.job_id: one for one in watched}
    for word in folders:
        meant = [one for one in watched if word in (str(one.job_id), one.folder, one.name) or _path(word) == one.folder]
        if not meant:
            raise BadInput(
                f"{word!r} is not watched", "`pagemill crawl ls` shows what is, and pagemill crawl looks once"
            )
        chosen |= {one.job_id: one for one in meant}
    if not chosen:
        raise BadInput("no folder is watched", "pagemill crawl FOLDER --watch 1h")
    return list(chosen.values())


def _path(word: str) -> str:
    return written(Path(word).expanduser().absolute())


def _every(one: Watched) -> str:
    return "once" if one.every_seconds is None else output.length(timedelta(seconds=one.every_seconds))
