"""Documents with known structure: generated reports, tagged PDFs, and the tables of ICDAR 2013.

A generated report's headings, lists, running heads, feet and footnotes are known; its looks differ by seed. A tagged
PDF has them as its author's structure tree, which is removed from the copy that is read. A tagged PDF whose tree has
no headings is left out.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pymupdf as partly_typed

from benchmarks.corpus import WORDS
from benchmarks.tables_accuracy import Rows

pymupdf: Any = partly_typed

_WIDTH, _HEIGHT = 595, 842
_HEADS = ("H1", "H2", "H3", "H4", "H5", "H6", "H", "Title")
_PLAIN = ("P", "LI", "LBody", "Caption", "Note", "TD", "TH")


@dataclass(slots=True)
class Truth:
    path: Path
    headings: list[tuple[int, str]] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    """Texts of headings, paragraphs and items, in reading order."""
    items: list[str] = field(default_factory=list)
    tables: list[Rows] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    """Running heads, feet and page numbers, one for each page where it is."""
    pages: int = 1


# ── Generated reports ─────────────────────────────────────────────────────────────────────────────────────────────────


def reports(directory: Path, seed: str, count: int) -> list[Truth]:
    directory.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count()
    # MuPDF leaves out the end of a few of them.
    drawn = (_report(directory / f"{at}.pdf", random.Random(f"{seed} {at}")) for at in numbers)
    return [*itertools.islice(filter(_is_whole, drawn), count)]


def _is_whole(truth: Truth) -> bool:
    with pymupdf.open(truth.path) as document:
        text = "".join("".join(page.get_text().split()) for page in document)
    return "".join(truth.blocks[-1].split()) in text


def _report(path: Path, chance: random.Random) -> Truth:
    truth = Truth(path)
    body = chance.choice((9.0, 10.0, 11.0, 12.0))
    is_numbered, is_sized = chance.random() < 0.5, chance.random() < 0.7
    sizes = [body * 1.9, body * 1.5, body * 1.25, body * 1.1] if is_sized else [body * 1.3, body, body, body]
    weights = ["bold", "bold", "bold", "bold" if is_sized else "normal"]
    looks = ["", "" if is_sized else "text-transform:uppercase;", "", "" if is_sized else "font-style:italic;"]
    family = chance.choice(("serif", "sans-serif"))
    css = f"* {{font-family:{family};font-size:{body}pt}} p {{margin:0 0 {body * 0.6}pt 0}} li {{margin-bottom:2pt}}"
    for level in range(4):
        css += (f" h{level + 1} {{font-size:{sizes[level]}pt;font-weight:{weights[level]};{looks[level]}"
                f"margin:{body}pt 0 {body * 0.5}pt 0}}")  # fmt: skip
    is_capital = [not is_sized and level == 1 for level in range(4)]
    parts = [_heading(truth, chance, 1, "", is_capital=False)]
    for chapter in range(1, chance.randint(3, 5)):
        parts.append(_heading(truth, chance, 2, f"{chapter} " if is_numbered else "", is_capital=is_capital[1]))
        parts += _prose(truth, chance)
        for section in range(1, chance.randint(2, 4)):
            number = f"{chapter}.{section} " if is_numbered else ""
            parts.append(_heading(truth, chance, 3, number, is_capital=False))
            parts += _prose(truth, chance)
            if chance.random() < 0.3 and is_sized:
                parts.append(
                    _heading(truth, chance, 4, f"{number.strip()}.1 " if is_numbered else "", is_capital=False)
                )
                parts += _prose(truth, chance)
    _draw(truth, chance, "".join(parts), css)
    return truth


def _heading(truth: Truth, chance: random.Random, level: int, number: str, *, is_capital: bool) -> str:
    text = number + " ".join(chance.choice(WORDS) for _ in range(chance.randint(2, 6))).capitalize()
    text = text.upper() if is_capital else text
    truth.headings.append((level, text))
    truth.blocks.append(text)
    return f"<h{level}>{text}</h{level}>"


def _prose(truth: Truth, chance: random.Random) -> Iterator[str]:
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        if kind < 0.2:
            tag = chance.choice(("ul", "ol"))
            some = [_sentences(chance, 1, 14).rstrip(".") for _ in range(chance.randint(2, 5))]
            truth.items += some
            truth.blocks += some
            yield f"<{tag}>{''.join(f'<li>{one}</li>' for one in some)}</{tag}>"
        else:
            text = _sentences(chance, chance.randint(2, 6), 18)
            truth.blocks.append(text)
            begin, _, rest = text.partition(" ")
            # Some paragraphs begin with a word in bold, which makes them no heading.
            yield f"<p><b>{begin}</b> {rest}</p>" if chance.random() < 0.15 else f"<p>{text}</p>"


def _sentences(chance: random.Random, count: int, most: int) -> str:
    return " ".join(
        " ".join(chance.choice(WORDS) for _ in range(chance.randint(5, most))).capitalize() + "." for _ in range(count)
    )


def _draw(truth: Truth, chance: random.Random, html: str, css: str) -> None:
    columns = chance.choice((1, 1, 2))
    width = (_WIDTH - 120 - 20 * (columns - 1)) / columns
    places = [(60 + at * (width + 20), 80, 60 + at * (width + 20) + width, 730) for at in range(columns)]
    story = pymupdf.Story(html=html, user_css=css)
    drawn = truth.path.with_suffix(".drawn")
    writer = pymupdf.DocumentWriter(str(drawn))
    more = 1
    while more:
        device = writer.begin_page(pymupdf.Rect(0, 0, _WIDTH, _HEIGHT))
        for place in places:
            if more:
                more, _ = story.place(pymupdf.Rect(place))
                story.draw(device)
        writer.end_page()
    writer.close()
    with pymupdf.open(drawn, filetype="pdf") as document:
        _add_running_lines(truth, chance, document)
        truth.pages = document.page_count
        document.save(truth.path)
    drawn.unlink()


def _add_running_lines(truth: Truth, chance: random.Random, document: Any) -> None:
    head = " ".join(chance.choice(WORDS) for _ in range(4)).title() if chance.random() < 0.8 else ""
    foot = f"{chance.choice(WORDS).title()} {chance.randint(2015, 2025)}" if chance.random() < 0.5 else ""
    number = chance.choice(("{}", "Page {} of {}", "- {} -", ""))
    for at, page in enumerate(document, 1):
        written = number.format(at, document.page_count) if number else ""
        # A title page has no head.
        for text, x, y in ((head if at > 1 else "", 60, 45), (foot, 60, 800), (written, 290, 815)):
            if text:
                page.insert_text((x, y), text, fontsize=8, fontname="helv")
                truth.running.append(text)
        if chance.random() < 0.4:
            note = _sentences(chance, 1, 12)
            page.insert_text((60, 765), f"{chance.randint(1, 9)} {note}", fontsize=7, fontname="tiro")


# ── Tagged PDFs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def tagged(corpus: Path, directory: Path) -> list[Truth]:
    """Return the tagged PDFs below `corpus` whose trees have headings, as copies without their trees."""
    directory.mkdir(parents=True, exist_ok=True)
    found: list[Truth] = []
    for path in sorted((corpus / "tagged").glob("*.pdf")):
        with pymupdf.open(path) as document:
            truth = _from_tree(document, directory / path.name)
            if len(truth.headings) < 2:
                continue
            catalog = document.pdf_catalog()
            for key in ("StructTreeRoot", "MarkInfo"):
                document.xref_set_key(catalog, key, "null")
            document.save(truth.path)
        found.append(truth)
    return found


def _from_tree(document: Any, path: Path) -> Truth:
    truth = Truth(path, pages=document.page_count)
    flags = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_PRESERVE_IMAGES & ~pymupdf.TEXT_PRESERVE_LIGATURES
    for page in document:
        read = page.get_textpage(flags=flags | pymupdf.mupdf.FZ_STEXT_COLLECT_STRUCTURE)
        for block in json.loads(_json_of(read))["blocks"]:
            _walk(truth, block)
    return truth


def _json_of(read: Any) -> bytes:
    buffer = pymupdf.mupdf.FzBuffer(1 << 14)
    out = pymupdf.mupdf.FzOutput(buffer)
    pymupdf.mupdf.fz_print_stext_page_as_json(out, read.this, 1.0)
    out.fz_close_output()
    written: bytes = buffer.fz_buffer_extract()
    return written


def _walk(truth: Truth, block: Any) -> None:
    if block["type"] != "structure":
        return
    kind = block["std"]
    if kind == "Table":
        rows = [[_text(cell) for cell in _within(row, ("TD", "TH"))] for row in _within(block, ("TR",))]
        if rows and max(map(len, rows)) > 1:
            truth.tables.append(rows)
            return
    text = _text(block)
    if text and kind in _HEADS:
        truth.headings.append((int(kind[1:]) if kind[1:].isdigit() else 1, text))
        truth.blocks.append(text)
    elif text and kind in _PLAIN:
        truth.blocks.append(text)
        truth.items += [text] if kind == "LI" else []
    else:
        for one in block.get("contents", ()):
            _walk(truth, one)


def _within(block: Any, kinds: Sequence[str]) -> Iterator[Any]:
    for one in block.get("contents", ()):
        if one.get("std") in kinds:
            yield one
        elif one["type"] == "structure":
            yield from _within(one, kinds)


def _text(block: Any) -> str:
    if block["type"] == "structure":
        return " ".join(filter(None, (_text(one) for one in block.get("contents", ()))))
    return " ".join(" ".join(line["text"].split()) for line in block.get("lines", ())).strip()


# ── Tables of ICDAR 2013 ──────────────────────────────────────────────────────────────────────────────────────────────


def competition_tables(corpus: Path) -> list[Truth]:
    found: list[Truth] = []
    for path in sorted((corpus / "icdar2013").glob("*-str.xml")):
        pdf = path.with_name(path.name.removesuffix("-str.xml") + ".pdf")
        if not pdf.exists():
            continue
        with pymupdf.open(pdf) as document:
            truth = Truth(pdf, pages=document.page_count)
        for table in ElementTree.parse(path).getroot().iter("table"):
            truth.tables += [_region(one) for one in table.iter("region")]
        found.append(truth)
    return found


def _region(region: Any) -> Rows:
    cells = {
        (int(cell.get("start-row")), int(cell.get("start-col"))): cell.findtext("content") or ""
        for cell in region.iter("cell")
    }
    rows, columns = (max((place[at] for place in cells), default=-1) + 1 for at in (0, 1))
    return [[cells.get((row, column), "") for column in range(columns)] for row in range(rows)]
