"""Draw pages: in gray for OCR, in colour for people.

Pillow decodes a scan that is one JPEG, which is faster than drawing it and needs no resampling.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from PIL import Image, JpegImagePlugin

from job_handlers.reading.pdf.library import RESOURCES, PageTooLarge, inheritable_value, is_missing, pymupdf
from job_handlers.reading.preprocess import Gray

_PIXELS_MAX = 40_000_000  # An A4 page at 300 dpi has 9 million, A0 at 150 dpi 35 million.
_DPI = 300.0
_DPI_MIN = 70.0  # A page so large that it could only be drawn more coarsely is not read.
_SCAN_DPI_MIN = 150.0
_IMAGE_BYTES_MAX = 400_000_000  # Decoded, with three colours for each pixel.
_SCAN_WIDTH_PIXELS_MIN = 1200  # An image with fewer, below 150 dpi, is no scan of a page.
_OCR_WIDTH_PIXELS_MIN = 1500
_DPI_ERROR_MAX = 0.02  # Share by which an unscaled image may miss the wanted resolution.
_EDGE_ERROR_PIXELS_MAX = 1.5  # By which a scan may miss an edge of the page.
_CONTENT_BYTES_MAX = 400  # The commands that show one image have fifty bytes.
_ONE_IMAGE = re.compile(rb"\s*(?:q\s+)*(?:(?:[-+.\d]+\s+){6}cm\s+)+/(?P<name>[\w.+-]+)\s+Do(?:\s+Q)*\s*")
_PLAIN_KEYS = {
    "Type", "Subtype", "Width", "Height", "ColorSpace", "BitsPerComponent", "Filter", "Length", "Name", "Interpolate",
}  # fmt: skip
_PLAIN_COLOURS = (
    "DeviceGray", "DeviceRGB", "ICCBased(RGB,sRGB", "ICCBased(RGB,Artifex Software sRGB",
    "ICCBased(Gray,Artifex Software sGray",
)  # fmt: skip
_MODES = {1: "L", 3: "RGB"}  # Number of colour components → Pillow's mode.
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
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
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg + appended + _JPEG_END))
        image.draft("L", image.size)
        return image.tobytes()

    jpeg = path.read_bytes()
    try:
        return jpeg.startswith(_JPEG_BEGIN) and pixels(b"") == pixels(b"\x55" * 64)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError):
        return False


def without_checksum_warnings(warnings: str) -> str:
    # A wrong checksum ("incorrect data check") changes no pixel.
    return "\n".join(warning for warning in warnings.splitlines() if "data check" not in warning)


def packing_of(document: Any, page: Any) -> tuple[str, int]:
    """Return the compression, colours and depth of the page's largest image, and its bytes."""
    sizes_and_packings: list[tuple[int, str]] = []
    for xref, _, _, _, bits, colours, _, _, compression, *_ in page.get_images():
        kind, length = document.xref_get_key(xref, "Length")
        if kind == "int":
            sizes_and_packings.append((int(length), f"{compression} {colours} {bits}"))
    size, packing = max(sizes_and_packings, default=(0, ""))
    return packing, size


def encode_image(page: Any, scale: float, image_format: str) -> bytes:
    if not page.parent.is_pdf or page.get_images():
        # Raises `PageTooLarge` before a huge image is decoded.
        _scan_resolution(page, page.get_image_info())
    drawn = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale), colorspace=pymupdf.csRGB)
    encoded = io.BytesIO()
    # Pillow takes a tenth of PyMuPDF's time.
    Image.frombytes("RGB", (drawn.width, drawn.height), drawn.samples).save(encoded, image_format, quality=80, method=2)
    return encoded.getvalue()


def _wanted_dpi(page: Any, images: list[dict[str, Any]]) -> float:
    """Return a scan's own resolution, reduced to `_DPI`; otherwise `_DPI`."""
    width, height = page.rect.width, page.rect.height
    scan_dpi, scan_width = _scan_resolution(page, images)
    is_fine_scan = scan_dpi >= _SCAN_DPI_MIN or scan_width >= _SCAN_WIDTH_PIXELS_MIN
    # A small page is not reduced to fewer pixels than OCR needs.
    dpi_max = max(_DPI, 72 * _OCR_WIDTH_PIXELS_MIN / max(width, 1.0))
    wanted = min(scan_dpi, dpi_max) if is_fine_scan else _DPI
    affordable: float = (_PIXELS_MAX / (max(width, 1.0) * max(height, 1.0))) ** 0.5 * 72
    if affordable < min(_DPI_MIN, wanted):
        raise PageTooLarge(f"it is {width / 72:.0f} × {height / 72:.0f} inches")
    return min(wanted, affordable)


def _scan_resolution(page: Any, images: list[dict[str, Any]]) -> tuple[float, int]:
    """Return the dpi and width of the largest image, or zeros if none covers half of the page.

    Raise `PageTooLarge` for an image that takes too much memory.
    """
    dpi, width, largest_area = 0.0, 0, 0.5 * abs(page.rect.width * page.rect.height)
    for image in images:
        if image["width"] * image["height"] * max(image.get("bpc", 8) * 3 // 8, 1) > _IMAGE_BYTES_MAX:
            raise PageTooLarge(f"it holds an image of {image['width']} × {image['height']} pixels")
        area = abs(pymupdf.Rect(image["bbox"]).get_area())
        if area >= largest_area:
            a, b, *_ = image["transform"]
            shown_width = (a * a + b * b) ** 0.5
            dpi, width, largest_area = 72 * image["width"] / max(shown_width, 0.01), image["width"], area
    return dpi, width


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
    right, *_ = shown["transform"]
    scan_dpi = 72 * shown["width"] / right
    # JPEG decodes at a half or a quarter of the size in less time.
    divisor = round(scan_dpi / wanted)
    if divisor not in (1, 2, 4) or abs(scan_dpi / divisor / wanted - 1) > _DPI_ERROR_MAX:
        return None
    if not shown["cs-name"].startswith(_PLAIN_COLOURS) or shown["colorspace"] not in _MODES:
        return None
    xref = _xref_of_only_image(document, page)
    if xref is None or not _is_plain_jpeg(document, xref):
        return None
    size = shown["width"], shown["height"]
    gray = _decode_jpeg(document.xref_stream_raw(xref), size, _MODES[shown["colorspace"]], divisor)
    return None if gray is None else (gray, scan_dpi * gray.width / shown["width"])


def _covers_page(shown: dict[str, Any], page: Any) -> bool:
    right, skew_y, skew_x, down, x, y = shown["transform"]
    width, height = page.rect.width, page.rect.height
    if right <= 0 or down <= 0 or abs(skew_x) + abs(skew_y) > 0.01 or shown["has-mask"]:
        return False
    margins = (
        x * shown["width"] / right,
        (x + right - width) * shown["width"] / right,
        y * shown["height"] / down,
        (y + down - height) * shown["height"] / down,
    )
    has_square_pixels: bool = abs(shown["width"] / right * down - shown["height"]) <= _EDGE_ERROR_PIXELS_MAX
    return has_square_pixels and max(map(abs, margins)) <= _EDGE_ERROR_PIXELS_MAX


def _xref_of_only_image(document: Any, page: Any) -> int | None:
    streams = page.get_contents()
    if len(streams) != 1 or document.xref_get_key(page.xref, "Annots")[0] != "null":
        return None
    if len(document.xref_stream_raw(streams[0])) > _CONTENT_BYTES_MAX:
        return None
    only_image = _ONE_IMAGE.fullmatch(document.xref_stream(streams[0]))
    if only_image is None or _has_own_colour_space(document, page):
        return None
    name = only_image["name"].decode("ascii", "replace")
    xrefs = {xref for xref, *_, image_name, _, form in page.get_images(full=True) if image_name == name and form == 0}
    return xrefs.pop() if len(xrefs) == 1 else None


def _has_own_colour_space(document: Any, page: Any) -> bool:
    resources = inheritable_value(pymupdf._as_pdf_page(page), RESOURCES)
    catalog = document.pdf_catalog()
    intents = document.xref_get_key(catalog, "OutputIntents")[0]
    return not is_missing(resources.pdf_dict_gets("ColorSpace")) or intents != "null"


def _is_plain_jpeg(document: Any, xref: int) -> bool:
    if not _PLAIN_KEYS.issuperset(document.xref_get_keys(xref)):
        return False
    packing: str = document.xref_get_key(xref, "Filter")[1]
    return packing.strip("[ ]") == "/DCTDecode"


def _decode_jpeg(packed: bytes, size: tuple[int, int], mode: str, divisor: int) -> Gray | None:
    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(packed))
        if image.size != size or image.mode != mode:
            return None
        width, height = size
        image.draft("L", (max(width // divisor, 1), max(height // divisor, 1)))
        if image.mode != "L":
            return None
        return Gray(image.width, image.height, image.tobytes())
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError):
        # Drawing the page will report what is wrong.
        return None
