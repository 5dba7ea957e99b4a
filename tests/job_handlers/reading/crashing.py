"""`ocr_pages` with a failing engine.

It kills its process on page 2 unless that is read in parts, and on page 3 in any case. It raises an error on page 4.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Any

from job_handlers.reading import ocr_pages as shipped
from job_handlers.reading import page_recognition
from job_handlers.reading.page_recognition import PagePicture, PageReading

_read_page = page_recognition.recognise_page


class _FailingReader:
    def read(self, *_: object) -> Any:
        raise RuntimeError("cannot create std::vector larger than max_size()")

    read_in_parts = read


def _crash(engine: Any, picture: PagePicture) -> PageReading:
    if picture.number == 3 or (picture.number == 2 and not picture.is_in_parts):
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)
    failing: Any = _FailingReader()
    return _read_page(failing if picture.number == 4 else engine, picture)


page_recognition.recognise_page = _crash
ocr_pages = shipped.ocr_pages
