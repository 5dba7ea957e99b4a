"""Books: the chapters of an EPUB, in the order in which they are to be read. Each begins a page."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from job_handlers.kinds import HEAD_BYTES, Kind
from job_handlers.reading.writings import NEW_PAGE, Piece, Unreadable, web
from job_handlers.reading.writings.archive import Archive
from worker_service.handlers import counted

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".gif")


class Book:
    def __init__(self, path: Path) -> None:
        self._archive = Archive(path)
        self._names = set(self._archive.names)
        self.notes: list[str] = []

    def pieces(self) -> Iterator[Piece]:
        chapters, locked = self._chapters(), self._locked()
        if locked & set(chapters):
            raise Unreadable("it is protected against copying: ask who sold it for one without")
        for chapter in chapters:
            body = self._archive.read(chapter)
            text = body.decode(web.encoding_of(body[:HEAD_BYTES]), "replace")
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
        found = [self._beside(contents, href) for href in wanted if href]
        if lacking := [name for name in found if name not in self._names]:
            self.notes.append(f"it lacks {counted(len(lacking), 'chapter')}: {lacking[0]}")
        return [name for name in found if name in self._names]

    def _locked(self) -> set[str]:
        """What is encrypted: often letter forms alone."""
        if _ENCRYPTION not in self._names:
            return set()
        found = self._tree(_ENCRYPTION).iterfind(".//{*}CipherReference")
        return {posixpath.normpath(unquote(one.get("URI", ""))) for one in found}

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
