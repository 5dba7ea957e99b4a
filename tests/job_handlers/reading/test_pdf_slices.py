"""A slice of a PDF for a cluster node: fewer bytes, and the same pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest

from job_handlers.reading import pdf
from job_handlers.reading.ocr_pages import OcrPagesPayload, slice_pages
from tests.job_handlers.reading.documents import garbage, tiff
from tests.job_handlers.reading.test_pdf_pixels import (
    DECODED,
    DRAWN,
    Sheet,
    gray,
    packed,
    scanned,
    with_a_note,
    written,
)

pymupdf: Any = partly_typed

LOCKED = {"encryption": pymupdf.PDF_ENCRYPT_AES_256, "owner_pw": "o"}


def with_an_intent() -> Sheet:
    """Return a page whose gray is not taken as it is, because of the catalog."""
    sheet = gray()
    sheet.document.xref_set_key(sheet.document.pdf_catalog(), "OutputIntents", "[<</S/GTS_PDFA1>>]")
    return sheet


SHOWN: dict[str, Callable[[], Sheet]] = {
    **DECODED,
    **{name: DRAWN[name] for name in ("page is turned", "cropped", "four inks", "a form", "half seen through")},
    **{name: DRAWN[name] for name in ("soft mask", "another gray", "hidden", "a stencil")},
    "an intent": with_an_intent,
}


def among_others(sheet: Sheet) -> Sheet:
    """Make it the second of three pages."""
    sheet.document.new_page(0).insert_text((72, 72), "before it")
    sheet.document.new_page().insert_text((72, 72), "behind it")
    return sheet


def cut(whole: Path, pages: str = "2") -> Path | None:
    target = whole.with_name("slice.pdf")
    return target if slice_pages(whole)(OcrPagesPayload(pages=pages), target) else None


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_has_the_same_pixels_in_its_document_and_in_a_slice(name: str, tmp_path: Path) -> None:
    whole = written(among_others(SHOWN[name]()), tmp_path / "whole.pdf")

    alone = cut(whole)

    assert alone is not None
    with pdf.PagedFile(whole) as book, pdf.PagedFile(alone) as part:
        assert (part.pages, part.was_repaired, part.size(1)) == (1, False, book.size(2))
        assert part.picture(1) == book.picture(2)


def test_a_slice_has_its_pages_in_order_and_shared_objects_once(tmp_path: Path) -> None:
    sheet = gray()
    for at in (1, 2, 3):
        sheet.document.fullcopy_page(0)
        sheet.document[at].set_rotation(90 * at)
    whole = written(sheet, tmp_path / "whole.pdf")

    part = cut(whole, "2,4")

    assert part is not None
    assert [one.rotation for one in pymupdf.open(part)] == [90, 270]
    assert part.stat().st_size < 1.1 * len(packed(scanned()))


def test_the_same_pages_make_the_same_slice(tmp_path: Path) -> None:
    whole = written(among_others(gray()), tmp_path / "whole.pdf")

    found = [one.read_bytes() for one in (cut(whole), cut(whole)) if one]

    assert len(found) == 2
    assert found[0] == found[1]


def test_an_encrypted_file_without_a_password_is_sliced(tmp_path: Path) -> None:
    whole = written(among_others(gray()), tmp_path / "whole.pdf", **LOCKED)

    alone = cut(whole)

    assert alone is not None
    with pdf.PagedFile(whole) as book, pdf.PagedFile(alone) as part:
        assert part.picture(1) == book.picture(2)


def test_files_whose_pages_depend_on_more_are_not_sliced(tmp_path: Path) -> None:
    noted = written(among_others(with_a_note()), tmp_path / "noted.pdf")
    broken = written(among_others(gray()), tmp_path / "broken.pdf")
    broken.write_bytes(broken.read_bytes().replace(b"startxref", b"startyref"))

    assert cut(noted) is None
    assert cut(broken) is None
    assert cut(written(among_others(gray()), tmp_path / "all.pdf"), "1-3") is None
    assert cut(tiff(tmp_path / "pages.tif", [scanned(), scanned()]), "1") is None
    assert cut(garbage(tmp_path / "noise.bin")) is None


def test_a_file_with_a_password_is_not_sliced(tmp_path: Path) -> None:
    with pytest.raises(pdf.PdfLocked):
        cut(written(among_others(gray()), tmp_path / "locked.pdf", user_pw="u", **LOCKED))
