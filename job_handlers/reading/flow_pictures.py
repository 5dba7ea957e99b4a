"""Recognise the pictures in a flowing document, where they appear, in the page process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from job_handlers.file_kinds import FileKind
from job_handlers.reading import formats, layout, ocr, ocr_layout
from job_handlers.reading.document import PARTIAL, UNREADABLE
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.ocr.recognition import RecognisedPage, distinct
from job_handlers.reading.page_recognition import (
    DrawnPage,
    PageReading,
    is_recognition_in_parts,
    page_of_request,
    rules_in,
)
from job_handlers.reading.preprocess import Damaged, Gray, decode_picture, pixels_hash

_PICTURE_DPI = 150.0  # Assumed, because documents rarely state it.
_CONFIDENCE_LEAST = 60.0  # A lower confidence means words read into a photograph.
_DAMAGED = "damaged"

# A piece of a page, and its pixels or _DAMAGED: None if it is text, or a picture too small or too large for text.
DrawnPiece = tuple[formats.Piece, Gray | str | None]


def flow_reader(original: Path, kind: FileKind, settings: OcrSettings) -> Callable[[int], DrawnPage | PageReading]:
    document, reader = formats.open_document(original, kind), ocr.reader_for(settings)
    pages: list[formats.FlowPage] = []

    def answer(request: int) -> DrawnPage | PageReading:
        nonlocal pages
        try:
            pages = pages or formats.paginate(document.pieces())
        except formats.UnreadableDocument as error:
            return PageReading("", UNREADABLE, why=str(error))
        # Decode one picture at a time: ten large ones would take half a gigabyte.
        pieces = ((piece, _draw_piece(document, piece)) for piece in pages[page_of_request(request) - 1])
        if request > 0:
            return DrawnPage(_flow_digest(pieces))
        return _read_flow_page(reader.read_in_parts if is_recognition_in_parts(request) else reader.read, pieces)

    return answer


def _draw_piece(document: formats.FlowDocument, piece: formats.Piece) -> Gray | str | None:
    if isinstance(piece, str):
        return None
    try:
        return decode_picture(document.picture(piece.key))
    except (formats.UnreadableDocument, Damaged):
        # The text around it is still read.
        return _DAMAGED


def _flow_digest(pieces: Iterable[DrawnPiece]) -> str:
    identities = [
        (
            formats.identity_of(piece),
            pixels_hash(picture, _PICTURE_DPI, (0, 0)) if isinstance(picture, Gray) else picture,
        )
        for piece, picture in pieces
    ]
    return hashlib.sha256(repr(identities).encode("utf-8", "replace")).hexdigest()


def _read_flow_page(recognise: Callable[[Gray, float], RecognisedPage], pieces: Iterable[DrawnPiece]) -> PageReading:
    lines: list[str | formats.ShownPicture] = []
    recognised: list[RecognisedPage] = []
    is_partial = False
    for piece, picture in pieces:
        if isinstance(piece, str):
            lines.append(piece)
            continue
        # Its alternative text marks a picture's place. If empty, only a picture that may contain text is marked.
        if piece.alt or (picture is not None and piece.alt is not None):
            lines.append(formats.ShownPicture(piece.alt or ""))
        if picture == _DAMAGED:
            is_partial = True
        if not isinstance(picture, Gray):
            continue
        try:
            page = recognise(picture, _PICTURE_DPI)
        except RuntimeError:
            is_partial = True
            continue
        is_partial = is_partial or page.is_partial
        if (page.confidence or 0) >= _CONFIDENCE_LEAST:
            recognised.append(page)
            lines.append(ocr_layout.arrange_page(page.lines, partial(rules_in, page.straight, _PICTURE_DPI)).text)
    engines = distinct([page.engines for page in recognised])
    languages = distinct([page.languages for page in recognised])
    flow = layout.encode_flow(formats.layout_of(lines, engines, languages))
    confidence = min((page.confidence or 0 for page in recognised), default=None)
    method = "ocr" if recognised else "layer"
    if is_partial:
        method = PARTIAL
    return PageReading("\n".join(line for line in lines if isinstance(line, str)), method, confidence, flow)
