"""Draw a page and recognise what it shows, in the page process.

The process is asked by numbers: n draws page n, -n recognises it, and -n - IN_PARTS recognises it in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from job_handlers.reading import blocks as text_blocks
from job_handlers.reading import layout, ocr, ocr_layout, pdf
from job_handlers.reading.document import LOCKED, PARTIAL, TOO_LARGE, UNREADABLE
from job_handlers.reading.ocr import OcrSettings, PageReader
from job_handlers.reading.preprocess import Gray, pixels_hash, ruled_lines, whiten_missing_rows
from job_handlers.reading.tables import RulingLine
from job_handlers.reading.text_layer import is_fuller, is_worth_comparing
from worker_service.handlers import Block, digest

IN_PARTS = 1 << 24
"""Greater than any page number."""
PAGES_DRAWN_MOST = 2
"""Pages that are drawn before one query looks all of them up in the store."""


class DrawnPage(msgspec.Struct, tag=True, frozen=True):
    picture_digest: str


class PageReading(msgspec.Struct, tag=True, frozen=True):
    text: str
    method: str
    confidence: float | None = None
    layout: str | None = None
    why: str = ""


def page_of_request(request: int) -> int:
    return abs(request) % IN_PARTS


def is_recognition_in_parts(request: int) -> bool:
    return request < -IN_PARTS


def page_request_handler(
    original: Path, password: str, settings: OcrSettings, places: Mapping[int, int], *, is_forced: bool
) -> Callable[[int], DrawnPage | PageReading]:
    """Return the function that answers the requests of a page process.

    `places` maps page numbers to positions in a slice, which is a file with only the pages of one job.
    """
    try:
        book, engine = pdf.PagedFile(original, password), ocr.reader_for(settings)
    except pdf.PdfLocked:
        return lambda request: PageReading("", LOCKED)
    drawn: dict[int, PagePicture] = {}

    def answer(request: int) -> DrawnPage | PageReading:
        is_recognition = request < 0
        number = page_of_request(request)
        # A picture drawn by a process that has since crashed is drawn again.
        picture = drawn.pop(number, None) if is_recognition else None
        try:
            picture = picture or draw_page(book, number, places.get(number), is_forced=is_forced)
        except pdf.PageTooLarge as error:
            return PageReading("", TOO_LARGE, why=str(error))
        except pdf.Broken as error:
            return PageReading("", UNREADABLE, why=str(error))
        if is_recognition:
            return recognise_page(engine, picture._replace(is_in_parts=is_recognition_in_parts(request)))
        # `ocr_pages` recognises the last of a few pages after it has drawn the next few, so keep one more picture than
        # `PAGES_DRAWN_MOST`. The oldest page had a stored result, or it would have been recognised by now.
        if len(drawn) > PAGES_DRAWN_MOST:
            oldest = next(iter(drawn))
            del drawn[oldest]
        drawn[number] = picture
        return DrawnPage(_picture_digest(picture))

    return answer


class PagePicture(NamedTuple):
    number: int
    size: tuple[float, float]
    gray: Gray
    dpi: float
    is_damaged: bool = False
    is_in_parts: bool = False
    """Recognise the page in bands, so that a band on which the engine fails does not cost the whole page."""
    own_text: pdf.PageText | None = None
    """Text layer that may contain more than the engine reads."""


def draw_page(book: pdf.PagedFile, number: int, place: int | None = None, *, is_forced: bool = False) -> PagePicture:
    """`place` is the page's position in a slice."""
    at = place or number
    size = book.size(at)
    gray, dpi, is_damaged = book.picture_and_damage(at)
    if is_damaged:
        gray = whiten_missing_rows(gray)
    own_text = None if is_forced else _own_text(book, at)
    return PagePicture(number, size, gray, dpi, is_damaged, own_text=own_text)


def _own_text(book: pdf.PagedFile, at: int) -> pdf.PageText | None:
    if not book.is_pdf:
        return None
    page_text = book.text(at)
    return page_text if is_worth_comparing(page_text.text, book.measure_ink(at)) else None


def _picture_digest(picture: PagePicture) -> str:
    pixels = pixels_hash(picture.gray, picture.dpi, picture.size)
    # Pages with equal pixels share a result only if their own text, which may replace it, is equal too.
    return pixels if picture.own_text is None else digest([pixels, picture.own_text.text])


def recognise_page(engine: PageReader, picture: PagePicture) -> PageReading:
    recognition, own = _recognise(engine, picture), picture.own_text
    if own is None or recognition.method == UNREADABLE or not is_fuller(own.text, recognition.text):
        return recognition
    return PageReading(own.text, "layer", layout=layout.encode(own.layout))


def _recognise(engine: PageReader, picture: PagePicture) -> PageReading:
    size, dpi = picture.size, picture.dpi
    recognise = engine.read_in_parts if picture.is_in_parts else engine.read
    try:
        page = recognise(picture.gray, dpi)
    except RuntimeError as error:
        return PageReading("", UNREADABLE, why=f"the OCR engine failed: {error}")
    if page.is_blank:
        method = PARTIAL if picture.is_damaged else "blank"
        return PageReading("", method, layout=layout.encode(layout.Layout(size)))
    is_partial = picture.is_damaged or page.is_partial
    arranged = ocr_layout.arrange_page(page.lines, lambda: rules_in(page.straight, dpi))

    def to_page(lines: list[list[layout.Word]]) -> list[list[layout.Word]]:
        return layout.to_page_points(lines, size, dpi, page.turn, page.skew)

    tables = [
        layout.build_table(table.begin, table.end, [to_page(row) for row in table.rows]) for table in arranged.tables
    ]
    # An arranged line may have words of several lines of the engine.
    reread_lines = set(page.reread_lines)
    lines_of_second_engine = [
        at for at, engine_lines in enumerate(arranged.came_from) if not reread_lines.isdisjoint(engine_lines)
    ]
    width, height = size
    straight_height = (height if page.turn in (0, 180) else width) * dpi / 72
    unread = ocr.unread_script(page.script, page.languages)
    page_layout = layout.Layout(
        size,
        to_page(arranged.lines),
        _blocks(arranged, straight_height, dpi, to_page),
        tables=tables,
        turn=page.turn,
        skew=page.skew,
        dpi=round(dpi),
        readers=page.engines,
        second=lines_of_second_engine,
        written_in=page.languages,
        unread=unread,
    )
    # In the letters of another script, the engine may be sure of words that cannot be right.
    confidence = page.confidence if unread is None else 0.0
    return PageReading(arranged.text, PARTIAL if is_partial else "ocr", confidence, layout.encode(page_layout))


def _blocks(
    arranged: ocr_layout.ArrangedPage,
    height: float,
    dpi: float,
    to_page: Callable[[list[list[layout.Word]]], list[list[layout.Word]]],
) -> list[Block]:
    """`height` is that of the straight image."""
    end_of_table = {table.begin: table.end for table in arranged.tables}
    blocks = text_blocks.blocks_of_words(arranged.lines, arranged.text, end_of_table, height)
    # `to_page` converts words, so the boxes are converted as the words of one line.
    [boxes] = to_page([[layout.Word(block.x0, block.y0, block.x1, block.y1, 0, "") for block in blocks]])
    return [
        replace(block, x0=box.x0, y0=box.y0, x1=box.x1, y1=box.y1, size=round(block.size * 72 / dpi, 1))
        for block, box in zip(blocks, boxes, strict=True)
    ]


def rules_in(straight: Gray | None, dpi: float) -> list[RulingLine]:
    return [] if straight is None else [RulingLine(*box) for box in ruled_lines(straight, dpi)]
