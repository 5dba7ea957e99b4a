"""Read the text of a PDF's page, with its blocks and tables.

Most pages are read by MuPDF itself, without PyMuPDF's Python layer, which saves a fifth of the time. Pages where the
result might differ are read by PyMuPDF. MuPDF's JSON has coordinates in hundredths of a point.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from job_handlers.reading import blocks as text_blocks
from job_handlers.reading import reading_order, tables
from job_handlers.reading.layout import TEXT_CHARACTERS_MAX, Box, Layout, PageTable, TableCell, bounds_of
from job_handlers.reading.pdf.footnotes import notes_of
from job_handlers.reading.pdf.library import (
    RESOURCES,
    Corners,
    inheritable_value,
    is_missing,
    mupdf,
    pymupdf,
    round_box_to_tenths,
    size_of,
    text_page_as_json,
)
from job_handlers.reading.pdf.pictures import with_pictures
from job_handlers.reading.pdf.stated_structure import LineStart, StatedStructure, Statement, links_of
from worker_service.handlers import Block, NoteMark, Role, TextLink

_SCAN_PIXELS_MIN = 300_000  # Of all images of a page. With fewer, it is no scan.
# Expand ligatures into letters, which is what users type when they search.
FLAGS = pymupdf.TEXTFLAGS_TEXT & ~pymupdf.TEXT_PRESERVE_IMAGES & ~pymupdf.TEXT_PRESERVE_LIGATURES
_FLAGS_UNCLIPPED = FLAGS & ~pymupdf.TEXT_CLIP
_VECTORS = pymupdf.TEXT_COLLECT_VECTORS | pymupdf.TEXT_LAZY_VECTORS
_DRAWING_BYTES_MAX = 1 << 18  # Compressed. The ruling lines of a page with a longer content stream are not collected.
_BLOCKS_MAX = 6000  # With more, the page is a drawing, and has no ruling lines of tables.
_RULE_POINTS_MAX = 2.5  # Anything thicker is an area.
_ASCENT, _DESCENT = 0.72, 0.12
"""Distances from the baseline to the letters' edges, in font sizes, reduced so that close lines do not overlap."""
_UPRIGHT_HEIGHT_MAX = 2.5  # In font sizes. A line of text that is higher, and higher than wide, runs sideways.
_IDENTITY = pymupdf.Matrix(1, 1)
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_IMAGE = mupdf.FZ_STEXT_BLOCK_IMAGE
_ROTATE, _XOBJECT = mupdf.PDF_ENUM_NAME_Rotate, mupdf.PDF_ENUM_NAME_XObject
_CONTENTS, _LENGTH = mupdf.PDF_ENUM_NAME_Contents, mupdf.PDF_ENUM_NAME_Length
_LEADER_DOTS = ".·…"
_NO_STATEMENT = Statement()


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


class _Font(msgspec.Struct, gc=False):
    size: int
    name: str = ""
    weight: str = ""


class _Line(msgspec.Struct, gc=False):
    bbox: Corners
    font: _Font
    x: int
    """Start of the baseline, in hundredths of a point, as is `y`."""
    y: int
    text: str


class _PageBlock(msgspec.Struct, gc=False):
    bbox: Corners | None = None
    """MuPDF's JSON has none for a drawing."""
    lines: list[_Line] = []
    stroked: int = 0

    @property
    def is_drawing(self) -> bool:
        return self.bbox is None


class _PageBlocks(msgspec.Struct, gc=False):
    blocks: list[_PageBlock]


_blocks_decoder = msgspec.json.Decoder(_PageBlocks)


def read_text(document: Any, number: int, stated_structure: StatedStructure) -> PageText:
    page = mupdf.fz_load_page(document.this, number - 1)
    pdf_page = mupdf.pdf_page_from_fz_page(page)
    page_box = mupdf.fz_bound_page(page)
    if is_missing(pdf_page) or mupdf.fz_is_infinite_rect(page_box):
        return _text_by_pymupdf(document, number, stated_structure)
    vectors = _VECTORS if _compressed_content_bytes(pdf_page) <= _DRAWING_BYTES_MAX else 0
    text_page = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, _FLAGS_UNCLIPPED | vectors, _IDENTITY))
    page_blocks = _blocks_in(text_page)
    is_turned = inheritable_value(pdf_page, _ROTATE).pdf_to_int() != 0
    # Reading without clipping is faster. Only if text lies outside the page does PyMuPDF read it again, clipped.
    # PyMuPDF also reads turned pages that show their text sideways, because MuPDF reports this text as upright.
    if not _have_area_inside_page([block.bbox for block in page_blocks if block.bbox is not None], page_box) or (
        is_turned and not _is_horizontal(page_blocks)
    ):
        return _text_by_pymupdf(document, number, stated_structure, vectors)
    may_have_pictures = _may_have_pictures(pdf_page)
    may_be_scan = may_have_pictures and _may_be_scan(document, number)
    size = size_of(page_box)
    _, height = size
    stated_parts = stated_structure.parts_of_page(page, _FLAGS_UNCLIPPED, height)
    page_text = _page_text(size, text_page, page_blocks, None, stated_parts.statement_by_line, may_be_scan=may_be_scan)
    blocks = stated_structure.with_outline_headings(number, page_text.blocks, page_text.text)
    links = links_of(page, text_page, blocks, page_text.text)
    if may_have_pictures:
        blocks = with_pictures(
            page, pdf_page, blocks, page_text.text, stated_structure.structure_root, stated_parts.image_boxes
        )
    return replace(page_text, blocks=blocks, links=links)


def _compressed_content_bytes(pdf_page: Any) -> int:
    """Return 0 if the content is in several streams.

    The length only decides early whether to collect ruling lines; `_BLOCKS_MAX` limits them on every page.
    """
    contents = pdf_page.obj().pdf_dict_get(_CONTENTS)
    length: int = contents.pdf_dict_get(_LENGTH).pdf_to_int() if contents.pdf_is_stream() else 0
    return length


def _text_by_pymupdf(document: Any, number: int, stated_structure: StatedStructure, vectors: int = 0) -> PageText:
    """Read a page without the statements of the structure tree, links and pictures, which only `read_text` adds."""
    page = document[number - 1]
    text_page = page.get_textpage(flags=FLAGS | vectors).this
    may_be_scan = not document.is_pdf or _may_be_scan(document, number)
    # The text of a turned page is reported as if the page were not turned.
    turn = page.rotation_matrix if page.rotation else None
    page_text = _page_text(size_of(page.rect), text_page, _blocks_in(text_page), turn, {}, may_be_scan=may_be_scan)
    return replace(page_text, blocks=stated_structure.with_outline_headings(number, page_text.blocks, page_text.text))


def _blocks_in(text_page: Any) -> list[_PageBlock]:
    json_bytes = text_page_as_json(text_page)
    try:
        return _blocks_decoder.decode(json_bytes).blocks
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A font may map its characters to lone surrogates, which are not valid in JSON.
        return _blocks_decoder.decode(_SURROGATE.sub(b"\xef\xbf\xbd", json_bytes).decode("utf-8", "replace")).blocks


def _is_horizontal(page_blocks: list[_PageBlock]) -> bool:
    boxes = [line.bbox for block in page_blocks for line in block.lines]
    return sum(box.w >= box.h for box in boxes) > 0.5 * len(boxes)


def _have_area_inside_page(boxes: Sequence[Corners], page_box: Any) -> bool:
    return not boxes or bool(
        100 * page_box.x0 <= min([box.x for box in boxes])
        and 100 * page_box.y0 <= min([box.y for box in boxes])
        and max([box.x + box.w for box in boxes]) <= 100 * page_box.x1
        and max([box.y + box.h for box in boxes]) <= 100 * page_box.y1
        and min([min(box.w, box.h) for box in boxes]) > 0
    )


def _page_text(
    size: tuple[float, float],
    text_page: Any,
    page_blocks: list[_PageBlock],
    turn: Any,
    statements: Mapping[LineStart, Statement],
    *,
    may_be_scan: bool,
) -> PageText:
    """`turn` maps coordinates in `text_page` to the page as it is shown; None if they are the same."""
    lines = [line for block in page_blocks for line in block.lines]
    boxes = [_box_of(line.bbox) for line in lines]
    find_rules = cache(lambda: _rules_in(text_page, page_blocks))
    may_have_tables = tables.may_have_tables([line.y for line in lines])
    found_tables = _tables_in(text_page, page_blocks, lines, find_rules()) if may_have_tables else []
    table_of_line: dict[int, int] = {}
    for number, table in enumerate(found_tables):
        table_of_line.update((piece.source_index, number) for piece in _pieces_of(table))
    parts = reading_order.arrange_blocks(
        _lines_of_blocks(page_blocks),
        boxes,
        [(table.x0, table.y0, table.x1, table.y1) for table in found_tables],
        table_of_line,
        find_rules=find_rules,
    )
    texts: list[str] = []
    blocks: list[Block] = []
    page_tables: list[PageTable] = []
    begin = 0
    lines_of_parts = [_text_lines(part, lines, boxes, statements) for part in parts]
    _, height = size
    page_facts = text_blocks.measure_page_facts([line for part_lines in lines_of_parts for line in part_lines], height)
    parts_and_lines = zip(parts, lines_of_parts, strict=True)
    for table_number, run in groupby(parts_and_lines, lambda part_and_lines: part_and_lines[0].table):
        if table_number is None:
            # A paragraph may continue in the next part.
            run_lines = [line for _, part_lines in run for line in part_lines]
            texts += [line.text for line in run_lines]
            blocks += text_blocks.divide_lines(run_lines, begin, page_facts)
            begin = blocks[-1].end if run_lines else begin
            continue
        # `arrange_blocks` returns one part for each table, so this loop runs once.
        for part, _ in run:
            table = found_tables[table_number]
            text = table.as_text()
            page_tables.append(_stored_table(table, begin, begin + len(text), boxes, turn))
            text += _text_beside_table(table, lines)
            texts.append(text)
            blocks.append(Block(*part.box, begin, begin + len(text), Role.TABLE))
            begin += len(text)
    if turn is not None:
        blocks = [_turn_block(block, turn) for block in blocks]
    text = "".join(texts)[:TEXT_CHARACTERS_MAX]
    has_footnotes = any(block.role is Role.FOOTNOTE for block in blocks)
    notes = notes_of(text_page, blocks, text) if has_footnotes else []
    return PageText(size, text, blocks, page_tables, links=[], notes=notes, may_be_scan=may_be_scan)


def _box_of(corners: Corners) -> Box:
    x, y = corners.x, corners.y
    return x / 100, y / 100, (x + corners.w) / 100, (y + corners.h) / 100


def _lines_of_blocks(page_blocks: Sequence[_PageBlock]) -> list[range]:
    ranges: list[range] = []
    begin = 0
    for block in page_blocks:
        if not block.is_drawing:
            ranges.append(range(begin, begin + len(block.lines)))
            begin += len(block.lines)
    return ranges


def _turn_block(block: Block, turn: Any) -> Block:
    x0, y0, x1, y1 = _to_page_space((block.x0, block.y0, block.x1, block.y1), turn)
    return replace(block, x0=x0, y0=y0, x1=x1, y1=y1)


def _text_lines(
    part: reading_order.OrderedPart,
    lines: Sequence[_Line],
    boxes: Sequence[Box],
    statements: Mapping[LineStart, Statement],
) -> list[text_blocks.TextLine]:
    text_lines: list[text_blocks.TextLine] = []
    for at in part.lines:
        line = lines[at]
        font = line.font
        style = text_blocks.font_style(font.name, font.weight)
        begins_part = not text_lines
        role, level, group = statements.get((line.x, line.y), _NO_STATEMENT)
        text_lines.append(text_blocks.TextLine(
            *boxes[at], line.y / 100, font.size / 100, style, f"{line.text}\n", begins_part, role, level, group
        ))  # fmt: skip
    return text_lines


def _tables_in(
    text_page: Any, page_blocks: list[_PageBlock], lines: list[_Line], rules: Sequence[tables.RulingLine]
) -> list[tables.FoundTable]:
    pieces: list[tables.TextPiece] = []
    for at, line in enumerate(lines):
        box, size = line.bbox, line.font.size
        if box.h < _UPRIGHT_HEIGHT_MAX * size or box.w > box.h:
            top, bottom = (line.y - _ASCENT * size) / 100, (line.y + _DESCENT * size) / 100
            pieces.append(tables.TextPiece(box.x / 100, top, (box.x + box.w) / 100, bottom, line.text, at))
    # PyMuPDF numbers words by block and line, and does not number drawings.
    first_lines = [0, *accumulate([len(block.lines) for block in page_blocks if not block.is_drawing])]
    get_words = cache(lambda: pymupdf.TextPage(text_page).extractWORDS())

    def words_in_piece(piece: tables.TextPiece) -> list[tables.TextPiece]:
        """`piece` may be a section of its line."""
        block = bisect_right(first_lines, piece.source_index) - 1
        block_and_line = (block, piece.source_index - first_lines[block])
        begin = bisect_left(get_words(), block_and_line, key=_block_and_line_of)
        end = bisect_right(get_words(), block_and_line, lo=begin, key=_block_and_line_of)
        return [
            tables.TextPiece(x0, piece.y0, x1, piece.y1, text, piece.source_index)
            for x0, _, x1, _, text, *_ in get_words()[begin:end]
            if x0 >= piece.x0 - 0.1 and x1 <= piece.x1 + 0.1
        ]

    return tables.find(pieces, rules, words_in_piece)


_block_and_line_of = itemgetter(5, 6)


def _rules_in(text_page: Any, page_blocks: list[_PageBlock]) -> list[tables.RulingLine]:
    if len(page_blocks) > _BLOCKS_MAX or not any(block.is_drawing for block in page_blocks):
        return []
    rules: list[tables.RulingLine] = []
    decoded_blocks = iter(page_blocks)
    block = text_page.m_internal.first_block
    while block:
        # The JSON has no images, and says of a drawing whether it is stroked, but not where it is.
        if block.type != _IMAGE:
            decoded = next(decoded_blocks, None)
            if decoded is None:
                break
            if decoded.is_drawing:
                rules += _rules_of_drawing(block.bbox, is_stroked=decoded.stroked != 0)
        block = block.next
    return rules


def _rules_of_drawing(box: Any, *, is_stroked: bool) -> Sequence[tables.RulingLine]:
    x0, y0, x1, y1 = box.x0, box.y0, box.x1, box.y1
    if x1 - x0 <= _RULE_POINTS_MAX or y1 - y0 <= _RULE_POINTS_MAX:
        return [tables.RulingLine(x0, y0, x1, y1)]
    if not is_stroked:
        return []
    return [
        tables.RulingLine(x0, y0, x1, y0),
        tables.RulingLine(x0, y1, x1, y1),
        tables.RulingLine(x0, y0, x0, y1),
        tables.RulingLine(x1, y0, x1, y1),
    ]


def _pieces_of(table: tables.FoundTable) -> list[tables.TextPiece]:
    cells = chain.from_iterable(table.rows)
    return list(chain.from_iterable(cells))


def _stored_table(table: tables.FoundTable, begin: int, end: int, boxes: Sequence[Box], turn: Any) -> PageTable:
    # Pieces are as high as their letters: take tops and bottoms from the boxes of their lines.
    def cell(pieces: Sequence[tables.TextPiece], text: str) -> TableCell | None:
        if not pieces:
            return None
        corners = (
            min([piece.x0 for piece in pieces]),
            min([boxes[piece.source_index][1] for piece in pieces]),
            max([piece.x1 for piece in pieces]),
            max([boxes[piece.source_index][3] for piece in pieces]),
        )
        return TableCell(*_to_page_space(corners, turn), text)

    rows = [list(map(cell, row, texts)) for row, texts in zip(table.rows, table.texts, strict=True)]
    filled_cells = [cell_or_none for cell_or_none in chain(*rows) if cell_or_none is not None]
    return PageTable(bounds_of(filled_cells), begin, end, rows)


def _text_beside_table(table: tables.FoundTable, lines: Sequence[_Line]) -> str:
    """Return the words of the table's lines that are in no cell."""
    words_in_cells: dict[int, Counter[str]] = {}
    for piece in _pieces_of(table):
        # A piece with the text of its whole line leaves no words over.
        if len(piece.text) < len(lines[piece.source_index].text):
            words_in_cells.setdefault(piece.source_index, Counter()).update(piece.text.split())
    text = ""
    for at, cell_words in words_in_cells.items():
        words, words_left = lines[at].text.split(), []
        if len(words) <= cell_words.total():
            # The cells hold the whole line, though they may divide it at other places than `split()`.
            continue
        for word in words:
            if cell_words[word]:
                cell_words[word] -= 1
            elif word.strip(_LEADER_DOTS):
                words_left.append(word)
        text += f"{' '.join(words_left)}\n" if words_left else ""
    return text


def _to_page_space(box: Box, turn: Any) -> Box:
    return round_box_to_tenths(box if turn is None else pymupdf.Rect(box) * turn)


def _may_have_pictures(pdf_page: Any) -> bool:
    # Without external objects a page has no images to list, and listing them takes longer than this look.
    return not is_missing(inheritable_value(pdf_page, RESOURCES).pdf_dict_get(_XOBJECT))


def _may_be_scan(document: Any, number: int) -> bool:
    pixels: int = sum(width * height for _, _, width, height, *_ in document.get_page_images(number - 1))
    return pixels >= _SCAN_PIXELS_MIN
