"""Read the text of a PDF's page, with its blocks and tables.

Below PyMuPDF's Python layer, which saves a fifth of the time, unless equal results are not certain. Coordinates are
hundredths of a point.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading import blocks as text_blocks
from job_handlers.reading import reading_order, tables
from job_handlers.reading.layout import TEXT_CHARACTERS_MAX, Layout, PageTable, TableCell, bounds_of
from job_handlers.reading.pdf.footnotes import notes_of
from job_handlers.reading.pdf.library import RESOURCES, inherited, mupdf, pymupdf, round_box, size_of
from job_handlers.reading.pdf.pictures import with_pictures
from job_handlers.reading.pdf.stated_structure import Place, StatedStructure, Statement, links_of
from worker_service.handlers import Block, NoteMark, Role, TextLink

_SCAN_PIXELS_LEAST = 300_000
# Expand ligatures into letters, which is what users type when they search.
FLAGS = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_PRESERVE_IMAGES & ~pymupdf.TEXT_PRESERVE_LIGATURES
_FLAGS_UNCLIPPED = FLAGS & ~pymupdf.TEXT_CLIP
_VECTORS = pymupdf.TEXT_COLLECT_VECTORS | pymupdf.TEXT_LAZY_VECTORS
_DRAWN_BYTES_MAX = 1 << 18
_BLOCKS_LOOKED_AT = 6000
_RULE_MOST = 2.5
"""Points. Anything thicker is an area."""
_IDENTITY = pymupdf.Matrix(1, 1)
_PAGE_BYTES = 1 << 14
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_IMAGE = mupdf.FZ_STEXT_BLOCK_IMAGE
_ROTATE, _XOBJECT = mupdf.PDF_ENUM_NAME_Rotate, mupdf.PDF_ENUM_NAME_XObject
_CONTENTS, _LENGTH = mupdf.PDF_ENUM_NAME_Contents, mupdf.PDF_ENUM_NAME_Length


class PageText(Struct, frozen=True):
    size: tuple[float, float]
    text: str
    blocks: list[Block]
    tables: list[PageTable]
    links: list[TextLink]
    notes: list[NoteMark]
    may_be_scan: bool

    @property
    def layout(self) -> Layout:
        return Layout(self.size, blocks=self.blocks, links=self.links, notes=self.notes, tables=self.tables)


class _Corners(msgspec.Struct, gc=False):
    x: int
    y: int
    w: int
    h: int


class _Font(msgspec.Struct, gc=False):
    size: int
    name: str = ""
    weight: str = ""


class _Line(msgspec.Struct, gc=False):
    bbox: _Corners
    font: _Font
    x: int
    y: int
    text: str


class _PageBlock(msgspec.Struct, gc=False):
    bbox: _Corners | None = None
    lines: list[_Line] = []
    stroked: int = 0


class _PageBlocks(msgspec.Struct, gc=False):
    blocks: list[_PageBlock]


_blocks_decoder = msgspec.json.Decoder(_PageBlocks)


def read_text(document: Any, number: int, stated: StatedStructure) -> PageText:
    page = mupdf.fz_load_page(document.this, number - 1)
    own = mupdf.pdf_page_from_fz_page(page)
    whole = mupdf.fz_bound_page(page)
    if not own.m_internal or mupdf.fz_is_infinite_rect(whole):
        return _text_by_pymupdf(document, number, stated)
    drawn = _VECTORS if _packed_length(own) <= _DRAWN_BYTES_MAX else 0
    read = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, _FLAGS_UNCLIPPED | drawn, _IDENTITY))
    found = _blocks_in(read)
    # The page may have invisible text beyond its edges. Text that runs sideways on the shown page is reported as
    # upright.
    is_turned = inherited(own, _ROTATE).pdf_to_int()
    if not _are_within([one.bbox for one in found if one.bbox is not None], whole) or (
        is_turned and not _is_horizontal(found)
    ):
        return _text_by_pymupdf(document, number, stated, drawn)
    has_pictures = _has_pictures(own)
    may_be_scan = has_pictures and _may_be_scan(document, number)
    size = size_of(whole)
    said = stated.parts(page, _FLAGS_UNCLIPPED, size[1])
    made = _page_text(size, read, found, None, said.of_lines, may_be_scan=may_be_scan)
    blocks = stated.with_outline(number, made.blocks, made.text)
    links = links_of(page, read, blocks, made.text)
    if has_pictures:
        blocks = with_pictures(page, own, blocks, made.text, stated.tree, said.images)
    return replace(made, blocks=blocks, links=links)


def _packed_length(own: Any) -> int:
    contents = own.obj().pdf_dict_get(_CONTENTS)
    length: int = contents.pdf_dict_get(_LENGTH).pdf_to_int() if contents.pdf_is_stream() else 0
    return length


def _text_by_pymupdf(document: Any, number: int, stated: StatedStructure, drawn: int = 0) -> PageText:
    page = document[number - 1]
    read = page.get_textpage(flags=FLAGS | drawn).this
    may_be_scan = not document.is_pdf or _may_be_scan(document, number)
    # The text of a turned page is reported as if the page were not turned.
    turn = page.rotation_matrix if page.rotation else None
    made = _page_text(size_of(page.rect), read, _blocks_in(read), turn, {}, may_be_scan=may_be_scan)
    return replace(made, blocks=stated.with_outline(number, made.blocks, made.text))


def _blocks_in(read: Any) -> list[_PageBlock]:
    buffer = mupdf.FzBuffer(_PAGE_BYTES)
    out = mupdf.FzOutput(buffer)
    mupdf.fz_print_stext_page_as_json(out, read, 100.0)
    out.fz_close_output()
    written: bytes = buffer.fz_buffer_extract()
    try:
        return _blocks_decoder.decode(written).blocks
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A font may map its characters to lone surrogates, which are not valid in JSON.
        return _blocks_decoder.decode(_SURROGATE.sub(b"\xef\xbf\xbd", written).decode("utf-8", "replace")).blocks


def _is_horizontal(found: list[_PageBlock]) -> bool:
    boxes = [line.bbox for one in found for line in one.lines]
    return sum(box.w >= box.h for box in boxes) > 0.5 * len(boxes)


def _are_within(boxes: Sequence[_Corners], whole: Any) -> bool:
    return not boxes or bool(
        100 * whole.x0 <= min([one.x for one in boxes])
        and 100 * whole.y0 <= min([one.y for one in boxes])
        and max([one.x + one.w for one in boxes]) <= 100 * whole.x1
        and max([one.y + one.h for one in boxes]) <= 100 * whole.y1
        and min([min(one.w, one.h) for one in boxes]) > 0
    )


def _page_text(
    size: tuple[float, float],
    read: Any,
    found: list[_PageBlock],
    turn: Any,
    said: Mapping[Place, Statement],
    *,
    may_be_scan: bool,
) -> PageText:
    lines = [line for one in found for line in one.lines]
    boxes = [
        (box.x / 100, box.y / 100, (box.x + box.w) / 100, (box.y + box.h) / 100) for one in lines for box in [one.bbox]
    ]
    groups: list[range] = []
    for one in found:
        if one.bbox is not None:
            begin = groups[-1].stop if groups else 0
            groups.append(range(begin, begin + len(one.lines)))
    rules = cache(lambda: _rules_in(read, found))
    grids = _tables_in(read, found, lines, rules) if tables.may_have_tables([one.y for one in lines]) else []
    of_table = {piece.at: at for at, grid in enumerate(grids) for row in grid.rows for cell in row for piece in cell}
    parts = reading_order.arrange_blocks(
        groups,
        boxes,
        [(one.x0, one.y0, one.x1, one.y1) for one in grids],
        of_table,
        rules=rules,
    )
    written: list[str] = []
    blocks: list[Block] = []
    placed: list[PageTable] = []
    begin = 0
    facts, of_parts = _text_lines(parts, lines, boxes, size[1], said)
    for run, own in groupby(zip(parts, of_parts, strict=True), lambda one: one[0].table):
        if run is None:
            some = [line for _, own_lines in own for line in own_lines]
            written += [line.text for line in some]
            blocks += text_blocks.divide_lines(some, begin, facts)
            begin = blocks[-1].end if some else begin
            continue
        for part, _ in own:
            text = grids[run].as_text()
            placed.append(_stored_table(grids[run], begin, begin + len(text), boxes, turn))
            text += _text_beside_table(grids[run], lines)
            written.append(text)
            blocks.append(Block(*part.box, begin, begin + len(text), Role.TABLE))
            begin += len(text)
    if turn is not None:
        blocks = [replace(one, **dict(zip(_EDGES, _to_page_space(_box_of(one), turn), strict=True))) for one in blocks]
    text = "".join(written)[:TEXT_CHARACTERS_MAX]
    notes = notes_of(read, blocks, text) if any(one.role is Role.FOOTNOTE for one in blocks) else []
    return PageText(size, text, blocks, placed, [], notes, may_be_scan)


_NOTHING_SAID = Statement()
_EDGES = ("x0", "y0", "x1", "y1")


def _box_of(block: Block) -> tuple[float, float, float, float]:
    return block.x0, block.y0, block.x1, block.y1


def _text_lines(
    parts: Sequence[reading_order.OrderedPart],
    lines: Sequence[_Line],
    boxes: Sequence[tuple[float, float, float, float]],
    height: float,
    said: Mapping[Place, Statement],
) -> tuple[text_blocks.PageFacts, list[list[text_blocks.TextLine]]]:
    found: list[list[text_blocks.TextLine]] = []
    for part in parts:
        own: list[text_blocks.TextLine] = []
        for at in part.lines:
            line = lines[at]
            font = line.font
            style = text_blocks.font_style(font.name, font.weight)
            begins_part = not own
            role, level, group = said.get((line.x, line.y), _NOTHING_SAID) if said else _NOTHING_SAID
            own.append(text_blocks.TextLine(
                *boxes[at], line.y / 100, font.size / 100, style, f"{line.text}\n", begins_part, role, level, group
            ))  # fmt: skip
        found.append(own)
    return text_blocks.facts_of([one for own in found for one in own], height), found


def _tables_in(
    read: Any, found: list[_PageBlock], lines: list[_Line], rules: Callable[[], Sequence[tables.RulingLine]]
) -> list[tables.FoundTable]:
    # Use a little less than the height of the letters, so that lines set close together do not overlap.
    pieces = [
        tables.TextPiece(
            box.x / 100, (one.y - 0.72 * size) / 100, (box.x + box.w) / 100, (one.y + 0.12 * size) / 100, one.text, at
        )
        for at, one in enumerate(lines)
        for box, size in [(one.bbox, one.font.size)]
        if box.h < 2.5 * size or box.w > box.h
    ]  # fmt: skip
    words: list[Any] = []

    def split(piece: tables.TextPiece) -> list[tables.TextPiece]:
        if not words:
            words.extend(pymupdf.TextPage(read).extractWORDS())
        block = bisect_right(starts, piece.at) - 1
        line = (block, piece.at - starts[block])
        begin = bisect_left(words, line, key=_line_of)
        x0, y0, x1, y1, at = piece.x0, piece.y0, piece.x1, piece.y1, piece.at
        return [
            tables.TextPiece(one[0], y0, one[2], y1, one[4], at)
            for one in words[begin : bisect_right(words, line, lo=begin, key=_line_of)]
            if one[0] >= x0 - 0.1 and one[2] <= x1 + 0.1
        ]

    starts = [0, *accumulate([len(one.lines) for one in found if one.bbox is not None])]
    return tables.find(pieces, rules(), split)


_line_of = itemgetter(5, 6)


def _rules_in(read: Any, found: list[_PageBlock]) -> list[tables.RulingLine]:
    if len(found) > _BLOCKS_LOOKED_AT or all(one.bbox is not None for one in found):
        return []
    rules: list[tables.RulingLine] = []
    block = read.m_internal.first_block
    kinds = iter(found)
    while block:
        if block.type == _IMAGE:
            block = block.next
            continue
        kind = next(kinds, None)
        if kind is None:
            break
        if kind.bbox is None:
            box = block.bbox
            x0, y0, x1, y1 = box.x0, box.y0, box.x1, box.y1
            if x1 - x0 <= _RULE_MOST or y1 - y0 <= _RULE_MOST:
                rules.append(tables.RulingLine(x0, y0, x1, y1))
            elif kind.stroked:
                rules += (tables.RulingLine(x0, y0, x1, y0), tables.RulingLine(x0, y1, x1, y1),
                          tables.RulingLine(x0, y0, x0, y1), tables.RulingLine(x1, y0, x1, y1))  # fmt: skip
        block = block.next
    return rules


def _stored_table(
    grid: tables.FoundTable, begin: int, end: int, boxes: Sequence[tuple[float, ...]], turn: Any
) -> PageTable:

    def cell(pieces: Sequence[tables.TextPiece], text: str) -> TableCell | None:
        if not pieces:
            return None
        x0, x1, at = pieces[0].x0, pieces[0].x1, pieces[0].at
        corners = (x0, boxes[at][1], x1, boxes[at][3])
        if len(pieces) > 1:
            corners = (min([one.x0 for one in pieces]), min([boxes[one.at][1] for one in pieces]),
                       max([one.x1 for one in pieces]), max([boxes[one.at][3] for one in pieces]))  # fmt: skip
        return TableCell(*_to_page_space(corners, turn), text)

    rows = [
        [cell(*one) for one in zip(row, texts, strict=True)] for row, texts in zip(grid.rows, grid.texts, strict=True)
    ]
    found = [one for row in rows for one in row if one is not None]
    return PageTable(bounds_of(found), begin, end, rows)


def _text_beside_table(grid: tables.FoundTable, lines: Sequence[_Line]) -> str:
    used: dict[int, list[str]] = {}
    for row in grid.rows:
        for cell in row:
            for piece in cell:
                if len(piece.text) < len(lines[piece.at].text):
                    used.setdefault(piece.at, []).extend(piece.text.split())
    left = ""
    for at, taken in used.items():
        if len(lines[at].text.split()) > len(taken):
            others = Counter(taken)
            rest = []
            for word in lines[at].text.split():
                if others[word]:
                    others[word] -= 1
                elif word.strip(".·…"):
                    rest.append(word)
            left += f"{' '.join(rest)}\n" if rest else ""
    return left


def _to_page_space(box: Sequence[float], turn: Any) -> tuple[float, float, float, float]:
    return round_box(box if turn is None else pymupdf.Rect(box) * turn)


def _has_pictures(own: Any) -> bool:
    # Listing them takes longer.
    return bool(inherited(own, RESOURCES).pdf_dict_get(_XOBJECT).m_internal)


def _may_be_scan(document: Any, number: int) -> bool:
    pixels: int = sum(image[2] * image[3] for image in document.get_page_images(number - 1))
    return pixels >= _SCAN_PIXELS_LEAST
