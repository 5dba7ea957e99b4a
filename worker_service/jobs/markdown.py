"""Markdown of a document, without running heads, feet and page numbers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from worker_service.jobs.blocks import HEAD_AND_FOOT_ROLES, HEADING_LEVELS, MARKER, Block, Role
from worker_service.jobs.page_structure import Rows, Span, StructuredPage

_SPECIAL = re.compile(r"[\\`*]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|\[(?=[^\]]*\]\()")
_ALT_SPECIAL = re.compile(r"[\\`*_\[\]<]")
_WITH_BACKSLASH = r"\\\g<0>"
_BLOCK_BEGIN = re.compile(r"(?=[#>+-](?:\s|$)|#{2,6}\s|~~~|\d{1,9}[.)]\s|={3,}|-{3,})")
DIVIDED_WORD = re.compile(r"(?<=[^\W\d_])(?:-|\u00ad)\s*\n\s*(?=[^\W\d_])")
_PARAGRAPH_END = (".", "!", "?", ":", ";", ")", "”", '"', "»")
_INDENT_POINTS = 3
_SAME_SIZE_POINTS = 0.3
# Non-characters of Unicode, which no text has, mark links and footnotes until the Markdown is complete.
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
    shown_blocks = [
        block
        for block in page.blocks
        if block.role is Role.PICTURE or (block.role not in HEAD_AND_FOOT_ROLES and page.text_of(block).strip())
    ]
    parts: list[str] = []
    # Items of one list, and lines of one piece of code, follow each other as blocks of the same role.
    joined = _join_continued_paragraphs(page, shown_blocks)
    for role, blocks_and_texts in groupby(joined, lambda block_and_text: block_and_text[0].role):
        blocks, texts = zip(*blocks_and_texts, strict=True)
        if role is Role.ITEM:
            parts.append(_render_list(blocks, texts))
        elif role is Role.CODE:
            parts.append(_render_code([page.text_of(block) for block in blocks]))
        else:
            parts += [_render_block(page, block, text) for block, text in zip(blocks, texts, strict=True)]
    marked = "\n\n".join(filter(None, parts)) + "\n" if parts else ""
    with_notes = _MARKED_NOTE.sub(r"[^\1]", marked)
    return _MARKED_LINK.sub(lambda match: f"[{match[1]}]({page.links[int(match[2])].address})", with_notes)


def _mark_links_and_notes(page: StructuredPage, block: Block) -> str:
    """Return the text with links and footnotes between marks, which later steps leave unchanged."""
    text = page.text_of(block)
    if block.role in (Role.TABLE, Role.CODE):
        return text
    replacements = [(mark.begin, mark.end, f"{_NOTE}{mark.note}{_NOTE}") for mark in page.notes]
    for number, link in enumerate(page.links):
        marked = f"{_LINK_BEGIN}{page.text[link.begin : link.end]}{_LINK_END}{number}{_LINK_END}"
        replacements.append((link.begin, link.end, marked))
    last_begin = block.end
    # From the end, so that earlier positions stay valid. Of two that overlap, the later one is used.
    for begin, end, marked in sorted(replacements, reverse=True):
        if block.begin <= begin < block.end and end <= last_begin:
            text = f"{text[: begin - block.begin]}{marked}{text[end - block.begin :]}"
            last_begin = begin
    return text


def block_markdown(page: StructuredPage, block: Block) -> str:
    text = page.text_of(block)
    if block.role is Role.ITEM:
        return _render_list([block], [text]).lstrip()
    return _render_code([text]) if block.role is Role.CODE else _render_block(page, block, text)


def flowing_text(text: str) -> str:
    return " ".join(DIVIDED_WORD.sub(_replace_hyphen, text.strip()).replace("\u00ad", "").split())


def _replace_hyphen(match: re.Match[str]) -> str:
    # A hyphen before a capital belongs to the word: Anglo-\nSaxon.
    return "-" if match.string[match.end() : match.end() + 1].isupper() else ""


def _join_continued_paragraphs(page: StructuredPage, blocks: Sequence[Block]) -> list[tuple[Block, str]]:
    """Return blocks with their text. A paragraph that continues in the next column is joined."""
    joined: list[tuple[Block, str]] = []
    last_index = -1  # of the last block that is no picture: a picture within a paragraph follows it
    for block in blocks:
        text = _mark_links_and_notes(page, block) if page.links or page.notes else page.text_of(block)
        if last_index >= 0 and _continues(*joined[last_index], block, text):
            last_block, last_text = joined[last_index]
            joined[last_index] = last_block, f"{last_text.rstrip()}\n{text}"
            continue
        joined.append((block, text))
        if block.role is not Role.PICTURE:
            last_index = len(joined) - 1
    return joined


def _continues(last: Block, last_text: str, block: Block, text: str) -> bool:
    return (
        last.role in (Role.PARAGRAPH, Role.ITEM)
        and block.role is Role.PARAGRAPH
        and block.is_placed
        and abs(last.size - block.size) < _SAME_SIZE_POINTS
        and last.style == block.style
        and not last_text.rstrip().endswith(_PARAGRAPH_END)
        and text.lstrip()[:1].islower()
    )


def _render_block(page: StructuredPage, block: Block, text: str) -> str:
    if block.role is Role.TABLE:
        rows = page.tables.get(block.begin)
        if not rows:
            return _escape_paragraph(flowing_text(text))
        # The text has a line for each row. Further lines are no part of the table.
        below = "".join(text.splitlines(keepends=True)[len(rows) :])
        table = table_markdown(rows, page.spans.get(block.begin, ()))
        return "\n\n".join(filter(None, [table, _escape_paragraph(flowing_text(below))]))
    if block.role is Role.PICTURE:
        return picture_markdown(block.alt or flowing_text(text))
    plain = flowing_text(text)
    if block.role is Role.HEADING:
        return f"{'#' * min(max(block.level, 1), HEADING_LEVELS)} {_escape_inline(plain)}"
    if note := _MARKED_NOTE.match(plain) if block.role is Role.FOOTNOTE else None:
        return f"{note[0]}: {_escape_inline(plain[note.end() :].lstrip())}"
    return _escape_paragraph(plain)


def picture_markdown(alt: str) -> str:
    """Return an image, or without alternative text the placeholder that docling writes."""
    return f"![{_ALT_SPECIAL.sub(_WITH_BACKSLASH, alt)}]()" if alt else "<!-- image -->"


def _escape_inline(text: str) -> str:
    return _SPECIAL.sub(_WITH_BACKSLASH, text)


def _escape_paragraph(text: str) -> str:
    """Escape also a beginning that would make the paragraph a list, heading or quotation."""
    begin = _BLOCK_BEGIN.match(text)
    if begin is None:
        return _escape_inline(text)
    # "1. " becomes "1\\. ": the backslash stands before the character after the digits.
    digits = re.match(r"\d*", text).end()  # type: ignore[union-attr]
    return f"{text[:digits]}\\{_escape_inline(text[digits:])}"


def without_marker(text: str) -> tuple[str, str]:
    """Return the marker of an item, such as • or 1., and its text."""
    match = MARKER.match(text)
    return (match[0], text[match.end() :].strip()) if match else ("", text)


def _render_list(blocks: Sequence[Block], texts: Sequence[str]) -> str:
    lines: list[str] = []
    lefts: list[float] = []  # left edges of the open lists, outermost first
    for block, text in zip(blocks, texts, strict=True):
        marker, item_text = without_marker(flowing_text(text))
        while lefts and block.x0 < lefts[-1] - _INDENT_POINTS:
            lefts.pop()
        if not lefts or block.x0 > lefts[-1] + _INDENT_POINTS:
            lefts.append(block.x0)
        depth = max(block.level - 1, len(lefts) - 1, 0)
        # "3)" becomes "3.", "•" becomes "-", and "b)", which Markdown does not know, becomes "- b)".
        if marker[:-1].isdecimal():
            markdown_marker = f"{marker[:-1]}."
        else:
            markdown_marker = f"- {marker}" if any(map(str.isalnum, marker)) else "-"
        lines.append(f"{'    ' * depth}{markdown_marker} {_escape_inline(item_text)}")
    return "\n".join(lines)


def _render_code(texts: Sequence[str]) -> str:
    body = "\n".join(text.rstrip("\n") for text in texts)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
    return f"{fence}\n{body}\n{fence}"


def table_markdown(rows: Rows, spans: Sequence[Span] = ()) -> str:
    """Return a pipe table whose first row is its head; HTML if a cell covers several."""
    if spans:
        return _html_table(rows, spans)
    width = max(map(len, rows))
    lines = [f"| {' | '.join([*map(_escape_cell, row), *[''] * (width - len(row))])} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * width}", *lines[1:]])


def _html_table(rows: Rows, spans: Sequence[Span]) -> str:
    size_by_cell = {(row, column): (down, across) for row, column, down, across in spans}
    covered = covered_cells(spans)
    lines = ["<table>"]
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells: list[str] = []
        for column, text in enumerate(row):
            if (number, column) not in covered:
                down, across = size_by_cell.get((number, column), (1, 1))
                cells.append(f"<{tag}{_span_attributes(down, across)}>{html.escape(text, quote=False)}</{tag}>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"])


def covered_cells(spans: Sequence[Span]) -> set[tuple[int, int]]:
    """Return the cells that belong to a larger cell above or left of them."""
    covered: set[tuple[int, int]] = set()
    for row, column, down, across in spans:
        cells = {(row + below, column + right) for below in range(down) for right in range(across)}
        covered |= cells - {(row, column)}
    return covered


def _span_attributes(down: int, across: int) -> str:
    return (f' rowspan="{down}"' if down > 1 else "") + (f' colspan="{across}"' if across > 1 else "")


def _escape_cell(text: str) -> str:
    return _escape_inline(" ".join(text.split())).replace("|", "\\|")
