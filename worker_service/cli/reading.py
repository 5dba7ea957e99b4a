"""`pagemill reindex` and `documents adopt`: read documents again, or record what another program has read."""

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
from worker_service.base.path_text import display_path, path_of
from worker_service.cli import output
from worker_service.cli.context import Invocation, confirm, confirmation_options, verb
from worker_service.cli.documents import confirm_unless_named, document_selector_options, show_documents
from worker_service.cli.read_options import TypedPassword, force_option, password_options, priority_option, read_options
from worker_service.jobs.documents import Decision, DocumentRequest, IndexStatus
from worker_service.jobs.library import Document, DocumentSelector
from worker_service.services import documents, enqueue, exports, passwords
from worker_service.services.batches import PRIORITY

_READ_OR_TO_BE_READ = (IndexStatus.QUEUED, IndexStatus.INDEXING, IndexStatus.SUCCESS)
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
    selector: DocumentSelector,
    force: bool,
    dry_run: bool,
    yes: bool,
    priority: int | None,
    *,
    options: ReadOptions,
    typed_password: TypedPassword | None,
) -> None:
    """\b
    pagemill reindex 7 --lang deu
    pagemill reindex --status failed --yes
    pagemill reindex --owner alice --quality best --dry-run
    pagemill reindex 7 --password

    Read documents again, with new settings or after a failure. Pages that are known are not read twice; --force reads
    them, too.
    """
    if selector.is_empty:
        raise BadInput("name the documents to read again", "give ids, or selectors such as --status failed")
    selected = documents.selected_documents(call.session, selector)
    if dry_run:
        show_documents(call, selected)
        return
    if not selected:
        # Return here: below, a selector without ids would mean all documents.
        if not call.print_if_json({"items": []}):
            output.note("no document matches")
        return
    confirm_unless_named(f"Read {counted(len(selected), 'document')} again?", selected, selector, yes=yes)
    # Some may have been removed while the user answered.
    selected = documents.selected_documents(call.session, DocumentSelector(ids=[document.id for document in selected]))
    if options.as_usual:
        for document in selected:
            passwords.forget(call.settings.workspace, document)
    if typed_password is not None:
        typed_password.save(call, selected)
    results = [_reindex_document(call, document, options, priority, is_forced=force) for document in selected]
    _show_results(call, results)
    if (options.quality or options.languages) and not options.force_ocr:
        _note_documents_without_ocr(call, results)


def _note_documents_without_ocr(call: Invocation, results: Sequence[ReadResult]) -> None:
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
    files = files_to_adopt(directory)
    with_text = sum(file.text is not None for file in files)
    without_text = len(files) - with_text
    sentence = f"{with_text} with text, {without_text} without"
    if dry_run:
        if not call.print_if_json({"read": with_text, "not_read": without_text}):
            output.note(sentence)
        return
    confirm(f"Record {counted(len(files), 'file')} ({sentence})?", yes=yes)
    _show_results(call, [_adopt_file(call, file, owner) for file in files])


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
    name, request = display_path(path), DocumentRequest(file.path, display_path(path.name), file.content)
    same_source = DocumentSelector(owners=(owner,), platforms=("local",), source_keys=(file.path,))
    for document in documents.each_document(call.session, same_source):
        if document.content == file.content and document.status in _READ_OR_TO_BE_READ:
            return ReadResult(name, None, Decision.UNCHANGED, document.id)
    if file.text is None:
        document_id = documents.record_document(call.session, request, platform="local", owner=owner)
        return ReadResult(name, None, None, document_id)
    enqueued = enqueue.enqueue_job(call.session, adopt_job(request, file.text, owner=owner))
    return ReadResult(name, enqueued.job_id or None, enqueued.decision, enqueued.document_id)


# What is done for a document, by the decision about its request; a request without a decision is accepted.
_ACTION_BY_DECISION: dict[Decision | None, str] = {
    Decision.UNCHANGED: "none: unchanged since it was read",
    Decision.UNDER_WAY: "none: already being read",
    Decision.TAKEN_OVER: "read again: the earlier attempt has stalled",
    Decision.ACCEPTED: "read",
    None: "read",
}


def _show_results(call: Invocation, results: Sequence[ReadResult]) -> None:
    call.show_items(results, ("JOB", "ACTION", "NAME"), lambda result: (result.job_id, _action_of(result), result.name))


def _action_of(result: ReadResult) -> str:
    return "recorded" if result.job_id is None and result.decision is None else _ACTION_BY_DECISION[result.decision]
