"""Interface of an OCR engine."""

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
    """True if the language is not set: each page is in one of `languages`."""


class Engine(Protocol):
    name: str
    """Name and version."""

    def words(
        self, gray: Gray, dpi: float, *, is_uneven: bool = False, is_large: bool = False, is_sparse: bool = False
    ) -> list[list[Word]]:
        """Return the words by line, in pixels, with an empty line between paragraphs.

        `is_uneven` chooses the threshold per neighbourhood instead of per page. `is_large` says that the letters are
        still legible at half the size. `is_sparse` returns each separate piece of text as a line, in no particular
        order.
        """

    def line(self, gray: Gray, dpi: float, *, is_uneven: bool = False) -> list[Word]:
        """Return the words of an image that contains one line, or part of one."""

    def turn(self, gray: Gray, dpi: float) -> int | None:
        """Return the degrees clockwise by which the page must be turned; None if that is uncertain."""

    def script(self, gray: Gray, dpi: float) -> str | None:
        """Return the script of a page, such as Latin or Arabic; None if that is uncertain."""


class Maker(Protocol):
    """Interface of an engine's module."""

    def missing(self) -> Problem | None:
        """Return the problem that keeps this machine from using the engine."""

    def offers(self) -> str | None:
        """Return a sentence about the choices, such as its languages."""

    def languages_of(self, quality: str) -> Sequence[str]:
        """Return the languages with installed data of this quality."""

    def choices(self) -> Mapping[str, Choices]:
        """Return the possible values of payload keys, and how to install missing ones."""

    def identity(self, wanted: WayToRead) -> str:
        """Return a text that identifies engine and trained data; `none` without an engine."""

    def identities(self) -> Sequence[str]:
        """Return the same for everything installed, as far as that is cheap."""

    def engine_for(self, wanted: WayToRead) -> Engine: ...
