"""Readers beside the pipeline, each a program: `python -m benchmarks.ocr_readers engine A.pdf`.

`engine` is the limit: gray pages in memory, both cores, only the engine. `pytesseract` is the loop that people write.
`get_text` is PyMuPDF in one process. Each prints text and time as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pymupdf

PROCESSES = 2
_DATA = "/usr/share/tesseract-ocr/5/tessdata/"
_SCAN_DPI = (150, 300)
_MEMBERS: dict[str, Any] = {}


def main() -> None:
    _, name, most, *paths = sys.argv
    seconds, cpu_seconds, texts = READERS[name](paths, int(most))
    json.dump({"seconds": seconds, "cpu_seconds": cpu_seconds, "texts": texts}, sys.stdout)


def engine(paths: Sequence[str], most: int) -> tuple[float, float, list[str]]:
    """Start the engines and draw the pages before the clock starts."""
    os.environ["OMP_THREAD_LIMIT"] = "1"
    _MEMBERS["pages"] = [_gray(page) for page in _pages(paths, most)]
    with multiprocessing.get_context("fork").Pool(PROCESSES, _start_engine) as pool:
        begin = time.perf_counter()
        read = list(pool.imap(_recognise, range(len(_MEMBERS["pages"]))))
        seconds = time.perf_counter() - begin
    return seconds, sum(cpu for cpu, _ in read), [text for _, text in read]


def pytesseract(paths: Sequence[str], most: int) -> tuple[float, float, list[str]]:
    import pytesseract as library
    from PIL import Image

    begin, cpu_begin = time.perf_counter(), _cpu_seconds()
    texts = []
    for page in _pages(paths, most):
        drawn = page.get_pixmap(dpi=300)
        image = Image.frombytes("RGB", (drawn.width, drawn.height), drawn.samples)
        texts.append(library.image_to_string(image))
    return time.perf_counter() - begin, _cpu_seconds() - cpu_begin, texts


def get_text(paths: Sequence[str], most: int) -> tuple[float, float, list[str]]:
    begin, cpu_begin = time.perf_counter(), _cpu_seconds()
    texts = [page.get_text() for page in _pages(paths, most)]
    return time.perf_counter() - begin, _cpu_seconds() - cpu_begin, texts


READERS = {"engine": engine, "pytesseract": pytesseract, "get_text": get_text}


def _pages(paths: Sequence[str], most: int) -> Iterator[Any]:
    left = most
    for path in paths:
        opened: Any = pymupdf.open(path)  # type: ignore[no-untyped-call]
        with opened as document:
            for page in document:
                if left == 0:
                    return
                left -= 1
                yield page


def _gray(page: Any) -> tuple[bytes, int, int, int]:
    """Draw at the resolution of the scan, as the pipeline does."""
    images = page.get_image_info()
    own = 72 * images[0]["width"] / page.rect.width if images else 0
    dpi = round(own) if _SCAN_DPI[0] <= round(own) <= _SCAN_DPI[1] else _SCAN_DPI[1]
    drawn = page.get_pixmap(dpi=dpi, colorspace=pymupdf.csGRAY)
    return bytes(drawn.samples_mv), drawn.width, drawn.height, dpi


def _start_engine() -> None:
    import tesserocr  # type: ignore[import-untyped]

    _MEMBERS["engine"] = tesserocr.PyTessBaseAPI(
        path=_DATA, lang="eng", psm=tesserocr.PSM.AUTO, oem=tesserocr.OEM.LSTM_ONLY
    )


def _recognise(at: int) -> tuple[float, str]:
    begin = time.process_time()
    samples, width, height, dpi = _MEMBERS["pages"][at]
    reader = _MEMBERS["engine"]
    reader.SetImageBytes(samples, width, height, 1, width)
    reader.SetSourceResolution(dpi)
    text = reader.GetUTF8Text()
    reader.Clear()
    return time.process_time() - begin, text


def _cpu_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


if __name__ == "__main__":
    main()
