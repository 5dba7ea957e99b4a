"""Looking at documents, and taking out what was made of them."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import click

from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput, PagemillError, Refused
from worker_service.base.files import atomic_write as whole_file
from worker_service.base.humanize import counted
from worker_service.base.sanitize import harmless
from worker_service.cli import Verbs, group, output
from worker_service.cli.context import (
    BatchId,
    DocumentId,
    Function,
    Invocation,
    JobId,
    completes,
    confirm,
    confirming,
    status_option,
    verb,
)
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.job import Job
from worker_service.jobs.library import Document, DocumentSelector, Hit, Weight
from worker_service.services import documents as operations
from worker_service.services import exports, keyword_counts, page_layouts
from worker_service.services.exports import ROLES, IfExists, TargetExists
from worker_service.services.keyword_counts import count_cells, count_headers, write_workbook
from worker_service.services.page_layouts import tables_of, write_csv, write_tables
from worker_service.services.parse import read_document_selector
from worker_service.services.serialize import as_object
from worker_service.services.spreadsheets import HAND_OVER_COLUMNS, hand_over_row

_COLUMNS = ("ID", "STATE", "DONE", "PAGES", "SIZE", "KIND", "OWNER", "NAME", "MOVED", "ERROR", "NOTE")
_GIVES_UP = ("SIZE", "MOVED", "KIND", "PAGES", "DONE", "OWNER")
_NOT_BROUGHT_IN_COLUMNS = ("JOB", "FAILED", "OWNER", "NAME", "ERROR", "NOTE")
_LISTED = 50
_SHOWN_PAGES = 50
_SAMPLE = 5
# In a text that somebody else has written they mean nothing.
_OWN_MARKS = ("\x02", "\x03")
_MARKED = re.compile("\x02([^\x02\x03]*)\x03")


_one = click.argument("document_id", metavar="DOCUMENT", type=DocumentId(), shell_complete=completes("document"))
_owner = click.option("--owner", metavar="NAME", shell_complete=completes("owner"), help="Whose documents.")
_batch = click.option("--batch", "batch_id", type=BatchId(), metavar="N", help="Documents that this batch asked for.")


def choosing(function: Function) -> Function:
    """Give the verb the selectors of documents; its function gets a `DocumentSelector` after the call."""

    @functools.wraps(function)
    def run(
        call: Invocation,
        ids: Sequence[int],
        statuses: Sequence[str],
        owners: Sequence[str],
        part: str,
        batch_id: int | None,
        **values: Any,
    ) -> Any:
        batch_ids = () if batch_id is None else (batch_id,)
        return function(call, read_document_selector(ids, statuses, owners, part, batch_ids), **values)

    _batch(run)
    click.option("--name", "part", metavar="TEXT", default="", help="Documents with this in their name.")(run)
    click.option("--owner", "owners", multiple=True, metavar="NAME", shell_complete=completes("owner"))(run)
    status_option([*IndexStatus])(run)
    return click.argument(
        "ids", metavar="[DOCUMENT]...", nargs=-1, type=DocumentId(), shell_complete=completes("document")
    )(run)


# ── Out ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb
@_one
@click.option("--pages", metavar="A-B", help="3, 3-5, 3- or -5.")
def text(call: Invocation, document_id: int, pages: str | None) -> int:
    """\b
    pagemill text 7
    pagemill text 7 --pages 3-5 | less
    pagemill text 7 --json

    The text of a document. Between pages stands a form feed, as pdftotext has it.

    Exit code 1 if there is none.
    """
    document, found = operations.document_text(call.session, document_id, pages=pages)
    items = [
        {"number": one.number, "method": one.method, "confidence": one.confidence, "text": one.text} for one in found
    ]
    if not call.printed_json({"document": document_id, "name": document.name, "items": items}):
        output.show_text("\f".join(f"{(one.text or '').rstrip()}\n" for one in found))
    if not found:
        output.say(f"document {document_id} has no text to show: {_why_no_text(document)}")
    return 0 if found else 1


@verb
@click.argument("words", metavar="QUERY", nargs=-1, required=True)
@_owner
@_batch
@click.option(
    "--document",
    "document_id",
    type=DocumentId(),
    shell_complete=completes("document"),
    metavar="N",
    help="Only in this one.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, metavar="N", help="The best so many; 20 unless given."
)
@click.option("--sure", "is_sure", is_flag=True, help="Leave out pages recognised with less than 50 % confidence.")
@click.option("--all", "needs_all", is_flag=True, help="Only pages with all of the words.")
def search(
    call: Invocation,
    words: Sequence[str],
    owner: str | None,
    batch_id: int | None,
    document_id: int | None,
    limit: int,
    is_sure: bool,
    needs_all: bool,
) -> int:
    """\b
    pagemill search what are the climate risks of our suppliers
    pagemill search 'climate NEAR risk'
    pagemill search '"scope 3" emissions' --owner alice
    pagemill search 'sustainab* NOT water' --json

    Find the best pages: first those with all of the words, then those with some of them. Also "a phrase", a NEAR b,
    a OR b, a NOT b, begin*. Punctuation within a word, as in scope-3, keeps its parts together.

    Exit code 1 if nothing was found.
    """
    marks = ("[", "]") if call.as_json else _OWN_MARKS
    operations.require_batches(call.session, () if batch_id is None else (batch_id,))
    found = call.session.library.search(
        " ".join(words),
        owner=owner,
        document_id=document_id,
        batch_id=batch_id,
        most=limit,
        marks=marks,
        is_sure=is_sure,
        needs_all=needs_all,
    )
    if not call.printed_json({"items": found.hits, "is_partial": found.is_partial}):
        for hit in found.hits:
            output.show(_hit_line(hit))
        if not found.hits:
            output.say("no page has that")
        elif not found.hits[0].has_all_words:
            output.say("no page has all of these words: these have some of them")
        elif not found.hits[-1].has_all_words:
            output.say("the first pages have all of these words, the others some of them (--all leaves those out)")
    if found.is_partial:
        output.say("there are very many: the best of the pages that were stored last are shown")
    return 0 if found.hits else 1


@verb
@_one
@click.option("--pages", metavar="A-B", help="3, 3-5, 3- or -5.")
@click.option(
    "--csv", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="A file for each table."
)
@click.option(
    "--xlsx", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="A workbook, a sheet for each."
)
@click.option("--force", is_flag=True, help="With --csv and --xlsx: replace files that are there.")
def tables(
    call: Invocation, document_id: int, pages: str | None, directory: Path | None, xlsx: Path | None, force: bool
) -> int:
    """\b
    pagemill tables 7
    pagemill tables 7 --pages 3-5 --csv out/
    pagemill tables 7 --xlsx tables.xlsx
    pagemill tables 7 --json

    The tables on the pages of a document, a row a line, its cells parted by tabs. Cells are text as it stands on the
    page, and none becomes a formula.

    Exit code 1 if there are none.
    """
    document = call.session.library.document(document_id)
    found = tables_of(call.session, document_id, pages=pages)
    count = 0
    if xlsx is not None:
        _require_free(xlsx, force)
        some = list(found)
        if some:
            with whole_file(xlsx) as file:
                write_tables(file, some)
            output.say(f"wrote {xlsx}")
        if directory is None and not call.as_json:
            return _how_many_tables(document, len(some))
        found = iter(some)
    if directory is not None:
        written = []
        for table in found:
            path = directory / f"{table.name}.csv"
            _require_free(path, force)
            directory.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                write_csv(file, table)
            written.append(path)
        if not call.printed_json({"items": written}):
            for path in written:
                output.show(str(path))
        return _how_many_tables(document, len(written))
    items = list(found) if call.as_json else []
    if call.printed_json({"document": document_id, "name": document.name, "items": items}):
        return 0 if items else 1
    for table in found:
        count += 1
        output.say(f"page {table.page}, table {table.number}:")
        output.show_text("".join("\t".join(map(harmless, row)).rstrip("\t") + "\n" for row in table.rows))
    return _how_many_tables(document, count)


def _require_free(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise Refused(f"{path} is there already: --force replaces it")


def _how_many_tables(document: Document, count: int) -> int:
    if not count:
        why = "" if document.current_generation is not None else ": it is not read yet"
        if document.kind == "sheet":
            why = f": a spreadsheet is one itself: pagemill export {document.id} --format original"
        output.say(f"document {document.id} has no table on these pages{why}")
    return 0 if count else 1


class _TermsFile(click.File):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value != "-" and not Path(value).exists():
            raise BadInput(f"there is no file {value}")
        return super().convert(value, param, ctx)


@verb
@click.argument("terms", metavar="TERMS.txt", type=_TermsFile(encoding="utf-8"))
@_owner
@_batch
@click.option("--pages", "by_page", is_flag=True, help="A row for each page on which one stands.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV on stdout.")
@click.option("--xlsx", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a workbook.")
@click.option("--force", is_flag=True, help="With --xlsx: replace the file.")
def keywords(
    call: Invocation,
    terms: Any,
    owner: str | None,
    batch_id: int | None,
    by_page: bool,
    as_csv: bool,
    xlsx: Path | None,
    force: bool,
) -> None:
    """\b
    pagemill keywords terms.txt
    pagemill keywords terms.txt --csv > counts.csv
    pagemill keywords terms.txt --xlsx counts.xlsx --owner alice

    How often each term of a file stands in each document: a row for each document, a column for each term, zeros
    included. A term is a word, a phrase or begin*, each on a line of its own. A workbook has a sheet of pages as well.
    """
    if xlsx is not None:
        _require_free(xlsx, force)
    try:
        words = keyword_counts.parse_terms(terms.read())
    except UnicodeDecodeError as error:
        raise BadInput(f"{terms.name} is not UTF-8 text", "save it as UTF-8") from error
    found = list(keyword_counts.count_keywords(call.session, words, owner=owner, batch_id=batch_id))
    whole = [row for part in found for row in part.by_document]
    pages = [row for part in found for row in part.by_page]
    rows = pages if by_page else whole
    if xlsx is not None:
        with whole_file(xlsx) as file:
            write_workbook(file, words, found)
        output.say(f"wrote {xlsx}")
    elif call.printed_json({"terms": words, "items": [row.as_object(words) for row in rows]}):
        return
    else:
        (output.show_csv if as_csv else output.show_table)(
            count_headers(words, of_pages=by_page), [*map(count_cells, rows)]
        )
    if unread := sum(not row.is_read for row in whole):
        output.say(f"{counted(unread, 'document')} without text, of which nothing can be counted: pagemill documents")
    if not pages:
        output.say("none of the terms stands on any page")


@verb
@choosing
@click.option("--format", "form", type=click.Choice(list(ROLES)), default="txt", help="txt unless given.")
@click.option(
    "-o", "--output", "directory", type=click.Path(file_okay=False, path_type=Path), default=Path(), metavar="DIR"
)
@click.option("--update", is_flag=True, help="Where files are there: replace those that have changed.")
@click.option("--force", is_flag=True, help="Where files are there: replace them.")
@click.option(
    "--job", "job_id", type=JobId(), metavar="ID", help="The files of a job, such as a program of yours left."
)
def export(
    call: Invocation,
    chosen: DocumentSelector,
    form: str,
    directory: Path,
    update: bool,
    force: bool,
    job_id: int | None,
) -> int:
    """\b
    pagemill export 7
    pagemill export 7 8 9 --format pdf -o out/
    pagemill export --owner alice --format json -o out/ --update
    pagemill export --batch 7 -o out/
    pagemill export --job 42 -o out/

    Copy what was made of documents: their text, a PDF that can be searched, all words with their places (json), hOCR.
    Prints each file that it wrote.

    Exit code 1 if some could not be copied; the others are.
    """
    if update and force:
        raise BadInput("--force replaces all files that are there, --update those that have changed", "say one of them")
    there = IfExists.REPLACED if force else IfExists.UPDATED if update else IfExists.KEPT
    if job_id is not None:
        if not chosen.is_empty:
            raise BadInput("say which: the files of a job (--job), or those of documents")
        found = exports.export_job_files(call.session, job_id, directory, there)
    else:
        found = exports.export_documents(call.session, chosen, form, directory, there)
    if found.chosen == 1 and found.failures:
        raise found.failures[0]
    if not call.printed_json({"items": found.items, "unchanged": found.unchanged}):
        for path in found.items:
            output.show(str(path))
        if found.unchanged:
            output.say(f"{counted(len(found.unchanged), 'file')} there already, and unchanged")
        if not found.chosen:
            output.say("no document is like that")
    for sentence in _sentences(found.failures):
        output.say(sentence)
    return 1 if found.failures else 0


def _sentences(failures: Sequence[PagemillError]) -> list[str]:
    """Of what is there already, only the first is told."""
    there = [str(error) for error in failures if isinstance(error, TargetExists)]
    more = [f"{counted(len(there) - 1, 'file')} more there already"] if len(there) > 1 else []
    return [*there[:1], *more, *(str(error) for error in failures if not isinstance(error, TargetExists))]


def _why_no_text(document: Document) -> str:
    if document.status is IndexStatus.FAILED:
        return f"it could not be read ({document.error_code}: {document.error_text})"
    if document.status is IndexStatus.SUCCESS:
        return f"it has {counted(document.pages or 0, 'page')}"
    return f"it is {document.status}"


# ── Terms ───────────────────────────────────────────────────────────────────────────────────────────────────────


# ── The list ────────────────────────────────────────────────────────────────────────────────────────────────────


@verb
@choosing
@click.option("--limit", type=click.IntRange(1, 1000), metavar="N", help="At most so many; 50 unless given.")
@click.option("--before", "before_id", type=DocumentId(), metavar="ID", help="The next page: smaller ids.")
@click.option("--csv", "as_csv", is_flag=True, help="All of them as CSV on stdout, to hand over.")
def ls(call: Invocation, chosen: DocumentSelector, limit: int | None, before_id: int | None, as_csv: bool) -> None:
    """\b
    pagemill documents ls
    pagemill documents --status failed --owner alice
    pagemill documents --owner alice --csv > documents.csv
    pagemill documents --batch 7 --csv

    List documents, the newest first. CSV also tells where each comes from, the size and the digests of its original
    (SHA-256, MD5) and when it was read; what failed before it was a document has no number.
    """
    if as_csv:
        if call.as_json:
            raise BadInput("CSV and JSON are two answers", "say --csv or --json")
        if limit is not None or before_id is not None:
            raise BadInput("--csv has all of them", "leave --limit and --before out")
        output.show_csv(HAND_OVER_COLUMNS, map(hand_over_row, operations.each_handed_over(call.session, chosen)))
        return
    page = operations.list_documents(call.session, chosen, limit=limit or _LISTED, before_id=before_id)
    if not page.items and not page.not_brought_in and not chosen.is_empty and not call.as_json:
        output.say("no document is like that")
        return
    show_documents(call, page.items, page.not_brought_in, next_id=page.next)
    if page.are_more_not_brought_in and not call.as_json:
        output.say("more were not brought in: pagemill errors counts them")


class _Documents(Verbs):
    """Without a verb of its own, the list: `pagemill documents --status failed`."""

    begins = "documents "
    imported_later: ClassVar = {"adopt": "reading"}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # No document is a word: that one is a verb, or a misspelt one.
        is_verb = bool(args) and args[0].isalpha()
        if not is_verb and "--help" not in args[:1]:
            args = ["ls", *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of `documents ls`, which `documents` takes as well."""
        ls.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@verb
@choosing
@confirming
def rm(call: Invocation, chosen: DocumentSelector, dry_run: bool, yes: bool) -> int:
    """\b
    pagemill documents rm 7
    pagemill documents rm --owner alice --status failed --dry-run
    pagemill documents rm --name draft --yes

    Remove documents for good: what was read of them, and their files in the workspace. The files that they were made
    from stay where they are, and what another document uses as well stays. One that a job still works for is left, and
    the job named. `pagemill ingest` brings a file in again; a crawl does once it has changed.

    This is not undone: without --yes, the number of documents has to be typed. Exit code 1 if some were left.
    """
    if chosen.is_empty:
        raise BadInput("say which documents to remove: ids, or selectors such as --owner alice")
    meant = operations.selected_documents(call.session, chosen)
    weight = operations.weigh_removal(call.session, meant)
    if dry_run:
        if call.printed_json({"dry_run": True, **as_object(weight), "items": [one.id for one in meant]}):
            return 0
        output.show(f"would remove {_weighed(weight)}")
        for line in _sample(meant):
            output.show(line)
        return 0
    if meant:
        question = f"This removes {_weighed(weight)}, for good."
        confirm(question, yes=yes, sample=_sample(meant), number=len(meant))
    removed, left = operations.remove_documents(call.session, meant)
    refused = [{"id": document_id, "reason": reason} for document_id, reason in removed.refused.items()]
    freed = {**as_object(removed.freed), "items": removed.document_ids}
    if call.printed_json({"action": removed.action_id, **freed, "refused": refused, "files_left": left}):
        return 1 if refused else 0
    if not meant:
        output.say("no document is like that: nothing to do")
        return 0
    output.show(f"removed {_weighed(removed.freed)}")
    for document_id, reason in list(removed.refused.items())[:_SHOWN_PAGES]:
        output.say(f"document {document_id}: {reason}")
    if left:
        output.say(
            f"you could not remove {counted(len(left), 'file')} in the workspace: a daemon that runs tries as well"
        )
    return 1 if refused else 0


def _weighed(weight: Weight) -> str:
    shared = f"; {counted(weight.shared_files, 'file')} that others use stay" if weight.shared_files else ""
    parts = [counted(weight.pages, "page"), f"{counted(weight.files, 'file')} of {output.size(weight.size)}"]
    return f"{counted(weight.documents, 'document')} ({', '.join(parts)}{shared})"


def _sample(meant: Sequence[Document]) -> list[str]:
    rows = [(one.id, one.state, one.owner, one.name, output.size(one.size)) for one in meant[:_SAMPLE]]
    lines = output.table_lines(("ID", "STATE", "OWNER", "NAME", "SIZE"), rows) if rows else []
    return [*lines, f"… and {len(meant) - _SAMPLE:,} more"] if len(meant) > _SAMPLE else lines


documents = group(
    "documents",
    "\b\npagemill documents\npagemill documents --status failed --owner alice\n"
    "pagemill documents adopt /srv/read\npagemill documents rm 7\n\n"
    "The documents, the newest first, and how far they are.",
    *(ls, rm),
    cls=_Documents,
)


def show_document(call: Invocation, document_id: int) -> None:
    """All about one document: `pagemill show document:7`."""
    found = operations.get_document_details(call.session, document_id)
    document, pages = found.document, found.page_items
    whole = as_object(found)
    row = whole.pop("document")
    read_by = page_layouts.page_readers(call.session, document_id, len(pages) if call.as_json else _SHOWN_PAGES)
    for page in whole["page_items"]:
        if one := read_by.get(page["number"]):
            page |= {
                "written_in": one.written_in,
                "readers": one.readers,
                "lines": one.written_lines,
                "second": len(one.second),
            }
    if call.printed_json(row | whole):
        return
    output.show_values(row)
    if document.has_failed_anew:
        output.say(
            f"people read its generation {document.current_generation}; {_failed_anew(document)}. Put right what that "
            f"names and ask for it again, or stay with what is read: pagemill reindex {document_id} reads it as it was"
        )
    elif document.error_code:
        output.say(f"to read it again: pagemill reindex {document_id}; pages that are known are not read twice")
    rows = [(one.number, one.method, one.confidence and round(one.confidence), one.characters) for one in pages]
    titles: tuple[str, ...] = ("PAGE", "METHOD", "CONFIDENCE", "CHARACTERS")
    shown: list[tuple[object, ...]] = list(rows[:_SHOWN_PAGES])
    if read_by:
        titles += ("LANGUAGE", "READ BY")
        who = [read_by.get(row[0], page_layouts.PageReaders()) for row in rows[:_SHOWN_PAGES]]
        shown = [(*row, "+".join(one.written_in), _who_read(one)) for row, one in zip(rows, who, strict=False)]
    output.show_section(titles, shown)
    if len(rows) > _SHOWN_PAGES:
        output.say(f"and {counted(len(rows) - _SHOWN_PAGES, 'page')} more: --json has all")
    files = [(file.role, file.name, file.size, file.path) for file in found.files]
    output.show_section(("ROLE", "NAME", "BYTES", "PATH"), files)


def _who_read(page: page_layouts.PageReaders) -> str:
    """``tesseract 5.5.4; 3 of 42 lines PP-OCRv6 small``: what stands in brackets, --json tells."""
    names = [re.sub(r" \(.*\)", "", name) for name in page.readers]
    lines = f"{len(page.second)} of {counted(page.written_lines, 'line')} "
    return "".join(names[:1]) + "".join(f"; {lines}{name}" for name in names[1:])


# ── Showing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def show_documents(
    call: Invocation, shown: Sequence[Document], not_brought_in: Sequence[Job] = (), *, next_id: int | None = None
) -> None:
    if call.printed_json({"items": shown, "not_brought_in": not_brought_in, "next": next_id}):
        return
    now = wall_clock()
    if shown:
        rows = [_row(one, now) for one in shown]
        output.show_table(_COLUMNS, rows, gives_up=_GIVES_UP, whole=("ERROR",))
    elif not not_brought_in:
        output.say("no document is there: pagemill ingest report.pdf, or pagemill crawl FOLDER")
    if next_id is not None:
        output.say(f"more: the same with --before {next_id}")
    if not_brought_in:
        if shown:
            output.show()
        lost = [
            (
                job.id, output.when(job.completed_at or "", now=now), job.owner, job.name, job.error_code,
                job.error_text,
            )
            for job in not_brought_in
        ]  # fmt: skip
        output.show_table(_NOT_BROUGHT_IN_COLUMNS, lost, gives_up=("FAILED", "OWNER"), whole=("ERROR",))
        output.say("these failed before they were documents: pagemill why JOB says what to do")


def _failed_anew(document: Document) -> str:
    return f"generation {document.index_generation} failed: {document.error_text or document.error_code}"


def _row(one: Document, now: datetime) -> tuple[object, ...]:
    note = (
        _failed_anew(one)
        if one.has_failed_anew
        else one.error_text or ("gone at its source" if one.gone_at else one.note)
    )
    moved = output.when(one.updated_at, now=now)
    return (
        one.id, one.state, f"{one.percent}%", one.pages, output.size(one.size) if one.size else None, one.kind,
        one.owner, one.name, moved, one.error_code, note,
    )  # fmt: skip


def _hit_line(hit: Hit) -> str:
    parts = _MARKED.split(" ".join(hit.snippet.split()))
    # Every second one stood between marks.
    snippet = (_marked(part) if at % 2 else part for at, part in enumerate(parts))
    return output.joined(f"{hit.document_id}:{hit.number}  {hit.name}  ", *snippet)


def _marked(word: str) -> str:
    return output.styled(word, bold=True) if output.is_terminal(sys.stdout) else f"[{word}]"
