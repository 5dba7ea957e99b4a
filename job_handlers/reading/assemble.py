"""Build and publish a document's files: text, pages.json, a searchable PDF and a thumbnail.

`ingest` publishes a document of which it has all pages; otherwise the job `assemble` does, once they have been read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec.structs import replace

from job_handlers.file_kinds import FileKind
from job_handlers.reading import layout, pdf, searchable
from job_handlers.reading.document import (
    check_current,
    content_of,
    document_of,
    how_to_read,
    original_of,
    password_of,
)
from job_handlers.reading.page_digests import PARTIAL, TOO_LARGE, UNREADABLE
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from job_handlers.reading.page_ranges import pages_in_words
from job_handlers.reading.reading_settings import HowToRead
from worker_service.handlers import (
    CONFIDENCE_LEAST,
    MIB,
    Context,
    DocumentFacts,
    DocumentPages,
    Done,
    File,
    Handler,
    Limits,
    PageResult,
    Permanent,
    SameContent,
    SameFile,
    counted,
)

_THUMBNAIL_CPU_SECONDS = 20
_SLICE = 100
"""Pages per request; fewer if they are too large for one answer."""
_PDF_CPU_SECONDS = 60
_PDF_CPU_PAGES = 10


class _PdfResult(msgspec.Struct, frozen=True):
    why_not: str = ""


class Assembly:
    def __init__(self, context: Context[Any], original: Path, kind: str, how: HowToRead) -> None:
        self._context, self._original, self._kind, self._how = context, original, kind, how
        self._files: list[File | SameFile] = []
        self.pages = 0
        self._methods: Counter[str] = Counter()
        self._left_out: list[int] = []
        self._partial: list[int] = []
        self._unsure: list[int] = []
        self._unread: dict[layout.UnreadScript, list[int]] = {}
        self._has_words = False
        self._characters = 0
        self._stem = original.stem or "document"
        self._spool = context.staging / "layouts"
        self._open = ExitStack()
        self._text = self._open_output("text.txt", "text", ".txt")
        self._json = self._open_output("pages.json", "pages", ".pages.json")
        self._layouts = self._open.enter_context(self._spool.open("w", encoding="utf-8"))
        self._json.write('{"pages": [')

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _open_output(self, name: str, role: str, ending: str) -> TextIO:
        self._add_file(name, role, ending)
        path = self._context.staging / name
        return self._open.enter_context(path.open("w", encoding="utf-8", errors="replace"))

    def _add_file(self, path: Path | str, role: str, ending: str) -> None:
        self._files.append(File(path, role, f"{self._stem}{ending}"))

    def add(self, page: PageResult) -> None:
        text = page.text or ""
        self._text.write(f"{text}\f")
        self._json.write(("\n" if page.number == 1 else ",\n") + _page_json(page))
        self.pages += 1
        self._methods[page.method] += 1
        self._characters += len(text)
        if page.method in (TOO_LARGE, UNREADABLE):
            self._left_out.append(page.number)
        if page.method == PARTIAL:
            self._partial.append(page.number)
        unread = None
        if page.layout is not None and layout.has_lines(page.layout):
            found = layout.decode(page.layout)
            self._has_words = True
            self._layouts.write(f"{page.number} {page.layout}\n")
            unread = found.unread
        if unread is not None:
            self._unread.setdefault(unread, []).append(page.number)
        elif page.confidence is not None and page.confidence < CONFIDENCE_LEAST:
            self._unsure.append(page.number)

    def add_rest(self, pages: int) -> None:
        for page in _stored_pages(self._context, self.pages + 1, pages):
            self.add(page)

    def finish(self, facts: DocumentFacts, draw: Callable[[], bytes] | None) -> Done:
        context = self._context
        self._json.write("\n]}\n")
        self._open.close()
        if self._methods[UNREADABLE] == self.pages:
            raise Permanent(
                f"{self._kind.upper()}_BROKEN", "not one of its pages can be read", "download the file again"
            )
        notes = [facts.note] if facts.note else []
        if self._left_out:
            notes.append(f"left out as broken or too large: {pages_in_words(self._left_out)}")
        if self._partial:
            notes.append(f"damaged, read in part: {pages_in_words(self._partial)}")
        if self._unsure:
            notes.append(f"recognised with less than {CONFIDENCE_LEAST} % confidence: {pages_in_words(self._unsure)}")
        for unread, numbers in self._unread.items():
            how = f"{unread.install}, then " if unread.install else ""
            letters = unread.script.replace("_", " ")
            again = f"{how}read it with --lang {unread.language}"
            notes.append(f"seems to be in {letters} letters ({again}): {pages_in_words(numbers)}")
        if draw is not None:
            context.progress(80, "searchable PDF")
            notes += self._publish_pdf()
            context.progress(95, "thumbnail")
            self._publish_thumbnail(draw)
        context.progress(100, counted(self.pages, "page"), done=self.pages, total=self.pages, unit="pages")
        return Done(
            {"kind": self._kind, "pages": self.pages, "characters": self._characters, "methods": dict(self._methods)},
            files=self._files,
            document=replace(facts, note="; ".join(notes) or None),
            publishes=True,
        )

    def _publish_pdf(self) -> list[str]:
        if not self._has_words and self._kind == FileKind.PDF:
            # The original is already searchable.
            same = self._context.ask(SameContent(sha256=content_of(self._context))).files
            self._files += [SameFile(one.id, "pdf", f"{self._stem}.pdf") for one in same[:1]]
            return []
        original, target = self._original, self._context.staging / "searchable.pdf"
        password = password_of(self._context, self._how)
        kind, spool = self._kind, self._spool

        def make(number: int) -> _PdfResult:
            try:
                _make_searchable(original, target, password, kind, spool)
            except (pdf.Broken, pdf.PageTooLarge, OSError) as error:
                return _PdfResult(str(error) or type(error).__name__)
            return _PdfResult()

        seconds = _PDF_CPU_SECONDS + self.pages // _PDF_CPU_PAGES
        with PageProcess[_PdfResult](lambda: make, _PdfResult, cpu_seconds=seconds) as process:
            try:
                why_not = process.read(1).why_not
            except (TooLarge, Lost) as error:
                why_not = str(error)
        if why_not:
            self._context.log(f"no searchable PDF could be made: {why_not}")
            return ["no searchable PDF could be made"]
        self._add_file(target, "pdf", ".pdf")
        return []

    def _publish_thumbnail(self, draw: Callable[[], bytes]) -> None:
        try:
            picture = draw()
        except (TooLarge, Lost) as error:
            self._context.log(f"no thumbnail: {error}")
            return
        if picture:
            (self._context.staging / "thumbnail.jpg").write_bytes(picture)
            self._add_file("thumbnail.jpg", "thumbnail", ".jpg")


def _stored_pages(context: Context[Any], first: int, pages: int) -> Iterator[PageResult]:
    """Raise `Permanent` naming the pages that are missing."""
    size = _SLICE
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
                f"{pages_in_words(lacking)} have not been read",
                "read the document again with `pagemill reindex`",
            )
        yield from (found[number] for number in range(first, last + 1))
        context.progress(75 * last / pages, f"page {last} of {pages}", done=last, total=pages, unit="pages")
        first = last + 1


def _page_json(page: PageResult) -> str:
    known = {"number": page.number, "method": page.method, "confidence": page.confidence, "text": page.text or ""}
    written = msgspec.json.encode(known).decode()
    return written if page.layout is None else f'{written[:-1]},"layout":{page.layout}}}'


# --- the job -----------------------------------------------------------------------------------------------


class AssemblePayload(HowToRead, frozen=True, kw_only=True):
    note: str = ""
    """Note from `ingest` for the user."""


def run(context: Context[AssemblePayload]) -> Done:
    document = document_of(context)
    check_current(context)
    original = original_of(context)
    kind, pages, how = document.kind, document.pages, how_to_read(context)
    if kind is None or not pages:
        raise Permanent("PAGES_MISSING", "its pages have not been counted", "read it again with `pagemill reindex`")
    facts, password = DocumentFacts(note=context.payload.note or None), password_of(context, how)
    with (
        Assembly(context, original, kind, how) as assembly,
        PageProcess[bytes](
            lambda: _thumbnail_drawer(original, password), bytes, cpu_seconds=_THUMBNAIL_CPU_SECONDS
        ) as thumbnail,
    ):
        is_drawn = kind in (FileKind.PDF, FileKind.IMAGE)
        if is_drawn:
            # The thumbnail is drawn while the pages are written.
            thumbnail.begin()
        assembly.add_rest(pages)
        return assembly.finish(facts, (lambda: thumbnail.read(1)) if is_drawn else None)


assemble = Handler(
    "assemble",
    run,
    AssemblePayload,
    job_class="io",
    limits=Limits(wall_seconds=2 * 3600, file_bytes=16384 * MIB),
    credentials=["password*"],
)


def _thumbnail_drawer(original: Path, password: str) -> Callable[[int], bytes]:
    picture = b""
    with suppress(pdf.Broken, pdf.PdfLocked, pdf.PageTooLarge), pdf.PagedFile(original, password) as book:
        picture = book.thumbnail(1)
    return lambda number: picture


# --- in the page process ----------------------------------------------------------------------------------


def _make_searchable(original: Path, target: Path, password: str, kind: str, spool: Path) -> None:
    if kind == FileKind.IMAGE:
        made = target.with_name("image.pdf")
        pdf.pdf_of_image(original, made)
        original = made
    fonts = searchable.Fonts()
    # The fonts must be known before the first page is changed, and there may be many pages: read the file twice.
    for _, found in _read_spool(spool):
        fonts.meet(found)
    waiting = _read_spool(spool)
    coming = next(waiting, None)

    def draw(number: int, matrix: pdf.Matrix) -> bytes:
        nonlocal coming
        if coming is None or coming[0] != number:
            return b""
        stream = searchable.stream_of(coming[1], matrix, fonts)
        coming = next(waiting, None)
        return stream

    pdf.add_streams(original, target, password, fonts.sources(), searchable.widths(), draw)


def _read_spool(spool: Path) -> Iterator[tuple[int, layout.Layout]]:
    with spool.open(encoding="utf-8") as lines:
        for line in lines:
            number, _, text = line.partition(" ")
            yield int(number), layout.decode(text)
