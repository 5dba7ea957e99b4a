"""What a file is, by what is in it and not by its name. Reads a little of it, and changes nothing."""

from __future__ import annotations

import hashlib
import zipfile
from enum import StrEnum
from pathlib import Path
from typing import Any

from worker_service.handlers import Context, IsCurrent, Permanent, SameContent

_HEAD_BYTES = 1 << 16
_PDF_BEGINS_WITHIN = 1024
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_WORKBOOK = "Workbook".encode("utf-16-le")
_ODS = b"application/vnd.oasis.opendocument.spreadsheet"
_UNPACKED_BYTES_MAX = 2 << 30
_DELIMITERS = (",", ";", "\t", "|")
_LINES = 20


class Kind(StrEnum):
    PDF = "pdf"
    IMAGE = "image"
    SHEET = "sheet"
    CSV = "csv"


def kind_of(path: Path) -> Kind:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise Permanent("FILE_EMPTY", "the file holds nothing: download it again")
    if b"%PDF-" in head[:_PDF_BEGINS_WITHIN]:
        return Kind.PDF
    if head.startswith(_IMAGES):
        return Kind.IMAGE
    if head.startswith(b"PK\x03\x04"):
        return _kind_of_zip(path)
    if head.startswith(_OLD_OFFICE) and _holds(path, _WORKBOOK):
        return Kind.SHEET
    if is_table(head):
        return Kind.CSV
    raise Permanent(
        "KIND_UNSUPPORTED",
        f"this is no kind of file that is read here (it begins with {head[:8]!r}): export it as PDF, PNG, JPEG, TIFF, "
        f"xlsx, xls, ods or csv",
    )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_content(context: Context[Any], original: Path, content: str) -> None:
    """Refuse a payload that names another file's: it would bring its pages here, or put others in their place."""
    published = context.ask(SameContent(sha256=content)).files
    # Where the store knows its digest, nothing is read.
    is_known = any(str(original).endswith(f"/{one.path}") for one in published)
    if not is_known and sha256_of(original) != content:
        raise Permanent(
            "PAYLOAD_INVALID",
            "`content` is not the SHA-256 of this document's file: have it read with `pagemill reindex`",
        )


def check_current(context: Context[Any]) -> None:
    """Before an expensive piece of work: does anybody still want it?"""
    if not context.ask(IsCurrent()).is_current:
        raise Permanent("STALE_GENERATION", "the document has a newer generation, which will be read instead")


def decoded(head: bytes) -> tuple[str, str]:
    """The text, and its encoding: by its mark, else UTF-8, else what old Windows programs write."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head[: len(head) // 2 * 2].decode("utf-16", "replace"), "utf-16"
    try:
        # The last character may be cut.
        return head[: len(head) - 4 if len(head) == _HEAD_BYTES else None].decode("utf-8-sig"), "utf-8-sig"
    except UnicodeDecodeError:
        return head.decode("cp1252", "replace"), "cp1252"


def delimiter_of(text: str) -> str | None:
    """The one that stands in most lines equally often."""
    lines = [line for line in text.splitlines()[:_LINES] if line.strip()]
    best, most = None, 0
    for delimiter in _DELIMITERS:
        counts = [line.count(delimiter) for line in lines]
        usual = max(set(counts), key=counts.count, default=0)
        agreeing = counts.count(usual) if usual else 0
        # Cells in quotes may hold more of them, or go over several lines.
        has_quotes = '"' in text and sum(counts) >= len(lines) > 1
        if (agreeing >= 0.8 * len(lines) or has_quotes) and agreeing * usual > most:
            best, most = delimiter, agreeing * usual
    return best


def is_table(head: bytes) -> bool:
    text, encoding = decoded(head)
    if encoding != "utf-16" and b"\0" in head:
        return False
    strange = sum(not one.isprintable() and one not in "\r\n\t\f" for one in text[:4096])
    if strange > len(text[:4096]) // 100 or text.lstrip()[:1] in ("<", "{", "["):
        return False
    return delimiter_of(text) is not None


def _kind_of_zip(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            unpacked = sum(one.file_size for one in archive.infolist())
            is_ods = "mimetype" in names and archive.read("mimetype")[: len(_ODS)] == _ODS
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise Permanent(
            "SHEET_BROKEN", f"the file begins like a spreadsheet and cannot be unpacked ({error}): download it again"
        ) from error
    if not is_ods and not names & {"xl/workbook.xml", "xl/workbook.bin"}:
        raise Permanent(
            "KIND_UNSUPPORTED", "this is an archive or an Office file that is no spreadsheet: export it as PDF"
        )
    if unpacked > _UNPACKED_BYTES_MAX:
        raise Permanent("SHEET_TOO_LARGE", f"the spreadsheet holds {unpacked >> 20} MiB unpacked: split it")
    return Kind.SHEET


def _holds(path: Path, words: bytes) -> bool:
    """Its directory may stand anywhere in an old file."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if words in rest + block:
                return True
            rest = block[-len(words) :]
    return False
