"""Copy some pages of a PDF, as they are compressed, into a smaller file for another machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from job_handlers.reading.pdf.library import is_missing, mupdf, pymupdf

_TYPE = mupdf.PDF_ENUM_NAME_Type
_INHERITED_KEYS = ("Resources", "MediaBox", "CropBox", "Rotate")
_OWN_KEYS = ("Contents", "BleedBox", "TrimBox", "ArtBox", "UserUnit", "Group", "Annots")
_CATALOG_KEYS = ("OCProperties", "OutputIntents")
_NEW_PAGE_KEYS = 12  # All that a copied page may get, so that its dictionary does not grow.


def write_slice(document: Any, numbers: Sequence[int], target: Path) -> bool:
    """Return False if the pages might not have the same pixels."""
    source = pymupdf._as_pdf_document(document)
    slice_document = mupdf.PdfDocument()
    # Copies objects that pages share only once.
    graft_map = slice_document.pdf_new_graft_map()

    def copy_value(target_dictionary: Any, key: str, value: Any) -> None:
        if not is_missing(value):
            target_dictionary.pdf_dict_puts(key, graft_map.pdf_graft_mapped_object(value))

    for number in numbers:
        page = source.pdf_lookup_page_obj(number - 1)
        if page.pdf_dict_gets("Annots").pdf_array_len():
            return False
        copy = slice_document.pdf_add_new_dict(_NEW_PAGE_KEYS)
        copy.pdf_dict_put(_TYPE, mupdf.pdf_new_name("Page"))
        for key in _INHERITED_KEYS:
            copy_value(copy, key, page.pdf_dict_get_inheritable(mupdf.pdf_new_name(key)))
        for key in _OWN_KEYS:
            copy_value(copy, key, page.pdf_dict_gets(key))
        slice_document.pdf_insert_page(-1, copy)
    for key in _CATALOG_KEYS:
        copy_value(_catalog(slice_document), key, _catalog(source).pdf_dict_gets(key))
    # Reading the pages may have shown that the file is broken. MuPDF could repair the slice in another way.
    if document.is_repaired:
        return False
    options = mupdf.PdfWriteOptions()
    # Keep the ID, so that the same pages make the same file.
    options.dont_regenerate_id = 1
    mupdf.pdf_save_document(slice_document, str(target), options)
    return True


def _catalog(document: Any) -> Any:
    return document.pdf_trailer().pdf_dict_gets("Root")
