"""Write text into a PDF, below what its pages show, and make PDFs of images."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from job_handlers.reading.pdf.library import (
    RESOURCES,
    Broken,
    inheritable_value,
    is_missing,
    mupdf,
    pdf_space_to_shown_page,
    pymupdf,
    translate_errors,
)

_FONT = mupdf.PDF_ENUM_NAME_Font

Matrix = Sequence[float]


class PdfFont(NamedTuple):
    character_map: str
    dictionary: str
    """PDF source; {maps} and {widths} stand for references to the character map and the widths."""


def add_streams(
    original: Path,
    target: Path,
    password: str,
    fonts: Sequence[PdfFont],
    shared_widths: str,
    draw: Callable[[int, Matrix], bytes],
) -> None:
    """Add text to a copy of a PDF.

    `shared_widths` is the PDF source of an array. `draw` gets a page's number and its matrix from the page as shown to
    PDF space, and returns a content stream in which the fonts are named /PmF0, /PmF1 and so on.
    """
    with translate_errors(), pymupdf.open(original) as document:
        if document.needs_pass:
            document.authenticate(password)
        if not document.is_pdf:
            raise Broken("text can be added to a PDF only")
        font_xrefs: list[int] = []
        for number, page in enumerate(document, 1):
            stream = draw(number, _shown_page_to_pdf_space(page))
            if not stream:
                continue
            if not font_xrefs:
                widths_xref = document.get_new_xref()
                document.update_object(widths_xref, shared_widths)
                font_xrefs = [_add_font(document, font, widths_xref) for font in fonts]
            _add_below(document, page, stream, font_xrefs)
        if document.can_save_incrementally() and not document.is_repaired:
            # An incremental save appends to the file, so it has to be a copy of the original.
            shutil.copyfile(original, target)
            _append_changes(document, target)
        else:
            document.save(target, garbage=1, encryption=pymupdf.PDF_ENCRYPT_KEEP)


def _shown_page_to_pdf_space(page: Any) -> Matrix:
    # PyMuPDF's own matrices ignore the crop of a turned page.
    return tuple(~pymupdf.Matrix(pdf_space_to_shown_page(pymupdf._as_pdf_page(page))))


def _add_below(document: Any, page: Any, stream: bytes, font_xrefs: Sequence[int]) -> None:
    contents = [_add_stream(document, stream), *page.get_contents()]
    document.xref_set_key(page.xref, "Contents", f"[{' '.join(f'{xref} 0 R' for xref in contents)}]")
    pdf_page = pymupdf._as_pdf_page(page)
    resources = inheritable_value(pdf_page, RESOURCES)
    if is_missing(resources):
        resources = pdf_page.obj().pdf_dict_put_dict(RESOURCES, 1)
    fonts = resources.pdf_dict_get(_FONT)
    if is_missing(fonts):
        fonts = resources.pdf_dict_put_dict(_FONT, len(font_xrefs))
    pdf = pymupdf._as_pdf_document(document)
    for index, xref in enumerate(font_xrefs):
        fonts.pdf_dict_puts(f"PmF{index}", mupdf.pdf_new_indirect(pdf, xref, 0))


def _add_font(document: Any, font: PdfFont, widths_xref: int) -> int:
    map_xref = _add_stream(document, font.character_map.encode())
    source = font.dictionary.replace("{maps}", f"{map_xref} 0 R").replace("{widths}", f"{widths_xref} 0 R")
    xref: int = document.get_new_xref()
    document.update_object(xref, source)
    return xref


def _add_stream(document: Any, stream: bytes) -> int:
    xref: int = document.get_new_xref()
    document.update_object(xref, "<<>>")
    # PyMuPDF's own compression takes five times as long, and saves a few bytes.
    document.update_stream(xref, zlib.compress(stream), compress=False)
    document.xref_set_key(xref, "Filter", "/FlateDecode")
    return xref


def _append_changes(document: Any, target: Path) -> None:
    options = mupdf.PdfWriteOptions()
    options.do_incremental = 1
    options.do_encrypt = pymupdf.PDF_ENCRYPT_KEEP
    mupdf.pdf_save_document(pymupdf._as_pdf_document(document), str(target), options)


def pdf_of_image(original: Path, target: Path) -> None:
    with translate_errors(), pymupdf.open(original) as document:
        if document.page_count > 1:
            # Each frame of a TIFF becomes a page. Inserting the file, as below, would embed its first frame only.
            target.write_bytes(document.convert_to_pdf())
            return
        with pymupdf.open() as pdf:
            page = pdf.new_page(width=document[0].rect.width, height=document[0].rect.height)
            page.insert_image(page.rect, filename=str(original))
            pdf.save(target, deflate=True)
