"""Books: the chapters of an EPUB, in the order in which they are to be read. Each begins a page."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from job_handlers.kinds import Kind
from job_handlers.reading.writings import NEW_PAGE, Piece, Unreadable, web
from job_handlers.reading.writings.archive import Archive

_CONTAINER = "META-INF/container.xml"
_PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")


class Book:
    def __init__(self, path: Path) -> None:
        self._archive = Archive(path)
        self._names = set(self._archive.names)

    def pieces(self) -> Iterator[Piece]:
        for chapter in self._chapters():
            body = self._archive.read(chapter)
            text = body.decode(web.encoding_of(body[:4096]), "replace")
            yield NEW_PAGE
            yield from web.pieces_of(iter([text]), partial(self._inside, chapter))

    def picture(self, key: str) -> bytes:
        return web.unpacked(key) if key.startswith("data:") else self._archive.read(key)

    def _chapters(self) -> list[str]:
        root = self._tree(_CONTAINER).find(".//{*}rootfile")
        contents = root.get("full-path", "") if root is not None else ""
        package = self._tree(contents)
        items = {item.get("id"): item.get("href", "") for item in package.iterfind("./{*}manifest/{*}item")}
        wanted = [items.get(one.get("idref"), "") for one in package.iterfind("./{*}spine/{*}itemref")]
        found = [self._beside(contents, href) for href in wanted]
        return [name for name in found if name in self._names]

    def _inside(self, chapter: str, address: str) -> str | None:
        name = self._beside(chapter, address)
        return name if name in self._names and name.lower().endswith(_PICTURES) else web.inside(address)

    def _beside(self, name: str, href: str) -> str:
        return posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(href.partition("#")[0])))

    def _tree(self, name: str) -> ElementTree.Element:
        try:
            return ElementTree.fromstring(self._archive.read(name))
        except (ElementTree.ParseError, ValueError) as error:
            raise Unreadable(f"{name} in it is broken ({error})") from error


def open_writing(path: Path, kind: Kind) -> Book:
    return Book(path)
