"""Divide the lines of a page into blocks. Whether one begins between two lines is a sum of evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading.layout import Word
from worker_service.handlers import BOLD, ITALIC, MARKER, MONOSPACED, SAID, Block, Role

_BREAK_POINTS = 2.0
_CAPTION = re.compile(
    r"(?:figure|fig\.?|table|tab\.?|chart|box|exhibit|map|graph|abbildung|abb\.?|tabelle|schaubild|tableau)\s*"
    r"(?:\d|[IVX]+\b|[A-Z]\b)[\d.\-]*\s*(?:[.:|\u2013\u2014-]\s*|$|\s(?=[A-Z(]))", re.IGNORECASE)  # fmt: skip
_NOTE = re.compile(r"(?:\d{1,3}|[*†‡§]|\[\d{1,3}\]|\(\d{1,3}\))[.)]?\s*(?=[A-Z\"“‘(h])")
_BULLET_ALONE = re.compile(r"[•◦▪▫●○■□‣⁃∙·➢➤✓✔❖*\uf0a7\uf0b7\uf0d8-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5})[.)]")
_SENTENCE_END = (".", "!", "?", ":", ";", "\u201d", '"', ")")
_BOLD_FONT = re.compile(r"bold|black|heavy|cmbx|cmb10|sfbx|semib|demi|-bd|medi\b", re.IGNORECASE)
_MONO_FONT = re.compile(r"courier|mono|consolas|menlo|cmtt|inconsolata|typewriter|lucidacon", re.IGNORECASE)
_ITALIC_FONT = re.compile(r"italic|oblique|cmti|-it\b", re.IGNORECASE)
_NEIGHBOURS = 5
"""Lines that show how wide the column is."""


class TextLine(Struct, frozen=True, gc=False):
    x0: float
    y0: float
    x1: float
    y1: float
    base: float
    """Height of its baseline, because the boxes of fonts differ too much."""
    size: float
    style: int
    text: str
    """Includes the line feed."""
    begins_part: bool
    role: Role | None = None
    """Role that the file states."""
    level: int = 0
    group: int = 0
    """Number of the element in the file's structure; 0: none."""


@lru_cache(512)
def font_style(name: str, weight: str) -> int:
    return (
        (BOLD if weight == "bold" or _BOLD_FONT.search(name) else 0)
        | (ITALIC if _ITALIC_FONT.search(name) else 0)
        | (MONOSPACED if _MONO_FONT.search(name) else 0)
    )


class PageFacts(NamedTuple):
    height: float
    body: float
    pitch: float


def facts_of(lines: Sequence[TextLine], height: float) -> PageFacts:
    sizes: dict[float, int] = {}
    for one in lines:
        sizes[one.size] = sizes.get(one.size, 0) + len(one.text)
    body = max(sizes, key=sizes.__getitem__, default=10.0)
    least, most = 0.8 * body, 2.6 * body
    steps = Counter(
        [
            int(2 * (b.base - a.base) + 0.5) / 2
            for a, b in pairwise(lines)
            if least < b.base - a.base < most and abs(a.size - body) < 1 and abs(b.size - body) < 1
        ]
    )
    pitch = max(steps, key=lambda one: (steps[one], -one)) if steps else 1.2 * body
    return PageFacts(height, body, pitch)


def _break_points(first: TextLine, a: TextLine, b: TextLine, right: float, facts: PageFacts) -> float:
    """Return how much speaks for a new block between `a` and `b`. `right` is the edge of the column at `a`."""
    size = a.size or 1
    rise = b.base - a.base
    step = rise / (facts.pitch * max(b.size / (facts.body or 1), 0.8) or 1)
    # The line ends well before the edge of its column, although the next word had room.
    word = b.text.partition(" ")[0]
    is_short = a.x1 + max((len(word) + 1) * 0.5 * size, 2 * size) < right
    is_small_letter = word[:1].islower()
    is_same_look = a.size == b.size and a.style == b.style
    is_same_group = a.group == b.group and a.role is b.role
    if 0.5 < step <= 1.2 and is_small_letter and is_same_look and is_same_group and len(word) > 3 and not is_short:
        # Most lines of prose, at once: nothing below could make a block begin here.
        return 0.0
    is_same_row = abs(rise) < 0.5 * min(a.size, b.size)
    ends_sentence = a.text.rstrip().endswith(_SENTENCE_END)
    is_item = MARKER.match(first.text) is not None
    is_indented = 0.7 * size < b.x0 - a.x0 < 6 * size and not is_item
    is_dedented = first is not a and first.x0 - 0.7 * size > b.x0 and not is_same_row
    evidence = (
        (1.0, b.begins_part),
        (1.5, a.text.endswith("\n\n")),
        (2.5, step > 1.35),
        (1.5, step > 1.2),
        (1.0, step < 0 and not is_same_row),
        (-5.0, is_same_row and b.x0 - a.x1 < 4 * size),
        (2.5, not is_same_row and not 0.89 < b.size / size < 1.12),
        (2.0, not is_same_row and (a.style ^ b.style) & (BOLD | MONOSPACED)),
        (3.0, MARKER.match(b.text) or _BULLET_ALONE.fullmatch(b.text.strip())),
        (3.0, b.text[:1] in "123456789(" and _is_next_note(first.text, b.text)),
        (1.0, is_short),
        (0.5, is_short and ends_sentence),
        (0.5, is_short and not is_small_letter),
        (-1.5, not is_short and is_small_letter),
        (1.5, is_indented and ends_sentence),
        (2.0, is_dedented and is_item),
        (1.0, is_dedented),
        # What the file says. Some files have a paragraph for each line.
        (6.0, a.role is not b.role),
        (6.0, a.group != b.group and b.role in (Role.HEADING, Role.ITEM)),
        (1.0, not is_same_group),
        (-4.0, is_same_group and a.group > 0),
    )
    return sum([points for points, speaks in evidence if speaks])


def _is_next_note(first: str, text: str) -> bool:
    notes = _NOTE.match(first), _NOTE.match(text)
    one, other = (int("".join(filter(str.isdecimal, note[0])) or "0") if note else 0 for note in notes)
    return 0 < one == other - 1


def blocks_of_words(
    lines: Sequence[Sequence[Word]], text: str, tables: Sequence[tuple[int, int]], height: float
) -> list[Block]:
    """Return the blocks of a recognised page. An empty line precedes a line that begins a paragraph."""
    usual = median([word.y1 - word.y0 for line in lines for word in line] or [1.0])
    ends = dict(tables)
    placed: list[tuple[int | None, int, TextLine]] = []
    at = table_end = 0
    table: int | None = None
    for line in filter(None, lines):
        if at in ends:
            table, table_end = at, ends[at]
        elif at >= table_end:
            table = None
        end = text.find("\n", at) + 1 or len(text)
        while text[end : end + 1] == "\n":
            end += 1
        begins_part = text[max(at - 2, 0) : at] in ("", "\n\n")
        placed.append((table, at, _recognised_line(line, text[at:end], usual, begins_part=begins_part)))
        at = end
    facts = facts_of([line for table, _, line in placed if table is None], height)
    made: list[Block] = []
    for table, some in groupby(placed, lambda one: one[0]):
        (begin, first), *others = [(at, line) for _, at, line in some]
        run = [first, *(line for _, line in others)]
        if table is None:
            made += divide_lines(run, begin, facts)
        else:
            made.append(replace(_block(run, table, facts), role=Role.TABLE, end=ends[table]))
    return made


def _recognised_line(line: Sequence[Word], text: str, usual: float, *, begins_part: bool) -> TextLine:
    x0, y0 = min([word.x0 for word in line]), min([word.y0 for word in line])
    x1, y1 = max([word.x1 for word in line]), max([word.y1 for word in line])
    # Heights of recognised words depend on their letters, and differ by a fifth within one font.
    height = median([word.y1 - word.y0 for word in line])
    size = usual if 0.75 * usual < height < 1.3 * usual else height
    return TextLine(x0, y0, x1, y1, median([word.y1 for word in line]), size, 0, text, begins_part)


def divide_lines(lines: Sequence[TextLine], begin: int, facts: PageFacts) -> list[Block]:
    made: list[Block] = []
    open_lines: list[TextLine] = []
    rights = [0.0, *_right_edges(lines)]
    for right, line in zip(rights, lines, strict=False):
        if open_lines and _break_points(open_lines[0], open_lines[-1], line, right, facts) >= _BREAK_POINTS:
            made.append(_block(open_lines, begin, facts))
            begin = made[-1].end
            open_lines = []
        open_lines.append(line)
    return [*made, _block(open_lines, begin, facts)] if open_lines else made


def _right_edges(lines: Sequence[TextLine]) -> list[float]:
    edges = [one.x1 for one in lines]
    for at, one in enumerate(lines):
        x0, x1, reach = one.x0, one.x1, 3 * one.size
        for other, near in enumerate(lines[at + 1 : at + _NEIGHBOURS + 1], at + 1):
            if -reach <= near.x0 - x0 <= reach and near.x0 <= x1 and x0 <= near.x1:
                if near.x1 > edges[at]:
                    edges[at] = near.x1
                if x1 > edges[other]:
                    edges[other] = x1
    return edges


def _block(lines: Sequence[TextLine], begin: int, facts: PageFacts) -> Block:
    end = begin + sum([len(one.text) for one in lines])
    size, flags = lines[0].size, lines[0].style
    if any(one.size != size or one.style != flags for one in lines):
        size, flags = _usual_look(lines)
    size = round(size, 1)
    said = lines[0].role
    x0, y0 = min([one.x0 for one in lines]), min([one.y0 for one in lines])
    x1, y1 = max([one.x1 for one in lines]), max([one.y1 for one in lines])
    # Tags rarely have a word for code.
    role = Role.CODE if said is Role.PARAGRAPH and flags & MONOSPACED else said or _role_of(lines, size, flags, facts)
    box = round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)
    return Block(*box, begin, end, role, lines[0].level, size, flags | (SAID if said else 0))


def _usual_look(lines: Sequence[TextLine]) -> tuple[float, int]:
    sizes: Counter[float] = Counter()
    styles: Counter[int] = Counter()
    for one in lines:
        length = len(one.text.strip())
        sizes[one.size] += length
        for flag in (BOLD, ITALIC, MONOSPACED):
            styles[flag] += length if one.style & flag else 0
    whole = sizes.total()
    return sizes.most_common(1)[0][0], sum(flag for flag in styles if styles[flag] > 0.7 * whole) if whole else 0


def _role_of(lines: Sequence[TextLine], size: float, flags: int, facts: PageFacts) -> Role:
    text = lines[0].text
    if flags & MONOSPACED:
        return Role.CODE
    if lines[0].y0 > 0.5 * facts.height and size < 0.94 * facts.body and _NOTE.match(text):
        return Role.FOOTNOTE
    if len(lines) < 6 and _CAPTION.match(text):
        return Role.CAPTION
    if MARKER.match(text) or (len(lines) > 1 and _BULLET_ALONE.fullmatch(text.strip())):
        return Role.ITEM
    return Role.PARAGRAPH
