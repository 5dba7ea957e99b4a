"""Text and Markdown, line by line, as they are written."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from job_handlers.encodings import decoded, is_guessed
from job_handlers.kinds import HEAD_BYTES, Kind
from job_handlers.reading.writings import Piece, Unreadable

_LINE_CHARACTERS_MAX = 1 << 20
_LATER = "as Windows wrote it"
"""What only begins like UTF-8 tells no letter of any other kind before it has gone on for long."""


class Plain:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []

    def pieces(self) -> Iterator[Piece]:
        with self._path.open("rb") as file:
            _, encoding = decoded(file.read(HEAD_BYTES))
        if is_guessed(encoding):
            self.notes.append(f"it does not say in which encoding it is written: {encoding}, as it seems")
        with self._path.open(encoding=encoding, errors=_LATER if encoding == "utf-8-sig" else "replace") as lines:
            while line := lines.readline(_LINE_CHARACTERS_MAX):
                yield line.replace("\0", "").rstrip("\n")

    def picture(self, key: str) -> bytes:
        raise Unreadable("a text has no pictures")


def _as_windows_wrote_it(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


codecs.register_error(_LATER, _as_windows_wrote_it)


def open_writing(path: Path, kind: Kind) -> Plain:
    return Plain(path)
