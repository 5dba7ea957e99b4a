"""Draw pages: in gray for OCR, in colour for people.

Pillow decodes a scan that is one JPEG, which is faster than drawing it and needs no resampling.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from PIL import Image, JpegImagePlugin

from job_handlers.reading.pdf.library import RESOURCES, PageTooLarge, inherited, mupdf, pymupdf
from job_handlers.reading.preprocess import Gray

_PIXELS_MAX = 40_000_000
"""An A4 page at 300 dpi has 9 million, A0 at 150 dpi 35 million."""
_DPI_LEAST = 70.0
_IMAGE_BYTES_MAX = 400_000_000
_SCAN_WIDTH_LEAST = 1200
_SHRUNK_WIDTH_LEAST = 1500
_OFF_MOST = 0.02
"""Share by which an unscaled image may miss the wanted resolution."""
_MARGIN_MOST = 1.5
_CONTENT_BYTES_MAX = 400
"""Showing one image takes fifty."""
_ONE_IMAGE = re.compile(rb"\s*(?:q\s+)*(?:(?:[-+.\d]+\s+){6}cm\s+)+/(?P<name>[\w.+-]+)\s+Do(?:\s+Q)*\s*")
_PLAIN_KEYS = {
    "Type", "Subtype", "Width", "Height", "ColorSpace", "BitsPerComponent", "Filter", "Length", "Name", "Interpolate",
}  # fmt: skip
_PLAIN_COLOURS = (
    "DeviceGray", "DeviceRGB", "ICCBased(RGB,sRGB", "ICCBased(RGB,Artifex Software sRGB",
    "ICCBased(Gray,Artifex Software sGray",
)  # fmt: skip
_MODES = {1: "L", 3: "RGB"}
DAMAGE = re.compile(
    r"premature end|truncated image|overflow in|read error|ran out of output|jbig2|library error: (?!FT_)",
    re.IGNORECASE,
)
"""MuPDF reports damaged images only in its warnings."""


def picture_of(document: Any, page: Any) -> tuple[Gray, float]:
    images = page.get_image_info()
    wanted = _wanted_dpi(page, images)
    return embedded_scan(document, page, images, wanted) or (_draw_gray(page, wanted), wanted)


def is_whole_jpeg(path: Path) -> bool:
    """Many JPEGs lack only the end marker. If more is missing, bytes appended before it change the pixels."""

    def pixels(appended: bytes) -> bytes:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(packed + appended + b"\xff\xd9"))
        image.draft("L", image.size)
        return image.tobytes()

    packed = path.read_bytes()
    try:
        return packed.startswith(b"\xff\xd8") and pixels(b"") == pixels(b"\x55" * 64)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError):
        return False


def without_checksums(warnings: str) -> str:
    return "\n".join(one for one in warnings.splitlines() if "data check" not in one)


def packing_of(document: Any, page: Any) -> tuple[str, int]:
    found = [(int(document.xref_get_key(one[0], "Length")[1]), f"{one[8]} {one[5]} {one[4]}")
             for one in page.get_images() if document.xref_get_key(one[0], "Length")[0] == "int"]  # fmt: skip
    length, how = max(found, default=(0, ""))
    return how, length


def encode_image(page: Any, scale: float, form: str) -> bytes:
    """Pillow takes a tenth of PyMuPDF's time."""
    if not page.parent.is_pdf or page.get_images():
        # Raise `PageTooLarge` before a huge image is decoded.
        _own_resolution(page, page.get_image_info())
    drawn = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale), colorspace=pymupdf.csRGB)
    made = io.BytesIO()
    Image.frombytes("RGB", (drawn.width, drawn.height), drawn.samples).save(made, form, quality=80, method=2)
    return made.getvalue()


def _wanted_dpi(page: Any, images: list[dict[str, Any]]) -> float:
    """Return a scan's own resolution between 150 and 300 dpi, otherwise 300."""
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


def embedded_scan(document: Any, page: Any, images: list[dict[str, Any]], wanted: float) -> tuple[Gray, float] | None:
    """Return (pixels, dpi) of a page that is one upright JPEG of 1, 2 or 4 times the wanted resolution."""
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
    right, skew_y, skew_x, down, x, y = shown["transform"]
    width, height = page.rect.width, page.rect.height
    if right <= 0 or down <= 0 or abs(skew_x) + abs(skew_y) > 0.01 or shown["has-mask"]:
        return False
    bare = (x * shown["width"] / right, (x + right - width) * shown["width"] / right,
            y * shown["height"] / down, (y + down - height) * shown["height"] / down)  # fmt: skip
    is_square: bool = abs(shown["width"] / right * down - shown["height"]) <= _MARGIN_MOST
    return is_square and max(map(abs, bare)) <= _MARGIN_MOST


def _only_image(document: Any, page: Any) -> int | None:
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
    resources = inherited(pymupdf._as_pdf_page(page), RESOURCES)
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
