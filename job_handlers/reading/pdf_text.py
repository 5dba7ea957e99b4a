"""A page's own text and where it stands, as the file tells it. Used by `pdf` alone; draws nothing.

Most pages are read below PyMuPDF's Python layer, which takes a fifth less time a page; those of which that is not
known to find the same are read by its own ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import pymupdf as partly_typed

from job_handlers.reading.layout import TEXT_CHARACTERS_MAX, Block

# Its annotations cover a part of it.
pymupdf: Any = partly_typed
mupdf: Any = pymupdf.mupdf

_SCAN_PIXELS_LEAST = 300_000
_FLAGS = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_PRESERVE_IMAGES
_FLAGS_UNCLIPPED = _FLAGS & ~pymupdf.TEXT_CLIP
_AS_IT_IS = pymupdf.Matrix(1, 1)
_PAGE_BYTES = 1 << 14
_TEXT = mupdf.FZ_STEXT_BLOCK_TEXT
_ROTATE, _RESOURCES, _XOBJECT = mupdf.PDF_ENUM_NAME_Rotate, mupdf.PDF_ENUM_NAME_Resources, mupdf.PDF_ENUM_NAME_XObject

_Paragraph = tuple[float, float, float, float, str]


@dataclass(frozen=True, slots=True)
class PageText:
    size: tuple[float, float]
    """As it is shown, in points."""
    text: str
    blocks: list[Block]
    may_be_scan: bool
    """It has images enough to be one."""


def text_of(document: Any, number: int) -> PageText:
    page = mupdf.fz_load_page(document.this, number - 1)
    own = mupdf.pdf_page_from_fz_page(page)
    whole = mupdf.fz_bound_page(page)
    is_upright = own.m_internal and not _inherited(own, _ROTATE).pdf_to_int()
    if not is_upright or mupdf.fz_is_infinite_rect(whole):
        return _by_its_own_ways(document, number)
    texts = _paragraphs(page, whole) or _paragraphs_of(document[number - 1])
    return _page_text(size_of(whole), texts, may_be_scan=_has_pictures(own) and _may_be_scan(document, number))


def size_of(whole: Any) -> tuple[float, float]:
    return round(whole.x1 - whole.x0, 2), round(whole.y1 - whole.y0, 2)


def _by_its_own_ways(document: Any, number: int) -> PageText:
    """A turned page, an image, and other rare ones."""
    page = document[number - 1]
    texts = _paragraphs_of(page)
    if page.rotation:
        # Its text is told as if it were not turned.
        turn = page.rotation_matrix
        texts = [(*_rounded(pymupdf.Rect(one[:4]) * turn), one[4]) for one in texts]
    return _page_text(size_of(page.rect), texts, may_be_scan=not document.is_pdf or _may_be_scan(document, number))


def _page_text(size: tuple[float, float], texts: Sequence[_Paragraph], *, may_be_scan: bool) -> PageText:
    blocks: list[Block] = []
    begin = 0
    for x0, y0, x1, y1, text in texts:
        end = begin + len(text)
        blocks.append(Block(x0, y0, x1, y1, begin, end))
        begin = end
    joined = "".join([one[4] for one in texts])
    return PageText(size, joined[:TEXT_CHARACTERS_MAX], blocks, may_be_scan)


def _paragraphs(page: Any, whole: Any) -> list[_Paragraph]:
    """Its blocks, with the text as the library itself writes it, which takes a sixth of the time. Nothing where that
    may be another text than what stands on the page: where something reaches beyond its edge, or takes no room."""
    read = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, _FLAGS_UNCLIPPED, _AS_IT_IS))
    left, top, right, bottom = whole.x0, whole.y0, whole.x1, whole.y1
    boxes: list[tuple[float, float, float, float]] = []
    block = read.m_internal.first_block
    while block:
        box = block.bbox
        x0, y0, x1, y1 = box.x0, box.y0, box.x1, box.y1
        if block.type != _TEXT or not (left <= x0 < x1 <= right and top <= y0 < y1 <= bottom):
            return []
        boxes.append((_tenths(x0) / 10, _tenths(y0) / 10, _tenths(x1) / 10, _tenths(y1) / 10))
        block = block.next
    try:
        # A line ends each line, and an empty one each block.
        texts = _written(read).decode().split("\n\n")
    except UnicodeDecodeError:
        return []
    if texts.pop() or len(texts) != len(boxes):
        # There are empty ones among its own lines.
        return []
    return [(*box, f"{text}\n") for box, text in zip(boxes, texts, strict=True)]


def _tenths(points: float) -> int:
    """The nearest. Python's own rounding to a decimal takes three times as long."""
    return floor(points * 10 + 0.5)


def _written(read: Any) -> bytes:
    buffer = mupdf.FzBuffer(_PAGE_BYTES)
    out = mupdf.FzOutput(buffer)
    mupdf.fz_print_stext_page_as_text(out, read)
    out.fz_close_output()
    written: bytes = buffer.fz_buffer_extract()
    return written


def _paragraphs_of(page: Any) -> list[_Paragraph]:
    found = page.get_textpage(flags=_FLAGS).extractBLOCKS()
    return [(*_rounded(one[:4]), one[4]) for one in found if one[6] == 0]


def _rounded(box: Sequence[float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


def _has_pictures(own: Any) -> bool:
    """Or something else that is drawn and may hold some. To list them takes longer than this look."""
    return bool(_inherited(own, _RESOURCES).pdf_dict_get(_XOBJECT).m_internal)


def _inherited(own: Any, name: int) -> Any:
    return own.obj().pdf_dict_get_inheritable(name)


def _may_be_scan(document: Any, number: int) -> bool:
    pixels: int = sum(image[2] * image[3] for image in document.get_page_images(number - 1))
    return pixels >= _SCAN_PIXELS_LEAST
