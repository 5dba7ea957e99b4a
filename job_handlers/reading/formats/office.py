"""Word, PowerPoint and OpenDocument: XML in a zip archive. One parser reads them, as only names of elements differ.

A part is one XML file of the archive. Its relations map the ids in it to other parts, pictures and addresses.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
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
    StyledText,
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
_SPACES_MAX = 200  # In one element for consecutive spaces.
_REPEATS_MAX = 200  # Of a cell or row, and the largest number that an attribute may have.
_REPEATED_CHARACTERS = 1 << 12  # About as many characters repeated cells or rows have together.
_DIGITS_MAX = 9
_CHARACTER_CODE = re.compile("[0-9A-Fa-f]{1,4}")
_FILE_NUMBER = re.compile(r"(\d{1,9})\.xml\Z")
_SVG = "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"
_ALTERNATIVES = (f"{_SVG} title", f"{_SVG} desc")
"""Title and description of a picture. The description comes second, and replaces the title."""
_LINK_FIELD = re.compile(r'\s*HYPERLINK\s+"([^"]+)"')
_HEADING_STYLE = re.compile("heading ([1-6])")
_WORD_DOCUMENT = re.compile(r"word/document\d*\.xml")


class _ElementNames(Struct, frozen=True, kw_only=True):
    paragraphs: Sequence[str]
    cells: Sequence[str]
    rows: Sequence[str]
    tables: Sequence[str] = ()
    silent: Sequence[str]
    """Elements whose text is not read, some with their namespace."""
    texts: Sequence[str] = ()
    """If given, only these elements contain text."""
    page_beginnings: Sequence[str] = ()


_WORD = _ElementNames(
    paragraphs=("p",), cells=("tc",), rows=("tr",), tables=("tbl",), texts=("t",),
    page_beginnings=("lastRenderedPageBreak",),
    # Deleted text, and earlier states of changed elements.
    silent=("del", "moveFrom", "Fallback", "delText", "tcPrChange", "trPrChange", "tblPrExChange"),
)  # fmt: skip
_SLIDE = _ElementNames(
    paragraphs=("p", "text"), cells=("tc",), rows=("tr",), tables=("tbl",), texts=("t", "text"),
    silent=("Fallback", "fld"),
)  # fmt: skip
_CHART = _ElementNames(
    paragraphs=("p", "v"), cells=("tx", "cat", "val", "xVal", "yVal", "bubbleSize"), rows=("ser",), texts=("t", "v"),
    silent=("Fallback", "fld"),
)  # fmt: skip
_OPEN_TEXT = _ElementNames(
    paragraphs=("p", "h", "math"), cells=("table-cell", "covered-table-cell"), rows=("table-row",), tables=("table",),
    page_beginnings=("soft-page-break",),
    silent=(
        "tracked-changes", "note-citation", "binary-data", "annotation-xml",
        "http://www.w3.org/1998/Math/MathML annotation",
        # Authors of comments.
        "http://purl.org/dc/elements/1.1/ creator", "http://purl.org/dc/elements/1.1/ date", *_ALTERNATIVES,
    ),
)  # fmt: skip
_OPEN_SLIDE = replace(_OPEN_TEXT, page_beginnings=("page",))
_SYMBOLS = {
    **dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", strict=True)),
    **dict(zip("abcdefghijklmnopqrstuvwxyz", "αβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True)),
    **dict(zip("\xa3\xa5\xb0\xb1\xb3\xb4\xb7\xb8\xb9\xbb\xd6\xe5", "≤∞°±≥×•÷≠≈√∑", strict=True)),
}
"""Characters that the font Symbol stores at the codes of letters."""
_SYMBOL_CODES = 0xF000  # Word adds it to the codes of the font Symbol.


class _Style(NamedTuple):
    role: Role
    level: int = 0


_PLAIN = _Style(Role.PARAGRAPH)
_WORD_STYLES = {
    "title": _Style(Role.HEADING, 1), "caption": _Style(Role.CAPTION), "footnote text": _Style(Role.FOOTNOTE),
    "html preformatted": _Style(Role.CODE), "list bullet": _Style(Role.ITEM, 1), "list number": _Style(Role.ITEM, 1),
}  # fmt: skip
"""Names of Word's own styles, in English in every language."""
_WORD_PARTS = {
    "header": _Style(Role.HEAD), "footer": _Style(Role.FOOT), "footnotes": _Style(Role.FOOTNOTE),
    "endnotes": _Style(Role.FOOTNOTE), "comments": _PLAIN,
}  # fmt: skip
_STYLE_BY_SLIDE_PLACEHOLDER = {
    "title": _Style(Role.HEADING, 1), "ctrTitle": _Style(Role.HEADING, 1), "body": _Style(Role.ITEM, 1),
    "obj": _Style(Role.ITEM, 1), "outline": _Style(Role.ITEM, 1), "sldNum": _Style(Role.NUMBER),
    "ftr": _Style(Role.FOOT), "hdr": _Style(Role.HEAD),
}  # fmt: skip


class _Part(Struct, frozen=True):
    path: str
    names: _ElementNames
    files: Mapping[str, str] = {}
    styles: Mapping[str, _Style] = {}
    """Style ids → styles. The key "" is for paragraphs without a style."""
    links: Mapping[str, str] = {}


class _PartReference(NamedTuple):
    """A reference to another part of the archive, such as a chart."""

    path: str


class OfficeDocument:
    def __init__(self, file: Path | IO[bytes], kind: FileKind) -> None:
        self._archive = Archive(file)
        self._names = set(self._archive.names)
        self._kind = kind
        self._is_inside_another = not isinstance(file, Path)
        self.notes: list[str] = []
        self._unread_pictures: dict[str, None] = {}
        self._note_number_by_kind_and_id: dict[str, str] = {}

    def pieces(self) -> Iterator[Piece]:
        if self._is_open_document:
            yield from self._open_document_pieces()
        elif self._kind is FileKind.DOCX:
            yield from self._word_pieces()
        else:
            yield from self._powerpoint_pieces()
        self.notes += note_of_unread(self._unread_pictures)

    @property
    def _is_open_document(self) -> bool:
        return self._kind in (FileKind.ODT, FileKind.ODP)

    def picture(self, key: str) -> bytes:
        return self._archive.read(key)

    def text_boxes(self) -> list[str]:
        drawings = self._numbered_files("xl/drawings/drawing")
        pieces = [piece for name in drawings for piece in self._pieces_of_part(_Part(name, _SLIDE))]
        # Plain texts: the values of rows are stored as JSON.
        return [str(piece) for piece in pieces if isinstance(piece, str)]

    # ── OpenDocument ──

    def _open_document_pieces(self) -> Iterator[Piece]:
        manifest = "META-INF/manifest.xml"
        if manifest in self._names and b"encryption-data" in self._archive.read(manifest):
            raise DocumentLocked
        files = {f"{prefix}{name}": name for name in self._names for prefix in ("", "./")}
        # An object, such as a formula, is a folder with a content.xml.
        objects = {
            href.removesuffix("/content.xml"): name for href, name in files.items() if name.endswith("/content.xml")
        }
        has_slides = self._kind is FileKind.ODP
        names = _OPEN_SLIDE if has_slides else _OPEN_TEXT
        yield from self._pieces_of_part(_Part("content.xml", names, {**objects, **files}))
        if "styles.xml" in self._names and not has_slides:
            # Headers and footers.
            yield from self._pieces_of_part(_Part("styles.xml", _OPEN_TEXT, files))

    # ── Word ──

    def _word_pieces(self) -> Iterator[Piece]:
        # Word for the web calls the main part document2.xml.
        main_part = min(filter(_WORD_DOCUMENT.fullmatch, self._names), default="word/document.xml")
        yield from self._pieces_of_part(self._part_with_relations(main_part, _WORD, self._word_style_by_id()))
        for kind, style in _WORD_PARTS.items():
            for path in self._numbered_files(f"word/{kind}"):
                yield from self._pieces_of_part(self._part_with_relations(path, _WORD, {"": style}))

    def _word_style_by_id(self) -> dict[str, _Style]:
        styles_part = "word/styles.xml"
        styles: dict[str, _Style] = {}
        style_id = ""

        def begin(tag: str, attributes: dict[str, str]) -> None:
            nonlocal style_id
            plain_attributes = {_local(key): value for key, value in attributes.items()}
            value = plain_attributes.get("val", "").lower()
            match _local(tag):
                case "style":
                    style_id = plain_attributes.get("styleId", "")
                case "name" if value in _WORD_STYLES:
                    styles[style_id] = _WORD_STYLES[value]
                case "name" if heading := _HEADING_STYLE.fullmatch(value):
                    styles[style_id] = _Style(Role.HEADING, int(heading[1]))
                case "outlineLvl" if style_id and value in ("", *"012345"):
                    styles.setdefault(style_id, _Style(Role.HEADING, int(value or 0) + 1))

        if styles_part in self._names:
            _parse(self._archive, styles_part, begin)
        return styles

    # ── PowerPoint ──

    def _powerpoint_pieces(self) -> Iterator[Piece]:
        for slide in self._slides_in_order() or self._numbered_files("ppt/slides/slide"):
            yield NEW_PAGE
            beside = [
                path
                for kind in ("/notesSlide", "/comments")
                for path in sorted(set(self._related_files(slide, kind).values()))
            ]
            for path in (slide, *beside):
                yield from self._pieces_of_part(self._part_with_relations(path, _SLIDE))

    def _slides_in_order(self) -> list[str]:
        presentation = "ppt/presentation.xml"
        slides = self._related_files(presentation, "/slide")
        relation_ids: list[str] = []

        def begin(tag: str, attributes: dict[str, str]) -> None:
            if _local(tag) == "sldId":
                # The other attribute named id, without a namespace, is a number.
                relation_ids.extend(value for key, value in attributes.items() if " " in key)

        if slides:
            _parse(self._archive, presentation, begin)
        return [slides[relation_id] for relation_id in relation_ids if relation_id in slides]

    # ── Parts ──

    def _numbered_files(self, prefix: str) -> list[str]:
        names = [name for name in self._names if name.startswith(prefix) and name.endswith(".xml")]
        return sorted(names, key=lambda name: int(number[1]) if (number := _FILE_NUMBER.search(name)) else 0)

    def _relations(self, path: str) -> list[dict[str, str]]:
        folder, file_name = posixpath.split(path)
        relations_file = f"{folder}/_rels/{file_name}.rels"
        relations: list[dict[str, str]] = []
        if relations_file in self._names:
            _parse(self._archive, relations_file, lambda _, attributes: relations.append(attributes))
        return relations

    def _related_files(self, path: str, kind: str = "") -> dict[str, str]:
        files: dict[str, str] = {}
        for relation in self._relations(path):
            target = posixpath.join("/", posixpath.dirname(path), relation.get("Target", ""))
            name = posixpath.normpath(target).lstrip("/")
            if name in self._names and relation.get("Type", "").endswith(kind):
                files[relation.get("Id", "")] = name
        return files

    def _part_with_relations(self, path: str, names: _ElementNames, styles: Mapping[str, _Style] = {}) -> _Part:
        links = {
            relation.get("Id", ""): relation.get("Target", "")
            for relation in self._relations(path)
            if relation.get("Type", "").endswith("/hyperlink")
        }
        return _Part(path, names, self._related_files(path), styles, links)

    def _pieces_of_part(self, part: _Part) -> Iterator[Piece]:
        for piece in self._parse_part(part):
            if isinstance(piece, _PartReference):
                yield from self._pieces_of_inner_part(piece.path)
            else:
                yield piece

    def _parse_part(self, part: _Part) -> list[Piece | _PartReference]:
        if part.path not in self._names:
            raise UnreadableDocument(f"there is no {part.path} in it")
        parser = _PartParser(part, self._note_number_by_kind_and_id)
        _parse(self._archive, part.path, parser.begin, parser.end, parser.add_text)
        self._unread_pictures |= dict.fromkeys(parser.unread_pictures)
        return parser.pieces

    def _pieces_of_inner_part(self, path: str) -> Iterator[Piece]:
        if self._is_open_document:
            part = _Part(path, _OPEN_TEXT)
        elif path.endswith(".xml"):
            part = _Part(path, _CHART if "/charts/" in path else _SLIDE)
        else:
            yield from self._pieces_of_inner_file(path)
            return
        # Parts inside an inner part are left out: they could refer to themselves.
        yield from (piece for piece in self._parse_part(part) if not isinstance(piece, _PartReference))

    def _pieces_of_inner_file(self, name: str) -> Iterator[Piece]:
        body = self._archive.read(name)
        suffix = posixpath.splitext(name)[1].lower()
        if suffix in (".html", ".htm", ".xhtml"):
            text = body.decode(web.encoding_of(body), "replace")
            yield from web.pieces_of(iter([text]), web.embedded_address)
        elif suffix == ".txt":
            yield from decode(body)[0].splitlines()
        elif suffix in (".docx", ".docm") and not self._is_inside_another:
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
        with archive.open_member(name) as file:
            while block := file.read(_BLOCK_BYTES):
                size += len(block)
                if size > MEMBER_BYTES_MAX:
                    raise UnreadableDocument(f"{name} in it is larger than {MEMBER_BYTES_MAX >> 20} MiB")
                parser.Parse(block)
            parser.Parse(b"", True)
    except (IndexError, KeyError) as error:
        # `_PartParser` has found an end without its beginning, before expat can report the missing tag.
        raise UnreadableDocument(f"{name} in it is broken (its elements are not properly nested)") from error
    except (expat.ExpatError, LookupError, *BROKEN) as error:
        # LookupError: the XML declaration names an unknown encoding.
        raise UnreadableDocument(f"{name} in it is broken ({error})") from error


def _refuse_entities(*_: object) -> None:
    raise UnreadableDocument("it declares entities, which no office document does")


@dataclass(slots=True)
class _OpenParagraph:
    parts: list[str]
    style: _Style

    def text(self) -> StyledText:
        return styled_text(self.parts, *self.style)


@dataclass(slots=True)
class _OpenRow:
    open_paragraphs_around: int
    repeats: int
    cells: list[list[str]] = field(default_factory=list)
    spans: list[CellSpan] = field(default_factory=list)
    """Cells over several rows or columns. One over a single row may grow with the rows below."""
    continued_columns: list[int] = field(default_factory=list)
    cell_columns: int = 1
    cell_repeats: int = 1

    def add_span(self, rows: int, columns: int) -> None:
        if rows > 1 or columns > 1:
            self.spans.append(CellSpan(len(self.cells) - 1, rows, columns))

    def end_cell(self) -> None:
        # The text of a cell across several columns is in the first of them.
        if self.cells:
            repeats = _bounded_repeats(self.cell_repeats, self.cells[-1])
            self.cells += [self.cells[-1]] * (repeats - 1) + [[]] * (self.cell_columns - 1)
        self.cell_columns = self.cell_repeats = 1


class _StatedSpan(NamedTuple):
    span: CellSpan
    stated_last_row: int


@dataclass(slots=True)
class _OpenTable:
    height: int = 0
    spans: list[_StatedSpan] = field(default_factory=list)

    def end_row(self, row: _OpenRow, *, is_empty: bool) -> None:
        self.height += 1
        # Rows without text are left out, so no cell covers them.
        for span, stated_last_row in self.spans:
            if is_empty and self.height <= stated_last_row:
                span.rows -= 1
        span_by_column = {span.column: span for span, _ in self.spans}
        for column in row.continued_columns:
            if column in span_by_column and not is_empty:
                span_by_column[column].rows += 1
        self.spans += [_StatedSpan(span, self.height + span.rows - 1) for span in row.spans]


class _OpenTables:
    def __init__(self) -> None:
        self._tables: list[_OpenTable] = []
        self._rows: list[_OpenRow] = []
        self._is_new_table = False
        """True if the next row outside of other rows is the first one with text in its table."""

    @property
    def row(self) -> _OpenRow | None:
        return self._rows[-1] if self._rows else None

    def begin_table(self, _: Mapping[str, str]) -> None:
        self._tables.append(_OpenTable())
        self._is_new_table = self._is_new_table or not self._rows

    def end_table(self) -> None:
        if self._tables:
            self._tables.pop()

    def begin_row(self, attributes: Mapping[str, str], open_paragraphs_around: int) -> None:
        self._rows.append(_OpenRow(open_paragraphs_around, _bounded_number(attributes, "number-rows-repeated")))

    def end_row(self) -> list[TableRow]:
        if not self._rows:
            return []
        row = self._rows.pop()
        cells = [" ".join(cell) for cell in row.cells]
        ended: list[TableRow] = []
        for _ in range(_bounded_repeats(row.repeats, cells)):
            table_row = TableRow(cells, begins_table=self._is_new_table, spans=row.spans)
            if self._tables:
                self._tables[-1].end_row(row, is_empty=not table_row)
            self._is_new_table = self._is_new_table and (bool(self._rows) or not table_row)
            ended.append(table_row)
        return ended

    def begin_cell(self, attributes: Mapping[str, str]) -> None:
        if row := self.row:
            row.cells.append([])
            # The names in OpenDocument, then those in PowerPoint.
            row.cell_repeats = _bounded_number(attributes, "number-columns-repeated")
            rows = max(_bounded_number(attributes, "number-rows-spanned"), _bounded_number(attributes, "rowSpan"))
            columns = max(
                _bounded_number(attributes, "number-columns-spanned"), _bounded_number(attributes, "gridSpan")
            )
            row.add_span(rows, columns)

    def end_cell(self) -> None:
        if row := self.row:
            row.end_cell()

    def set_cell_columns(self, attributes: Mapping[str, str]) -> None:
        if row := self.row:
            row.cell_columns = _bounded_number(attributes, "val")
            row.add_span(1, row.cell_columns)

    def skip_columns(self, attributes: Mapping[str, str]) -> None:
        if row := self.row:
            row.cells += [[]] * _bounded_number(attributes, "val")

    def merge_cell(self, attributes: Mapping[str, str]) -> None:
        # Word says of each cell, after its columns, whether it continues the cell above it.
        row = self.row
        if row is None or not row.cells:
            return
        column = len(row.cells) - 1
        if attributes.get("val") != "restart":
            row.continued_columns.append(column)
            row.spans = [span for span in row.spans if span.column != column]
        elif not row.spans or row.spans[-1].column != column:
            row.spans.append(CellSpan(column, 1, 1))


class _PartParser:
    """Turns the elements of one XML part into pieces. expat calls `begin`, `end` and `add_text`.

    A note or text box inside a paragraph follows that paragraph, so that no sentence is cut.
    """

    def __init__(self, part: _Part, note_number_by_kind_and_id: dict[str, str]) -> None:
        # The parser adds the footnotes of its part to `note_number_by_kind_and_id`.
        self._part, self._names, self._note_number_by_kind_and_id = part, part.names, note_number_by_kind_and_id
        self.pieces: list[Piece | _PartReference] = []
        self.unread_pictures: list[str] = []
        self._tables = _OpenTables()
        self._paragraphs: list[_OpenParagraph] = []
        self._after_paragraph: list[str] = []
        self._shape_style = _PLAIN
        self._list_depth = 0
        self._note_of_next_paragraph = ""
        self._open_notes = 0
        self._open_field_instructions: list[str] = []
        """Such as `HYPERLINK "https://…"`."""
        self._is_in_instruction = False
        self._has_run_link = False
        self._alternative = ""
        self._alternative_parts: list[str] | None = None
        self._pieces_before_frame = self._unread_before_frame = 0
        self._silent_depth = 0
        self._text_depth = 0
        # By element. One that is in several lines gets the method of the last.
        self._begin_methods = self._methods_at_begin()
        self._end_methods = self._methods_at_end()

    def _methods_at_begin(self) -> dict[str, Callable[[dict[str, str]], object]]:
        names, tables = self._names, self._tables
        return {
            "gridSpan": tables.set_cell_columns,
            "vMerge": tables.merge_cell,
            "gridBefore": tables.skip_columns,
            "hyperlink": lambda attributes: self._begin_link(self._part.links.get(attributes.get("id", ""), "")),
            "hlinkClick": self._begin_run_link,
            "a": lambda attributes: self._begin_link(attributes.get("href", "")),
            "fldSimple": lambda attributes: self._begin_link(_address_in(attributes.get("instr", ""))),
            "fldChar": self._change_field,
            "instrText": self._begin_instruction,
            **{f"{name}Reference": partial(self._refer_to_note, name) for name in ("footnote", "endnote")},
            **{name: partial(self._begin_note, name) for name in ("footnote", "endnote")},
            "note": self._begin_inline_note,
            "docPr" if names is _WORD else "cNvPr": self._set_alternative,
            "shape": self._set_alternative,
            "br": self._break_line,
            "frame": self._begin_frame,
            **dict.fromkeys(("blip", "imagedata"), self._add_picture),
            "image": self._add_picture_of_frame,
            **dict.fromkeys(("chart", "relIds", "altChunk", "object"), self._add_part_reference),
            **dict.fromkeys(names.page_beginnings, lambda _: self._begin_page()),
            **dict.fromkeys(names.cells, tables.begin_cell),
            **dict.fromkeys(names.tables, tables.begin_table),
            **dict.fromkeys(names.rows, lambda attributes: tables.begin_row(attributes, len(self._paragraphs))),
            **dict.fromkeys(names.paragraphs, self._begin_paragraph),
            "list": self._begin_list,
            "pStyle": self._set_style,
            "outlineLvl": lambda attributes: self._set_role(Role.HEADING, _bounded_number(attributes, "val", 8) + 1),
            "ilvl": lambda attributes: self._set_role(Role.ITEM, _bounded_number(attributes, "val", 8) + 1),
            "sp": lambda _: self._set_placeholder(""),
            "ph": lambda attributes: self._set_placeholder(attributes.get("type", "body")),
            "pPr": self._set_slide_level,
            "buNone": lambda _: self._set_role(Role.PARAGRAPH, 0, also_replaces=Role.ITEM),
        }

    def _methods_at_end(self) -> dict[str, Callable[[], object]]:
        names = self._names
        return {
            **dict.fromkeys(("hyperlink", "a", "fldSimple"), self._end_link),
            "r": self._end_run,
            "instrText": self._end_instruction,
            "note": self._end_inline_note,
            "list": self._end_list,
            **dict.fromkeys(names.rows, self._end_row),
            **dict.fromkeys(names.cells, self._tables.end_cell),
            **dict.fromkeys(names.tables, self._tables.end_table),
            **dict.fromkeys(names.paragraphs, self._end_paragraph),
        }

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        name = _local(tag)
        if self._silent_depth or name in self._names.silent or tag in self._names.silent:
            self._silent_depth += 1
            if tag in _ALTERNATIVES:
                self._alternative_parts = []
            return
        if name in self._names.texts:
            self._text_depth += 1
        plain_attributes = {_local(key): value for key, value in attributes.items()}
        if name in self._begin_methods:
            self._begin_methods[name](plain_attributes)
        elif self._paragraphs:
            self._paragraphs[-1].parts.append(_element_text(name, plain_attributes))

    def end(self, tag: str) -> None:
        name = _local(tag)
        if self._silent_depth:
            self._silent_depth -= 1
            if tag in _ALTERNATIVES:
                self._end_alternative()
            return
        if name in self._names.texts:
            self._text_depth -= 1
        if name in self._end_methods:
            self._end_methods[name]()

    def add_text(self, text: str) -> None:
        if self._alternative_parts is not None:
            self._alternative_parts.append(text)
        elif self._is_in_instruction:
            self._open_field_instructions[-1] += text
        elif not self._silent_depth and (self._text_depth or not self._names.texts):
            # OpenDocument has an element for consecutive spaces.
            self._add_to_paragraph(text if self._names.texts else _SPACES.sub(" ", text))

    # ── Paragraphs ──

    def _begin_paragraph(self, attributes: dict[str, str]) -> None:
        parts: list[str] = [LineMark(note=self._note_of_next_paragraph)] if self._note_of_next_paragraph else []
        self._note_of_next_paragraph = ""
        self._paragraphs.append(_OpenParagraph(parts, self._style_of_paragraph(attributes)))

    def _end_paragraph(self) -> None:
        self._add_text_piece(self._paragraphs.pop().text())

    def _end_row(self) -> None:
        for row in self._tables.end_row():
            # The series of a chart are not rows of a table.
            self._add_text_piece(row if self._names.tables else str(row))

    def _style_of_paragraph(self, attributes: dict[str, str]) -> _Style:
        if "outline-level" in attributes:
            return _Style(Role.HEADING, min(_bounded_number(attributes, "outline-level"), 6))
        if self._open_notes:
            return _Style(Role.FOOTNOTE)
        if self._list_depth:
            return _Style(Role.ITEM, self._list_depth)
        return self._part.styles.get("", self._shape_style)

    def _add_to_paragraph(self, part: str) -> None:
        if self._paragraphs:
            self._paragraphs[-1].parts.append(part)

    def _add_text_piece(self, text: str) -> None:
        """Add a paragraph or row to the cell that it is in, behind the open paragraph, or to the pieces."""
        row = self._tables.row
        if row is not None and row.cells and row.open_paragraphs_around == len(self._paragraphs):
            row.cells[-1] += filter(None, _on_one_line([text, *self._after_paragraph]))
            self._after_paragraph.clear()
        elif self._paragraphs:
            self._after_paragraph.append(text)
        else:
            self.pieces += filter(None, [text, *self._after_paragraph])
            self._after_paragraph.clear()

    def _set_role(self, role: Role, level: int, *, also_replaces: Role = Role.PARAGRAPH) -> None:
        if self._paragraphs and self._paragraphs[-1].style.role in (Role.PARAGRAPH, also_replaces):
            self._paragraphs[-1].style = _Style(role, level)

    def _set_style(self, attributes: dict[str, str]) -> None:
        if self._paragraphs and (style := self._part.styles.get(attributes.get("val", ""))):
            self._paragraphs[-1].style = style

    def _set_slide_level(self, attributes: dict[str, str]) -> None:
        if self._paragraphs and self._paragraphs[-1].style.role is Role.ITEM and "lvl" in attributes:
            self._paragraphs[-1].style = _Style(Role.ITEM, _bounded_number(attributes, "lvl", 8) + 1)

    def _set_placeholder(self, placeholder: str) -> None:
        self._shape_style = _STYLE_BY_SLIDE_PLACEHOLDER.get(placeholder, _PLAIN)

    def _begin_list(self, _: dict[str, str]) -> None:
        self._list_depth += 1

    def _end_list(self) -> None:
        self._list_depth = max(self._list_depth - 1, 0)

    def _break_line(self, attributes: dict[str, str]) -> None:
        begins_page = attributes.get("type") == "page" and self._begin_page()
        if not begins_page:
            self._add_to_paragraph("\n")

    def _begin_page(self) -> bool:
        """Return False inside a cell or text box, where no page can begin."""
        if self._tables.row is not None or len(self._paragraphs) > 1:
            return False
        if self._paragraphs and (text := self._paragraphs[-1].text()):
            self.pieces.append(text)
            self._paragraphs[-1].parts.clear()
        self.pieces.append(NEW_PAGE)
        return True

    # ── Links and notes ──

    def _begin_link(self, address: str) -> None:
        self._add_to_paragraph(LineMark(address=address))

    def _end_link(self) -> None:
        self._begin_link("")
        self._has_run_link = False

    def _end_run(self) -> None:
        if self._has_run_link:
            self._end_link()

    def _begin_run_link(self, attributes: dict[str, str]) -> None:
        self._has_run_link = True
        self._begin_link(self._part.links.get(attributes.get("id", ""), ""))

    def _change_field(self, attributes: dict[str, str]) -> None:
        # A field of Word has these parts: begin, an instruction, separate, a text, end.
        kind = attributes.get("fldCharType")
        if kind == "begin":
            self._open_field_instructions.append("")
        elif self._open_field_instructions and (address := _address_in(self._open_field_instructions[-1])):
            self._begin_link(address if kind == "separate" else "")
        if kind == "end" and self._open_field_instructions:
            self._open_field_instructions.pop()

    def _begin_instruction(self, _: dict[str, str]) -> None:
        self._is_in_instruction = bool(self._open_field_instructions)

    def _end_instruction(self) -> None:
        self._is_in_instruction = False

    def _refer_to_note(self, kind: str, attributes: Mapping[str, str]) -> None:
        # Footnotes are numbered as the text refers to them.
        next_number = str(len(self._note_number_by_kind_and_id) + 1)
        number = self._note_number_by_kind_and_id.setdefault(f"{kind} {attributes.get('id', '')}", next_number)
        self._add_to_paragraph(LineMark(note=number))

    def _begin_note(self, kind: str, attributes: Mapping[str, str]) -> None:
        self._note_of_next_paragraph = self._note_number_by_kind_and_id.get(f"{kind} {attributes.get('id', '')}", "")

    def _begin_inline_note(self, _: dict[str, str]) -> None:
        # OpenDocument has the note where the text refers to it.
        note_id = {"id": str(len(self._note_number_by_kind_and_id))}
        self._refer_to_note("note", note_id)
        self._open_notes += 1
        self._begin_note("note", note_id)

    def _end_inline_note(self) -> None:
        self._open_notes -= 1

    # ── Pictures and other parts ──

    def _begin_frame(self, attributes: dict[str, str]) -> None:
        self._pieces_before_frame, self._unread_before_frame = len(self.pieces), len(self.unread_pictures)
        self._set_placeholder(attributes.get("class", ""))

    def _set_alternative(self, attributes: dict[str, str]) -> None:
        self._alternative = " ".join((attributes.get("descr") or attributes.get("alt") or "").split())

    def _end_alternative(self) -> None:
        alternative = " ".join("".join(self._alternative_parts or []).split())
        self._alternative_parts = None
        if not alternative:
            return
        for at in range(self._pieces_before_frame, len(self.pieces)):
            piece = self.pieces[at]
            if isinstance(piece, PictureReference):
                self.pieces[at] = piece._replace(alt=alternative)

    def _add_picture(self, attributes: dict[str, str]) -> None:
        name = self._file_of(attributes, "embed", "id", "href")
        if is_picture(name):
            self.pieces.append(PictureReference(name, self._alternative))
            self._alternative = ""
        elif posixpath.splitext(name)[1]:
            self.unread_pictures.append(name)

    def _add_picture_of_frame(self, attributes: dict[str, str]) -> None:
        self._add_picture(attributes)
        if is_picture(self._file_of(attributes, "embed", "id", "href")):
            # A frame may hold the same picture in several formats, for programs that cannot show the first.
            del self.unread_pictures[self._unread_before_frame :]

    def _add_part_reference(self, attributes: dict[str, str]) -> None:
        if name := self._file_of(attributes, "dm", "id", "href"):
            self.pieces.append(_PartReference(name))

    def _file_of(self, attributes: Mapping[str, str], *attribute_names: str) -> str:
        keys = [attributes.get(name, "").rstrip("/") for name in attribute_names]
        return next((self._part.files[key] for key in keys if key in self._part.files), "")


def _address_in(instruction: str) -> str:
    return found[1] if (found := _LINK_FIELD.match(instruction)) else ""


def _bounded_repeats(times: int, texts: Sequence[str]) -> int:
    return min(times, 1 + _REPEATED_CHARACTERS // max(sum(map(len, texts)), 1))


def _on_one_line(texts: Sequence[str]) -> Iterator[str]:
    return (text.replace("\n", " ").replace("\t", " ").strip() for text in texts)


def _bounded_number(attributes: Mapping[str, str], name: str, most: int = _REPEATS_MAX) -> int:
    """Return 1 if the attribute is not a number."""
    number = attributes.get(name, "1")[:_DIGITS_MAX]
    return min(int(number), most) if number.isdecimal() else 1


def _element_text(name: str, attributes: Mapping[str, str]) -> str:
    if name in ("line-break", "cr"):
        return "\n"
    if name in ("tab", "ptab"):
        # Tab stops use an element of the same name.
        return "" if "val" in attributes else "\t"
    if name == "s":
        return " " * _bounded_number(attributes, "c", _SPACES_MAX)
    if name == "noBreakHyphen":
        return "-"
    return _symbol(attributes) if name == "sym" and "char" in attributes else ""


def _symbol(attributes: Mapping[str, str]) -> str:
    if not _CHARACTER_CODE.fullmatch(attributes["char"]):
        return ""
    code = int(attributes["char"], 16)
    if code & 0xFF00 != _SYMBOL_CODES:
        return chr(code)
    return _SYMBOLS.get(chr(code - _SYMBOL_CODES), "") if attributes.get("font", "") == "Symbol" else ""


def _local(name: str) -> str:
    # Expat puts the namespace and a space before the name.
    return name.rpartition(" ")[2]


def open_document(path: Path, kind: FileKind) -> OfficeDocument:
    return OfficeDocument(path, kind)
