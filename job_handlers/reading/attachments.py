"""Turn the files inside a zip archive or a mail into documents of their own.

A document is identified by the container and its path in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec

from job_handlers.file_kinds import HEAD_BYTES, FileKind, verify_format
from job_handlers.reading.document import document_of
from job_handlers.reading.formats import FlowDocument, UnreadableDocument, mail
from job_handlers.reading.formats.archive import BROKEN, Archive
from job_handlers.reading.page_process import Lost, PageProcess, TooLarge
from worker_service.handlers import (
    Context,
    DocumentRequest,
    File,
    NewJob,
    Permanent,
    SameContent,
    SameFile,
    counted,
    safe_name,
)

WITHIN = "!/"

_FILES_MAX = 1000
_DEPTH_MAX = 3
_BYTES_MAX = 2 << 30
_ALL_BYTES_MAX = 8 << 30
_STEP_BYTES = 1 << 20
_COUNT_FILES = 1
"""Pseudo page number that returns the number of files."""
_PLACE_CHARACTERS_MAX = 1000
_NAMED_MAX = 5


class UnpackedFile(msgspec.Struct, tag=True, frozen=True):
    place: str
    name: str
    file: str
    sha256: str
    size: int


class SkippedFile(msgspec.Struct, tag=True, frozen=True):
    place: str
    why: str


class FileCount(msgspec.Struct, tag=True, frozen=True):
    files_total: int


Answer = UnpackedFile | SkippedFile | FileCount


@dataclass(slots=True)
class UnpackedFiles:
    files: list[File | SameFile] = field(default_factory=list)
    follow_ups: list[NewJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def unpack(context: Context[Any], process: PageProcess[Any], kind: FileKind) -> UnpackedFiles:
    found = UnpackedFiles()
    key = document_of(context).source_key
    is_deep = key.count(WITHIN) >= _DEPTH_MAX
    left_out: list[SkippedFile] = []
    seen: set[str] = set()
    places: set[str] = set()
    size = 0
    number = process.read(-_COUNT_FILES)
    assert isinstance(number, FileCount)
    if number.files_total > _FILES_MAX:
        raise Permanent(f"{kind.upper()}_TOO_LARGE", f"it holds more than {_FILES_MAX} files", "split it")
    if is_deep and number.files_total:
        found.notes.append(f"what is in it is left out: it is packed {_DEPTH_MAX} times already")
        return found
    numbers = range(1, number.files_total + 1)
    for at, (_, one) in zip(numbers, process.read_all(-_COUNT_FILES - at for at in numbers), strict=True):
        if isinstance(one, TooLarge | Lost):
            left_out.append(SkippedFile(f"file {at}", str(one)))
        elif isinstance(one, SkippedFile):
            left_out.append(one)
        elif isinstance(one, UnpackedFile) and one.sha256 not in seen:
            seen.add(one.sha256)
            size += one.size
            if size > _ALL_BYTES_MAX:
                raise Permanent(f"{kind.upper()}_TOO_LARGE", f"it unpacks to more than {_ALL_BYTES_MAX >> 30} GiB")
            place = _unused_path(one.place, places)
            places.add(place)
            _add_document(context, found, one, f"{key}{WITHIN}{place}")
    if left_out:
        named = ", ".join(f"{one.place} ({one.why})" for one in left_out[:_NAMED_MAX])
        more = f", and {len(left_out) - _NAMED_MAX} more" if len(left_out) > _NAMED_MAX else ""
        found.notes.append(f"{counted(len(left_out), 'file')} in it left out: {named}{more}")
    return found


def _unused_path(place: str, places: Container[str]) -> str:
    plain = place.replace(WITHIN, "!")
    tries = (plain if number == 1 else f"{plain} ({number})" for number in count(1))
    return next(one for one in tries if one not in places)


def _add_document(context: Context[Any], found: UnpackedFiles, one: UnpackedFile, key: str) -> None:
    path = context.staging / one.file
    known = [file for file in context.ask(SameContent(sha256=one.sha256)).files if file.size == one.size]
    if known:
        path.unlink()
        found.files.append(SameFile(known[0].id, role="inside", name=one.name))
    else:
        found.files.append(File(path, role="inside", name=one.name, sha256=one.sha256))
    request = DocumentRequest(key, one.name, content=one.sha256, settings=document_of(context).settings)
    found.follow_ups.append(
        NewJob("ingest", context.platform, context.account, owner=context.owner, name=one.name, document=request)
    )


# --- in the page process ------------------------------------------------------------------------------


def unpacker(writing: FlowDocument, staging: Path) -> Callable[[int], Answer]:
    members: Sequence[tuple[str, str, Callable[[], Any]]] = [
        (_printable_path(place), refusal, opened) for place, refusal, opened in _members_of(writing)
    ]

    seen: set[str] = set()
    size = 0

    def read(number: int) -> Answer:
        nonlocal size
        if number == _COUNT_FILES:
            return FileCount(len(members))
        at = number - _COUNT_FILES
        place, refusal, opened = members[at - 1]
        if size > _ALL_BYTES_MAX:
            refusal = f"what comes before it unpacks to more than {_ALL_BYTES_MAX >> 30} GiB"
        if refusal:
            return SkippedFile(place, refusal)
        try:
            with opened() as source:
                found = _unpack_file(source, place, staging, at)
        except UnreadableDocument as error:
            return SkippedFile(place, str(error))
        except Permanent as refused:
            # The remedy lists all supported kinds, and would be repeated for each file.
            return SkippedFile(place, refused.detail if refused.code == "KIND_REFUSED" else str(refused))
        if isinstance(found, UnpackedFile):
            if found.sha256 in seen:
                # Equal files are one document, and are stored once.
                (staging / found.file).unlink()
            else:
                seen.add(found.sha256)
                size += found.size
        return found

    return read


def _printable_path(place: str) -> str:
    return "".join(one for one in place if one.isprintable())[-_PLACE_CHARACTERS_MAX:] or "file"


def _unpack_file(source: IO[bytes], place: str, staging: Path, number: int) -> Answer:
    head = _read_block(source, HEAD_BYTES)
    if not head:
        return SkippedFile(place, "it is empty")
    name = PurePosixPath(place.replace("\\", "/")).name
    name = safe_name(name, verify_format(head, "", name).suffixes)
    # Folders may contain files of the same name. The extension has to match the content.
    target = staging / f"{number} {name}"
    digest, size, block = hashlib.sha256(), 0, head
    with target.open("wb") as file:
        while block:
            size += len(block)
            if size > _BYTES_MAX:
                target.unlink()
                return SkippedFile(place, f"it unpacks to more than {_BYTES_MAX >> 30} GiB")
            digest.update(block)
            file.write(block)
            block = _read_block(source)
    return UnpackedFile(place, name, target.name, digest.hexdigest(), size)


def _read_block(source: IO[bytes], most: int = _STEP_BYTES) -> bytes:
    try:
        return source.read(most)
    except BROKEN as error:
        raise UnreadableDocument(f"it is broken ({error})") from error


def _members_of(writing: FlowDocument) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    if isinstance(writing, Archive):
        for member in writing.members():
            yield member.name, member.refusal, partial(writing.open, member.info)
    elif isinstance(writing, mail.MailDocument):
        for name, part in writing.attachments():
            yield name, "", partial(_open_part, part)


@contextmanager
def _open_part(part: Any) -> Iterator[IO[bytes]]:
    yield BytesIO(mail.content_of(part))
