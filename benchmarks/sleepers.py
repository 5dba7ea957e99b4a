"""Handlers that sleep instead of reading, so that only the cost of the cluster remains.

Its `ocr_pages` replaces the shipped one. A module that is installed beside it says how long to sleep per page.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from job_handlers.reading import ocr_pages as shipped
from job_handlers.reading.document import PageSource
from job_handlers.reading.ocr import OcrSettings
from job_handlers.reading.page_ranges import read_ranges
from job_handlers.reading.page_recognition import DrawnPage, PageReading
from worker_service.handlers import Context, Done, Handler

NEAR, FAR = "range_near", "range_far"
PAGES_A_RANGE = 12
_SECONDS = "page_seconds"
"""Name of that module and of its attribute; environment variables do not reach a child."""
_DRAWING = 0.04
"""Share of a page's time after which its digest is looked up."""
_TEXT = "The board reviewed each climate risk twice. " * 60


def empty_range(context: Context[dict[str, Any]]) -> Done:
    """Report what a range reports while it reads, and do nothing else."""
    for number in range(1, PAGES_A_RANGE + 1):
        context.progress(100 * number / PAGES_A_RANGE, f"page {number}")
    return Done({"pages": PAGES_A_RANGE})


def sleep(context: Context[shipped.OcrPagesPayload]) -> Done:
    """Ask and report what the shipped handler does for new scans, without reading."""
    assert context.document is not None
    numbers = read_ranges(context.payload.pages, 1_000_000)
    source, way = PageSource(context.document.content, "sleepers"), OcrSettings(("eng",), "fast")
    pages = shipped.PageRange(context, numbers, source, way, "sleepers")
    process: Any = _Sleeper(source.content, float(import_module(_SECONDS).page_seconds))
    pages.read_with(process)
    return Done({})


class _Sleeper:
    """Replaces `PageProcess`: works while a question is being answered, as the reading process does."""

    def __init__(self, content: str, seconds: float) -> None:
        self._content = content
        self._seconds = seconds
        self._told: deque[tuple[int, float]] = deque()
        self._free_at = 0.0

    def request(self, *numbers: int) -> None:
        self._told += [(number, time.monotonic()) for number in numbers]

    @property
    def has_pending(self) -> bool:
        return bool(self._told)

    def receive(self) -> tuple[int, DrawnPage | PageReading]:
        number, told_at = self._told.popleft()
        part = _DRAWING if number > 0 else 1 - _DRAWING
        self._free_at = max(self._free_at, told_at) + self._seconds * part
        time.sleep(max(0.0, self._free_at - time.monotonic()))
        if number > 0:
            return number, DrawnPage(f"{self._content}-{number}")
        return number, PageReading(f"Page {-number}. {_TEXT}", "ocr", 90.0)


ranges = [Handler(NEAR, empty_range, dict), Handler(FAR, empty_range, dict, runs_on_cluster=True)]
ocr_pages = replace(shipped.ocr_pages, run=sleep)


def install(place: Path, page_seconds: float) -> None:
    """Install the shipped handlers with this one replaced."""
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{_SECONDS}.py").write_text(f"page_seconds = {page_seconds}\n")
    points = distribution("pagemill").entry_points
    groups: dict[str, dict[str, str]] = {}
    for point in points:
        if point.group != "console_scripts":
            groups.setdefault(point.group, {})[point.name] = point.value
    groups["worker_service.handlers"]["ocr_pages"] = f"{__name__}:ocr_pages"
    _distribution(place, "pagemill", groups)
    _distribution(place, "ranges", {"worker_service.handlers": {"ranges": f"{__name__}:ranges"}})


def _distribution(place: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    about = place / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = [
        line for group, some in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in some.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))
