"""What an OCR engine is to those who read pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from job_handlers.reading.layout import Word
from job_handlers.reading.preprocess import Gray
from worker_service.handlers import Choices, Problem


class WayToRead(Struct, frozen=True):
    languages: Sequence[str]
    quality: str
    is_one_of_them: bool = False
    """Nobody has said in which a page is written."""


class Engine(Protocol):
    name: str
    """And version."""

    def words(
        self, gray: Gray, dpi: float, *, is_uneven: bool = False, is_large: bool = False, is_sparse: bool = False
    ) -> list[list[Word]]:
        """Line by line, in pixels; an empty line stands between paragraphs. `is_uneven`: what is ink is decided in each
        neighbourhood, not for the page as a whole. `is_large`: all letters could be read from half as many pixels each
        way. `is_sparse`: what stands apart is a line of its own, in no order that is promised."""

    def line(self, gray: Gray, dpi: float, *, is_uneven: bool = False) -> list[Word]:
        """The words of pixels that hold one line, or a part of it."""

    def turn(self, gray: Gray, dpi: float) -> int | None:
        """Degrees clockwise by which it has to be turned to be read. None: that cannot be told."""

    def script(self, gray: Gray, dpi: float) -> str | None:
        """Return the script of a page, such as Latin or Arabic, as far as it is certain."""


class Maker(Protocol):
    """The file of an engine."""

    def missing(self) -> Problem | None:
        """What this machine lacks to read a page with it."""

    def offers(self) -> str | None:
        """What people may choose from, such as its languages."""

    def languages_of(self, quality: str) -> Sequence[str]:
        """Those that it has data of this quality for."""

    def choices(self) -> Mapping[str, Choices]:
        """By the key of a payload what people may ask for, and how to get what is not there."""

    def identity(self, wanted: WayToRead) -> str:
        """Of engine and trained data: what can change the words that are read. Without an engine: none."""

    def identities(self) -> Sequence[str]:
        """The same of all that is there, as far as it costs nothing to tell."""

    def engine_for(self, wanted: WayToRead) -> Engine: ...
