"""Put a document together from its pages, and publish it: text, pages.json, a searchable PDF, a thumbnail, hOCR.

Runs once all ranges of its document are done. Pages are asked for in slices and written as they come, so that ten
thousand of them take no more memory than twenty. What is optional (PDF, thumbnail) may fail and is then left out.
"""

from __future__ import annotations

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
    check_current,
    content_of,
    document_of,
    how_to_read,
    original_of,
)
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from job_handlers.reading.page_settings import TOO_LARGE, UNREADABLE, written_ranges
from worker_service.handlers import (
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


def run(context: Context[Payload]) -> Done:
    document = document_of(context)
    check_current(context)
    original = original_of(context)
    if document.kind is None or not document.pages:
        raise Permanent("PAGES_MISSING", "its pages have not been counted: read it again with `pagemill reindex`")
    one = _Assembly(context, original, document.kind, document.pages, how_to_read(context))
    if document.kind not in (Kind.PDF, Kind.IMAGE):
        return one.published(None)
    password = one.how.password
    with PageProcess[bytes](
        lambda: _drawer(original, password), bytes, cpu_seconds=_THUMBNAIL_CPU_SECONDS
    ) as thumbnail:
        # It is drawn meanwhile.
        thumbnail.begin()
        return one.published(thumbnail)


assemble = Handler(
    "assemble",
    run,
    Payload,
    job_class="io",
    limits=Limits(wall_seconds=2 * 3600, file_bytes=16384 * MIB),
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


class _Made(msgspec.Struct, frozen=True):
    why_not: str = ""


@dataclass(slots=True)
class _Assembly:
    context: Context[Payload]
    original: Path
    kind: str
    pages: int
    how: HowToRead
    files: list[File | SameFile] = field(default_factory=list)
    # What is known once all pages have passed.
    methods: Counter[str] = field(default_factory=Counter)
    left_out: list[int] = field(default_factory=list)
    has_words: bool = False
    characters: int = 0

    def published(self, thumbnail: PageProcess[bytes] | None) -> Done:
        context = self.context
        self._write_pages()
        if self.methods[UNREADABLE] == self.pages:
            raise Permanent(f"{self.kind.upper()}_BROKEN", "not one of its pages can be read: download the file again")
        notes = [context.payload.note] if context.payload.note else []
        if self.left_out:
            notes.append(f"left out as broken or too large: {_pages(self.left_out)}")
        if thumbnail is not None:
            context.progress(80, "searchable PDF")
            notes += self._publish_pdf()
            context.progress(95, "thumbnail")
            self._publish_thumbnail(thumbnail)
        context.progress(100, counted(self.pages, "page"))
        return Done(
            {"pages": self.pages, "characters": self.characters, "methods": dict(self.methods)},
            files=self.files,
            document=DocumentFacts(note="; ".join(notes) or None),
            publishes=True,
        )

    def _add(self, path: Path | str, role: str, ending: str) -> None:
        self.files.append(File(path, role, f"{self._stem}{ending}"))

    @property
    def _stem(self) -> str:
        return self.original.stem or "document"

    @property
    def _spool(self) -> Path:
        return self.context.staging / "layouts"

    def _write_pages(self) -> None:
        with ExitStack() as open_files:

            def begin(name: str, role: str, ending: str) -> TextIO:
                self._add(name, role, ending)
                path = self.context.staging / name
                return open_files.enter_context(path.open("w", encoding="utf-8", errors="replace"))

            text = begin("text.txt", "text", ".txt")
            pages = begin("pages.json", "pages", ".pages.json")
            layouts = open_files.enter_context(self._spool.open("w", encoding="utf-8"))
            has_places = self.kind in (Kind.PDF, Kind.IMAGE)
            shown = begin("pages.html", "hocr", ".hocr.html") if self.how.hocr and has_places else None
            if shown is not None:
                shown.write(hocr.beginning(self._stem))
            pages.write('{"pages": [')
            for page in slices(self.context, self.pages):
                text.write(f"{page.text or ''}\f")
                pages.write(("\n" if page.number == 1 else ",\n") + page_json(page))
                self.methods[page.method] += 1
                self.characters += len(page.text or "")
                if page.method in (TOO_LARGE, UNREADABLE):
                    self.left_out.append(page.number)
                if page.layout is not None and (shown is not None or layout.has_lines(page.layout)):
                    found = layout.read(page.layout)
                    if found.lines:
                        self.has_words = True
                        layouts.write(f"{page.number} {page.layout}\n")
                    if shown is not None:
                        shown.write(hocr.page(page.number, found, page.text or ""))
            pages.write("\n]}\n")
            if shown is not None:
                shown.write(hocr.END)

    def _publish_pdf(self) -> list[str]:
        """What a person is told of it."""
        if not self.has_words and self.kind == Kind.PDF:
            # It was searchable all along.
            same = self.context.ask(SameContent(sha256=content_of(self.context))).files
            self.files += [SameFile(one.id, "pdf", f"{self._stem}.pdf") for one in same[:1]]
            return []
        original, target, password = self.original, self.context.staging / "searchable.pdf", self.how.password
        kind, spool = self.kind, self._spool

        def make(number: int) -> _Made:
            try:
                _make_searchable(original, target, password, kind, spool)
            except (pdf.Broken, pdf.PageTooLarge, OSError) as error:
                return _Made(str(error) or type(error).__name__)
            return _Made()

        seconds = _PDF_CPU_SECONDS + self.pages // _PDF_CPU_PAGES
        with PageProcess[_Made](lambda: make, _Made, cpu_seconds=seconds) as process:
            try:
                why_not = process.read(1).why_not
            except (TooLarge, Lost) as error:
                why_not = str(error)
        if why_not:
            self.context.log(f"no searchable PDF could be made: {why_not}")
            return ["no searchable PDF could be made"]
        self._add(target, "pdf", ".pdf")
        return []

    def _publish_thumbnail(self, drawn: PageProcess[bytes]) -> None:
        try:
            picture = drawn.read(1)
        except (TooLarge, Lost) as error:
            self.context.log(f"no thumbnail: {error}")
            return
        if picture:
            (self.context.staging / "thumbnail.jpg").write_bytes(picture)
            self._add("thumbnail.jpg", "thumbnail", ".jpg")


def page_json(page: PageResult) -> str:
    known = {"number": page.number, "method": page.method, "confidence": page.confidence, "text": page.text or ""}
    written = msgspec.json.encode(known).decode()
    return written if page.layout is None else f'{written[:-1]},"layout":{page.layout}}}'


# --- in the processes apart -------------------------------------------------------------------------------


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


def _drawer(original: Path, password: str) -> Callable[[int], bytes]:
    """In the process apart, which draws before it is asked."""
    picture = b""
    with suppress(pdf.Broken, pdf.Locked, pdf.PageTooLarge), pdf.Book(original, password) as book:
        picture = book.thumbnail(1)
    return lambda number: picture


def _pages(numbers: Sequence[int]) -> str:
    return f"page{'s' if len(numbers) > 1 else ''} {written_ranges(numbers)}"
