"""Arrange the words of an OCR engine: rows of tables as rows, and columns one after the other.

Coordinates are pixels of the image that was read, deskewed and turned upright.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby, pairwise, product
from statistics import median

import msgspec
from msgspec import Struct, field

from job_handlers.reading import layout, reading_order, tables
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr.dot_leaders import DOTS_LEAST, is_contents_page, is_leader
from job_handlers.reading.tables import FoundTable, RulingLine, TextPiece

_APART = 0.9
_SPACE_MOST = 1.75
"""Letter heights: in justified lines and after a sentence."""
_SPACES_LEAST = 3
_EDGE = 0.005
_LEVEL = 0.2
"""Words that overlap by less are at different heights."""
_SAME_ROW = 0.6
_SAME_PLACE = 0.4
_WALL_LEAST, _WALL_MOST, _WALL_NEAR = 1.5, 0.3, 0.7
_CLOSED = {"|": "|", "]": "[", "}": "{"}
_OPEN = {"|": "|", "[": "]", "{": "}"}
_LEADS = re.compile(rf"\.{{{DOTS_LEAST}}}")


class ArrangedPage(Struct, frozen=True):
    lines: list[list[Word]]
    came_from: list[list[int]]
    """Numbers of input lines."""
    text: str
    tables: list[tuple[int, int, list[list[list[Word]]]]] = field(default_factory=list)


def tidy_lines(lines: Sequence[list[Word]], width: int) -> list[list[Word]]:
    """Drop bars read from the paper's edge; join the parts of one row that two lines share."""
    done: list[list[Word]] = []
    for line in lines:
        kept = [word for word in line if not _is_edge(word, width)]
        if kept and done and done[-1]:
            done[-1:] = _split_rows(done[-1], kept)
        elif kept or (not line and done and done[-1]):
            done.append(kept)
    return done


def _is_edge(word: Word, width: int) -> bool:
    return not word.text.strip("|") and not _EDGE * width < (word.x0 + word.x1) / 2 < (1 - _EDGE) * width


def _split_rows(above: list[Word], below: list[Word]) -> list[list[Word]]:
    uppers, lowers = _split_by_height(above), _split_by_height(below)
    if len(uppers) + len(lowers) > 2:
        for one, other in product(uppers, lowers):
            if _stand_in_a_row(one, other):
                left = [word for some in uppers if some is not one for word in some]
                row = sorted([*one, *other], key=lambda word: word.x0)
                rest = [word for some in lowers if some is not other for word in some]
                return [line for line in (left, row, rest) if line]
    return [above, below]


def _split_by_height(line: Sequence[Word]) -> list[list[Word]]:
    parts = [[line[0]]]
    for one, other in pairwise(line):
        if min(one.y1, other.y1) - max(one.y0, other.y0) < _LEVEL * min(one.y1 - one.y0, other.y1 - other.y0):
            parts.append([])
        parts[-1].append(other)
    return parts


def _stand_in_a_row(some: Sequence[Word], others: Sequence[Word]) -> bool:
    tops, bottoms = ([median([getattr(word, side) for word in words]) for words in (some, others)]
                     for side in ("y0", "y1"))  # fmt: skip
    is_level = min(bottoms) - max(tops) > _SAME_ROW * min(b - a for a, b in zip(tops, bottoms, strict=True))
    return is_level and not any(
        min(one.x1, other.x1) - max(one.x0, other.x0) > _SAME_PLACE * min(one.x1 - one.x0, other.x1 - other.x0)
        for one in some
        for other in others
    )


def arrange_page(lines: list[list[Word]], rules: Callable[[], Sequence[RulingLine]]) -> ArrangedPage:
    """`rules` is called only if there may be a table or columns."""
    rules = cache(rules)
    words = _words_with_lines(lines)
    em = median([word.y1 - word.y0 for word, _ in words] or [0.0]) or 1.0
    pieces = _group_pieces(words, em)
    found: list[FoundTable] = []
    if tables.may_have_tables([round((one.y0 + one.y1) / em) for one in pieces]):
        drawn = rules()
        lines = _without_walls(lines, drawn, em)
        words = _words_with_lines(lines)
        pieces = _group_pieces(words, em)

        def split(piece: TextPiece) -> Sequence[TextPiece]:
            if _LEADS.search(piece.text) and not any(_is_right_of(other, piece) for other in pieces):
                return ()
            return [TextPiece(word.x0, word.y0, word.x1, word.y1, _without_spaces(word.text), at)
                    for at in _numbers(piece) for word in [words[at][0]]]  # fmt: skip

        found = tables.find(pieces, drawn, split)
    page = _arrange_blocks(lines, words, found, rules) if words else None
    return page or ArrangedPage(lines, [[at] for at in range(len(lines))], layout.text_of(lines))


def _words_with_lines(lines: Sequence[Sequence[Word]]) -> list[tuple[Word, int]]:
    return [(word, at) for at, line in enumerate(lines) for word in line]


def _without_walls(lines: list[list[Word]], rules: Sequence[RulingLine], em: float) -> list[list[Word]]:
    """Remove characters read from vertical lines: a bar, or an unmatched bracket."""
    walls = [one for one in rules if one.y1 - one.y0 > _WALL_LEAST * em and one.x1 - one.x0 < _WALL_MOST * em]
    if not walls:
        return lines

    def is_wall(x: float, word: Word) -> bool:
        return any(abs(one.x0 - x) < _WALL_NEAR * em and one.y0 < (word.y0 + word.y1) / 2 < one.y1 for one in walls)

    def strip_wall(word: Word) -> str:
        text = word.text
        if text[-1] in _CLOSED and _CLOSED[text[-1]] not in text[:-1] and is_wall(word.x1, word):
            text = text[:-1]
        if text and text[0] in _OPEN and _OPEN[text[0]] not in text[1:] and is_wall(word.x0, word):
            text = text[1:]
        return text

    return [[msgspec.structs.replace(word, text=text) if text != word.text else word
             for word in line if (text := strip_wall(word))] for line in lines]  # fmt: skip


def _group_pieces(words: Sequence[tuple[Word, int]], em: float) -> list[TextPiece]:
    groups: list[list[int]] = []
    lines = [[*some] for _, some in groupby(range(len(words)), lambda at: words[at][1])]
    are_contents = is_contents_page([[words[at][0] for at in line] for line in lines])
    for line in lines:
        if are_contents and _leads_to_one([words[at][0] for at in line], em):
            groups.append(line)
            continue
        is_spread = _is_spread([words[at][0] for at in line], em)
        groups.append(line[:1])
        for at in line[1:]:
            one, other = words[at - 1][0], words[at][0]
            space = other.x0 - one.x1
            is_more = is_spread or (len(line) > _SPACES_LEAST and tables.ends_sentence(one.text, other.text))
            # A box may be too long and contain the start of the next word.
            if space > (_SPACE_MOST if is_more else _APART) * em or (space <= -em and other.x0 <= one.x0):
                groups.append([])
            groups[-1].append(at)
    return [
        TextPiece(
            min(words[at][0].x0 for at in some), min(words[at][0].y0 for at in some),
            max(words[at][0].x1 for at in some), max(words[at][0].y1 for at in some),
            " ".join(_without_spaces(words[at][0].text) for at in some), some[0],
        )
        for some in groups
    ]  # fmt: skip


def _leads_to_one(line: Sequence[Word], em: float) -> bool:
    last = max((at for at, word in enumerate(line) if is_leader(word)), default=-1)
    figures = [word for word in line[last + 1 :] if any(map(str.isdigit, word.text))]
    return last > 0 and all(other.x0 - one.x1 <= _APART * em for one, other in pairwise(figures))


def _is_right_of(one: TextPiece, other: TextPiece) -> bool:
    return one.x0 >= other.x1 and one.y0 < (other.y0 + other.y1) / 2 < one.y1


def _is_spread(line: Sequence[Word], em: float) -> bool:
    """Return whether the line is justified: word gaps are even."""
    spaces = [other.x0 - one.x1 for one, other in pairwise(line) if not tables.ends_sentence(one.text, other.text)]
    return (
        len(spaces) >= _SPACES_LEAST
        and max(spaces) <= min(_SPACE_MOST * em, 2 * min(spaces))
        and sum(word.text[0].isalpha() for word in line) > 0.8 * len(line)
    )


def _without_spaces(text: str) -> str:
    # The spaces in a piece count its words.
    return text.replace(" ", "\u00a0")


def _numbers(piece: TextPiece) -> range:
    return range(piece.at, piece.at + piece.text.count(" ") + 1)


def _arrange_blocks(
    lines: Sequence[list[Word]],
    words: Sequence[tuple[Word, int]],
    found: Sequence[FoundTable],
    rules: Callable[[], Sequence[RulingLine]],
) -> ArrangedPage | None:
    """Return None if the engine's order stays."""
    entries, blocks, tables_at = _without_tables(lines, found)
    parts = reading_order.arrange_blocks(
        blocks,
        [layout.bounds_of(line) for line in entries],
        [(one.x0, one.y0, one.x1, one.y1) for one in found],
        tables_at,
        is_given=False,
        rules=rules,
    )
    if not found and [at for part in parts for at in part.lines] == list(range(len(entries))):
        return None
    made: list[list[Word]] = []
    came_from: list[list[int]] = []
    placed: list[tuple[int, int, list[list[list[Word]]]]] = []
    numbers = {id(word): number for word, number in words}
    texts: list[str] = []
    length = 0
    for part in parts:
        if part.table is None:
            some = [entries[at] for at in part.lines]
            own = [" ".join([word.text for word in line]) for line in some]
        else:
            rows = [[[words[at][0] for piece in cell for at in _numbers(piece)] for cell in row]
                    for row in found[part.table].rows]  # fmt: skip
            some = [[word for cell in row for word in cell] for row in rows]
            own = ["\t".join(" ".join(word.text for word in cell) for cell in row).rstrip("\t") for row in rows]
        if texts:
            made.append([])
            came_from.append([])
            texts.append("")
            length += 1
        begin = length
        made += some
        came_from += [sorted({numbers[id(word)] for word in line}) for line in some]
        texts += own
        length += sum(len(text) + 1 for text in own)
        if part.table is not None:
            placed.append((begin, length, rows))
    return ArrangedPage(made, came_from, "\n".join(texts), placed)


def _without_tables(
    lines: Sequence[list[Word]], found: Sequence[FoundTable]
) -> tuple[list[list[Word]], list[list[int]], dict[int, int]]:
    """Return the lines without the words of tables, their numbers by paragraph, and number → table."""
    of_table = {
        at: number
        for number, one in enumerate(found)
        for row in one.rows
        for cell in row
        for piece in cell
        for at in _numbers(piece)
    }
    entries: list[list[Word]] = []
    blocks: list[list[int]] = [[]]
    tables_at: dict[int, int] = {}

    def add(line: list[Word]) -> None:
        blocks[-1].append(len(entries))
        entries.append(line)

    end = 0
    for line in lines:
        begin, end = end, end + len(line)
        owners = [of_table.get(at) for at in range(begin, end)]
        for table in dict.fromkeys(owners):
            if table is not None and table not in tables_at.values():
                tables_at[len(entries)] = table
                add(line)
        rest = [word for word, table in zip(line, owners, strict=True) if table is None]
        if not line:
            blocks.append([])
        # The dot leaders of a row in a table are left out.
        if rest and not (len(rest) < len(line) and all(map(is_leader, rest))):
            add(rest)
    return entries, blocks, tables_at
