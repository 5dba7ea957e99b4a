"""Documents of office programs: Word, PowerPoint, OpenDocument text. All are XML in a zip archive, and differ in what
they call a paragraph; so one walk reads them all, and holds no more than a few paragraphs at once.

Headers, text boxes, notes, comments and what a speaker noted are read too; what was deleted and is only remembered is
not, nor anything that a link names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from job_handlers.kinds import Kind
from job_handlers.reading.writings import NEW_PAGE, Picture, Piece, Unreadable
from job_handlers.reading.writings.archive import Archive

_BLOCK_BYTES = 1 << 16
_SPACES_MAX = 200
_PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
_NUMBER = re.compile(r"(\d+)\.xml\Z")


@dataclass(frozen=True, slots=True)
class _Words:
    """What a format calls things, without their namespaces."""

    paragraphs: Sequence[str]
    cells: Sequence[str]
    rows: Sequence[str]
    silent: Sequence[str]
    """What stands in these is not shown."""
    texts: Sequence[str] = ()
    """Only what stands in these is text; none: whatever stands in a paragraph."""
    pages: Sequence[str] = ()
    """What tells where a page began when the document was last shown."""


_WORD = _Words(
    ("p",),
    ("tc",),
    ("tr",),
    ("del", "moveFrom", "Fallback", "instrText", "delText"),
    ("t",),
    ("lastRenderedPageBreak",),
)
_SLIDE = _Words(("p",), ("tc",), ("tr",), ("Fallback", "fld"), ("t",))
_OPEN = _Words(
    ("p", "h"), ("table-cell", "covered-table-cell"), ("table-row",), ("tracked-changes",), (), ("soft-page-break",)
)


class Office:
    def __init__(self, path: Path, kind: Kind) -> None:
        self._archive = Archive(path)
        self._names = set(self._archive.names)
        self._kind = kind

    def pieces(self) -> Iterator[Piece]:
        if self._kind is Kind.ODT:
            yield from self._part("content.xml", _OPEN, {name: name for name in self._names})
        elif self._kind is Kind.DOCX:
            yield from self._related("word/document.xml", _WORD)
            for beside in ("header", "footer", "footnotes", "endnotes", "comments"):
                for name in self._numbered(f"word/{beside}"):
                    yield from self._related(name, _WORD)
        else:
            for slide in self._numbered("ppt/slides/slide"):
                yield NEW_PAGE
                yield from self._related(slide, _SLIDE)
                for note in self._targets(slide, "/notesSlide"):
                    yield from self._related(note, _SLIDE)

    def picture(self, key: str) -> bytes:
        return self._archive.read(key)

    def _numbered(self, begins: str) -> list[str]:
        """By their numbers, which is the order of slides unless somebody has moved one."""
        found = [name for name in self._names if name.startswith(begins) and name.endswith(".xml")]
        return sorted(found, key=lambda name: int(number[1]) if (number := _NUMBER.search(name)) else 0)

    def _related(self, name: str, words: _Words) -> Iterator[Piece]:
        return self._part(name, words, self._relations(name, ""))

    def _targets(self, name: str, kind: str) -> list[str]:
        return sorted(set(self._relations(name, kind).values()))

    def _relations(self, name: str, kind: str) -> dict[str, str]:
        """Of a part, by the names that it has for them. What is outside of the archive is none."""
        folder, own = posixpath.split(name)
        beside = f"{folder}/_rels/{own}.rels"
        found: dict[str, str] = {}
        if beside not in self._names:
            return found

        def begin(tag: str, said: dict[str, str]) -> None:
            target = posixpath.normpath(posixpath.join("/", folder, said.get("Target", ""))).lstrip("/")
            if said.get("Type", "").endswith(kind) and target in self._names:
                found[said.get("Id", "")] = target

        _parsed(self._archive, beside, begin, lambda tag: None, lambda text: None)
        return found

    def _part(self, name: str, words: _Words, pictures: Mapping[str, str]) -> Iterator[Piece]:
        if name not in self._names:
            raise Unreadable(f"there is no {name} in it")
        walk = _Walk(words, pictures)
        _parsed(self._archive, name, walk.begin, walk.end, walk.hear)
        yield from walk.found


def _parsed(archive: Archive, name: str, begin: object, end: object, hear: object) -> None:
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, hear  # type: ignore[assignment]
    # No office program writes any; who does wants something else than to be read.
    parser.StartDoctypeDeclHandler = _refuse
    try:
        with archive.open(name) as file:
            while block := file.read(_BLOCK_BYTES):
                parser.Parse(block)
            parser.Parse(b"", True)
    except (expat.ExpatError, OSError, ValueError, EOFError) as error:
        raise Unreadable(f"{name} in it is broken ({error})") from error


def _refuse(*_: object) -> None:
    raise Unreadable("it declares entities, which no office document does")


@dataclass(slots=True)
class _Walk:
    """Through one part. A row becomes a line, and its cells are parted by tabs."""

    words: _Words
    pictures: Mapping[str, str]
    found: list[Piece] = field(default_factory=list)
    _line: list[str] = field(default_factory=list)
    _rows: list[list[str]] = field(default_factory=list)
    """Those that are open, the innermost last: what their cells have so far."""
    _silent: int = 0
    _paragraphs: int = 0
    _texts: int = 0

    def begin(self, tag: str, said: dict[str, str]) -> None:
        name = _local(tag)
        if self._silent or name in self.words.silent:
            self._silent += 1
            return
        plain = {_local(key): value for key, value in said.items()}
        if name in self.words.paragraphs:
            self._paragraphs += 1
        elif name in self.words.texts:
            self._texts += 1
        elif name in self.words.rows:
            self._end_line()
            self._rows.append([])
        elif name in self.words.cells and self._rows:
            self._rows[-1].append("")
        elif name in self.words.pages or (name == "br" and plain.get("type") == "page"):
            self._new_page()
        elif name in ("br", "line-break", "cr"):
            self._line.append("\n")
        elif name == "tab" and (self._paragraphs and "val" not in plain):
            self._line.append("\t")
        elif name == "s":
            self._line.append(" " * min(int(plain.get("c", "1") or 1), _SPACES_MAX))
        elif name in ("blip", "imagedata", "image"):
            self._picture(plain.get("embed") or plain.get("id") or plain.get("href") or "")

    def end(self, tag: str) -> None:
        name = _local(tag)
        if self._silent:
            self._silent -= 1
        elif name in self.words.paragraphs:
            self._paragraphs -= 1
            self._end_line()
        elif name in self.words.texts:
            self._texts -= 1
        elif name in self.words.rows and self._rows:
            row = "\t".join(cell.strip() for cell in self._rows.pop()).rstrip()
            self._add(row)

    def hear(self, text: str) -> None:
        if not self._silent and (self._texts if self.words.texts else self._paragraphs):
            self._line.append(text)

    def _picture(self, key: str) -> None:
        name = self.pictures.get(key, "")
        if name.lower().endswith(_PICTURES):
            self.found.append(Picture(name))

    def _new_page(self) -> None:
        self._end_line()
        if not self._rows:
            self.found.append(NEW_PAGE)

    def _end_line(self) -> None:
        text = "".join(self._line).strip()
        self._line.clear()
        if text:
            self._add(text)

    def _add(self, text: str) -> None:
        """To the cell that is open, or as a paragraph of its own."""
        if not text:
            return
        if self._rows and self._rows[-1]:
            cells = self._rows[-1]
            cells[-1] = f"{cells[-1]} {text}".replace("\n", " ").replace("\t", " ").strip()
        else:
            self.found.append(text)


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def open_writing(path: Path, kind: Kind) -> Office:
    return Office(path, kind)
