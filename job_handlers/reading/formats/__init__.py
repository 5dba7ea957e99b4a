"""Files with flowing text: paragraphs, table rows, pictures and page breaks.

The modules of this package yield the pieces of a file. This one divides them into pages, blocks and tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.file_kinds import FileKind
from job_handlers.reading.layout import FlowLayout, TextTable
from worker_service.base.errors import PagemillError
from worker_service.handlers import LINK_ADDRESS, STATED_BY_FILE, Block, NoteMark, Role, TextLink, counted

LIBRARY = "writings 11"
"""Increase the number whenever the same file may now give another text."""

NEW_PAGE = "\f"
PAGES_MAX = 100_000

_PAGE_CHARACTERS = 3000
_PAGE_CHARACTERS_MAX = 6000
_PICTURE_CHARACTERS = 300  # A picture counts as this many characters, so that an album does not become one page.
_CHARACTERS_MAX = 100_000_000
_INVISIBLE = re.compile("[\u00ad\ud800-\udfff]")
"""Soft hyphens would hide a word from search; UTF-8 cannot encode lone surrogates."""
_LIGATURES = re.compile("[\ufb00-\ufb06]")
_CELLS_MAX = 20_000  # Of a table. A larger one is read as lines.

_PICTURE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

_MODULES = {
    FileKind.TEXT: "plain",
    FileKind.HTML: "web",
    FileKind.MAIL: "mail",
    FileKind.EPUB: "epub",
    FileKind.DOCX: "office",
    FileKind.PPTX: "office",
    FileKind.ODT: "office",
    FileKind.ODP: "office",
    FileKind.ZIP: "archive",
}


class UnreadableDocument(PagemillError):
    pass


class DocumentLocked(UnreadableDocument):
    def __init__(self) -> None:
        super().__init__("it is locked with a password", "save it without one")


class PictureReference(NamedTuple):
    key: str
    alt: str | None = ""
    """None if the text beside it is its alternative text."""


class ShownPicture(NamedTuple):
    """A picture between the lines of a page. It has no text."""

    alt: str


class CellSpan(Struct):
    column: int
    rows: int
    columns: int


class TableRow(str):
    """A row of a table: cells separated by tabs."""

    __slots__ = ("begins_table", "spans")
    begins_table: bool
    spans: Sequence[CellSpan]

    def __new__(cls, cells: Iterable[str], *, begins_table: bool, spans: Sequence[CellSpan] = ()) -> TableRow:
        row = super().__new__(cls, _searchable_text("\t".join(" ".join(cell.split()) for cell in cells).rstrip()))
        row.begins_table, row.spans = begins_table, spans
        return row


class StyledText(str):
    """A whole paragraph. Pieces of plain `str` are lines, and an empty line ends their paragraph."""

    __slots__ = ("level", "links", "notes", "role")
    role: Role
    level: int
    links: Sequence[TextLink]
    notes: Sequence[NoteMark]

    def __new__(
        cls,
        text: str,
        role: Role = Role.PARAGRAPH,
        level: int = 0,
        links: Sequence[TextLink] = (),
        notes: Sequence[NoteMark] = (),
    ) -> StyledText:
        styled = super().__new__(cls, text)
        styled.role, styled.level, styled.links, styled.notes = role, level, links, notes
        return styled

    def part(self, text: str) -> StyledText:
        if text == self:
            return self
        begin = max(self.find(text), 0)
        links = _move_marks_within(self.links, -begin, len(text))
        notes = _move_marks_within(self.notes, -begin, len(text))
        return StyledText(text, self.role, self.level, links, notes)


class LineMark(str):
    """An empty part of a line: a link begins or ends there, or it refers to a note."""

    __slots__ = ("address", "note")
    address: str
    """Address of the link that begins; empty if a link ends."""
    note: str

    def __new__(cls, *, address: str = "", note: str = "") -> LineMark:
        mark = super().__new__(cls)
        mark.address, mark.note = address, note
        return mark


M = TypeVar("M", TextLink, NoteMark)


def _move_marks_within(marks: Iterable[M], offset: int, length: int) -> list[M]:
    moved = [replace(mark, begin=mark.begin + offset, end=mark.end + offset) for mark in marks]
    return [mark for mark in moved if mark.begin >= 0 and mark.end <= length]


def styled_text(
    parts: Iterable[str], role: Role = Role.PARAGRAPH, level: int = 0, *, keeps_indent: bool = False
) -> StyledText:
    """Join and strip the parts of a paragraph, which may include `LineMark`s."""
    texts: list[str] = []
    links: list[TextLink] = []
    notes: list[NoteMark] = []
    length, address, link_begin = 0, "", 0
    # The last mark ends a link that is still open.
    for part in (*parts, LineMark()):
        if not isinstance(part, LineMark):
            texts.append(_searchable_text(part))
            length += len(texts[-1])
        elif part.note:
            notes.append(NoteMark(length, length, part.note))
        else:
            if LINK_ADDRESS.fullmatch(address):
                links.append(TextLink(link_begin, length, address))
            address, link_begin = part.address, length
    untrimmed = "".join(texts)
    text = untrimmed.rstrip() if keeps_indent else untrimmed.strip()
    text_begin = len(untrimmed.rstrip()) - len(text)
    text_end = text_begin + len(text)
    trimmed_links: list[TextLink] = []
    for link in links:
        if linked_text := untrimmed[link.begin : link.end].strip():
            begin = untrimmed.index(linked_text, link.begin)
            trimmed_links.append(replace(link, begin=begin, end=begin + len(linked_text)))
    # A note in the removed space belongs to the nearest character that is left.
    for at, note in enumerate(notes):
        begin = min(max(note.begin, text_begin), text_end)
        notes[at] = replace(note, begin=begin, end=begin)
    links = _move_marks_within(trimmed_links, -text_begin, len(text))
    return StyledText(text, role, level, links, _move_marks_within(notes, -text_begin, len(text)))


Piece = str | PictureReference


def identity_of(piece: Piece) -> object:
    """Return all that a page shows of a piece, except the pixels of a picture."""
    if isinstance(piece, PictureReference):
        return piece.alt
    if isinstance(piece, StyledText):
        return str(piece), piece.role, piece.level, piece.links, piece.notes
    if isinstance(piece, TableRow):
        return str(piece), piece.begins_table, piece.spans
    return piece


FlowPage = tuple[Piece, ...]


class FlowDocument(Protocol):
    """An open file. All methods may raise `UnreadableDocument`."""

    notes: list[str]
    """Notes for the user, complete once all pieces have been yielded."""

    def pieces(self) -> Iterator[Piece]: ...

    def picture(self, key: str) -> bytes: ...


def open_document(path: Path, kind: FileKind) -> FlowDocument:
    document: FlowDocument = import_module(f"{__name__}.{_MODULES[kind]}").open_document(path, kind)
    return document


def is_picture(name: str) -> bool:
    return name.lower().endswith(_PICTURE_SUFFIXES)


def note_of_unread(pictures: Collection[str]) -> list[str]:
    return [f"{counted(len(pictures), 'picture')} of a kind that is not read: {min(pictures)}"] if pictures else []


def paginate(pieces: Iterable[Piece]) -> list[FlowPage]:
    pages: list[FlowPage] = []
    page: list[Piece] = []
    page_characters = total_characters = 0

    def add(piece: Piece, characters: int, *, begins_page: bool = False) -> None:
        nonlocal page, page_characters
        if page and (begins_page or page_characters + characters > _PAGE_CHARACTERS):
            pages.append(tuple(page))
            page, page_characters = [], 0
        if characters:
            page.append(piece)
            page_characters += characters

    for piece in pieces:
        if isinstance(piece, PictureReference):
            add(piece, _PICTURE_CHARACTERS)
            continue
        total_characters += len(piece)
        if total_characters > _CHARACTERS_MAX or len(pages) > PAGES_MAX:
            raise UnreadableDocument("it holds more text than pagemill reads from one file", "split it")
        parts = [piece] if isinstance(piece, TableRow) else _searchable_text(piece).split(NEW_PAGE)
        for number, part in enumerate(parts):
            for text in _cut_long(part):
                part_of_piece = piece.part(text) if isinstance(piece, StyledText) and text else text
                add(part_of_piece, len(text), begins_page=number > 0)
    return [*pages, tuple(page)] if page else pages


def _searchable_text(text: str) -> str:
    if text.isascii():
        return text
    return _LIGATURES.sub(lambda match: unicodedata.normalize("NFKC", match[0]), _INVISIBLE.sub("", text))


def _cut_long(paragraph: str) -> Iterator[str]:
    if isinstance(paragraph, TableRow) and len(paragraph) <= _PAGE_CHARACTERS_MAX:
        yield paragraph
        return
    text = paragraph.strip("\n")
    begin = 0
    while len(text) - begin > _PAGE_CHARACTERS_MAX:
        end_most = begin + _PAGE_CHARACTERS
        end = text.rfind(" ", begin + 1, end_most) + 1 or end_most
        yield text[begin:end].rstrip()
        begin = end
    yield text[begin:]


def layout_of(
    lines_and_pictures: Sequence[str | ShownPicture], readers: Sequence[str] = (), written_in: Sequence[str] = ()
) -> FlowLayout:
    lines = [line for line in lines_and_pictures if isinstance(line, str)]
    tables = tables_in(lines)
    links: list[TextLink] = []
    notes: list[NoteMark] = []
    begin = 0
    for line in lines:
        end = begin + len(line)
        if isinstance(line, StyledText):
            links += _move_marks_within(line.links, begin, end)
            notes += _move_marks_within(line.notes, begin, end)
        begin = end + 1
    return FlowLayout(tables, list(readers), list(written_in), _blocks_in(lines_and_pictures, tables), links, notes)


def _blocks_in(lines: Sequence[str | ShownPicture], tables: Sequence[TextTable]) -> list[Block]:
    end_by_begin = {table.begin: table.end for table in tables}
    blocks: list[Block] = []
    begin = table_end = 0
    # True if the line before was plain, so that a plain line continues its paragraph.
    may_continue = False
    for line in lines:
        if isinstance(line, ShownPicture):
            blocks.append(Block(0, 0, 0, 0, begin, begin, Role.PICTURE, style=STATED_BY_FILE, alt=line.alt))
            may_continue = False
            continue
        end = begin + len(line) + 1
        is_plain = bool(line.strip()) and not isinstance(line, StyledText | TableRow)
        if begin in end_by_begin:
            table_end = end_by_begin[begin]
            blocks.append(Block(0, 0, 0, 0, begin, table_end, Role.TABLE))
        elif begin >= table_end and line.strip():
            if isinstance(line, StyledText):
                blocks.append(Block(0, 0, 0, 0, begin, end, line.role, line.level, style=STATED_BY_FILE))
            elif may_continue and is_plain:
                blocks[-1] = replace(blocks[-1], end=end)
            else:
                blocks.append(Block(0, 0, 0, 0, begin, end, style=STATED_BY_FILE))
        may_continue = is_plain
        begin = end
    return blocks


def tables_in(lines: Iterable[str]) -> list[TextTable]:
    rows_of_tables: list[list[_PlacedRow]] = []
    begin = 0
    follows_row = False
    for line in lines:
        if isinstance(line, TableRow):
            if line.begins_table or not follows_row:
                rows_of_tables.append([])
            rows_of_tables[-1].append(_PlacedRow(begin, line))
        follows_row = isinstance(line, TableRow)
        begin += len(line) + 1
    return [_table(rows) for rows in rows_of_tables if _is_table(rows)]


class _PlacedRow(NamedTuple):
    begin: int
    row: TableRow


def _is_table(rows: Sequence[_PlacedRow]) -> bool:
    widths = [placed.row.count("\t") + 1 for placed in rows]
    return sum(width > 1 for width in widths) > 1 and len(rows) * max(widths) <= _CELLS_MAX


def _table(rows: Sequence[_PlacedRow]) -> TextTable:
    cells = [placed.row.split("\t") for placed in rows]
    width = max(map(len, cells))
    spans: list[tuple[int, int, int, int]] = []
    for number, placed in enumerate(rows):
        for span in placed.row.spans:
            # A cell may say that it reaches beyond the last row.
            height = min(span.rows, len(rows) - number)
            if height > 1 or span.columns > 1:
                spans.append((number, span.column, height, span.columns))
    padded = [row + [""] * (width - len(row)) for row in cells]
    return TextTable(rows[0].begin, rows[-1].begin + len(rows[-1].row), padded, spans)
