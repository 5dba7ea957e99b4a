"""The contents of documents: `text`, `search`, `tables` and `keywords`."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from job_handlers.file_kinds import FileKind
from worker_service.base.clock import wall_clock
from worker_service.base.errors import BadInput, Refused
from worker_service.base.files import atomic_write
from worker_service.base.humanize import counted
from worker_service.base.sanitize import harmless
from worker_service.cli import output
from worker_service.cli.context import DocumentId, Function, Invocation, add_options, completer, number_option, verb
from worker_service.cli.documents import (
    batch_option,
    document_argument,
    excel_option,
    owner_option,
    since_option,
    tag_option,
    until_option,
)
from worker_service.jobs.documents import IndexStatus
from worker_service.jobs.library import Document
from worker_service.jobs.page_structure import TableOnPage
from worker_service.jobs.search import FoundDocument, FoundPage, SearchRequest, SearchResult
from worker_service.jobs.tags import read_tags
from worker_service.services import documents
from worker_service.services.keyword_counts import (
    count_cells,
    count_headers,
    count_keywords,
    parse_terms,
    write_workbook,
)
from worker_service.services.page_blocks import with_markdown
from worker_service.services.page_tables import tables_of, tables_with_all_rows, write_csv, write_tables
from worker_service.services.parse import read_past
from worker_service.services.search import find_documents

# The search puts these around each hit in a snippet. The text of a document contains neither character.
_HIT_MARKS = ("\x02", "\x03")
_MARKED_HIT = re.compile("\x02([^\x02\x03]*)\x03")

_pages_option = click.option("--pages", metavar="A-B", help="Only these pages: 3, 3-5, 3- or -5.")


@verb
@document_argument
@_pages_option
@click.option(
    "--format", "form", type=click.Choice(["txt", "md"]), default="txt", help="txt or md (Markdown). Default: txt."
)
def text(call: Invocation, document_id: int, pages: str | None, form: str) -> int:
    """\b
    pagemill text 7
    pagemill text 7 --pages 3-5 | less
    pagemill text 7 --format md
    pagemill text 7 --json

    Print the text of a document. Pages are separated by a form feed, as in pdftotext. Markdown has headings, lists and
    tables, and leaves out running heads, feet and page numbers.

    Exit code 1 if there is no text.
    """
    document, page_results = documents.document_text(call.session, document_id, pages=pages)
    if form == "md":
        page_results = with_markdown(call.session, document_id, page_results)
    items = [
        {"number": page.number, "method": page.method, "confidence": page.confidence, "text": page.text}
        for page in page_results
    ]
    if not call.print_if_json({"document": document_id, "name": document.name, "items": items}):
        output.show_text("\f".join(f"{(page.text or '').rstrip()}\n" for page in page_results))
    if not page_results:
        output.note(f"document {document_id} has no text to show: {_reason_without_text(document)}")
    return 0 if page_results else 1


def _reason_without_text(document: Document) -> str:
    if document.status is IndexStatus.FAILED:
        return f"it could not be read ({document.error_code}: {document.error_text})"
    if document.status is IndexStatus.SUCCESS:
        return f"it has {counted(document.pages or 0, 'page')}"
    return f"it is {document.status}"


# ── Search ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _search_options(function: Function) -> Function:
    @functools.wraps(function)
    def run(call: Invocation, words: Sequence[str], since: str | None, until: str | None, **values: Any) -> Any:
        filter_names = ("owner", "document_id", "batch_id", "kind", "is_sure", "needs_all")
        filters: dict[str, Any] = {name: values.pop(name) for name in filter_names}
        now = wall_clock()
        filters |= {"since": read_past(since or None, now=now), "until": read_past(until or None, now=now)}
        filters["tags"] = read_tags(values.pop("tags"))
        request = SearchRequest(" ".join(words), **filters)
        return function(call, request, **values)

    return add_options(
        run,
        click.argument("words", metavar="QUERY", nargs=-1, required=True),
        owner_option,
        batch_option,
        tag_option,
        click.option(
            "--document",
            "document_id",
            type=DocumentId(),
            shell_complete=completer("document"),
            metavar="N",
            help="Only pages of this document.",
        ),
        click.option(
            "--kind", type=click.Choice([kind.value for kind in FileKind]), help="Only documents of this kind."
        ),
        since_option,
        until_option,
        click.option("--sure", "is_sure", is_flag=True, help="Leave out pages with an OCR confidence below 50 %."),
        click.option("--all", "needs_all", is_flag=True, help="Only pages with all words of the query."),
    )


@verb
@_search_options
@number_option("--limit", "documents", 10, "Number of documents.")
@click.option("--skip", type=click.IntRange(0), default=0, metavar="N", help="Leave out the first N documents.")
@number_option("--pages", "pages_each", 3, "Passages of each document.")
def search(call: Invocation, request: SearchRequest, **limits: int) -> int:
    """\b
    pagemill search 'climate NEAR risk'
    pagemill search what are the climate risks of our suppliers
    pagemill search '"scope 3" emissions' --owner alice --kind pdf --since 30d
    pagemill search 'sustainab* NOT water' --json

    Find documents, best match first: those with all words of the query in their name and tags or on a page, then those
    with some. A query may also have "a phrase", a NEAR b, a OR b, a NOT b, or begin*. Punctuation in a word, as in
    scope-3, keeps its parts together.

    The best passages of a document follow its name, each with the number of the document and of the page. Documents
    with the same content are shown once.

    Exit code 1 if nothing was found.
    """
    request = replace(request, marks=("[", "]") if call.as_json else _HIT_MARKS, **limits)
    result = find_documents(call.session, request)
    if not call.print_if_json(result):
        for document in result.items:
            output.show(_document_line(document))
            for page in document.best_pages:
                output.show(_page_line(document.document_id, page))
        for sentence in _search_notes(result, request):
            output.note(sentence)
    if result.is_partial:
        output.note("too many pages match: only the newest pages were ranked")
    return 0 if result.items else 1


def _document_line(document: FoundDocument) -> str:
    pages = f"{counted(len(document.page_numbers), 'page')} found" if document.page_numbers else "the name matches"
    pages += " by meaning" if document.is_similar else ""
    facts = [document.name, document.owner, ", ".join(document.tags), pages]
    if document.copies:
        facts.append(f"same content: {', '.join(f'document {copy.document_id}' for copy in document.copies)}")
    return f"{document.document_id}  {' · '.join(filter(None, facts))}"


def _page_line(document_id: int, page: FoundPage) -> str:
    # Splitting at a group gives text and hits in turn.
    texts_and_hits = _MARKED_HIT.split(" ".join(page.snippet.split()))
    snippet = (_highlighted(part) if index % 2 else part for index, part in enumerate(texts_and_hits))
    missing = f"  (without {', '.join(page.missing_words)})" if page.missing_words else ""
    return output.join_styled(f"    {document_id}:{page.number}  ", *snippet, missing)


def _search_notes(result: SearchResult, request: SearchRequest) -> Iterator[str]:
    if result.suggestion:
        yield f"did you mean: {result.suggestion}"
    if not result.items:
        yield "no page matches"
        return
    if not result.documents_with_all:
        has_similar = any(document.is_similar for document in result.items)
        yield f"no page has all of these words; these have some of them{' or a similar meaning' if has_similar else ''}"
    elif result.documents_with_some:
        yield (
            f"all of these words are on a page of {counted(result.documents_with_all, 'document')}, some of them in "
            f"{counted(result.documents_with_some, 'other document')}; --all leaves those out"
        )
    if result.next is not None:
        yield f"documents {request.skip + 1} to {result.next} are shown; --skip {result.next} shows the next"


def _highlighted(word: str) -> str:
    return output.styled(word, bold=True) if output.is_terminal(sys.stdout) else f"[{word}]"


# ── Tables and keywords ─────────────────────────────────────────────────────────────────────────────────────────


@verb
@document_argument
@_pages_option
@click.option(
    "--csv",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a CSV file for each table.",
)
@click.option(
    "--xlsx",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a workbook with a sheet for each table.",
)
@click.option("--force", is_flag=True, help="With --csv and --xlsx: replace existing files.")
def tables(
    call: Invocation, document_id: int, pages: str | None, directory: Path | None, xlsx: Path | None, force: bool
) -> int:
    """\b
    pagemill tables 7
    pagemill tables 7 --pages 3-5 --csv out/
    pagemill tables 7 --xlsx tables.xlsx
    pagemill tables 7 --json

    Print the tables of a document: one line per row, with tabs between the cells. Worksheets of a
    spreadsheet are tables, too. Cells are text as on the page; no cell becomes a formula.

    Exit code 1 if there are none.
    """
    document = call.session.library.document(document_id)
    tables_on_pages = list(tables_of(call.session, document_id, pages=pages))
    exit_code = 0 if tables_on_pages else 1
    if xlsx is not None:
        _refuse_existing(xlsx, force=force)
        if tables_on_pages:
            with atomic_write(xlsx) as file:
                write_tables(file, tables_on_pages)
            output.note(f"wrote {xlsx}")
    csv_files = [] if directory is None else _write_csv_files(directory, tables_on_pages, force=force)
    answer = {"document": document_id, "name": document.name, "items": tables_on_pages}
    if call.print_if_json(answer if directory is None else {"items": csv_files}):
        return exit_code
    for path in csv_files:
        output.show(str(path))
    if directory is None and xlsx is None:
        for table in tables_on_pages:
            output.note(f"page {table.page}, table {table.number}:")
            for row in table.rows:
                # `harmless` replaces tabs in a cell, so that each tab separates two cells.
                line = "\t".join(map(harmless, row)).rstrip("\t")
                output.show_text(f"{line}\n")
    if not tables_on_pages:
        reason = ": it is not read yet" if document.current_generation is None else ""
        output.note(f"document {document.id} has no tables on these pages{reason}")
    return exit_code


def _write_csv_files(directory: Path, tables: Sequence[TableOnPage], *, force: bool) -> list[Path]:
    paths = []
    for table, rows in tables_with_all_rows(tables):
        path = directory / f"{table.name}.csv"
        _refuse_existing(path, force=force)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            write_csv(file, rows)
        paths.append(path)
    return paths


def _refuse_existing(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise Refused(f"{path} exists", "--force replaces it")


class _TermsFile(click.File):
    """A file, or - for stdin. An absent file is a `BadInput` instead of a usage error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value != "-" and not Path(value).exists():
            raise BadInput(f"there is no file {value}")
        return super().convert(value, param, ctx)


@verb
@click.argument("terms_file", metavar="TERMS.txt", type=_TermsFile(encoding="utf-8"))
@owner_option
@batch_option
@click.option("--pages", "by_page", is_flag=True, help="Print a row for each page with a term, not for each document.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@excel_option
@click.option("--xlsx", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a workbook.")
@click.option("--force", is_flag=True, help="With --xlsx: replace an existing file.")
def keywords(
    call: Invocation,
    terms_file: Any,
    owner: str | None,
    batch_id: int | None,
    by_page: bool,
    as_csv: bool,
    for_excel: bool,
    xlsx: Path | None,
    force: bool,
) -> None:
    """\b
    pagemill keywords terms.txt
    pagemill keywords terms.txt --csv > counts.csv
    pagemill keywords terms.txt --xlsx counts.xlsx --owner alice

    Count how often each term of a file occurs in each document. The file has one term per line: a word, a phrase, or
    begin*. The table has a row for each document and a column for each term; documents with no matches are listed, too,
    with zeros. The workbook also has a sheet with pages.
    """
    if xlsx is not None:
        _refuse_existing(xlsx, force=force)
    try:
        terms = parse_terms(terms_file.read())
    except UnicodeDecodeError as error:
        raise BadInput(f"{terms_file.name} is not UTF-8 text", "save it as UTF-8") from error
    # Each part has the counts of some documents and of their pages.
    parts = list(count_keywords(call.session, terms, owner=owner, batch_id=batch_id))
    document_rows = [row for part in parts for row in part.by_document]
    page_rows = [row for part in parts for row in part.by_page]
    rows = page_rows if by_page else document_rows
    if xlsx is not None:
        with atomic_write(xlsx) as file:
            write_workbook(file, terms, parts)
        output.note(f"wrote {xlsx}")
    elif call.print_if_json({"terms": terms, "items": [row.as_object(terms) for row in rows]}):
        return
    else:
        headers, cells = count_headers(terms, of_pages=by_page), [*map(count_cells, rows)]
        if as_csv or for_excel:
            output.show_csv(headers, cells, is_for_excel=for_excel)
        else:
            output.show_table(headers, cells)
    unread = sum(not row.is_read for row in document_rows)
    if unread:
        output.note(f"{counted(unread, 'document')} without text could not be counted: pagemill documents")
    if not page_rows:
        output.note("no term occurs on any page")
