"""Handlers for the figures of a cluster: nothing is read, so that what is left is what nodes cost.

`ocr_pages` takes the shipped one's place. So long it sleeps for each page says a module that is installed beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from job_handlers.reading import ocr_pages as shipped
from job_handlers.reading.page_settings import read_ranges
from worker_service.handlers import Context, Done, Handler, PageResult

NEAR, FAR = "range_near", "range_far"
PAGES_A_RANGE = 12
_SECONDS = "page_seconds"
"""Name of the module, and of what is in it: no variable reaches a child."""
_TEXT = "The board reviewed each climate risk twice. " * 60


def empty_range(context: Context[dict[str, Any]]) -> Done:
    """What a range says while it reads, and no more."""
    for number in range(1, PAGES_A_RANGE + 1):
        context.progress(100 * number / PAGES_A_RANGE, f"page {number}")
    return Done({"pages": PAGES_A_RANGE})


def sleep(context: Context[shipped.Payload]) -> Done:
    assert context.document is not None
    seconds = float(import_module(_SECONDS).page_seconds)
    for number in read_ranges(context.payload.pages, 1_000_000):
        time.sleep(seconds)
        text = f"Page {number}. {_TEXT}"
        context.save_page(PageResult(number, f"{context.document.content}-{number}", text, "ocr", 90.0))
    return Done({})


ranges = [Handler(name, empty_range, dict) for name in (NEAR, FAR)]
ocr_pages = replace(shipped.ocr_pages, run=sleep)


def install(place: Path, page_seconds: float) -> None:
    """The shipped ones, but for this one."""
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
