"""Look at a document's file, count its pages and decide how each page has to be read.

Takes the pages with a usable text layer, and those that are already stored. If that covers all pages, it publishes the
document. Otherwise it enqueues `ocr_pages` or `extract_rows` jobs for ranges of pages, and `assemble`. To read a file
that is not a document yet, enqueue `download`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from job_handlers.file_kinds import FileKind, kind_of
from job_handlers.reading import attachments, formats, layout, ocr, pdf, spreadsheets
from job_handlers.reading.assemble import Assembly
from job_handlers.reading.document import (
    ENVIRONMENT,
    LOCKED,
    PAGES_PER_MESSAGE,
    TOO_LARGE,
    UNREADABLE,
    PageSource,
    content_of,
    document_of,
    engine_settings,
    how_to_read,
    layer_digest,
    locked_error,
    ocr_digest,
    original_of,
    page_source,
    password_of,
    save_known_pages,
    unread_page,
)
from job_handlers.reading.page_process import Lost, PageProcess, Refusal, TooLarge
from job_handlers.reading.page_ranges import Scan, costs_of, divide_pages, format_ranges
from job_handlers.reading.reading_settings import HowToRead
from job_handlers.reading.text_layer import PageInk, Verdict, classify_page
from worker_service.handlers import (
    MIB,
    Context,
    DocumentFacts,
    Done,
    Handler,
    Limits,
    NewJob,
    PageResult,
    Permanent,
    digest,
    in_a_sentence,
)

_PAGE_CPU_SECONDS = 10  # Usually a millisecond; a map with a million lines takes seconds.
_TABLE_CPU_SECONDS = 600
_FLOW_CPU_SECONDS = 300
_PAGES_PER_RANGE_LEAST = 4
"""Reading fewer pages elsewhere saves less time than a copy of the file to another node takes."""
_FAILED_PAGES_MAX = 20
"""A document with more failed pages is given up, because each has usually used up its whole CPU limit."""
_SAVE_SECONDS = 1.0
# The page process reads page n if asked for n. Other numbers ask for something else; of a flowing document, negative
# numbers ask for its attachments.
_PAGE_COUNT, _THUMBNAIL = 0, -1
_BROKEN = "BROKEN"
_REPAIRED = "the file was broken and has been repaired"


class PageCount(msgspec.Struct, tag=True, frozen=True):
    pages: int
    note: str = ""
    was_repaired: bool = False
    is_locked: bool = False


class ExaminedPage(msgspec.Struct, tag=True, frozen=True):
    method: str
    text: str = ""
    layout: str | None = None
    scan: Scan | None = None
    """None unless the page needs OCR."""


class Thumbnail(msgspec.Struct, tag=True, frozen=True):
    picture: bytes


# What a page process answers.
Answer = PageCount | ExaminedPage | Refusal | Thumbnail | attachments.Answer
RowRanges = list[spreadsheets.RowRange] | Refusal
# msgspec keeps the type information that this decoder computes, and forked child processes inherit it.
msgspec.msgpack.Decoder(Answer)


def run(context: Context[HowToRead]) -> Done:
    document_of(context)  # raises `Permanent` for a job without a document
    how = how_to_read(context)
    original = original_of(context)
    kind = kind_of(original)
    content = content_of(context)
    if kind in (FileKind.SHEET, FileKind.CSV):
        return _ingest_table(context, original, kind, content)
    return _ingest_pages(context, how, original, kind, content)


ingest = Handler(
    "ingest",
    run,
    HowToRead,
    limits=Limits(wall_seconds=2 * 3600, file_bytes=16384 * MIB),
    environment=ENVIRONMENT,
    credentials=["password*"],
)


# --- pages ------------------------------------------------------------------------------------------------


def _ingest_pages(context: Context[HowToRead], how: HowToRead, original: Path, kind: FileKind, content: str) -> Done:
    password, is_flow = password_of(context, how), kind.is_flowing

    def make_reader() -> Callable[[int], Answer]:
        return _flow_reader(original, kind, context.staging) if is_flow else _page_reader(original, password)

    with (
        Assembly(context, original, kind, how) as assembly,
        PageProcess[Answer](
            make_reader, Answer, cpu_seconds=_FLOW_CPU_SECONDS if is_flow else _PAGE_CPU_SECONDS
        ) as process,
    ):
        page_count = _count_pages(context, process, kind, password)
        source = page_source(content, kind)
        numbers = range(1, page_count.pages + 1)
        is_forced = bool(how.force_ocr) and not is_flow
        layer_digests = {} if is_forced else {number: layer_digest(source, number) for number in numbers}
        to_read = save_known_pages(context, layer_digests)
        scans = _save_layer_pages(context, process, to_read, assembly)
        to_recognise = save_known_pages(context, _ocr_digests(source, how, list(numbers if is_forced else scans)))
        unpacked = attachments.unpack(context, process, kind) if kind in (FileKind.ZIP, FileKind.MAIL) else None
        note = "; ".join(filter(None, [page_count.note, *(unpacked.notes if unpacked else ())]))
        facts = DocumentFacts(kind.value, page_count.pages, content, note or None, page_count.is_locked)
        if to_recognise:
            done = _done_with_ranges(context, facts, _ocr_range_jobs(context, how, content, to_recognise, scans))
        else:
            # Pages that were not added while they were read are in the store.
            assembly.add_stored_pages(page_count.pages)
            done = assembly.finish(facts, None if is_flow else lambda: _thumbnail(process))
    if unpacked is None:
        return done
    return replace(done, files=[*done.files, *unpacked.files], follow_ups=[*done.follow_ups, *unpacked.follow_ups])


def _count_pages(context: Context[HowToRead], process: PageProcess[Answer], kind: FileKind, password: str) -> PageCount:
    try:
        answer = process.read(_PAGE_COUNT)
    except (TooLarge, Lost) as error:
        raise Permanent(f"{kind.upper()}_BROKEN", f"the file cannot be opened: {error}") from error
    if isinstance(answer, Refusal):
        if answer.code == LOCKED:
            raise locked_error(context, password)
        code = f"{kind.upper()}_BROKEN" if answer.code == _BROKEN else answer.code
        raise Permanent(code, answer.message, answer.remedy)
    assert isinstance(answer, PageCount)
    if not answer.pages and answer.was_repaired:
        detail = "nothing of the broken file could be saved"
        raise Permanent(f"{kind.upper()}_BROKEN", detail, "download it again")
    if not answer.pages:
        raise Permanent(f"{kind.upper()}_EMPTY", "the file has no pages")
    return answer


def _ocr_digests(source: PageSource, how: HowToRead, numbers: Sequence[int]) -> dict[int, str]:
    if not numbers:
        # Identifying the engine would take longer than reading a page with a text layer.
        return {}
    settings = engine_settings(how)
    engine = ocr.identity_of(settings)
    return {number: ocr_digest(source, number, settings.languages, settings.quality, engine) for number in numbers}


def _save_layer_pages(
    context: Context[HowToRead], process: PageProcess[Answer], to_read: Mapping[int, str], assembly: Assembly
) -> dict[int, Scan]:
    """Save pages with a text layer; add them to the assembly up to the first gap. Return the pages that need OCR."""
    scans: dict[int, Scan] = {}
    unsaved: list[PageResult] = []
    save_at = time.monotonic() + _SAVE_SECONDS
    unread_count = 0
    for done, (number, answer) in enumerate(process.read_all(to_read), 1):
        if isinstance(answer, ExaminedPage) and answer.scan is not None:
            scans[number] = answer.scan
        else:
            page = _page_result(context, to_read[number], number, answer)
            # Pages that the reader refuses count too, but only one that cost a page process ends the job.
            unread_count += not isinstance(answer, ExaminedPage)
            if unread_count > _FAILED_PAGES_MAX and isinstance(answer, TooLarge | Lost):
                raise Permanent("PAGES_TOO_LARGE", f"more than {_FAILED_PAGES_MAX} pages fail; the last: {answer}")
            unsaved.append(page)
            if number == assembly.pages + 1:
                assembly.add(page)
        if len(unsaved) >= PAGES_PER_MESSAGE or time.monotonic() > save_at:
            context.save_pages(unsaved)
            unsaved.clear()
            save_at = time.monotonic() + _SAVE_SECONDS
            total = len(to_read)
            context.progress(message=f"page {done} of {total}", done=done, total=total, unit="pages")
    context.save_pages(unsaved)
    return scans


def _thumbnail(process: PageProcess[Answer]) -> bytes:
    answer = process.read(_THUMBNAIL)
    return answer.picture if isinstance(answer, Thumbnail) else b""


def _page_result(
    context: Context[HowToRead], page_digest: str, number: int, answer: Answer | TooLarge | Lost
) -> PageResult:
    if isinstance(answer, ExaminedPage):
        # The store replaces NUL characters, too, so the published text is equal to the stored one.
        return PageResult(number, page_digest, answer.text.replace("\0", "�"), answer.method, None, answer.layout)
    if isinstance(answer, Refusal):
        method, why = answer.code, in_a_sentence(answer.message, answer.remedy)
    else:
        method, why = TOO_LARGE if isinstance(answer, TooLarge) else UNREADABLE, str(answer)
    return unread_page(context, number, page_digest, method, why)


def _page_reader(original: Path, password: str) -> Callable[[int], Answer]:
    refused: Refusal | None = None
    try:
        book = pdf.PagedFile(original, password)
    except pdf.PdfLocked:
        refused = Refusal(LOCKED, "")
    except (pdf.Broken, pdf.PageTooLarge) as error:
        refused = Refusal(_BROKEN, f"the file cannot be opened ({error})", "download it again")

    def read(number: int) -> Answer:
        if refused is not None:
            return refused
        if number == _PAGE_COUNT:
            return PageCount(book.pages, _REPAIRED if book.was_repaired else "", book.was_repaired, book.is_locked)
        try:
            if number == _THUMBNAIL:
                return Thumbnail(book.thumbnail())
            return examine_page(book, number)
        except pdf.PageTooLarge as error:
            return Refusal(TOO_LARGE, str(error))
        except pdf.Broken as error:
            return Refusal(UNREADABLE, str(error))

    return read


def _flow_reader(original: Path, kind: FileKind, staging: Path) -> Callable[[int], Answer]:
    try:
        document = formats.open_document(original, kind)
        pages = formats.paginate(document.pieces())
    except formats.UnreadableDocument as error:
        code = "FILE_ENCRYPTED" if isinstance(error, formats.DocumentLocked) else _BROKEN
        refused = Refusal(code, f"the file cannot be read: {error.detail}", error.remedy)
        return lambda number: refused
    unpack = attachments.unpacker(document, staging)

    def read(number: int) -> Answer:
        if number < 0:
            return unpack(-number)
        if number == _PAGE_COUNT:
            return PageCount(len(pages), "; ".join(document.notes))
        page = pages[number - 1]
        if any(isinstance(piece, formats.PictureReference) for piece in page):
            # The cost of recognising pictures is unknown.
            return ExaminedPage(Verdict.OCR, scan=Scan(packing="", packed_bytes=0))
        lines = [piece for piece in page if isinstance(piece, str)]
        return ExaminedPage(Verdict.LAYER, "\n".join(lines), layout.encode_flow(formats.layout_of(lines)))

    return read


def examine_page(book: pdf.PagedFile, number: int) -> ExaminedPage:
    page = book.text(number)
    # Measuring takes longer than reading the text.
    needs_measuring = page.may_be_scan or not page.text.strip()
    verdict = classify_page(page.text, book.measure_ink(number) if needs_measuring else PageInk())
    if verdict is Verdict.OCR:
        return ExaminedPage(verdict, scan=Scan(*book.scan_packing(number)))
    if verdict is Verdict.BLANK:
        return ExaminedPage(verdict, "", layout.encode(layout.Layout(page.size)))
    return ExaminedPage(verdict, page.text, layout.encode(page.layout))


# --- rows -------------------------------------------------------------------------------------------------


def _ingest_table(context: Context[HowToRead], original: Path, kind: FileKind, content: str) -> Done:
    with PageProcess[RowRanges](
        lambda: spreadsheets.sheet_reader(original, kind), RowRanges, cpu_seconds=_TABLE_CPU_SECONDS
    ) as process:
        try:
            # The page process of a spreadsheet answers this number with its ranges of rows.
            row_ranges = process.read(_PAGE_COUNT)
        except (TooLarge, Lost) as error:
            raise Permanent("SHEET_BROKEN", f"the rows cannot be counted: {error}") from error
    if isinstance(row_ranges, Refusal):
        raise Permanent(row_ranges.code, row_ranges.message, row_ranges.remedy)
    if not row_ranges:
        raise Permanent("SHEET_EMPTY", "the spreadsheet has no rows")
    # A range of rows is a page.
    pages_of_jobs = spreadsheets.divide_among_jobs(row_ranges)
    range_jobs = [_range_job(context, "extract_rows", pages, [content]) for pages in pages_of_jobs]
    facts = DocumentFacts(kind=FileKind.SHEET.value, pages=len(row_ranges), content=content)
    return _done_with_ranges(context, facts, range_jobs)


# --- what follows -----------------------------------------------------------------------------------------


def _done_with_ranges(context: Context[HowToRead], facts: DocumentFacts, range_jobs: list[NewJob]) -> Done:
    # `after_earlier`: it waits for the jobs of the ranges.
    assemble = _follow_up_job(context, "assemble", {"note": facts.note} if facts.note else {})
    return Done(
        {"kind": facts.kind, "pages": facts.pages, "ranges": len(range_jobs)},
        follow_ups=[*range_jobs, replace(assemble, after_earlier=True)],
        document=facts,
    )


def _ocr_range_jobs(
    context: Context[HowToRead], how: HowToRead, content: str, numbers: Iterable[int], scans: Mapping[int, Scan]
) -> list[NewJob]:
    to_recognise, settings = sorted(numbers), engine_settings(how)
    ranges = divide_pages(to_recognise, _slots_to_use(context, len(to_recognise)), costs_of(scans))
    key_parts = [content, settings.languages, settings.quality, how.password_file]
    return [_range_job(context, "ocr_pages", pages, key_parts) for pages in ranges]


def _slots_to_use(context: Context[HowToRead], pages: int) -> int:
    # A small document is not worth copying to many nodes.
    return max(len(os.sched_getaffinity(0)), min(context.slots, pages // _PAGES_PER_RANGE_LEAST))


def _range_job(
    context: Context[HowToRead], job_type: str, numbers: Sequence[int], key_parts: Sequence[object]
) -> NewJob:
    pages = format_ranges(numbers)
    # If two documents need the same range of the same file, the second job waits, and then finds the results stored.
    concurrency_key = digest([job_type, pages, *key_parts])
    return replace(_follow_up_job(context, job_type, {"pages": pages}), concurrency_key=concurrency_key)


def _follow_up_job(context: Context[HowToRead], job_type: str, payload: dict[str, Any]) -> NewJob:
    text = json.dumps({**payload, **context.payload.given_settings()})
    return NewJob(job_type, context.platform, context.account, text)
