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
from job_handlers.reading import invisible_text, layout, pdf
from job_handlers.reading.document import (
    PARTIAL,
    TOO_LARGE,
    UNREADABLE,
    check_current,
    content_of,
    document_of,
    how_to_read,
    original_of,
    password_of,
)
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
    RepublishedFile,
    SameContent,
    counted,
)

_THUMBNAIL_CPU_SECONDS = 20
_PAGES_PER_QUESTION = 100  # Fewer if they are too large for one answer.
_PDF_CPU_SECONDS = 60  # Limit, to which each ten pages add a second.
_PDF_PAGES_PER_CPU_SECOND = 10


class Assembly:
    def __init__(self, context: Context[Any], original: Path, kind: str, how: HowToRead) -> None:
        self._context, self._original, self._kind, self._how = context, original, kind, how
        self._files: list[File | RepublishedFile] = []
        self.pages = 0
        self._methods: Counter[str] = Counter()
        # Numbers of pages that the note names.
        self._left_out: list[int] = []
        self._partial: list[int] = []
        self._uncertain: list[int] = []
        self._unread_scripts: dict[layout.UnreadScript, list[int]] = {}
        self._has_words = False
        self._characters = 0
        self._stem = original.stem or "document"
        # Page numbers and layouts for the searchable PDF, on disk because there may be many pages.
        self._layouts_file = context.staging / "layouts"
        self._open_files = ExitStack()
        self._text = self._open_output("text.txt", "text", ".txt")
        self._json = self._open_output("pages.json", "pages", ".pages.json")
        self._layouts = self._open_files.enter_context(self._layouts_file.open("w", encoding="utf-8"))
        self._json.write('{"pages": [')

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *_: object) -> None:
        self._open_files.close()

    def _open_output(self, name: str, role: str, ending: str) -> TextIO:
        self._add_file(name, role, ending)
        path = self._context.staging / name
        return self._open_files.enter_context(path.open("w", encoding="utf-8", errors="replace"))

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
            self._has_words = True
            self._layouts.write(f"{page.number} {page.layout}\n")
            unread = layout.decode(page.layout).unread
        if unread is not None:
            self._unread_scripts.setdefault(unread, []).append(page.number)
        elif page.confidence is not None and page.confidence < CONFIDENCE_LEAST:
            self._uncertain.append(page.number)

    def add_stored_pages(self, last: int) -> None:
        """Add the pages that follow, up to `last`. Raise `Permanent` if some are not stored."""
        for page in _stored_pages(self._context, self.pages + 1, last):
            self.add(page)

    def finish(self, facts: DocumentFacts, draw_thumbnail: Callable[[], bytes] | None) -> Done:
        """Publish the files. A document without `draw_thumbnail` gets no searchable PDF either."""
        context = self._context
        self._json.write("\n]}\n")
        self._open_files.close()
        if self._methods[UNREADABLE] == self.pages:
            raise Permanent(
                f"{self._kind.upper()}_BROKEN", "not one of its pages can be read", "download the file again"
            )
        notes = [*([facts.note] if facts.note else []), *self._notes_about_pages()]
        if draw_thumbnail is not None:
            context.progress(80, "searchable PDF")
            if not self._publish_pdf():
                notes.append("no searchable PDF could be made")
            context.progress(95, "thumbnail")
            self._publish_thumbnail(draw_thumbnail)
        context.progress(100, counted(self.pages, "page"), done=self.pages, total=self.pages, unit="pages")
        return Done(
            {"kind": self._kind, "pages": self.pages, "characters": self._characters, "methods": dict(self._methods)},
            files=self._files,
            document=replace(facts, note="; ".join(notes) or None),
            publishes=True,
        )

    def _notes_about_pages(self) -> list[str]:
        notes: list[str] = []
        if self._left_out:
            notes.append(f"left out as broken or too large: {pages_in_words(self._left_out)}")
        if self._partial:
            notes.append(f"damaged, read in part: {pages_in_words(self._partial)}")
        if self._uncertain:
            pages = pages_in_words(self._uncertain)
            notes.append(f"recognised with less than {CONFIDENCE_LEAST} % confidence: {pages}")
        for unread, numbers in self._unread_scripts.items():
            install = f"{unread.install}, then " if unread.install else ""
            letters = unread.script.replace("_", " ")
            remedy = f"{install}read it with --lang {unread.language}"
            notes.append(f"seems to be in {letters} letters ({remedy}): {pages_in_words(numbers)}")
        return notes

    def _publish_pdf(self) -> bool:
        """Return False if no searchable PDF could be made."""
        if not self._has_words and self._kind == FileKind.PDF:
            # The original is already searchable, so it is published again under another role.
            files = self._context.ask(SameContent(sha256=content_of(self._context))).files
            self._files += [RepublishedFile(file.id, "pdf", f"{self._stem}.pdf") for file in files[:1]]
            return True
        target, password = self._context.staging / "searchable.pdf", password_of(self._context, self._how)

        def make_pdf(_: int) -> str:
            try:
                _make_searchable(self._original, target, password, self._kind, self._layouts_file)
            except (pdf.Broken, pdf.PageTooLarge, OSError) as error:
                return str(error) or type(error).__name__
            return ""

        seconds = _PDF_CPU_SECONDS + self.pages // _PDF_PAGES_PER_CPU_SECOND
        with PageProcess[str](lambda: make_pdf, str, cpu_seconds=seconds) as process:
            try:
                error_text = process.read(1)
            except (TooLarge, Lost) as error:
                error_text = str(error)
        if error_text:
            self._context.log(f"no searchable PDF could be made: {error_text}")
            return False
        self._add_file(target, "pdf", ".pdf")
        return True

    def _publish_thumbnail(self, draw_thumbnail: Callable[[], bytes]) -> None:
        try:
            picture = draw_thumbnail()
        except (TooLarge, Lost) as error:
            self._context.log(f"no thumbnail: {error}")
            return
        if picture:
            (self._context.staging / "thumbnail.jpg").write_bytes(picture)
            self._add_file("thumbnail.jpg", "thumbnail", ".jpg")


def _stored_pages(context: Context[Any], first: int, pages_total: int) -> Iterator[PageResult]:
    size = _PAGES_PER_QUESTION
    while first <= pages_total:
        last = min(first + size - 1, pages_total)
        try:
            answer = context.ask(DocumentPages(first, last, with_layout=True))
        except Permanent as error:
            if error.code != "TOO_LARGE" or size == 1:
                raise
            size = max(size // 5, 1)
            continue
        stored = {page.number: page for page in answer.pages}
        missing = [number for number in range(first, last + 1) if number not in stored]
        if missing:
            raise Permanent(
                "PAGES_MISSING",
                f"{pages_in_words(missing)} have not been read",
                "read the document again with `pagemill reindex`",
            )
        yield from (stored[number] for number in range(first, last + 1))
        # The last quarter is for the PDF and the thumbnail.
        message = f"page {last} of {pages_total}"
        context.progress(75 * last / pages_total, message, done=last, total=pages_total, unit="pages")
        first = last + 1


def _page_json(page: PageResult) -> str:
    fields = {"number": page.number, "method": page.method, "confidence": page.confidence, "text": page.text or ""}
    text = msgspec.json.encode(fields).decode()
    # The layout is JSON already: insert it as the last field.
    return text if page.layout is None else f'{text[:-1]},"layout":{page.layout}}}'


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
    has_thumbnail = kind in (FileKind.PDF, FileKind.IMAGE)
    with (
        Assembly(context, original, kind, how) as assembly,
        PageProcess[bytes](
            lambda: _thumbnail_drawer(original, password), bytes, cpu_seconds=_THUMBNAIL_CPU_SECONDS
        ) as thumbnail,
    ):
        if has_thumbnail:
            # Its process draws the thumbnail while the pages are written.
            thumbnail.begin()
        assembly.add_stored_pages(pages)
        return assembly.finish(facts, (lambda: thumbnail.read(1)) if has_thumbnail else None)


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


def _make_searchable(original: Path, target: Path, password: str, kind: str, layouts_file: Path) -> None:
    if kind == FileKind.IMAGE:
        image_pdf = target.with_name("image.pdf")
        pdf.pdf_of_image(original, image_pdf)
        original = image_pdf
    fonts = invisible_text.Fonts()
    # The fonts must be known before the first page is changed, and there may be many pages: read the file twice.
    for _, page_layout in _read_layouts(layouts_file):
        fonts.add_fonts_of(page_layout)
    layouts = _read_layouts(layouts_file)
    next_number, next_layout = next(layouts, (0, None))

    def draw(number: int, matrix: pdf.Matrix) -> bytes:
        # Called for each page from the first to the last, which is also the order of the layouts in the file.
        nonlocal next_number, next_layout
        if next_layout is None or next_number != number:
            return b""
        stream = invisible_text.stream_of(next_layout, matrix, fonts)
        next_number, next_layout = next(layouts, (0, None))
        return stream

    pdf.add_streams(original, target, password, fonts.sources(), invisible_text.widths(), draw)


def _read_layouts(layouts_file: Path) -> Iterator[tuple[int, layout.Layout]]:
    with layouts_file.open(encoding="utf-8") as lines:
        for line in lines:
            number, _, text = line.partition(" ")
            yield int(number), layout.decode(text)
