"""Arrange the words of an OCR engine: rows of tables as rows, and columns one after the other.

Coordinates are pixels of the image that was read, deskewed and turned upright.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, pairwise, product
from statistics import median
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from job_handlers.reading import layout, reading_order, tables
from job_handlers.reading.layout import Word
from job_handlers.reading.ocr.dot_leaders import DOTS_LEAST, is_contents_page, is_leader
from job_handlers.reading.tables import FoundTable, RulingLine, TextPiece

# In em, the median height of the page's words. A wider gap separates two pieces of a line, perhaps cells of a table.
_GAP_MOST = 0.9
_WIDE_GAP_MOST = 1.75  # Limit in justified lines and after a sentence.
_GAPS_IN_PROSE_LEAST = 3  # Lines with fewer are not known to be prose.
_LETTERS_IN_PROSE_SHARE = 0.8  # Of the words of a justified line, those that begin with a letter.
_PAPER_EDGE = 0.005  # Share of the page's width.
# Shares of the height of the lower of two words or lines, and of the width of the narrower of two words.
_OVERLAP_OF_LINE = 0.2  # Adjacent words of a line that overlap by less are at different heights.
_OVERLAP_IN_ROW = 0.6
_OVERLAP_OF_WORDS = 0.4
# Walls are vertical ruling lines. In em.
_WALL_HEIGHT_LEAST, _WALL_WIDTH_MOST, _WALL_DISTANCE_MOST = 1.5, 0.3, 0.7
# Character that may be read from a wall → its partner, which elsewhere in the word shows that both are text.
_OPENING_PARTNER = {"|": "|", "]": "[", "}": "{"}
_CLOSING_PARTNER = {"|": "|", "[": "]", "{": "}"}
_LEADER = re.compile(rf"\.{{{DOTS_LEAST}}}")

# The words of each cell.
Row = list[list[Word]]
RuleFinder = Callable[[], Sequence[RulingLine]]
"""Finds the ruling lines among the page's pixels."""


class WordTable(NamedTuple):
    # Where the table begins and ends in the page's text.
    begin: int
    end: int
    rows: list[Row]


class ArrangedPage(Struct, frozen=True):
    lines: list[list[Word]]
    came_from: list[list[int]]
    """Numbers of the input lines that the words of each line come from."""
    text: str
    tables: list[WordTable] = field(default_factory=list)


def tidy_lines(lines: Sequence[list[Word]], width: int) -> list[list[Word]]:
    """Drop bars read from the paper's edge; join the parts of one row that two lines share."""
    tidied: list[list[Word]] = []
    for line in lines:
        words = [word for word in line if not _is_paper_edge(word, width)]
        previous = tidied[-1] if tidied else []
        if words and previous:
            tidied[-1:] = _join_shared_row(previous, words)
        elif words or (not line and previous):
            # An empty line begins a paragraph, unless it is the first or follows another.
            tidied.append(words)
    return tidied


def _is_paper_edge(word: Word, width: int) -> bool:
    middle = (word.x0 + word.x1) / 2
    is_inside = _PAPER_EDGE * width < middle < (1 - _PAPER_EDGE) * width
    return not word.text.strip("|") and not is_inside


def _join_shared_row(above: list[Word], below: list[Word]) -> list[list[Word]]:
    # Beside a cell of two lines, the engine may divide the other cells of the row between both lines.
    upper_parts, lower_parts = _split_by_height(above), _split_by_height(below)
    if len(upper_parts) + len(lower_parts) > 2:
        for upper, lower in product(upper_parts, lower_parts):
            if _are_in_one_row(upper, lower):
                words_above = [word for part in upper_parts if part is not upper for word in part]
                row = sorted([*upper, *lower], key=lambda word: word.x0)
                words_below = [word for part in lower_parts if part is not lower for word in part]
                return [line for line in (words_above, row, words_below) if line]
    return [above, below]


def _split_by_height(line: Sequence[Word]) -> list[list[Word]]:
    parts = [[line[0]]]
    for word, following in pairwise(line):
        overlap = min(word.y1, following.y1) - max(word.y0, following.y0)
        if overlap < _OVERLAP_OF_LINE * min(word.y1 - word.y0, following.y1 - following.y0):
            parts.append([])
        parts[-1].append(following)
    return parts


def _are_in_one_row(upper: Sequence[Word], lower: Sequence[Word]) -> bool:
    top, bottom = median([word.y0 for word in upper]), median([word.y1 for word in upper])
    lower_top, lower_bottom = median([word.y0 for word in lower]), median([word.y1 for word in lower])
    overlap = min(bottom, lower_bottom) - max(top, lower_top)
    is_level = overlap > _OVERLAP_IN_ROW * min(bottom - top, lower_bottom - lower_top)
    return is_level and not any(_share_x_range(*pair) for pair in product(upper, lower))


def _share_x_range(word: Word, other: Word) -> bool:
    common = min(word.x1, other.x1) - max(word.x0, other.x0)
    return common > _OVERLAP_OF_WORDS * min(word.x1 - word.x0, other.x1 - other.x0)


def arrange_page(lines: list[list[Word]], find_rules: RuleFinder) -> ArrangedPage:
    """Call `find_rules` only if there may be a table or columns."""
    find_rules = cache(find_rules)
    words = [*chain.from_iterable(lines)]
    em = median([word.y1 - word.y0 for word in words] or [0.0]) or 1.0
    pieces = _group_pieces(lines, em)
    found_tables: list[FoundTable] = []
    if tables.may_have_tables([round((piece.y0 + piece.y1) / em) for piece in pieces]):
        lines = _without_walls(lines, find_rules(), em)
        words = [*chain.from_iterable(lines)]
        pieces = _group_pieces(lines, em)

        def split(piece: TextPiece) -> Sequence[TextPiece]:
            if _LEADER.search(piece.text) and not any(_is_right_of(other, piece) for other in pieces):
                # An entry of a table of contents: its title and its page number are not cells.
                return ()
            return [_piece_of([words[at]], at) for at in _word_numbers(piece)]

        found_tables = tables.find(pieces, find_rules(), split)
    page = _arrange_blocks(lines, words, found_tables, find_rules) if words else None
    return page or ArrangedPage(lines, [[at] for at in range(len(lines))], layout.text_of(lines))


def _without_walls(lines: list[list[Word]], rules: Sequence[RulingLine], em: float) -> list[list[Word]]:
    """Remove characters read from vertical lines: a bar, or an unmatched bracket."""
    walls = [
        rule
        for rule in rules
        if rule.y1 - rule.y0 > _WALL_HEIGHT_LEAST * em and rule.x1 - rule.x0 < _WALL_WIDTH_MOST * em
    ]
    if not walls:
        return lines

    def is_at_wall(x: float, word: Word) -> bool:
        middle = (word.y0 + word.y1) / 2
        return any(abs(wall.x0 - x) < _WALL_DISTANCE_MOST * em and wall.y0 < middle < wall.y1 for wall in walls)

    def without_wall(word: Word) -> str:
        text = word.text
        opening = _OPENING_PARTNER.get(text[-1])
        if opening is not None and opening not in text[:-1] and is_at_wall(word.x1, word):
            text = text[:-1]
        closing = _CLOSING_PARTNER.get(text[:1])
        if closing is not None and closing not in text[1:] and is_at_wall(word.x0, word):
            text = text[1:]
        return text

    stripped = [[replace(word, text=without_wall(word)) for word in line] for line in lines]
    return [[word for word in line if word.text] for line in stripped]


def _group_pieces(lines: Sequence[list[Word]], em: float) -> list[TextPiece]:
    is_contents = is_contents_page(lines)
    pieces: list[TextPiece] = []
    # Index of the first word of the next piece.
    at = 0
    for line in lines:
        is_one_piece = is_contents and _leads_to_one_number(line, em)
        for words in [line] if is_one_piece else _split_at_wide_gaps(line, em):
            pieces.append(_piece_of(words, at))
            at += len(words)
    return pieces


def _split_at_wide_gaps(line: list[Word], em: float) -> list[list[Word]]:
    is_justified = _is_justified(line, em)
    parts = [line[:1]] if line else []
    for previous, word in pairwise(line):
        gap = word.x0 - previous.x1
        is_in_prose = len(line) - 1 >= _GAPS_IN_PROSE_LEAST and tables.ends_sentence(previous.text, word.text)
        gap_most = (_WIDE_GAP_MOST if is_justified or is_in_prose else _GAP_MOST) * em
        # A word's box may be too long and overlap the next word, but not begin right of it.
        begins_further_left = gap <= -em and word.x0 <= previous.x0
        if gap > gap_most or begins_further_left:
            parts.append([])
        parts[-1].append(word)
    return parts


def _piece_of(words: Sequence[Word], first: int) -> TextPiece:
    # `_word_numbers` counts the words of a piece by its spaces, so there are none within a word.
    texts = [word.text.replace(" ", "\u00a0") for word in words]
    return TextPiece(*layout.bounds_of(words), " ".join(texts), first)


def _word_numbers(piece: TextPiece) -> range:
    return range(piece.source_index, piece.source_index + piece.text.count(" ") + 1)


def _leads_to_one_number(line: Sequence[Word], em: float) -> bool:
    last_leader = max((at for at, word in enumerate(line) if is_leader(word)), default=-1)
    # Numbers behind the dots with wide gaps between them are columns of figures.
    numbers = [word for word in line[last_leader + 1 :] if any(map(str.isdigit, word.text))]
    return last_leader > 0 and all(right.x0 - left.x1 <= _GAP_MOST * em for left, right in pairwise(numbers))


def _is_right_of(piece: TextPiece, other: TextPiece) -> bool:
    return piece.x0 >= other.x1 and piece.y0 < (other.y0 + other.y1) / 2 < piece.y1


def _is_justified(line: Sequence[Word], em: float) -> bool:
    """Return whether the line is prose with wide but even gaps."""
    gaps = [
        following.x0 - word.x1
        for word, following in pairwise(line)
        if not tables.ends_sentence(word.text, following.text)
    ]
    if len(gaps) < _GAPS_IN_PROSE_LEAST or max(gaps) > min(_WIDE_GAP_MOST * em, 2 * min(gaps)):
        return False
    return sum(word.text[0].isalpha() for word in line) > _LETTERS_IN_PROSE_SHARE * len(line)


class _PageBuilder:
    """Collects the paragraphs and tables of a page in reading order."""

    def __init__(self, lines: Sequence[Sequence[Word]]) -> None:
        self._line_of_word = {id(word): number for number, line in enumerate(lines) for word in line}
        self._texts: list[str] = []
        self._length = 0
        self.page = ArrangedPage([], [], "")

    def add(self, lines: Sequence[list[Word]], texts: Sequence[str]) -> tuple[int, int]:
        """Add a paragraph or table. Return where it begins and ends in the page's text."""
        if self._texts:
            self._add_line([], "")
        begin = self._length
        for line, text in zip(lines, texts, strict=True):
            self._add_line(line, text)
        return begin, self._length

    def _add_line(self, line: list[Word], text: str) -> None:
        self.page.lines.append(line)
        self.page.came_from.append(sorted({self._line_of_word[id(word)] for word in line}))
        self._texts.append(text)
        self._length += len(text) + 1

    def build(self) -> ArrangedPage:
        return replace(self.page, text="\n".join(self._texts))


def _arrange_blocks(
    lines: Sequence[list[Word]],
    words: Sequence[Word],
    found_tables: Sequence[FoundTable],
    find_rules: RuleFinder,
) -> ArrangedPage | None:
    """Return None if there are no tables, and the engine's order stays."""
    entries, paragraphs, table_of_entry = _without_tables(lines, found_tables)
    parts = reading_order.arrange_blocks(
        paragraphs,
        [layout.bounds_of(line) for line in entries],
        [(table.x0, table.y0, table.x1, table.y1) for table in found_tables],
        table_of_entry,
        is_from_author=False,
        find_rules=find_rules,
    )
    if not found_tables and [at for part in parts for at in part.lines] == list(range(len(entries))):
        return None
    builder = _PageBuilder(lines)
    for part in parts:
        if part.table is None:
            paragraph = [entries[at] for at in part.lines]
            builder.add(paragraph, [" ".join([word.text for word in line]) for line in paragraph])
            continue
        rows = [_words_of_row(row, words) for row in found_tables[part.table].rows]
        row_texts = ["\t".join(" ".join(word.text for word in cell) for cell in row).rstrip("\t") for row in rows]
        begin, end = builder.add([[word for cell in row for word in cell] for row in rows], row_texts)
        builder.page.tables.append(WordTable(begin, end, rows))
    return builder.build()


def _words_of_row(row: Sequence[Sequence[TextPiece]], words: Sequence[Word]) -> Row:
    return [[words[at] for piece in cell for at in _word_numbers(piece)] for cell in row]


def _without_tables(
    lines: Sequence[list[Word]], found_tables: Sequence[FoundTable]
) -> tuple[list[list[Word]], list[list[int]], dict[int, int]]:
    """Return entries, the entry numbers of each paragraph, and entry number → table number.

    An entry is a line without the words of tables, or the line with which a table begins.
    """
    table_of_word = {
        at: number
        for number, table in enumerate(found_tables)
        for row in table.rows
        for cell in row
        for piece in cell
        for at in _word_numbers(piece)
    }
    entries: list[list[Word]] = []
    paragraphs: list[list[int]] = [[]]
    table_of_entry: dict[int, int] = {}

    def add_entry(line: list[Word]) -> None:
        paragraphs[-1].append(len(entries))
        entries.append(line)

    end = 0
    for line in lines:
        begin, end = end, end + len(line)
        # The number of each word's table, or None.
        tables_of_line = [table_of_word.get(at) for at in range(begin, end)]
        for table in dict.fromkeys(tables_of_line):
            if table is not None and table not in table_of_entry.values():
                table_of_entry[len(entries)] = table
                add_entry(line)
        words_outside = [word for word, table in zip(line, tables_of_line, strict=True) if table is None]
        if not line:
            paragraphs.append([])
        # The dot leaders of a row in a table are left out.
        is_leader_of_table = len(words_outside) < len(line) and all(map(is_leader, words_outside))
        if words_outside and not is_leader_of_table:
            add_entry(words_outside)
    return entries, paragraphs, table_of_entry
