"""Write text into a PDF, below what its pages show, and make PDFs of images."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from job_handlers.reading.pdf.library import RESOURCES, Broken, inherited, mupdf, pymupdf, translate_errors

_FONT = mupdf.PDF_ENUM_NAME_Font


def add_streams(
    original: Path,
    target: Path,
    password: str,
    fonts: Sequence[str],
    widths: str,
    draw: Callable[[int, Mapping[str, Any]], bytes],
) -> None:
    """Append text to a copy of a PDF.

    `draw` gets a page number and `matrix`, which maps points of the page as it is shown to its own space; its content
    stream uses the `fonts` by position as /PmF0, /PmF1. A font is its character map, {font}, and PDF source with the
    placeholders {maps} and {widths}.
    """
    with translate_errors(), pymupdf.open(original) as document:
        if document.needs_pass:
            document.authenticate(password)
        if not document.is_pdf:
            raise Broken("text can be added to a PDF only")
        references: list[int] = []
        for number in range(document.page_count):
            page = document[number]
            stream = draw(number + 1, {"matrix": _to_own_space(page)})
            if not stream:
                continue
            if not references:
                shared = document.get_new_xref()
                document.update_object(shared, widths)
                references = [_add_font(document, font, f"{shared} 0 R") for font in fonts]
            _add_below(document, page, stream, references)
        if document.can_save_incrementally() and not document.is_repaired:
            shutil.copyfile(original, target)
            _save_appended(document, target)
        else:
            document.save(target, garbage=1, encryption=pymupdf.PDF_ENCRYPT_KEEP)


def _to_own_space(page: Any) -> tuple[float, ...]:
    """PyMuPDF's own matrices ignore the crop of a turned page."""
    whole, shown = mupdf.FzRect(mupdf.FzRect.Fixed_UNIT), mupdf.FzMatrix()
    mupdf.pdf_page_transform(pymupdf._as_pdf_page(page), whole, shown)
    return tuple(~pymupdf.Matrix(shown.a, shown.b, shown.c, shown.d, shown.e, shown.f))


def _add_below(document: Any, page: Any, stream: bytes, references: Sequence[int]) -> None:
    contents = [_add_stream(document, stream), *page.get_contents()]
    document.xref_set_key(page.xref, "Contents", f"[{' '.join(f'{one} 0 R' for one in contents)}]")
    own = pymupdf._as_pdf_page(page)
    resources = inherited(own, RESOURCES)
    if not resources.m_internal:
        resources = own.obj().pdf_dict_put_dict(RESOURCES, 1)
    fonts = resources.pdf_dict_get(_FONT)
    if not fonts.m_internal:
        fonts = resources.pdf_dict_put_dict(_FONT, len(references))
    pdf = pymupdf._as_pdf_document(document)
    for at, reference in enumerate(references):
        fonts.pdf_dict_puts(f"PmF{at}", mupdf.pdf_new_indirect(pdf, reference, 0))


def _add_font(document: Any, source: str, widths: str) -> int:
    maps, _, font = source.partition("{font}")
    stream = _add_stream(document, maps.encode())
    xref: int = document.get_new_xref()
    document.update_object(xref, font.replace("{maps}", f"{stream} 0 R").replace("{widths}", widths))
    return xref


def _add_stream(document: Any, stream: bytes) -> int:
    """PyMuPDF takes five times as long to make it a few bytes smaller."""
    xref: int = document.get_new_xref()
    document.update_object(xref, "<<>>")
    document.update_stream(xref, zlib.compress(stream), compress=False)
    document.xref_set_key(xref, "Filter", "/FlateDecode")
    return xref


def _save_appended(document: Any, target: Path) -> None:
    options = mupdf.PdfWriteOptions()
    options.do_incremental = 1
    options.do_encrypt = pymupdf.PDF_ENCRYPT_KEEP
    mupdf.pdf_save_document(pymupdf._as_pdf_document(document), str(target), options)


def pdf_of_image(original: Path, target: Path) -> None:
    with translate_errors(), pymupdf.open(original) as document:
        if document.page_count > 1:
            target.write_bytes(document.convert_to_pdf())
            return
        with pymupdf.open() as made:
            page = made.new_page(width=document[0].rect.width, height=document[0].rect.height)
            page.insert_image(page.rect, filename=str(original))
            made.save(target, deflate=True)
