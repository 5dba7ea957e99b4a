"""Write some pages of a PDF, compressed as they are, into a file of their own for another machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from job_handlers.reading.pdf.library import mupdf, pymupdf

_TYPE = mupdf.PDF_ENUM_NAME_Type
_INHERITED_KEYS = ("Resources", "MediaBox", "CropBox", "Rotate")
_OWN_KEYS = ("Contents", "BleedBox", "TrimBox", "ArtBox", "UserUnit", "Group", "Annots")
_CATALOG_KEYS = ("OCProperties", "OutputIntents")
_NEW_PAGE_KEYS = 12


def write_slice(document: Any, numbers: Sequence[int], target: Path) -> bool:
    source = pymupdf._as_pdf_document(document)
    made = mupdf.PdfDocument()
    # Copy shared objects once.
    copies = made.pdf_new_graft_map()

    def take(into: Any, key: str, found: Any) -> None:
        if found.m_internal:
            into.pdf_dict_puts(key, copies.pdf_graft_mapped_object(found))

    for number in numbers:
        page = source.pdf_lookup_page_obj(number - 1)
        if page.pdf_dict_gets("Annots").pdf_array_len():
            return False
        copy = made.pdf_add_new_dict(_NEW_PAGE_KEYS)
        copy.pdf_dict_put(_TYPE, mupdf.pdf_new_name("Page"))
        for key in _INHERITED_KEYS:
            take(copy, key, page.pdf_dict_get_inheritable(mupdf.pdf_new_name(key)))
        for key in _OWN_KEYS:
            take(copy, key, page.pdf_dict_gets(key))
        made.pdf_insert_page(-1, copy)
    for key in _CATALOG_KEYS:
        take(_catalog(made), key, _catalog(source).pdf_dict_gets(key))
    # MuPDF's view of a repaired file may change, so do not cut one.
    if document.is_repaired:
        return False
    options = mupdf.PdfWriteOptions()
    # Keep the ID, so that the same pages make the same file.
    options.dont_regenerate_id = 1
    mupdf.pdf_save_document(made, str(target), options)
    return True


def _catalog(document: Any) -> Any:
    return document.pdf_trailer().pdf_dict_gets("Root")
