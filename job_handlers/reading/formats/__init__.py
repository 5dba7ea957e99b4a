"""Files with flowing text: paragraphs, table rows, pictures and page breaks. Other files are never opened."""

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
from worker_service.handlers import LINK_ADDRESS, SAID, Block, NoteMark, Role, TextLink, counted, in_a_sentence

LIBRARY = "writings 11"
"""Increase the number whenever the same file may now give another text."""

NEW_PAGE = "\f"
PAGES_MAX = 100_000

_PAGE_CHARACTERS = 3000
_PAGE_CHARACTERS_MAX = 6000
_PICTURE_CHARACTERS = 300
"""Counts for a picture, so that an album does not become one page."""
_CHARACTERS_MAX = 100_000_000
_UNSEEN = re.compile("[\u00ad\ud800-\udfff]")
"""Soft hyphens would hide a word from search; UTF-8 cannot encode lone surrogates."""
_LIGATURES = re.compile("[\ufb00-\ufb06]")
_CELLS_MAX = 20_000

_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

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


class UnreadableDocument(Exception):
    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail, remedy)
        self.detail, self.remedy = detail, remedy

    def __str__(self) -> str:
        return in_a_sentence(self.detail, self.remedy)


class DocumentLocked(UnreadableDocument):
    def __init__(self) -> None:
        super().__init__("it is locked with a password", "save it without one")


class PictureReference(NamedTuple):
    key: str
    alt: str | None = ""
    """None: the text beside it is its alternative text."""


class ShownPicture(NamedTuple):
    """A picture among the lines of a page, of which it is none."""

    alt: str


class CellSpan(Struct):
    column: int
    rows: int
    columns: int


class TableRow(str):
    """A row of a table: cells separated by tabs."""

    __slots__ = ("begins", "spans")
    begins: bool
    """First row of a table, which may directly follow another table."""
    spans: Sequence[CellSpan]

    def __new__(cls, cells: Iterable[str], *, begins: bool, spans: Sequence[CellSpan] = ()) -> TableRow:
        made = super().__new__(cls, _searchable_text("\t".join(" ".join(cell.split()) for cell in cells).rstrip()))
        made.begins, made.spans = begins, spans
        return made


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
        made = super().__new__(cls, text)
        made.role, made.level, made.links, made.notes = role, level, links, notes
        return made

    def part(self, text: str) -> StyledText:
        if text == self:
            return self
        begin = max(self.find(text), 0)
        return StyledText(text, self.role, self.level, _moved(self.links, -begin, len(text)),
                          _moved(self.notes, -begin, len(text)))  # fmt: skip


class LineMark(str):
    """An empty part of a line: a link begins or ends there, or it refers to a note."""

    __slots__ = ("address", "note")
    address: str
    note: str

    def __new__(cls, *, address: str = "", note: str = "") -> LineMark:
        made = super().__new__(cls)
        made.address, made.note = address, note
        return made


M = TypeVar("M", TextLink, NoteMark)


def _moved(marks: Iterable[M], by: int, length: int) -> list[M]:
    moved = [replace(one, begin=one.begin + by, end=one.end + by) for one in marks]
    return [one for one in moved if one.begin >= 0 and one.end <= length]


def styled_text(
    parts: Iterable[str], role: Role = Role.PARAGRAPH, level: int = 0, *, keeps_indent: bool = False
) -> StyledText:
    """Join the parts of a paragraph, without the space around it."""
    written: list[str] = []
    links: list[TextLink] = []
    notes: list[NoteMark] = []
    length, address, since = 0, "", 0
    for part in (*parts, LineMark()):
        if not isinstance(part, LineMark):
            written.append(_searchable_text(part))
            length += len(written[-1])
        elif part.note:
            notes.append(NoteMark(length, length, part.note))
        else:
            if LINK_ADDRESS.fullmatch(address):
                links.append(TextLink(since, length, address))
            address, since = part.address, length
    whole = "".join(written)
    text = whole.rstrip() if keeps_indent else whole.strip()
    indent = len(whole.rstrip()) - len(text)
    shown = [
        replace(one, begin=begin, end=begin + len(words))
        for one in links
        if (words := whole[one.begin : one.end].strip())
        for begin in [whole.index(words, one.begin)]
    ]
    last = indent + len(text)
    placed = [replace(one, begin=at, end=at) for one in notes for at in [min(max(one.begin, indent), last)]]
    return StyledText(text, role, level, _moved(shown, -indent, len(text)), _moved(placed, -indent, len(text)))


Piece = str | PictureReference


def identity_of(piece: Piece) -> object:
    """Return all that a page shows of the piece, except the pixels of a picture."""
    if isinstance(piece, PictureReference):
        return piece.alt
    if isinstance(piece, StyledText):
        return str(piece), piece.role, piece.level, piece.links, piece.notes
    return (str(piece), piece.begins, piece.spans) if isinstance(piece, TableRow) else piece


FlowPage = tuple[Piece, ...]


class FlowDocument(Protocol):
    """Its methods raise `UnreadableDocument`."""

    notes: list[str]
    """Notes for the user. Complete once all pieces have been yielded."""

    def pieces(self) -> Iterator[Piece]: ...

    def picture(self, key: str) -> bytes: ...


def open_document(path: Path, kind: FileKind) -> FlowDocument:
    opened: FlowDocument = import_module(f"{__name__}.{_MODULES[kind]}").open_document(path, kind)
    return opened


def is_picture(name: str) -> bool:
    return name.lower().endswith(_PICTURES)


def note_of_unread(pictures: Collection[str]) -> list[str]:
    return [f"{counted(len(pictures), 'picture')} of a kind that is not read: {min(pictures)}"] if pictures else []


def paginate(pieces: Iterable[Piece]) -> list[FlowPage]:
    made: list[FlowPage] = []
    page: list[Piece] = []
    on_page = total = 0
    for piece in pieces:
        if isinstance(piece, PictureReference):
            if page and on_page + _PICTURE_CHARACTERS > _PAGE_CHARACTERS:
                made.append(tuple(page))
                page, on_page = [], 0
            page.append(piece)
            on_page += _PICTURE_CHARACTERS
            continue
        total += len(piece)
        if total > _CHARACTERS_MAX or len(made) > PAGES_MAX:
            raise UnreadableDocument("it holds more text than pagemill reads from one file", "split it")
        for at, part in enumerate([piece] if isinstance(piece, TableRow) else _searchable_text(piece).split(NEW_PAGE)):
            for text in _cut_long(part):
                if page and (at or on_page + len(text) > _PAGE_CHARACTERS):
                    made.append(tuple(page))
                    page, on_page = [], 0
                if text:
                    page.append(piece.part(text) if isinstance(piece, StyledText) else text)
                    on_page += len(text)
    return [*made, tuple(page)] if page else made


def _searchable_text(text: str) -> str:
    if text.isascii():
        return text
    return _LIGATURES.sub(lambda found: unicodedata.normalize("NFKC", found[0]), _UNSEEN.sub("", text))


def _cut_long(paragraph: str) -> Iterator[str]:
    if isinstance(paragraph, TableRow) and len(paragraph) <= _PAGE_CHARACTERS_MAX:
        yield paragraph
        return
    text = paragraph.strip("\n")
    begin = 0
    while len(text) - begin > _PAGE_CHARACTERS_MAX:
        most = begin + _PAGE_CHARACTERS
        end = text.rfind(" ", begin + 1, most) + 1 or most
        yield text[begin:end].rstrip()
        begin = end
    yield text[begin:]


def blocks_in(lines: Sequence[str | ShownPicture], tables: Sequence[TextTable]) -> list[Block]:
    ends = {one.begin: one.end for one in tables}
    made: list[Block] = []
    begin = table_end = 0
    is_open = False
    for line in lines:
        if isinstance(line, ShownPicture):
            made.append(Block(0, 0, 0, 0, begin, begin, Role.PICTURE, style=SAID, alt=line.alt))
            is_open = False
            continue
        end = begin + len(line) + 1
        if begin in ends:
            table_end = ends[begin]
            made.append(Block(0, 0, 0, 0, begin, table_end, Role.TABLE))
        elif begin >= table_end and line.strip():
            if isinstance(line, StyledText):
                made.append(Block(0, 0, 0, 0, begin, end, line.role, line.level, style=SAID))
            elif is_open and not isinstance(line, TableRow):
                made[-1] = replace(made[-1], end=end)
            else:
                made.append(Block(0, 0, 0, 0, begin, end, style=SAID))
        is_open = bool(line.strip()) and not isinstance(line, StyledText | TableRow)
        begin = end
    return made


def tables_in(lines: Iterable[str]) -> list[TextTable]:
    """Return the tables: consecutive rows, at least two of them with several columns."""
    found: list[list[tuple[int, TableRow]]] = []
    begin = 0
    follows = False
    for line in lines:
        if isinstance(line, TableRow):
            if line.begins or not follows:
                found.append([])
            found[-1].append((begin, line))
        follows = isinstance(line, TableRow)
        begin += len(line) + 1
    return [
        _table(rows) for rows in found if sum("\t" in row for _, row in rows) > 1 and _cell_count(rows) <= _CELLS_MAX
    ]


def layout_of(
    shown: Sequence[str | ShownPicture], readers: Sequence[str] = (), written_in: Sequence[str] = ()
) -> FlowLayout:
    lines = [one for one in shown if isinstance(one, str)]
    tables = tables_in(lines)
    links: list[TextLink] = []
    notes: list[NoteMark] = []
    begin = 0
    for line in lines:
        end = begin + len(line)
        if isinstance(line, StyledText):
            links += _moved(line.links, begin, end)
            notes += _moved(line.notes, begin, end)
        begin = end + 1
    return FlowLayout(tables, list(readers), list(written_in), blocks_in(shown, tables), links, notes)


def _cell_count(placed: Sequence[tuple[int, TableRow]]) -> int:
    return len(placed) * (max(row.count("\t") for _, row in placed) + 1)


def _table(placed: Sequence[tuple[int, TableRow]]) -> TextTable:
    rows = [row.split("\t") for _, row in placed]
    width = max(map(len, rows))
    last, end = placed[-1]
    spans = [
        (at, one.column, min(one.rows, len(rows) - at), one.columns)
        for at, (_, row) in enumerate(placed)
        for one in row.spans
        if min(one.rows, len(rows) - at) > 1 or one.columns > 1
    ]
    return TextTable(placed[0][0], last + len(end), [[*row, *[""] * (width - len(row))] for row in rows], spans)
