"""Text and Markdown, line by line, as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from job_handlers.kinds import HEAD_BYTES, Kind, decoded
from job_handlers.reading.writings import Piece, Unreadable

_LINE_CHARACTERS_MAX = 1 << 20


class Plain:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pieces(self) -> Iterator[Piece]:
        with self._path.open("rb") as file:
            _, encoding = decoded(file.read(HEAD_BYTES))
        with self._path.open(encoding=encoding, errors="replace") as lines:
            while line := lines.readline(_LINE_CHARACTERS_MAX):
                yield line.replace("\0", "").rstrip("\n")

    def picture(self, key: str) -> bytes:
        raise Unreadable("a text has no pictures")


def open_writing(path: Path, kind: Kind) -> Plain:
    return Plain(path)
