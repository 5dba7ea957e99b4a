"""Text and Markdown, line by line, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from job_handlers.encodings import detect_encoding, error_handler, is_guessed
from job_handlers.file_kinds import HEAD_BYTES, FileKind
from job_handlers.reading.formats import Piece, UnreadableDocument

_LINE_CHARACTERS_MAX = 1 << 20


class TextDocument:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []

    def pieces(self) -> Iterator[Piece]:
        with self._path.open("rb") as file:
            encoding = detect_encoding(file.read(HEAD_BYTES))
        if is_guessed(encoding):
            self.notes.append(f"it does not say in which encoding it is written: {encoding}, as it seems")
        with self._path.open(encoding=encoding, errors=error_handler(encoding)) as lines:
            while line := lines.readline(_LINE_CHARACTERS_MAX):
                yield line.replace("\0", "").rstrip("\n")

    def picture(self, key: str) -> bytes:
        raise UnreadableDocument("a text has no pictures")


def open_document(path: Path, kind: FileKind) -> TextDocument:
    return TextDocument(path)
