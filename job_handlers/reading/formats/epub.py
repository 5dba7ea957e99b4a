"""The chapters of an EPUB, in reading order. Each begins a page."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from job_handlers.file_kinds import HEAD_BYTES, FileKind
from job_handlers.reading.formats import (
    NEW_PAGE,
    PictureReference,
    Piece,
    UnreadableDocument,
    is_picture,
    note_of_unread,
    web,
)
from job_handlers.reading.formats.archive import Archive
from worker_service.handlers import counted

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_UNREAD_SUFFIXES = (".pdf", ".mp3", ".mp4", ".m4a", ".m4v", ".ogg", ".webm", ".css", ".ncx")
_FALLBACKS_MAX = 10


class EpubBook:
    def __init__(self, path: Path) -> None:
        self._archive = Archive(path)
        self._names = set(self._archive.names)
        self.notes: list[str] = []
        self._unread_pictures: dict[str, None] = {}

    def pieces(self) -> Iterator[Piece]:
        chapters, locked = self._chapters(), self._encrypted_names()
        if locked & set(chapters):
            raise UnreadableDocument("it is protected against copying", "ask who sold it for one without")
        for chapter in chapters:
            yield NEW_PAGE
            if is_picture(chapter):
                yield PictureReference(chapter)
                continue
            body = self._archive.read(chapter)
            text = body.decode(web.encoding_of(body[:HEAD_BYTES]), "replace")
            # The title is often the file name, or the book's title in every chapter.
            yield from web.pieces_of(iter([text]), partial(self._picture_key, chapter), shows_title=False)
        self.notes += note_of_unread(self._unread_pictures)

    def picture(self, key: str) -> bytes:
        return web.decode_data_url(key) if key.startswith("data:") else self._archive.read(key)

    def _chapters(self) -> list[str]:
        root = self._parse_xml(_CONTAINER).find(".//{*}rootfile")
        package_file = root.get("full-path", "") if root is not None else ""
        if package_file not in self._names:
            raise UnreadableDocument("it does not say which chapters it has")
        package = self._parse_xml(package_file)
        item_by_id = {item.get("id"): item for item in package.iterfind("./{*}manifest/{*}item")}
        ids = [reference.get("idref") for reference in package.iterfind("./{*}spine/{*}itemref")]
        items = [
            _item_or_readable_fallback(item_by_id[item_id], item_by_id) for item_id in ids if item_id in item_by_id
        ]
        hrefs = [item.get("href", "") for item in items]
        # A chapter that is listed twice is read once.
        listed = dict.fromkeys(_resolve_path(package_file, href) for href in hrefs if href)
        if missing := [name for name in listed if name not in self._names]:
            self.notes.append(f"it lacks {counted(len(missing), 'chapter')}: {missing[0]}")
        present = [name for name in listed if name in self._names]
        if unread := [name for name in present if name.lower().endswith(_UNREAD_SUFFIXES)]:
            self.notes.append(f"{counted(len(unread), 'chapter')} of a kind that is not read in a book: {unread[0]}")
        return [name for name in present if name not in unread]

    def _encrypted_names(self) -> set[str]:
        if _ENCRYPTION not in self._names:
            return set()
        references = self._parse_xml(_ENCRYPTION).iterfind(".//{*}CipherReference")
        return {posixpath.normpath(unquote(reference.get("URI", ""))) for reference in references}

    def _picture_key(self, chapter: str, address: str) -> str | None:
        name = _resolve_path(chapter, address)
        if name not in self._names:
            return web.embedded_address(address)
        if not is_picture(name):
            self._unread_pictures[name] = None
            return None
        return name

    def _parse_xml(self, name: str) -> ElementTree.Element:
        try:
            return ElementTree.fromstring(self._archive.read(name))
        # LookupError: the XML declaration names an unknown encoding.
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            raise UnreadableDocument(f"{name} in it is broken ({error})") from error


def _resolve_path(file: str, href: str) -> str:
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(file), unquote(href.partition("#")[0])))[1:]


def _item_or_readable_fallback(
    item: ElementTree.Element, item_by_id: Mapping[str | None, ElementTree.Element]
) -> ElementTree.Element:
    for _ in range(_FALLBACKS_MAX):
        if not item.get("href", "").lower().endswith(_UNREAD_SUFFIXES) or item.get("fallback") not in item_by_id:
            break
        item = item_by_id[item.get("fallback")]
    return item


def open_document(path: Path, kind: FileKind) -> EpubBook:
    return EpubBook(path)
