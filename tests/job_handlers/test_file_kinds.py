"""The format of a file by its content, and whether it is what its name or Content-Type claims."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from job_handlers import file_kinds as kinds
from job_handlers.file_kinds import FileKind, Format, format_named, kind_of, markup_in, verify_format
from tests.job_handlers.reading import documents
from worker_service.handlers import Permanent


def _zipped(name: str, content: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
ODS_HEAD = _zipped("mimetype", kinds.ODS.mimes[0])
ERROR_PAGES = {
    "a page": b"<!DOCTYPE html><html><body>Sorry, not now.</body></html>",
    "a fragment": b"<h1>503, try later</h1>\n",
    "behind a comment": b"<!-- host 7, cell 3 -->\n<html>a,b</html>",
    "behind a mark": b"\xef\xbb\xbf<html>a,b</html>",
    "behind space": b" \r\n\t\x0c<html>a,b</html>",
    "behind invisible characters": "\ufeff\u200b\u2060\xa0<html>a,b</html>".encode(),
    "in UTF-16": "<html>a,b</html>".encode("utf-16"),
    "behind a PHP header": b"<?php echo 1, 2; ?>\n<html></html>",
    "XML": b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>",
    "bare XML": b"<Error><Code>SlowDown, please</Code></Error>",
    "that speaks of PDFs": b"<html><p>A file begins with %PDF-1.7, this one does not.</html>",
    "a JSON object": b'{"error": {"code": 500, "message": "later, please"}}',
    "an empty object": b"{}\n",
    "JSON behind space": b'\n\n  {\n  "error": "a,b"\n}',
    "JSON behind a mark": b'\xef\xbb\xbf{"error": "a,b"}',
    "JSON behind a guard": b')]}\'\n{"error": 1}',
    "a JSON list": b'[{"error": 1, "of": 2}]',
}
"""Answers that servers send with a status of success."""


# --- verify_format ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "mime", "name", "found"),
    [
        (b"%PDF-1.4", "application/pdf", "a", kinds.PDF),
        (b"%PDF-1.4", "application/octet-stream", "a.pdf", kinds.PDF),
        (b"%PDF-1.4", "application/json", "a.pdf", kinds.PDF),
        (b"%PDF-1.4", "", "", kinds.PDF),
        (b" %PDF-1.4", "application/pdf", "a.pdf", kinds.PDF),
        (b"\x89PNG\r\n\x1a\n", "image/png", "a.png", kinds.PNG),
        (b"\xff\xd8\xff\xe0", "image/png", "a.png", kinds.JPEG),
        (b"PK\3\4", kinds.XLSX.mimes[0], "a", kinds.XLSX),
        (b"PK\3\4", "application/octet-stream", "a.xlsx", kinds.XLSX),
        (OLD_OFFICE, "application/vnd.ms-excel", "a", kinds.XLS),
        (OLD_OFFICE, "application/octet-stream", "a.xls", kinds.XLS),
        (ODS_HEAD, kinds.ODS.mimes[0], "a", kinds.ODS),
        (ODS_HEAD, "application/octet-stream", "a.ods", kinds.ODS),
        (ODS_HEAD, "", "", kinds.ODS),
        (b"PK\3\4", "", "a.ods", kinds.ODS),
        (b"PK\3\4", "application/vnd.ms-excel", "a.xlsx", kinds.XLSX),
        (b"PK\3\4", "", "a.docx", kinds.DOCX),
        (b"PK\3\4", "application/zip", "a.pptx", kinds.PPTX),
        (b"PK\3\4", "application/zip", "reports", kinds.ZIP),
        (_zipped("a.pdf", "%PDF-1.4"), "", "reports.zip", kinds.ZIP),
        (_zipped("mimetype", kinds.EPUB.mimes[0]), "", "a", kinds.EPUB),
        (_zipped("mimetype", kinds.EPUB.mimes[0]), "application/zip", "book.zip", kinds.EPUB),
        ("Größe\n".encode("utf-16-le"), "", "a.txt", kinds.TEXT),
        ("Größe\n".encode("utf-16-be"), "text/plain", "a.txt", kinds.TEXT),
        (b"Dear all,\n", "text/plain", "a.txt", kinds.TEXT),
        (b"Subject: x\n\nDear all,\n", "", "a.eml", kinds.MAIL),
        (b"<p>Dear all", "text/html", "a.html", kinds.HTML),
        (b"<h1 align=center>Dear all</h1>", "text/plain", "README.md", kinds.MARKDOWN),
        (b"a;b\n1;2\n", "application/vnd.ms-excel", "a.csv", kinds.CSV),
        (b"a;b\n1;2\n", "text/csv", "a.csv", kinds.CSV),
        (b"a;b\n1;2\n", "text/csv; charset=utf-8", "table", kinds.CSV),
        (b"a;b\n1;2\n", "text/plain; charset=utf-8", "a.csv", kinds.CSV),
        (b"a\tb\n1\t2\n", "application/octet-stream", "a.tsv", kinds.CSV),
        (b"x\n1\n", "text/csv", "a.csv", kinds.CSV),
        (b"[id],[name]\n1,2\n", "text/csv", "a.csv", kinds.CSV),
        (b"<5;>5\n1;2\n", "text/csv", "a.csv", kinds.CSV),
        ("a;b\nü;ß\n".encode("cp1252"), "text/csv", "a.csv", kinds.CSV),
        ("a,b\n1,2\n".encode("utf-16"), "text/csv", "a.csv", kinds.CSV),
    ],
)
def test_a_file_of_the_claimed_format_is_accepted(head: bytes, mime: str, name: str, found: Format) -> None:
    assert verify_format(head, mime, name) == found


@pytest.mark.parametrize(
    ("head", "mime", "name"),
    [
        (b"<html>", "application/pdf", "a.pdf"),
        (b"PK\3\4", "application/pdf", "a.pdf"),
        (OLD_OFFICE, "application/msword", "a.doc"),
        (OLD_OFFICE, "application/pdf", "a.pdf"),
        (ODS_HEAD, "application/pdf", "a.pdf"),
        (b"%PDF-1.4", "application/vnd.ms-excel", "a.xls"),
        (b"%PDF-1.4", "image/png", "a.png"),
        (b"%PDF-1.4", "text/csv", "a.csv"),
        (b"GIF89a", "application/pdf", "a.pdf"),
        (b"\0\1\2", "text/csv", "a.csv"),
        (bytes(range(1, 128)), "text/csv", "a.csv"),
        (b" " * 70_000, "text/csv", "a.csv"),
        (b"root:x:0:0", "", "passwd"),
        (b"Sorry, not now.\n", "text/plain", "report"),
        (b"a,b\n1,2\n", "application/json", "a.csv"),
        (b"a,b\n1,2\n", "text/html", "a.csv"),
        (b"a,b\n1,2\n", "image/svg+xml", "a.csv"),
        (b"a,b\n1,2\n", "application/pdf", "a.csv"),
        (b"<html>", "text/html", "a.pdf"),
        (b"<html>", "text/html", "a"),
        (b"Sorry, not now.\n", "text/html", "a.txt"),
        (b"Sorry, not now.\n", "", "a.eml"),
        (b'{"error": 1}', "", "a.html"),
        (b"PK\3\4", "application/pdf", "a.zip"),
    ],
)
def test_a_file_of_another_or_an_unreadable_format_is_refused(head: bytes, mime: str, name: str) -> None:
    with pytest.raises(Permanent):
        verify_format(head, mime, name)


@pytest.mark.parametrize(
    ("head", "name", "words"),
    [
        (b"{\\rtf1\\ansi Hello}", "a.rtf", "an RTF document (save it as docx or PDF), which cannot be read"),
        (OLD_OFFICE, "a.doc", "an old Office document (save it as docx, pptx or PDF), which"),
        (b"Rar!\x1a\7\1\0", "a.rar", "a RAR archive (pack it as zip), which"),
        (b"RIFF" * 9, "a.webp", "a WebP image"),
        (b"\x78\x9f\x3e\x22" * 9, "winmail.dat", "have it sent as plain text"),
        (OLD_OFFICE + "__properties_version1.0".encode("utf-16-le"), "a.msg", "save it as .eml"),
        (b"7 jobs have begun\n", "server.log", "a text without .txt at the end of its name, which"),
        (b"Dear all,\n", "a.docx", "but it is a text"),
        (b" \n \n", "a.txt", "but it is white space and nothing else"),
        (OLD_OFFICE + "EncryptedPackage".encode("utf-16-le"), "a.docx", "save it without one"),
    ],
)
def test_a_refusal_names_the_format_and_a_remedy(head: bytes, name: str, words: str) -> None:
    with pytest.raises(Permanent) as refused:
        verify_format(head, "", name)

    assert words in str(refused.value)


@pytest.mark.parametrize("page", ERROR_PAGES)
@pytest.mark.parametrize(
    "claim",
    [
        (claimed.mimes[0], f"a{claimed.suffix}")
        for claimed in kinds.FORMATS
        if claimed not in (kinds.HTML, kinds.MARKDOWN)
    ],
    ids=lambda claim: claim[1],
)
def test_an_error_page_is_refused_whatever_it_claims_to_be(page: str, claim: tuple[str, str], tmp_path: Path) -> None:
    mime, name = claim

    assert markup_in(ERROR_PAGES[page])
    for claimed_mime in (mime, "application/octet-stream", "text/plain", ""):
        with pytest.raises(Permanent) as refused:
            verify_format(ERROR_PAGES[page], claimed_mime, name)
        assert refused.value.code == "NOT_WHAT_IT_SAYS"
    with pytest.raises(Permanent):
        kind_of(written(tmp_path / name, ERROR_PAGES[page]))


# --- kind_of ------------------------------------------------------------------------------------------


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_the_kind_follows_from_the_content(tmp_path: Path) -> None:
    documents.workbook(tmp_path / "a", {"One": [[1]]})
    with zipfile.ZipFile(tmp_path / "ods", "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
    image = documents.picture("x", dpi=20)
    image.save(tmp_path / "png", "PNG")

    assert kind_of(documents.digital(tmp_path / "b.csv", ["x"])) is FileKind.PDF
    assert kind_of(written(tmp_path / "c", b"\n\n junk before it \n%PDF-1.4\n")) is FileKind.PDF
    assert kind_of(tmp_path / "a") is FileKind.SHEET
    assert kind_of(tmp_path / "ods") is FileKind.SHEET
    assert kind_of(tmp_path / "png") is FileKind.IMAGE
    assert kind_of(written(tmp_path / "jpg", documents.jpeg(image))) is FileKind.IMAGE
    assert kind_of(documents.tiff(tmp_path / "tif", [image, image])) is FileKind.IMAGE
    image.save(tmp_path / "gif", "GIF")
    assert kind_of(tmp_path / "gif") is FileKind.IMAGE


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("show.ppsx", FileKind.PPTX),
        ("Template.POTX", FileKind.PPTX),
        ("letter.dotx", FileKind.DOCX),
        ("macros.docm", FileKind.DOCX),
        ("macros.xlsm", FileKind.SHEET),
        ("letter.ott", FileKind.ODT),
    ],
)
def test_templates_and_files_with_macros_have_the_kind_of_their_format(name: str, kind: FileKind) -> None:
    found = format_named(name)

    assert found is not None
    assert found.kind is kind
    assert verify_format(b"PK\x03\x04", "application/octet-stream", name) is found


def test_lines_of_one_column_are_a_table_only_if_the_name_says_so(tmp_path: Path) -> None:
    assert kind_of(written(tmp_path / "x.csv", b"x\n1\n")) is FileKind.CSV
    with pytest.raises(Permanent):
        kind_of(written(tmp_path / "x", b"x\n1\n"))


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n1,2\n",
        b"a;b;c\r\n1;2;3\r\n",
        b"\xef\xbb\xbfa\tb\n1\t2\n",
        "a;b\nü;ß\n".encode("cp1252"),
        "a,b\n1,2\n".encode("utf-16"),
        b'name,note\n"x, y","two\nlines"\nz,"a ""b"""\n',
    ],
)
def test_a_text_with_columns_is_a_table(tmp_path: Path, content: bytes) -> None:
    assert kind_of(written(tmp_path / "x", content)) is FileKind.CSV


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (b"", "FILE_EMPTY", "download it again"),
        (b"just a line of words\nand another\n", "KIND_UNSUPPORTED", "export it as PDF"),
        (b'{"a": 1, "b": 2}\n', "KIND_UNSUPPORTED", "export it as PDF"),
        (b"<html><body>a, b, c</body></html>", "KIND_UNSUPPORTED", "export it as PDF"),
        (bytes(range(256)) * 4, "KIND_UNSUPPORTED", "export it as PDF"),
        (b"PK\x03\x04 and then nothing", "SHEET_BROKEN", "download it again"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 an old letter", "KIND_UNSUPPORTED", "export it as PDF"),
    ],
)
def test_an_unreadable_file_is_refused_with_a_remedy(tmp_path: Path, content: bytes, code: str, sentence: str) -> None:
    with pytest.raises(Permanent, match=sentence) as refusal:
        kind_of(written(tmp_path / "report.pdf", content))

    assert refusal.value.code == code


def test_a_spreadsheet_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    documents.workbook(tmp_path / "huge.xlsx", {"One": [[1]]})
    raw = (tmp_path / "huge.xlsx").read_bytes()
    with zipfile.ZipFile(tmp_path / "huge.xlsx") as archive:
        size = archive.getinfo("xl/worksheets/sheet1.xml").file_size
    at = raw.rindex(b"xl/worksheets/sheet1.xml") - 46
    assert raw[at : at + 4] == b"PK\x01\x02"
    assert int.from_bytes(raw[at + 24 : at + 28], "little") == size
    (tmp_path / "huge.xlsx").write_bytes(raw[: at + 24] + (3 << 30).to_bytes(4, "little") + raw[at + 28 :])

    with pytest.raises(Permanent) as refusal:
        kind_of(tmp_path / "huge.xlsx")
    assert refusal.value.code == "SHEET_TOO_LARGE"
