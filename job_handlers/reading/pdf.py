"""Open a PDF or an image, and read, measure and draw its pages. The only module that uses PyMuPDF.

Files are opened by path: opening a file of 100 MB takes half a millisecond that way, and fifty and 100 MB of memory
when it is read first. Page numbers start at 1. `searchable` makes the text that `add_streams` puts into a PDF.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import shutil
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pymupdf as partly_typed
from msgspec import Struct
from PIL import Image, JpegImagePlugin

from job_handlers.reading import reading_order, tables
from job_handlers.reading.layout import TEXT_CHARACTERS_MAX, Block, Cell, Table, around
from job_handlers.reading.preprocess import Gray
from job_handlers.reading.text_layer import Drawn

# Its type annotations are incomplete.
pymupdf: Any = partly_typed
mupdf: Any = pymupdf.mupdf

LIBRARY = f"pymupdf {pymupdf.VersionBind}"

# MuPDF would print its complaints about files on stderr, among the messages for the user.
pymupdf.TOOLS.mupdf_display_errors(False)
pymupdf.TOOLS.mupdf_display_warnings(False)
# Load the plugins before processes are forked, each of which would load them again.
Image.preinit()

_SCAN_PIXELS_LEAST = 300_000
# Expand ligatures into letters, which is what users type when they search.
_FLAGS = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_PRESERVE_IMAGES & ~pymupdf.TEXT_PRESERVE_LIGATURES
_FLAGS_UNCLIPPED = _FLAGS & ~pymupdf.TEXT_CLIP
_VECTORS = pymupdf.TEXT_COLLECT_VECTORS | pymupdf.TEXT_LAZY_VECTORS
_DRAWN_BYTES_MAX = 1 << 18
_BLOCKS_LOOKED_AT = 6000
_RULE_MOST = 2.5
"""Points. Anything thicker is an area."""
_IDENTITY = pymupdf.Matrix(1, 1)
_PAGE_BYTES = 1 << 14
_IMAGE = mupdf.FZ_STEXT_BLOCK_IMAGE
_ROTATE, _RESOURCES, _XOBJECT = mupdf.PDF_ENUM_NAME_Rotate, mupdf.PDF_ENUM_NAME_Resources, mupdf.PDF_ENUM_NAME_XObject
_FONT = mupdf.PDF_ENUM_NAME_Font
_CONTENTS, _LENGTH = mupdf.PDF_ENUM_NAME_Contents, mupdf.PDF_ENUM_NAME_Length
_TYPE = mupdf.PDF_ENUM_NAME_Type

_MAPPED_BYTES_MAX = 1 << 28
_PIXELS_MAX = 40_000_000
"""Pixels of a page drawn for OCR. An A4 page at 300 dpi has 9 million, an A0 page at 150 dpi has 35 million."""
_DPI_LEAST = 70.0
_IMAGE_BYTES_MAX = 400_000_000
"""Size of one embedded image, unpacked."""
_SCAN_WIDTH_LEAST = 1200
_SHRUNK_WIDTH_LEAST = 1500
"""Minimum width after shrinking: an image 1,000 pixels wide that claims 360 dpi gives a wrong resolution."""
_THUMBNAIL_PIXELS = 320
_SHOWN_PIXELS_MAX = 12_000_000
_WORDS_MOST = 20_000

_OFF_MOST = 0.02
"""Maximum deviation of an embedded image's resolution from the wanted one, as a share, if it is used unscaled."""
_MARGIN_MOST = 1.5
"""Pixels by which an image may fall short of the page's edges or exceed them."""
_CONTENT_BYTES_MAX = 400
"""Size of a compressed content stream. Showing one image takes fifty bytes."""
_ONE_IMAGE = re.compile(rb"\s*(?:q\s+)*(?:(?:[-+.\d]+\s+){6}cm\s+)+/(?P<name>[\w.+-]+)\s+Do(?:\s+Q)*\s*")
_PLAIN_KEYS = {
    "Type", "Subtype", "Width", "Height", "ColorSpace", "BitsPerComponent", "Filter", "Length", "Name", "Interpolate",
}  # fmt: skip
_PLAIN_COLOURS = (
    "DeviceGray", "DeviceRGB", "ICCBased(RGB,sRGB", "ICCBased(RGB,Artifex Software sRGB",
    "ICCBased(Gray,Artifex Software sGray",
)  # fmt: skip
"""Prefixes of colour spaces in which gray can be read without applying a profile."""
_MODES = {1: "L", 3: "RGB"}


class Broken(Exception):
    """The file, or this page of it, cannot be opened."""


class Locked(Exception):
    """The file needs a password, or another one."""


_DAMAGE = re.compile(
    r"premature end|truncated image|overflow in|read error|ran out of output|jbig2|library error: (?!FT_)",
    re.IGNORECASE,
)
"""MuPDF draws what it can of a damaged image and reports the damage only in its warnings.

Font errors (FT_) and syntax errors do not count: they are common in PDFs that look right.
"""


class PageTooLarge(Exception):
    """The page exceeds the limit of pixels or bytes."""


class PageText(Struct, frozen=True):
    size: tuple[float, float]
    """Size of the page as it is shown, in points."""
    text: str
    blocks: list[Block]
    tables: list[Table]
    may_be_scan: bool
    """True if its images are large enough for a scan."""


class Book:
    """An open file. It may be left open until its process ends."""

    def __init__(self, path: Path, password: str = "", *, is_mapped: bool = False) -> None:
        """Open the file.

        `is_mapped` maps a PDF into memory, for a caller that reads much of a file that does not change; otherwise it is
        read in blocks of 4 KiB.
        """
        with _translate_errors():
            self._document = document = pymupdf.open(**_open_arguments(path)) if is_mapped else pymupdf.open(path)
            if document.needs_pass and not document.authenticate(password):
                if not _locks_attachments_only(document):
                    document.close()
                    raise Locked(path.name)
                document.is_encrypted = False
                document.init_doc()
            self.is_pdf: bool = document.is_pdf
            self.was_repaired: bool = bool(self.is_pdf and document.is_repaired)
            self.pages: int = document.page_count

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self._document.close()

    def text(self, number: int) -> PageText:
        with _translate_errors():
            return _text_of(self._document, number)

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
        return self.picture_and_damage(number)[:2]

    def picture_and_damage(self, number: int) -> tuple[Gray, float, bool]:
        """Return the page as gray pixels, their resolution in dpi, and whether part of the page could not be drawn."""
        with self._page(number) as page:
            if self.is_pdf:
                # Drop warnings of other pages. Reading an image's size may already decode it and report the damage.
                pymupdf.TOOLS.reset_mupdf_warnings()
            gray, dpi = _picture_of(self._document, page)
            warnings = _without_checksums(pymupdf.TOOLS.mupdf_warnings())
            is_damaged = _DAMAGE.search(warnings) is not None
            if is_damaged and not self.is_pdf and _is_whole_jpeg(Path(self._document.name)):
                is_damaged = False
            return gray, dpi, is_damaged

    def packed(self, number: int) -> tuple[str, int]:
        with self._page(number) as page:
            return _packing_of(self._document, page) if self.is_pdf else ("", 0)

    def size(self, number: int) -> tuple[float, float]:
        with self._page(number) as page:
            return _size_of(page.rect)

    def thumbnail(self, number: int = 1) -> bytes:
        with self._page(number) as page:
            return _encode_image(page, _THUMBNAIL_PIXELS / max(page.rect.width, page.rect.height, 1.0), "JPEG")

    def image(self, number: int, width: int) -> bytes:
        """Return the page in colour as WebP, `width` pixels wide or narrower if the page is very long."""
        with self._page(number) as page:
            longest = (_SHOWN_PIXELS_MAX / (max(page.rect.width, 1.0) * max(page.rect.height, 1.0))) ** 0.5
            return _encode_image(page, min(width / max(page.rect.width, 1.0), longest), "WEBP")

    def words(self, number: int) -> list[tuple[float, float, float, float, str]]:
        """Return the words of the page's own text, in its order."""
        with self._page(number) as page:
            found = page.get_text("words", flags=_FLAGS)[:_WORDS_MOST]
            turn = page.rotation_matrix
            return [(*_round_box(pymupdf.Rect(one[:4]) * turn), one[4]) for one in found]

    def cut(self, numbers: Sequence[int], target: Path) -> bool:
        """Write a PDF of these pages, each with the same pixels.

        Return False if that is not certain, or if the result would be the whole file again.
        """
        with _translate_errors():
            return self.is_pdf and len(numbers) < self.pages and _cut(self._document, numbers, target)

    @contextmanager
    def _page(self, number: int) -> Iterator[Any]:
        with _translate_errors():
            yield self._document[number - 1]


def _locks_attachments_only(document: Any) -> bool:
    """Return whether the encryption covers embedded files only, and neither strings nor streams."""
    locked = pymupdf._as_pdf_document(document).pdf_trailer().pdf_dict_gets("Encrypt")
    return all(locked.pdf_dict_gets(key).pdf_to_name() == "Identity" for key in ("StmF", "StrF"))


def _open_arguments(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > _MAPPED_BYTES_MAX:
            return {"filename": path}
        return {"stream": memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)), "filetype": "pdf"}


# --- a page's own text ----------------------------------------------------------------------------------
# Most pages are read below PyMuPDF's Python layer, which saves a fifth of the time per page. PyMuPDF's own API reads
# the pages for which equal results are not certain. Either way the result is JSON in hundredths of a point: lines with
# their positions cost hardly more than the plain text.


class _Corners(msgspec.Struct, gc=False):
    x: int
    y: int
    w: int
    h: int


class _Font(msgspec.Struct, gc=False):
    size: int


class _Line(msgspec.Struct, gc=False):
    bbox: _Corners
    font: _Font
    y: int
    """Baseline."""
    text: str


class _PageBlock(msgspec.Struct, gc=False):
    """A block of text, or a drawn shape."""

    bbox: _Corners | None = None
    lines: list[_Line] = []
    stroked: int = 0


class _PageBlocks(msgspec.Struct, gc=False):
    blocks: list[_PageBlock]


_blocks_decoder = msgspec.json.Decoder(_PageBlocks)


def _text_of(document: Any, number: int) -> PageText:
    page = mupdf.fz_load_page(document.this, number - 1)
    own = mupdf.pdf_page_from_fz_page(page)
    whole = mupdf.fz_bound_page(page)
    if not own.m_internal or mupdf.fz_is_infinite_rect(whole):
        return _text_by_pymupdf(document, number)
    drawn = _VECTORS if _packed_length(own) <= _DRAWN_BYTES_MAX else 0
    read = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, _FLAGS_UNCLIPPED | drawn, _IDENTITY))
    found = _blocks_in(read)
    # The page may have invisible text beyond its edges. Text that runs sideways on the shown page is reported as
    # upright.
    is_turned = _inherited(own, _ROTATE).pdf_to_int()
    if not _are_within([one.bbox for one in found if one.bbox is not None], whole) or (
        is_turned and not _is_horizontal(found)
    ):
        return _text_by_pymupdf(document, number, drawn)
    may_be_scan = _has_pictures(own) and _may_be_scan(document, number)
    return _page_text(_size_of(whole), read, found, None, may_be_scan=may_be_scan)


def _packed_length(own: Any) -> int:
    """Return the compressed size of the page's content if it is one stream.

    Shapes are not collected from very large content, as of a map.
    """
    contents = own.obj().pdf_dict_get(_CONTENTS)
    length: int = contents.pdf_dict_get(_LENGTH).pdf_to_int() if contents.pdf_is_stream() else 0
    return length


def _size_of(whole: Any) -> tuple[float, float]:
    return round(whole.x1 - whole.x0, 2), round(whole.y1 - whole.y0, 2)


def _text_by_pymupdf(document: Any, number: int, drawn: int = 0) -> PageText:
    """Read a page with PyMuPDF's own API: a turned page, an image, and other rare cases."""
    page = document[number - 1]
    read = page.get_textpage(flags=_FLAGS | drawn).this
    may_be_scan = not document.is_pdf or _may_be_scan(document, number)
    # The text of a turned page is reported as if the page were not turned.
    return _page_text(
        _size_of(page.rect),
        read,
        _blocks_in(read),
        page.rotation_matrix if page.rotation else None,
        may_be_scan=may_be_scan,
    )


def _blocks_in(read: Any) -> list[_PageBlock]:
    buffer = mupdf.FzBuffer(_PAGE_BYTES)
    out = mupdf.FzOutput(buffer)
    mupdf.fz_print_stext_page_as_json(out, read, 100.0)
    out.fz_close_output()
    written: bytes = buffer.fz_buffer_extract()
    try:
        return _blocks_decoder.decode(written).blocks
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The text contains lone surrogates, which are not valid in JSON.
        return _blocks_by_dict(read)


def _blocks_by_dict(read: Any) -> list[_PageBlock]:
    def corners(box: Sequence[float]) -> _Corners:
        x0, y0, x1, y1 = (round(100 * one) for one in box)
        return _Corners(x0, y0, x1 - x0, y1 - y0)

    found = []
    for block in pymupdf.TextPage(read).extractDICT()["blocks"]:
        if block["type"] != 0:
            continue
        lines = [
            _Line(
                corners(line["bbox"]), _Font(round(100 * line["spans"][0]["size"])),
                round(100 * line["spans"][0]["origin"][1]), "".join(span["text"] for span in line["spans"]),
            )
            for line in block["lines"]
            if line["spans"]
        ]  # fmt: skip
        found.append(_PageBlock(corners(block["bbox"]), lines))
    return found


def _is_horizontal(found: list[_PageBlock]) -> bool:
    boxes = [line.bbox for one in found for line in one.lines]
    return sum(box.w >= box.h for box in boxes) > 0.5 * len(boxes)


def _are_within(boxes: Sequence[_Corners], whole: Any) -> bool:
    return not boxes or bool(
        100 * whole.x0 <= min([one.x for one in boxes])
        and 100 * whole.y0 <= min([one.y for one in boxes])
        and max([one.x + one.w for one in boxes]) <= 100 * whole.x1
        and max([one.y + one.h for one in boxes]) <= 100 * whole.y1
        and min([min(one.w, one.h) for one in boxes]) > 0
    )


def _page_text(
    size: tuple[float, float], read: Any, found: list[_PageBlock], turn: Any, *, may_be_scan: bool
) -> PageText:
    lines = [line for one in found for line in one.lines]
    boxes = [
        (box.x / 100, box.y / 100, (box.x + box.w) / 100, (box.y + box.h) / 100) for one in lines for box in [one.bbox]
    ]
    groups: list[range] = []
    for one in found:
        if one.bbox is not None:
            begin = groups[-1].stop if groups else 0
            groups.append(range(begin, begin + len(one.lines)))
    rules = cache(lambda: _rules_in(read, found))
    grids = _tables_in(read, found, lines, rules) if tables.may_have_tables([one.y for one in lines]) else []
    of_table = {piece.at: at for at, grid in enumerate(grids) for row in grid.rows for cell in row for piece in cell}
    parts = reading_order.arranged(
        groups,
        boxes,
        [(one.x0, one.y0, one.x1, one.y1) for one in grids],
        of_table,
        rules=rules,
    )
    written: list[str] = []
    blocks: list[Block] = []
    placed: list[Table] = []
    begin = 0
    for part in parts:
        if part.table is None:
            text = "".join([f"{lines[at].text}\n" for at in part.lines])
        else:
            text = grids[part.table].as_text()
            placed.append(_stored_table(grids[part.table], begin, begin + len(text), boxes, turn))
            text += _text_beside_table(grids[part.table], lines)
        written.append(text)
        blocks.append(Block(*_to_page_space(part.box, turn), begin, begin + len(text)))
        begin += len(text)
    return PageText(size, "".join(written)[:TEXT_CHARACTERS_MAX], blocks, placed, may_be_scan)


def _tables_in(
    read: Any, found: list[_PageBlock], lines: list[_Line], rules: Callable[[], Sequence[tables.Rule]]
) -> list[tables.Table]:
    # Use a little less than the height of the letters, so that lines set close together do not overlap.
    pieces = [
        tables.Piece(
            box.x / 100, (one.y - 0.72 * size) / 100, (box.x + box.w) / 100, (one.y + 0.12 * size) / 100, one.text, at
        )
        for at, one in enumerate(lines)
        for box, size in [(one.bbox, one.font.size)]
        if box.h < 2.5 * size or box.w > box.h
    ]  # fmt: skip
    words: list[Any] = []

    def split(piece: tables.Piece) -> list[tables.Piece]:
        if not words:
            words.extend(pymupdf.TextPage(read).extractWORDS())
        block = bisect_right(starts, piece.at) - 1
        line = (block, piece.at - starts[block])
        begin = bisect_left(words, line, key=_line_of)
        x0, y0, x1, y1, at = piece.x0, piece.y0, piece.x1, piece.y1, piece.at
        return [
            tables.Piece(one[0], y0, one[2], y1, one[4], at)
            for one in words[begin : bisect_right(words, line, lo=begin, key=_line_of)]
            if one[0] >= x0 - 0.1 and one[2] <= x1 + 0.1
        ]

    starts = [0, *accumulate([len(one.lines) for one in found if one.bbox is not None])]
    return tables.find(pieces, rules(), split)


_line_of = itemgetter(5, 6)


def _rules_in(read: Any, found: list[_PageBlock]) -> list[tables.Rule]:
    if len(found) > _BLOCKS_LOOKED_AT or all(one.bbox is not None for one in found):
        return []
    rules: list[tables.Rule] = []
    block = read.m_internal.first_block
    kinds = iter(found)
    while block:
        if block.type == _IMAGE:
            block = block.next
            continue
        kind = next(kinds, None)
        if kind is None:
            break
        if kind.bbox is None:
            box = block.bbox
            x0, y0, x1, y1 = box.x0, box.y0, box.x1, box.y1
            if x1 - x0 <= _RULE_MOST or y1 - y0 <= _RULE_MOST:
                rules.append(tables.Rule(x0, y0, x1, y1))
            elif kind.stroked:
                rules += (tables.Rule(x0, y0, x1, y0), tables.Rule(x0, y1, x1, y1),
                          tables.Rule(x0, y0, x0, y1), tables.Rule(x1, y0, x1, y1))  # fmt: skip
        block = block.next
    return rules


def _stored_table(grid: tables.Table, begin: int, end: int, boxes: Sequence[tuple[float, ...]], turn: Any) -> Table:
    """Return the stored table. Its cells are as high as their lines."""

    def cell(pieces: Sequence[tables.Piece], text: str) -> Cell | None:
        if not pieces:
            return None
        x0, x1, at = pieces[0].x0, pieces[0].x1, pieces[0].at
        corners = (x0, boxes[at][1], x1, boxes[at][3])
        if len(pieces) > 1:
            corners = (min([one.x0 for one in pieces]), min([boxes[one.at][1] for one in pieces]),
                       max([one.x1 for one in pieces]), max([boxes[one.at][3] for one in pieces]))  # fmt: skip
        return Cell(*_to_page_space(corners, turn), text)

    rows = [
        [cell(*one) for one in zip(row, texts, strict=True)] for row, texts in zip(grid.rows, grid.texts, strict=True)
    ]
    found = [one for row in rows for one in row if one is not None]
    return Table(around(found), begin, end, rows)


def _text_beside_table(grid: tables.Table, lines: Sequence[_Line]) -> str:
    """Return the words outside the table on lines that are partly in it."""
    used: dict[int, list[str]] = {}
    for row in grid.rows:
        for cell in row:
            for piece in cell:
                if len(piece.text) < len(lines[piece.at].text):
                    used.setdefault(piece.at, []).extend(piece.text.split())
    left = ""
    for at, taken in used.items():
        if len(lines[at].text.split()) > len(taken):
            others = Counter(taken)
            rest = []
            for word in lines[at].text.split():
                if others[word]:
                    others[word] -= 1
                elif word.strip(".·…"):
                    rest.append(word)
            left += f"{' '.join(rest)}\n" if rest else ""
    return left


def _to_page_space(box: Sequence[float], turn: Any) -> tuple[float, float, float, float]:
    return _round_box(box if turn is None else pymupdf.Rect(box) * turn)


def _round_box(box: Sequence[float]) -> tuple[float, float, float, float]:
    """Round to tenths of a point, in a third of the time of `round` with a decimal place."""
    x0, y0, x1, y1 = box
    return round(10 * x0) / 10, round(10 * y0) / 10, round(10 * x1) / 10, round(10 * y1) / 10


def _has_pictures(own: Any) -> bool:
    """Return whether the page has images or forms, which may contain images.

    Listing them takes longer than this check.
    """
    return bool(_inherited(own, _RESOURCES).pdf_dict_get(_XOBJECT).m_internal)


def _inherited(own: Any, name: int) -> Any:
    return own.obj().pdf_dict_get_inheritable(name)


def _may_be_scan(document: Any, number: int) -> bool:
    pixels: int = sum(image[2] * image[3] for image in document.get_page_images(number - 1))
    return pixels >= _SCAN_PIXELS_LEAST


# --- its pixels -----------------------------------------------------------------------------------------
# Most scanned pages are one JPEG that covers them, and nothing else. Pillow decodes it, which is faster than drawing
# the page and needs no resampling. Every other page is drawn.


def _picture_of(document: Any, page: Any) -> tuple[Gray, float]:
    """Return the page as gray pixels, and their resolution in dpi."""
    images = page.get_image_info()
    wanted = _wanted_dpi(page, images)
    return _embedded_scan(document, page, images, wanted) or (_draw_gray(page, wanted), wanted)


def _is_whole_jpeg(path: Path) -> bool:
    """Return whether every pixel of a JPEG is present.

    Many files lack only the end marker. If more is missing, bytes appended before that marker change the pixels.
    """

    def pixels(appended: bytes) -> bytes:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(packed + appended + b"\xff\xd9"))
        image.draft("L", image.size)
        return image.tobytes()

    packed = path.read_bytes()
    try:
        return packed.startswith(b"\xff\xd8") and pixels(b"") == pixels(b"\x55" * 64)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError):
        return False


def _without_checksums(warnings: str) -> str:
    """Drop reports of a wrong checksum: the data itself is complete."""
    return "\n".join(one for one in warnings.splitlines() if "data check" not in one)


def _packing_of(document: Any, page: Any) -> tuple[str, int]:
    """Return the format and compressed size of the page's largest image; ("", 0) if it has none."""
    found = [(int(document.xref_get_key(one[0], "Length")[1]), f"{one[8]} {one[5]} {one[4]}")
             for one in page.get_images() if document.xref_get_key(one[0], "Length")[0] == "int"]  # fmt: skip
    length, how = max(found, default=(0, ""))
    return how, length


def _encode_image(page: Any, scale: float, form: str) -> bytes:
    """Draw the page and encode it with Pillow, which takes a tenth of PyMuPDF's time."""
    if not page.parent.is_pdf or page.get_images():
        # Raise `PageTooLarge` before a huge image is decoded.
        _own_resolution(page, page.get_image_info())
    drawn = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale), colorspace=pymupdf.csRGB)
    made = io.BytesIO()
    Image.frombytes("RGB", (drawn.width, drawn.height), drawn.samples).save(made, form, quality=80, method=2)
    return made.getvalue()


def _wanted_dpi(page: Any, images: list[dict[str, Any]]) -> float:
    """Return a scan's own resolution between 150 and 300 dpi, otherwise 300.

    A wide image on a page that claims to be huge comes from a scanner with wrong settings: it is read pixel by pixel.
    """
    width, height = page.rect.width, page.rect.height
    own, own_width = _own_resolution(page, images)
    is_as_it_is = own >= 150 or own_width >= _SCAN_WIDTH_LEAST
    finest = max(300.0, 72 * _SHRUNK_WIDTH_LEAST / max(width, 1.0))
    wanted = min(own, finest) if is_as_it_is else 300.0
    most: float = (_PIXELS_MAX / (max(width, 1.0) * max(height, 1.0))) ** 0.5 * 72
    if most < min(_DPI_LEAST, wanted):
        raise PageTooLarge(f"it is {width / 72:.0f} × {height / 72:.0f} inches")
    return min(wanted, most)


def _own_resolution(page: Any, images: list[dict[str, Any]]) -> tuple[float, int]:
    """Return resolution and pixel width of the image that covers most of the page; 0 if none covers half of it."""
    best, width, covered = 0.0, 0, 0.5 * abs(page.rect.width * page.rect.height)
    for image in images:
        if image["width"] * image["height"] * max(image.get("bpc", 8) * 3 // 8, 1) > _IMAGE_BYTES_MAX:
            raise PageTooLarge(f"it holds an image of {image['width']} × {image['height']} pixels")
        area = abs(pymupdf.Rect(image["bbox"]).get_area())
        if area >= covered:
            a, b, *_ = image["transform"]
            length = (a * a + b * b) ** 0.5
            best, width, covered = 72 * image["width"] / max(length, 0.01), image["width"], area
    return best, width


def _draw_gray(page: Any, dpi: float) -> Gray:
    try:
        drawn = page.get_pixmap(matrix=pymupdf.Matrix(dpi / 72, dpi / 72), colorspace=pymupdf.csGRAY)
    finally:
        # Free the decoded images: the next page does not use them.
        pymupdf.TOOLS.store_shrink(100)
    return Gray(drawn.width, drawn.height, bytes(drawn.samples_mv))


def _embedded_scan(document: Any, page: Any, images: list[dict[str, Any]], wanted: float) -> tuple[Gray, float] | None:
    """Return a page that is just one upright JPEG of 1, 2 or 4 times the wanted resolution, as (pixels, dpi), or
    None."""
    # The image's position is reported as if its page were not turned.
    if not document.is_pdf or len(images) != 1 or page.rotation:
        return None
    shown = images[0]
    if not _covers_page(shown, page) or shown["width"] * shown["height"] > _PIXELS_MAX:
        return None
    own = 72 * shown["width"] / shown["transform"][0]
    coarser = round(own / wanted)
    if coarser not in (1, 2, 4) or abs(own / coarser / wanted - 1) > _OFF_MOST:
        return None
    if not shown["cs-name"].startswith(_PLAIN_COLOURS) or shown["colorspace"] not in _MODES:
        return None
    xref = _only_image(document, page)
    if xref is None or not _is_plain_jpeg(document, xref):
        return None
    size = shown["width"], shown["height"]
    gray = _decode_jpeg(document.xref_stream_raw(xref), size, _MODES[shown["colorspace"]], coarser)
    return None if gray is None else (gray, own * gray.width / size[0])


def _covers_page(shown: dict[str, Any], page: Any) -> bool:
    """Return whether the image is upright and unmasked, and covers the page from edge to edge."""
    right, skew_y, skew_x, down, x, y = shown["transform"]
    width, height = page.rect.width, page.rect.height
    if right <= 0 or down <= 0 or abs(skew_x) + abs(skew_y) > 0.01 or shown["has-mask"]:
        return False
    bare = (x * shown["width"] / right, (x + right - width) * shown["width"] / right,
            y * shown["height"] / down, (y + down - height) * shown["height"] / down)  # fmt: skip
    is_square: bool = abs(shown["width"] / right * down - shown["height"]) <= _MARGIN_MOST
    return is_square and max(map(abs, bare)) <= _MARGIN_MOST


def _only_image(document: Any, page: Any) -> int | None:
    """Return the xref of the image if it is all the page shows."""
    streams = page.get_contents()
    if len(streams) != 1 or document.xref_get_key(page.xref, "Annots")[0] != "null":
        return None
    if len(document.xref_stream_raw(streams[0])) > _CONTENT_BYTES_MAX:
        return None
    found = _ONE_IMAGE.fullmatch(document.xref_stream(streams[0]))
    if found is None or _has_colours_of_its_own(document, page):
        return None
    name = found["name"].decode("ascii", "replace")
    # For an image shown through a form, the last field is the form's number.
    named = {image[0] for image in page.get_images(full=True) if image[7] == name and image[9] == 0}
    return named.pop() if len(named) == 1 else None


def _has_colours_of_its_own(document: Any, page: Any) -> bool:
    """Return whether the page or document redefines colours, so that gray may mean another colour."""
    resources = _inherited(pymupdf._as_pdf_page(page), _RESOURCES)
    catalog = document.pdf_catalog()
    intents = document.xref_get_key(catalog, "OutputIntents")[0]
    return bool(mupdf.pdf_dict_gets(resources, "ColorSpace").m_internal) or intents != "null"


def _is_plain_jpeg(document: Any, xref: int) -> bool:
    if not _PLAIN_KEYS.issuperset(document.xref_get_keys(xref)):
        return False
    packing: str = document.xref_get_key(xref, "Filter")[1]
    return packing.strip("[ ]") == "/DCTDecode"


def _decode_jpeg(packed: bytes, size: tuple[int, int], mode: str, coarser: int) -> Gray | None:
    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(packed))
        if image.size != size or image.mode != mode:
            return None
        image.draft("L", (max(size[0] // coarser, 1), max(size[1] // coarser, 1)))
        if image.mode != "L":
            return None
        return Gray(image.width, image.height, image.tobytes())
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError):
        # Drawing the page will report what is wrong.
        return None


# --- a PDF that gets text ---------------------------------------------------------------------------------


def add_streams(
    original: Path,
    target: Path,
    password: str,
    fonts: Sequence[str],
    widths: str,
    draw: Callable[[int, Mapping[str, Any]], bytes],
) -> None:
    """Append text to a copy of a PDF.

    `draw` gets a page number and `matrix`, six numbers that map points of the page as it is shown to its own space. It
    returns a content stream, which is placed below the page's own, or nothing. The stream uses the `fonts` by position
    as /PmF0, /PmF1 and so on. Each font is its character map, {font}, and PDF source with the placeholders {maps} and
    {widths}.
    """
    with _translate_errors(), pymupdf.open(original) as document:
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
    """Return the matrix from points of the page as it is shown, cropped and turned, to its own space.

    PyMuPDF's own matrices ignore the crop of a turned page.
    """
    whole, shown = mupdf.FzRect(mupdf.FzRect.Fixed_UNIT), mupdf.FzMatrix()
    mupdf.pdf_page_transform(pymupdf._as_pdf_page(page), whole, shown)
    return tuple(~pymupdf.Matrix(shown.a, shown.b, shown.c, shown.d, shown.e, shown.f))


def _add_below(document: Any, page: Any, stream: bytes, references: Sequence[int]) -> None:
    """Put the stream below the page's content, and add the fonts to its resources.

    The resources may be shared by several pages, which is harmless: all pages get the same fonts.
    """
    contents = [_add_stream(document, stream), *page.get_contents()]
    document.xref_set_key(page.xref, "Contents", f"[{' '.join(f'{one} 0 R' for one in contents)}]")
    own = pymupdf._as_pdf_page(page)
    resources = _inherited(own, _RESOURCES)
    if not resources.m_internal:
        resources = own.obj().pdf_dict_put_dict(_RESOURCES, 1)
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
    """Add a compressed stream. PyMuPDF takes five times as long to make it a few bytes smaller."""
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


# --- a part of a PDF --------------------------------------------------------------------------------------
# Everything that affects the pixels of a page is copied, compressed as it is. A page is not cut out if that would reach
# objects outside the page, such as form fields.

_INHERITED_KEYS = ("Resources", "MediaBox", "CropBox", "Rotate")
_OWN_KEYS = ("Contents", "BleedBox", "TrimBox", "ArtBox", "UserUnit", "Group", "Annots")
_CATALOG_KEYS = ("OCProperties", "OutputIntents")
_NEW_PAGE_KEYS = 12


def _cut(document: Any, numbers: Sequence[int], target: Path) -> bool:
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


def pdf_of_image(original: Path, target: Path) -> None:
    """Write a PDF with the same pixels. A JPEG is embedded unchanged."""
    with _translate_errors(), pymupdf.open(original) as document:
        if document.page_count > 1:
            target.write_bytes(document.convert_to_pdf())
            return
        with pymupdf.open() as made:
            page = made.new_page(width=document[0].rect.width, height=document[0].rect.height)
            page.insert_image(page.rect, filename=str(original))
            made.save(target, deflate=True)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate all errors of PyMuPDF into `Broken` or `PageTooLarge`."""
    try:
        yield
    except (pymupdf.FileDataError, pymupdf.EmptyFileError, pymupdf.FileNotFoundError) as error:
        raise Broken("it is broken beyond repair") from error
    except (RuntimeError, ValueError, IndexError, mupdf.FzErrorBase) as error:
        if "alloc" in str(error):
            raise PageTooLarge("it takes more memory than a page may") from error
        raise Broken(str(error)) from error


def _warm_up() -> None:
    """Create what the library builds on first use, mainly colour tables, once before processes are forked."""
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_text((72, 72), "warm")
        _text_of(document, 1)
        page.get_pixmap()


_warm_up()
