"""What a file is, by its first bytes. Nothing is published that did not pass here."""

from __future__ import annotations

from dataclasses import dataclass

from job_handlers.download.troubles import Trouble

HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    suffix: str
    mimes: tuple[str, ...]
    suffixes: tuple[str, ...] = ()

    def is_claimed_by(self, mime: str, name: str) -> bool:
        return mime in self.mimes or name.lower().endswith((self.suffix, *self.suffixes))


PDF = Kind("a PDF", ".pdf", ("application/pdf", "application/x-pdf"))
PNG = Kind("a PNG image", ".png", ("image/png",))
JPEG = Kind("a JPEG image", ".jpg", ("image/jpeg", "image/jpg"), (".jpeg",))
TIFF = Kind("a TIFF image", ".tif", ("image/tiff",), (".tiff",))
WEBP = Kind("a WebP image", ".webp", ("image/webp",))
GIF = Kind("a GIF image", ".gif", ("image/gif",))
BMP = Kind("a BMP image", ".bmp", ("image/bmp", "image/x-ms-bmp"))
XLSX = Kind("a spreadsheet", ".xlsx", ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",))
XLS = Kind("an Excel 97 spreadsheet", ".xls", ("application/vnd.ms-excel",))
ODS = Kind("an OpenDocument spreadsheet", ".ods", ("application/vnd.oasis.opendocument.spreadsheet",))
CSV = Kind("a CSV file", ".csv", ("text/csv", "text/tab-separated-values"), (".tsv",))
KINDS = (PDF, PNG, JPEG, TIFF, WEBP, GIF, BMP, XLSX, XLS, ODS, CSV)
_IMAGES = (PNG, JPEG, TIFF, WEBP, GIF, BMP)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_ZIP = b"PK\x03\x04"
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ODS_BEGINS = slice(30, 84), b"mimetype" + ODS.mimes[0].encode()
"""The first file in the archive, and what it holds."""

_SIGNATURES = (
    (b"%PDF-", PDF),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"BM", BMP),
)


def kind_of(head: bytes, mime: str, name: str) -> Kind:
    """Of the file that begins with `head`. What it claims to be has to be what it is."""
    found = _found(head, mime, name)
    mime = mime.partition(";")[0].strip().lower()
    claimed = [kind for kind in KINDS if mime in kind.mimes]
    if not claimed or claimed == [XLS]:
        # octet-stream says nothing, so that the name speaks; and Windows calls every table what it calls the first one.
        claimed += [kind for kind in KINDS if kind.is_claimed_by("", name)]
    if found is None and not claimed:
        raise Trouble("KIND_REFUSED", found=_words(found, head))
    is_fine = not claimed or found in claimed or (found in _IMAGES and claimed[0] in _IMAGES)
    if found is not None and is_fine:
        return found
    raise Trouble("NOT_WHAT_IT_SAYS", claimed=claimed[0].name, found=_words(found, head))


def is_page(head: bytes) -> bool:
    """A web page, such as servers send with status 200 instead of a file."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:512].lower()
    return start.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<script")) or (
        start.startswith((b"<?xml", b"<!--")) and b"<html" in start
    )


def _found(head: bytes, mime: str, name: str) -> Kind | None:
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return WEBP
    if head.startswith(_ZIP):
        where, begins = _ODS_BEGINS
        if head[where] == begins:
            return ODS
        return next((kind for kind in (XLSX, ODS) if kind.is_claimed_by(mime, name)), None)
    if head.startswith(_OLD_OFFICE):
        return XLS if XLS.is_claimed_by(mime, name) else None
    if CSV.is_claimed_by(mime, name) and not is_page(head) and (b"\0" not in head or head[:2] in _UTF_16):
        return CSV
    return None


def _words(found: Kind | None, head: bytes) -> str:
    if found is not None:
        return found.name
    if is_page(head):
        return "a web page"
    if head.startswith(_ZIP):
        return "a zip archive"
    if head.startswith(_OLD_OFFICE):
        return "an old Office document"
    return "a file of an unknown kind"
