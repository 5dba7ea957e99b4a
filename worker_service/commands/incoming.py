"""Documents come in: `ingest`, `crawl`, `reindex`. What a wish becomes is decided in `worker_service.wishes`."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from typing import Any

import click

from worker_service.awaiting import Awaited
from worker_service.commands import output
from worker_service.commands.desk import Desk, Function, completes_directory, confirm, confirming, verb
from worker_service.commands.documents import choosing, documents_at, show_documents, show_wishes
from worker_service.commands.reading import await_reading, telling_that_jobs_go_on
from worker_service.documents import in_words
from worker_service.errors import BadInput
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.model import Status
from worker_service.jobs.selector import Selector
from worker_service.plurals import counted
from worker_service.wishes import CrawlWords, ReadWords


def reading_options(function: Function) -> Function:
    """Give the verb the options of how to read; its function gets them as `ReadWords`."""

    @functools.wraps(function)
    def run(desk: Desk, *selected: Any, **values: Any) -> Any:
        words = ReadWords(**{name: values.pop(name) for name in ReadWords.__match_args__})
        for job in words.actions():
            desk.queue.refuse_unfit(job)
        for sentence in desk.queue.lacking(words.asked()):
            output.say(sentence)
        return function(desk, *selected, read=words, **values)

    for option in reversed(
        (
            click.option("--as-usual", is_flag=True, help="Forget how it was to be read before."),
            click.option(
                "--lang", "languages", multiple=True, metavar="CODE", help="eng unless given; eng+deu for both."
            ),
            click.option("--quality", type=click.Choice(["fast", "best"]), help="Trained data for recognising."),
            click.option("--force-ocr", is_flag=True, help="Recognise pages that have good text as well."),
            click.option("--hocr", is_flag=True, help="Make hOCR as well."),
            click.option("--password-file", "password", metavar="NAME", help="The credential that opens it."),
            click.option("--then", multiple=True, metavar="TYPE[=JSON]", help="Enqueue a job of this type afterwards."),
        )
    ):
        option(run)
    return run


@verb
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option("--owner", default="", metavar="NAME", help="The person they belong to.")
@reading_options
@click.option("--force", is_flag=True, help="Read again what was read already.")
@click.option("--wait", "is_waiting", is_flag=True, help="Until all have been read; shows how far they are.")
@click.option("--timeout", metavar="LENGTH", help="With --wait: give up after this long.")
def ingest(
    desk: Desk,
    paths: Sequence[str],
    owner: str,
    force: bool,
    is_waiting: bool,
    timeout: str | None,
    *,
    read: ReadWords,
) -> int:
    """\b
    pagemill ingest report.pdf
    pagemill ingest reports/ --owner alice --lang eng+deu --wait
    pagemill ingest scan.tiff --quality best --force

    Bring files in and have them read. Directories with all that is below them, but for what is hidden, symbolic links
    and other kinds of files, which it counts. Prints a job for each file.

    With --wait: exit code 1 if some could not be read, 124 if the time ran out.
    """
    if timeout is not None and not is_waiting:
        raise BadInput("--timeout says how long to wait: say --wait as well")
    documents = documents_at(desk)
    ingested = documents.ingest(paths, owner=owner, read=read, is_forced=force)
    wishes = ingested.wishes
    if ingested.left_out and not desk.as_json:
        output.say(f"left out: {in_words(ingested.left_out)}")
    if not is_waiting:
        show_wishes(desk, wishes, left_out=dict(ingested.left_out))
        return 0
    awaited = [Awaited(wish.name, wish.job_id, wish.document_id, owner, wish.source_key) for wish in wishes]
    with telling_that_jobs_go_on():
        if wishes[0].job_id is not None:
            _say_what_holds(desk, wishes[0].job_id)
        return await_reading(desk, awaited, timeout=timeout)


@verb
@click.argument("folder", shell_complete=completes_directory)
@click.option("--owner", default="", metavar="NAME", help="The person that the documents belong to.")
@click.option(
    "--mime", multiple=True, metavar="PATTERN", help="application/pdf, image/*; what can be read unless given."
)
@click.option("--name", metavar="PATTERN", help="Files whose name matches, such as '*report*.pdf'.")
@click.option("--max-size", "size_max", type=click.IntRange(1), metavar="BYTES")
@click.option("--newer-than", metavar="DATE", help="Changed after this day, as 2026-01-31.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="0: only the folder itself.")
@click.option("--credential", default="drive", metavar="NAME", help="The credential; drive unless given.")
@reading_options
@click.option("--reconcile", is_flag=True, help="Walk everything again, and find what went without a word.")
@click.option("--watch", metavar="LENGTH", help="Look again after this long, for ever: 1h.")
@click.option("--dry-run", is_flag=True, help="Only count; waits for the answer.")
def crawl(desk: Desk, owner: str, dry_run: bool, *, read: ReadWords, **values: Any) -> int:
    """\b
    pagemill crawl https://drive.google.com/drive/folders/1a2B3c… --owner alice
    pagemill crawl shared-with-me --mime application/pdf --watch 1h
    pagemill crawl /srv/reports --dry-run

    Find the files below a folder, and download and read each that is new or has changed: a Drive folder, a shared
    drive, shared-with-me, or a directory of this machine.
    """
    words = CrawlWords(dry_run=dry_run, read=read, **values)
    documents = documents_at(desk)
    enqueued = documents.crawl(words, owner=owner)
    if not dry_run:
        if desk.as_json:
            output.show_json({"id": enqueued.job_id, "existing": enqueued.existing})
        else:
            output.show(str(enqueued.job_id))
        if enqueued.existing and documents.is_crawled_so(enqueued.job_id, words, owner=owner):
            output.say(f"this folder is being crawled already: that job will do{_when(desk, enqueued.job_id)}")
        elif enqueued.existing:
            output.say(
                f"this folder is being crawled already, and otherwise than you say now: for this, `pagemill cancel "
                f"{enqueued.job_id}`, and say it again"
            )
        return 0
    return _show_dry_run(desk, enqueued.job_id)


@verb
@choosing
@reading_options
@click.option("--force", is_flag=True, help="Read again what was read already.")
@confirming
def reindex(desk: Desk, chosen: DocumentSelector, force: bool, dry_run: bool, yes: bool, *, read: ReadWords) -> int:
    """\b
    pagemill reindex 7 --lang deu
    pagemill reindex --status failed --yes
    pagemill reindex --owner alice --quality best --dry-run

    Read documents again. What has not changed is not read twice; --force does all the same.
    """
    if chosen == DocumentSelector():
        raise BadInput("say which documents to read again: ids, or selectors such as --status failed")
    documents = documents_at(desk)
    meant = list(documents.all(chosen))
    if dry_run:
        show_documents(desk, meant)
        return 0
    if not meant:
        # A selector without ids means all documents.
        if desk.as_json:
            show_wishes(desk, [])
        else:
            output.say("no document is like that")
        return 0
    if len(meant) > 1 and not chosen.ids:
        confirm(f"Read {counted(len(meant), 'document')} again?", yes=yes, sample=[one.name for one in meant[:5]])
    wishes = documents.reindex(DocumentSelector(ids=[one.id for one in meant]), read=read, is_forced=force)
    show_wishes(desk, wishes)
    return 0


def _when(desk: Desk, job_id: int) -> str:
    job = desk.queue.store.get(job_id)
    is_later = job.run_at is not None and job.status is Status.PENDING
    return f"; it looks next at {output.seconds(job.run_at)} UTC" if is_later else ""


def _say_what_holds(desk: Desk, job_id: int) -> None:
    for gate in desk.queue.store.explain(job_id):
        output.say(f"job {job_id} waits: {gate.detail} ({gate.code}; `pagemill why {job_id}` says what to do)")


def _show_dry_run(desk: Desk, job_id: int) -> int:
    queue = desk.queue
    _say_what_holds(desk, job_id)
    waited = queue.wait(Selector(ids=(job_id,)), timeout=None, monotonic=time.monotonic, sleep=time.sleep)
    job = queue.store.get(job_id)
    if not waited.is_good:
        raise BadInput(f"job {job_id}: {job.error_message or job.status}")
    found = json.loads(job.result or "{}")
    if desk.as_json:
        output.show_json(found)
        return 0
    names = found.pop("would_enqueue", [])
    for name in names:
        output.show(name)
    found.pop("dry_run", None)
    words = [counted(number, "folder") if fate == "folders" else f"{number} {fate}" for fate, number in found.items()]
    output.say(", ".join(words) or "nothing found")
    return 0
