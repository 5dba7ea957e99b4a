"""The pixels of a page are the same whether it is drawn or its scan is decoded."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageStat

from job_handlers.reading import pdf
from job_handlers.reading.pdf import pixels
from job_handlers.reading.preprocess import image_of
from tests.job_handlers.reading.documents import jpeg, picture, prose

pymupdf: Any = partly_typed

DPI = 150
GRAY = "/ColorSpace/DeviceGray"


@cache
def scanned() -> Image.Image:
    """Return text, and a mark at the top left."""
    image = picture(prose(1), dpi=DPI)
    ImageDraw.Draw(image).rectangle((20, 20, 400, 90), fill=40)
    return image


@cache
def coloured() -> Image.Image:
    image = scanned().convert("RGB")
    ImageDraw.Draw(image).rectangle((700, 20, 1100, 90), fill=(200, 60, 30))
    return image


def packed(image: Image.Image, **saving: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, "JPEG", quality=85, **saving)
    return held.getvalue()


class Sheet:
    """A page that shows one JPEG as scanners write it, which tests change."""

    def __init__(self, image: Image.Image, entries: str = GRAY, *, dpi: int = DPI, stream: bytes = b"") -> None:
        self.document = pymupdf.open()
        self.width, self.height = image.width * 72 / dpi, image.height * 72 / dpi
        self.page = self.document.new_page(width=self.width, height=self.height)
        self.scan = self.add(
            f"<</Type/XObject/Subtype/Image/Width {image.width}/Height {image.height}/BitsPerComponent 8{entries}>>",
            stream or packed(image),
        )
        self.document.xref_set_key(self.scan, "Filter", "/DCTDecode")
        self.content = self.add("<<>>", b"")
        self.document.xref_set_key(self.page.xref, "Contents", f"{self.content} 0 R")
        self.set("Resources", f"<</XObject<</Im0 {self.scan} 0 R>>>>")
        self.show()

    def add(self, entries: str, stream: bytes | None = None) -> int:
        xref: int = self.document.get_new_xref()
        self.document.update_object(xref, entries)
        if stream is not None:
            self.document.update_stream(xref, stream, compress=False)
        return xref

    def set(self, key: str, value: str) -> Sheet:
        self.document.xref_set_key(self.page.xref, key, value)
        return self

    def of_scan(self, key: str, value: str) -> Sheet:
        self.document.xref_set_key(self.scan, key, value)
        return self

    def show(self, before: str = "", after: str = "", *, matrix: str = "") -> Sheet:
        matrix = matrix or f"{self.width:.3f} 0 0 {self.height:.3f} 0 0"
        content = f"{before} q {matrix} cm /Im0 Do Q {after}"
        self.document.update_stream(self.content, content.encode(), compress=False)
        return self


def gray() -> Sheet:
    return Sheet(scanned())


def placed(matrix: str) -> Sheet:
    """Return a page with this matrix, in which w and h are the page's width and height."""
    sheet = gray()
    return sheet.show(matrix=matrix.replace("w", f"{sheet.width:.3f}").replace("h", f"{sheet.height:.3f}"))


def as_pymupdf_writes_it(image: Image.Image) -> Sheet:
    # With profiles for gray and for colours.
    sheet = gray()
    other = sheet.document.new_page(width=sheet.width, height=sheet.height)
    other.insert_image(other.rect, stream=packed(image))
    sheet.document.delete_page(0)
    return sheet


def with_inherited_resources() -> Sheet:
    sheet = gray()
    parent = int(sheet.document.xref_get_key(sheet.page.xref, "Parent")[1].split()[0])
    sheet.document.xref_set_key(parent, "Resources", f"<</XObject<</Im0 {sheet.scan} 0 R>>>>")
    return sheet.set("Resources", "null")


DECODED: dict[str, Callable[[], Sheet]] = {
    "gray": gray,
    "colours": lambda: Sheet(coloured(), "/ColorSpace/DeviceRGB"),
    "gray with a profile": lambda: as_pymupdf_writes_it(scanned()),
    "colours with a profile": lambda: as_pymupdf_writes_it(coloured()),
    "progressive": lambda: Sheet(scanned(), stream=packed(scanned(), progressive=True)),
    "filter in an array": lambda: gray().of_scan("Filter", "[ /DCTDecode ]"),
    "twice the resolution": lambda: Sheet(scanned().resize((scanned().width * 2, scanned().height * 2)), dpi=600),
    "several matrices": lambda: placed("1 0 0 1 0 0 cm w 0 0 h 0 0"),
    "inherited resources": with_inherited_resources,
}


def with_a_mask() -> Sheet:
    sheet = gray()
    mask = sheet.add(
        "<</Type/XObject/Subtype/Image/Width 2/Height 1/BitsPerComponent 8/ColorSpace/DeviceGray>>", b"\xff\0"
    )
    return sheet.of_scan("SMask", f"{mask} 0 R")


def in_a_form() -> Sheet:
    sheet = gray()
    inner = f"q {sheet.width:.3f} 0 0 {sheet.height / 2:.3f} 0 0 cm /Im0 Do Q".encode()
    entries = f"/BBox[0 0 {sheet.width} {sheet.height}]/Resources<</XObject<</Im0 {sheet.scan} 0 R>>>>"
    form = sheet.add(f"<</Type/XObject/Subtype/Form{entries}>>", inner)
    sheet.set("Resources", f"<</XObject<</Im0 {form} 0 R>>>>")
    return sheet.show(matrix="1 0 0 1 0 0")


def half_seen_through() -> Sheet:
    sheet = gray()
    sheet.set("Resources", f"<</XObject<</Im0 {sheet.scan} 0 R>>/ExtGState<</G <</ca 0.4>>>>>>")
    return sheet.show("/G gs")


def with_a_note() -> Sheet:
    sheet = gray()
    note = sheet.page.add_rect_annot(pymupdf.Rect(100, 300, 300, 500))
    note.set_colors(stroke=(0, 0, 0), fill=(0.2, 0.2, 0.2))
    note.update()
    return sheet


def with_gray_that_is_another() -> Sheet:
    sheet = gray()
    odd = "<</DefaultGray[/CalGray<</WhitePoint[0.95 1 1.09]/Gamma 0.4>>]>>"
    return sheet.set("Resources", f"<</XObject<</Im0 {sheet.scan} 0 R>>/ColorSpace{odd}>>")


def not_to_be_shown() -> Sheet:
    sheet = gray()
    layer = sheet.document.add_ocg("hidden", on=False)
    return sheet.of_scan("OC", f"{layer} 0 R")


def with_an_inverted_mask_image() -> Sheet:
    image = scanned()
    bits = image.convert("1").tobytes()
    sheet = gray()
    entries = f"/Width {image.width}/Height {image.height}/BitsPerComponent 1/ImageMask true"
    stencil = sheet.add(f"<</Type/XObject/Subtype/Image{entries}>>", bits)
    return sheet.set("Resources", f"<</XObject<</Im0 {stencil} 0 R>>>>")


def in_few_colours() -> Sheet:
    table = "".join(f"{255 - value:02x}" * 3 for value in range(256))
    return gray().of_scan("ColorSpace", f"[/Indexed/DeviceRGB 255<{table}>]")


DRAWN: dict[str, Callable[[], Sheet]] = {
    "page is turned": lambda: gray().set("Rotate", "90"),
    "page is upside down": lambda: gray().set("Rotate", "180"),
    "upside down": lambda: placed("w 0 0 -h 0 h"),
    "mirrored": lambda: placed("-w 0 0 h w 0"),
    "on its side": lambda: placed("0 h -w 0 w 0"),
    "cropped": lambda: gray().set("CropBox", "[0 0 300 400]"),
    "a part of the page": lambda: placed("476 0 0 673 30 40"),
    "two images": lambda: gray().show(after="q 200 0 0 100 100 300 cm /Im0 Do Q"),
    "a stamp": lambda: gray().show(after="0.3 g 100 300 300 200 re f"),
    "something below": lambda: gray().show("0.3 g 100 300 300 200 re f"),
    "a clip": lambda: gray().show("100 100 200 300 re W n"),
    "soft mask": with_a_mask,
    "colour key": lambda: gray().of_scan("Mask", "[200 255]"),
    "inverted": lambda: gray().of_scan("Decode", "[1 0]"),
    "four inks": lambda: Sheet(coloured(), "/ColorSpace/DeviceCMYK", stream=packed(coloured().convert("CMYK"))),
    "few colours": in_few_colours,
    "a form": in_a_form,
    "a stencil": with_an_inverted_mask_image,
    "half seen through": half_seen_through,
    "a note": with_a_note,
    "another gray": with_gray_that_is_another,
    "calibrated": lambda: gray().of_scan("ColorSpace", "[/CalGray<</WhitePoint[0.95 1 1.09]/Gamma 0.4>>]"),
    "hidden": not_to_be_shown,
    "colours of another kind": lambda: Sheet(coloured(), "/ColorSpace/DeviceRGB").of_scan(
        "DecodeParms", "<</ColorTransform 0>>"
    ),
    "larger than it says": lambda: gray().of_scan("Width", str(scanned().width - 200)),
    "colours that are gray": lambda: Sheet(scanned(), "/ColorSpace/DeviceRGB"),
    "cut off": lambda: Sheet(scanned(), stream=packed(scanned())[:60_000]),
    "coarse": lambda: Sheet(scanned().resize((620, 877)), dpi=75),
}


def written(sheet: Sheet, path: Path, **saving: Any) -> Path:
    sheet.document.save(path, **saving)
    sheet.document.close()
    return path


def is_decoded(path: Path, password: str = "") -> bool:
    """Return whether the scan itself was decoded. Compare its pixels with the page as it is drawn."""
    with pdf.PagedFile(path, password) as book:
        read, dpi = book.picture(1)
        page = book._document[0]
        scan = pixels.embedded_scan(book._document, page, page.get_image_info(), min(dpi, 300.0))
        shown = page.get_pixmap(matrix=pymupdf.Matrix(dpi / 72, dpi / 72))
        drawn = Image.frombytes("RGB", (shown.width, shown.height), shown.samples).convert("L")
    image = image_of(read)
    assert abs(image.width - drawn.width) <= 2
    assert abs(image.height - drawn.height) <= 2
    difference = ImageStat.Stat(ImageChops.difference(image, drawn.resize(image.size))).mean[0]
    assert difference < 3
    return scan is not None


@pytest.mark.parametrize("name", DECODED)
def test_a_scan_is_decoded_without_drawing(name: str, tmp_path: Path) -> None:
    assert is_decoded(written(DECODED[name](), tmp_path / "page.pdf"))


def test_an_encrypted_scan_is_decoded_without_drawing(tmp_path: Path) -> None:
    locked = {"encryption": pymupdf.PDF_ENCRYPT_AES_256, "user_pw": "u", "owner_pw": "o"}

    assert is_decoded(written(gray(), tmp_path / "page.pdf", **locked), "u")


@pytest.mark.parametrize("name", DRAWN)
def test_any_other_page_is_drawn(name: str, tmp_path: Path) -> None:
    assert not is_decoded(written(DRAWN[name](), tmp_path / "page.pdf"))


def test_an_image_file_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "page.jpg").write_bytes(jpeg(scanned()))

    assert not is_decoded(tmp_path / "page.jpg")


def test_a_scan_over_the_limits_is_not_decoded(tmp_path: Path) -> None:
    huge = gray().of_scan("Width", "30000").of_scan("Height", "30000")

    with pdf.PagedFile(written(huge, tmp_path / "huge.pdf")) as book, pytest.raises(pdf.PageTooLarge):
        book.picture(1)
    with pdf.PagedFile(written(Sheet(Image.new("L", (7_000, 7_000), 255), dpi=600), tmp_path / "page.pdf")) as book:
        page = book._document[0]
        assert pixels.embedded_scan(book._document, page, page.get_image_info(), 300.0) is None
