"""Celery with two prefork children that read ranges of pages with our reader, as somebody would who has no pagemill: a
task opens the file, reads its pages, and returns their texts, which Redis keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery, group

from benchmarks import peers
from job_handlers.reading import ocr, ocr_pages, pdf
from job_handlers.reading.document import HowToRead

_redis = f"{peers.redis_socket()}"
app = Celery("reading", broker=f"redis+socket://{_redis}", backend=f"redis+socket://{_redis}")
app.conf.worker_prefetch_multiplier = 1
_readers: list[ocr.Reader] = []


def _read(path: str, numbers: list[int]) -> list[str]:
    if not _readers:
        _readers.append(ocr.reader_for(HowToRead().engine))
    book = pdf.Book(Path(path), "")
    return [ocr_pages.read_page(_readers[0], ocr_pages.draw(book, number)).text for number in numbers]


read: Any = app.task(_read, name="read")


def read_all(ranges: list[tuple[str, list[int]]]) -> list[list[str]]:
    texts: list[list[str]] = group(read.s(*one) for one in ranges).apply_async().get(timeout=600)
    return texts
