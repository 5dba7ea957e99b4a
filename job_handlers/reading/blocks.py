"""Divide the lines of a page into blocks.

A block begins between two lines if the points of the evidence for and against it reach a sum.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading.layout import Word, bounds_of
from worker_service.handlers import BOLD, ITALIC, MARKER, MONOSPACED, STATED_BY_FILE, Block, Role

_POINTS_LEAST = 2.0
_CAPTION = re.compile(
    r"(?:figure|fig\.?|table|tab\.?|chart|box|exhibit|map|graph|abbildung|abb\.?|tabelle|schaubild|tableau)\s*"
    r"(?:\d|[IVX]+\b|[A-Z]\b)[\d.\-]*\s*(?:[.:|\u2013\u2014-]\s*|$|\s(?=[A-Z(]))", re.IGNORECASE)  # fmt: skip
_NOTE = re.compile(r"(?:\d{1,3}|[*†‡§]|\[\d{1,3}\]|\(\d{1,3}\))[.)]?\s*(?=[A-Z\"“‘(h])")
_BULLET_ALONE = re.compile(r"[•◦▪▫●○■□‣⁃∙·➢➤✓✔❖*\uf0a7\uf0b7\uf0d8-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5})[.)]")
_SENTENCE_END = (".", "!", "?", ":", ";", "\u201d", '"', ")")
_BOLD_FONT = re.compile(r"bold|black|heavy|cmbx|cmb10|sfbx|semib|demi|-bd|medi\b", re.IGNORECASE)
_MONO_FONT = re.compile(r"courier|mono|consolas|menlo|cmtt|inconsolata|typewriter|lucidacon", re.IGNORECASE)
_ITALIC_FONT = re.compile(r"italic|oblique|cmti|-it\b", re.IGNORECASE)
_LINES_OF_COLUMN = 5  # Lines above and below whose ends show how wide the column is.
_CAPTION_LINES_MOST = 5
_STYLED_SHARE = 0.7  # A block has a style if more of its characters have it.


class TextLine(Struct, frozen=True, gc=False):
    x0: float
    y0: float
    x1: float
    y1: float
    base: float
    """The y of its baseline, because the boxes of fonts differ too much."""
    size: float
    style: int
    """Sum of `BOLD`, `ITALIC` and `MONOSPACED`."""
    text: str
    """Includes the line feed."""
    begins_part: bool
    """True for the first line of a paragraph, or of a part in reading order."""
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
    body_size: float
    """Size of most characters."""
    line_distance: float
    """Usual distance of two baselines of the body."""


def measure_page_facts(lines: Sequence[TextLine], height: float) -> PageFacts:
    characters: dict[float, int] = {}
    for line in lines:
        characters[line.size] = characters.get(line.size, 0) + len(line.text)
    body_size = max(characters, key=characters.__getitem__, default=10.0)
    distances: Counter[float] = Counter()
    for above, below in pairwise(lines):
        distance = below.base - above.base
        are_body = abs(above.size - body_size) < 1 and abs(below.size - body_size) < 1
        if are_body and 0.8 * body_size < distance < 2.6 * body_size:
            # Rounded to halves.
            distances[int(2 * distance + 0.5) / 2] += 1
    most_frequent = max(distances, key=lambda step: (distances[step], -step), default=1.2 * body_size)
    return PageFacts(height, body_size, most_frequent)


def _points_for_block(first: TextLine, above: TextLine, below: TextLine, right: float, facts: PageFacts) -> float:
    """Return the points for a new block between the lines `above` and `below`.

    `first` is the first line of the block so far, `right` the edge of the column at `above`.
    """
    size = above.size or 1
    distance = below.base - above.base
    # The distance in usual distances for the size of the letters.
    step = distance / (facts.line_distance * max(below.size / (facts.body_size or 1), 0.8) or 1)
    word = below.text.partition(" ")[0]
    word_width = max((len(word) + 1) * 0.5 * size, 2 * size)
    # The line ends before the edge of its column, although the next word had room.
    is_short = above.x1 + word_width < right
    is_small_letter = word[:1].islower()
    is_same_look = above.size == below.size and above.style == below.style
    is_same_group = above.group == below.group and above.role is below.role
    if 0.5 < step <= 1.2 and is_small_letter and is_same_look and is_same_group and len(word) > 3 and not is_short:
        # A shortcut for most lines of prose: no evidence below could make a block begin here.
        return 0.0
    is_same_row = abs(distance) < 0.5 * min(above.size, below.size)
    ends_sentence = above.text.rstrip().endswith(_SENTENCE_END)
    is_item = MARKER.match(first.text) is not None
    is_indented = 0.7 * size < below.x0 - above.x0 < 6 * size and not is_item
    # Further left than the block began.
    is_dedented = first is not above and first.x0 - 0.7 * size > below.x0 and not is_same_row
    evidence = (
        (1.0, below.begins_part),
        (1.5, above.text.endswith("\n\n")),
        (2.5, step > 1.35),
        (1.5, step > 1.2),
        (1.0, step < 0 and not is_same_row),
        (-5.0, is_same_row and below.x0 - above.x1 < 4 * size),
        (2.5, not is_same_row and not 0.89 < below.size / size < 1.12),
        (2.0, not is_same_row and (above.style ^ below.style) & (BOLD | MONOSPACED)),
        (3.0, MARKER.match(below.text) or _BULLET_ALONE.fullmatch(below.text.strip())),
        (3.0, below.text[:1] in "123456789(" and _is_next_note(first.text, below.text)),
        (1.0, is_short),
        (0.5, is_short and ends_sentence),
        (0.5, is_short and not is_small_letter),
        (-1.5, not is_short and is_small_letter),
        (1.5, is_indented and ends_sentence),
        (2.0, is_dedented and is_item),
        (1.0, is_dedented),
        # What the file says. Some files have a paragraph for each line.
        (6.0, above.role is not below.role),
        (6.0, above.group != below.group and below.role in (Role.HEADING, Role.ITEM)),
        (1.0, not is_same_group),
        (-4.0, is_same_group and above.group > 0),
    )
    return sum([points for points, is_true in evidence if is_true])


def _is_next_note(first: str, text: str) -> bool:
    """Return whether the texts begin with consecutive numbers of footnotes."""
    number = _note_number(first)
    return number > 0 and _note_number(text) == number + 1


def _note_number(text: str) -> int:
    """Return 0 for a footnote marked with a sign, and for other text."""
    mark = _NOTE.match(text)
    digits = "".join(filter(str.isdecimal, mark[0])) if mark else ""
    return int(digits or 0)


def blocks_of_words(
    lines: Sequence[Sequence[Word]], text: str, end_of_table: Mapping[int, int], height: float
) -> list[Block]:
    """`end_of_table` maps where each table begins in the text to its end."""
    usual_height = median([word.y1 - word.y0 for line in lines for word in line] or [1.0])
    runs: list[_LineRun] = []
    begin = 0
    table: int | None = None
    for line in filter(None, lines):
        if begin in end_of_table:
            table = begin
        elif table is not None and begin >= end_of_table[table]:
            table = None
        end = text.find("\n", begin) + 1 or len(text)
        # An empty line precedes a line that begins a paragraph.
        while text[end : end + 1] == "\n":
            end += 1
        begins_part = text[max(begin - 2, 0) : begin] in ("", "\n\n")
        if not runs or runs[-1].table != table:
            runs.append(_LineRun(table, begin, []))
        runs[-1].lines.append(_recognised_line(line, text[begin:end], usual_height, begins_part=begins_part))
        begin = end
    facts = measure_page_facts([line for run in runs if run.table is None for line in run.lines], height)
    blocks: list[Block] = []
    for run in runs:
        if run.table is None:
            blocks += divide_lines(run.lines, run.begin, facts)
        else:
            block = _block(run.lines, run.table, facts)
            blocks.append(replace(block, role=Role.TABLE, end=end_of_table[run.table]))
    return blocks


class _LineRun(NamedTuple):
    table: int | None
    begin: int
    lines: list[TextLine]


def _recognised_line(line: Sequence[Word], text: str, usual_height: float, *, begins_part: bool) -> TextLine:
    x0, y0, x1, y1 = bounds_of(line)
    # Heights of recognised words depend on their letters: within one font, they differ by a fifth.
    height = median([word.y1 - word.y0 for word in line])
    size = usual_height if 0.75 * usual_height < height < 1.3 * usual_height else height
    return TextLine(x0, y0, x1, y1, median([word.y1 for word in line]), size, 0, text, begins_part)


def divide_lines(lines: Sequence[TextLine], begin: int, facts: PageFacts) -> list[Block]:
    """`begin` is where the first line begins in the page's text."""
    blocks: list[Block] = []
    block_lines: list[TextLine] = []
    right_of_last = 0.0
    for line, right in zip(lines, _right_edges(lines), strict=True):
        if block_lines and (
            _points_for_block(block_lines[0], block_lines[-1], line, right_of_last, facts) >= _POINTS_LEAST
        ):
            blocks.append(_block(block_lines, begin, facts))
            begin = blocks[-1].end
            block_lines = []
        block_lines.append(line)
        right_of_last = right
    return [*blocks, _block(block_lines, begin, facts)] if block_lines else blocks


def _right_edges(lines: Sequence[TextLine]) -> list[float]:
    """Return for each line where the longest line of its column ends, among those near it."""
    # Comparisons are faster than `max`, and every line of every text layer passes here.
    edges = [line.x1 for line in lines]
    for at, line in enumerate(lines):
        x0, x1, reach = line.x0, line.x1, 3 * line.size
        for near_at, near in enumerate(lines[at + 1 : at + _LINES_OF_COLUMN + 1], at + 1):
            if -reach <= near.x0 - x0 <= reach and near.x0 <= x1 and x0 <= near.x1:
                if near.x1 > edges[at]:
                    edges[at] = near.x1
                if x1 > edges[near_at]:
                    edges[near_at] = x1
    return edges


def _block(lines: Sequence[TextLine], begin: int, facts: PageFacts) -> Block:
    end = begin + sum([len(line.text) for line in lines])
    size, style = lines[0].size, lines[0].style
    if any(line.size != size or line.style != style for line in lines):
        size, style = _usual_look(lines)
    size = round(size, 1)
    stated_role = lines[0].role
    x0, y0, x1, y1 = bounds_of(lines)
    role = stated_role or _role_of(lines, size, style, facts)
    if stated_role is Role.PARAGRAPH and style & MONOSPACED:
        # The tags of a PDF rarely state that a paragraph is code.
        role = Role.CODE
    box = round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)
    return Block(*box, begin, end, role, lines[0].level, size, style | (STATED_BY_FILE if stated_role else 0))


def _usual_look(lines: Sequence[TextLine]) -> tuple[float, int]:
    sizes: Counter[float] = Counter()
    styles: Counter[int] = Counter()
    for line in lines:
        length = len(line.text.strip())
        sizes[line.size] += length
        for flag in (BOLD, ITALIC, MONOSPACED):
            styles[flag] += length if line.style & flag else 0
    [(size, _)] = sizes.most_common(1)
    return size, sum(flag for flag, length in styles.items() if length > _STYLED_SHARE * sizes.total())


def _role_of(lines: Sequence[TextLine], size: float, style: int, facts: PageFacts) -> Role:
    text = lines[0].text
    if style & MONOSPACED:
        return Role.CODE
    if lines[0].y0 > 0.5 * facts.height and size < 0.94 * facts.body_size and _NOTE.match(text):
        return Role.FOOTNOTE
    if len(lines) <= _CAPTION_LINES_MOST and _CAPTION.match(text):
        return Role.CAPTION
    if MARKER.match(text) or (len(lines) > 1 and _BULLET_ALONE.fullmatch(text.strip())):
        return Role.ITEM
    return Role.PARAGRAPH
