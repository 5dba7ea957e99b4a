"""Markdown of a document, without running heads, feet and page numbers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from worker_service.jobs.blocks import MARKER, RUNNING, Block, Role
from worker_service.jobs.page_structure import Rows, Span, StructuredPage

_SPECIAL = re.compile(r"[\\`*]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|\[(?=[^\]]*\]\()")
_ALT_SPECIAL = re.compile(r"[\\`*_\[\]<]")
_ESCAPED = r"\\\g<0>"
_BLOCK_BEGIN = re.compile(r"(?=[#>+-](?:\s|$)|#{2,6}\s|~~~|\d{1,9}[.)]\s|={3,}|-{3,})")
DIVIDED_WORD = re.compile(r"(?<=[^\W\d_])(?:-|\u00ad)\s*\n\s*(?=[^\W\d_])")
_SENTENCE_END = (".", "!", "?", ":", ";", ")", "”", '"', "»")
_LEVELS_MAX = 6
# Characters that no text has.
_LINK_BEGIN, _LINK_END = "\ufdd0", "\ufdd1"
_NOTE = "\ufdd2"
_MARKED_NOTE = re.compile(rf" *{_NOTE}([\w-]+){_NOTE}")
_MARKED_LINK = re.compile(f"{_LINK_BEGIN}([^{_LINK_BEGIN}]*){_LINK_END}(\\d+){_LINK_END}")


def page_marker(number: int) -> str:
    return f"<!-- page {number} -->"


def document_markdown(pages: Sequence[StructuredPage]) -> Iterator[str]:
    for page in pages:
        yield f"{page_marker(page.number)}\n\n{page_markdown(page)}\n"


def page_markdown(page: StructuredPage) -> str:
    shown = [
        one
        for one in page.blocks
        if one.role is Role.PICTURE or (one.role not in RUNNING and page.text_of(one).strip())
    ]
    made: list[str] = []
    for role, some in groupby(_joined(page, shown), lambda one: one[0].role):
        blocks = list(some)
        if role is Role.ITEM:
            made.append(_list([one for one, _ in blocks], [text for _, text in blocks]))
        elif role is Role.CODE:
            made.append(_code([page.text_of(one) for one, _ in blocks]))
        else:
            made += [_block(page, one, text) for one, text in blocks]
    whole = _MARKED_NOTE.sub(r"[^\1]", "\n\n".join(filter(None, made)) + "\n" if made else "")
    return _MARKED_LINK.sub(lambda found: f"[{found[1]}]({page.links[int(found[2])].address})", whole)


def _marked_text(page: StructuredPage, block: Block) -> str:
    """Return the text with links and footnotes between marks, which later steps leave unchanged."""
    text = page.text_of(block)
    if block.role in (Role.TABLE, Role.CODE):
        return text
    places = [(one.begin, one.end, f"{_NOTE}{one.note}{_NOTE}") for one in page.notes]
    for number, link in enumerate(page.links):
        own = f"{_LINK_BEGIN}{page.text[link.begin : link.end]}{_LINK_END}{number}{_LINK_END}"
        places.append((link.begin, link.end, own))
    least = block.end
    for begin, end, marked in sorted(places, reverse=True):
        if block.begin <= begin < block.end and end <= least:
            text = f"{text[: begin - block.begin]}{marked}{text[end - block.begin :]}"
            least = begin
    return text


def block_markdown(page: StructuredPage, block: Block) -> str:
    text = page.text_of(block)
    if block.role is Role.ITEM:
        return _list([block], [text]).lstrip()
    return _code([text]) if block.role is Role.CODE else _block(page, block, text)


def flowing_text(text: str) -> str:
    return " ".join(DIVIDED_WORD.sub(_joint, text.strip()).replace("\u00ad", "").split())


def _joint(found: re.Match[str]) -> str:
    # A hyphen before a capital belongs to the word: Anglo-\nSaxon.
    return "-" if found.string[found.end() : found.end() + 1].isupper() else ""


def _joined(page: StructuredPage, blocks: Sequence[Block]) -> list[tuple[Block, str]]:
    """Return blocks with their text. A paragraph that continues in the next column is joined."""
    made: list[tuple[Block, str]] = []
    for block in blocks:
        text = _marked_text(page, block) if page.links or page.notes else page.text_of(block)
        last = next((at for at in reversed(range(len(made))) if made[at][0].role is not Role.PICTURE), None)
        if last is not None and _goes_on(*made[last], block, text):
            # A picture within a paragraph follows it.
            made[last] = made[last][0], f"{made[last][1].rstrip()}\n{text}"
        else:
            made.append((block, text))
    return made


def _goes_on(last: Block, last_text: str, block: Block, text: str) -> bool:
    return (
        last.role in (Role.PARAGRAPH, Role.ITEM)
        and block.role is Role.PARAGRAPH
        and block.is_placed
        and abs(last.size - block.size) < 0.3
        and last.style == block.style
        and not last_text.rstrip().endswith(_SENTENCE_END)
        and text.lstrip()[:1].islower()
    )


def _block(page: StructuredPage, block: Block, text: str) -> str:
    if block.role is Role.TABLE:
        rows = page.tables.get(block.begin)
        rest = text[sum(len(line) for line in text.splitlines(keepends=True)[: len(rows)]) :] if rows else text
        table = table_markdown(rows, page.spans.get(block.begin, ())) if rows else ""
        return "\n\n".join(filter(None, [table, _escaped(flowing_text(rest))]))
    if block.role is Role.PICTURE:
        return picture_markdown(block.alt or flowing_text(text))
    plain = flowing_text(text)
    if block.role is Role.HEADING:
        return f"{'#' * min(max(block.level, 1), _LEVELS_MAX)} {_inline(plain)}"
    if note := _MARKED_NOTE.match(plain) if block.role is Role.FOOTNOTE else None:
        return f"{note[0]}: {_inline(plain[note.end() :].lstrip())}"
    return _escaped(plain)


def picture_markdown(alt: str) -> str:
    """Return docling's placeholder for a picture without alternative text."""
    return f"![{_ALT_SPECIAL.sub(_ESCAPED, alt)}]()" if alt else "<!-- image -->"


def _inline(text: str) -> str:
    return _SPECIAL.sub(_ESCAPED, text)


def _escaped(text: str) -> str:
    begin = _BLOCK_BEGIN.match(text)
    if begin is None:
        return _inline(text)
    # In a number, the character that makes it an item is its last.
    at = re.match(r"\d*", text).end()  # type: ignore[union-attr]
    return f"{text[:at]}\\{_inline(text[at:])}"


def without_marker(text: str) -> tuple[str, str]:
    """Return the marker of an item, such as • or 1., and its text."""
    found = MARKER.match(text)
    return (found[0], text[found.end() :].strip()) if found else ("", text)


def _list(blocks: Sequence[Block], texts: Sequence[str]) -> str:
    lines: list[str] = []
    lefts: list[float] = []
    for block, text in zip(blocks, texts, strict=True):
        mark, rest = without_marker(flowing_text(text))
        while lefts and block.x0 < lefts[-1] - 3:
            lefts.pop()
        if not lefts or block.x0 > lefts[-1] + 3:
            lefts.append(block.x0)
        depth = max(block.level - 1, len(lefts) - 1, 0)
        sign = f"{mark[:-1]}." if mark[:-1].isdecimal() else "-"
        kept = "" if sign != "-" or not any(map(str.isalnum, mark)) else f"{mark} "
        lines.append(f"{'    ' * depth}{sign} {kept}{_inline(rest)}")
    return "\n".join(lines)


def _code(texts: Sequence[str]) -> str:
    body = "\n".join(text.rstrip("\n") for text in texts)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
    return f"{fence}\n{body}\n{fence}"


def table_markdown(rows: Rows, spans: Sequence[Span] = ()) -> str:
    """Return a pipe table whose first row is its head; HTML if a cell covers several."""
    if spans:
        return _table_html(rows, spans)
    width = max(map(len, rows))
    lines = [f"| {' | '.join([*map(_cell, row), *[''] * (width - len(row))])} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * width}", *lines[1:]])


def _table_html(rows: Rows, spans: Sequence[Span]) -> str:
    sizes = {(row, column): (down, across) for row, column, down, across in spans}
    covered = covered_cells(spans)
    lines = ["<table>"]
    for at, row in enumerate(rows):
        kind = "td" if at else "th"
        cells = [
            f"<{kind}{_extent(*sizes.get((at, column), (1, 1)))}>{html.escape(text, quote=False)}</{kind}>"
            for column, text in enumerate(row)
            if (at, column) not in covered
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"])


def covered_cells(spans: Sequence[Span]) -> set[tuple[int, int]]:
    return {
        (row + one, column + other)
        for row, column, down, across in spans
        for one in range(down)
        for other in range(across)
        if one or other
    }


def _extent(down: int, across: int) -> str:
    return (f' rowspan="{down}"' if down > 1 else "") + (f' colspan="{across}"' if across > 1 else "")


def _cell(text: str) -> str:
    return _inline(" ".join(text.split())).replace("|", "\\|")
