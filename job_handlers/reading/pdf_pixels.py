"""The pixels of a page of a PDF or an image: at which resolution it is best read, and what is seen there.

Most scanned pages are one JPEG that covers them, and nothing else. It is unpacked as it is, by a library that is faster
than the one that draws pages, and without being resampled. Whatever is out of the ordinary is drawn.
"""

from __future__ import annotations

import io
import re
from typing import Any

import pymupdf as partly_typed
from PIL import Image, JpegImagePlugin

from job_handlers.reading.ocr.gray import Gray

# Its annotations cover a part of it.
pymupdf: Any = partly_typed

# Before processes are forked, which would each do it again.
Image.preinit()

_PIXELS_MAX = 40_000_000
"""Of what is drawn to be read: an A4 at 300 dpi has 9 million, an A0 at 150 has 35."""
_DPI_LEAST = 70.0
_IMAGE_BYTES_MAX = 400_000_000
"""Of one embedded image, unpacked."""
_SCAN_WIDTH_LEAST = 1200
_SHRUNK_WIDTH_LEAST = 1500
"""To fewer pixels nothing is shrunk: who says 360 dpi of a picture 1,000 pixels wide is mistaken."""
_THUMBNAIL_PIXELS = 320

_OFF_MOST = 0.02
"""By so much, as a share, may the resolution of an image that is taken as it is differ from the wanted one."""
_MARGIN_MOST = 1.5
"""So many pixels of the page may an image leave bare, or reach beyond it."""
_CONTENT_BYTES_MAX = 400
"""Packed. To show an image takes fifty."""
_ONE_IMAGE = re.compile(rb"\s*(?:q\s+)*(?:(?:[-+.\d]+\s+){6}cm\s+)+/(?P<name>[\w.+-]+)\s+Do(?:\s+Q)*\s*")
_PLAIN_KEYS = {
    "Type", "Subtype", "Width", "Height", "ColorSpace", "BitsPerComponent", "Filter", "Length", "Name", "Interpolate",
}  # fmt: skip
_PLAIN_COLOURS = (
    "DeviceGray", "DeviceRGB", "ICCBased(RGB,sRGB", "ICCBased(RGB,Artifex Software sRGB",
    "ICCBased(Gray,Artifex Software sGray",
)  # fmt: skip
"""By their beginnings. Gray of these is gray without a profile being asked."""
_MODES = {1: "L", 3: "RGB"}


class PageTooLarge(Exception):
    """More pixels or bytes than a page may have."""


def picture(document: Any, page: Any) -> tuple[Gray, float]:
    """The page as it is best read, and the resolution of that in dots per inch."""
    images = page.get_image_info()
    wanted = _wanted_dpi(page, images)
    return _scan_itself(document, page, images, wanted) or (_drawn(page, wanted), wanted)


def packed(document: Any, page: Any) -> tuple[str, int]:
    """How the largest image of a page is packed, and into how many bytes; none are told where it has no images."""
    found = [(int(document.xref_get_key(one[0], "Length")[1]), f"{one[8]} {one[5]} {one[4]}")
             for one in page.get_images() if document.xref_get_key(one[0], "Length")[0] == "int"]  # fmt: skip
    length, how = max(found, default=(0, ""))
    return how, length


def thumbnail(page: Any) -> bytes:
    """As JPEG, which Pillow makes in a tenth of the time that PyMuPDF takes."""
    if not page.parent.is_pdf or page.get_images():
        # Refuses what is too large to be unpacked.
        _own_resolution(page, page.get_image_info())
    scale = _THUMBNAIL_PIXELS / max(page.rect.width, page.rect.height, 1.0)
    drawn = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale), colorspace=pymupdf.csRGB)
    made = io.BytesIO()
    Image.frombytes("RGB", (drawn.width, drawn.height), drawn.samples).save(made, "JPEG", quality=80)
    return made.getvalue()


def _wanted_dpi(page: Any, images: list[dict[str, Any]]) -> float:
    """A scan's own resolution between 150 and 300, else 300. An image that is wide enough and says that its page is
    huge was scanned by somebody who did not care: it is read pixel by pixel."""
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
    """Of the image that covers most of the page, and its width in pixels; 0 where none covers half of it."""
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


def _drawn(page: Any, dpi: float) -> Gray:
    try:
        drawn = page.get_pixmap(matrix=pymupdf.Matrix(dpi / 72, dpi / 72), colorspace=pymupdf.csGRAY)
    finally:
        # What was unpacked for this page is of no use to the next.
        pymupdf.TOOLS.store_shrink(100)
    return Gray(drawn.width, drawn.height, bytes(drawn.samples_mv))


# --- the scan itself --------------------------------------------------------------------------------------


def _scan_itself(document: Any, page: Any, images: list[dict[str, Any]], wanted: float) -> tuple[Gray, float] | None:
    """None: the page is not just one upright JPEG of about the wanted resolution, or of twice or four times that."""
    # Where an image lies is told as if its page were not turned.
    if not document.is_pdf or len(images) != 1 or page.rotation:
        return None
    shown = images[0]
    if not _covers(shown, page) or shown["width"] * shown["height"] > _PIXELS_MAX:
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
    gray = _unpacked(document.xref_stream_raw(xref), size, _MODES[shown["colorspace"]], coarser)
    return None if gray is None else (gray, own * gray.width / size[0])


def _covers(shown: dict[str, Any], page: Any) -> bool:
    """Upright and unmasked, from edge to edge."""
    right, skew_y, skew_x, down, x, y = shown["transform"]
    width, height = page.rect.width, page.rect.height
    if right <= 0 or down <= 0 or abs(skew_x) + abs(skew_y) > 0.01 or shown["has-mask"]:
        return False
    bare = (x * shown["width"] / right, (x + right - width) * shown["width"] / right,
            y * shown["height"] / down, (y + down - height) * shown["height"] / down)  # fmt: skip
    is_square: bool = abs(shown["width"] / right * down - shown["height"]) <= _MARGIN_MOST
    return is_square and max(map(abs, bare)) <= _MARGIN_MOST


def _only_image(document: Any, page: Any) -> int | None:
    """The object that the page shows, if it does nothing else."""
    streams = page.get_contents()
    if len(streams) != 1 or document.xref_get_key(page.xref, "Annots")[0] != "null":
        return None
    if len(document.xref_stream_raw(streams[0])) > _CONTENT_BYTES_MAX:
        return None
    found = _ONE_IMAGE.fullmatch(document.xref_stream(streams[0]))
    if found is None or _has_colours_of_its_own(document, page):
        return None
    name = found["name"].decode("ascii", "replace")
    # Of an image that is shown by a form, the last is the form's number.
    named = {image[0] for image in page.get_images(full=True) if image[7] == name and image[9] == 0}
    return named.pop() if len(named) == 1 else None


def _has_colours_of_its_own(document: Any, page: Any) -> bool:
    """What is called gray may then be something else."""
    mupdf = pymupdf.mupdf
    resources = mupdf.pdf_dict_get_inheritable(pymupdf._as_pdf_page(page).obj(), mupdf.PDF_ENUM_NAME_Resources)
    catalog = document.pdf_catalog()
    intents = document.xref_get_key(catalog, "OutputIntents")[0]
    return bool(mupdf.pdf_dict_gets(resources, "ColorSpace").m_internal) or intents != "null"


def _is_plain_jpeg(document: Any, xref: int) -> bool:
    if not _PLAIN_KEYS.issuperset(document.xref_get_keys(xref)):
        return False
    packing: str = document.xref_get_key(xref, "Filter")[1]
    return packing.strip("[ ]") == "/DCTDecode"


def _unpacked(packed: bytes, size: tuple[int, int], mode: str, coarser: int) -> Gray | None:
    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(packed))
        if image.size != size or image.mode != mode:
            return None
        image.draft("L", (max(size[0] // coarser, 1), max(size[1] // coarser, 1)))
        if image.mode != "L":
            return None
        return Gray(image.width, image.height, image.tobytes())
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError):
        # What is wrong with it is for those to say who draw the page.
        return None
