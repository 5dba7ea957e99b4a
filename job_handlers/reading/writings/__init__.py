"""Files whose text flows: notes, web pages, mails, books, documents of office programs. One module for each family.

A module yields paragraphs, pictures and what its author made a new page with, in their order; `leaves` makes pages of
them. Nothing that a file names outside itself is ever looked for: no address, no other file, no entity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

from job_handlers.kinds import Kind

LIBRARY = "writings 3"
"""One more whenever the same file may now give another text."""

NEW_PAGE = "\f"
PAGES_MAX = 100_000

_PAGE_CHARACTERS = 3000
_PAGE_CHARACTERS_MAX = 6000
_PICTURE_CHARACTERS = 300
"""A picture counts as so many: an album is not one page, of which nothing would be read within its limits."""
_CHARACTERS_MAX = 100_000_000

_MODULES = {
    Kind.TEXT: "plain",
    Kind.HTML: "web",
    Kind.MAIL: "mail",
    Kind.EPUB: "epub",
    Kind.DOCX: "office",
    Kind.PPTX: "office",
    Kind.ODT: "office",
    Kind.ODP: "office",
    Kind.ZIP: "archive",
}


class Unreadable(Exception):
    """It is broken, or holds more than anybody reads."""


class Picture(NamedTuple):
    """In its place among the paragraphs."""

    key: str
    """What `Writing.picture` knows it by."""


Piece = str | Picture
Leaf = tuple[Piece, ...]


class Writing(Protocol):
    """An open file. Raises `Unreadable`."""

    notes: list[str]
    """What a person is to know of it, once all its pieces have been told: what of it is left out."""

    def pieces(self) -> Iterator[Piece]: ...

    def picture(self, key: str) -> bytes: ...


def is_writing(kind: str) -> bool:
    return kind in _MODULES


def open_writing(path: Path, kind: Kind) -> Writing:
    opened: Writing = import_module(f"{__name__}.{_MODULES[kind]}").open_writing(path, kind)
    return opened


def leaves(pieces: Iterable[Piece]) -> list[Leaf]:
    """Its pages: as its author made them, or, where there are none, as many paragraphs as one reads at once."""
    made: list[Leaf] = []
    page: list[Piece] = []
    on_page = total = 0
    for piece in pieces:
        if isinstance(piece, Picture):
            if page and on_page + _PICTURE_CHARACTERS > _PAGE_CHARACTERS:
                made.append(tuple(page))
                page, on_page = [], 0
            page.append(piece)
            on_page += _PICTURE_CHARACTERS
            continue
        total += len(piece)
        if total > _CHARACTERS_MAX or len(made) > PAGES_MAX:
            raise Unreadable("it holds more text than is read of one file: split it")
        for at, part in enumerate(piece.split(NEW_PAGE)):
            for some in _bearable(part):
                if page and (at or on_page + len(some) > _PAGE_CHARACTERS):
                    made.append(tuple(page))
                    page, on_page = [], 0
                if some:
                    page.append(some)
                    on_page += len(some)
    return [*made, tuple(page)] if page else made


def _bearable(paragraph: str) -> Iterator[str]:
    """A paragraph of a whole book is cut between words, where it has some."""
    text = paragraph.strip("\n")
    begin = 0
    while len(text) - begin > _PAGE_CHARACTERS_MAX:
        most = begin + _PAGE_CHARACTERS
        end = text.rfind(" ", begin + 1, most) + 1 or most
        yield text[begin:end].rstrip()
        begin = end
    yield text[begin:]
