"""Draw a page and recognise what it shows, in the page process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from job_handlers.reading import blocks as text_blocks
from job_handlers.reading import layout, ocr, ocr_layout, pdf
from job_handlers.reading.document import LOCKED
from job_handlers.reading.ocr import Reader, WayToRead
from job_handlers.reading.page_digests import PARTIAL, TOO_LARGE, UNREADABLE
from job_handlers.reading.preprocess import Gray, pixels_hash, ruled_lines, whiten_missing_rows
from job_handlers.reading.tables import RulingLine
from job_handlers.reading.text_layer import is_fuller, is_worth_comparing
from worker_service.handlers import Block, digest

SECOND_TRY = 1 << 24
"""Greater than any page number. Added to it, it requests the page in parts."""
AT_ONCE = 2
"""Pages drawn in a row and looked up with one question."""


class DrawnPage(msgspec.Struct, tag=True, frozen=True):
    shown: str


class ReadPage(msgspec.Struct, tag=True, frozen=True):
    text: str
    method: str
    confidence: float | None = None
    layout: str | None = None
    why: str = ""


def page_reader(
    original: Path, password: str, wanted: WayToRead, places: Mapping[int, int], *, is_forced: bool
) -> Callable[[int], DrawnPage | ReadPage]:
    # A positive number draws a page, its negative recognises it, beyond `SECOND_TRY` in parts.
    # `places` maps page numbers to positions in a slice.
    try:
        book, reader = pdf.PagedFile(original, password), ocr.reader_for(wanted)
    except pdf.PdfLocked:
        return lambda number: ReadPage("", LOCKED)
    drawn: dict[int, PagePicture] = {}

    def read(number: int) -> DrawnPage | ReadPage:
        page = abs(number) % SECOND_TRY
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
            return read_page(reader, picture._replace(is_in_parts=number < -SECOND_TRY))
        if len(drawn) > AT_ONCE:
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
    arranged = ocr_layout.arrange_page(found.lines, lambda: rules_in(found.seen, dpi))

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


def rules_in(seen: Gray | None, dpi: float) -> list[RulingLine]:
    return [] if seen is None else [RulingLine(*one) for one in ruled_lines(seen, dpi)]
