"""Word, PowerPoint and OpenDocument: XML in a zip archive. One parser reads them, as only names of elements differ."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple
from xml.parsers import expat

from msgspec import Struct
from msgspec.structs import replace

from job_handlers.encodings import decode
from job_handlers.file_kinds import FileKind
from job_handlers.reading.formats import (
    NEW_PAGE,
    CellSpan,
    DocumentLocked,
    LineMark,
    PictureReference,
    Piece,
    TableRow,
    UnreadableDocument,
    is_picture,
    note_of_unread,
    styled_text,
    web,
)
from job_handlers.reading.formats.archive import BROKEN, MEMBER_BYTES_MAX, Archive
from worker_service.handlers import Role

_BLOCK_BYTES = 1 << 20  # Large, because expat scans an unfinished comment or attribute again for each block.
_SPACES = re.compile(r"[ \t\r\n]+")
_SPACES_MAX = 200
_REPEATS_MAX = 200
_REPEATED_CHARACTERS = 1 << 12  # About as many characters repeated cells or rows have together.
_DIGITS_MAX = 9
_CODE = re.compile("[0-9A-Fa-f]{1,4}")
_NUMBER = re.compile(r"(\d+)\.xml\Z")
_SVG = "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"
_ALTERNATIVES = (f"{_SVG} title", f"{_SVG} desc")
"""Title and description of a picture. The description comes second, and replaces the title."""
_LINK_TYPE = "/hyperlink"
_LINK_FIELD = re.compile(r'\s*HYPERLINK\s+"([^"]+)"')
_HEADING_STYLE = re.compile("heading ([1-6])")
_WORD_DOCUMENT = re.compile(r"word/document\d*\.xml")


class _ElementNames(Struct, frozen=True):
    paragraphs: Sequence[str]
    cells: Sequence[str]
    rows: Sequence[str]
    tables: Sequence[str]
    silent: Sequence[str]
    """Elements whose text is not read."""
    texts: Sequence[str] = ()
    """If given, only these elements contain text."""
    pages: Sequence[str] = ()
    """Elements that begin a page."""


_WORD = _ElementNames(
    ("p",),
    ("tc",),
    ("tr",),
    ("tbl",),
    # Deleted text, and earlier states of changed elements.
    ("del", "moveFrom", "Fallback", "delText", "tcPrChange", "trPrChange", "tblPrExChange"),
    ("t",),
    ("lastRenderedPageBreak",),
)
_SLIDE = _ElementNames(("p", "text"), ("tc",), ("tr",), ("tbl",), ("Fallback", "fld"), ("t", "text"))
_CHART = _ElementNames(
    ("p", "v"), ("tx", "cat", "val", "xVal", "yVal", "bubbleSize"), ("ser",), (), ("Fallback", "fld"), ("t", "v")
)
_OPEN = _ElementNames(
    ("p", "h", "math"),
    ("table-cell", "covered-table-cell"),
    ("table-row",),
    ("table",),
    (
        "tracked-changes",
        "note-citation",
        "binary-data",
        "annotation-xml",
        "http://www.w3.org/1998/Math/MathML annotation",
        # Authors of comments.
        "http://purl.org/dc/elements/1.1/ creator",
        "http://purl.org/dc/elements/1.1/ date",
        *_ALTERNATIVES,
    ),
    (),
    ("soft-page-break",),
)
_OPEN_SLIDE = replace(_OPEN, pages=("page",))
_SYMBOLS = {
    **dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", strict=True)),
    **dict(zip("abcdefghijklmnopqrstuvwxyz", "αβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True)),
    **dict(zip("\xa3\xa5\xb0\xb1\xb3\xb4\xb7\xb8\xb9\xbb\xd6\xe5", "≤∞°±≥×•÷≠≈√∑", strict=True)),
}
"""Characters that the font Symbol stores at the codes of letters."""
_PRIVATE = 0xF000

_Mark = tuple[Role, int]
_PLAIN: _Mark = (Role.PARAGRAPH, 0)
_WORD_STYLES = {
    "title": (Role.HEADING, 1), "caption": (Role.CAPTION, 0), "footnote text": (Role.FOOTNOTE, 0),
    "html preformatted": (Role.CODE, 0), "list bullet": (Role.ITEM, 1), "list number": (Role.ITEM, 1),
}  # fmt: skip
"""Names of Word's own styles, in English in every language."""
_WORD_PARTS = {
    "header": (Role.HEAD, 0), "footer": (Role.FOOT, 0), "footnotes": (Role.FOOTNOTE, 0), "endnotes": (Role.FOOTNOTE, 0),
}  # fmt: skip
_PLACEHOLDERS = {
    "title": (Role.HEADING, 1), "ctrTitle": (Role.HEADING, 1), "body": (Role.ITEM, 1), "obj": (Role.ITEM, 1),
    "outline": (Role.ITEM, 1), "sldNum": (Role.NUMBER, 0), "ftr": (Role.FOOT, 0), "hdr": (Role.HEAD, 0),
}  # fmt: skip
"""Placeholders on slides, of PowerPoint and OpenDocument."""


class _PartReference(NamedTuple):
    """A place where a document shows another part of its archive, such as a chart."""

    name: str


class OfficeDocument:
    def __init__(self, file: Path | IO[bytes], kind: FileKind) -> None:
        self._archive = Archive(file)
        self._names = set(self._archive.names)
        self._kind = kind
        self._is_inserted = not isinstance(file, Path)
        self.notes: list[str] = []
        self._unread: dict[str, None] = {}
        self._notes: dict[str, str] = {}
        """Kind and id of a footnote → its number."""

    def pieces(self) -> Iterator[Piece]:
        if self._is_open:
            yield from self._open_document()
        else:
            yield from self._word() if self._kind is FileKind.DOCX else self._slides()
        self.notes += note_of_unread(self._unread)

    @property
    def _is_open(self) -> bool:
        return self._kind in (FileKind.ODT, FileKind.ODP)

    def picture(self, key: str) -> bytes:
        return self._archive.read(key)

    def text_boxes(self) -> list[str]:
        drawings = self._numbered_files("xl/drawings/drawing")
        pieces = [piece for name in drawings for piece in self._part(name, _SLIDE, {})]
        # Plain texts: the values of rows are stored as JSON.
        return [str(piece) for piece in pieces if isinstance(piece, str)]

    def _open_document(self) -> Iterator[Piece]:
        manifest = "META-INF/manifest.xml"
        if manifest in self._names and b"encryption-data" in self._archive.read(manifest):
            raise DocumentLocked
        files = {f"{begins}{name}": name for name in self._names for begins in ("", "./")}
        # An object, such as a formula, is a folder with a content.xml.
        objects = {
            href.removesuffix("/content.xml"): name for href, name in files.items() if name.endswith("/content.xml")
        }
        has_slides = self._kind is FileKind.ODP
        yield from self._part("content.xml", _OPEN_SLIDE if has_slides else _OPEN, {**objects, **files})
        if "styles.xml" in self._names and not has_slides:
            # Headers and footers.
            yield from self._part("styles.xml", _OPEN, files)

    def _word(self) -> Iterator[Piece]:
        # Word for the web calls the main part document2.xml.
        main = min(filter(_WORD_DOCUMENT.fullmatch, self._names), default="word/document.xml")
        styles = self._word_styles()
        yield from self._related(main, _WORD, styles)
        for beside in ("header", "footer", "footnotes", "endnotes", "comments"):
            for name in self._numbered_files(f"word/{beside}"):
                yield from self._related(name, _WORD, {"": _WORD_PARTS.get(beside, _PLAIN)})

    def _word_styles(self) -> dict[str, _Mark]:
        """Return style id → role and level."""
        name = "word/styles.xml"
        found: dict[str, _Mark] = {}
        style_id = ""

        def begin(tag: str, attributes: dict[str, str]) -> None:
            nonlocal style_id
            plain = {_local(key): value for key, value in attributes.items()}
            value = plain.get("val", "").lower()
            match _local(tag):
                case "style":
                    style_id = plain.get("styleId", "")
                case "name" if value in _WORD_STYLES:
                    found[style_id] = _WORD_STYLES[value]
                case "name" if heading := _HEADING_STYLE.fullmatch(value):
                    found[style_id] = Role.HEADING, int(heading[1])
                case "outlineLvl" if style_id and value in "012345":
                    found.setdefault(style_id, (Role.HEADING, int(value or 0) + 1))

        if name in self._names:
            _parse(self._archive, name, begin)
        return found

    def _slides(self) -> Iterator[Piece]:
        for slide in self._slides_in_order() or self._numbered_files("ppt/slides/slide"):
            yield NEW_PAGE
            yield from self._related(slide, _SLIDE)
            for kind in ("/notesSlide", "/comments"):
                for beside in sorted(set(self._relations(slide, kind).values())):
                    yield from self._related(beside, _SLIDE)

    def _slides_in_order(self) -> list[str]:
        main = "ppt/presentation.xml"
        related = self._relations(main, "/slide")
        wanted: list[str] = []

        def begin(tag: str, attributes: dict[str, str]) -> None:
            if _local(tag) == "sldId":
                # The other attribute named id, without a namespace, is a number.
                wanted.extend(value for key, value in attributes.items() if " " in key)

        if related:
            _parse(self._archive, main, begin)
        return [related[key] for key in wanted if key in related]

    def _numbered_files(self, begins: str) -> list[str]:
        found = [name for name in self._names if name.startswith(begins) and name.endswith(".xml")]
        return sorted(found, key=lambda name: int(number[1]) if (number := _NUMBER.search(name)) else 0)

    def _related(
        self, name: str, words: _ElementNames, styles: Mapping[str, _Mark] = MappingProxyType({})
    ) -> Iterator[Piece]:
        return self._part(name, words, self._relations(name, ""), styles, links=self._relations(name, _LINK_TYPE))

    def _relations(self, name: str, kind: str) -> dict[str, str]:
        """Return id → file for the relations of a part whose type ends in `kind`; for links, id → address."""
        folder, file_name = posixpath.split(name)
        relations = f"{folder}/_rels/{file_name}.rels"
        found: dict[str, str] = {}
        if relations not in self._names:
            return found

        def begin(tag: str, attributes: dict[str, str]) -> None:
            target = posixpath.normpath(posixpath.join("/", folder, attributes.get("Target", ""))).lstrip("/")
            if attributes.get("Type", "").endswith(kind) and (target in self._names or kind == _LINK_TYPE):
                found[attributes.get("Id", "")] = attributes.get("Target", "") if kind == _LINK_TYPE else target

        _parse(self._archive, relations, begin)
        return found

    def _part(
        self,
        name: str,
        words: _ElementNames,
        related: Mapping[str, str],
        styles: Mapping[str, _Mark] = MappingProxyType({}),
        *,
        links: Mapping[str, str] = MappingProxyType({}),
        is_inner: bool = False,
    ) -> Iterator[Piece]:
        if name not in self._names:
            raise UnreadableDocument(f"there is no {name} in it")
        walk = _PartParser(words, related, styles, links, self._notes)
        _parse(self._archive, name, walk.begin, walk.end, walk.add_text)
        self._unread |= dict.fromkeys(walk.unread)
        for piece in walk.found:
            if not isinstance(piece, _PartReference):
                yield piece
            elif not is_inner:
                # Parts inside an inner part are left out: they could refer to themselves.
                yield from self._inner_part(piece.name)

    def _inner_part(self, name: str) -> Iterator[Piece]:
        if self._is_open:
            yield from self._part(name, _OPEN, {}, is_inner=True)
        elif name.endswith(".xml") and "/charts/" in name:
            yield from self._part(name, _CHART, {}, is_inner=True)
        elif name.endswith(".xml"):
            yield from self._part(name, _SLIDE, {}, is_inner=True)
        else:
            yield from self._inserted_file(name)

    def _inserted_file(self, name: str) -> Iterator[Piece]:
        body = self._archive.read(name)
        ending = posixpath.splitext(name)[1].lower()
        if ending in (".html", ".htm", ".xhtml"):
            text = body.decode(web.encoding_of(body), "replace")
            yield from web.pieces_of(iter([text]), web.embedded_address)
        elif ending == ".txt":
            yield from decode(body)[0].splitlines()
        elif ending in (".docx", ".docm") and not self._is_inserted:
            inner = OfficeDocument(io.BytesIO(body), FileKind.DOCX)
            yield from (piece for piece in inner.pieces() if isinstance(piece, str))
            self.notes += inner.notes
        else:
            self.notes.append(f"{name}, which is put into it, is left out")


def _parse(archive: Archive, name: str, begin: object, end: object = None, add_text: object = None) -> None:
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, add_text  # type: ignore[assignment]
    # OpenOffice 3 gives formulas MathML's DOCTYPE. expat does not fetch it, and so no entity of it is expanded.
    parser.EntityDeclHandler = _refuse_entities
    size = 0
    try:
        with archive.open(name) as file:
            while block := file.read(_BLOCK_BYTES):
                size += len(block)
                if size > MEMBER_BYTES_MAX:
                    raise UnreadableDocument(f"{name} in it is larger than {MEMBER_BYTES_MAX >> 20} MiB")
                parser.Parse(block)
            parser.Parse(b"", True)
    except (expat.ExpatError, *BROKEN) as error:
        raise UnreadableDocument(f"{name} in it is broken ({error})") from error


def _refuse_entities(*_: object) -> None:
    raise UnreadableDocument("it declares entities, which no office document does")


@dataclass(slots=True)
class _OpenRow:
    depth: int
    """Paragraphs that are open around it."""
    cells: list[list[str]] = field(default_factory=list)
    covering: list[CellSpan] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)
    """Columns of cells that belong to the one above them."""
    cell_columns: int = 1
    """Columns that the open cell spans."""
    cell_repeats: int = 1
    """Identical cells that the open cell stands for."""
    repeats: int = 1
    """Identical rows that this row stands for."""

    def end_cell(self) -> None:
        # A cell across several columns is in the first of them.
        if self.cells:
            repeats = _bounded_repeats(self.cell_repeats, self.cells[-1])
            self.cells += [self.cells[-1]] * (repeats - 1) + [[]] * (self.cell_columns - 1)
        self.cell_columns = self.cell_repeats = 1


@dataclass(slots=True)
class _OpenTable:
    height: int = 0
    spans: list[tuple[CellSpan, int]] = field(default_factory=list)
    """Cells over several rows or columns, each with the last row that it says to cover."""

    def end_row(self, row: _OpenRow, *, is_empty: bool) -> None:
        self.height += 1
        # Rows without text are left out, so no cell covers them.
        for span, last_row in self.spans:
            if is_empty and self.height <= last_row:
                span.rows -= 1
        span_above = {span.column: span for span, _ in self.spans}
        for column in row.continued:
            if column in span_above and not is_empty:
                span_above[column].rows += 1
        self.spans += [(span, self.height + span.rows - 1) for span in row.covering]


@dataclass
class _PartParser:
    """Turns the elements of a part into pieces.

    A note or text box inside a paragraph follows that paragraph, so that no sentence is cut.
    """

    words: _ElementNames
    related: Mapping[str, str]
    styles: Mapping[str, _Mark]
    """Style id → role and level; "" is the id for paragraphs without a style."""
    links: Mapping[str, str]
    notes: dict[str, str]
    found: list[Piece | _PartReference] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    _unread_before_frame: int = 0
    """Length of `unread` when the open frame began."""
    _found_before_frame: int = 0
    """Length of `found` when the open frame began."""
    _lines: list[list[str]] = field(default_factory=list)
    """Parts of the open paragraphs, the innermost last."""
    _marks: list[_Mark] = field(default_factory=list)
    """Roles of the open paragraphs."""
    _shape: _Mark = _PLAIN
    """Role of the paragraphs in the open shape of a slide."""
    _list_depth: int = 0
    _after_paragraph: list[str] = field(default_factory=list)
    """Paragraphs that follow the outermost open paragraph."""
    _rows: list[_OpenRow] = field(default_factory=list)
    _tables: list[_OpenTable] = field(default_factory=list)
    _is_new_table: bool = False
    _note: str = ""
    """Number of the footnote that begins with the next paragraph."""
    _notes_open: int = 0
    _fields: list[str] = field(default_factory=list)
    """Instructions of the open fields."""
    _is_instruction: bool = False
    _has_run_link: bool = False
    _alt: str = ""
    _alt_parts: list[str] | None = None
    _silent_depth: int = 0
    _text_depth: int = 0

    def __post_init__(self) -> None:
        words = self.words
        # An element of several roles has the last of them.
        self._begin: dict[str, Callable[[dict[str, str]], object]] = {
            "gridSpan": self._set_span,
            "vMerge": self._merge_rows,
            "hyperlink": lambda attributes: self._begin_link(self.links.get(attributes.get("id", ""), "")),
            "hlinkClick": self._begin_run_link,
            "a": lambda attributes: self._begin_link(attributes.get("href", "")),
            "fldSimple": lambda attributes: self._begin_link(_address_in(attributes.get("instr", ""))),
            "fldChar": self._change_field,
            "instrText": self._begin_instruction,
            **{f"{name}Reference": partial(self._refer, name) for name in ("footnote", "endnote")},
            **{name: partial(self._begin_note, name) for name in ("footnote", "endnote", "note")},
            "docPr" if words is _WORD else "cNvPr": self._set_alternative,
            "shape": self._set_alternative,
            "gridBefore": self._skip_columns,
            "br": self._begin_line,
            "frame": self._begin_frame,
            **dict.fromkeys(("blip", "imagedata"), self._add_picture),
            "image": self._add_image,
            **dict.fromkeys(("chart", "relIds", "altChunk", "object"), self._add_reference),
            **dict.fromkeys(words.pages, lambda _: self._new_page()),
            **dict.fromkeys(words.cells, self._begin_cell),
            **dict.fromkeys(words.tables, self._begin_table),
            **dict.fromkeys(words.rows, self._begin_row),
            **dict.fromkeys(words.paragraphs, self._begin_paragraph),
            "list": self._begin_list,
            "pStyle": self._set_style,
            "outlineLvl": lambda attributes: self._mark(Role.HEADING, _number(attributes, "val", 8) + 1),
            "ilvl": lambda attributes: self._mark(Role.ITEM, _number(attributes, "val", 8) + 1),
            "sp": lambda _: self._set_shape(_PLAIN),
            "ph": lambda attributes: self._set_shape(_PLACEHOLDERS.get(attributes.get("type", "body"), _PLAIN)),
            "pPr": self._set_slide_level,
            "buNone": lambda _: self._mark(Role.PARAGRAPH, 0, Role.ITEM),
        }

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        name = _local(tag)
        if self._silent_depth or name in self.words.silent or tag in self.words.silent:
            self._silent_depth += 1
            self._alt_parts = [] if tag in _ALTERNATIVES else self._alt_parts
            return
        if name in self.words.texts:
            self._text_depth += 1
        plain = {_local(key): value for key, value in attributes.items()}
        if name in self._begin:
            self._begin[name](plain)
        elif self._lines:
            self._lines[-1].append(_element_text(name, plain))

    def _begin_paragraph(self, attributes: dict[str, str]) -> None:
        self._lines.append([LineMark(note=self._note)] if self._note else [])
        self._note = ""
        mark = (Role.ITEM, self._list_depth) if self._list_depth else self.styles.get("", self._shape)
        if self._notes_open:
            mark = Role.FOOTNOTE, 0
        if "outline-level" in attributes:
            mark = Role.HEADING, min(_number(attributes, "outline-level"), 6)
        self._marks.append(mark)

    def _mark(self, role: Role, level: int, also: Role | None = None) -> None:
        """Mark the open paragraph if it is plain, or has the role `also`."""
        current_role, _ = self._marks[-1] if self._marks else (None, 0)
        if current_role in (Role.PARAGRAPH, also or Role.PARAGRAPH):
            self._marks[-1] = role, level

    def _set_style(self, attributes: dict[str, str]) -> None:
        if self._marks and (mark := self.styles.get(attributes.get("val", ""))):
            self._marks[-1] = mark

    def _set_slide_level(self, attributes: dict[str, str]) -> None:
        if self._marks and self._marks[-1][0] is Role.ITEM and "lvl" in attributes:
            self._marks[-1] = Role.ITEM, _number(attributes, "lvl", 8) + 1

    def _set_shape(self, mark: _Mark) -> None:
        self._shape = mark

    def _begin_list(self, attributes: dict[str, str]) -> None:
        self._list_depth += 1

    def _begin_row(self, attributes: dict[str, str]) -> None:
        self._rows.append(_OpenRow(len(self._lines), repeats=_number(attributes, "number-rows-repeated")))

    def _begin_link(self, address: str) -> None:
        if self._lines:
            self._lines[-1].append(LineMark(address=address))

    def _begin_run_link(self, attributes: dict[str, str]) -> None:
        self._has_run_link = True
        self._begin_link(self.links.get(attributes.get("id", ""), ""))

    def _begin_instruction(self, attributes: dict[str, str]) -> None:
        self._is_instruction = bool(self._fields)

    def _change_field(self, attributes: dict[str, str]) -> None:
        kind = attributes.get("fldCharType")
        if kind == "begin":
            self._fields.append("")
        elif self._fields and (address := _address_in(self._fields[-1])):
            self._begin_link(address if kind == "separate" else "")
        if kind == "end" and self._fields:
            self._fields.pop()

    def _refer(self, kind: str, attributes: Mapping[str, str]) -> None:
        # Footnotes are numbered as the text refers to them.
        number = self.notes.setdefault(f"{kind} {attributes.get('id', '')}", str(len(self.notes) + 1))
        if self._lines:
            self._lines[-1].append(LineMark(note=number))

    def _begin_note(self, kind: str, attributes: dict[str, str]) -> None:
        if kind == "note":
            # OpenDocument has the note where the text refers to it.
            attributes = {"id": str(len(self.notes))}
            self._refer(kind, attributes)
            self._notes_open += 1
        self._note = self.notes.get(f"{kind} {attributes.get('id', '')}", "")

    def _begin_table(self, attributes: dict[str, str]) -> None:
        self._tables.append(_OpenTable())
        self._is_new_table = self._is_new_table or not self._rows

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        if self._rows:
            row = self._rows[-1]
            row.cells.append([])
            row.cell_repeats = _number(attributes, "number-columns-repeated")
            rows, columns = (
                max(_number(attributes, one), _number(attributes, other))
                for one, other in (("number-rows-spanned", "rowSpan"), ("number-columns-spanned", "gridSpan"))
            )
            self._cover(rows, columns)

    def _cover(self, rows: int, columns: int) -> None:
        """Note how many rows and columns the open cell covers."""
        if rows > 1 or columns > 1:
            self._rows[-1].covering.append(CellSpan(len(self._rows[-1].cells) - 1, rows, columns))

    def _merge_rows(self, attributes: dict[str, str]) -> None:
        # Word says of each cell, after its columns, whether it continues the cell above it.
        row = self._rows[-1] if self._rows else None
        if row is None or not row.cells:
            return
        column = len(row.cells) - 1
        if attributes.get("val") != "restart":
            row.continued.append(column)
            row.covering = [one for one in row.covering if one.column != column]
        elif not row.covering or row.covering[-1].column != column:
            row.covering.append(CellSpan(column, 1, 1))

    def _set_span(self, attributes: dict[str, str]) -> None:
        if self._rows:
            self._rows[-1].cell_columns = _number(attributes, "val")
            self._cover(1, self._rows[-1].cell_columns)

    def _skip_columns(self, attributes: dict[str, str]) -> None:
        if self._rows:
            self._rows[-1].cells += [[]] * _number(attributes, "val")

    def _begin_line(self, attributes: dict[str, str]) -> None:
        if (attributes.get("type") != "page" or not self._new_page()) and self._lines:
            self._lines[-1].append("\n")

    def _begin_frame(self, attributes: dict[str, str]) -> None:
        self._unread_before_frame, self._found_before_frame = len(self.unread), len(self.found)
        self._set_shape(_PLACEHOLDERS.get(attributes.get("class", ""), _PLAIN))

    def _set_alternative(self, attributes: dict[str, str]) -> None:
        self._alt = " ".join((attributes.get("descr") or attributes.get("alt") or "").split())

    def _end_alternative(self) -> None:
        """Give the pictures of the frame the text that has ended."""
        alt, self._alt_parts = " ".join("".join(self._alt_parts or []).split()), None
        self.found[self._found_before_frame :] = [
            one._replace(alt=alt) if alt and isinstance(one, PictureReference) else one
            for one in self.found[self._found_before_frame :]
        ]

    def _add_picture(self, attributes: dict[str, str]) -> None:
        target = self._target(attributes, "embed", "id", "href")
        if is_picture(target):
            self.found.append(PictureReference(target, self._alt))
            self._alt = ""
        elif posixpath.splitext(target)[1]:
            self.unread.append(target)

    def _add_image(self, attributes: dict[str, str]) -> None:
        self._add_picture(attributes)
        if is_picture(self._target(attributes, "embed", "id", "href")):
            # A frame may hold the same picture in several formats, for programs that cannot show the first.
            del self.unread[self._unread_before_frame :]

    def _add_reference(self, attributes: dict[str, str]) -> None:
        if target := self._target(attributes, "dm", "id", "href"):
            self.found.append(_PartReference(target))

    def end(self, tag: str) -> None:
        name = _local(tag)
        if self._silent_depth:
            self._silent_depth -= 1
            if tag in _ALTERNATIVES:
                self._end_alternative()
            return
        if name in self.words.texts:
            self._text_depth -= 1
        if name in self.words.paragraphs:
            self._add(styled_text(self._lines.pop(), *self._marks.pop()))
        elif name in ("hyperlink", "a", "fldSimple") or (name == "r" and self._has_run_link):
            self._begin_link("")
            self._has_run_link = False
        elif name == "instrText":
            self._is_instruction = False
        elif name == "note":
            self._notes_open -= 1
        elif name in self.words.tables and self._tables:
            self._tables.pop()
        elif name == "list":
            self._list_depth = max(self._list_depth - 1, 0)
        elif name in self.words.cells and self._rows:
            self._rows[-1].end_cell()
        elif name in self.words.rows and self._rows:
            ended_row = self._rows.pop()
            cells = [" ".join(cell) for cell in ended_row.cells]
            for _ in range(_bounded_repeats(ended_row.repeats, cells)):
                row = TableRow(cells, begins=self._is_new_table, spans=ended_row.covering)
                if self._tables:
                    self._tables[-1].end_row(ended_row, is_empty=not row)
                # The series of a chart are not rows of a table.
                self._add(row if self.words.tables else str(row))
                self._is_new_table = self._is_new_table and (bool(self._rows) or not row)

    def add_text(self, text: str) -> None:
        if self._alt_parts is not None:
            self._alt_parts.append(text)
        elif self._is_instruction:
            self._fields[-1] += text
        elif self._lines and not self._silent_depth and (self._text_depth or not self.words.texts):
            # OpenDocument has an element for consecutive spaces.
            self._lines[-1].append(text if self.words.texts else _SPACES.sub(" ", text))

    def _target(self, attributes: Mapping[str, str], *names: str) -> str:
        return next(
            (self.related[key] for name in names if (key := attributes.get(name, "").rstrip("/")) in self.related), ""
        )

    def _new_page(self) -> bool:
        """Return False inside a cell or text box, where no page can begin."""
        if self._rows or len(self._lines) > 1:
            return False
        if self._lines and (text := styled_text(self._lines[-1], *self._marks[-1])):
            self.found.append(text)
            self._lines[-1].clear()
        self.found.append(NEW_PAGE)
        return True

    def _add(self, text: str) -> None:
        row = self._rows[-1] if self._rows else None
        if row is not None and row.cells and row.depth == len(self._lines):
            row.cells[-1] += filter(None, _on_one_line([text, *self._after_paragraph]))
            self._after_paragraph.clear()
        elif self._lines:
            self._after_paragraph.append(text)
        else:
            self.found += filter(None, [text, *self._after_paragraph])
            self._after_paragraph.clear()


def _address_in(instruction: str) -> str:
    return found[1] if (found := _LINK_FIELD.match(instruction)) else ""


def _bounded_repeats(times: int, texts: Sequence[str]) -> int:
    return min(times, 1 + _REPEATED_CHARACTERS // max(sum(map(len, texts)), 1))


def _on_one_line(texts: Sequence[str]) -> Iterator[str]:
    return (text.replace("\n", " ").replace("\t", " ").strip() for text in texts)


def _number(attributes: Mapping[str, str], name: str, most: int = _REPEATS_MAX) -> int:
    """Return the value of an attribute, but `most` at most; 1 without a number."""
    number = attributes.get(name, "1")[:_DIGITS_MAX]
    return min(int(number), most) if number.isdecimal() else 1


def _element_text(name: str, attributes: Mapping[str, str]) -> str:
    if name in ("br", "line-break", "cr"):
        return "\n"
    if name in ("tab", "ptab"):
        # Tab stops use an element of the same name.
        return "" if "val" in attributes else "\t"
    if name == "s":
        return " " * _number(attributes, "c", _SPACES_MAX)
    if name == "noBreakHyphen":
        return "-"
    return _symbol(attributes) if name == "sym" and "char" in attributes else ""


def _symbol(attributes: Mapping[str, str]) -> str:
    if not _CODE.fullmatch(attributes["char"]):
        return ""
    code = int(attributes["char"], 16)
    if code & 0xFF00 != _PRIVATE:
        return chr(code)
    return _SYMBOLS.get(chr(code - _PRIVATE), "") if attributes.get("font", "") == "Symbol" else ""


def _local(name: str) -> str:
    # Expat puts the namespace and a space before the name.
    return name.rpartition(" ")[2]


def open_document(path: Path, kind: FileKind) -> OfficeDocument:
    return OfficeDocument(path, kind)
