"""`pagemill documents`: list and remove documents; the options that choose documents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import (
    BatchId,
    DocumentId,
    Function,
    Invocation,
    add_options,
    completer,
    confirm,
    confirmation_options,
    owners_option,
    status_option,
    verb,
)
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job
from worker_service.jobs.library import Document, DocumentSelector, Weight
from worker_service.services import documents as operations
from worker_service.services.parse import read_document_order, read_document_selector

_COLUMNS = ("ID", "STATE", "DONE", "PAGES", "SIZE", "KIND", "OWNER", "UPDATED", "ERROR", "NAME", "NOTE")
_DROP_FIRST = ("SIZE", "UPDATED", "KIND", "PAGES", "DONE", "OWNER")
_FAILED_COLUMNS = ("JOB", "FAILED", "OWNER", "ERROR", "NAME", "NOTE")
"""Columns of files whose jobs failed before there was a document."""
_LIMIT = 50
_REFUSALS_SHOWN_MAX = 50
_SAMPLE_SIZE = 5

document_argument = click.argument(
    "document_id", metavar="DOCUMENT", type=DocumentId(), shell_complete=completer("document")
)
owner_option = click.option(
    "--owner", metavar="NAME", shell_complete=completer("owner"), help="Only documents of this owner."
)
tag_option = click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    shell_complete=completer("tag"),
    help="Only documents with this tag.",
)
batch_option = click.option(
    "--batch", "batch_id", type=BatchId(), metavar="N", help="Only documents that this batch asked for."
)
since_option = click.option("--since", metavar="TIME", help="Only documents added since: 3d (ago), or a time.")
until_option = click.option("--until", metavar="TIME", help="Only documents added before: 3d (ago), or a time.")
excel_option = click.option(
    "--excel", "for_excel", is_flag=True, help="Print CSV for Excel, which otherwise misreads letters such as ü."
)

_SELECTOR_FIELDS = ("ids", "statuses", "owners", "name", "tags", "kinds", "since", "until")


def document_selector_options(function: Function) -> Function:
    @functools.wraps(function)
    def run(call: Invocation, batch_id: int | None, **values: Any) -> Any:
        filters = {name: values.pop(name) for name in _SELECTOR_FIELDS}
        batch_ids = () if batch_id is None else (batch_id,)
        return function(call, read_document_selector(now=wall_clock(), batch_ids=batch_ids, **filters), **values)

    return add_options(
        run,
        click.argument(
            "ids", metavar="[DOCUMENT]...", nargs=-1, type=DocumentId(), shell_complete=completer("document")
        ),
        status_option([*IndexStatus]),
        owners_option("documents"),
        click.option("--name", metavar="TEXT", default="", help="Only documents with this in their name."),
        batch_option,
        tag_option,
        click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only of this kind, such as pdf or image."),
        since_option,
        until_option,
    )


# ── The list ────────────────────────────────────────────────────────────────────────────────────────────────────


@verb
@document_selector_options
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help=f"Number of documents. Default: {_LIMIT}.")
@click.option("--before", "before_id", type=DocumentId(), metavar="ID", help="Next page: documents with smaller ids.")
@click.option(
    "--sort", "order", default="date", metavar="ORDER", help="date, name, pages or state; -name for the reverse."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print all of them as CSV, with digests and origin.")
@excel_option
@click.option("--xlsx", type=click.Path(path_type=Path), metavar="FILE", help="Write all of them to a workbook.")
def ls(
    call: Invocation,
    selector: DocumentSelector,
    limit: int | None,
    before_id: int | None,
    order: str,
    as_csv: bool,
    for_excel: bool,
    xlsx: Path | None,
) -> None:
    """\b
    pagemill documents
    pagemill documents --status failed --owner alice
    pagemill documents ls --owner alice --csv > documents.csv
    pagemill documents --batch 7 --xlsx documents.xlsx
    pagemill documents adopt /srv/read
    pagemill documents rm 7

    List documents, newest first, with their state and progress.

    The CSV and the workbook also have tags, source, digests and the time of reading. Files that failed before they
    became documents have no number.
    """
    if as_csv or for_excel or xlsx is not None:
        if limit is not None or before_id is not None:
            raise BadInput("--csv, --excel and --xlsx write all documents", "leave out --limit and --before")
        _write_list(call, selector, xlsx, for_excel=for_excel)
        return
    page = operations.list_documents(
        call.session, selector, limit=limit or _LIMIT, before_id=before_id, order=read_document_order(order)
    )
    is_empty = not page.items and not page.not_brought_in
    if is_empty and not selector.is_empty and not call.as_json:
        output.note("no document matches")
        return
    show_documents(call, page.items, page.not_brought_in, next_id=page.next)
    if page.are_more_not_brought_in and not call.as_json:
        output.note("more files failed before they became documents: pagemill failures lists them")


def _write_list(call: Invocation, selector: DocumentSelector, xlsx: Path | None, *, for_excel: bool) -> None:
    from worker_service.services.csv_and_xlsx import (  # not needed for the list
        DOCUMENT_COLUMNS,
        document_row,
        write_document_list,
    )

    if call.as_json:
        raise BadInput("--json cannot be combined with --csv, --excel and --xlsx", "use one of them")
    rows = map(document_row, operations.each_with_origin(call.session, selector))
    if xlsx is None:
        output.show_csv(DOCUMENT_COLUMNS, rows, is_for_excel=for_excel)
        return
    from worker_service.base.files import atomic_write

    with atomic_write(xlsx) as file:
        write_document_list(file, rows)
    output.show(str(xlsx))


def confirm_unless_named(
    question: str, documents: Sequence[Document], selector: DocumentSelector, *, yes: bool
) -> None:
    if len(documents) > 1 and not selector.ids:
        confirm(question, yes=yes, sample=[document.name for document in documents[:_SAMPLE_SIZE]])


def show_documents(
    call: Invocation, documents: Sequence[Document], failed_jobs: Sequence[Job] = (), *, next_id: int | None = None
) -> None:
    if call.print_if_json({"items": documents, "not_brought_in": failed_jobs, "next": next_id}):
        return
    now = wall_clock()
    if documents:
        document_rows = [_document_cells(document, now) for document in documents]
        output.show_table(_COLUMNS, document_rows, drop_first=_DROP_FIRST, never_cut=("ERROR",))
    elif not failed_jobs:
        output.note("there are no documents yet: pagemill add report.pdf")
    if next_id is not None:
        output.note(f"for more, add --before {next_id}")
    if failed_jobs:
        if documents:
            output.show()
        job_rows = [
            (
                job.id, output.short_time(job.completed_at or "", now=now), job.owner, job.error_code, job.name,
                job.error_text,
            )
            for job in failed_jobs
        ]  # fmt: skip
        output.show_table(_FAILED_COLUMNS, job_rows, drop_first=("FAILED", "OWNER"), never_cut=("ERROR",))
        output.note("these files failed before they became documents; what to do: pagemill why JOB")


def _document_cells(document: Document, now: datetime) -> tuple[object, ...]:
    note = document.note
    if document.has_failed_anew:
        note = failure_of_generation(document)
    elif document.error_text:
        note = document.error_text
    elif document.gone_at:
        note = "deleted at its source"
    size = output.format_size(document.size) if document.size else None
    updated = output.short_time(document.updated_at, now=now)
    return (
        document.id, document.state, f"{document.percent}%", document.pages, size, document.kind, document.owner,
        updated, document.error_code, document.name, note,
    )  # fmt: skip


def failure_of_generation(document: Document) -> str:
    return f"generation {document.index_generation} failed: {document.error_text or document.error_code}"


# ── Removal ─────────────────────────────────────────────────────────────────────────────────────────────────────


@verb
@document_selector_options
@confirmation_options
def rm(call: Invocation, selector: DocumentSelector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill documents rm 7
    pagemill documents rm --owner alice --status failed --dry-run
    pagemill documents rm --name draft --yes

    Delete documents: their text, pages and files in the workspace. The source files stay, and so do files that other
    documents share. A document with a live job is refused. `pagemill add` reads a file again; a watched folder reads it
    again only after it has changed.

    This cannot be undone: without --yes, you have to type the number of documents. Exit code 1 if some were refused.
    """
    if selector.is_empty:
        raise BadInput("name the documents to delete", "give ids, or selectors such as --owner alice")
    from worker_service.services.document_removal import remove_documents, weigh_removal  # not needed for the list

    selected = operations.selected_documents(call.session, selector)
    weight = weigh_removal(call.session, selected)
    sample = _sample_lines(selected)
    if dry_run:
        ids = [document.id for document in selected]
        call.show_result(
            {"dry_run": True, **asdict(weight), "items": ids}, f"would remove {_describe_weight(weight)}", *sample
        )
        return 0
    if selected:
        question = f"This deletes {_describe_weight(weight)} for good."
        confirm(question, yes=yes, sample=sample, number=len(selected))
    removed, files_left = remove_documents(call.session, selected)
    exit_code = 1 if removed.refused else 0
    refused = [{"id": document_id, "reason": reason} for document_id, reason in removed.refused.items()]
    answer = {"action": removed.action_id, **asdict(removed.freed), "items": removed.document_ids}
    if call.print_if_json({**answer, "refused": refused, "files_left": files_left}):
        return exit_code
    if not selected:
        output.note("no document matches")
        return 0
    output.show(f"removed {_describe_weight(removed.freed)}")
    for document_id, reason in list(removed.refused.items())[:_REFUSALS_SHOWN_MAX]:
        output.note(f"document {document_id}: {reason}")
    if files_left:
        number = counted(len(files_left), "file")
        output.note(f"no permission to delete {number} in the workspace; the daemon will delete them")
    return exit_code


def _describe_weight(weight: Weight) -> str:
    shared = f"; {counted(weight.shared_files, 'shared file')} stay" if weight.shared_files else ""
    parts = [counted(weight.pages, "page"), f"{counted(weight.files, 'file')} of {output.format_size(weight.size)}"]
    return f"{counted(weight.documents, 'document')} ({', '.join(parts)}{shared})"


def _sample_lines(documents: Sequence[Document]) -> list[str]:
    rows = [
        (document.id, document.state, document.owner, document.name, output.format_size(document.size))
        for document in documents[:_SAMPLE_SIZE]
    ]
    lines = output.table_lines(("ID", "STATE", "OWNER", "NAME", "SIZE"), rows) if rows else []
    more = len(documents) - _SAMPLE_SIZE
    return [*lines, f"… and {more:,} more"] if more > 0 else lines


documents = DefaultVerbGroup("documents", ls, rm, module_by_verb={"adopt": "reading"}, prefix="documents ")
