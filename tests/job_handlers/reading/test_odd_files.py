"""Files that are broken, locked, empty, huge or hostile: each gives its text or fails with a code, in time."""

from __future__ import annotations

import base64
import json
import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
import pytest
from PIL import Image

from job_handlers.file_kinds import PDF, verify_format
from tests.job_handlers.reading.documents import digital, excel_97, jpeg, picture, prose, scan, tiff, workbook
from tests.job_handlers.reading.kit import HANDLERS, Library, open_library
from tests.runner.conftest import threads_of
from worker_service.testing import How

pymupdf: Any = partly_typed

FUZZ_SECONDS = 4.0
FUZZ_FILES = 15


def test_an_encrypted_pdf_asks_for_its_password_and_opens_with_it(library: Library, tmp_path: Path) -> None:
    text = prose(1)
    original = digital(
        tmp_path / "locked.pdf", [text], encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="secret", owner_pw="o"
    )
    (library.credentials / "password-reports").write_text("secret\n")
    (library.credentials / "password-old").write_text("wrong\n")

    without = library.read(original)
    wrong = library.read(original, password_file="password-old")
    right = library.read(original, password_file="password-reports")

    assert (without.how, without.ended.code) == (How.PERMANENT, "PDF_ENCRYPTED")
    assert without.ended.remedy == "type it on the document's page, or with pagemill reindex 1 --password"
    assert wrong.ended.code == "PASSWORD_WRONG"
    assert wrong.ended.message == "this password does not open the PDF"
    assert right.how is How.DONE
    assert library.text.split() == text.split()


def test_a_pdf_with_only_locked_attachments_needs_no_password(library: Library, tmp_path: Path) -> None:
    plain = digital(tmp_path / "plain.pdf", ["Words that anybody may read"]).read_bytes()
    lengths = {"O": 48, "U": 48, "OE": 32, "UE": 32, "Perms": 16}
    keys = "".join(f"/{key}<{'ab' * length}>" for key, length in lengths.items())
    lock = "/CF<</StdCF<</AuthEvent/EFOpen/CFM/AESV3/Length 32>>>>/EFF/StdCF/StmF/Identity/StrF/Identity"
    says = f"/Encrypt<</Filter/Standard/V 5/R 6/Length 256/P -4{keys}{lock}>>"
    original = tmp_path / "attached.pdf"
    original.write_bytes(plain.replace(b"/Root", f"{says}/Root".encode()))

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert library.text.split() == ["Words", "that", "anybody", "may", "read"]


PAGE_BEFORE = b"<html><head><title>Please wait</title></head></html>"


@pytest.mark.parametrize("before", [PAGE_BEFORE, b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", None])
def test_a_pdf_behind_other_bytes_or_without_a_header_is_read(
    library: Library, tmp_path: Path, before: bytes | None
) -> None:
    whole = digital(tmp_path / "whole.pdf", [prose(3)]).read_bytes()
    original = tmp_path / "report.pdf"
    original.write_bytes(whole.partition(b"\n")[2] if before is None else before + whole)

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert library.text.split() == prose(3).split()
    assert verify_format(original.read_bytes()[:4096], "application/pdf", "report.pdf") is PDF


@pytest.mark.parametrize("stream", ["Workbook", "WORKBOOK", "Book"])
def test_an_excel_file_is_known_by_its_stream_however_that_is_spelt(
    library: Library, tmp_path: Path, stream: str
) -> None:
    run = library.read(excel_97(tmp_path / "a.xls", "Inventory", stream=stream))

    assert run.how is How.DONE, run.ended
    assert library.text == "Inventory\nSheet1"


def test_locked_office_files_have_one_code(library: Library, tmp_path: Path) -> None:
    text = tmp_path / "a.odt"
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("META-INF/manifest.xml", "<m:encryption-data/>")

    for original in (text, excel_97(tmp_path / "a.xls", "Inventory", is_locked=True)):
        run = library.read(original)
        assert (run.how, run.ended.code) == (How.PERMANENT, "FILE_ENCRYPTED")
        assert "save it without one" in run.ended.remedy


@pytest.mark.parametrize("name", ["webhook", "../password", "password/x"])
def test_the_password_must_be_a_credential_for_passwords(library: Library, tmp_path: Path, name: str) -> None:
    run = library.read(digital(tmp_path / "a.pdf", ["x"]), password_file=name)

    assert run.ended.code == "PAYLOAD_INVALID"


def test_a_broken_pdf_is_repaired_and_noted(library: Library, tmp_path: Path) -> None:
    whole = digital(tmp_path / "whole.pdf", [prose(at) for at in range(5)]).read_bytes()
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(whole[: len(whole) * 2 // 3])

    run = library.read(broken)

    assert run.how is How.DONE, run.ended
    assert library.text.split()[:300] == prose(0).split()[:300]
    assert run.ended.document is not None
    assert "has been repaired" in (run.ended.document.note or "")


NO_PAGES = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]/Count 0>>endobj\n"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "FILE_EMPTY"),
        (b"%PDF-1.4\nhello", "PDF_BROKEN"),
        (NO_PAGES + b"trailer<</Root 1 0 R>>\n%%EOF", "PDF_BROKEN"),
        (b"\x89PNG\r\n\x1a\n and no more", "IMAGE_BROKEN"),
        (b"just words\n", "KIND_UNSUPPORTED"),
    ],
)
def test_an_unreadable_file_fails_with_a_code_and_a_sentence(
    library: Library, tmp_path: Path, content: bytes, code: str
) -> None:
    original = tmp_path / "report.pdf"
    original.write_bytes(content)

    run = library.read(original)

    assert (run.how, run.ended.code) == (How.PERMANENT, code)
    assert len(f"{run.ended.message} {run.ended.remedy}".split()) > 4


def test_a_pdf_without_a_page_is_empty(library: Library, tmp_path: Path) -> None:
    original = tmp_path / "none.pdf"
    body = NO_PAGES
    offsets = [body.index(b"1 0 obj"), body.index(b"2 0 obj")]
    table = b"xref\n0 3\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in offsets)
    original.write_bytes(body + table + b"trailer<</Root 1 0 R/Size 3>>\nstartxref\n%d\n%%%%EOF\n" % len(body))

    run = library.read(original)

    assert (run.how, run.ended.code) == (How.PERMANENT, "PDF_EMPTY")


def test_a_missing_language_is_named_with_its_package(library: Library, tmp_path: Path) -> None:
    original = scan(tmp_path / "a.pdf", [picture("x", dpi=150)], dpi=150)

    waits = library.read(original, languages=["chi_tra_vert"])
    assert (waits.how, waits.ended.code) == (How.SNOOZED, "CAPABILITY_MISSING")
    assert "no trained data for chi_tra_vert, only for " in waits.ended.message
    assert waits.ended.remedy == "apt-get install tesseract-ocr-chi-tra-vert"
    assert 0 < (waits.ended.after_seconds or 0) <= 60

    never = library.read(original, languages=["german"])
    assert (never.how, never.ended.code) == (How.PERMANENT, "LANGUAGE_UNKNOWN")
    assert never.ended.remedy == "did you mean deu?"


def test_a_huge_page_is_left_out_of_its_document(library: Library, tmp_path: Path) -> None:
    original = tmp_path / "odd.pdf"
    words = "A page that has enough text of its own to be taken as it is, after the ones that have not."
    with pymupdf.open() as document:
        document.new_page(width=14400, height=14400).draw_line((0, 0), (14000, 14000), width=20)
        document.new_page()
        document.new_page().insert_text((72, 72), words)
        _put_huge_image(document)
        document.save(original)

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert library.methods == ["too_large", "too_large", "layer"]
    assert library.by_number[3].text is not None
    assert library.by_number[3].text.split() == words.split()
    assert run.ended.document is not None
    assert "left out as broken or too large: pages 1-2" in (run.ended.document.note or "")


def test_a_picture_that_is_too_long_for_the_engine_is_read_in_parts(library: Library, tmp_path: Path) -> None:
    text = picture("Words at one end of a very long picture", dpi=150, size=14).crop((0, 80, 900, 400))
    long = Image.new("L", (900, 33_000), 255)
    long.paste(text, (0, 100))
    long.paste(text, (0, 32_500))
    long.save(tmp_path / "long.png", dpi=(150, 150))

    run = library.read(tmp_path / "long.png")

    assert run.how is How.DONE, run.ended
    assert library.text.split() == 2 * "Words at one end of a very long picture".split()
    lines = json.loads(library.by_number[1].layout or "")["lines"]
    assert [round(line[0][1] / 72 * 150, -3) for line in lines if line] == [0.0, 33_000.0]


def test_a_page_that_crashes_its_engine_is_left_out_of_its_document(tmp_path: Path) -> None:
    crashing = [*HANDLERS[:1], "tests.job_handlers.reading.crashing:ocr_pages", *HANDLERS[2:]]
    pages = [picture(f"Page {number} of a scanned report", dpi=100, size=14) for number in range(1, 6)]
    original = scan(tmp_path / "scan.pdf", pages, dpi=100)

    with open_library(tmp_path, handlers=crashing) as library:
        run = library.read(original)

        assert run.how is How.DONE, run.ended
        assert library.methods == ["ocr", "ocr", "unreadable", "unreadable", "ocr"]
        assert (library.by_number[2].text or "").split() == "Page 2 of a scanned report".split()
        assert run.ended.document is not None
        assert run.ended.document.note == "left out as broken or too large: pages 3-4"


def first_half(packed: bytes) -> bytes:
    return packed[: len(packed) // 2]


def pdf_with_a_cut_second_picture(path: Path) -> Path:
    scan(path, [picture(prose(number, 60), dpi=100) for number in (1, 2)], dpi=100)
    with pymupdf.open(path) as document:
        xref = document[1].get_images()[0][0]
        packed = first_half(document.xref_stream_raw(xref))
        document.update_stream(xref, packed, compress=False, new=True)
        document.xref_set_key(xref, "Filter", "/DCTDecode")
        document.save(path.with_name("damaged.pdf"))
    return path.with_name("damaged.pdf")


def test_a_page_with_a_damaged_picture_is_partial(library: Library, tmp_path: Path) -> None:
    run = library.read(pdf_with_a_cut_second_picture(tmp_path / "a.pdf"))

    assert run.how is How.DONE, run.ended
    assert library.methods == ["ocr", "partial"]
    assert (library.by_number[2].text or "").split()[:15] == prose(2, 60).split()[:15]
    assert run.ended.document is not None
    assert run.ended.document.note == "damaged, read in part: page 2"


def test_a_damaged_image_is_partial_even_if_nothing_is_left(library: Library, tmp_path: Path) -> None:
    packed = jpeg(picture(prose(1, 60), dpi=100))
    (tmp_path / "half.jpg").write_bytes(first_half(packed))
    (tmp_path / "head.jpg").write_bytes(packed[:700])

    for name in ("half.jpg", "head.jpg"):
        run = library.read(tmp_path / name)
        assert run.how is How.DONE, run.ended
        assert library.methods == ["partial"]
        assert run.ended.document is not None
        assert run.ended.document.note == "damaged, read in part: page 1"


def test_small_faults_of_a_file_do_not_make_a_page_partial(library: Library, tmp_path: Path) -> None:
    (tmp_path / "no-end.jpg").write_bytes(jpeg(picture("Some words of a page", dpi=100))[:-2])
    scan(tmp_path / "scan.pdf", [picture("Some words of a page", dpi=100)], dpi=100)
    with pymupdf.open(tmp_path / "scan.pdf") as document:
        contents = document[0].get_contents()[0]
        document.update_stream(contents, b"q /Missing gs 1 unknown Q\n" + document.xref_stream(contents))
        document.save(tmp_path / "sloppy.pdf")

    for name in ("no-end.jpg", "sloppy.pdf"):
        library.read(tmp_path / name)
        assert library.methods == ["ocr"]
        assert library.text.split() == "Some words of a page".split()


def test_a_damaged_picture_in_a_text_gets_a_note(library: Library, tmp_path: Path) -> None:
    packed = base64.b64encode(first_half(jpeg(picture("A picture", dpi=100)))).decode()
    (tmp_path / "a.html").write_text(f'<p>above</p><img src="data:image/jpeg;base64,{packed}"><p>below</p>')

    run = library.read(tmp_path / "a.html")

    assert run.how is How.DONE, run.ended
    assert library.methods == ["partial"]
    assert library.text.split() == ["above", "below"]


def seeds(tmp_path: Path) -> list[bytes]:
    image = picture("Some words to read", dpi=60)
    made = [
        digital(tmp_path / "a.pdf", [prose(1, 60), "", prose(2, 60)]),
        scan(tmp_path / "b.pdf", [image], dpi=60),
        tiff(tmp_path / "c.tif", [image, image], dpi=60),
        workbook(tmp_path / "d.xlsx", {"One": [[row, f"text {row}"] for row in range(150)]}),
    ]
    return [*(path.read_bytes() for path in made), b"a;b\n1;2\n3;4\n" * 20]


def truncated(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(1, len(content))]


def flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 10, 100))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def swapped(content: bytes, chance: random.Random) -> bytes:
    one, other, length = (chance.randrange(len(content)) for _ in range(3))
    length = min(length, 400)
    first, second = sorted((one, other))
    middle = max(first, second - length)
    return content[:first] + content[second : second + length] + content[middle:]


def test_a_changed_file_ends_with_its_text_or_a_code(library: Library, tmp_path: Path) -> None:
    chance = random.Random(20261118)
    whole = seeds(tmp_path)
    ways: tuple[Callable[[bytes, random.Random], bytes], ...] = (truncated, flipped, swapped)
    began = time.monotonic()
    ends: dict[str, int] = {}

    for at in range(FUZZ_FILES):
        if time.monotonic() - began > FUZZ_SECONDS:
            break
        original = tmp_path / f"{at}.bin"
        original.write_bytes(ways[at % 3](whole[at % len(whole)], chance))

        run = library.run("ingest", {}, original, timeout_seconds=60)
        for job in run.follow_ups if run.how is How.DONE else ():
            if job.job_type != "ocr_pages":
                run = library.run_job(job, original)

        ends[run.ended.code or "done"] = ends.get(run.ended.code or "done", 0) + 1
        assert run.how in (How.DONE, How.PERMANENT), (at, run.ended)
        assert run.how is How.DONE or (run.ended.code.isupper() and run.ended.message), (at, run.ended)
        library.forget()

    assert sum(ends.values()) >= 10, ends
    assert len(ends) >= 3, ends


def test_thousands_of_pages_are_assembled_in_little_memory(library: Library, tmp_path: Path) -> None:
    original = tmp_path / "long.pdf"
    with pymupdf.open() as document:
        for number in range(400):
            document.new_page(width=200, height=200).insert_text((20, 20), f"Page number {number + 1}")
        document.save(original)

    run = library.read(original)

    assert run.how is How.DONE, run.ended
    assert library.by_number[334].text == "Page number 334\n"
    assert max(run.ended.usage.memory_peak_bytes or 0 for _, run in library.runs) < 150 << 20


def test_the_fork_server_has_one_thread_with_all_handlers_loaded(library: Library) -> None:
    assert threads_of(library.pool) == 1


def _put_huge_image(document: Any) -> None:
    """A billion pixels, in a megabyte."""
    page = document[1]
    image, content = document.get_new_xref(), document.get_new_xref()
    document.update_object(
        image, "<</Type/XObject/Subtype/Image/Width 40000/Height 40000/BitsPerComponent 1/ColorSpace/DeviceGray>>"
    )
    document.update_stream(image, bytes(1_000_000), compress=True)
    document.update_object(content, "<<>>")
    document.update_stream(content, b"q 595 0 0 842 0 0 cm /I Do Q")
    document.xref_set_key(page.xref, "Resources", f"<</XObject<</I {image} 0 R>>>>")
    document.xref_set_key(page.xref, "Contents", f"{content} 0 R")
