"""The text of a page as paragraphs, headings and tables, with matches and doubtful words marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from worker_service.jobs.blocks import HEAD_AND_FOOT_ROLES, Block, Role
from worker_service.jobs.markdown import DIVIDED_WORD
from worker_service.jobs.page_structure import StructuredPage

TextRange = tuple[int, int]
"""Begin and end in the text of the page."""


class Mark(NamedTuple):
    match: int = 0
    """Number of the match on the page, from 1; 0: none."""
    is_doubtful: bool = False


class TextRun(Struct, frozen=True):
    text: str
    match: int = 0
    is_doubtful: bool = False


class SheetCell(Struct, frozen=True):
    value: str | int | float | bool | None
    matches: Sequence[int] = ()
    """Numbers on the page, from 1."""


class TextBlock(Struct, frozen=True):
    role: str
    level: int = 0
    runs: Sequence[TextRun] = ()
    rows: Sequence[Sequence[SheetCell]] = ()


def marks_of(text: str, doubtful: Sequence[TextRange], matches: Sequence[TextRange]) -> list[Mark]:
    marks = [Mark()] * len(text)
    for begin, end in doubtful:
        marks[begin:end] = [Mark(0, True)] * len(marks[begin:end])
    for number, (begin, end) in enumerate(matches, 1):
        marks[begin:end] = [Mark(number, mark.is_doubtful) for mark in marks[begin:end]]
    return marks


def text_blocks(page: StructuredPage, marks: Sequence[Mark]) -> Iterator[TextBlock]:
    """Yield the blocks. Running heads, feet and page numbers have the role `running`."""
    for block in page.blocks:
        role = "running" if block.role in HEAD_AND_FOOT_ROLES else block.role.value
        rows = page.tables.get(block.begin) if block.role is Role.TABLE else None
        if rows:
            yield TextBlock(role, rows=marked_cells(rows, page.text_of(block), marks[block.begin :]))
            # Each row is a line. Lines after the rows become a paragraph.
            lines = page.text_of(block).splitlines(keepends=True)
            block = replace(block, begin=block.begin + sum(map(len, lines[: len(rows)])), role=Role.PARAGRAPH)
            role = block.role.value
        if runs := _runs(page, block, marks):
            yield TextBlock(role, block.level, runs)


def marked_cells(rows: Sequence[Sequence[Any]], text: str, marks: Sequence[Mark]) -> list[list[SheetCell]]:
    """Mark the cells. Each row is a line of `text`, whose tabs separate the cells."""
    cells: list[list[SheetCell]] = []
    lines, begin = text.splitlines(keepends=True), 0
    for row, line in zip_longest(rows, lines[: len(rows)], fillvalue=""):
        matches: list[list[int]] = [[] for _ in row]
        column = 0
        for character, mark in zip(line, marks[begin : begin + len(line)], strict=False):
            if character == "\t":
                column += 1
            if mark.match and column < len(row):
                matches[column].append(mark.match)
        begin += len(line)
        cells.append([SheetCell(value, cell_matches) for value, cell_matches in zip(row, matches, strict=True)])
    return cells


def _runs(page: StructuredPage, block: Block, marks: Sequence[Mark]) -> list[TextRun]:
    keeps_lines = block.role is Role.CODE
    text = page.text[block.begin : block.end].strip("\r\n") if keeps_lines else page.text_of(block)
    # `strip` may have removed line breaks at the beginning.
    begin = page.text.find(text, block.begin)
    marked = zip(text, marks[begin : begin + len(text)], strict=True) if keeps_lines else _flow(text, marks[begin:])
    return [
        TextRun("".join(character for character, _ in run), mark.match, mark.is_doubtful)
        for mark, run in groupby(marked, lambda pair: pair[1])
    ]


def _flow(text: str, marks: Sequence[Mark]) -> Iterator[tuple[str, Mark]]:
    """Yield the characters as one line, rejoining words that a line's end divides."""
    dropped = set[int]()
    for hyphen in DIVIDED_WORD.finditer(text):
        # "risk-" and "free" become "riskfree", but "Anglo-" and "American" keep the hyphen, because of the capital.
        keeps_hyphen = text[hyphen.end() : hyphen.end() + 1].isupper()
        first_dropped = hyphen.start() + 1 if keeps_hyphen else hyphen.start()
        dropped.update(range(first_dropped, hyphen.end()))
    space: tuple[str, Mark] | None = None
    has_begun = False
    for index, character in enumerate(text):
        if index in dropped or character == "\N{SOFT HYPHEN}":
            continue
        if character.isspace():
            space = space or (" ", marks[index])
            continue
        if space is not None and has_begun:
            yield space
        space, has_begun = None, True
        yield character, marks[index]
