"""PyMuPDF, which no other package imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymupdf as partly_typed
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


def inherited(own: Any, name: int) -> Any:
    return own.obj().pdf_dict_get_inheritable(name)


def size_of(whole: Any) -> tuple[float, float]:
    return round(whole.x1 - whole.x0, 2), round(whole.y1 - whole.y0, 2)


def round_box(box: Sequence[float]) -> tuple[float, float, float, float]:
    """Round to tenths of a point, in a third of the time of `round`."""
    x0, y0, x1, y1 = box
    return round(10 * x0) / 10, round(10 * y0) / 10, round(10 * x1) / 10, round(10 * y1) / 10
