"""HTML as users see it.

Mails and many pages use tables for layout. A row becomes a row of a table only if its cells have at most one line, or
at most ten if the table has headings; otherwise its cells become paragraphs.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator, Set
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from job_handlers.encodings import WIDE_ENCODINGS, detect_encoding
from job_handlers.file_kinds import HEAD_BYTES, FileKind
from job_handlers.reading.formats import (
    CellSpan,
    LineMark,
    PictureReference,
    Piece,
    TableRow,
    UnreadableDocument,
    styled_text,
)
from worker_service.handlers import Role

_READ_CHARACTERS = 1 << 16
_NEVER_SHOWN = {"script", "style", "template", "noscript", "iframe", "annotation", "annotation-xml"}
_BLOCKS = frozenset(
    "address article aside blockquote body br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6"
    " header hr li main nav ol option p pre section select summary table tbody text textarea tfoot thead title tr"
    " ul".split()
)
_CELLS = {"td", "th"}
_ROLES = {
    **{f"h{level}": (Role.HEADING, level) for level in range(1, 7)},
    "li": (Role.ITEM, 0),
    "pre": (Role.CODE, 0),
    "figcaption": (Role.CAPTION, 0),
}
_LISTS = {"ul", "ol"}
_OPEN_ROLES_MAX = 50
_IMAGES = {"img", "image"}
_ROW_GROUPS = {"table", "thead", "tbody", "tfoot"}
_ROW_ENDS = {"tr", *_ROW_GROUPS}
_ROW_PIECES_MAX = 1000
_UNFINISHED_CHARACTERS_MAX = 1 << 16  # Of a comment or tag without end.
_CELL_LINES_MAX = 10
_COLUMNS_MAX = 200
_UNLIMITED_ROWS = 1 << 20
_CHARSET = re.compile(rb"""(?:charset|<\?xml[^>]{0,200}\sencoding)\s*=\s*["']?\s*([\w-]+)""", re.IGNORECASE)
_CODEC_OF_BROWSERS = {
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_PICTURE_DATA_URL = re.compile(r"data:image/(?:png|jpe?g|tiff?|gif|webp|(?:x-ms-)?bmp);base64,", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\r\n\f\v]+")

PictureKeyOf = Callable[[str], str | None]
"""Returns the key of the picture with this address; None if the file does not contain it."""


class _OpenRole(NamedTuple):
    """An open element that gives its text a role."""

    tag: str
    role: Role
    level: int


class PageParser(HTMLParser):
    def __init__(self, picture_key_of: PictureKeyOf, never_shown: Set[str]) -> None:
        super().__init__(convert_charrefs=True)
        self._picture_key_of, self._never_shown = picture_key_of, never_shown
        self._open_hidden_tags: list[str] = []
        self._preformatted_depth = 0
        self._line: list[str] = []
        self._ends_with_space = False
        self._picture_text_end = 0
        """Length of `_line` after the alternative text of a picture with which it begins."""
        self._pieces: list[Piece] = []
        self._cells_of_open_row: list[list[Piece]] = []
        self._spans: list[CellSpan] = []
        self._pieces_in_row = 0
        self._is_row_open = False
        self._open_roles: list[_OpenRole] = []
        self._column_of_open_cell = 0
        self._rows_left: dict[int, int] = {}
        """Column → rows that a cell still covers, the open row included."""
        self._begins_table = self._has_heading_cells = False

    def take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def close(self) -> None:
        if len(self.rawdata) > _UNFINISHED_CHARACTERS_MAX:
            # An unterminated comment or tag. The parser would scan it again from every character.
            self.rawdata = ""
        super().close()
        self._end_row()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._open_hidden_tags or tag in self._never_shown:
            if tag in self._never_shown and tag not in self._open_hidden_tags:
                self._open_hidden_tags.append(tag)
            return
        if tag in _BLOCKS or tag in _CELLS:
            self._end_line()
        self._end_rows_at(tag)
        self._open_role(tag)
        if tag == "tr":
            self._is_row_open = True
        if tag in _CELLS:
            self._has_heading_cells |= tag == "th"
            self._begin_cell(dict(attrs))
        if tag == "pre":
            self._preformatted_depth += 1
        if tag in _IMAGES:
            self._add_image(dict(attrs))
        if tag == "a":
            self._line.append(LineMark(address=(dict(attrs).get("href") or "").strip()))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self._never_shown:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open_hidden_tags:
            # Elements left open inside it end with it.
            del self._open_hidden_tags[self._open_hidden_tags.index(tag) :]
        elif not self._open_hidden_tags and tag == "a":
            self._line.append(LineMark())
        elif not self._open_hidden_tags and tag in _BLOCKS:
            self._end_line()
            self._close_role(tag)
            if tag == "pre":
                self._preformatted_depth = max(self._preformatted_depth - 1, 0)
            self._end_rows_at(tag)

    def handle_data(self, data: str) -> None:
        if self._open_hidden_tags:
            return
        if not self._preformatted_depth:
            self._add_words(data)
            return
        first_line, *more_lines = data.split("\n")
        self._line.append(first_line)
        for line in more_lines:
            self._end_line()
            self._line.append(line)

    def _add_words(self, text: str) -> None:
        text = _SPACES.sub(" ", text)
        self._line.append(text[1:] if self._ends_with_space and text.startswith(" ") else text)
        self._ends_with_space = text.endswith(" ") if text else self._ends_with_space

    def _add_image(self, attributes: dict[str, str | None]) -> None:
        if alternative := (attributes.get("alt") or "").strip():
            begins_line = not "".join(self._line).strip()
            self._add_words(f" {alternative} ")
            self._picture_text_end = len(self._line) if begins_line else 0
        address = attributes.get("src") or attributes.get("xlink:href") or attributes.get("href") or ""
        if (key := self._picture_key_of(address)) is not None:
            self._end_line()
            self._add(PictureReference(key, None if alternative else ""))

    def _open_role(self, tag: str) -> None:
        if tag in _LISTS:
            self._open_roles.append(_OpenRole(tag, Role.PARAGRAPH, 0))
        elif tag in _ROLES:
            # Headings and items are often left open.
            if self._open_roles and self._open_roles[-1].tag == tag:
                self._open_roles.pop()
            role, level = _ROLES[tag]
            depth = sum(open_role.tag in _LISTS for open_role in self._open_roles)
            self._open_roles.append(_OpenRole(tag, role, max(depth, 1) if role is Role.ITEM else level))
        del self._open_roles[_OPEN_ROLES_MAX:]

    def _close_role(self, tag: str) -> None:
        # Roles of elements left open inside it end with it.
        for at, open_role in reversed(list(enumerate(self._open_roles))):
            if open_role.tag == tag:
                del self._open_roles[at:]
                break

    def _end_line(self) -> None:
        _, role, level = self._open_roles[-1] if self._open_roles else ("", Role.PARAGRAPH, 0)
        if self._picture_text_end and not "".join(self._line[self._picture_text_end :]).strip():
            role, level = Role.PICTURE, 0
        text = styled_text(self._line, role, level, keeps_indent=self._preformatted_depth > 0)
        self._line.clear()
        self._picture_text_end, self._ends_with_space = 0, False
        if text:
            self._add(text)

    def _add(self, piece: Piece) -> None:
        if not self._cells_of_open_row:
            self._pieces.append(piece)
            return
        self._cells_of_open_row[self._column_of_open_cell].append(piece)
        self._pieces_in_row += 1
        if self._pieces_in_row > _ROW_PIECES_MAX:
            self._end_row()

    def _end_rows_at(self, tag: str) -> None:
        if tag in _ROW_ENDS:
            self._end_row()
        if tag in _ROW_GROUPS:
            self._rows_left.clear()
        if tag == "table":
            # The tag may also end an inner table, after which the outer table continues.
            self._begins_table, self._has_heading_cells = True, False

    def _begin_cell(self, attributes: dict[str, str | None]) -> None:
        if len(self._cells_of_open_row) >= _ROW_PIECES_MAX:
            self._end_row()
        self._is_row_open = True
        self._fill_spanned_columns()
        self._column_of_open_cell = len(self._cells_of_open_row)
        columns, rows = _span(attributes.get("colspan")), _span(attributes.get("rowspan"))
        if (attributes.get("rowspan") or "").strip() == "0":
            # rowspan="0" reaches to the end of the row group.
            rows = _UNLIMITED_ROWS
        self._cells_of_open_row += [[] for _ in range(columns)]
        if rows > 1 or columns > 1:
            self._spans.append(CellSpan(self._column_of_open_cell, rows, columns))
        if rows > 1:
            covered_columns = range(self._column_of_open_cell, min(self._column_of_open_cell + columns, _COLUMNS_MAX))
            self._rows_left.update(dict.fromkeys(covered_columns, rows))

    def _fill_spanned_columns(self) -> None:
        while self._rows_left.get(len(self._cells_of_open_row)):
            self._cells_of_open_row.append([])

    def _end_row(self) -> None:
        self._end_line()
        if self._is_row_open:
            self._rows_left = {column: rows - 1 for column, rows in self._rows_left.items() if rows > 1}
        self._is_row_open = False
        if not self._cells_of_open_row:
            return
        cells, self._cells_of_open_row, self._pieces_in_row = self._cells_of_open_row, [], 0
        spans, self._spans = self._spans, []
        lines = [[piece for piece in cell if isinstance(piece, str)] for cell in cells]
        lines_max = _CELL_LINES_MAX if self._has_heading_cells else 1
        if max(map(len, lines)) <= lines_max:
            if row := TableRow((" ".join(cell) for cell in lines), begins_table=self._begins_table, spans=spans):
                self._pieces.append(row)
                self._begins_table = False
            self._pieces += [piece for piece in chain(*cells) if isinstance(piece, PictureReference)]
        else:
            self._pieces += chain(*cells)


class HtmlDocument:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []

    def pieces(self) -> Iterator[Piece]:
        with self._path.open("rb") as file:
            encoding = encoding_of(file.read(HEAD_BYTES))
        with self._path.open(encoding=encoding, errors="replace") as file:
            yield from pieces_of(iter(lambda: file.read(_READ_CHARACTERS), ""), embedded_address)

    def picture(self, key: str) -> bytes:
        return decode_data_url(key)


def pieces_of(blocks: Iterator[str], picture_key_of: PictureKeyOf, *, shows_title: bool = True) -> Iterator[Piece]:
    page = PageParser(picture_key_of, _NEVER_SHOWN if shows_title else _NEVER_SHOWN | {"title"})
    for block in blocks:
        page.feed(block)
        yield from page.take_pieces()
    page.close()
    yield from page.take_pieces()


def encoding_of(head: bytes) -> str:
    detected = detect_encoding(head)
    if detected in WIDE_ENCODINGS or head.startswith(codecs.BOM_UTF8):
        return detected
    declared = _CHARSET.search(head)
    return (codec_for(declared[1].decode()) if declared else "") or detected


def codec_for(charset: str) -> str:
    """Return Python's codec for a declared charset, as browsers choose it; "" if the declaration cannot be right."""
    try:
        name = codecs.lookup(charset).name
        # Raises for codecs that are not for text or do not support error handlers.
        b"\xff".decode(name, "replace")
    except (LookupError, ValueError):
        return ""
    if name == "ascii" or name.startswith(("utf-16", "utf-32")):
        # The declaration itself was read as ASCII, so the text is not wide; ASCII is often declared for more.
        return ""
    return _CODEC_OF_BROWSERS.get(name, name)


def _span(value: str | None) -> int:
    value = (value or "").strip()
    return min(max(int(value[:4]), 1), _COLUMNS_MAX) if value.isdecimal() else 1


def embedded_address(address: str) -> str | None:
    return address if _PICTURE_DATA_URL.match(address) else None


def decode_data_url(address: str) -> bytes:
    try:
        return base64.b64decode(address.partition(",")[2])
    except (binascii.Error, ValueError) as error:
        raise UnreadableDocument(f"a picture in it is broken: {error}") from error


def open_document(path: Path, kind: FileKind) -> HtmlDocument:
    return HtmlDocument(path)
