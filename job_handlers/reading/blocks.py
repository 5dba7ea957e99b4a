"""Divide the lines of a page into blocks: paragraphs, items of lists, captions, footnotes, code. Pure functions.

The lines are in reading order and stay in it. Whether a block begins between two lines is a sum of evidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

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
"""Lines above and below a line that show how wide its column is there."""


class TextLine(NamedTuple):
    x0: float
    y0: float
    x1: float
    y1: float
    base: float
    """Height of its baseline. The boxes of fonts differ too much to be compared."""
    size: float
    style: int
    text: str
    """With its line feed."""
    begins_part: bool
    right: float = 0.0
    """Right edge of its column there."""
    role: Role | None = None
    """Role that the file itself states."""
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
    """What lines are compared with: the usual height of letters, and the usual step between lines."""

    height: float
    body: float
    pitch: float


def facts_of(lines: Sequence[TextLine], height: float) -> PageFacts:
    sizes: Counter[float] = Counter()
    for one in lines:
        sizes[round(one.size * 2) / 2] += len(one.text)
    body = sizes.most_common(1)[0][0] if sizes else 10.0
    steps = Counter(
        round((b.base - a.base) * 2) / 2
        for a, b in pairwise(lines)
        if abs(a.size - body) < 1 and abs(b.size - body) < 1 and 0.8 * body < b.base - a.base < 2.6 * body
    )
    pitch = max(steps, key=lambda one: (steps[one], -one)) if steps else 1.2 * body
    return PageFacts(height, body, pitch)


class _Pair(NamedTuple):
    """Two lines, one after the other, and the first line of the open block."""

    first: TextLine
    a: TextLine
    b: TextLine
    facts: PageFacts

    @property
    def step(self) -> float:
        """Return the distance of the lines in usual steps of their size."""
        usual = self.facts.pitch * max(self.b.size / (self.facts.body or 1), 0.8)
        return (self.b.base - self.a.base) / (usual or 1)

    @property
    def is_same_row(self) -> bool:
        return abs(self.b.base - self.a.base) < 0.5 * min(self.a.size, self.b.size)

    @property
    def is_short(self) -> bool:
        """Return whether the first line ends well before the edge of its column, where the next word had room."""
        room = (len(self.b.text.split(None, 1)[0]) + 1) * 0.5 * self.a.size if self.b.text.strip() else 0
        return self.a.x1 + max(room, 2 * self.a.size) < self.a.right

    @property
    def is_indented(self) -> bool:
        return 0.7 * self.a.size < self.b.x0 - self.a.x0 < 6 * self.a.size and not self.is_marked

    @property
    def is_marked(self) -> bool:
        """Return whether the open block begins with the marker of an item."""
        return MARKER.match(self.first.text) is not None

    @property
    def is_dedented(self) -> bool:
        return self.first is not self.a and self.first.x0 - 0.7 * self.a.size > self.b.x0 and not self.is_same_row


class _Rule(NamedTuple):
    points: float
    applies: Callable[[_Pair], bool]


_BREAK_RULES = (
    _Rule(1.0, lambda pair: pair.b.begins_part),
    _Rule(1.5, lambda pair: pair.a.text.endswith("\n\n")),
    _Rule(2.5, lambda pair: pair.step > 1.35),
    _Rule(1.5, lambda pair: pair.step > 1.2),
    _Rule(1.0, lambda pair: pair.step < 0 and not pair.is_same_row),
    _Rule(-5.0, lambda pair: pair.is_same_row and pair.b.x0 - pair.a.x1 < 4 * pair.a.size),
    _Rule(2.5, lambda pair: not pair.is_same_row and not 0.89 < pair.b.size / (pair.a.size or 1) < 1.12),
    _Rule(2.0, lambda pair: not pair.is_same_row and bool((pair.a.style ^ pair.b.style) & (BOLD | MONOSPACED))),
    _Rule(3.0, lambda pair: MARKER.match(pair.b.text) is not None),
    _Rule(3.0, lambda pair: _BULLET_ALONE.fullmatch(pair.b.text.strip()) is not None),
    _Rule(1.0, lambda pair: pair.is_short),
    _Rule(0.5, lambda pair: pair.is_short and pair.a.text.rstrip().endswith(_SENTENCE_END)),
    _Rule(0.5, lambda pair: pair.is_short and not pair.b.text[:1].islower()),
    _Rule(-1.5, lambda pair: not pair.is_short and pair.b.text[:1].islower()),
    _Rule(1.5, lambda pair: pair.is_indented and pair.a.text.rstrip().endswith(_SENTENCE_END)),
    _Rule(2.0, lambda pair: pair.is_dedented and pair.is_marked),
    _Rule(1.0, lambda pair: pair.is_dedented),
    # What the file says. Some files have a paragraph for each line.
    _Rule(6.0, lambda pair: pair.a.role is not pair.b.role),
    _Rule(6.0, lambda pair: pair.a.group != pair.b.group and pair.b.role in (Role.HEADING, Role.ITEM)),
    _Rule(1.0, lambda pair: pair.a.group != pair.b.group),
    _Rule(-4.0, lambda pair: bool(pair.a.group) and pair.a.group == pair.b.group),
)  # fmt: skip


def blocks_of_words(
    lines: Sequence[Sequence[Word]], text: str, tables: Sequence[tuple[int, int]], height: float
) -> list[Block]:
    """Return the blocks of a recognised page, from its lines in reading order and the ranges of its tables.

    An empty line precedes a line that begins a paragraph.
    """
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
    """Return the blocks of consecutive lines, whose text begins at `begin`."""
    made: list[Block] = []
    open_lines: list[TextLine] = []
    for line in _with_right_edges(lines):
        if open_lines and _points(_Pair(open_lines[0], open_lines[-1], line, facts)) >= _BREAK_POINTS:
            made.append(_block(open_lines, begin, facts))
            begin = made[-1].end
            open_lines = []
        open_lines.append(line)
    return [*made, _block(open_lines, begin, facts)] if open_lines else made


def _with_right_edges(lines: Sequence[TextLine]) -> list[TextLine]:
    def right(at: int, one: TextLine) -> float:
        near = lines[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS + 1]
        return max([line.x1 for line in near if line.x0 <= one.x1 and abs(line.x0 - one.x0) <= 3 * one.size])

    return [one._replace(right=right(at, one)) for at, one in enumerate(lines)]


def _points(pair: _Pair) -> float:
    return sum([rule.points for rule in _BREAK_RULES if rule.applies(pair)])


def _block(lines: Sequence[TextLine], begin: int, facts: PageFacts) -> Block:
    end = begin + sum([len(one.text) for one in lines])
    sizes: Counter[float] = Counter()
    style: Counter[int] = Counter()
    for one in lines:
        length = len(one.text.strip())
        sizes[one.size] += length
        for flag in (BOLD, ITALIC, MONOSPACED):
            style[flag] += length if one.style & flag else 0
    whole = sizes.total()
    size = round(sizes.most_common(1)[0][0], 1)
    flags = sum(flag for flag in style if style[flag] > 0.7 * whole) if whole else 0
    said = lines[0].role
    x0, y0 = min([one.x0 for one in lines]), min([one.y0 for one in lines])
    x1, y1 = max([one.x1 for one in lines]), max([one.y1 for one in lines])
    role = said or _role_of(lines, size, flags, facts)
    box = round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)
    return Block(*box, begin, end, role, lines[0].level, size, flags | (SAID if said else 0))


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
