"""Turn the files inside a zip archive or a mail into documents of their own.

A document is identified by the container and its path in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
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
    RepublishedFile,
    SameContent,
    counted,
    safe_name,
)

WITHIN = "!/"

_FILES_MAX = 1000
_DEPTH_MAX = 3  # Containers inside containers.
_BYTES_MAX = 2 << 30
_ALL_BYTES_MAX = 8 << 30
_BLOCK_BYTES = 1 << 20
_COUNT_FILES = 1  # Number that asks the page process for the number of files. File 1 has the number after it.
_PATH_CHARACTERS_MAX = 1000
_NAMED_MAX = 5  # Of the skipped files, in the note for the user.


class UnpackedFile(msgspec.Struct, tag=True, frozen=True):
    path: str
    name: str
    staged_name: str
    sha256: str
    size: int


class SkippedFile(msgspec.Struct, tag=True, frozen=True):
    path: str
    why: str


class FileCount(msgspec.Struct, tag=True, frozen=True):
    files_total: int


Answer = UnpackedFile | SkippedFile | FileCount


@dataclass(slots=True)
class UnpackedFiles:
    files: list[File | RepublishedFile] = field(default_factory=list)
    follow_ups: list[NewJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def unpack(context: Context[Any], process: PageProcess[Any], kind: FileKind) -> UnpackedFiles:
    """Add a document for each file that the page process unpacks. Negative page numbers ask for files."""
    unpacked = UnpackedFiles()
    container_key = document_of(context).source_key
    is_too_deep = container_key.count(WITHIN) >= _DEPTH_MAX
    skipped: list[SkippedFile] = []
    digests: set[str] = set()
    used_paths: set[str] = set()
    total_bytes = 0
    count = process.read(-_COUNT_FILES)
    assert isinstance(count, FileCount)
    if count.files_total > _FILES_MAX:
        raise Permanent(f"{kind.upper()}_TOO_LARGE", f"it holds more than {_FILES_MAX} files", "split it")
    if is_too_deep and count.files_total:
        unpacked.notes.append(f"what is in it is left out: it is packed {_DEPTH_MAX} times already")
        return unpacked
    numbers = range(1, count.files_total + 1)
    for number, (_, answer) in zip(numbers, process.read_all(-_COUNT_FILES - at for at in numbers), strict=True):
        if isinstance(answer, TooLarge | Lost):
            skipped.append(SkippedFile(f"file {number}", str(answer)))
        elif isinstance(answer, SkippedFile):
            skipped.append(answer)
        elif isinstance(answer, UnpackedFile) and answer.sha256 not in digests:
            digests.add(answer.sha256)
            total_bytes += answer.size
            if total_bytes > _ALL_BYTES_MAX:
                raise Permanent(f"{kind.upper()}_TOO_LARGE", f"it unpacks to more than {_ALL_BYTES_MAX >> 30} GiB")
            path = _unused_path(answer.path, used_paths)
            used_paths.add(path)
            _add_document(context, unpacked, answer, f"{container_key}{WITHIN}{path}")
    if skipped:
        named = ", ".join(f"{file.path} ({file.why})" for file in skipped[:_NAMED_MAX])
        more = f", and {len(skipped) - _NAMED_MAX} more" if len(skipped) > _NAMED_MAX else ""
        unpacked.notes.append(f"{counted(len(skipped), 'file')} in it left out: {named}{more}")
    return unpacked


def _unused_path(path: str, used_paths: Container[str]) -> str:
    plain = path.replace(WITHIN, "!")
    unused, number = plain, 1
    while unused in used_paths:
        number += 1
        unused = f"{plain} ({number})"
    return unused


def _add_document(context: Context[Any], unpacked: UnpackedFiles, file: UnpackedFile, key: str) -> None:
    path = context.staging / file.staged_name
    same_content = context.ask(SameContent(sha256=file.sha256)).files
    stored = [published for published in same_content if published.size == file.size]
    if stored:
        path.unlink()
        unpacked.files.append(RepublishedFile(stored[0].id, role="inside", name=file.name))
    else:
        unpacked.files.append(File(path, role="inside", name=file.name, sha256=file.sha256))
    request = DocumentRequest(key, file.name, content=file.sha256, settings=document_of(context).settings)
    unpacked.follow_ups.append(
        NewJob("ingest", context.platform, context.account, owner=context.owner, name=file.name, document=request)
    )


# --- in the page process ------------------------------------------------------------------------------


def unpacker(container: FlowDocument, staging: Path) -> Callable[[int], Answer]:
    """Return the function that counts or unpacks files. `unpack` describes its numbers."""
    members = list(_members_of(container))
    digests: set[str] = set()
    unpacked_bytes = 0

    def read(number: int) -> Answer:
        nonlocal unpacked_bytes
        if number == _COUNT_FILES:
            return FileCount(len(members))
        file_number = number - _COUNT_FILES
        member_path, refusal, open_member = members[file_number - 1]
        path = _printable_path(member_path)
        if unpacked_bytes > _ALL_BYTES_MAX:
            refusal = f"what comes before it unpacks to more than {_ALL_BYTES_MAX >> 30} GiB"
        if refusal:
            return SkippedFile(path, refusal)
        try:
            with open_member() as source:
                answer = _unpack_file(source, path, staging, file_number)
        except UnreadableDocument as error:
            return SkippedFile(path, str(error))
        except Permanent as refused:
            # The remedy lists all supported kinds, and would be repeated for each file.
            return SkippedFile(path, refused.detail if refused.code == "KIND_REFUSED" else str(refused))
        if isinstance(answer, UnpackedFile):
            if answer.sha256 in digests:
                # Equal files are one document, and are stored once.
                (staging / answer.staged_name).unlink()
            else:
                digests.add(answer.sha256)
                unpacked_bytes += answer.size
        return answer

    return read


def _printable_path(path: str) -> str:
    return "".join(filter(str.isprintable, path))[-_PATH_CHARACTERS_MAX:] or "file"


def _unpack_file(source: IO[bytes], path: str, staging: Path, number: int) -> Answer:
    head = _read_block(source, HEAD_BYTES)
    if not head:
        return SkippedFile(path, "it is empty")
    name = PurePosixPath(path.replace("\\", "/")).name
    # The extension has to match the content.
    name = safe_name(name, verify_format(head, "", name).suffixes)
    # Files in different folders may have the same name, so add the number.
    target = staging / f"{number} {name}"
    digest, size, block = hashlib.sha256(), 0, head
    with target.open("wb") as file:
        while block:
            size += len(block)
            if size > _BYTES_MAX:
                target.unlink()
                return SkippedFile(path, f"it unpacks to more than {_BYTES_MAX >> 30} GiB")
            digest.update(block)
            file.write(block)
            block = _read_block(source)
    return UnpackedFile(path, name, target.name, digest.hexdigest(), size)


def _read_block(source: IO[bytes], bytes_most: int = _BLOCK_BYTES) -> bytes:
    try:
        return source.read(bytes_most)
    except BROKEN as error:
        raise UnreadableDocument(f"it is broken ({error})") from error


def _members_of(container: FlowDocument) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield the path of each file, why it is not unpacked or "", and a function that opens it."""
    if isinstance(container, Archive):
        for member in container.members():
            yield member.name, member.refusal, partial(container.open_member, member.info)
    elif isinstance(container, mail.MailDocument):
        for name, part in container.attachments():
            yield name, "", partial(_open_part, part)


@contextmanager
def _open_part(mail_part: Any) -> Iterator[IO[bytes]]:
    yield BytesIO(mail.content_of(mail_part))
