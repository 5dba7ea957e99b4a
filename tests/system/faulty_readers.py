"""The shipped handlers with another `ocr_pages`, installed under the same name.

It notes each page that the OCR engine gets, in its keep directory. By the name of the file, it fails, waits or returns
noise.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from job_handlers.reading import layout, page_recognition
from job_handlers.reading import ocr_pages as shipped
from job_handlers.reading.ocr import PageReader
from job_handlers.reading.page_ranges import read_ranges
from job_handlers.reading.page_recognition import PagePicture, PageReading
from tests import fake_distributions as installed
from worker_service.handlers import Context, Done, Permanent, digest
from worker_service.runner import child

_NOTES = "given-to-the-engine"
_MARKER = "has-failed"
_GO_ON = "may-go-on"
_NOISE_SECONDS = 0.02

_read_page = page_recognition.recognise_page
_place = Path()
_is_held = _is_noise = False


def run(context: Context[shipped.OcrPagesPayload]) -> Done:
    global _place, _is_held, _is_noise
    assert context.document is not None
    # Of this file, and of this way to read it.
    _place = context.keep / digest([context.document.content, context.document.settings])
    _place.mkdir(exist_ok=True)
    # The page is read in a process of its own, which is forked from this one.
    page_recognition.recognise_page = _noted_page
    name = context.inputs["original"].name
    _is_held = name.startswith("slow")
    _is_noise = name.startswith("noise")
    is_torn = name.startswith("breaks") and 3 in read_ranges(context.payload.pages, 1000)
    if is_torn and not (_place / _MARKER).exists():
        (_place / _MARKER).touch()
        raise Permanent("PAGE_BROKEN", "the saboteur has torn the page")
    while name.startswith("waits") and context.generation == 2 and not context.cancelled():
        time.sleep(0.01)
    return shipped.run(context)


def _noted_page(engine: PageReader, picture: PagePicture) -> PageReading:
    with (_place / _NOTES).open("a") as notes:
        notes.write(f"{picture.number}\n")
    while _is_held and not (_place / _GO_ON).exists():
        time.sleep(0.005)
    if _is_noise:
        time.sleep(_NOISE_SECONDS)
        return PageReading(noise(picture.number), "ocr", 90.0, layout.encode(layout.Layout(picture.size)))
    return _read_page(engine, picture)


def noise(number: int) -> str:
    return f"noise {number}"


# The same pages of two files share what is kept: the second comes again soon, instead of after half a minute.
child._KEEP_RETRY_SECONDS = 0.3
# The notes are written to `keep`, which no cluster node has.
ocr_pages = replace(shipped.ocr_pages, run=run, keep_key=lambda payload: payload.pages, runs_on_cluster=False)


def install(place: Path) -> None:
    changed = {"ocr_pages": f"{__name__}:ocr_pages"}
    installed.install(place, "pagemill", installed.shipped() | changed, installed.beside_handlers())


def go_on(workspace: Path) -> None:
    """Let the pages of slow files be read."""
    for notes in (workspace / "keep").rglob(_NOTES):
        (notes.parent / _GO_ON).touch()


def given_to_the_engine(workspace: Path) -> Counter[int]:
    """Count how often each page was given to the engine."""
    return Counter(int(line) for notes in (workspace / "keep").rglob(_NOTES) for line in notes.read_text().split())
