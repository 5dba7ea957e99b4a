"""Ranges of pages as somebody reads them who has no pagemill, but our reader: so all that differs is what runs it."""

from __future__ import annotations

from pathlib import Path

from job_handlers.reading import ocr, ocr_pages, pdf

LANGUAGES, QUALITY = ("eng",), "fast"
WAY = ocr.WayToRead(LANGUAGES, QUALITY)
_readers: list[ocr.Reader] = []


def read_range(path: str, numbers: list[int]) -> list[tuple[str, str]]:
    """Text of each page, and its words with their boxes. A process keeps the engine that it has begun once."""
    if not _readers:
        _readers.append(ocr.reader_for(WAY))
    book = pdf.Book(Path(path), "")
    read = [ocr_pages.read_page(_readers[0], ocr_pages.draw(book, number)) for number in numbers]
    return [(one.text, one.layout or "") for one in read]
