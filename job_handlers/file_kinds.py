"""Recognise file formats by their content, which must be what Content-Type or name claims.

`verify_format` checks a file that arrives, `kind_of` one that is to be read. CSV, text and Markdown have no signature:
a file is one of these only if it is claimed to be, and never if it is markup or JSON, which servers send instead.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from job_handlers.encodings import HEAD_BYTES as HEAD_BYTES
from job_handlers.encodings import WIDE_ENCODINGS, decode
from worker_service.handlers import Permanent

_PDF_BEGINS_WITHIN = 1024
_ZIP_HEADER_BYTES = 30  # before the name of the first file
_PDF_HEADER = re.compile(rb"%PDF-\d\.\d\s*[\r\n]")
_PDF_OBJECT = re.compile(rb"(?:\A|[\r\n])\d+ \d+ obj\b")
_UNPACKED_SHEET_BYTES_MAX = 2 << 30
_DELIMITERS = (",", ";", "\t", "|")
_DELIMITER_LINES = 20  # Lines at the beginning of a text in which a delimiter is searched.
_REGULAR_FRACTION_MIN = 0.8  # Least share of these lines that have the usual number of delimiters.


class FileKind(StrEnum):
    PDF = "pdf"
    IMAGE = "image"
    SHEET = "sheet"
    CSV = "csv"
    TEXT = "text"
    HTML = "html"
    MAIL = "mail"
    EPUB = "epub"
    DOCX = "docx"
    PPTX = "pptx"
    ODT = "odt"
    ODP = "odp"
    ZIP = "zip"

    @property
    def is_flowing(self) -> bool:
        """True if it has no pages of a fixed size, so that `reading.formats` reads it."""
        return self not in (FileKind.PDF, FileKind.IMAGE, FileKind.SHEET, FileKind.CSV)


class Format(Struct, frozen=True):
    name: str
    kind: FileKind
    suffixes: tuple[str, ...]
    """A name that has none of them gets the first."""
    mimes: tuple[str, ...]
    is_by_name: bool = False
    """True if only the name counts, because servers use these MIME types for other files, too."""

    @property
    def suffix(self) -> str:
        return self.suffixes[0]

    def is_named_by(self, name: str) -> bool:
        return name.lower().endswith(self.suffixes)


PDF = Format("a PDF", FileKind.PDF, (".pdf",), ("application/pdf", "application/x-pdf"))
PNG = Format("a PNG image", FileKind.IMAGE, (".png",), ("image/png",))
JPEG = Format("a JPEG image", FileKind.IMAGE, (".jpg", ".jpeg"), ("image/jpeg", "image/jpg"))
GIF = Format("a GIF image", FileKind.IMAGE, (".gif",), ("image/gif",))
TIFF = Format("a TIFF image", FileKind.IMAGE, (".tif", ".tiff"), ("image/tiff",))
XLSX = Format(
    "a spreadsheet",
    FileKind.SHEET,
    (".xlsx", ".xlsm"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",),
)
XLS = Format("an Excel 97 spreadsheet", FileKind.SHEET, (".xls",), ("application/vnd.ms-excel",))
ODS = Format(
    "an OpenDocument spreadsheet", FileKind.SHEET, (".ods",), ("application/vnd.oasis.opendocument.spreadsheet",)
)
CSV = Format(
    "a CSV file",
    FileKind.CSV,
    (".csv", ".tsv"),
    ("text/csv", "text/tab-separated-values", "application/csv", "text/x-csv", "text/comma-separated-values"),
)
DOCX = Format(
    "a Word document",
    FileKind.DOCX,
    (".docx", ".docm", ".dotx"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document",),
)
PPTX = Format(
    "a PowerPoint presentation",
    FileKind.PPTX,
    (".pptx", ".pptm", ".ppsx", ".potx"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation",),
)
ODT = Format("an OpenDocument text", FileKind.ODT, (".odt", ".ott"), ("application/vnd.oasis.opendocument.text",))
ODP = Format(
    "an OpenDocument presentation", FileKind.ODP, (".odp",), ("application/vnd.oasis.opendocument.presentation",)
)
EPUB = Format("an EPUB book", FileKind.EPUB, (".epub",), ("application/epub+zip",))
MAIL = Format("a mail", FileKind.MAIL, (".eml",), ("message/rfc822",))
HTML = Format(
    "a web page", FileKind.HTML, (".html", ".htm", ".xhtml"), ("text/html", "application/xhtml+xml"), is_by_name=True
)
MARKDOWN = Format("Markdown", FileKind.TEXT, (".md", ".markdown"), ("text/markdown",), is_by_name=True)
TEXT = Format("a text", FileKind.TEXT, (".txt", ".text"), ("text/plain",), is_by_name=True)
ZIP = Format("a zip archive", FileKind.ZIP, (".zip",), ("application/zip", "application/x-zip-compressed"))
FORMATS = (
    PDF, PNG, JPEG, TIFF, GIF, XLSX, XLS, ODS, CSV, DOCX, PPTX, ODT, ODP, EPUB, MAIL, HTML, MARKDOWN, TEXT, ZIP,
)  # fmt: skip
READABLE = "PDF, PNG, JPEG, TIFF, GIF, xlsx, xls, ods, csv, docx, pptx, odt, odp, epub, eml, html, md, txt and zip"
SUFFIXES = tuple(suffix for file_format in FORMATS for suffix in file_format.suffixes)

_SIGNATURES = (
    (b"%PDF-", PDF),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
)
_ZIP = b"PK\x03\x04"
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_REFUSED_SIGNATURES = (
    (_ZIP, "a zip archive"),
    (_OLD_OFFICE, "an old Office document (save it as docx, pptx or PDF)"),
    (b"{\\rtf", "an RTF document (save it as docx or PDF)"),
    (b"RIFF", "a WebP image (save it as PNG)"),
    (b"BM", "a bitmap (save it as PNG)"),
    (b"Rar!", "a RAR archive (pack it as zip)"),
    (b"7z\xbc\xaf", "a 7z archive (pack it as zip)"),
    (b"\x1f\x8b", "a gzip file (unpack it, or pack it as zip)"),
    (b"MZ", "a program"),
    (b"\x7fELF", "a program"),
    (b"\x78\x9f\x3e\x22", "a mail packed by Outlook (winmail.dat: have it sent as plain text or HTML)"),
)
# Only Excel files have this stream; Excel 5 and 95 call it Book.
_WORKBOOK_STREAM = re.compile(
    b"|".join(f"{name}\0".encode("utf-16-le") for name in ("Workbook", "WORKBOOK", "Book", "BOOK"))
)
_DIRECTORY_ENTRY_BYTES = 128
_OUTLOOK_STREAM = "__properties_version1.0".encode("utf-16-le")
_ENCRYPTED_STREAM = re.compile("EncryptedPackage".encode("utf-16-le"))
_ZIP_FORMATS = (XLSX, ODS, DOCX, PPTX, ODT, ODP, EPUB, ZIP)
_MIMETYPE = "mimetype"  # OpenDocument files and books begin with a file of this name, which contains their MIME type.
_MIMETYPE_BYTES_MAX = 100
_FORMAT_BY_MIMETYPE_FILE = {packed.mimes[0].encode(): packed for packed in (ODS, ODT, ODP, EPUB)}
_KIND_BY_PART = (
    (re.compile(r"xl/workbook\.(?:xml|bin)"), FileKind.SHEET),
    # Word for the web adds a number to the name.
    (re.compile(r"word/document\d*\.xml"), FileKind.DOCX),
    (re.compile(r"ppt/presentation\.xml"), FileKind.PPTX),
    (re.compile(r"META-INF/container\.xml"), FileKind.EPUB),
)
_MAIL_HEADER = re.compile(r"(?:From [^\n]*\n)?[!-9;-~]+:[ \t]*\S")
_MARKUP = re.compile(r"<[a-zA-Z!?/]")
# Some servers write )]}' before JSON, so that no browser runs it as a script.
_JSON = re.compile(r"""(?:\)\]\}',?\s*)?(?:\{\s*(?:["}]|\Z)|\[\s*(?:[\[{"\]]|\Z))""")
# Content-Types that a text or CSV file never has.
_NEVER_TEXT = re.compile(r"html|xml|json|script|css|^(?!text/|application/|binary/)")


def verify_format(head: bytes, mime: str, name: str) -> Format:
    """Raise `Permanent` if the file cannot be read, or is not what `mime` or `name` claims."""
    mime = mime.partition(";")[0].strip().lower()
    claimed = [candidate for candidate in FORMATS if mime in candidate.mimes and not candidate.is_by_name]
    if not claimed or claimed in ([XLS], [ZIP]):
        # octet-stream says nothing, so use the name, too. Windows uses Excel's type for every table, and many formats
        # are zip archives.
        claimed += _formats_named(name)
    found = _find_format(head, claimed)
    if found in (CSV, TEXT, MARKDOWN, MAIL) and mime not in ("", *found.mimes, *XLS.mimes) and _NEVER_TEXT.search(mime):
        raise _wrong_claim(mime, "a text")
    if head.startswith(_OLD_OFFICE) and _ENCRYPTED_STREAM.search(head):
        raise _locked_error()
    if found is None and not claimed:
        text_without_suffix = "a text without .txt at the end of its name" if is_text(head) else ""
        description = _describe_by_signature(head) or text_without_suffix or _describe(head)
        raise Permanent("KIND_REFUSED", f"it is {description}, which cannot be read", f"add one of {READABLE}")
    are_both_images = found is not None and claimed and found.kind is claimed[0].kind is FileKind.IMAGE
    is_kind_of_zip = found in _ZIP_FORMATS and ZIP in claimed
    if found is not None and (not claimed or found in claimed or are_both_images or is_kind_of_zip):
        return found
    raise _wrong_claim(claimed[0].name, _describe(head) if found is None else found.name)


def _wrong_claim(claimed: str, found: str) -> Permanent:
    remedy = (
        "open it: if it is a page that asks to sign in or reports an error, download the file again; if it is meant "
        f"to be {found}, give it a name that says so"
    )
    return Permanent("NOT_WHAT_IT_SAYS", f"it says that it is {claimed}, but it is {found}", remedy)


def _locked_error() -> Permanent:
    return Permanent("FILE_ENCRYPTED", "the document is locked with a password", "save it without one")


def format_named(name: str) -> Format | None:
    return next(iter(_formats_named(name)), None)


def _formats_named(name: str) -> list[Format]:
    return [candidate for candidate in FORMATS if candidate.is_named_by(name)]


def kind_of(path: Path) -> FileKind:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not head:
        raise Permanent("FILE_EMPTY", "the file holds nothing", "download it again")
    named_formats = _formats_named(path.name)
    if (signed := _format_by_signature(head, named_formats)) is not None:
        return signed.kind
    if head.startswith(_ZIP):
        return _kind_of_zip(path, next((named for named in named_formats if named in _ZIP_FORMATS), XLSX))
    if head.startswith(_OLD_OFFICE) and _has_stream(path, _WORKBOOK_STREAM):
        return FileKind.SHEET
    if head.startswith(_OLD_OFFICE) and _has_stream(path, _ENCRYPTED_STREAM):
        raise _locked_error()
    if (text_format := _text_format(head, named_formats)) is not None:
        return text_format.kind
    # A text whose name says nothing is a CSV file if its lines have columns.
    if is_text(head) and (CSV.is_named_by(path.name) or delimiter_of(decode(head)[0]) is not None):
        return FileKind.CSV
    raise Permanent(
        "KIND_UNSUPPORTED",
        f"this is {_describe(head)}, which is not read here (it begins with {head[:8]!r})",
        f"export it as PDF; {READABLE} can be read",
    )


def markup_in(head: bytes) -> str:
    """Return `XML`, `a web page`, `JSON` or '', for messages."""
    text = _from_first_visible_character(decode(head)[0])
    if _MARKUP.match(text):
        return "XML" if text.startswith("<?xml") and "<html" not in text.lower() else "a web page"
    return "JSON" if _JSON.match(text) else ""


def is_text(head: bytes) -> bool:
    text, encoding = decode(head)
    if b"\0" in head and encoding not in WIDE_ENCODINGS:
        return False
    beginning = text[:4096]
    control_characters = sum(character < " " and character not in "\t\n\v\f\r\x1b" for character in beginning)
    has_few_controls = control_characters <= len(beginning) // 100
    return has_few_controls and bool(_from_first_visible_character(text)) and not markup_in(head)


def delimiter_of(text: str) -> str | None:
    lines = [line for line in text.splitlines()[:_DELIMITER_LINES] if line.strip()]
    best, best_score = None, 0
    for delimiter in _DELIMITERS:
        counts = [line.count(delimiter) for line in lines]
        usual_count = max(set(counts), key=counts.count, default=0)
        regular_lines = counts.count(usual_count) if usual_count else 0
        # Quoted cells may contain delimiters and line breaks, so that fewer lines are regular.
        has_quoted_cells = '"' in text and sum(counts) >= len(lines) > 1
        score = regular_lines * usual_count
        if (regular_lines >= _REGULAR_FRACTION_MIN * len(lines) or has_quoted_cells) and score > best_score:
            best, best_score = delimiter, score
    return best


def _find_format(head: bytes, claimed: list[Format]) -> Format | None:
    """Trust the claim where formats begin alike, as zip archives and old Office files do."""
    if (signed := _format_by_signature(head, claimed)) is not None:
        return signed
    if head.startswith(_ZIP):
        packed = _format_by_mimetype_file(head[_ZIP_HEADER_BYTES:].removeprefix(_MIMETYPE.encode()))
        return packed or next((candidate for candidate in _ZIP_FORMATS if candidate in claimed), ZIP)
    if head.startswith(_OLD_OFFICE):
        return XLS if XLS in claimed else None
    return _text_format(head, claimed)


def _text_format(head: bytes, claimed: Sequence[Format]) -> Format | None:
    markup = markup_in(head)
    for candidate in claimed:
        if candidate in (HTML, MARKDOWN) and markup == "a web page":
            return candidate
        if candidate is MAIL and not _MAIL_HEADER.match(decode(head)[0]):
            continue
        if candidate in (CSV, TEXT, MAIL, HTML, MARKDOWN) and is_text(head):
            return candidate
    return None


def _format_by_signature(head: bytes, claimed: Sequence[Format]) -> Format | None:
    for signature, signed in _SIGNATURES:
        if head.startswith(signature):
            return signed
    if head.startswith(_ZIP):
        return None
    if PDF in claimed and (has_pdf_header(head) or _PDF_OBJECT.search(head)):
        return PDF
    # Viewers skip bytes that a mail or a server put before the header. A text about PDFs is not a PDF.
    if b"%PDF-" not in head[:_PDF_BEGINS_WITHIN] or markup_in(head):
        return None
    return PDF if _text_format(head, claimed) is None else None


def has_pdf_header(head: bytes) -> bool:
    return _PDF_HEADER.search(head[:_PDF_BEGINS_WITHIN]) is not None


def _describe(head: bytes) -> str:
    if description := _describe_by_signature(head) or markup_in(head):
        return description
    if is_text(head):
        return "a text"
    return "a file of an unknown kind" if head.strip() else "white space and nothing else"


def _describe_by_signature(head: bytes) -> str:
    if head.startswith(_OLD_OFFICE) and _OUTLOOK_STREAM in head:
        return "a mail as Outlook keeps it (save it as .eml)"
    return next((description for signature, description in _REFUSED_SIGNATURES if head.startswith(signature)), "")


def _from_first_visible_character(text: str) -> str:
    for index, character in enumerate(text):
        if character.isprintable() and not character.isspace():
            return text[index:]
    return ""


def _kind_of_zip(path: Path, claimed: Format) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            unpacked_bytes = sum(member.file_size for member in archive.infolist())
            mimetype = b""
            if _MIMETYPE in names:
                with archive.open(_MIMETYPE) as file:
                    mimetype = file.read(_MIMETYPE_BYTES_MAX)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise Permanent(
            f"{claimed.kind.upper()}_BROKEN",
            f"the file begins like {claimed.name} and cannot be unpacked ({error})",
            "download it again",
        ) from error
    declared = _format_by_mimetype_file(mimetype)
    kinds_of_parts = (kind for part, kind in _KIND_BY_PART if any(map(part.fullmatch, names)))
    kind = declared.kind if declared else next(kinds_of_parts, FileKind.ZIP)
    if kind is FileKind.SHEET and unpacked_bytes > _UNPACKED_SHEET_BYTES_MAX:
        raise Permanent("SHEET_TOO_LARGE", f"the spreadsheet holds {unpacked_bytes >> 20} MiB unpacked", "split it")
    return kind


def _format_by_mimetype_file(content: bytes) -> Format | None:
    return next((packed for mime, packed in _FORMAT_BY_MIMETYPE_FILE.items() if content.startswith(mime)), None)


def _has_stream(path: Path, name: re.Pattern[bytes]) -> bool:
    # The directory of an old Office file may be anywhere, in entries of 128 bytes that begin with a name.
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if any(match.start() % _DIRECTORY_ENTRY_BYTES == 0 for match in name.finditer(block)):
                return True
    return False
