"""Read the pixels of a page. Here is chosen by which engine: another one is a file more, and its place in `ENGINES`."""

from collections.abc import Mapping, Sequence

from job_handlers.reading.ocr import tesseract
from job_handlers.reading.ocr.engine import Maker
from job_handlers.reading.ocr.engine import WayToRead as WayToRead
from worker_service.handlers import Choices

ENGINES: tuple[Maker, ...] = (tesseract,)
"""The first that lacks nothing reads."""


def chosen() -> Maker:
    return next((one for one in ENGINES if one.missing() is None), ENGINES[0])


def missing() -> str | None:
    """What this machine lacks to read a page."""
    return chosen().missing()


def offers() -> str | None:
    """What people may choose from on this machine."""
    return chosen().offers()


def identity() -> Sequence[str]:
    """By what pages are read on this machine, as far as it is told without looking into it."""
    return [] if missing() else chosen().identities()


def choices() -> Mapping[str, Choices]:
    """The same by the keys of a payload, with what could be installed besides."""
    return chosen().choices()
