"""The text of a page as paragraphs, headings and tables, with matches and doubtful words marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from worker_service.jobs.blocks import RUNNING, Block, Role
from worker_service.jobs.markdown import DIVIDED_WORD
from worker_service.jobs.page_structure import StructuredPage

TextRange = tuple[int, int]


class Mark(NamedTuple):
    match: int = 0
    """From 1; 0: none."""
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


def marks_of(text: str, doubtful: Sequence[TextRange], hits: Sequence[TextRange]) -> list[Mark]:
    marks = [Mark()] * len(text)
    for begin, end in doubtful:
        marks[begin:end] = [Mark(0, True)] * len(marks[begin:end])
    for number, (begin, end) in enumerate(hits, 1):
        marks[begin:end] = [Mark(number, one.is_doubtful) for one in marks[begin:end]]
    return marks


def text_blocks(page: StructuredPage, marks: Sequence[Mark]) -> Iterator[TextBlock]:
    """Yield the blocks. Running heads, feet and page numbers have the role `running`."""
    for block in page.blocks:
        role = "running" if block.role in RUNNING else block.role.value
        rows = page.tables.get(block.begin) if block.role is Role.TABLE else None
        if rows:
            yield TextBlock(role, rows=marked_cells(rows, page.text_of(block), marks[block.begin :]))
            lines = page.text_of(block).splitlines(keepends=True)
            block = replace(block, begin=block.begin + sum(map(len, lines[: len(rows)])), role=Role.PARAGRAPH)
            role = block.role.value
        if runs := _runs(page, block, marks):
            yield TextBlock(role, block.level, runs)


def marked_cells(rows: Sequence[Sequence[Any]], text: str, marks: Sequence[Mark]) -> list[list[SheetCell]]:
    """Each row is a line of the text, whose tabs separate the cells."""
    made: list[list[SheetCell]] = []
    lines, at = text.splitlines(keepends=True), 0
    for number, row in enumerate(rows):
        found, column = list[tuple[int, int]](), 0
        line = lines[number] if number < len(lines) else ""
        for character, mark in zip(line, marks[at : at + len(line)], strict=False):
            column += character == "\t"
            if mark.match:
                found.append((column, mark.match))
        at += len(line)
        made.append(
            [SheetCell(value, [match for column, match in found if column == place]) for place, value in enumerate(row)]
        )
    return made


def _runs(page: StructuredPage, block: Block, marks: Sequence[Mark]) -> list[TextRun]:
    keeps_lines = block.role is Role.CODE
    text = page.text[block.begin : block.end].strip("\r\n") if keeps_lines else page.text_of(block)
    begin = page.text.find(text, block.begin)
    shown = zip(text, marks[begin : begin + len(text)], strict=True) if keeps_lines else _flowing(text, marks[begin:])
    return [TextRun("".join(one for one, _ in some), *mark) for mark, some in groupby(shown, lambda one: one[1])]


def _flowing(text: str, marks: Sequence[Mark]) -> Iterator[tuple[str, Mark]]:
    """Yield the characters as one line, rejoining words that a line's end divides."""
    dropped = set[int]()
    for found in DIVIDED_WORD.finditer(text):
        # A hyphen before a capital belongs to the word.
        belongs = text[found.end() : found.end() + 1].isupper()
        dropped.update(range(found.start() + belongs, found.end()))
    waiting: tuple[str, Mark] | None = None
    is_begun = False
    for at, character in enumerate(text):
        if at in dropped or character == "\u00ad":
            continue
        if character.isspace():
            waiting = waiting or (" ", marks[at])
            continue
        if waiting is not None and is_begun:
            yield waiting
        waiting, is_begun = None, True
        yield character, marks[at]
