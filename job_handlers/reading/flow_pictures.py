"""Recognise the pictures in a flowing document, where they appear, in the page process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from job_handlers.file_kinds import FileKind
from job_handlers.reading import formats, layout, ocr, ocr_layout
from job_handlers.reading.ocr import Reader, WayToRead
from job_handlers.reading.ocr.recognition import RecognisedPage, distinct
from job_handlers.reading.page_digests import PARTIAL, UNREADABLE
from job_handlers.reading.page_recognition import SECOND_TRY, DrawnPage, ReadPage, rules_in
from job_handlers.reading.preprocess import Damaged, Gray, decode_picture, pixels_hash

_PICTURE_DPI = 150.0
_SURE = 60.0
"""Below it the engine has probably read words into a photograph."""


def flow_reader(original: Path, kind: FileKind, wanted: WayToRead) -> Callable[[int], DrawnPage | ReadPage]:
    writing, reader = formats.open_document(original, kind), ocr.reader_for(wanted)
    pages: list[formats.FlowPage] = []

    def read(number: int) -> DrawnPage | ReadPage:
        nonlocal pages
        try:
            pages = pages or formats.paginate(writing.pieces())
        except formats.UnreadableDocument as error:
            return ReadPage("", UNREADABLE, why=str(error))
        # One picture at a time: ten large ones would take half a gigabyte.
        drawn = ((piece, _draw_piece(writing, piece)) for piece in pages[abs(number) % SECOND_TRY - 1])
        return DrawnPage(_flow_digest(drawn)) if number > 0 else _read_flow_page(reader, drawn, number < -SECOND_TRY)

    return read


_DAMAGED = "damaged"

DrawnPiece = tuple[formats.Piece, Gray | str | None]


def _draw_piece(writing: formats.FlowDocument, piece: formats.Piece) -> Gray | str | None:
    if isinstance(piece, str):
        return None
    try:
        return decode_picture(writing.picture(piece.key))
    except (formats.UnreadableDocument, Damaged):
        # The text around it is still read.
        return _DAMAGED


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
        if one == _DAMAGED:
            is_partial = True
        elif isinstance(one, Gray):
            try:
                found = (reader.read_in_parts if is_in_parts else reader.read)(one, _PICTURE_DPI)
            except RuntimeError:
                is_partial = True
                continue
            is_partial = is_partial or found.is_partial
            if (found.confidence or 0) >= _SURE:
                seen.append(found)
                lines.append(ocr_layout.arrange_page(found.lines, partial(rules_in, found.seen, _PICTURE_DPI)).text)
    readers, languages = distinct([one.readers for one in seen]), distinct([one.languages for one in seen])
    flow = layout.encode_flow(formats.layout_of(lines, readers, languages))
    confidence = min((one.confidence or 0 for one in seen), default=None)
    method = PARTIAL if is_partial else "ocr" if seen else "layer"
    return ReadPage("\n".join(one for one in lines if isinstance(one, str)), method, confidence, flow)
