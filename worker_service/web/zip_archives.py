"""Zip archives of documents, made while the client reads: never whole in memory or on disk."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from worker_service.jobs.library import Document
from worker_service.services.exports import NotExported, find_source
from worker_service.services.session import Session
from worker_service.web.streaming import read_pieces

_FOLDERS = {"original": "originals", "txt": "texts", "pdf": "searchable PDFs"}
"""Names of the folders by kind of file, if an archive has several kinds."""
_LEFT_OUT_NAMED_MAX = 1000
_COMPRESSIBLE = (".txt", ".csv", ".html", ".htm", ".md", ".json", ".jsonl", ".xml", ".hocr", ".eml")


class _Entry(NamedTuple):
    name: str
    content: Iterable[bytes]


class _WrittenBytes:
    """The file that `ZipFile` writes to. It cannot seek, so sizes follow the entries."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def flush(self) -> None: ...

    def remove_all(self) -> bytes:
        removed, self._bytes = bytes(self._bytes), bytearray()
        return removed


def zip_documents(session: Session, documents: Iterable[Document], kinds: Sequence[str]) -> Iterator[bytes]:
    """Yield the bytes of an archive with a file of each kind for each document.

    `left-out.txt` in it names documents without such a file, and why.
    """
    written = _WrittenBytes()
    with zipfile.ZipFile(written, "w") as archive:  # type: ignore[call-overload]  # write and flush are enough
        for entry in _entries(session, documents, kinds):
            info = zipfile.ZipInfo(entry.name, time.localtime()[:6])
            is_compressible = entry.name.lower().endswith(_COMPRESSIBLE)
            info.compress_type = zipfile.ZIP_DEFLATED if is_compressible else zipfile.ZIP_STORED
            # Its size is unknown, and may exceed 4 GiB.
            with archive.open(info, "w", force_zip64=True) as target:
                for piece in entry.content:
                    target.write(piece)
                    yield written.remove_all()
    yield written.remove_all()


def _entries(session: Session, documents: Iterable[Document], kinds: Sequence[str]) -> Iterator[_Entry]:
    left_out: list[str] = []
    for document in documents:
        for kind in kinds:
            try:
                source = find_source(session, document, kind)
                if isinstance(source.content, Path):
                    content = read_pieces(source.content.open("rb"))
                else:
                    content = source.content()
            except NotExported as error:
                left_out.append(f"{error}\n")
            except FileNotFoundError as error:
                left_out.append(f"document {document.id} ({document.name}): {error.filename} is gone\n")
            else:
                folder = "" if len(kinds) == 1 else f"{_FOLDERS.get(kind, kind)}/"
                yield _Entry(f"{folder}{source.name}", content)
    if left_out:
        unnamed = len(left_out) - _LEFT_OUT_NAMED_MAX
        more = [f"and {unnamed:,} more\n"] if unnamed > 0 else []
        yield _Entry("left-out.txt", [line.encode() for line in [*left_out[:_LEFT_OUT_NAMED_MAX], *more]])
