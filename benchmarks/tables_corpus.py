"""Generated pages with tables, and pages without tables that look like it.

Tables are ruled all around, ruled as in books, shaded, or not ruled; with column names over two lines or several
columns, cells over two lines, numbers aligned by their point or to the right, separate currency signs, and heading
rows. Pages without tables have two or three columns of prose, lists, contents, sidebars, or letters. The same seed
gives the same pages.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pymupdf

from benchmarks.corpus import WORDS as _WORDS

Rows = list[list[str]]
_Text = tuple[float, float, str, str, float]
_Part = tuple[str, list[_Text]]
"""A block of text and its lines with their positions."""

_REPORTS = Path(__file__).resolve().parent / "reports"
_WIDTH, _HEIGHT = 595, 842
_FONTS = (("helv", "hebo"), ("tiro", "tibo"))


@dataclass(slots=True)
class Page:
    """The texts and rules of a page, and its true tables."""

    kind: str
    tables: list[Rows] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    """The blocks of a layout in reading order."""
    texts: list[_Text] = field(default_factory=list)
    lines: list[tuple[float, float, float, float, float]] = field(default_factory=list)
    has_grids: bool = False
    shades: list[tuple[float, float, float, float]] = field(default_factory=list)


def tables(seed: str, count: int) -> list[Page]:
    """Return pages of each kind in turn; three in eight have no table."""
    kinds: Sequence[Callable[[random.Random], Page]] = (
        _one_table, _two_columns_of_prose, _one_table, _two_tables, _one_table, _deceptive, _table_in_a_column,
        _deceptive,
    )  # fmt: skip
    return [kinds[at % len(kinds)](random.Random(f"{seed}/{at}")) for at in range(count)]


def reports() -> list[tuple[Path, Page]]:
    """Return real pages with their true cells."""
    return [
        (path, Page("report", tables=[_read_csv(path.with_suffix(".csv"))])) for path in sorted(_REPORTS.glob("*.pdf"))
    ]


def _read_csv(path: Path) -> Rows:
    with path.open(encoding="utf-8", newline="") as lines:
        return [*csv.reader(lines)]


def layouts(seed: str, count: int) -> list[Page]:
    """Return pages with columns whose blocks are drawn in a wrong order."""
    return [_layout(random.Random(f"{seed}/layout/{at}")) for at in range(count)]


def storeys(seed: str, count: int) -> list[Page]:
    """Return pages divided by rules and wide titles, each part with its own columns, drawn in a wrong order."""
    return [_storeys(random.Random(f"{seed}/storeys/{at}")) for at in range(count)]


def save(pages: Sequence[Page], path: Path) -> None:
    with pymupdf.open() as document:  # type: ignore[no-untyped-call]
        for one in pages:
            draw(document.new_page(width=_WIDTH, height=_HEIGHT), one)
        document.save(path, garbage=1, deflate=True, no_new_id=True)


def is_printable(one: Page) -> bool:
    """Return whether no two texts overlap, which could not be read on paper."""
    ends: dict[float, float] = {}
    for x, y, text, font, size in sorted(one.texts):
        if text.strip():
            if x < ends.get(y, 0.0):
                return False
            ends[y] = x + pymupdf.get_text_length(text.rstrip(), font, size)
    return True


def draw(page: Any, one: Page) -> None:
    shape = page.new_shape()
    for x0, y0, x1, y1 in one.shades:
        shape.draw_rect((x0, y0, x1, y1))
        shape.finish(fill=(0.88, 0.9, 0.93), color=None)
    for x0, y0, x1, y1, width in one.lines:
        shape.draw_line((x0, y0), (x1, y1))
        shape.finish(width=width)
    for x, y, text, font, size in one.texts:
        shape.insert_text((x, y), text, fontname=font, fontsize=size)
    shape.commit()


# ── Tables ──────────────────────────────────────────────────────────────────────────────────────────────────────

_LABELS = (
    "Revenue", "Cost of sales", "Gross profit", "Operating expenses", "Depreciation and amortisation", "Net income",
    "Property, plant and equipment", "Trade receivables", "Cash and cash equivalents", "Inventories", "Goodwill",
    "Deferred tax assets", "Borrowings", "Share capital", "Retained earnings", "Scope 1 emissions", "Water withdrawal",
    "Hazardous waste", "Employees", "Women in management", "Training hours per employee", "Energy consumption",
    "Interest expense", "Other income", "Provisions", "Lease liabilities", "Intangible assets", "Total assets",
)  # fmt: skip
_HEADS = ("2021", "2022", "2023", "2024", "Change", "Target", "Unit", "Note", "Total", "Q1", "Q2", "Q3", "Q4", "Budget",
          "Actual", "Variance", "Share", "Average")  # fmt: skip
_LONG_HEADS = ("Year ended 31 December", "Fair value adjustment", "Carrying amount", "Number of employees",
               "Change in percent", "Average cost", "Restated prior year", "Target for 2030")  # fmt: skip
_PLACES = ("Germany", "France", "Brazil", "Japan", "South Africa", "Norway", "Canada", "India", "Poland", "Chile",
           "New Zealand", "United Kingdom", "United States", "Spain")  # fmt: skip
_STATES = ("open", "closed", "in progress", "not started", "on track", "delayed", "under review", "achieved")


@dataclass(frozen=True, slots=True)
class _Column:
    kind: str
    width: float
    align: str


def _one_table(chance: random.Random) -> Page:
    page = Page("table")
    y = _head(page, chance)
    y = _prose(page, chance, 72, 523, y, chance.randint(2, 7), "helv", 9.5)[0] + 10
    y = _caption(page, chance, y)
    y = _table(page, chance, chance.choice((72, 60, 90)), chance.choice((523, 535, 480, 420)), y)
    if y < 640:
        _prose(page, chance, 72, 523, y + 22, chance.randint(2, 8), "helv", 9.5)
    return page


def _two_tables(chance: random.Random) -> Page:
    page = Page("two tables")
    y = _caption(page, chance, _head(page, chance))
    y = _table(page, chance, 72, 523, y, most=9)
    y = _prose(page, chance, 72, 523, y + 24, 3, "tiro", 10)[0] + 14
    _table(page, chance, 72, 500, _caption(page, chance, y), most=9)
    return page


def _table_in_a_column(chance: random.Random) -> Page:
    """Return a page with a table beside a column of prose."""
    page = Page("table in a column")
    top = _head(page, chance)
    left = chance.random() < 0.5
    own, other = ((60, 285), (310, 535)) if left else ((310, 535), (60, 285))
    _prose(page, chance, *other, top, 46, "tiro", 9.5)
    y = _prose(page, chance, *own, top, chance.randint(5, 14), "tiro", 9.5)[0] + 14
    y = _table(page, chance, *own, y, most=10, narrow=True)
    if y < 600:
        _prose(page, chance, *own, y + 22, 10, "tiro", 9.5)
    return page


def _table(
    page: Page, chance: random.Random, x0: float, x1: float, y: float, *, most: int = 18, narrow: bool = False
) -> float:
    regular, bold = chance.choice(_FONTS)
    size = chance.choice((8.0, 9.0, 10.0)) if not narrow else 8.0
    style = chance.choice(("grid", "grid", "book", "book", "shaded", "plain", "plain", "floors", "boxed"))
    columns = _column_kinds(chance, x1 - x0, narrow=narrow)
    leading, pad = size * chance.choice((1.15, 1.2, 1.3)), size * chance.choice((0.25, 0.4, 0.6))
    edges = [x0]
    for one in columns:
        edges.append(edges[-1] + one.width)
    inset = size * 0.4
    rows: Rows = []
    drawn: list[tuple[list[list[str]], str, int]] = []
    head = [_head_cell(chance, one, size, bold) for one in columns]
    spans = _spans(chance, columns) if len(columns) > 3 and chance.random() < 0.3 else []
    if chance.random() < 0.5 and columns[0].kind == "label":
        head[0] = [""]
    if spans:
        texts = [[""] for _ in columns]
        for first, _, text in spans:
            texts[first] = [text]
        drawn.append((texts, bold, 2))
    drawn.append((head, bold, 1))
    for at in range(chance.randint(3, most)):
        if columns[0].kind == "label" and len(columns) > 2 and at and chance.random() < 0.07:
            drawn.append(([[chance.choice(("Assets", "Liabilities", "Equity", "Environment", "People"))]]
                          + [[""] for _ in columns[1:]], bold, 0))  # fmt: skip
        drawn.append(([_cell(chance, one, size, regular) for one in columns], regular, 0))
    top = y - size - pad
    tops = [top]
    apart = chance.random() < 0.25
    for texts, font, kind in drawn:
        deep = max(map(len, texts))
        base = tops[-1] + pad + size * 0.95
        low = kind == 1 and style != "grid"
        for at, lines in enumerate(texts):
            above = base + (deep - len(lines)) * leading if low else base
            for down, text in enumerate(lines):
                if not text:
                    continue
                left, right = edges[at] + inset, edges[at + 1] - inset
                align = columns[at].align
                if kind == 2:
                    last = next(last for begin, last, _ in spans if begin == at)
                    left, right, align = edges[at] + inset, edges[last + 1] - inset, "centre"
                _put(page, left, right, above + down * leading, text, font, size, align, apart=apart and kind == 0)
        rows.append([" ".join(lines).strip() for lines in texts])
        tops.append(tops[-1] + 2 * pad + deep * leading)
        if tops[-1] > 770:
            break
    _rule(page, chance, style, edges, tops, 2 if spans else 1, spans)
    page.tables.append([row for row in rows if any(row)])
    return tops[-1] + size


def _column_kinds(chance: random.Random, width: float, *, narrow: bool) -> list[_Column]:
    kind = chance.choice(("figures", "figures", "figures", "register"))
    if kind == "figures" or narrow:
        count = chance.randint(2, 3) if narrow else chance.randint(2, 6)
        first = width * (0.46 if count <= 3 else 0.34)
        number = chance.choice(("whole", "decimal", "money", "percent", "accounts"))
        align = (
            "point" if number == "decimal" and chance.random() < 0.6 else chance.choice(("right", "right", "centre"))
        )
        return [_Column("label", first, "left"),
                *(_Column(number, (width - first) / count, align) for _ in range(count))]  # fmt: skip
    shares = {"place": 0.24, "code": 0.14, "text": 0.36, "state": 0.16, "date": 0.16, "whole": 0.14}
    chosen = ["code", "place", *chance.sample(["text", "state", "date", "whole"], chance.randint(2, 3))]
    total = sum(shares[one] for one in chosen)
    return [_Column(one, width * shares[one] / total, "right" if one == "whole" else "left") for one in chosen]


def _head_cell(chance: random.Random, one: _Column, size: float, font: str) -> list[str]:
    if one.kind == "label":
        return [chance.choice(("EUR million", "In thousands", "Item"))]
    if one.kind in ("whole", "decimal", "money", "percent", "accounts"):
        text = chance.choice(_LONG_HEADS) if chance.random() < 0.4 else chance.choice(_HEADS)
        return _wrapped(text, font, size, one.width - size)
    named = {"place": "Country", "code": "Code", "text": "Description", "state": "Status", "date": "Date"}
    return [named[one.kind]]


def _spans(chance: random.Random, columns: Sequence[_Column]) -> list[tuple[int, int, str]]:
    middle = 1 + (len(columns) - 1) // 2
    return [(1, middle - 1, chance.choice(("Group", "Actual", "Continuing"))),
            (middle, len(columns) - 1, chance.choice(("Company", "Plan", "Total")))]  # fmt: skip


def _cell(chance: random.Random, one: _Column, size: float, font: str) -> list[str]:
    if one.kind == "label":
        text = chance.choice(_LABELS)
        if chance.random() < 0.12:
            text += ", " + " ".join(chance.choices(_WORDS, k=3))
        return _wrapped(text, font, size, one.width - size)
    if one.kind in ("whole", "decimal", "money", "percent", "accounts") and chance.random() < 0.06:
        return [chance.choice(("-", "n/a", ""))]
    if one.kind == "whole":
        return [f"{chance.randint(0, 10 ** chance.randint(1, 6)):,}"]
    if one.kind == "decimal":
        return [f"{chance.uniform(0, 10 ** chance.randint(0, 4)):,.{chance.choice((1, 2, 2))}f}"]
    if one.kind == "money":
        return [f"$ {chance.randint(1, 999_999):,}"]
    if one.kind == "percent":
        return [f"{chance.uniform(-20, 100):.1f}%"]
    if one.kind == "accounts":
        value = f"{chance.randint(1, 999_999):,}"
        return [f"({value})" if chance.random() < 0.3 else value]
    if one.kind == "code":
        return [f"{chance.choice('ABCDEF')}{chance.randint(10, 999)}"]
    if one.kind == "place":
        return [chance.choice(_PLACES)]
    if one.kind == "state":
        return [chance.choice(_STATES)]
    if one.kind == "date":
        return [f"{chance.randint(1, 28):02}/{chance.randint(1, 12):02}/20{chance.randint(10, 26)}"]
    words = " ".join(chance.choices(_WORDS, k=chance.randint(2, 9))).capitalize()
    return _wrapped(words, font, size, one.width - size)[:2]


def _put(
    page: Page, left: float, right: float, y: float, text: str, font: str, size: float, align: str, *, apart: bool
) -> None:  # fmt: skip
    wide = _length(text, font) * size
    if align == "left":
        x = left
    elif align == "right":
        x = right - wide
    elif align == "centre":
        x = (left + right - wide) / 2
    else:
        whole = text.partition(".")[0]
        x = left + 0.62 * (right - left) - _length(whole, font) * size
    if apart and text.startswith("$ "):
        page.texts.append((left, y, "$", font, size))
        x, text = right - _length(text[2:], font) * size, text[2:]
    page.texts.append((x, y, text, font, size))


def _rule(
    page: Page, chance: random.Random, style: str, edges: Sequence[float], tops: Sequence[float], heads: int,
    spans: Sequence[tuple[int, int, str]],
) -> None:  # fmt: skip
    left, right, top, bottom = edges[0], edges[-1], tops[0], tops[-1]
    width = chance.choice((0.4, 0.7, 1.0))
    if style == "grid":
        page.has_grids = True
        for y in tops:
            page.lines.append((left, y, right, y, width))
        inner = {edges[at] for first, last, _ in spans for at in range(first + 1, last + 1)}
        for x in edges:
            page.lines.append((x, tops[1] if x in inner else top, x, bottom, width))
    elif style == "book":
        for y in (top, tops[heads], bottom):
            page.lines.append((left, y, right, y, width))
    elif style == "floors":
        for y in tops:
            page.lines.append((left, y, right, y, width))
    elif style == "boxed":
        for y in (top, tops[heads], bottom):
            page.lines.append((left, y, right, y, width))
        for x in (left, right):
            page.lines.append((x, top, x, bottom, width))
    elif style == "shaded":
        for at in range(0, len(tops) - 1, 2):
            page.shades.append((left, tops[at], right, tops[at + 1]))


# ── What is no table ────────────────────────────────────────────────────────────────────────────────────────────


def _two_columns_of_prose(chance: random.Random) -> Page:
    page = Page("columns of prose")
    y = _head(page, chance)
    three = chance.random() < 0.3
    font, size = chance.choice(("helv", "tiro")), chance.choice((8.5, 9.5))
    places = [(56, 206), (223, 373), (390, 540)] if three else [(60, 285), (310, 535)]
    for left, right in places:
        at = y
        while at < 700:
            at = _prose(page, chance, left, right, at, chance.randint(4, 16), font, size)[0]
            at += size * chance.choice((0.5, 1.3))
    return page


def _deceptive(chance: random.Random) -> Page:
    kind = chance.choice(("list", "contents", "sidebar", "letter", "definitions"))
    page = Page(kind)
    y = _head(page, chance)
    if kind == "list":
        for at in range(chance.randint(5, 9)):
            mark = chance.choice(("•", f"{at + 1}.", f"({'abcdefghij'[at]})"))
            page.texts.append((72, y, mark, "helv", 10))
            y = _prose(page, chance, 92, 523, y, chance.randint(1, 3), "helv", 10)[0] + 4
    elif kind == "contents":
        number = 1
        for at in range(chance.randint(8, 20)):
            text = " ".join(chance.choices(_WORDS, k=chance.randint(2, 5))).capitalize()
            number += chance.randint(1, 9)
            page.texts.append((72, y, f"{at + 1}  {text}", "helv", 10))
            if chance.random() < 0.5:
                begin = 80 + _length(f"{at + 1}  {text}", "helv") * 10
                page.texts.append((begin, y, "." * int((500 - begin) / 2.8), "helv", 10))
            page.texts.append((515 - _length(str(number), "helv") * 10, y, str(number), "helv", 10))
            y += 18
    elif kind == "sidebar":
        side, main = ((60, 170), (190, 535)) if chance.random() < 0.5 else ((425, 535), (60, 405))
        _prose(page, chance, *main, y, 44, "tiro", 10.5)
        for _ in range(4):
            y = _prose(page, chance, *side, y, chance.randint(3, 7), "helv", 8)[0] + 30
    elif kind == "letter":
        for at in range(4):
            page.texts.append((72, y + at * 13, " ".join(chance.choices(_WORDS, k=2)).title(), "tiro", 11))
            page.texts.append((400, y + at * 13, chance.choice(_PLACES), "tiro", 11))
        _prose(page, chance, 72, 523, y + 90, 30, "tiro", 11)
    else:
        for _ in range(6):
            page.texts.append((72, y, chance.choice(_WORDS).capitalize(), "hebo", 10))
            y = _prose(page, chance, 180, 523, y, chance.randint(3, 5), "helv", 10)[0] + 6
    return page


def _head(page: Page, chance: random.Random) -> float:
    page.texts.append((60, 44, "Annual Report", "helv", 8))
    page.texts.append((500, 44, f"{chance.randint(2, 300)}", "helv", 8))
    return 80 + chance.randint(0, 20)


def _caption(page: Page, chance: random.Random, y: float) -> float:
    if chance.random() < 0.7:
        text = f"Table {chance.randint(1, 40)}: " + " ".join(chance.choices(_WORDS, k=chance.randint(2, 6)))
        page.texts.append((72, y, text, "hebo", 9.5))
        y += 12
    return y + chance.choice((16, 22))


def _prose(
    page: Page, chance: random.Random, left: float, right: float, y: float, lines: int, font: str, size: float
) -> tuple[float, str]:
    """Write prose; return the position of the next line, and the text."""
    written = []
    words: list[str] = []
    for _ in range(lines):
        line: list[str] = []
        room = (right - left) / size
        while True:
            if not words:
                words = _sentence(chance)
            room -= _length(words[0], font) + _length(" ", font)
            if line and room < 0:
                break
            line.append(words.pop(0))
        written.append(" ".join(line))
        page.texts.append((left, y, written[-1], font, size))
        y += size * 1.25
    return y, "\n".join(written)


def _sentence(chance: random.Random) -> list[str]:
    words = chance.choices(_WORDS, k=chance.randint(7, 18))
    if chance.random() < 0.4:
        words[chance.randrange(2, len(words))] = f"{chance.randint(2, 99_999):,}"
    return [words[0].capitalize(), *words[1:-1], words[-1] + "."]


def _wrapped(text: str, font: str, size: float, width: float) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and _length(f"{lines[-1]} {word}", font) * size <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


@cache
def _length(text: str, font: str) -> float:
    return float(pymupdf.get_text_length(text, font, 1))


# ── Layouts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _storeys(chance: random.Random) -> Page:
    """Return a page of parts one above the other, each with its own columns below a rule, a title, or both.

    On top is a head in two parts, as in patents; only the rule below it ends its columns.
    """
    page = Page("storeys")
    font, size = chance.choice(("helv", "tiro")), chance.choice((8.5, 9.5, 10.0))
    parts: list[_Part] = []
    y = _block(parts, chance, 60, 300, 44, 1, "helv", 8) + 24
    is_headed = chance.random() < 0.5
    if is_headed:
        ends = []
        for left, right in ((60, 285), (330, 535)):
            ends.append(y)
            for kind in ("hebo", font)[: chance.randint(1, 2)]:
                ends.append(_block(parts, chance, left, right, ends[-1], 1, kind, size + 3) + 2)
        y = max(ends) + 4
    count = chance.randint(2, 3)
    high = (780 - y) / count
    alike = chance.choice((2, 2, 3, 0))
    for at in range(count):
        parted = chance.choice(("rule", "rule", "title", "both"))
        if (at or is_headed) and (parted != "title" or (is_headed and not at)):
            page.lines.append((60, y, 535, y, chance.choice((0.5, 0.8, 1.5))))
            y += 8 + size
        if at and parted != "rule":
            y = _block(parts, chance, 60, 535, y + 8, 1, "hebo", 13) + 6
        end = 68 + is_headed * 40 + (at + 1) * high - 14
        places = {2: [(60, 285), (310, 535)], 3: [(56, 206), (223, 373), (390, 540)]}[alike or chance.choice((2, 3))]
        deepest = y
        for left, right in places:
            below = y
            while below < end - 3 * size and (below == y or chance.random() < 0.85):
                room = int((end - below) / (size * 1.25))
                below = _block(parts, chance, left, right, below, min(chance.randint(2, 8), room), font, size)
                below += size * chance.choice((0.6, 1.0))
            deepest = max(deepest, below)
        y = deepest + 4
    return _in_some_order(page, parts, chance)


def _block(
    parts: list[_Part], chance: random.Random, left: float, right: float, y: float, lines: int, font: str, size: float
) -> float:
    own = Page("")
    y, text = _prose(own, chance, left, right, y, lines, font, size)
    parts.append((text, own.texts))
    return y


def _layout(chance: random.Random) -> Page:
    """Return a page with head, title, columns with paragraphs and a heading, sidebar, footnotes and page number."""
    kind = chance.choice(("two", "two", "three", "sidebar", "one"))
    page = Page(kind)
    font, size = chance.choice(("helv", "tiro")), chance.choice((8.5, 9.5, 10.0))
    parts: list[_Part] = []
    block = partial(_block, parts, chance)

    y = block(60, 300, 44, 1, "helv", 8) + 34
    if chance.random() < 0.8:
        y = block(60, 535, y, 1, "hebo", 16) + 16
        if chance.random() < 0.4:
            y = block(60, 535, y, chance.randint(2, 4), font, size + 1) + 16
    has_notes = chance.random() < 0.5
    bottom = 700 if has_notes else 770
    middle = chance.random() < 0.3 and kind in ("two", "three")
    for begin, end in ((y, (y + bottom) / 2 - 40), ((y + bottom) / 2, bottom)) if middle else ((y, bottom),):
        if middle and begin != y:
            begin = block(60, 535, begin - 16, 1, "hebo", 13) + 14
        places = {"two": [(60, 285), (310, 535)], "three": [(56, 206), (223, 373), (390, 540)],
                  "sidebar": [(60, 395), (425, 540)] if chance.random() < 0.6 else [(190, 535), (56, 165)],
                  "one": [(60, 535)]}[kind]  # fmt: skip
        for column, (left, right) in enumerate(places):
            at, own = begin, size
            until = end
            if kind == "sidebar" and column == 1:
                own, until = 8.0, begin + chance.randint(150, 400)
            while at < until - 4 * own:
                room = int((until - at) / (own * 1.25))
                at = block(left, right, at, min(chance.randint(3, 14), room), font, own) + own * 0.8
                if chance.random() < 0.25 and at < until - 8 * own and kind != "sidebar":
                    at = block(left, right, at + own * 0.6, 1, "hebo", own + 1) + own * 0.5
    if has_notes:
        y = 724.0
        page.lines.append((60, 712, 160, 712, 0.5))
        for _ in range(chance.randint(1, 3)):
            y = block(60, 535, y, 1, font, 7.0) + 3
    number = f"Page {chance.randint(1, 400)}"
    parts.append((number, [(285, 815, number, "helv", 8)]))
    return _in_some_order(page, parts, chance)


def _in_some_order(page: Page, parts: Sequence[_Part], chance: random.Random) -> Page:
    """Draw the blocks in an order that some programs use."""
    page.blocks = [text for text, _ in parts]
    order = list(range(len(parts)))
    how = chance.choice(("as read", "shuffled", "feet first", "by height"))
    if how == "shuffled":
        chance.shuffle(order)
    elif how == "feet first":
        order = [order[-1], order[0], *order[1:-1]]
    elif how == "by height":
        order.sort(key=lambda at: parts[at][1][0][1])
    for at in order:
        page.texts += parts[at][1]
    return page
