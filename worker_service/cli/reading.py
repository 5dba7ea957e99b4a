"""`pagemill ingest`, `reindex` and `documents adopt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from job_handlers.reading.find_files import AdoptedFile, LeftOut, absolute, files_to_adopt, find_files
from job_handlers.reading.requests import ReadOptions, adopt_job, download_job, reindex_job
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.base.path_text import legible, path_of, written
from worker_service.cli import output
from worker_service.cli.context import Invocation, confirm, confirming, verb
from worker_service.cli.documents import choosing, show_documents
from worker_service.cli.estimate import estimate_files, show_estimate
from worker_service.cli.progress import await_batches, await_reading, reporting_interruption
from worker_service.cli.submit import (
    Submission,
    force_option,
    read_options,
    report_waiting,
    say_what_is_left_out,
    submission_options,
    submit,
    tag_option,
)
from worker_service.cli.typed_password import TypedPassword, password_options
from worker_service.cli.waiting import AwaitedDocument
from worker_service.jobs.batches import InBatch
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus
from worker_service.jobs.job import Enqueued
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import documents, enqueue, exports

_LIVING = (IndexStatus.QUEUED, IndexStatus.INDEXING, IndexStatus.SUCCESS)


@verb
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@submission_options("owner", "batch", "priority", "is_waiting", "timeout", "dry_run")
@tag_option
@password_options
@read_options(ReadOptions)
@force_option
def ingest(
    call: Invocation,
    paths: Sequence[str],
    force: bool,
    *,
    submission: Submission,
    options: ReadOptions,
    typed: TypedPassword | None,
) -> int:
    """\b
    pagemill add report.pdf

    The earlier form of `pagemill add`, for scripts: a single file becomes a job without a batch, and several files
    become a batch only if one of them is new. Prints one job per file.
    """
    left_out = LeftOut()
    files = [file for path in paths for file in find_files(Path(path), left_out)]
    owner = submission.owner
    if submission.dry_run:
        found = estimate_files(call, files, owner=owner, is_read_again=force or bool(options.reading_settings()))
        show_estimate(call, found, left_out)
        return 0
    # A file may be named twice: by itself and by its directory.
    files = [*dict.fromkeys(files)]
    if typed is not None:
        typed.save(call, [("local", owner, written(file)) for file in files])
    enqueued, added = submit(
        call,
        [download_job(file, options, owner=owner, is_forced=force) for file in files],
        submission,
        name=_name_of_batch(paths, files),
        asked={
            "sources": [legible(path) for path in paths],
            **options.reading_settings(),
            **options.actions_and_tags(),
        },
    )
    results = _ingest_results(files, enqueued)
    say_what_is_left_out(call, left_out)
    if not submission.is_waiting:
        _show_results(call, results, **left_out.as_answer(), **({} if added is None else {"batch": added.batch.id}))
        return 0
    with reporting_interruption():
        if added is not None and submission.batch is not None:
            return await_batches(call, [added.batch.id], timeout=submission.timeout)
        awaited = [AwaitedDocument(one.name, one.job_id, one.document_id, owner, one.source_key) for one in results]
        report_waiting(call, enqueued)
        return await_reading(call, awaited, timeout=submission.timeout)


@verb
@choosing
@submission_options("priority")
@password_options
@read_options(ReadOptions)
@force_option
@confirming
def reindex(
    call: Invocation,
    chosen: DocumentSelector,
    force: bool,
    dry_run: bool,
    yes: bool,
    *,
    submission: Submission,
    options: ReadOptions,
    typed: TypedPassword | None,
) -> int:
    """\b
    pagemill reindex 7 --lang deu
    pagemill reindex --status failed --yes
    pagemill reindex --owner alice --quality best --dry-run
    pagemill reindex 7 --password

    Read documents again, with new settings or after a failure. Pages that are known are not read twice; --force reads
    them, too.
    """
    if chosen.is_empty:
        raise BadInput("name the documents to read again", "give ids, or selectors such as --status failed")
    found = documents.selected_documents(call.session, chosen)
    if dry_run:
        show_documents(call, found)
        return 0
    if not found:
        # A selector without ids means all documents.
        if not call.printed_json({"items": []}):
            output.say("no document matches")
        return 0
    if len(found) > 1 and not chosen.ids:
        confirm(f"Read {counted(len(found), 'document')} again?", yes=yes, sample=[one.name for one in found[:5]])
    again = documents.selected_documents(call.session, DocumentSelector(ids=[one.id for one in found]))
    if options.as_usual:
        documents.forget_passwords(call.session, again)
    if typed is not None:
        typed.save(call, [(one.platform, one.owner, one.source_key) for one in again])
    results = [_reindex_document(call, document, options, submission, is_forced=force) for document in again]
    _show_results(call, results)
    if (options.quality or options.languages) and not options.force_ocr:
        own = [one for one in results if one.job_id and documents.has_only_own_text(call.session, one.document_id or 0)]
        if own:
            names = ", ".join(one.name for one in own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
            output.say(f"{names}: all text comes from the file itself; to recognise its pages anew, add --force-ocr")
    return 0


@verb
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@submission_options("owner")
@confirming
def adopt(call: Invocation, directory: Path, dry_run: bool, yes: bool, *, submission: Submission) -> None:
    """\b
    pagemill documents adopt /srv/read --dry-run
    pagemill documents adopt /srv/read --owner alice --yes

    Record files that another program has read. If report.txt is next to report.pdf, a job imports that text, with a
    form feed between pages; a file without a text is recorded as not_indexed. No file is moved, and documents that are
    known do not change.
    """
    found = files_to_adopt(directory)
    read = sum(one.text is not None for one in found)
    sentence = f"{read} with text, {len(found) - read} without"
    if dry_run:
        if not call.printed_json({"read": read, "not_read": len(found) - read}):
            output.say(sentence)
        return
    confirm(f"Record {counted(len(found), 'file')} ({sentence})?", yes=yes)
    _show_results(call, [_adopt_file(call, one, submission.owner) for one in found])


# ── Results ──


class ReadResult(Struct, frozen=True):
    name: str
    job_id: int | None
    decision: Decision | None
    document_id: int | None = None
    source_key: str = ""


def _name_of_batch(paths: Sequence[str], files: Sequence[Path]) -> str | None:
    """Return None for a single file, so that a loop over files does not replace its own batches."""
    if len(paths) == 1 and files == [absolute(paths[0])]:
        return None
    first = legible(absolute(paths[0]).name)
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _ingest_results(files: Sequence[Path], enqueued: Sequence[Enqueued | InBatch]) -> list[ReadResult]:
    return [
        ReadResult(
            legible(file),
            one.job_id or None,
            one.decision or (Decision.UNDER_WAY if one.existing else None),
            one.document_id,
            source_key=written(file),
        )
        for file, one in zip(files, enqueued, strict=True)
    ]


def _reindex_document(
    call: Invocation, document: Document, options: ReadOptions, submission: Submission, *, is_forced: bool
) -> ReadResult:
    has_original = exports.has_original(call.session, document)
    job = reindex_job(document, options, has_original=has_original, is_forced=is_forced)
    [enqueued], _ = submit(call, [job], submission, name=None, asked={})
    return ReadResult(document.name, enqueued.job_id or None, enqueued.decision, document.id)


def _adopt_file(call: Invocation, one: AdoptedFile, owner: str) -> ReadResult:
    path = path_of(one.path)
    name, request = legible(path), DocumentRequest(one.path, legible(path.name), one.content)
    known = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=(one.path,))
    for document in documents.each_document(call.session, known):
        if document.content == one.content and document.status in _LIVING:
            return ReadResult(name, None, Decision.UNCHANGED, document.id)
    if one.text is None:
        return ReadResult(
            name, None, None, documents.record_document(call.session, request, platform="local", owner=owner)
        )
    enqueued = enqueue.enqueue_job(call.session, adopt_job(request, one.text, owner=owner))
    return ReadResult(name, enqueued.job_id or None, enqueued.decision, enqueued.document_id)


_ACTIONS: dict[Decision | None, str] = {
    Decision.UNCHANGED: "none: unchanged since it was read",
    Decision.UNDER_WAY: "none: already being read",
    Decision.TAKEN_OVER: "read again: the earlier attempt has stalled",
    Decision.ACCEPTED: "read",
    None: "read",
}


def _show_results(call: Invocation, results: Sequence[ReadResult], **more: object) -> None:
    if not call.printed_json({"items": results, **more}):
        output.show_table(("JOB", "ACTION", "NAME"), [(one.job_id, _action_of(one), one.name) for one in results])


def _action_of(result: ReadResult) -> str:
    return "recorded" if result.job_id is None and result.decision is None else _ACTIONS[result.decision]
