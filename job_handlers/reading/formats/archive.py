"""Zip archives, as documents and as containers of office files and books.

Declared sizes are not trusted: unpacking stops at a limit.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from job_handlers.file_kinds import FileKind
from job_handlers.reading.formats import Piece, UnreadableDocument

MEMBER_BYTES_MAX = 256 << 20
_MEMBERS_MAX = 20_000
BROKEN = (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError, KeyError)
_LOCKED_FLAG, _UTF_8_FLAG = 0x1, 0x800
_DESKTOP_FOLDER = "__MACOSX/"
_DESKTOP_FILES = (".DS_Store", "Thumbs.db", "desktop.ini")


class Member(NamedTuple):
    name: str
    info: zipfile.ZipInfo
    """Two files may have the same name, so a name does not identify a file."""
    refusal: str = ""
    """Why the file is not unpacked; empty if it is."""


class Archive:
    def __init__(self, file: Path | IO[bytes]) -> None:
        self.notes: list[str] = []
        try:
            self._archive = zipfile.ZipFile(file)
        except BROKEN as error:
            raise UnreadableDocument(f"it cannot be unpacked ({error})") from error
        self.names = self._archive.namelist()
        if len(self.names) > _MEMBERS_MAX:
            raise UnreadableDocument(f"it holds more than {_MEMBERS_MAX} files", "split it")

    def members(self) -> list[Member]:
        return [
            Member(_file_name(info), info, _refusal(info))
            for info in self._archive.infolist()
            if not info.is_dir() and not _is_desktop_file(info.filename)
        ]

    def read(self, name: str) -> bytes:
        with self.open_member(name) as file:
            try:
                body = file.read(MEMBER_BYTES_MAX + 1)
            except BROKEN as error:
                raise UnreadableDocument(f"{name} in it is broken ({error})") from error
        if len(body) > MEMBER_BYTES_MAX:
            raise UnreadableDocument(f"{name} in it is larger than {MEMBER_BYTES_MAX >> 20} MiB")
        return body

    @contextmanager
    def open_member(self, name: str | zipfile.ZipInfo) -> Iterator[IO[bytes]]:
        try:
            file = self._archive.open(name)
        except BROKEN as error:
            name = name if isinstance(name, str) else name.filename
            raise UnreadableDocument(f"{name} in it cannot be unpacked ({error})") from error
        with file:
            yield file

    def pieces(self) -> Iterator[Piece]:
        # The text of an archive is the list of its files.
        for member in self.members():
            yield member.name

    def picture(self, key: str) -> bytes:
        return self.read(key)


def _is_desktop_file(name: str) -> bool:
    return name.startswith(_DESKTOP_FOLDER) or PurePosixPath(name).name in _DESKTOP_FILES


def _file_name(info: zipfile.ZipInfo) -> str:
    # Python decodes names without the flag as cp437, but many programs write UTF-8 without setting it.
    if not info.flag_bits & _UTF_8_FLAG:
        with suppress(UnicodeError):
            return info.filename.encode("cp437").decode()
    return info.filename


def _refusal(info: zipfile.ZipInfo) -> str:
    # The upper half of the attributes has the file mode of Unix.
    if stat.S_ISLNK(info.external_attr >> 16):
        return "it is a link"
    return "it needs a password" if info.flag_bits & _LOCKED_FLAG else ""


def open_document(path: Path, kind: FileKind) -> Archive:
    return Archive(path)
