"""The commands `ingest`, `reindex` and `documents adopt`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from job_handlers.reading import estimate
from job_handlers.reading.batch_options import batch_option, priority_option, say_what_is_left_out, submit
from job_handlers.reading.job_factory import (
    QUALITIES,
    AdoptedFile,
    LeftOut,
    ReadOptions,
    absolute,
    adopt_job,
    download_job,
    files_to_adopt,
    find_files,
    reindex_job,
)
from worker_service.handlers import DocumentRequest
from worker_service.verbs import (
    AwaitedDocument,
    BadInput,
    Decision,
    Desk,
    Document,
    DocumentSelector,
    Enqueued,
    Function,
    InBatch,
    IndexStatus,
    await_batches,
    await_reading,
    choosing,
    confirm,
    confirming,
    counted,
    documents,
    enqueue,
    legible,
    output,
    path_of,
    show_documents,
    telling_that_jobs_go_on,
    verb,
    written,
)

_LIVING = (IndexStatus.QUEUED, IndexStatus.INDEXING, IndexStatus.SUCCESS)

_verb = functools.partial(verb, heading="Documents")


def reading_options(function: Function) -> Function:
    """Add the reading options to a command, whose function receives them as `ReadOptions`."""

    @functools.wraps(function)
    def run(desk: Desk, *selected: Any, **values: Any) -> Any:
        words = ReadOptions(**{name: values.pop(name) for name in ReadOptions.__struct_fields__})
        for action in words.actions():
            enqueue.refuse_unfit_action(desk.session, action)
        lacking = enqueue.lacking(desk.session, words.asked())
        for sentence in [*lacking, *enqueue.doubts(desk.session, words.actions())]:
            output.say(sentence)
        return function(desk, *selected, read=words, **values)

    for option in reversed(
        (
            click.option("--as-usual", is_flag=True, help="Forget how it was to be read before."),
            click.option(
                "--lang",
                "languages",
                multiple=True,
                metavar="CODE",
                help="Each page's own unless given; eng+deu for both.",
            ),
            click.option("--quality", type=click.Choice(QUALITIES), help="How well to recognise, and how dearly."),
            click.option("--force-ocr", is_flag=True, help="Recognise pages that have good text as well."),
            click.option("--hocr", is_flag=True, help="Make hOCR as well."),
            click.option("--password-file", "password", metavar="NAME", help="The credential that opens it."),
            click.option("--then", multiple=True, metavar="TYPE[=JSON]", help="Once it is read, enqueue such a job."),
            click.option("--on-failure", multiple=True, metavar="TYPE[=JSON]", help="Once it has failed, such a job."),
        )
    ):
        option(run)
    return run


@_verb
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option("--owner", default="", metavar="NAME", help="The person they belong to.")
@batch_option
@priority_option
@reading_options
@click.option("--force", is_flag=True, help="Read again what was read already.")
@click.option("--wait", "is_waiting", is_flag=True, help="Until all have been read; shows how far they are.")
@click.option("--timeout", metavar="LENGTH", help="With --wait: give up after this long.")
@click.option("--dry-run", is_flag=True, help="Only say how much there is to read, and about how long that takes.")
def ingest(
    desk: Desk,
    paths: Sequence[str],
    owner: str,
    batch: str | None,
    priority: int | None,
    force: bool,
    is_waiting: bool,
    timeout: str | None,
    dry_run: bool,
    *,
    read: ReadOptions,
) -> int:
    """\b
    pagemill ingest report.pdf
    pagemill ingest reports/ --owner alice --lang eng+deu --wait
    pagemill ingest scan.tiff --quality best --force
    pagemill ingest reports/ --owner alice --dry-run

    Read files, and all files below directories except hidden files, symbolic links and other kinds of files, which it
    names. Prints a job for each file. A file that was read, or is being read, and has not changed since by its inode,
    size and times needs none without --force.

    Several files, or a directory, are a batch, and the setting owner_policy says what happens to the owner's other
    batches. If nothing is new, no batch starts. One file alone is a job.

    With --wait: exit code 1 if some could not be read, 124 if the time ran out. With --batch as well: until the whole
    batch has ended. `pagemill batch add` takes addresses and folders of Drive as well.
    """
    if timeout is not None and not is_waiting:
        raise BadInput("--timeout says how long to wait", "say --wait as well")
    left_out = LeftOut()
    files = [file for path in paths for file in find_files(Path(path), left_out)]
    if dry_run:
        if is_waiting:
            raise BadInput("--dry-run brings nothing in, so there is nothing to wait for", "leave one of them out")
        found = estimate.estimate_files(desk, files, owner=owner, is_read_again=force or bool(read.asked()))
        estimate.show(desk, found, left_out)
        return 0
    # A file may be named twice: on its own and by its directory.
    files = [*dict.fromkeys(files)]
    name = _name_of_batch(paths, files)
    enqueued, added = submit(
        desk,
        [download_job(file, read, owner=owner, is_forced=force) for file in files],
        batch=batch,
        name=name,
        owner=owner,
        priority=priority,
        asked={"sources": [legible(path) for path in paths], **read.asked(), **read.follows()},
    )
    results = _ingest_results(files, enqueued)
    say_what_is_left_out(desk, left_out)
    if not is_waiting:
        _show_results(desk, results, **left_out.as_answer(), **({} if added is None else {"batch": added.batch.id}))
        return 0
    if added is not None and batch is not None:
        with telling_that_jobs_go_on():
            return await_batches(desk, [added.batch.id], timeout=timeout)
    awaited = [AwaitedDocument(wish.name, wish.job_id, wish.document_id, owner, wish.source_key) for wish in results]
    with telling_that_jobs_go_on():
        if (first := next((wish.job_id for wish in results if wish.job_id is not None), None)) is not None:
            report_waiting(desk, first)
        return await_reading(desk, awaited, timeout=timeout)


@_verb
@choosing
@priority_option
@reading_options
@click.option("--force", is_flag=True, help="Read again what was read already.")
@confirming
def reindex(
    desk: Desk,
    chosen: DocumentSelector,
    priority: int | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    *,
    read: ReadOptions,
) -> int:
    """\b
    pagemill reindex 7 --lang deu
    pagemill reindex --status failed --yes
    pagemill reindex --owner alice --quality best --dry-run

    Read documents again. What has not changed is not read twice; --force does all the same.
    """
    if chosen.is_empty:
        raise BadInput("say which documents to read again: ids, or selectors such as --status failed")
    meant = documents.meant(desk.session, chosen)
    if dry_run:
        show_documents(desk, meant)
        return 0
    if not meant:
        # A selector without ids means all documents.
        if not desk.answered({"items": []}):
            output.say("no document is like that")
        return 0
    if len(meant) > 1 and not chosen.ids:
        confirm(f"Read {counted(len(meant), 'document')} again?", yes=yes, sample=[one.name for one in meant[:5]])
    again = documents.meant(desk.session, DocumentSelector(ids=[one.id for one in meant]))
    _show_results(desk, [_reindex_document(desk, document, read, priority, is_forced=force) for document in again])
    return 0


@verb
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--owner", default="", metavar="NAME", help="The person they belong to.")
@confirming
def adopt(desk: Desk, directory: Path, owner: str, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill documents adopt /srv/read --dry-run
    pagemill documents adopt /srv/read --owner alice --yes

    Record files that were read elsewhere: where report.txt stands beside report.pdf, a job takes that text over (a form
    feed between pages); others are noted as not_indexed. Nothing is moved. What is known already stays as it is.
    """
    found = files_to_adopt(directory)
    read = sum(one.text is not None for one in found)
    sentence = f"{read} read elsewhere, {len(found) - read} not read"
    if dry_run:
        if not desk.answered({"read": read, "not_read": len(found) - read}):
            output.say(sentence)
        return
    confirm(f"Record {counted(len(found), 'file')} ({sentence})?", yes=yes)
    _show_results(desk, [_adopt_file(desk, one, owner) for one in found])


# ── Results ──


class Wish(Struct, frozen=True):
    """Result of a request to read one file or document."""

    name: str
    job_id: int | None
    decision: Decision | None
    document_id: int | None = None
    source_key: str = ""
    """Key of a file; its document is found by it."""


def _name_of_batch(paths: Sequence[str], files: Sequence[Path]) -> str | None:
    """Return the name of the batch that an ingest without --batch starts.

    Return None for a single file, which stays a job, so that a loop over files does not replace its own batches.
    """
    if len(paths) == 1 and files == [absolute(paths[0])]:
        return None
    first = legible(absolute(paths[0]).name)
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _ingest_results(files: Sequence[Path], enqueued: Sequence[Enqueued | InBatch]) -> list[Wish]:
    return [
        Wish(
            legible(file),
            one.job_id or None,
            one.decision or (Decision.UNDER_WAY if one.existing else None),
            one.document_id,
            source_key=written(file),
        )
        for file, one in zip(files, enqueued, strict=True)
    ]


def _reindex_document(
    desk: Desk, document: Document, read: ReadOptions, priority: int | None, *, is_forced: bool
) -> Wish:
    job = reindex_job(document, read, has_original=documents.has_original(desk.session, document), is_forced=is_forced)
    [enqueued], _ = submit(desk, [job], batch=None, name=None, owner=job.owner, priority=priority, asked={})
    return Wish(document.name, enqueued.job_id or None, enqueued.decision, document.id)


def _adopt_file(desk: Desk, one: AdoptedFile, owner: str) -> Wish:
    path = path_of(one.path)
    name, request = legible(path), DocumentRequest(one.path, legible(path.name), one.content)
    known = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=(one.path,))
    for document in documents.each(desk.session, known):
        if document.content == one.content and document.status in _LIVING:
            return Wish(name, None, Decision.UNCHANGED, document.id)
    if one.text is None:
        return Wish(name, None, None, documents.record(desk.session, request, platform="local", owner=owner))
    enqueued = enqueue.enqueue_job(desk.session, adopt_job(request, one.text, owner=owner))
    return Wish(name, enqueued.job_id or None, enqueued.decision, enqueued.document_id)


def report_waiting(desk: Desk, job_id: int) -> None:
    for gate in desk.session.reading.explain(job_id):
        output.say(f"job {job_id} waits: {gate.detail} ({gate.code}; `pagemill why {job_id}` says what to do)")


_WORDS: dict[Decision | None, str] = {
    Decision.UNCHANGED: "read already, and nothing has changed",
    Decision.UNDER_WAY: "being read already",
    Decision.TAKEN_OVER: "taken over from work that stood still",
    Decision.ACCEPTED: "will be read",
    None: "will be brought in",
}


def _show_results(desk: Desk, results: Sequence[Wish], **more: object) -> None:
    if not desk.answered({"items": results, **more}):
        output.show_table(("JOB", "WHAT BECOMES OF IT", "NAME"), [(w.job_id, _action_of(w), w.name) for w in results])


def _action_of(wish: Wish) -> str:
    return "noted, and not read" if wish.job_id is None and wish.decision is None else _WORDS[wish.decision]
