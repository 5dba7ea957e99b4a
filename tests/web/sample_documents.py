"""A library as an office has it, for the pictures in the manual: `python -m tests.web.sample_documents DIRECTORY`.

All names and numbers are invented. `reports` and `letters` are batches; `minutes` is long enough to be seen being read.
"""

from __future__ import annotations

import io
import random
import sys
import zipfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pymupdf as partly_typed
import xlsxwriter
from PIL import Image, ImageFilter

pymupdf: Any = partly_typed

GREEN, BLUE, BROWN, RUST = (0.05, 0.35, 0.29), (0.16, 0.29, 0.42), (0.36, 0.22, 0.15), (0.69, 0.33, 0.11)
_MUSTARD, _RED = (0.9, 0.72, 0.25), (0.75, 0.3, 0.2)
_A4 = pymupdf.Rect(0, 0, 595, 842)
_SENTENCES = (
    "The provision for climate risk was raised by 4.2 million euros in the third quarter.",
    "Water use fell by 11 per cent, mostly at the mill in Lista, where cooling water is now reused.",
    "The supervisory board discussed the audit of suppliers and approved the plan for the coming year.",
    "Emissions from transport rose because two routes were closed for repairs until August.",
    "The group reports scope 1 and scope 2 emissions by site, and scope 3 emissions by category.",
    "Physical climate risk is highest for the three sites by the fjord; a flood wall is under construction.",
    "Sales in the north grew, while the price of pulp stayed below that of the year before.",
    "The auditors found no material weakness, and recommend that contracts name the source of all timber.",
    "Employees spent 14,300 hours in training, a third of it on safety at work.",
    "The dividend is proposed at 1.15 euros a share and will be paid in May.",
)


def main(directory: Path) -> None:
    reports, letters, minutes = (directory / name for name in ("reports", "letters", "minutes"))
    for folder in (reports, letters, minutes):
        folder.mkdir(parents=True)
    _report(reports / "Nordwind annual report 2025.pdf", "Nordwind", "Annual report 2025", GREEN, pages=24)
    _report(reports / "Nordwind annual report 2024.pdf", "Nordwind", "Annual report 2024", BLUE, pages=18)
    _report(reports / "Supplier audit 2019.pdf", "Keeler & Partner", "Supplier audit 2019", RUST, pages=7)
    scanned = _report(None, "Halden", "Annual report 2011", BROWN, pages=4)
    _scan(reports / "Halden annual report 2011 (scan).pdf", scanned)
    _workbook(reports / "Climate risk register.xlsx")
    _word(reports / "Sustainability statement, draft 4.docx", "Sustainability statement", paragraphs=9)
    complete = (reports / "Nordwind annual report 2024.pdf").read_bytes()
    (reports / "Nordwind half-year 2022.pdf").write_bytes(complete[:900])
    locked = _letter("Payroll summary, third quarter", "Human resources")
    locked.save(
        letters / "Payroll summary Q3.pdf", encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="open", owner_pw="x"
    )
    _invoice(letters / "Invoice 2026-0417 Brandt Elektro.pdf")
    (letters / "Invoice 2026-0388.pdf").write_text("<!doctype html><title>Sign in</title><form>Sign in</form>")
    _word(letters / "Board minutes 2026-09-11.docx", "Board meeting, 11 September 2026", paragraphs=14)
    _scan(letters / "Audit letter 2019-03-14 (scan).pdf", _letter("Audit of suppliers", "Keeler & Partner"))
    pages = _report(None, "Nordwind", "Supervisory board minutes", BROWN, pages=40)
    _scan(minutes / "Supervisory board minutes 1998-2003.pdf", pages, dpi=130)


# ── Pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(seed: int, sentences: int) -> str:
    """Return paragraphs that are the same in each run."""
    chosen = random.Random(seed)
    words = [chosen.choice(_SENTENCES) for _ in range(sentences)]
    return "\n\n".join(" ".join(words[at : at + 4]) for at in range(0, sentences, 4))


def _report(path: Path | None, company: str, title: str, colour: Sequence[float], *, pages: int) -> Any:
    book = pymupdf.open()
    cover = book.new_page(width=595, height=842)
    cover.draw_rect((0, 0, 595, 470), color=colour, fill=colour)
    cover.draw_circle((450, 110), 46, color=_MUSTARD, fill=_MUSTARD)
    lighter = [0.55 * one + 0.25 for one in colour]
    cover.draw_polyline([(0, 470), (0, 380), (150, 230), (300, 360), (420, 270), (595, 420), (595, 470)],
                        color=lighter, fill=lighter, closePath=True)  # fmt: skip
    cover.insert_text((60, 570), company, fontsize=44, fontname="tibo")
    cover.insert_text((60, 615), title, fontsize=22, fontname="tiro")
    for number in range(2, pages + 1):
        page = book.new_page(width=595, height=842)
        heading = ("Climate risk", "Water", "Suppliers", "Employees", "Outlook")[number % 5]
        page.insert_text((60, 90), heading, fontsize=22, fontname="tibo")
        if number % 4 == 3:
            _figures(page, 120, seed=number)
        body = (60, 330 if number % 4 == 3 else 120, 535, 780)
        page.insert_textbox(body, _text(len(company) + number, 16), fontsize=11.5, fontname="tiro", lineheight=1.45)
        page.insert_text((60, 815), f"{company} · {title} · {number}", fontsize=8, fontname="helv")
    if path is not None:
        book.save(path, deflate=True)
    return book


def _figures(page: Any, top: float, *, seed: int) -> None:
    chosen = random.Random(seed)
    rows = [["Emissions (t CO2e)", "2023", "2024", "2025"]]
    for site in ("Lista", "Halden", "Hoyanger", "Kolding", "All sites"):
        rows.append([site, *(f"{chosen.randint(900, 9900):,}" for _ in range(3))])
    for index, row in enumerate(rows):
        y = top + 28 * index
        page.draw_line((60, y + 10), (535, y + 10), color=(0.7, 0.7, 0.65), width=0.7)
        for column, (cell, x) in enumerate(zip(row, (64, 290, 380, 470), strict=True)):
            page.insert_text((x, y), cell, fontsize=11, fontname="hebo" if not index or not column else "helv")


def _letter(subject: str, sender: str) -> Any:
    book = pymupdf.open()
    for number in (1, 2, 3):
        page = book.new_page(width=595, height=842)
        if number == 1:
            page.insert_text((70, 90), sender, fontsize=20, fontname="tibo")
            page.insert_text((70, 190), subject, fontsize=14, fontname="tibo")
            page.draw_rect((400, 110, 520, 150), color=_RED, width=2)
            page.insert_textbox(
                pymupdf.Rect(400, 120, 520, 150), "RECEIVED", fontsize=15, color=(0.75, 0.3, 0.2), align=1
            )
        top = 220 if number == 1 else 90
        page.insert_textbox((70, top, 525, 770), _text(40 + number, 14), fontsize=12, fontname="tiro", lineheight=1.5)
    return book


def _invoice(path: Path) -> None:
    book = pymupdf.open()
    page = book.new_page(width=595, height=842)
    page.draw_circle((85, 90), 22, color=RUST, fill=RUST)
    page.insert_text((120, 97), "Brandt Elektro", fontsize=18, fontname="hebo")
    page.insert_text((440, 97), "Invoice", fontsize=18, fontname="hebo", color=RUST)
    page.insert_text((65, 170), "Invoice 2026-0417\nDate: 17 April 2026\nCustomer: Nordwind, Lista", fontsize=11)
    page.draw_rect((60, 245, 535, 270), color=RUST, fill=RUST)
    items = (
        ("Switchgear, type 4", "2", "1,940.00"),
        ("Cable, 50 m", "6", "612.60"),
        ("Fitting, hours", "18", "320.00"),
    )
    for index, row in enumerate((("Item", "Number", "Amount"), *items, ("Total", "", "4,812.60"))):
        colour = (1, 1, 1) if index == 0 else (0, 0, 0)
        for cell, x in zip(row, (70, 330, 450), strict=True):
            page.insert_text((x, 262 + 30 * index), cell, fontsize=11, color=colour)
    page.insert_text((65, 470), "Payable within 30 days. Thank you for your order.", fontsize=11)
    book.save(path)


def _scan(path: Path, book: Any, *, dpi: int = 200) -> None:
    """Save the pages as pictures: yellowed, a little crooked and blurred."""
    scanned = pymupdf.open()
    for page, angle in zip(book, cycle((0.4, -0.3, 0.2)), strict=False):
        drawn = page.get_pixmap(dpi=dpi)
        image = Image.frombytes("RGB", (drawn.width, drawn.height), drawn.samples)
        image = image.rotate(angle, fillcolor="white", resample=Image.Resampling.BICUBIC)
        image = image.filter(ImageFilter.GaussianBlur(0.6))
        image = Image.blend(image, Image.new("RGB", image.size, (236, 224, 196)), 0.28)
        content = io.BytesIO()
        image.save(content, "JPEG", quality=70)
        scanned.new_page(width=595, height=842).insert_image(_A4, stream=content.getvalue())
    scanned.save(path)


# ── Other kinds ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _workbook(path: Path) -> None:
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet("Risks")
        sheet.write_row(0, 0, ["Risk", "Site", "Likelihood", "Loss in EUR", "Owner"])
        for row in range(1, 40):
            name = ("Flood", "Drought", "Carbon price", "Storm", "Supply")[row % 5]
            sheet.write_row(row, 0, [name, ("Lista", "Halden", "Kolding")[row % 3], row % 4 / 10, 12_500 * row, "CFO"])


def _word(path: Path, title: str, *, paragraphs: int) -> None:
    said = [title, *_text(len(title), 4 * paragraphs).split("\n\n")]
    body = "".join(f"<w:p><w:r><w:t>{escape(one)}</w:t></w:r></w:p>" for one in said)
    kinds = "http://schemas.openxmlformats.org/package/2006"
    word = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    with zipfile.ZipFile(path, "w") as book:
        book.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{kinds}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{word}"/></Types>',
        )
        book.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{kinds}/relationships"><Relationship Id="r1" Type="{office}" '
            'Target="word/document.xml"/></Relationships>',
        )
        main_space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        book.writestr("word/document.xml", f'<w:document xmlns:w="{main_space}"><w:body>{body}</w:body></w:document>')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
