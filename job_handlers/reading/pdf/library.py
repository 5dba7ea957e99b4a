"""PyMuPDF, which no other package imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymupdf as partly_typed
from msgspec import Struct
from PIL import Image

# Its type annotations are incomplete.
pymupdf: Any = partly_typed
mupdf: Any = pymupdf.mupdf

LIBRARY = f"pymupdf {pymupdf.VersionBind}"

# MuPDF would print its complaints about files on stderr, among the messages for the user.
pymupdf.TOOLS.mupdf_display_errors(False)
pymupdf.TOOLS.mupdf_display_warnings(False)
# Load the plugins before processes are forked, each of which would load them again.
Image.preinit()

RESOURCES = mupdf.PDF_ENUM_NAME_Resources
_JSON_BYTES = 1 << 14  # Of most pages, so that the buffer seldom has to grow.


class Corners(Struct, gc=False):
    """A box in MuPDF's JSON: its top left corner, width and height."""

    x: int
    y: int
    w: int
    h: int


class Broken(Exception):
    pass


class PdfLocked(Exception):
    pass


class PageTooLarge(Exception):
    pass


@contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
    except (pymupdf.FileDataError, pymupdf.EmptyFileError, pymupdf.FileNotFoundError) as error:
        raise Broken("it is broken beyond repair") from error
    except (RuntimeError, ValueError, IndexError, mupdf.FzErrorBase) as error:
        if "alloc" in str(error):
            raise PageTooLarge("it takes more memory than a page may") from error
        raise Broken(str(error)) from error


def inheritable_value(pdf_page: Any, name: int) -> Any:
    return pdf_page.obj().pdf_dict_get_inheritable(name)


def is_missing(value: Any) -> bool:
    """MuPDF returns the null object for a missing key."""
    return not value.m_internal


def pdf_space_to_shown_page(pdf_page: Any) -> Any:
    # MuPDF fills both; the size of the page is not needed.
    media_box, matrix = mupdf.FzRect(mupdf.FzRect.Fixed_UNIT), mupdf.FzMatrix()
    mupdf.pdf_page_transform(pdf_page, media_box, matrix)
    return matrix


def text_page_as_json(text_page: Any) -> bytes:
    """Return blocks with coordinates in hundredths of a point."""
    buffer = mupdf.FzBuffer(_JSON_BYTES)
    output = mupdf.FzOutput(buffer)
    mupdf.fz_print_stext_page_as_json(output, text_page, 100.0)
    output.fz_close_output()
    json_bytes: bytes = buffer.fz_buffer_extract()
    return json_bytes


def size_of(box: Any) -> tuple[float, float]:
    return round(box.x1 - box.x0, 2), round(box.y1 - box.y0, 2)


def round_box_to_tenths(box: Sequence[float]) -> tuple[float, float, float, float]:
    # `round` to one digit takes three times as long.
    x0, y0, x1, y1 = box
    return round(10 * x0) / 10, round(10 * y0) / 10, round(10 * x1) / 10, round(10 * y1) / 10
