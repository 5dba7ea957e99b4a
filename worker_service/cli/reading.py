"""`pagemill reindex` and `documents adopt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading.find_files import AdoptedFile, files_to_adopt
from job_handlers.reading.requests import ReadOptions, adopt_job, reindex_job
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.base.path_text import legible, path_of
from worker_service.cli import output
from worker_service.cli.context import Invocation, confirm, confirmation_options, verb
from worker_service.cli.documents import document_selector_options, show_documents
from worker_service.cli.read_options import force_option, priority_option, read_options
from worker_service.cli.typed_password import TypedPassword, password_options
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import documents, enqueue, exports
from worker_service.services.batches import PRIORITY

_READ_OR_TO_BE_READ = (IndexStatus.QUEUED, IndexStatus.INDEXING, IndexStatus.SUCCESS)
_SAMPLE_SIZE = 5
_NAMES_SHOWN_MAX = 3


@verb
@document_selector_options
@priority_option
@password_options
@read_options(ReadOptions)
@force_option
@confirmation_options
def reindex(
    call: Invocation,
    chosen: DocumentSelector,
    force: bool,
    dry_run: bool,
    yes: bool,
    priority: int | None,
    *,
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
        if not call.print_if_json({"items": []}):
            output.note("no document matches")
        return 0
    if len(found) > 1 and not chosen.ids:
        sample = [document.name for document in found[:_SAMPLE_SIZE]]
        confirm(f"Read {counted(len(found), 'document')} again?", yes=yes, sample=sample)
    # Some may have been removed while the user answered.
    found = documents.selected_documents(call.session, DocumentSelector(ids=[document.id for document in found]))
    if options.as_usual:
        documents.forget_passwords(call.session, found)
    if typed is not None:
        typed.save(call, [(document.platform, document.owner, document.source_key) for document in found])
    results = [_reindex_document(call, document, options, priority, is_forced=force) for document in found]
    _show_results(call, results)
    if (options.quality or options.languages) and not options.force_ocr:
        _note_text_of_files(call, results)
    return 0


def _note_text_of_files(call: Invocation, results: Sequence[ReadResult]) -> None:
    """Note the documents without a page that OCR reads, which the OCR options do not change."""
    names = [
        result.name
        for result in results
        if result.job_id and documents.has_only_own_text(call.session, result.document_id or 0)
    ]
    if names:
        more = len(names) - _NAMES_SHOWN_MAX
        listed = ", ".join(names[:_NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        output.note(f"{listed}: all text comes from the file itself; to recognise its pages anew, add --force-ocr")


@verb
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--owner", default="", metavar="NAME", help="Owner of the documents.")
@confirmation_options
def adopt(call: Invocation, directory: Path, owner: str, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill documents adopt /srv/read --dry-run
    pagemill documents adopt /srv/read --owner alice --yes

    Record files that another program has read. If report.txt is next to report.pdf, a job imports that text, with a
    form feed between pages; a file without a text is recorded as not_indexed. No file is moved, and known documents do
    not change.
    """
    found = files_to_adopt(directory)
    read = sum(file.text is not None for file in found)
    sentence = f"{read} with text, {len(found) - read} without"
    if dry_run:
        if not call.print_if_json({"read": read, "not_read": len(found) - read}):
            output.note(sentence)
        return
    confirm(f"Record {counted(len(found), 'file')} ({sentence})?", yes=yes)
    _show_results(call, [_adopt_file(call, file, owner) for file in found])


# ── Results ──


class ReadResult(Struct, frozen=True):
    """Result of one document. It has neither a job nor a decision if a file without text was recorded."""

    name: str
    job_id: int | None
    decision: Decision | None
    document_id: int | None = None


def _reindex_document(
    call: Invocation, document: Document, options: ReadOptions, priority: int | None, *, is_forced: bool
) -> ReadResult:
    has_original = exports.has_original(call.session, document)
    job = reindex_job(document, options, has_original=has_original, is_forced=is_forced)
    enqueued = enqueue.enqueue_job(call.session, replace(job, priority=priority or PRIORITY))
    return ReadResult(document.name, enqueued.job_id or None, enqueued.decision, document.id)


def _adopt_file(call: Invocation, file: AdoptedFile, owner: str) -> ReadResult:
    path = path_of(file.path)
    name, request = legible(path), DocumentRequest(file.path, legible(path.name), file.content)
    same_source = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=(file.path,))
    for document in documents.each_document(call.session, same_source):
        if document.content == file.content and document.status in _READ_OR_TO_BE_READ:
            return ReadResult(name, None, Decision.UNCHANGED, document.id)
    if file.text is None:
        document_id = documents.record_document(call.session, request, platform="local", owner=owner)
        return ReadResult(name, None, None, document_id)
    enqueued = enqueue.enqueue_job(call.session, adopt_job(request, file.text, owner=owner))
    return ReadResult(name, enqueued.job_id or None, enqueued.decision, enqueued.document_id)


_ACTIONS: dict[Decision | None, str] = {
    Decision.UNCHANGED: "none: unchanged since it was read",
    Decision.UNDER_WAY: "none: already being read",
    Decision.TAKEN_OVER: "read again: the earlier attempt has stalled",
    Decision.ACCEPTED: "read",
    None: "read",
}


def _show_results(call: Invocation, results: Sequence[ReadResult]) -> None:
    call.show_items(results, ("JOB", "ACTION", "NAME"), lambda one: (one.job_id, _action_of(one), one.name))


def _action_of(result: ReadResult) -> str:
    return "recorded" if result.job_id is None and result.decision is None else _ACTIONS[result.decision]
