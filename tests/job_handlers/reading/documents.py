"""Documents made for tests and benchmarks, with their truth. The same seed makes the same document."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymupdf as partly_typed
from PIL import Image, ImageFilter

from job_handlers.reading.preprocess import Gray

pymupdf: Any = partly_typed

A4 = (595.0, 842.0)
WORDS = """annual report risk climate revenue the of and in to shareholder committee board financial statement assets
liabilities cash flow operating income quarter growth management strategy market energy emissions water supply chain
governance audit policy remuneration dividend share capital interest rate currency exposure hedge derivative goodwill
impairment lease provision pension tax deferred equity subsidiary associate joint venture segment customer product
service innovation technology digital employee health safety diversity training community environment sustainability
target baseline scope reduction renewable efficiency waste recycling biodiversity compliance ethics corruption human
rights supplier procurement material assessment stakeholder engagement transparency disclosure framework standard
regulation""".split()


def prose(seed: int, words: int = 400) -> str:
    chance = random.Random(seed)
    paragraphs = []
    for _ in range(5):
        sentences = []
        for _ in range(words // 5 // 10):
            sentence = [chance.choice(WORDS) for _ in range(10)]
            if chance.random() < 0.3:
                sentence[chance.randrange(1, 10)] = str(chance.randint(1, 99999))
            sentences.append(" ".join(sentence).capitalize() + chance.choice([".", ".", f" in 20{seed % 20 + 10}."]))
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def plain(text: str) -> str:
    return " ".join(text.split())


def gray_of(image: Image.Image) -> Gray:
    gray = image.convert("L")
    return Gray(gray.width, gray.height, gray.tobytes())


def digital(path: Path, texts: Sequence[str], *, rotation: int = 0, **saving: object) -> Path:
    """Save a PDF with text of its own."""
    with pymupdf.open() as document:
        for text in texts:
            page = document.new_page(width=A4[0], height=A4[1])
            left = page.insert_textbox(pymupdf.Rect(60, 60, 535, 800), text, fontsize=10.5, fontname="tiro")
            assert left >= 0, "the text is longer than its page"
            page.set_rotation(rotation)
        document.save(path, deflate=True, **saving)
    return path


def picture(
    text: str,
    *,
    dpi: int = 300,
    size: float = 10.5,
    turn: int = 0,
    skew: float = 0.0,
    noise: float = 0.0,
    seed: int = 1,
) -> Image.Image:
    """Return a scanned page. `turn` and `skew` are clockwise; `noise` is the spread of each pixel's gray."""
    with pymupdf.open() as document:
        page = document.new_page(width=A4[0], height=A4[1])
        page.insert_textbox(pymupdf.Rect(60, 60, 535, 800), text, fontsize=size, fontname="tiro")
        pixmap = page.get_pixmap(dpi=dpi, colorspace=pymupdf.csGRAY)
        image = Image.frombytes("L", (pixmap.width, pixmap.height), pixmap.samples)
    if skew:
        image = image.rotate(-skew, Image.Resampling.BICUBIC, fillcolor=255)
    if noise:
        image = image.filter(ImageFilter.GaussianBlur(0.6))
        grain = _grain(image.size, noise, seed)
        image = Image.blend(image, grain, 0.25)
    return image.rotate(-turn, expand=True) if turn else image


def scan(path: Path, images: Sequence[Image.Image], *, dpi: int = 300, quality: int = 85, hidden: str = "") -> Path:
    """Save a PDF of pictures; `hidden` is invisible text below each."""
    with pymupdf.open() as document:
        for image in images:
            page = document.new_page(width=image.width * 72 / dpi, height=image.height * 72 / dpi)
            if hidden:
                page.insert_textbox(pymupdf.Rect(60, 60, 535, 800), hidden, fontsize=10, render_mode=3)
            page.insert_image(page.rect, stream=jpeg(image, quality))
        document.save(path)
    return path


def jpeg(image: Image.Image, quality: int = 85) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def tiff(path: Path, images: Sequence[Image.Image], dpi: int = 300) -> Path:
    first, *others = images
    first.save(path, "TIFF", save_all=True, append_images=others, dpi=(dpi, dpi), compression="tiff_deflate")
    return path


def garbage(path: Path) -> Path:
    """Save a page whose letters are read as others, as in a font without a character map."""
    shifted = "".join(chr(ord(letter) + 3) if letter.isalpha() else letter for letter in prose(7))
    return digital(path, [shifted.replace("{", "a").replace("|", "b").replace("}", "c")])


def drawn_only(path: Path) -> Path:
    """Save a page with ink, but no text."""
    with pymupdf.open() as document:
        page = document.new_page()
        for row in range(20):
            page.draw_line((72, 100 + row * 30), (500, 100 + row * 30 + 7), width=2)
        document.save(path)
    return path


def bomb(path: Path, operators: int = 40_000_000) -> Path:
    """Save a good page, and one whose content takes too long to draw."""
    with pymupdf.open() as document:
        document.new_page().insert_text((72, 72), prose(1, 60)[:80])
        page = document.new_page()
        page.insert_text((72, 72), "x")
        xref = page.get_contents()[0]
        document.update_stream(xref, b"BT /helv 4 Tf " + b"(aaaaaaaa) Tj " * (operators // 8) + b"ET")
        document.save(path, deflate=True)
    return path


def workbook(path: Path, sheets: dict[str, Sequence[Sequence[object]]]) -> Path:
    """Save a minimal xlsx file with texts, numbers and truth values."""

    def cell(value: object) -> str:
        if isinstance(value, bool):
            return f'<c t="b"><v>{int(value)}</v></c>'
        if isinstance(value, int | float):
            return f"<c><v>{value}</v></c>"
        return f'<c t="inlineStr"><is><t>{value}</t></is></c>'

    names = list(sheets)
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        types = "".join(
            f'<Override PartName="/xl/worksheets/sheet{at}.xml" ContentType='
            f'"application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
            for at in range(1, len(names) + 1)
        )
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType='
            f'"application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
            f'ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType='
            f'"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>{types}</Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" Type="{office}/officeDocument" '
            f'Target="xl/workbook.xml"/></Relationships>',
        )
        listed = "".join(f'<sheet name="{name}" sheetId="{at}" r:id="r{at}"/>' for at, name in enumerate(names, 1))
        archive.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{listed}</sheets></workbook>'
        )
        related = "".join(
            f'<Relationship Id="r{at}" Type="{office}/worksheet" Target="worksheets/sheet{at}.xml"/>'
            for at in range(1, len(names) + 1)
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{package}/relationships">{related}</Relationships>'
        )
        for at, name in enumerate(names, 1):
            rows = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in sheets[name])
            archive.writestr(
                f"xl/worksheets/sheet{at}.xml", f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>'
            )
    return path


def excel_97(path: Path, text: str, *, stream: str = "Workbook", is_locked: bool = False) -> Path:
    """Save an Excel 97 file with `text` in its first cell. `stream` is the name under which its rows are stored."""

    def record(code: int, body: bytes) -> bytes:
        return struct.pack("<HH", code, len(body)) + body

    def beginning(kind: int) -> bytes:
        return record(0x0809, struct.pack("<HHHHII", 0x0600, kind, 0, 0, 0, 0))

    end = record(0x000A, b"")
    lock = record(0x002F, struct.pack("<H52x", 1)) if is_locked else b""
    sheet_name = struct.pack("<BB", 6, 0) + b"Sheet1"
    length = len(beginning(5) + lock + record(0x0085, struct.pack("<IBB", 0, 0, 0) + sheet_name) + end)
    sheets = record(0x0085, struct.pack("<IBB", length, 0, 0) + sheet_name)
    label = record(0x0204, struct.pack("<HHHHB", 0, 0, 0, len(text), 0) + text.encode("latin-1"))
    rows = (beginning(5) + lock + sheets + end + beginning(0x10) + label + end).ljust(4096, b"\0")
    free, chain_end, table = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
    # Sector 0 is the allocation table, 1 the directory, 2 to 9 the stream.
    sectors = struct.pack("<128I", table, chain_end, *range(3, 10), chain_end, *[free] * 118)
    entry = struct.Struct("<64sHBBIII16sIQQIQ")
    entries = [
        (name.encode("utf-16-le"), 2 * len(name) + 2, kind, 1, free, free, child, b"", 0, 0, 0, begins, size)
        for name, kind, child, begins, size in (("Root Entry", 5, 1, chain_end, 0), (stream, 2, free, 2, 4096))
    ]
    directory = b"".join(entry.pack(*fields) for fields in entries).ljust(512, b"\0")
    head = (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
        + bytes(16)
        + struct.pack("<HHHHH6xIIIIIIIII", 0x3E, 3, 0xFFFE, 9, 6, 0, 1, 1, 0, 4096, chain_end, 0, chain_end, 0)
    )
    path.write_bytes((head + struct.pack("<I", 0)).ljust(512, b"\xff") + sectors + directory + rows)
    return path


def _grain(size: tuple[int, int], spread: float, seed: int) -> Image.Image:
    # Small and repeated: drawing a random number for each pixel would take seconds.
    chance = random.Random(seed)
    side = 512
    tile = Image.frombytes("L", (side, side), bytes(_level(chance.gauss(200, spread)) for _ in range(side * side)))
    grain = Image.new("L", size)
    for left in range(0, size[0], side):
        for top in range(0, size[1], side):
            grain.paste(tile, (left, top))
    return grain


def _level(value: float) -> int:
    return min(max(round(value), 0), 255)
