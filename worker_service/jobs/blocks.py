"""Roles of the parts of a page's text, decided by tables of points.

Some roles show on a single page; `resolve_roles` adds the others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

BOLD, ITALIC, MONOSPACED, SAID = 1, 2, 4, 8
"""Flags of `Block.style`. SAID: the file itself says what the block is."""

HEADING_LEVELS = 6
MARKER = re.compile(
    r"(?:[•◦▪▫●○■□‣⁃∙·➢➤✓✔❖*\u2013\u2014\uf0a7\uf0b7\uf0d8-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5})[.)])(?=\s)"
)
_NUMBER = re.compile(r"(?:(?:chapter|part|section|kapitel|teil|appendix|annex|anhang)\s+)?"
                     r"((?:\d{1,2}|[A-Z]|[IVX]{1,5})(?:\.\d{1,3}){0,4})[.):]?\s+(?=\S)", re.IGNORECASE)  # fmt: skip
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|seite|p\.|s\.)\s*)?(?:\d{1,4}|[ivxlc]{1,7})(?:\s*(?:of|von|/|\|)\s*\d{1,4})?\W*", re.IGNORECASE
)
_SENTENCE_END = (".", "!", "?", ";", ",", ":")
_HEADING_CHARACTERS_MAX = 200
_HEADING_POINTS = 3.0
_EDGE = 0.11
"""Share of the page's height at its top and bottom."""
_EDGE_BLOCKS = 4
_RUNNING_LINES_MAX = 3
_LARGER = 1.08
_SAME_SIZE = 0.4


class Role(StrEnum):
    HEADING = "heading"
    PARAGRAPH = "paragraph"
    ITEM = "item"
    TABLE = "table"
    CAPTION = "caption"
    FOOTNOTE = "footnote"
    CODE = "code"
    HEAD = "head"
    FOOT = "foot"
    NUMBER = "number"
    PICTURE = "picture"


RUNNING = (Role.HEAD, Role.FOOT, Role.NUMBER)
_MAY_BE_HEADING = (Role.PARAGRAPH, Role.ITEM)


class Block(Struct, array_like=True, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    begin: int
    end: int
    """Range in the page's text."""
    role: Role = Role.PARAGRAPH
    level: int = 0
    """1 is the highest level; 0: not known."""
    size: float = 0.0
    """Height of the font in points. 0: not known."""
    style: int = 0
    alt: str = ""
    """Alternative text of a picture, whose range in the text is empty."""

    @property
    def is_placed(self) -> bool:
        return self.x1 > self.x0


class TextLink(Struct, array_like=True, frozen=True):
    begin: int
    end: int
    """Range in the page's text."""
    address: str


class NoteMark(Struct, array_like=True, frozen=True):
    """A reference to a footnote, or the number with which a footnote begins."""

    begin: int
    end: int
    """Range in the page's text. Empty if the number is not part of the text."""
    note: str


LINK_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s<>()]{1,2000}", re.IGNORECASE)
"""Links with other schemes could run a script."""


class BlocksOfPage(Struct, frozen=True):
    number: int
    size: tuple[float, float]
    text: str
    blocks: Sequence[Block]

    def text_of(self, block: Block) -> str:
        return self.text[block.begin : block.end]


def resolve_roles(pages: Sequence[BlocksOfPage]) -> list[BlocksOfPage]:
    """Add roles that only the whole document shows."""
    pages = _with_running_lines(pages)
    facts = _facts_of(pages)
    made: list[BlocksOfPage] = []
    for page in pages:
        blocks = list(page.blocks)
        for at, block in enumerate(blocks):
            if (
                block.role in _MAY_BE_HEADING
                and block.end - block.begin <= _HEADING_CHARACTERS_MAX
                and _heading_points(page, at, facts) >= _HEADING_POINTS
            ):
                blocks[at] = replace(block, role=Role.HEADING)
        made.append(replace(page, blocks=blocks))
    return _with_levels(made, facts)


# ── Running heads, feet and page numbers ──────────────────────────────────────────────────────────────────────────────


def _with_running_lines(pages: Sequence[BlocksOfPage]) -> list[BlocksOfPage]:
    edges = [_edge_blocks(page) for page in pages]
    places: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for page, some in zip(pages, edges, strict=True):
        for at, is_top in some.items():
            block = page.blocks[at]
            places[is_top, _pattern(page.text_of(block))].append(block.y0)
    least = 2 if len(pages) < 6 else 3
    standing = _standing_lines(pages)
    made: list[BlocksOfPage] = []
    for page, some in zip(pages, edges, strict=True):
        blocks = [
            replace(one, role=Role.HEAD, level=0) if _place(page, one) in standing else one for one in page.blocks
        ]
        for at, is_top in some.items():
            block, text = blocks[at], page.text_of(blocks[at])
            near = sum(abs(y - block.y0) < 0.02 * page.size[1] for y in places[is_top, _pattern(text)])
            if _PAGE_NUMBER.fullmatch(text.strip()):
                blocks[at] = replace(block, role=Role.NUMBER, level=0)
            elif near >= least and not (block.role is Role.HEADING and block.level):
                blocks[at] = replace(block, role=Role.HEAD if is_top else Role.FOOT, level=0)
        made.append(replace(page, blocks=blocks))
    return made


_Place = tuple[str, int, int]


def _standing_lines(pages: Sequence[BlocksOfPage]) -> set[_Place]:
    """Return texts at the same place of most pages."""
    times = Counter(
        place
        for page in pages
        for place in {_place(page, one) for one in page.blocks if one.is_placed and one.role in _MAY_BE_HEADING}
    )
    return {place for place, count in times.items() if count > 3 and count > 0.5 * len(pages)}


def _place(page: BlocksOfPage, block: Block) -> _Place:
    return page.text_of(block), round(block.x0 / 4), round(block.y0 / 4)


def _edge_blocks(page: BlocksOfPage) -> dict[int, bool]:
    """Return the indexes of the blocks at the top (True) and bottom (False)."""
    height = page.size[1]
    placed = [
        at
        for at, one in enumerate(page.blocks)
        if one.is_placed
        and one.role not in (Role.TABLE, Role.PICTURE, *RUNNING)
        and page.text_of(one).strip().count("\n") < _RUNNING_LINES_MAX
    ]
    upper = sorted(placed, key=lambda at: page.blocks[at].y0)[:_EDGE_BLOCKS]
    lower = sorted(placed, key=lambda at: -page.blocks[at].y1)[:_EDGE_BLOCKS]
    pictures = [at for at, one in enumerate(page.blocks) if one.role is Role.PICTURE]
    found = {at: False for at in [*lower, *pictures] if page.blocks[at].y0 > (1 - _EDGE) * height}
    return found | {at: True for at in [*upper, *pictures] if page.blocks[at].y1 < _EDGE * height}


def _pattern(text: str) -> str:
    return re.sub(r"\d+|\b[ivxlc]+\b", "#", " ".join(text.split()).casefold())[:200]


# ── Headings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _DocumentFacts(NamedTuple):
    body: float
    is_body_bold: bool
    says_headings: bool


def _facts_of(pages: Sequence[BlocksOfPage]) -> _DocumentFacts:
    sizes: Counter[float] = Counter()
    bold = whole = 0
    for page in pages:
        for one in page.blocks:
            if one.role in _MAY_BE_HEADING or one.role is Role.TABLE:
                length = one.end - one.begin
                sizes[_rounded(one.size)] += length
                whole += length
                bold += length if one.style & BOLD else 0
    body = sizes.most_common(1)[0][0] if sizes else 0.0
    says = any(one.role is Role.HEADING and one.style & SAID for page in pages for one in page.blocks)
    return _DocumentFacts(body, bold > whole / 2, says)


def _rounded(size: float) -> float:
    return round(size * 2) / 2


def _heading_points(page: BlocksOfPage, at: int, document: _DocumentFacts) -> float:
    block = page.blocks[at]
    before = next((one for one in page.blocks[at - 1 :: -1] if one.role is not Role.PICTURE), None) if at else None
    after = next((one for one in page.blocks[at + 1 :] if one.role is not Role.PICTURE), None)
    own_text = page.text_of(block).strip()
    text = " ".join(own_text.split())
    letters = [one for one in text if one.isalpha()]
    ratio = block.size / document.body if document.body else 1.0
    number = _NUMBER.match(text)
    is_capital = len(letters) > 3 and sum(map(str.isupper, letters)) > 0.9 * len(letters)
    # Space above and below in heights of the body text; 2 at the edge of a column.
    unit = document.body or 1.0
    above = 2.0 if before is None or before.y1 > block.y1 else (block.y0 - before.y1) / unit
    below = 2.0 if after is None or after.y0 < block.y0 else (after.y0 - block.y1) / unit
    has_body = after is not None and (
        after.end - after.begin > block.end - block.begin
        or after.role is not Role.PARAGRAPH
        or after.size < block.size - _SAME_SIZE
    )
    evidence = (
        # Letters.
        (1.5, ratio >= _LARGER),
        (1.5, ratio >= 1.18),
        (1.0, ratio >= 1.45),
        (2.0, block.style & BOLD and not document.is_body_bold),
        (0.5, block.style & ITALIC),
        (1.0, is_capital),
        (-1.5, 0 < ratio < 0.93),
        (-2.0, block.style & MONOSPACED),
        # Words.
        (1.0, number and not block.style & ITALIC),
        (-2.5, text.endswith(_SENTENCE_END) and not (number and len(text) < 60)),
        (-1.0, text[:1].islower()),
        (-1.0, len(text) > 90),
        (-4.0, own_text.count("\n") > 3),
        (-4.0, len(letters) < 2 or len(letters) < 0.5 * len(text.replace(" ", ""))),
        (-2.0, block.role is Role.ITEM and not number),
        # Place.
        (0.5, above > 0.6),
        (0.5, above > 1.2 * below),
        (0.5 if has_body else -1.0, True),
        (-2.0, any(one is not None and _is_beside(one, block) for one in (before, after))),
        # What the file says.
        (-4.0, block.style & SAID and document.says_headings),
    )
    return sum([points for points, speaks in evidence if speaks])


def _is_beside(other: Block, own: Block) -> bool:
    """Return whether both blocks are on one line of one column."""
    return other.y1 - other.y0 < 4.5 * own.size and min(other.y1, own.y1) - max(other.y0, own.y0) > 0.5 * own.size


def _with_levels(pages: Sequence[BlocksOfPage], facts: _DocumentFacts) -> list[BlocksOfPage]:
    """Set heading levels: by the file, else by numbers, else by size, weight and capitals."""
    found = [(page, one) for page in pages for one in page.blocks if one.role is Role.HEADING and not one.level]
    ranks = _style_ranks(found)
    depths = {depth: _usual(ranks[_heading_style(page, one)] for page, one in found if _depth(page, one) == depth)
              for depth in range(1, HEADING_LEVELS)}  # fmt: skip
    # One level above the numbered headings, for the title.
    first = min(max(next((rank - depth for depth, rank in depths.items() if rank), 0), 0), 1)

    def level(page: BlocksOfPage, block: Block) -> int:
        depth = _depth(page, block)
        return min(max(depth + first if depth else ranks[_heading_style(page, block)], 1), HEADING_LEVELS)

    return [
        replace(page, blocks=[
            replace(one, level=level(page, one)) if one.role is Role.HEADING and not one.level else one
            for one in page.blocks
        ])
        for page in pages
    ]  # fmt: skip


def _heading_style(page: BlocksOfPage, block: Block) -> tuple[float, int, bool]:
    return _rounded(block.size), block.style & BOLD, page.text_of(block).isupper()


def _style_ranks(found: Iterable[tuple[BlocksOfPage, Block]]) -> dict[tuple[float, int, bool], int]:
    looks = sorted({_heading_style(page, one) for page, one in found}, reverse=True)
    return {look: rank for rank, look in enumerate(looks, 1)}


def _depth(page: BlocksOfPage, block: Block) -> int:
    """Return 2 for a heading such as 3.1, and 0 without a number."""
    number = _NUMBER.match(" ".join(page.text_of(block).split()))
    return number[1].count(".") + 1 if number else 0


def _usual(ranks: Iterable[int]) -> int:
    some = list(ranks)
    return round(median(some)) if some else 0
