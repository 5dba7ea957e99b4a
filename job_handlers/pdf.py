"""Open a PDF or an image, and read, measure and draw its pages. The only file that knows PyMuPDF.

Files are opened by path: a hundred megabytes cost half a millisecond so, and fifty and their memory when read first.
Numbers of pages begin with 1. How text gets into a PDF is told in `searchable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pymupdf as partly_typed

from job_handlers.gray import Gray
from job_handlers.layers import Drawn
from job_handlers.layout import TEXT_CHARACTERS_MAX, Block, Word

# Its annotations cover a part of it.
pymupdf: Any = partly_typed

LIBRARY = f"pymupdf {pymupdf.VersionBind}"

_PIXELS_MAX = 40_000_000
"""Of what is drawn to be read: an A4 at 300 dpi has 9 million, an A0 at 150 has 35."""
_DPI_LEAST = 70.0
_IMAGE_BYTES_MAX = 400_000_000
"""Of one embedded image, unpacked."""
_SCAN_PIXELS_LEAST = 300_000
_SCAN_WIDTH_LEAST = 1200
_THUMBNAIL_PIXELS = 320
_FLAGS = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_PRESERVE_IMAGES
_STEPS = 10
"""Of a point: so exactly boxes are told."""
_FLAGS_UNCLIPPED = _FLAGS & ~pymupdf.TEXT_CLIP

# Tables and their like, which it would otherwise print where a person reads errors.
pymupdf.TOOLS.mupdf_display_errors(False)
pymupdf.TOOLS.mupdf_display_warnings(False)


_Paragraph = tuple[float, float, float, float, str]


class Broken(Exception):
    """It cannot be opened, or this page of it cannot."""


class Locked(Exception):
    """It needs a password that was not given, or another."""


class PageTooLarge(Exception):
    """More pixels or bytes than a page may have."""


@dataclass(frozen=True, slots=True)
class PageText:
    size: tuple[float, float]
    """As it is shown, in points."""
    text: str
    blocks: list[Block]
    may_be_scan: bool
    """It has images enough to be one."""


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
        with self._page(number) as page:
            texts = _paragraphs(page) or _paragraphs_on_page(page)
            if page.rotation:
                # Its text is told as if it were not turned.
                turn = page.rotation_matrix
                texts = [(*_rounded(pymupdf.Rect(one[:4]) * turn), one[4]) for one in texts]
            blocks: list[Block] = []
            begin = 0
            for x0, y0, x1, y1, text in texts:
                end = begin + len(text)
                blocks.append(Block(x0, y0, x1, y1, begin, end))
                begin = end
            text = "".join([one[4] for one in texts])
            return PageText(_size(page), text[:TEXT_CHARACTERS_MAX], blocks, self._may_be_scan(page))

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

    def dpi(self, number: int) -> float:
        """At which it is best read: a scan's own resolution between 150 and 300, else 300. An image that is wide
        enough and says that its page is huge was scanned by somebody who did not care: it is read pixel by pixel."""
        with self._page(number) as page:
            width, height = _size(page)
            own, own_width = _own_resolution(page)
            is_as_it_is = own >= 150 or own_width >= _SCAN_WIDTH_LEAST
            wanted = min(own, 300.0) if is_as_it_is else 300.0
            most: float = (_PIXELS_MAX / (max(width, 1.0) * max(height, 1.0))) ** 0.5 * 72
            if most < min(_DPI_LEAST, wanted):
                raise PageTooLarge(f"it is {width / 72:.0f} × {height / 72:.0f} inches")
            return min(wanted, most)

    def gray(self, number: int, dpi: float) -> Gray:
        with self._page(number) as page:
            try:
                drawn = page.get_pixmap(matrix=pymupdf.Matrix(dpi / 72, dpi / 72), colorspace=pymupdf.csGRAY)
            finally:
                # What was unpacked for this page is of no use to the next.
                pymupdf.TOOLS.store_shrink(100)
            return Gray(drawn.width, drawn.height, bytes(drawn.samples_mv))

    def size(self, number: int) -> tuple[float, float]:
        with self._page(number) as page:
            return _size(page)

    def thumbnail(self, number: int = 1) -> bytes:
        with self._page(number) as page:
            if not self.is_pdf or page.get_images():
                # Refuses what is too large to be unpacked.
                _own_resolution(page)
            scale = _THUMBNAIL_PIXELS / max(*_size(page), 1.0)
            picture: bytes = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale)).tobytes("jpeg", jpg_quality=80)
            return picture

    @contextmanager
    def _page(self, number: int) -> Iterator[Any]:
        with _understood():
            yield self._document[number - 1]

    def _may_be_scan(self, page: Any) -> bool:
        if not self.is_pdf:
            return True
        pixels: int = sum(image[2] * image[3] for image in page.get_images())
        return pixels >= _SCAN_PIXELS_LEAST


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
    xref = document.get_new_xref()
    document.update_object(xref, "<<>>")
    document.update_stream(xref, stream, compress=True)
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
    stream = document.get_new_xref()
    document.update_object(stream, "<<>>")
    document.update_stream(stream, maps.encode(), compress=True)
    xref = document.get_new_xref()
    document.update_object(xref, font.replace("{maps}", f"{stream} 0 R").replace("{widths}", widths))
    return f"{xref} 0 R"


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


# --- a page's own text ---


class _Box(msgspec.Struct):
    x: int
    y: int
    w: int
    h: int


class _Line(msgspec.Struct):
    text: str


class _Told(msgspec.Struct):
    type: str
    bbox: _Box
    lines: list[_Line] = []


class _Page(msgspec.Struct):
    blocks: list[_Told]


_told = msgspec.json.Decoder(_Page)


def _paragraphs(page: Any) -> list[_Paragraph]:
    """Its blocks, as the library itself writes them, which takes half the time. Nothing where that may be another text
    than what stands on the page: where something reaches beyond its edge, or takes no room."""
    read = page.get_textpage(flags=_FLAGS_UNCLIPPED).this
    buffer = pymupdf.mupdf.FzBuffer(1 << 15)
    out = pymupdf.mupdf.FzOutput(buffer)
    pymupdf.mupdf.fz_print_stext_page_as_json(out, read, _STEPS)
    out.fz_close_output()
    try:
        told = _told.decode(buffer.fz_buffer_extract())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    whole = read.m_internal.mediabox
    left, top, right, bottom = (_STEPS * one for one in (whole.x0, whole.y0, whole.x1, whole.y1))
    found: list[_Paragraph] = []
    for block in told.blocks:
        box = block.bbox
        x0, y0, x1, y1 = box.x, box.y, box.x + box.w, box.y + box.h
        if block.type != "text" or not (left <= x0 < x1 <= right and top <= y0 < y1 <= bottom):
            return []
        text = "\n".join([line.text for line in block.lines])
        found.append((x0 / _STEPS, y0 / _STEPS, x1 / _STEPS, y1 / _STEPS, f"{text}\n"))
    return found


def _paragraphs_on_page(page: Any) -> list[_Paragraph]:
    found = page.get_textpage(flags=_FLAGS).extractBLOCKS()
    return [(*_rounded(one[:4]), one[4]) for one in found if one[6] == 0]


def _rounded(box: Sequence[float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = box
    return round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)


# --- what a page says of itself ---------------------------------------------------------------------------


def _size(page: Any) -> tuple[float, float]:
    whole = page.rect
    return round(whole.x1 - whole.x0, 2), round(whole.y1 - whole.y0, 2)


def _own_resolution(page: Any) -> tuple[float, int]:
    """Of the image that covers most of the page, and its width in pixels; 0 where none covers half of it."""
    best, width, covered = 0.0, 0, 0.5 * abs(page.rect.width * page.rect.height)
    for image in page.get_image_info():
        if image["width"] * image["height"] * max(image.get("bpc", 8) * 3 // 8, 1) > _IMAGE_BYTES_MAX:
            raise PageTooLarge(f"it holds an image of {image['width']} × {image['height']} pixels")
        area = abs(pymupdf.Rect(image["bbox"]).get_area())
        if area >= covered:
            a, b, *_ = image["transform"]
            length = (a * a + b * b) ** 0.5
            best, width, covered = 72 * image["width"] / max(length, 0.01), image["width"], area
    return best, width


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
