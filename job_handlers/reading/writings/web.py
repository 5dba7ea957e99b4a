"""HTML as a person sees it: without scripts and styles, cells of a row by tabs. By Python's own parser, which takes
whatever is broken. What a page hides until somebody asks for it is read as well.

Mails and many pages are laid out by tables. So a row is a line where each of its cells is one at most; else its lines
are those of the page.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from job_handlers.kinds import HEAD_BYTES, Kind, decoded
from job_handlers.reading.writings import Picture, Piece, Unreadable

_STEP_CHARACTERS = 1 << 16
_SILENT = {"script", "style", "template", "noscript", "iframe", "annotation", "annotation-xml"}
_BLOCKS = frozenset(
    "address article aside blockquote body br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6"
    " header hr li main nav ol option p pre section summary table tbody text tfoot thead title tr ul".split()
)
_CELLS = {"td", "th"}
_ROW_ENDS = {"tr", "table", "thead", "tbody", "tfoot"}
_ROW_PIECES_MAX = 1000
_CHARSET = re.compile(rb"""(?:charset|<\?xml[^>]{0,200}\sencoding)\s*=\s*["']?\s*([\w-]+)""", re.IGNORECASE)
_MEANT = {"iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
_DATA = re.compile(r"data:image/(?:png|jpe?g|tiff?);base64,", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\r\n\f\v]+")

Resolve = Callable[[str], str | None]
"""What an image is known by, of the address that it is given; None: it is no part of the file."""


class Page(HTMLParser):
    def __init__(self, resolve: Resolve) -> None:
        super().__init__(convert_charrefs=True)
        self._resolve = resolve
        self._silent: list[str] = []
        self._kept_as_it_is = 0
        self._line: list[str] = []
        self._found: list[Piece] = []
        self._cells: list[list[Piece]] = []
        """Of the row that is open."""
        self._in_row = 0

    def taken(self) -> list[Piece]:
        """What has become whole since the last time."""
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        super().close()
        self._end_row()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent or tag in _SILENT:
            if tag in _SILENT:
                self._silent.append(tag)
            return
        if tag in _BLOCKS or tag in _CELLS:
            self._end_line()
        if tag in _ROW_ENDS:
            self._end_row()
        if tag in _CELLS:
            self._cells.append([])
        if tag == "pre":
            self._kept_as_it_is += 1
        if tag == "img":
            self._take_image(dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _SILENT:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            # What was opened in it and never closed ends with it.
            del self._silent[self._silent.index(tag) :]
        elif not self._silent and tag in _BLOCKS:
            self._end_line()
            if tag == "pre":
                self._kept_as_it_is = max(self._kept_as_it_is - 1, 0)
            if tag in _ROW_ENDS:
                self._end_row()

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if not self._kept_as_it_is:
            self._line.append(_SPACES.sub(" ", data))
            return
        first, *others = data.split("\n")
        self._line.append(first)
        for line in others:
            self._end_line()
            self._line.append(line)

    def _take_image(self, said: dict[str, str | None]) -> None:
        if alternative := (said.get("alt") or "").strip():
            self._line.append(f" {alternative} ")
        if (key := self._resolve(said.get("src") or "")) is not None:
            self._end_line()
            self._add(Picture(key))

    def _end_line(self) -> None:
        text = "".join(self._line)
        self._line.clear()
        if not self._kept_as_it_is:
            text = _SPACES.sub(" ", text).strip()
        if text.strip():
            self._add(text.rstrip())

    def _add(self, piece: Piece) -> None:
        if not self._cells:
            self._found.append(piece)
            return
        self._cells[-1].append(piece)
        self._in_row += 1
        if self._in_row > _ROW_PIECES_MAX:
            self._end_row()

    def _end_row(self) -> None:
        self._end_line()
        cells, self._cells, self._in_row = self._cells, [], 0
        lines = [[one for one in cell if isinstance(one, str)] for cell in cells]
        if all(len(cell) <= 1 for cell in lines):
            if row := "\t".join(cell[0] if cell else "" for cell in lines).rstrip():
                self._found.append(row)
            self._found += [one for cell in cells for one in cell if isinstance(one, Picture)]
        else:
            self._found += [one for cell in cells for one in cell]


class Web:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []

    def pieces(self) -> Iterator[Piece]:
        with self._path.open("rb") as file:
            encoding = encoding_of(file.read(HEAD_BYTES))
        with self._path.open(encoding=encoding, errors="replace") as file:
            yield from pieces_of(iter(lambda: file.read(_STEP_CHARACTERS), ""), inside)

    def picture(self, key: str) -> bytes:
        return unpacked(key)


def pieces_of(blocks: Iterator[str], resolve: Resolve) -> Iterator[Piece]:
    page = Page(resolve)
    for block in blocks:
        page.feed(block)
        yield from page.taken()
    page.close()
    yield from page.taken()


def encoding_of(head: bytes) -> str:
    """By its mark, else as it says, else as a text."""
    text_like = decoded(head)[1]
    if text_like in ("utf-16", "utf-32") or head.startswith(b"\xef\xbb\xbf"):
        return text_like
    found = _CHARSET.search(head)
    return (known(found[1].decode()) if found else "") or text_like


def known(charset: str) -> str:
    """What is meant by a name: browsers, too, take what was written in Windows for that. Empty: nothing that could be
    told by, as where what was found byte by byte says that it has two for each letter."""
    try:
        name = codecs.lookup(charset).name
        # Some are none of texts, and some know no way around what is wrong.
        b"\xff".decode(name, "replace")
    except (LookupError, ValueError):
        return ""
    if name.startswith(("utf-16", "utf-32")):
        return ""
    return "" if name == "ascii" else _MEANT.get(name, name)


def inside(address: str) -> str | None:
    """An image that stands in the page itself."""
    return address if _DATA.match(address) else None


def unpacked(address: str) -> bytes:
    try:
        return base64.b64decode(address.partition(",")[2])
    except (binascii.Error, ValueError) as error:
        raise Unreadable(f"a picture in it is broken: {error}") from error


def open_writing(path: Path, kind: Kind) -> Web:
    return Web(path)
