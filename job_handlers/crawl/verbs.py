"""The verb `crawl`, and the job that it becomes."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from msgspec import Struct, field
from msgspec.structs import replace

from job_handlers.crawl import watch_commands
from job_handlers.fetch.sources import Source, folders_in_words, read_folder
from job_handlers.reading.batch_options import PRIORITY, batch_option, priority_option, submit
from job_handlers.reading.estimate import describe_duration, estimate_duration
from job_handlers.reading.job_factory import ReadOptions
from job_handlers.reading.verbs import reading_options, report_waiting
from worker_service.handlers import NewJob, Permanent, canonical
from worker_service.verbs import (
    BadInput,
    Desk,
    Job,
    Selector,
    Status,
    completes_directory,
    counted,
    enqueue,
    leading,
    legible,
    output,
    parse_length,
    verb,
    wait_for_jobs,
    written,
)

PRIORITY_OF_WATCHING = 5


class CrawlWords(Struct, frozen=True):
    """A crawl as a person asks for it."""

    folder: str
    mime: Sequence[str] = ()
    name: str | None = None
    size_max: int | None = None
    newer_than: str | None = None
    depth: int | None = None
    credential: str = ""
    dry_run: bool = False
    reconcile: bool = False
    watch: str | None = None
    read: ReadOptions = field(default_factory=ReadOptions)


@functools.partial(verb, heading="Documents")
@click.argument("folder", shell_complete=completes_directory)
@click.option("--owner", default="", metavar="NAME", help="The person that the documents belong to.")
@click.option(
    "--mime", multiple=True, metavar="PATTERN", help="application/pdf, image/*; what can be read unless given."
)
@click.option("--name", metavar="PATTERN", help="Files whose name matches, such as '*report*.pdf'.")
@click.option("--max-size", "size_max", type=click.IntRange(1), metavar="BYTES")
@click.option("--newer-than", metavar="DATE", help="Changed after this day, as 2026-01-31.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="0: only the folder itself.")
@click.option("--credential", default="", metavar="NAME", help="The credential; drive unless given.")
@reading_options
@batch_option
@priority_option
@click.option("--reconcile", is_flag=True, help="Walk everything again, and find what went without a word.")
@click.option("--watch", metavar="LENGTH", help="Look again after this long, for ever: 1h.")
@click.option("--dry-run", is_flag=True, help="Only say how much there is to read, and about how long that takes.")
def crawl_verb(
    desk: Desk,
    owner: str,
    batch: str | None,
    priority: int | None,
    dry_run: bool,
    *,
    read: ReadOptions,
    **values: Any,
) -> int:
    """\b
    pagemill crawl https://drive.google.com/drive/folders/1a2B3c… --owner alice
    pagemill crawl shared-with-me --mime application/pdf --watch 1h
    pagemill crawl /srv/reports --dry-run

    Find the files below a folder, and read each that is new or has changed. The folder is one of Google Drive, a shared
    drive, shared-with-me, or a directory of this machine.

    A crawl is a batch, and the setting owner_policy says what happens to the owner's other batches. With --watch it is
    a job that repeats, which replaces nothing. With --batch the batch has all documents of the folder, not only those
    that are new; what is known is neither fetched nor read again.
    """
    words = CrawlWords(dry_run=dry_run, read=read, **values)
    asked = crawl_job(words, owner=owner)
    if batch is not None and words.watch is not None:
        raise BadInput("a folder that is watched has no end, and a batch does", "leave --watch or --batch out")
    if dry_run:
        return _show_dry_run(desk, asked)
    # Nobody sits and waits for what is looked at for ever.
    urgency = priority or (PRIORITY_OF_WATCHING if words.watch is not None else None)
    told = {"sources": [legible(words.folder)], **read.asked(), **read.follows(standing=True)}
    wish = asked if batch is None else of_a_batch(asked)
    # A watched folder has no end, so it stays a job that repeats.
    name = legible(words.folder) if words.watch is None else None
    [enqueued], added = submit(desk, [wish], batch=batch, name=name, owner=owner, priority=urgency, asked=told)
    of_batch = {} if added is None else {"batch": added.batch.id}
    if not desk.answered({"id": enqueued.job_id, "existing": enqueued.existing, **of_batch}):
        output.show(str(enqueued.job_id))
    if enqueued.existing and enqueued.job_id is not None:
        _say_who_does_it(desk, enqueued.job_id, asked)
    return 0


crawl = leading("crawl", crawl_verb, watch_commands.ls, watch_commands.now, watch_commands.stop)


def crawl_job(words: CrawlWords, *, owner: str) -> NewJob:
    if words.newer_than is not None:
        _refuse_no_day(words.newer_than)
    folder, name = words.folder, words.folder
    if not folder:
        # Path("") is the current directory.
        raise BadInput("the folder is empty", f"name {folders_in_words()}")
    if words.folder.startswith(("/", "./", "../", "~")) or Path(words.folder).exists():
        directory = Path(words.folder).expanduser().absolute()
        _refuse_no_directory(directory)
        folder, name = written(directory), legible(directory)
    source = _source_of(folder)
    wanted = {
        "mime": list(words.mime),
        "name": words.name,
        "size_max": words.size_max,
        "newer_than": words.newer_than,
        "depth": words.depth,
    }
    payload: dict[str, object] = {
        "folder": folder,
        "wanted": {name: value for name, value in wanted.items() if value not in (None, [])},
        "credential": words.credential,
        "dry_run": words.dry_run,
        "reconcile": words.reconcile,
        "download": {"read": words.read.asked(), **words.read.follows(standing=True)},
    }
    if words.watch is not None:
        payload["watch_seconds"] = max(1, int(parse_length(words.watch).total_seconds()))
    # One at a time walks a folder; one that waits for its next look keeps nobody from a full walk.
    key = f"crawl:{source.PLATFORM}:{owner}:{folder}"
    return NewJob(
        "drive_crawl",
        name=name,
        platform=source.PLATFORM,
        owner=owner,
        payload=canonical(payload),
        source=source.rests_with(words.credential),
        unique_key=None if words.dry_run else f"{key}:reconcile" if words.reconcile else key,
        concurrency_key=None if words.dry_run else key,
    )


def of_a_batch(crawl: NewJob) -> NewJob:
    """It goes through the whole folder, also beside another crawl of it: a batch is to have all its documents."""
    payload = {**json.loads(crawl.payload or "{}"), "afresh": uuid4().hex}
    return replace(crawl, payload=canonical(payload), unique_key=None, concurrency_key=None)


def _say_who_does_it(desk: Desk, job_id: int, asked: NewJob) -> None:
    if _does_all(desk.session.reading.get(job_id), asked):
        output.say(f"this folder is being crawled already: that job will do{_when(desk, job_id)}")
    else:
        output.say(
            f"this folder is being crawled already, and otherwise than you say now: for this, `pagemill cancel "
            f"{job_id}`, and say it again"
        )


def _does_all(job: Job, asked: NewJob) -> bool:
    """Whether this job does all that is asked for. One that goes on watching does."""
    does, wanted = json.loads(job.payload or "{}"), json.loads(asked.payload or "{}")
    if job.source == asked.source:
        # By whichever of its names.
        does["credential"] = wanted["credential"]
    return bool({"watch_seconds": does.get("watch_seconds"), **wanted} == {"watch_seconds": None, **does})


def _source_of(folder: str) -> Source:
    try:
        return read_folder(folder)[0]
    except Permanent as error:
        is_address = "://" in folder
        why = str(error) if is_address else f"there is no directory {folder!r}; a folder is {folders_in_words()}"
        raise BadInput(why) from error


def _refuse_no_directory(directory: Path) -> None:
    """What is certain to be none. The daemon may see directories that we may not."""
    with contextlib.suppress(PermissionError):
        if not directory.exists():
            raise BadInput(f"there is no directory {directory}")
        if not directory.is_dir():
            raise BadInput(f"{directory} is no directory", "pagemill ingest reads a file")


def _refuse_no_day(text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a day", "write 2026-01-31, or 2026-01-31T10:00:00Z") from error


def _when(desk: Desk, job_id: int) -> str:
    job = desk.session.reading.get(job_id)
    is_later = job.run_at is not None and job.status is Status.PENDING
    again = f"pagemill crawl now {job_id}"
    return f"; it looks next at {output.seconds(job.run_at)} UTC, or at once: {again}" if is_later else ""


def found_by(desk: Desk, counting: NewJob) -> dict[str, Any]:
    """By a crawl that only counts, once it has ended."""
    job_id = enqueue.enqueue_job(desk.session, replace(counting, priority=PRIORITY)).job_id
    report_waiting(desk, job_id)
    waited = wait_for_jobs(desk.session, Selector(ids=(job_id,)))
    job = desk.session.reading.get(job_id)
    if not waited.is_good:
        raise BadInput(f"job {job_id}: {job.error_text or job.status}")
    found: dict[str, Any] = json.loads(job.result or "{}")
    return found


def _show_dry_run(desk: Desk, counting: NewJob) -> int:
    found = found_by(desk, counting)
    size = found.get("bytes", 0)
    if desk.answered({**found, **estimate_duration(desk, size)}):
        return 0
    found.pop("bytes", None)
    names = found.pop("would_enqueue", [])
    for name in names:
        output.show(name)
    found.pop("dry_run", None)
    words = [counted(number, "folder") if fate == "folders" else f"{number} {fate}" for fate, number in found.items()]
    output.say(", ".join(words) or "nothing found")
    if found.get("enqueued"):
        output.say(f"{output.size(size)} to fetch and read; {describe_duration(desk, size)}")
    return 0
