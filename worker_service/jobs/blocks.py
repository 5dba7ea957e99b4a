"""Roles of the parts of a page's text, decided by tables of points.

Some roles show on a single page; `resolve_roles` adds the others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

BOLD, ITALIC, MONOSPACED, STATED_BY_FILE = 1, 2, 4, 8
"""Flags of `Block.style`. STATED_BY_FILE: the file itself says what the block is."""

HEADING_LEVELS = 6
MARKER = re.compile(
    r"(?:[•◦▪▫●○■□‣⁃∙·➢➤✓✔❖*\u2013\u2014\uf0a7\uf0b7\uf0d8-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5})[.)])(?=\s)"
)
_HEADING_NUMBER = re.compile(r"(?:(?:chapter|part|section|kapitel|teil|appendix|annex|anhang)\s+)?"
                     r"((?:\d{1,2}|[A-Z]|[IVX]{1,5})(?:\.\d{1,3}){0,4})[.):]?\s+(?=\S)", re.IGNORECASE)  # fmt: skip
_PAGE_NUMBER = re.compile(
    r"\W*(?:(?:page|seite|p\.|s\.)\s*)?(?:\d{1,4}|[ivxlc]{1,7})(?:\s*(?:of|von|/|\|)\s*\d{1,4})?\W*", re.IGNORECASE
)
_SENTENCE_END = (".", "!", "?", ";", ",", ":")
_HEADING_CHARACTERS_MAX = 200
_HEADING_POINTS = 3.0  # Evidence that makes a heading. `./run bench markdown` measures what a change does.
_EDGE_SHARE = 0.11  # Share of the page's height at its top and bottom.
_EDGE_BLOCKS = 4
_RUNNING_LINES_MAX = 3
_SAME_HEIGHT_SHARE = 0.02  # Share of the page's height by which running lines of the same text may differ in height.
_PLACE_POINTS = 4  # Size of the squares into which positions are rounded to compare places of different pages.
_LARGER_RATIO = 1.08
_SAME_SIZE_POINTS = 0.4


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


HEAD_AND_FOOT_ROLES = (Role.HEAD, Role.FOOT, Role.NUMBER)
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


P = TypeVar("P", bound=BlocksOfPage)


def resolve_roles(pages: Sequence[P]) -> list[P]:
    """Add roles that only the whole document shows, and the levels of headings."""
    without_headings = _set_running_roles(pages)
    facts = _measure_document(without_headings)
    with_headings: list[P] = []
    for page in without_headings:
        blocks = list(page.blocks)
        for index, block in enumerate(page.blocks):
            if (
                block.role in _MAY_BE_HEADING
                and block.end - block.begin <= _HEADING_CHARACTERS_MAX
                and _heading_points(page, index, facts) >= _HEADING_POINTS
            ):
                blocks[index] = replace(block, role=Role.HEADING)
        with_headings.append(replace(page, blocks=blocks))
    return _set_heading_levels(with_headings)


# ── Running heads, feet and page numbers ──────────────────────────────────────────────────────────────────────────────


def _set_running_roles(pages: Sequence[P]) -> list[P]:
    edges_by_page = [_is_top_by_edge_index(page) for page in pages]
    heights: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for page, is_top_by_index in zip(pages, edges_by_page, strict=True):
        for index, is_top in is_top_by_index.items():
            block = page.blocks[index]
            heights[is_top, _text_without_numbers(page.text_of(block))].append(block.y0)
    # In a document of few pages, a running line of even or odd pages is repeated only once.
    repetitions_min = 2 if len(pages) < 6 else 3
    repeated_places = _repeated_places(pages)
    with_running_lines: list[P] = []
    for page, is_top_by_index in zip(pages, edges_by_page, strict=True):
        blocks = [
            replace(block, role=Role.HEAD, level=0) if _text_and_place(page, block) in repeated_places else block
            for block in page.blocks
        ]
        for index, is_top in is_top_by_index.items():
            block, text = blocks[index], page.text_of(blocks[index])
            tolerance = _SAME_HEIGHT_SHARE * page.size[1]
            repetitions = sum(abs(y - block.y0) < tolerance for y in heights[is_top, _text_without_numbers(text)])
            is_stated_heading = block.role is Role.HEADING and block.level > 0
            if _PAGE_NUMBER.fullmatch(text.strip()):
                blocks[index] = replace(block, role=Role.NUMBER, level=0)
            elif repetitions >= repetitions_min and not is_stated_heading:
                blocks[index] = replace(block, role=Role.HEAD if is_top else Role.FOOT, level=0)
        with_running_lines.append(replace(page, blocks=blocks))
    return with_running_lines


_TextAndPlace = tuple[str, int, int]


def _repeated_places(pages: Sequence[BlocksOfPage]) -> set[_TextAndPlace]:
    """Return texts at the same place of most pages."""
    page_counts: Counter[_TextAndPlace] = Counter()
    for page in pages:
        page_counts.update(
            {_text_and_place(page, block) for block in page.blocks if block.is_placed and block.role in _MAY_BE_HEADING}
        )
    return {place for place, count in page_counts.items() if count > 3 and count > 0.5 * len(pages)}


def _text_and_place(page: BlocksOfPage, block: Block) -> _TextAndPlace:
    return page.text_of(block), round(block.x0 / _PLACE_POINTS), round(block.y0 / _PLACE_POINTS)


def _is_top_by_edge_index(page: BlocksOfPage) -> dict[int, bool]:
    """Return the indexes of the blocks at the edges of the page: True at the top, False at the bottom."""
    height = page.size[1]
    short_blocks = [
        index
        for index, block in enumerate(page.blocks)
        if block.is_placed
        and block.role not in (Role.TABLE, Role.PICTURE, *HEAD_AND_FOOT_ROLES)
        and page.text_of(block).strip().count("\n") < _RUNNING_LINES_MAX
    ]
    upper = sorted(short_blocks, key=lambda index: page.blocks[index].y0)[:_EDGE_BLOCKS]
    lower = sorted(short_blocks, key=lambda index: -page.blocks[index].y1)[:_EDGE_BLOCKS]
    pictures = [index for index, block in enumerate(page.blocks) if block.role is Role.PICTURE]
    at_bottom = [index for index in [*lower, *pictures] if page.blocks[index].y0 > (1 - _EDGE_SHARE) * height]
    at_top = [index for index in [*upper, *pictures] if page.blocks[index].y1 < _EDGE_SHARE * height]
    return dict.fromkeys(at_bottom, False) | dict.fromkeys(at_top, True)


def _text_without_numbers(text: str) -> str:
    return re.sub(r"\d+|\b[ivxlc]+\b", "#", " ".join(text.split()).casefold())[:200]


# ── Headings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _DocumentFacts(NamedTuple):
    body_size: float
    """Height in points of the font that most of the text has."""
    is_body_bold: bool
    states_headings: bool
    """The file itself says which blocks are headings."""


def _measure_document(pages: Sequence[BlocksOfPage]) -> _DocumentFacts:
    sizes: Counter[float] = Counter()
    bold_characters = characters = 0
    for block in (block for page in pages for block in page.blocks):
        if block.role in _MAY_BE_HEADING or block.role is Role.TABLE:
            length = block.end - block.begin
            sizes[_rounded(block.size)] += length
            characters += length
            bold_characters += length if block.style & BOLD else 0
    body_size = sizes.most_common(1)[0][0] if sizes else 0.0
    states_headings = any(
        block.role is Role.HEADING and block.style & STATED_BY_FILE for page in pages for block in page.blocks
    )
    return _DocumentFacts(body_size, bold_characters > characters / 2, states_headings)


def _rounded(size: float) -> float:
    return round(size * 2) / 2


def _heading_points(page: BlocksOfPage, index: int, document: _DocumentFacts) -> float:
    block = page.blocks[index]
    blocks_before, blocks_after = reversed(page.blocks[:index]), page.blocks[index + 1 :]
    before = next((other for other in blocks_before if other.role is not Role.PICTURE), None)
    after = next((other for other in blocks_after if other.role is not Role.PICTURE), None)
    lines = page.text_of(block).strip()
    text = " ".join(lines.split())
    letters = [character for character in text if character.isalpha()]
    ratio = block.size / document.body_size if document.body_size else 1.0
    number = _HEADING_NUMBER.match(text)
    is_capital = len(letters) > 3 and sum(map(str.isupper, letters)) > 0.9 * len(letters)
    # Space above and below in heights of the body text; 2 at the edge of a column.
    unit = document.body_size or 1.0
    above = 2.0 if before is None or before.y1 > block.y1 else (block.y0 - before.y1) / unit
    below = 2.0 if after is None or after.y0 < block.y0 else (after.y0 - block.y1) / unit
    is_followed_by_body = after is not None and (
        after.end - after.begin > block.end - block.begin
        or after.role is not Role.PARAGRAPH
        or after.size < block.size - _SAME_SIZE_POINTS
    )
    evidence = (
        # Letters.
        (1.5, ratio >= _LARGER_RATIO),
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
        (-4.0, lines.count("\n") > 3),
        (-4.0, len(letters) < 2 or len(letters) < 0.5 * len(text.replace(" ", ""))),
        (-2.0, block.role is Role.ITEM and not number),
        # Place.
        (0.5, above > 0.6),
        (0.5, above > 1.2 * below),
        (0.5 if is_followed_by_body else -1.0, True),
        (-2.0, any(other is not None and _is_beside(other, block) for other in (before, after))),
        # What the file says.
        (-4.0, block.style & STATED_BY_FILE and document.states_headings),
    )
    return sum(points for points, is_true in evidence if is_true)


def _is_beside(other: Block, block: Block) -> bool:
    """Return whether both blocks are on one line of one column."""
    overlap = min(other.y1, block.y1) - max(other.y0, block.y0)
    return other.y1 - other.y0 < 4.5 * block.size and overlap > 0.5 * block.size


def _set_heading_levels(pages: Sequence[P]) -> list[P]:
    """Take levels from the file, or from numbers, or from size, weight and capitals."""
    headings = [(page, block) for page in pages for block in page.blocks if _lacks_level(block)]
    styles = sorted({_heading_style(page, block) for page, block in headings}, reverse=True)
    ranks = {style: rank for rank, style in enumerate(styles, 1)}  # 1 for the largest
    ranks_by_depth: dict[int, list[int]] = defaultdict(list)
    for page, block in headings:
        ranks_by_depth[_number_depth(page, block)].append(ranks[_heading_style(page, block)])
    # If a larger heading, such as the title, is above the numbered headings, they begin one level below it.
    first_depth = next((depth for depth in range(1, HEADING_LEVELS) if depth in ranks_by_depth), None)
    is_title_above = first_depth is not None and round(median(ranks_by_depth[first_depth])) > first_depth
    title_levels = 1 if is_title_above else 0
    with_levels: list[P] = []
    for page in pages:
        blocks = list(page.blocks)
        for index, block in enumerate(page.blocks):
            if _lacks_level(block):
                depth = _number_depth(page, block)
                level = depth + title_levels if depth else ranks[_heading_style(page, block)]
                blocks[index] = replace(block, level=min(max(level, 1), HEADING_LEVELS))
        with_levels.append(replace(page, blocks=blocks))
    return with_levels


def _lacks_level(block: Block) -> bool:
    return block.role is Role.HEADING and not block.level


_HeadingStyle = tuple[float, int, bool]  # Size of the font, weight, and whether all letters are capitals.


def _heading_style(page: BlocksOfPage, block: Block) -> _HeadingStyle:
    return _rounded(block.size), block.style & BOLD, page.text_of(block).isupper()


def _number_depth(page: BlocksOfPage, block: Block) -> int:
    """Return 2 for a heading such as 3.1, and 0 without a number."""
    number = _HEADING_NUMBER.match(" ".join(page.text_of(block).split()))
    return number[1].count(".") + 1 if number else 0
