"""Structure that a PDF states: its outline and its structure tree (tags)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading.layout import Box
from job_handlers.reading.pdf.library import Corners, mupdf, pymupdf, text_page_as_json
from worker_service.handlers import LINK_ADDRESS, STATED_BY_FILE, Block, Role, TextLink

_TITLES_MAX = 20_000
_TITLE_CHARACTERS_MAX = 300
_LINKS_MAX = 300
_TREE_DEPTH_MAX = 100
_LINES_IN_TREE_MIN = 0.8  # Share of a page's lines. With fewer, the tree is not complete.
_EDGE = 0.1  # Share of the page's height at its top and bottom.
_IDENTITY = pymupdf.Matrix(1, 1)
_ROLES = {
    "H": (Role.HEADING, 0), "Title": (Role.HEADING, 1), "P": (Role.PARAGRAPH, 0), "LI": (Role.ITEM, 0),
    "Caption": (Role.CAPTION, 0), "Note": (Role.FOOTNOTE, 0), "FENote": (Role.FOOTNOTE, 0), "Code": (Role.CODE, 0),
    **{f"H{level}": (Role.HEADING, level) for level in range(1, 7)},
}  # fmt: skip

LineStart = tuple[int, int]
"""x and y of the beginning of a line, in hundredths of a point."""


class Statement(NamedTuple):
    role: Role | None = None
    level: int = 0
    group: int = 0
    """Number of the structure element within the page; 0 outside of the tree."""


class _TaggedLine(Struct, gc=False):
    x: int
    y: int
    text: str


class _TaggedBlock(Struct):
    type: str
    bbox: Corners | None = None
    std: str = ""
    lines: list[_TaggedLine] = []
    contents: list[_TaggedBlock] = []


class _TaggedPage(Struct):
    blocks: list[_TaggedBlock]


_decode = msgspec.json.Decoder(_TaggedPage).decode


class StatedParts(NamedTuple):
    statement_by_line: Mapping[LineStart, Statement]
    image_boxes: list[Box] | None
    """None if they were not looked for."""


class StatedStructure:
    def __init__(self, document: Any) -> None:
        self._level_by_title_by_page: dict[int, dict[str, int]] = {}
        self.structure_root: Any = None
        if not document.is_pdf:
            return
        # Without its broken outline or catalog, the file can still be read.
        with suppress(Exception):
            catalog = pymupdf._as_pdf_document(document).pdf_trailer().pdf_dict_gets("Root")
            structure_root = catalog.pdf_dict_gets("StructTreeRoot")
            self.structure_root = structure_root if structure_root.m_internal else None
        with suppress(Exception):
            for level, title, page, *_ in document.get_toc(simple=True)[:_TITLES_MAX]:
                self._level_by_title_by_page.setdefault(page, {}).setdefault(_letters_and_digits(title), level)

    def with_outline_headings(self, number: int, blocks: list[Block], text: str) -> list[Block]:
        level_by_title = self._level_by_title_by_page.get(number)
        if not level_by_title:
            return blocks
        blocks_with_headings: list[Block] = []
        for block in blocks:
            may_be_title = block.role in (Role.PARAGRAPH, Role.ITEM) and block.end - block.begin < _TITLE_CHARACTERS_MAX
            level = level_by_title.get(_letters_and_digits(text[block.begin : block.end])) if may_be_title else None
            if level:
                block = replace(block, role=Role.HEADING, level=min(level, 6), style=block.style | STATED_BY_FILE)
            blocks_with_headings.append(block)
        return blocks_with_headings

    def parts_of_page(self, page: Any, flags: int, height: float) -> StatedParts:
        if self.structure_root is None:
            return StatedParts({}, None)
        flags |= mupdf.FZ_STEXT_COLLECT_STRUCTURE | mupdf.FZ_STEXT_PRESERVE_IMAGES
        text_page = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, flags, _IDENTITY))
        try:
            blocks = _decode(text_page_as_json(text_page)).blocks
        except (msgspec.DecodeError, UnicodeDecodeError):
            return StatedParts({}, None)
        images: list[Box] = []
        statements = dict(_statements_of_lines(blocks, Statement(), count(1), 0, images))
        lines_in_tree = sum([statement.group > 0 for statement in statements.values()])
        if lines_in_tree < _LINES_IN_TREE_MIN * len(statements):
            return StatedParts({}, images)
        for line_start, statement in statements.items():
            if not statement.group:
                statements[line_start] = _running_line(line_start, height)
        return StatedParts(statements, images)


def links_of(page: Any, text_page: Any, blocks: Sequence[Block], text: str) -> list[TextLink]:
    """Return the links to web addresses, with the places of the linked words in the text."""
    links: list[TextLink] = []
    words: list[Any] = []
    link = mupdf.fz_load_links(page)
    while link.m_internal and len(links) < _LINKS_MAX:
        address, box = link.uri(), link.rect()
        link = link.next()
        if not LINK_ADDRESS.fullmatch(address):
            continue
        words = words or pymupdf.TextPage(text_page).extractWORDS()
        linked_words = [word for x0, y0, x1, y1, word, *_ in words if _is_inside((x0 + x1) / 2, (y0 + y1) / 2, box)]
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        block_of_link = next((block for block in blocks if _is_inside(x, y, block)), None)
        if not linked_words or block_of_link is None:
            continue
        # The same words may be linked twice in a block: search behind the links before.
        begin = max([block_of_link.begin, *(other.end for other in links if other.end <= block_of_link.end)])
        pattern = re.compile(r"\s+".join(map(re.escape, linked_words)))
        if match := pattern.search(text, begin, block_of_link.end):
            links.append(TextLink(match.start(), match.end(), address))
    return links


def _is_inside(x: float, y: float, box: Any) -> bool:
    return bool(box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1)


def _statements_of_lines(
    blocks: Sequence[_TaggedBlock], parent: Statement, groups: Iterator[int], depth: int, images: list[Box]
) -> Iterator[tuple[LineStart, Statement]]:
    """Yield what the tree states of each line, and append the boxes of images to `images`."""
    if depth > _TREE_DEPTH_MAX:
        return
    for block in blocks:
        for line in block.lines:
            if not line.text.isspace():
                yield (line.x, line.y), parent
        if block.contents:
            yield from _statements_of_lines(
                block.contents, _statement_of_element(block.std, parent, groups), groups, depth + 1, images
            )
        elif block.type == "image" and (box := block.bbox):
            images.append((box.x / 100, box.y / 100, (box.x + box.w) / 100, (box.y + box.h) / 100))


def _statement_of_element(kind: str, parent: Statement, groups: Iterator[int]) -> Statement:
    role, level = _ROLES.get(kind, (None, 0))
    # A paragraph within an item or a note is a part of it.
    if role is None or (role is Role.PARAGRAPH and parent.role in (Role.ITEM, Role.FOOTNOTE, Role.CAPTION)):
        return parent if parent.group else Statement(group=next(groups))
    if role is Role.ITEM:
        level = parent.level + 1 if parent.role is Role.ITEM else 1
    return Statement(role, level, next(groups))


def _running_line(line_start: LineStart, page_height: float) -> Statement:
    """Return a running head or foot: a line outside of a complete tree, at the edge of the page."""
    _, y = line_start
    height_share = y / 100 / (page_height or 1.0)
    if height_share < _EDGE:
        return Statement(Role.HEAD)
    return Statement(Role.FOOT if height_share > 1 - _EDGE else None)


def _letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
