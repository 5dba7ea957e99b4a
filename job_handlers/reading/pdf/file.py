"""An open PDF or image. Pages are numbered from 1."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from job_handlers.reading.pdf import pixels, slices
from job_handlers.reading.pdf.library import PdfLocked, pymupdf, round_box_to_tenths, size_of, translate_errors
from job_handlers.reading.pdf.stated_structure import StatedStructure
from job_handlers.reading.pdf.text import FLAGS, PageText, read_text
from job_handlers.reading.preprocess import Gray
from job_handlers.reading.text_layer import PageInk

_MAPPED_BYTES_MAX = 1 << 28
_THUMBNAIL_PIXELS = 320  # Of the longer side.
_IMAGE_PIXELS_MAX = 12_000_000  # Of a page that is shown to users.
_WORDS_MAX = 20_000  # Of a page.


class PagedFile:
    def __init__(self, path: Path, password: str = "", *, is_mapped: bool = False) -> None:
        """`is_mapped` makes reading much of the file faster."""
        with translate_errors():
            self._document = document = pymupdf.open(**_open_arguments(path)) if is_mapped else pymupdf.open(path)
            self.is_locked = bool(document.needs_pass)
            if self.is_locked and not document.authenticate(password):
                if not _locks_attachments_only(document):
                    document.close()
                    raise PdfLocked(path.name)
                document.is_encrypted = self.is_locked = False
                document.init_doc()
            self.is_pdf: bool = document.is_pdf
            self.was_repaired: bool = bool(self.is_pdf and document.is_repaired)
            self.pages: int = document.page_count

    def __enter__(self) -> PagedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._document.close()

    def text(self, number: int) -> PageText:
        with translate_errors():
            return read_text(self._document, number, self._stated_structure)

    @cached_property
    def _stated_structure(self) -> StatedStructure:
        return StatedStructure(self._document)

    def measure_ink(self, number: int) -> PageInk:
        with self._page(number) as page:
            page_box = pymupdf.Rect(page.rect) * page.derotation_matrix
            page_area = abs(page_box.get_area()) or 1.0
            image_area = hidden_text_area = shown_text_area = 0.0
            is_empty = True
            for kind, corners, *_ in page.get_bboxlog():
                visible = pymupdf.Rect(corners) & page_box
                area = 0.0 if visible.is_empty else visible.get_area()
                if kind == "ignore-text":
                    hidden_text_area += area
                    continue
                is_empty = False
                if kind in ("fill-image", "fill-imgmask"):
                    image_area += area
                elif kind.endswith("-text"):
                    shown_text_area += area
            hidden_share = hidden_text_area / (hidden_text_area + shown_text_area) if hidden_text_area else 0.0
            return PageInk(min(image_area / page_area, 1.0), hidden_share, is_empty and not hidden_text_area)

    def picture(self, number: int) -> tuple[Gray, float]:
        return self.picture_and_damage(number)[:2]

    def picture_and_damage(self, number: int) -> tuple[Gray, float, bool]:
        """Return gray pixels, their resolution in dpi, and whether part of the page could not be drawn."""
        with self._page(number) as page:
            if self.is_pdf:
                # Drop the warnings of other pages, before `picture_of`: the size of an image may already decode it.
                pymupdf.TOOLS.reset_mupdf_warnings()
            gray, dpi = pixels.picture_of(self._document, page)
            warnings = pixels.without_checksum_warnings(pymupdf.TOOLS.mupdf_warnings())
            is_damaged = pixels.DAMAGE.search(warnings) is not None
            if is_damaged and not self.is_pdf:
                is_damaged = not pixels.is_whole_jpeg(Path(self._document.name))
            return gray, dpi, is_damaged

    def scan_packing(self, number: int) -> tuple[str, int]:
        """Return how the largest image is compressed, and its bytes."""
        with self._page(number) as page:
            return pixels.packing_of(self._document, page) if self.is_pdf else ("", 0)

    def size(self, number: int) -> tuple[float, float]:
        with self._page(number) as page:
            return size_of(page.rect)

    def thumbnail(self, number: int = 1) -> bytes:
        with self._page(number) as page:
            return pixels.encode_image(page, _THUMBNAIL_PIXELS / max(page.rect.width, page.rect.height, 1.0), "JPEG")

    def image(self, number: int, width: int) -> bytes:
        with self._page(number) as page:
            page_width, page_height = max(page.rect.width, 1.0), max(page.rect.height, 1.0)
            scale_max = (_IMAGE_PIXELS_MAX / (page_width * page_height)) ** 0.5
            return pixels.encode_image(page, min(width / page_width, scale_max), "WEBP")

    def words(self, number: int) -> list[tuple[float, float, float, float, str]]:
        with self._page(number) as page:
            words = page.get_text("words", flags=FLAGS)[:_WORDS_MAX]
            turn = page.rotation_matrix
            return [
                (*round_box_to_tenths(pymupdf.Rect(x0, y0, x1, y1) * turn), text) for x0, y0, x1, y1, text, *_ in words
            ]

    def write_slice(self, numbers: Sequence[int], target: Path) -> bool:
        """Return False if the pages might not have the same pixels, or would be the whole file."""
        with translate_errors():
            return self.is_pdf and len(numbers) < self.pages and slices.write_slice(self._document, numbers, target)

    @contextmanager
    def _page(self, number: int) -> Iterator[Any]:
        with translate_errors():
            yield self._document[number - 1]


def _locks_attachments_only(document: Any) -> bool:
    encryption = pymupdf._as_pdf_document(document).pdf_trailer().pdf_dict_gets("Encrypt")
    # The filters for streams and for strings.
    return all(encryption.pdf_dict_gets(key).pdf_to_name() == "Identity" for key in ("StmF", "StrF"))


def _open_arguments(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > _MAPPED_BYTES_MAX:
            return {"filename": path}
        return {"stream": memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)), "filetype": "pdf"}


def _load_library_parts_before_fork() -> None:
    with pymupdf.open() as document:
        page = document.new_page()
        page.insert_text((72, 72), "warm")
        read_text(document, 1, StatedStructure(document))
        page.get_pixmap()


_load_library_parts_before_fork()
