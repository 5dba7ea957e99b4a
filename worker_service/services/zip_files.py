"""Zip archives, made while they are sent, never whole in memory or on disk."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterable, Iterator

_COMPRESSIBLE = (".txt", ".csv", ".html", ".htm", ".md", ".json", ".jsonl", ".xml", ".hocr", ".eml")


class _Pieces:
    """A file for `ZipFile` that keeps bytes until they are taken. It cannot seek, so sizes follow the entries."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


def zip_pieces(entries: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[bytes]:
    written = _Pieces()
    with zipfile.ZipFile(written, "w") as archive:  # type: ignore[call-overload]  # write and flush are enough
        for name, content in entries:
            entry = zipfile.ZipInfo(name, time.localtime()[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED if name.lower().endswith(_COMPRESSIBLE) else zipfile.ZIP_STORED
            with archive.open(entry, "w", force_zip64=True) as target:
                for piece in content:
                    target.write(piece)
                    yield written.take()
    yield written.take()
