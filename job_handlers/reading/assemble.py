"""Put a document together from its pages, and publish it: text, pages.json, a searchable PDF, a thumbnail, hOCR.

Runs once all ranges of its document are done. Pages are asked for in slices and written as they come, so that ten
thousand of them take no more memory than twenty. What is optional (PDF, thumbnail) may fail and is then left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import msgspec

from job_handlers.kinds import Kind
from job_handlers.reading import hocr, layout, pdf, searchable
from job_handlers.reading.document import (
    HowToRead,
    Then,
    check_current,
    content_of,
    document_of,
    how_to_read,
    original_of,
)
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from job_handlers.reading.page_settings import TOO_LARGE, UNREADABLE, written_ranges
from worker_service.handlers import (
    Context,
    DocumentFacts,
    DocumentPages,
    Done,
    File,
    Handler,
    Limits,
    NewJob,
    PageResult,
    Permanent,
    SameContent,
    SameFile,
    counted,
)

_MIB = 1 << 20
_SLICE = 100
"""Pages that are asked for at once; fewer where they are too large for one answer."""
_THUMBNAIL_CPU_SECONDS = 20
_PDF_CPU_SECONDS = 60
_PDF_CPU_PAGES = 10
"""And a second for so many pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(HowToRead):
    note: str = ""
    """What `ingest` found, for a person."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: str
    pages: int
    content: str
    how: HowToRead


@dataclass(slots=True)
class _Written:
    """What is known once all pages have passed."""

    methods: Counter[str] = field(default_factory=Counter)
    left_out: list[int] = field(default_factory=list)
    has_words: bool = False
    characters: int = 0


def run(context: Context[Payload]) -> Done:
    document = document_of(context)
    check_current(context)
    original = original_of(context)
    if document.kind is None or not document.pages:
        raise Permanent("PAGES_MISSING", "its pages have not been counted: read it again with `pagemill reindex`")
    wanted = _Wanted(document.kind, document.pages, content_of(context), how_to_read(context))
    if wanted.kind not in (Kind.PDF, Kind.IMAGE):
        return _publish(context, wanted, original, "", None)
    password = wanted.how.password
    with PageProcess[bytes](
        lambda: _drawer(original, password), bytes, cpu_seconds=_THUMBNAIL_CPU_SECONDS
    ) as thumbnail:
        # It is drawn meanwhile.
        thumbnail.begin()
        return _publish(context, wanted, original, password, thumbnail)


def _publish(
    context: Context[Payload], wanted: _Wanted, original: Path, password: str, thumbnail: PageProcess[bytes] | None
) -> Done:
    stem = original.stem or "document"
    files: list[File | SameFile] = []
    spool = context.staging / "layouts"
    written = _write_pages(context, wanted, stem, spool, files)
    if written.methods[UNREADABLE] == wanted.pages:
        raise Permanent(f"{wanted.kind.upper()}_BROKEN", "not one of its pages can be read: download the file again")
    notes = [context.payload.note] if context.payload.note else []
    if written.left_out:
        notes.append(f"left out as broken or too large: {_pages(written.left_out)}")
    if thumbnail is not None:
        context.progress(80, "searchable PDF")
        notes += _publish_pdf(context, wanted, original, password, stem, written, spool, files)
        context.progress(95, "thumbnail")
        _publish_thumbnail(context, thumbnail, stem, files)
    context.progress(100, counted(wanted.pages, "page"))
    return Done(
        {"pages": wanted.pages, "characters": written.characters, "methods": dict(written.methods)},
        files=files,
        follow_ups=[_follow_up(one) for one in wanted.how.then or ()],
        document=DocumentFacts(note="; ".join(notes) or None),
        publishes=True,
    )


assemble = Handler(
    "assemble",
    run,
    Payload,
    job_class="io",
    limits=Limits(memory_bytes=1024 * _MIB, cpu_seconds=3600, wall_seconds=2 * 3600, file_bytes=16384 * _MIB),
    credentials=["password*"],
)


def slices(context: Context[Payload], pages: int) -> Iterator[PageResult]:
    """Every page in its order, or a refusal that names those that are not there."""
    first, size = 1, _SLICE
    while first <= pages:
        last = min(first + size - 1, pages)
        try:
            answer = context.ask(DocumentPages(first, last, with_layout=True))
        except Permanent as error:
            if error.code != "TOO_LARGE" or size == 1:
                raise
            size = max(size // 5, 1)
            continue
        found = {page.number: page for page in answer.pages}
        lacking = [number for number in range(first, last + 1) if number not in found]
        if lacking:
            raise Permanent(
                "PAGES_MISSING",
                f"{_pages(lacking)} have not been read: read the document again with `pagemill reindex`",
            )
        yield from (found[number] for number in range(first, last + 1))
        context.progress(75 * last / pages, f"page {last} of {pages}")
        first = last + 1


# --- text, pages.json, hOCR -------------------------------------------------------------------------------


def _write_pages(
    context: Context[Payload], wanted: _Wanted, stem: str, spool: Path, files: list[File | SameFile]
) -> _Written:
    written = _Written()
    with ExitStack() as open_files:

        def begin(name: str, role: str, ending: str) -> TextIO:
            files.append(File(name, role, f"{stem}{ending}"))
            return open_files.enter_context((context.staging / name).open("w", encoding="utf-8", errors="replace"))

        text = begin("text.txt", "text", ".txt")
        pages = begin("pages.json", "pages", ".pages.json")
        layouts = open_files.enter_context(spool.open("w", encoding="utf-8"))
        shown = begin("pages.html", "hocr", ".hocr.html") if wanted.how.hocr and wanted.kind != Kind.SHEET else None
        if shown is not None:
            shown.write(hocr.beginning(stem))
        pages.write('{"pages": [')
        for page in slices(context, wanted.pages):
            text.write(f"{page.text or ''}\f")
            pages.write(("\n" if page.number == 1 else ",\n") + page_json(page))
            written.methods[page.method] += 1
            written.characters += len(page.text or "")
            if page.method in (TOO_LARGE, UNREADABLE):
                written.left_out.append(page.number)
            if page.layout is not None and (shown is not None or layout.has_lines(page.layout)):
                found = layout.read(page.layout)
                if found.lines:
                    written.has_words = True
                    layouts.write(f"{page.number} {page.layout}\n")
                if shown is not None:
                    shown.write(hocr.page(page.number, found, page.text or ""))
        pages.write("\n]}\n")
        if shown is not None:
            shown.write(hocr.END)
    return written


def page_json(page: PageResult) -> str:
    known = {"number": page.number, "method": page.method, "confidence": page.confidence, "text": page.text or ""}
    written = msgspec.json.encode(known).decode()
    return written if page.layout is None else f'{written[:-1]},"layout":{page.layout}}}'


# --- searchable PDF, thumbnail ----------------------------------------------------------------------------


class _Made(msgspec.Struct, frozen=True):
    why_not: str = ""


def _publish_pdf(
    context: Context[Payload],
    wanted: _Wanted,
    original: Path,
    password: str,
    stem: str,
    written: _Written,
    spool: Path,
    files: list[File | SameFile],
) -> list[str]:
    """What a person is told of it."""
    if not written.has_words and wanted.kind == Kind.PDF:
        # It was searchable all along.
        same = context.ask(SameContent(sha256=wanted.content)).files
        files += [SameFile(one.id, "pdf", f"{stem}.pdf") for one in same[:1]]
        return []
    target = context.staging / "searchable.pdf"

    def make(number: int) -> _Made:
        try:
            _make_searchable(original, target, password, wanted.kind, spool)
        except (pdf.Broken, pdf.PageTooLarge, OSError) as error:
            return _Made(str(error) or type(error).__name__)
        return _Made()

    seconds = _PDF_CPU_SECONDS + wanted.pages // _PDF_CPU_PAGES
    with PageProcess[_Made](lambda: make, _Made, cpu_seconds=seconds) as process:
        try:
            why_not = process.read(1).why_not
        except (TooLarge, Lost) as error:
            why_not = str(error)
    if why_not:
        context.log(f"no searchable PDF could be made: {why_not}")
        return ["no searchable PDF could be made"]
    files.append(File(target, "pdf", f"{stem}.pdf"))
    return []


def _make_searchable(original: Path, target: Path, password: str, kind: str, spool: Path) -> None:
    if kind == Kind.IMAGE:
        made = target.with_name("image.pdf")
        pdf.pdf_of_image(original, made)
        original = made
    fonts = searchable.Fonts()
    # Fonts are told before pages are changed, and pages may be many: so they are looked through twice.
    for _, found in _spooled(spool):
        fonts.meet(found)
    waiting = _spooled(spool)
    coming = next(waiting, None)

    def draw(number: int, facts: Mapping[str, Any]) -> bytes:
        nonlocal coming
        if coming is None or coming[0] != number:
            return b""
        stream = searchable.stream_of(coming[1], facts["matrix"], fonts)
        coming = next(waiting, None)
        return stream

    pdf.add_streams(original, target, password, fonts.sources(), searchable.widths(), draw)


def _spooled(spool: Path) -> Iterator[tuple[int, layout.Layout]]:
    with spool.open(encoding="utf-8") as lines:
        for line in lines:
            number, _, text = line.partition(" ")
            yield int(number), layout.read(text)


def _publish_thumbnail(
    context: Context[Payload], drawn: PageProcess[bytes], stem: str, files: list[File | SameFile]
) -> None:
    try:
        picture = drawn.read(1)
    except (TooLarge, Lost) as error:
        context.log(f"no thumbnail: {error}")
        return
    if picture:
        (context.staging / "thumbnail.jpg").write_bytes(picture)
        files.append(File("thumbnail.jpg", "thumbnail", f"{stem}.jpg"))


def _drawer(original: Path, password: str) -> Callable[[int], bytes]:
    """In the process apart, which draws before it is asked."""
    picture = b""
    with suppress(pdf.Broken, pdf.Locked, pdf.PageTooLarge), pdf.open_book(original, password) as book:
        picture = book.thumbnail(1)
    return lambda number: picture


def _follow_up(one: Then) -> NewJob:
    payload = None if one.payload is None else json.dumps(one.payload)
    return NewJob(one.job_type, one.platform, one.account, payload)


def _pages(numbers: Sequence[int]) -> str:
    return f"page{'s' if len(numbers) > 1 else ''} {written_ranges(numbers)}"
