"""Open a PDF or an image, and read, measure and draw its pages. With `pdf_text` and `pdf_pixels`, which see to one page
each, all that knows PyMuPDF.

Files are opened by path: a hundred megabytes cost half a millisecond so, and fifty and their memory when read first.
Numbers of pages begin with 1. How text gets into a PDF is told in `searchable`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymupdf as partly_typed

from job_handlers.reading import pdf_pixels
from job_handlers.reading.layers import Drawn
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr.gray import Gray
from job_handlers.reading.pdf_pixels import PageTooLarge as PageTooLarge
from job_handlers.reading.pdf_text import PageText, size_of, text_of

# Its annotations cover a part of it.
pymupdf: Any = partly_typed

LIBRARY = f"pymupdf {pymupdf.VersionBind}"


# Tables and their like, which it would otherwise print where a person reads errors.
pymupdf.TOOLS.mupdf_display_errors(False)
pymupdf.TOOLS.mupdf_display_warnings(False)


def _warm_up() -> None:
    """What the library makes when it is first used, tables of colours above all, is made here once, and not again by
    each process that is forked to read a file."""
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_text((72, 72), "warm")
        text_of(document, 1)
        page.get_pixmap()


_warm_up()


class Broken(Exception):
    """It cannot be opened, or this page of it cannot."""


class Locked(Exception):
    """It needs a password that was not given, or another."""


@contextmanager
def open_book(path: Path, password: str = "") -> Iterator[Book]:
    with _understood():
        document = pymupdf.open(path)
    try:
        if document.needs_pass and not document.authenticate(password):
            raise Locked(str(path.name))
        yield Book(document)
    finally:
        document.close()


class Book:
    def __init__(self, document: Any) -> None:
        self._document = document
        self.is_pdf: bool = document.is_pdf
        self.was_repaired: bool = bool(self.is_pdf and document.is_repaired)
        with _understood():
            self.pages: int = document.page_count

    def text(self, number: int) -> PageText:
        with _understood():
            return text_of(self._document, number)

    def drawn(self, number: int) -> Drawn:
        with self._page(number) as page:
            whole = pymupdf.Rect(page.rect) * page.derotation_matrix
            area = abs(whole.get_area()) or 1.0
            images = hidden = shown = 0.0
            is_empty = True
            for kind, corners, *_ in page.get_bboxlog():
                visible = pymupdf.Rect(corners) & whole
                size = 0.0 if visible.is_empty else visible.get_area()
                if kind == "ignore-text":
                    hidden += size
                    continue
                is_empty = False
                if kind in ("fill-image", "fill-imgmask"):
                    images += size
                elif kind.endswith("-text"):
                    shown += size
            return Drawn(min(images / area, 1.0), hidden / (hidden + shown) if hidden else 0.0, is_empty and not hidden)

    def picture(self, number: int) -> tuple[Gray, float]:
        with self._page(number) as page:
            return pdf_pixels.picture(self._document, page)

    def packed(self, number: int) -> tuple[str, int]:
        with self._page(number) as page:
            return pdf_pixels.packed(self._document, page) if self.is_pdf else ("", 0)

    def size(self, number: int) -> tuple[float, float]:
        with self._page(number) as page:
            return _size(page)

    def thumbnail(self, number: int = 1) -> bytes:
        with self._page(number) as page:
            return pdf_pixels.thumbnail(page)

    @contextmanager
    def _page(self, number: int) -> Iterator[Any]:
        with _understood():
            yield self._document[number - 1]


def recognised(gray: Gray, dpi: float, language: str, data: Path) -> list[list[Word]]:
    """By the engine that PyMuPDF brings, which needs trained data only. It says nothing of its confidence."""
    with _understood():
        # It reads nothing on a gray one.
        pixels = pymupdf.Pixmap(
            pymupdf.csRGB, pymupdf.Pixmap(pymupdf.csGRAY, gray.width, gray.height, gray.samples, False)
        )
        pixels.set_dpi(round(dpi), round(dpi))
        read = pixels.pdfocr_tobytes(compress=False, language=language, tessdata=str(data))
        with pymupdf.open("pdf", read) as document:
            page = document[0]
            scale = gray.width / page.rect.width
            lines: dict[tuple[int, int], list[Word]] = {}
            for x0, y0, x1, y1, text, block, line, _ in page.get_text("words"):
                word = Word(x0 * scale, y0 * scale, x1 * scale, y1 * scale, 0.0, text)
                lines.setdefault((block, line), []).append(word)
    return list(lines.values())


# --- a PDF that gets text ---------------------------------------------------------------------------------


def add_streams(
    original: Path,
    target: Path,
    password: str,
    fonts: Sequence[str],
    widths: str,
    draw: Callable[[int, Mapping[str, Any]], bytes],
) -> None:
    """Append to a copy of a PDF: `draw` gives the stream that is put below a page's own, and may be empty; it is told
    how points of the page as it is shown become its own (`matrix`, six numbers), and uses the `fonts` by their places
    as /PmF0, /PmF1 and so on, each given as its table of meanings, {font}, and PDF source with {maps} and {widths}."""
    with _understood(), pymupdf.open(original) as document:
        if document.needs_pass:
            document.authenticate(password)
        if not document.is_pdf:
            raise Broken("text can be added to a PDF only")
        references: list[str] = []
        for number in range(document.page_count):
            page = document[number]
            stream = draw(number + 1, {"matrix": _to_own_space(page)})
            if not stream:
                continue
            if not references:
                shared = document.get_new_xref()
                document.update_object(shared, widths)
                references = [_add_font(document, font, f"{shared} 0 R") for font in fonts]
            _put_below(document, page, stream, references)
        if document.can_save_incrementally() and not document.is_repaired:
            target.write_bytes(b"")
            _copy(original, target)
            _save_appended(document, target)
        else:
            document.save(target, garbage=1, encryption=pymupdf.PDF_ENCRYPT_KEEP)


def _to_own_space(page: Any) -> tuple[float, ...]:
    """From points of the page as it is shown, cropped and turned. The library's own matrices forget the crop of a
    turned page."""
    whole, shown = pymupdf.mupdf.FzRect(pymupdf.mupdf.FzRect.Fixed_UNIT), pymupdf.mupdf.FzMatrix()
    pymupdf.mupdf.pdf_page_transform(pymupdf._as_pdf_page(page), whole, shown)
    return tuple(~pymupdf.Matrix(shown.a, shown.b, shown.c, shown.d, shown.e, shown.f))


def _put_below(document: Any, page: Any, stream: bytes, references: Sequence[str]) -> None:
    xref = _add_stream(document, stream)
    contents = [f"{xref} 0 R", *(f"{one} 0 R" for one in page.get_contents())]
    document.xref_set_key(page.xref, "Contents", f"[{' '.join(contents)}]")
    kind, _ = document.xref_get_key(page.xref, "Resources")
    if kind == "null":
        document.xref_set_key(page.xref, "Resources", _inherited_resources(document, page.xref))
    for at, reference in enumerate(references):
        _set_font(document, page.xref, f"PmF{at}", reference)


def _set_font(document: Any, xref: int, name: str, reference: str) -> None:
    """Into the object that holds the page's fonts, wherever that is."""
    path = "Resources"
    for key in ("Resources", "Font"):
        kind, value = document.xref_get_key(xref, key if path == key else path)
        if kind == "xref":
            xref, path = int(value.split()[0]), ""
        path = f"{path}/Font".lstrip("/") if key == "Resources" else path
    document.xref_set_key(xref, f"{path}/{name}".lstrip("/"), reference)


def _inherited_resources(document: Any, xref: int) -> str:
    for _ in range(64):
        kind, value = document.xref_get_key(xref, "Parent")
        if kind != "xref":
            break
        xref = int(value.split()[0])
        kind, value = document.xref_get_key(xref, "Resources")
        if kind != "null":
            return str(value)
    return "<<>>"


def _add_font(document: Any, source: str, widths: str) -> str:
    maps, _, font = source.partition("{font}")
    stream = _add_stream(document, maps.encode())
    xref = document.get_new_xref()
    document.update_object(xref, font.replace("{maps}", f"{stream} 0 R").replace("{widths}", widths))
    return f"{xref} 0 R"


def _add_stream(document: Any, stream: bytes) -> int:
    """Packed by us: the library takes five times as long to make it a few bytes smaller."""
    xref: int = document.get_new_xref()
    document.update_object(xref, "<<>>")
    document.update_stream(xref, zlib.compress(stream), compress=False)
    document.xref_set_key(xref, "Filter", "/FlateDecode")
    return xref


def _copy(original: Path, target: Path) -> None:
    with original.open("rb") as source, target.open("wb") as copy:
        while block := source.read(1 << 20):
            copy.write(block)


def _save_appended(document: Any, target: Path) -> None:
    options = pymupdf.mupdf.PdfWriteOptions()
    options.do_incremental = 1
    options.do_encrypt = pymupdf.PDF_ENCRYPT_KEEP
    pymupdf.mupdf.pdf_save_document(pymupdf._as_pdf_document(document), str(target), options)


def pdf_of_image(original: Path, target: Path) -> None:
    """The same pixels; a JPEG stays the JPEG that it is."""
    with _understood(), pymupdf.open(original) as document:
        if document.page_count > 1:
            target.write_bytes(document.convert_to_pdf())
            return
        with pymupdf.open() as made:
            page = made.new_page(width=document[0].rect.width, height=document[0].rect.height)
            page.insert_image(page.rect, filename=str(original))
            made.save(target, deflate=True)


# --- what a page says of itself ---------------------------------------------------------------------------


def _size(page: Any) -> tuple[float, float]:
    return size_of(page.rect)


@contextmanager
def _understood() -> Iterator[None]:
    """Whatever it raises about a file is one of two things."""
    try:
        yield
    except (pymupdf.FileDataError, pymupdf.EmptyFileError, pymupdf.FileNotFoundError) as error:
        raise Broken("it is broken beyond repair") from error
    except (RuntimeError, ValueError, IndexError, pymupdf.mupdf.FzErrorBase) as error:
        if "alloc" in str(error):
            raise PageTooLarge("it takes more memory than a page may") from error
        raise Broken(str(error)) from error
