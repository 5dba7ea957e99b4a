"""What a file is, whatever it is called."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from job_handlers.reading.contents import Kind, kind_of
from tests.job_handlers.reading import documents
from worker_service.handlers import Permanent


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    documents.workbook(tmp_path / "a", {"One": [[1]]})
    with zipfile.ZipFile(tmp_path / "ods", "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
    image = documents.picture("x", dpi=20)
    image.save(tmp_path / "png", "PNG")

    assert kind_of(documents.digital(tmp_path / "b.csv", ["x"])) is Kind.PDF
    assert kind_of(written(tmp_path / "c", b"\n\n junk before it \n%PDF-1.4\n")) is Kind.PDF
    assert kind_of(tmp_path / "a") is Kind.SHEET
    assert kind_of(tmp_path / "ods") is Kind.SHEET
    assert kind_of(tmp_path / "png") is Kind.IMAGE
    assert kind_of(written(tmp_path / "jpg", documents.jpeg(image))) is Kind.IMAGE
    assert kind_of(documents.tiff(tmp_path / "tif", [image, image])) is Kind.IMAGE


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
def test_tables_in_text_are_known_by_their_columns(tmp_path: Path, content: bytes) -> None:
    assert kind_of(written(tmp_path / "x", content)) is Kind.CSV


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
def test_what_cannot_be_read_is_refused_with_a_sentence(
    tmp_path: Path, content: bytes, code: str, sentence: str
) -> None:
    with pytest.raises(Permanent, match=sentence) as refusal:
        kind_of(written(tmp_path / "report.pdf", content))

    assert refusal.value.code == code


def test_other_archives_and_sheets_that_unpack_to_gigabytes_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "letter.docx", "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    documents.workbook(tmp_path / "huge.xlsx", {"One": [[1]]})
    raw = (tmp_path / "huge.xlsx").read_bytes()
    with zipfile.ZipFile(tmp_path / "huge.xlsx") as archive:
        size = archive.getinfo("xl/worksheets/sheet1.xml").file_size
    at = raw.rindex(b"xl/worksheets/sheet1.xml") - 46
    assert raw[at : at + 4] == b"PK\x01\x02"
    assert int.from_bytes(raw[at + 24 : at + 28], "little") == size
    (tmp_path / "huge.xlsx").write_bytes(raw[: at + 24] + (3 << 30).to_bytes(4, "little") + raw[at + 28 :])

    for name, code in (("letter.docx", "KIND_UNSUPPORTED"), ("huge.xlsx", "SHEET_TOO_LARGE")):
        with pytest.raises(Permanent) as refusal:
            kind_of(tmp_path / name)
        assert refusal.value.code == code
