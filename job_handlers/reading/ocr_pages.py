"""Recognise a range of pages and save each at once, so that a killed attempt resumes there.

A page whose pixels were recognised before, in any file, is not recognised again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from job_handlers.file_kinds import FileKind, kind_of
from job_handlers.reading import blocks as text_blocks
from job_handlers.reading import formats, layout, ocr, ocr_layout, pdf
from job_handlers.reading.document import (
    ENVIRONMENT,
    LOCKED,
    HowToRead,
    content_of,
    how_to_read,
    library_of,
    locked_error,
    original_of,
    password_of,
    refuse_stale,
)
from job_handlers.reading.ocr import Reader, WayToRead
from job_handlers.reading.ocr.recognition import RecognisedPage, distinct
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from job_handlers.reading.page_settings import (
    PARTIAL,
    TOO_LARGE,
    UNREADABLE,
    PageSource,
    job_digest,
    ocr_digest,
    pixels_digest,
    read_ranges,
)
from job_handlers.reading.preprocess import Damaged, Gray, decode_picture, pixels_hash, ruled_lines, whiten_missing_rows
from job_handlers.reading.tables import RulingLine
from job_handlers.reading.text_layer import is_fuller, is_worth_comparing
from worker_service.handlers import (
    Block,
    Context,
    Done,
    Handler,
    KnownPages,
    Limits,
    MissingDependency,
    PageResult,
    Retryable,
    counted,
    digest,
)

_PAGE_CPU_SECONDS = 90
_PAGES_MAX = 1000
_LOOK_SECONDS, _LOOK_SECONDS_MAX = 30.0, 900.0
_LOOKS_AGAIN_AFTER = 0.25
"""Share of the time waited so far."""
_SECOND_TRY = 1 << 24
"""Greater than any page number. Added to it, it requests the page in parts."""
_AT_ONCE = 2
"""Pages drawn in a row and looked up with one question."""


class OcrPagesPayload(HowToRead, frozen=True, kw_only=True):
    pages: str
    """Page ranges, such as `1-12` or `3,7-9`."""


class DrawnPage(msgspec.Struct, tag=True, frozen=True):
    shown: str


class ReadPage(msgspec.Struct, tag=True, frozen=True):
    text: str
    method: str
    confidence: float | None = None
    layout: str | None = None
    why: str = ""


def run(context: Context[OcrPagesPayload]) -> Done:
    how = how_to_read(context)
    numbers = read_ranges(context.payload.pages, _PAGES_MAX)
    sliced = context.inputs.get("slice")
    original, content = sliced or original_of(context), content_of(context)
    kind = kind_of(original)
    password, engine = password_of(context, how), how.engine
    identity = ocr.identity_of(engine)
    if identity == "none":
        _wait_for_data(context, engine)
    # A slice contains only these pages, in this order.
    places = {number: at for at, number in enumerate(numbers, 1)} if sliced else {}
    with PageProcess[DrawnPage | ReadPage](
        lambda: (
            _flow_reader(original, kind, engine)
            if kind.is_flowing
            else _page_reader(original, password, engine, places, is_forced=bool(how.force_ocr))
        ),
        DrawnPage | ReadPage,
        cpu_seconds=_PAGE_CPU_SECONDS,
    ) as process:
        # The engine starts while the pages are looked up.
        process.begin()
        pages = PageRange(context, numbers, PageSource(content, library_of(kind)), engine, identity)
        context.progress(0, f"0 of {counted(len(numbers), 'page')} done", done=0, total=len(numbers), unit="pages")
        pages.read_with(process)
    of = len(numbers)
    context.progress(message=counted(of, "page") if of > 1 else f"page {numbers[0]}", done=of, total=of, unit="pages")
    return Done({"pages": len(numbers), "recognised": pages.recognised, "engine": identity})


def slice_pages(original: Path) -> Callable[[OcrPagesPayload, Path], bool]:
    if kind_of(original) is not FileKind.PDF:
        return lambda payload, target: False
    book = pdf.PagedFile(original, is_mapped=True)
    return lambda payload, target: book.write_slice(read_ranges(payload.pages, _PAGES_MAX), target)


ocr_pages = Handler(
    "ocr_pages",
    run,
    OcrPagesPayload,
    limits=Limits(cpu_seconds=2 * 3600, wall_seconds=2 * 3600),
    environment=ENVIRONMENT,
    missing=ocr.missing,
    offers=ocr.offers,
    choices=ocr.choices,
    identity=lambda: [*ocr.identity(), pdf.LIBRARY],
    # An encrypted file needs a credential, which no node has; the attempt then runs again on the head.
    runs_on_cluster=True,
    slicer=slice_pages,
    credentials=["password*"],
)


def _wait_for_data(context: Context[OcrPagesPayload], wanted: WayToRead) -> None:
    """Raise `MissingDependency`, to look again at growing intervals."""
    since = context.state["lacking_since"] if context.state else time.time()
    try:
        ocr.reader_for(wanted)
    except MissingDependency as error:
        context.checkpoint({"lacking_since": since})
        waited = (time.time() - since) * _LOOKS_AGAIN_AFTER
        raise MissingDependency(
            error.detail, error.remedy, after=min(max(waited, _LOOK_SECONDS), _LOOK_SECONDS_MAX)
        ) from error


class PageServer(Protocol):
    """Benchmarks replace `PageProcess`."""

    def request(self, *numbers: int) -> None: ...
    def receive(self) -> tuple[int, DrawnPage | ReadPage | TooLarge | Lost]: ...
    @property
    def has_pending(self) -> bool: ...


@dataclass(slots=True)
class PageRange:
    context: Context[OcrPagesPayload]
    numbers: Sequence[int]
    source: PageSource
    engine: WayToRead
    identity: str
    recognised: int = 0
    _digests: dict[int, str] = field(default_factory=dict)
    """Page number → digest of its pixels."""

    def read_with(self, process: PageServer) -> None:
        key = self.context.idempotency_key
        of_file = {number: (job_digest(own := self._file_digest(number), key), own) for number in self.numbers}
        coming = iter(self._without_results(of_file))
        drawn = [*islice(coming, _AT_ONCE)]
        process.request(*drawn)
        while process.has_pending:
            number, found = process.receive()
            if isinstance(found, DrawnPage):
                self._digests[number] = pixels_digest(
                    found.shown, self.engine.languages, self.engine.quality, self.identity
                )
            elif isinstance(found, Lost) and -_SECOND_TRY < number < 0:
                self.context.log(f"page {-number}: {found} while it was read; trying again in parts")
                process.request(number - _SECOND_TRY)
            else:
                self._save(abs(number) % _SECOND_TRY, found)
            if drawn and number == drawn[-1]:
                left = self._without_results({one: (self._digests[one],) for one in drawn if one in self._digests})
                drawn = [*islice(coming, _AT_ONCE)]
                # The next pages are drawn before the last of these is recognised, so that the lookup overlaps with
                # recognition.
                process.request(*(-one for one in left[:-1]), *drawn, *(-one for one in left[-1:]))

    def _without_results(self, names: Mapping[int, Sequence[str]]) -> list[int]:
        """Save the pages with a stored result; return the others."""
        _stop_if_asked(self.context)
        answer = self.context.ask(KnownPages([name for some in names.values() for name in some]))
        known = set(answer.digests)
        again = {number: name for number, some in names.items() for name in some if name in known}
        self.context.save_pages(
            [
                PageResult(number, name, also=self._file_digest(number) if number in self._digests else "")
                for number, name in again.items()
            ]
        )
        left = [number for number in names if number not in again]
        refuse_stale(is_stale=bool(left) and answer.is_stale)
        return left

    def _file_digest(self, number: int) -> str:
        return ocr_digest(self.source, number, self.engine.languages, self.engine.quality, self.identity)

    def _save(self, number: int, found: ReadPage | TooLarge | Lost) -> None:
        if isinstance(found, ReadPage) and found.method == LOCKED:
            raise locked_error(self.context, "")
        self.context.save_page(self._page_result(number, found))
        done = self.numbers.index(number) + 1
        of = len(self.numbers)
        self.context.progress(message=f"page {number}, {done} of {of} done", done=done, total=of, unit="pages")
        self.recognised += 1
        if done < len(self.numbers):
            # The next page has hardly begun.
            _stop_if_asked(self.context)

    def _page_result(self, number: int, found: ReadPage | TooLarge | Lost) -> PageResult:
        if isinstance(found, TooLarge | Lost):
            read = ReadPage("", TOO_LARGE if isinstance(found, TooLarge) else UNREADABLE, why=str(found))
        else:
            read = found
        own = self._file_digest(number)
        if read.method in (TOO_LARGE, UNREADABLE):
            self.context.log(f"page {number} is left out: {read.why}")
            return PageResult(number, job_digest(own, self.context.idempotency_key), "", read.method)
        return PageResult(number, self._digests[number], read.text, read.method, read.confidence, read.layout, also=own)


def _stop_if_asked(context: Context[OcrPagesPayload]) -> None:
    if context.cancelled():
        raise Retryable("it was asked to stop", code="STOPPED")


def _page_reader(
    original: Path, password: str, wanted: WayToRead, places: Mapping[int, int], *, is_forced: bool
) -> Callable[[int], DrawnPage | ReadPage]:
    # A positive number draws a page, its negative recognises it, beyond `_SECOND_TRY` in parts.
    # `places` maps page numbers to positions in a slice.
    try:
        book, reader = pdf.PagedFile(original, password), ocr.reader_for(wanted)
    except pdf.PdfLocked:
        return lambda number: ReadPage("", LOCKED)
    drawn: dict[int, PagePicture] = {}

    def read(number: int) -> DrawnPage | ReadPage:
        page = abs(number) % _SECOND_TRY
        try:
            # A picture drawn by a process that has since crashed is drawn again.
            picture = (drawn.pop(page, None) if number < 0 else None) or draw_page(
                book, page, places.get(page), is_forced=is_forced
            )
        except pdf.PageTooLarge as error:
            return ReadPage("", TOO_LARGE, why=str(error))
        except pdf.Broken as error:
            return ReadPage("", UNREADABLE, why=str(error))
        if number < 0:
            return read_page(reader, picture._replace(is_in_parts=number < -_SECOND_TRY))
        if len(drawn) > _AT_ONCE:
            # The oldest page had a stored result, or it would have been recognised by now.
            del drawn[next(iter(drawn))]
        drawn[number] = picture
        return DrawnPage(_pixels_digest(picture))

    return read


class PagePicture(NamedTuple):
    number: int
    size: tuple[float, float]
    gray: Gray
    dpi: float
    is_damaged: bool = False
    is_in_parts: bool = False
    own: pdf.PageText | None = None
    """Text that may contain more than the engine reads."""


def draw_page(book: pdf.PagedFile, number: int, place: int | None = None, *, is_forced: bool = False) -> PagePicture:
    at = place or number
    size = book.size(at)
    gray, dpi, is_damaged = book.picture_and_damage(at)
    own = None if is_forced else _own_text(book, at)
    return PagePicture(number, size, whiten_missing_rows(gray) if is_damaged else gray, dpi, is_damaged, own=own)


def _own_text(book: pdf.PagedFile, at: int) -> pdf.PageText | None:
    if not book.is_pdf:
        return None
    found = book.text(at)
    return found if is_worth_comparing(found.text, book.measure_ink(at)) else None


def _pixels_digest(picture: PagePicture) -> str:
    shown = pixels_hash(picture.gray, picture.dpi, picture.size)
    # Pages with equal pixels share a result only if their own text, which may replace it, is equal too.
    return shown if picture.own is None else digest([shown, picture.own.text])


def read_page(reader: Reader, picture: PagePicture) -> ReadPage:
    read = _recognise(reader, picture)
    if picture.own is None or read.method == UNREADABLE or not is_fuller(picture.own.text, read.text):
        return read
    own = picture.own
    return ReadPage(own.text, "layer", layout=layout.encode(own.layout))


def _recognise(reader: Reader, picture: PagePicture) -> ReadPage:
    size, gray, dpi, is_damaged, is_in_parts = picture[1:6]
    try:
        found = reader.read_in_parts(gray, dpi) if is_in_parts else reader.read(gray, dpi)
    except RuntimeError as error:
        return ReadPage("", UNREADABLE, why=f"the OCR engine failed: {error}")
    if found.is_blank:
        return ReadPage("", PARTIAL if is_damaged else "blank", layout=layout.encode(layout.Layout(size)))
    arranged = ocr_layout.arrange_page(found.lines, lambda: _rules(found.seen, dpi))

    def to_page(lines: list[list[layout.Word]]) -> list[list[layout.Word]]:
        return layout.to_page_points(lines, size, dpi, found.turn, found.skew)

    placed = [layout.build_table(begin, end, [to_page(row) for row in some]) for begin, end, some in arranged.tables]
    looked_at_again = set(found.second)
    second = [at for at, some in enumerate(arranged.came_from) if not looked_at_again.isdisjoint(some)]
    unread = ocr.unread(found.script, found.languages)
    written = layout.encode(
        layout.Layout(
            size,
            to_page(arranged.lines),
            _blocks(arranged, size[found.turn in (0, 180)] * dpi / 72, dpi, to_page),
            tables=placed,
            turn=found.turn,
            skew=found.skew,
            dpi=round(dpi),
            readers=found.readers,
            second=second,
            written_in=found.languages,
            unread=unread,
        )
    )
    # The letters are of another script: the engine was sure of words that cannot be right.
    confidence = found.confidence if unread is None else 0.0
    return ReadPage(arranged.text, PARTIAL if is_damaged or found.is_partial else "ocr", confidence, written)


def _blocks(
    arranged: ocr_layout.ArrangedPage,
    height: float,
    dpi: float,
    to_page: Callable[[list[list[layout.Word]]], list[list[layout.Word]]],
) -> list[Block]:
    tables = [(begin, end) for begin, end, _ in arranged.tables]
    found = text_blocks.blocks_of_words(arranged.lines, arranged.text, tables, height)
    boxes = to_page([[layout.Word(one.x0, one.y0, one.x1, one.y1, 0, "") for one in found]])[0]
    return [
        replace(one, x0=box.x0, y0=box.y0, x1=box.x1, y1=box.y1, size=round(one.size * 72 / dpi, 1))
        for one, box in zip(found, boxes, strict=True)
    ]


def _rules(seen: Gray | None, dpi: float) -> list[RulingLine]:
    return [] if seen is None else [RulingLine(*one) for one in ruled_lines(seen, dpi)]


# --- pictures that stand in a text -----------------------------------------------------------------------------------

_PICTURE_DPI = 150.0
_SURE = 60.0
"""Below it the engine has probably read words into a photograph."""


def _flow_reader(original: Path, kind: FileKind, wanted: WayToRead) -> Callable[[int], DrawnPage | ReadPage]:
    writing, reader = formats.open_document(original, kind), ocr.reader_for(wanted)
    pages: list[formats.FlowPage] = []

    def read(number: int) -> DrawnPage | ReadPage:
        nonlocal pages
        try:
            pages = pages or formats.paginate(writing.pieces())
        except formats.UnreadableDocument as error:
            return ReadPage("", UNREADABLE, why=str(error))
        # One picture at a time: ten large ones would take half a gigabyte.
        drawn = ((piece, _draw_piece(writing, piece)) for piece in pages[abs(number) % _SECOND_TRY - 1])
        return DrawnPage(_flow_digest(drawn)) if number > 0 else _read_flow_page(reader, drawn, number < -_SECOND_TRY)

    return read


class _DamagedPicture:
    def __repr__(self) -> str:
        return "damaged"


DrawnPiece = tuple[formats.Piece, Gray | _DamagedPicture | None]


def _draw_piece(writing: formats.FlowDocument, piece: formats.Piece) -> Gray | _DamagedPicture | None:
    if isinstance(piece, str):
        return None
    try:
        return decode_picture(writing.picture(piece.key))
    except (formats.UnreadableDocument, Damaged):
        # The text around it is still read.
        return _DamagedPicture()


def _flow_digest(drawn: Iterable[DrawnPiece]) -> str:
    shown = [
        (formats.identity_of(piece), pixels_hash(one, _PICTURE_DPI, (0, 0)) if isinstance(one, Gray) else one)
        for piece, one in drawn
    ]
    return hashlib.sha256(repr(shown).encode("utf-8", "replace")).hexdigest()


def _read_flow_page(reader: Reader, drawn: Iterable[DrawnPiece], is_in_parts: bool) -> ReadPage:
    lines: list[str | formats.ShownPicture] = []
    seen: list[RecognisedPage] = []
    is_partial = False
    for piece, one in drawn:
        if isinstance(piece, str):
            lines.append(piece)
            continue
        if piece.alt or (one is not None and piece.alt is not None):
            lines.append(formats.ShownPicture(piece.alt or ""))
        if isinstance(one, _DamagedPicture):
            is_partial = True
        elif one is not None:
            try:
                found = (reader.read_in_parts if is_in_parts else reader.read)(one, _PICTURE_DPI)
            except RuntimeError:
                is_partial = True
                continue
            is_partial = is_partial or found.is_partial
            if (found.confidence or 0) >= _SURE:
                seen.append(found)
                lines.append(ocr_layout.arrange_page(found.lines, partial(_rules, found.seen, _PICTURE_DPI)).text)
    readers, languages = distinct([one.readers for one in seen]), distinct([one.languages for one in seen])
    flow = layout.encode_flow(formats.layout_of(lines, readers, languages))
    confidence = min((one.confidence or 0 for one in seen), default=None)
    method = PARTIAL if is_partial else "ocr" if seen else "layer"
    return ReadPage("\n".join(one for one in lines if isinstance(one, str)), method, confidence, flow)
