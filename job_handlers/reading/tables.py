"""Find tables on a page from the positions of its text and lines, and return their rows and cells. Pure functions.

The input is pieces of text, each on one line and without a wide gap inside, and the ruling lines drawn on the page, in
any unit. A table is either drawn, as a grid of ruling lines, or aligned: consecutive lines with gaps in the same
places. Running prose, where a line ends because the next word would not fit, is not a table, so that two columns of a
report stay two columns. All distances are multiples of `em`, the median height of a piece.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec import Struct

from job_handlers.reading.text_layer import letters_in

PIECES_MOST = 4000
RULES_MOST = 3000

_GAP_LEAST = 0.25
"""Minimum distance between two columns."""
_ROW_DISTANCE_MOST = 3.4
"""Maximum distance between the middles of two rows without ruling lines."""
_ALONE_MOST = 2
"""Maximum number of consecutive lines without a gap inside a table."""
_ALIGNED_SHARE = 0.7
_CELL_WORDS_MOST = 12
_SNAP = 0.35

_NUMBER = re.compile(
    r"[-+–—(<>~±$€£¥%*†\[]*\s*(?:[A-Z]{2,3}\s?)?\d[\d\s.,'’:/-]*[-+%)*†\]a-z°]{0,3}|[-–—.*†]+|n/?a|nil|n\.m\.", re.I
)
_YEAR = re.compile(r"(?:FY\s?)?(?:19|20)\d\d[*†]?")
_GROUPS = re.compile(r"[-+(]?\d{1,3}(?: \d{3})+(?:[.,]\d+)?\)?")
_TWO_NUMBERS = re.compile(r"[\d,]*\.\d+,\d{3}\.[\d,.]*")
_DOTS = re.compile(r"[.·…]+")
"""Dot leaders, which connect a title with its page number."""
_LEADS = re.compile(r"\s*(?:\.\s?){4,}\s*$")
_ENDS = frozenset(".?!:")
_BULLET = re.compile(r"[•●▪■◦‣∙·*–—o-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]|\d{1,2}(?:\.\d{1,2})+\.?|\[\d{1,3}\]")
_SIGNS_BEFORE = frozenset("$€£¥(<>+-–~") | {"US$", "EUR", "USD", "GBP", "CHF", "C$", "A$", "($", "($)", "Rs", "Rs."}
_SIGNS_BEHIND = frozenset(")%*†‡]") | {")%", "%)", "**", "pp", "x"}
_SIGNS = _SIGNS_BEFORE | _SIGNS_BEHIND


class TextPiece(msgspec.Struct, frozen=True, order=True, gc=False):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    at: int
    """Identifier chosen by the caller."""


class RulingLine(NamedTuple):
    """A horizontal or vertical line drawn on the page."""

    x0: float
    y0: float
    x1: float
    y1: float


class FoundTable(Struct, frozen=True):
    x0: float
    y0: float
    x1: float
    y1: float
    rows: list[list[list[TextPiece]]]
    """Rows of cells. A cell that spans several columns is in the first of them."""
    texts: list[list[str]]

    def as_text(self) -> str:
        """Return one line per row, with tabs between cells."""
        return "".join(["\t".join(row).rstrip("\t") + "\n" for row in self.texts])


Split = Callable[[TextPiece], Sequence[TextPiece]]
"""Returns the words of a piece that may cross a column boundary."""


def _split_narrow_columns(bands: Sequence[Band], split: Split | None, em: float) -> Sequence[Band]:
    """Split pieces that hold several narrow columns: adjacent numbers, and words with more than a space between them.

    A piece split by mistake is joined again in its cell.
    """
    return bands if split is None else [_split_band(band, split, em) for band in bands]


def _split_band(band: Band, split: Split, em: float) -> Band:
    found: Band = []
    for one in band:
        words = split(one) if " " in one.text.strip() else ()
        if "." in one.text or "·" in one.text or "…" in one.text:
            words = [word for word in words if not _DOTS.fullmatch(word.text)]
        if len(words) < 2 or one.x0 > words[0].x0 + em or one.x1 < words[-1].x1 - em:
            found.append(one)
            continue
        spaces = [b.x0 - a.x1 for a, b in pairwise(words)]
        are_numbers = all(_is_number(word.text) or word.text in _SIGNS_BEFORE for word in words)
        if not are_numbers and max(spaces) <= 0.55 * em:
            found.append(one)
            continue
        usual = sorted(spaces)[len(spaces) // 4]
        wide = max(0.55 * em, 1.4 * usual if len(spaces) > 1 else 0.0)
        is_one = are_numbers and _GROUPS.fullmatch(one.text.strip()) is not None
        begin = 0
        for at, space in enumerate(spaces, 1):
            is_sign = words[at - 1].text in _SIGNS_BEFORE and at - 1 == begin
            ends = ends_sentence(words[at - 1].text, words[at].text)
            if not is_sign and (space > (1.7 * wide if ends else wide) or (are_numbers and not is_one)):
                found.append(_join_words(words[begin:at], one))
                begin = at
        found.append(_join_words(words[begin:], one) if begin else one)
    return found


def _join_words(words: Sequence[TextPiece], one: TextPiece) -> TextPiece:
    return TextPiece(words[0].x0, one.y0, words[-1].x1, one.y1, " ".join([word.text for word in words]), words[0].at)


def text_of(cell: Sequence[TextPiece]) -> str:
    if not cell:
        return ""
    text = " ".join((cell[0].text if len(cell) == 1 else " ".join([one.text for one in cell])).split())
    return _LEADS.sub("", text) if ".." in text or ". ." in text else text


def ends_sentence(word: str, following: str) -> bool:
    """Return whether a sentence ends between the two words, where the gap is wider."""
    return word[-1] in _ENDS and following[0].isupper()


def may_have_tables(middles: Sequence[int]) -> bool:
    """Return whether some pieces are on one line, from their vertical positions. Prose in one column has none."""
    return len(middles) - len(set(middles)) >= 2


def find(pieces: Sequence[TextPiece], rules: Sequence[RulingLine] = (), split: Split | None = None) -> list[FoundTable]:
    # Keep the pieces ordered from top to bottom; every list below relies on it.
    pieces = sorted(
        [one for one in pieces if one.x1 > one.x0 and one.text.strip(" .…\xa0\t")],
        key=lambda one: (one.y0 + one.y1, one.x0),
    )
    if len(pieces) < 4 or len(pieces) > PIECES_MOST:
        return []
    em = median([one.y1 - one.y0 for one in pieces]) or 1.0
    level, upright = _horizontal_and_vertical(rules, em) if len(rules) <= RULES_MOST else ([], [])
    found: list[FoundTable] = []
    left = pieces
    flowing: set[int] | None = None
    for area in _drawn_areas(level, upright, em):
        inside = [one for one in left if _is_inside(one, area)]
        if len(_vertical_lines(upright, area, em)) < 3:
            # Ruling lines may also surround prose.
            flowing = _prose_ids(pieces, em) if flowing is None else flowing
            if sum(id(one) in flowing for one in inside) > 0.2 * len(inside):
                continue
        bands = _split_narrow_columns(_group_lines(inside, em), split, em)
        table = _read_table(bands, em, level, upright, split, is_drawn=True, area=area)
        if table is not None:
            found.append(table)
            inner = {id(one) for one in inside}
            left = [one for one in left if id(one) not in inner]
    prose = _prose_ids(left, em) if flowing is None else flowing
    flows = [one for one in left if id(one) in prose]
    others = [one for one in left if id(one) not in prose]
    for run in _table_runs(_split_narrow_columns(_lines_near_gaps(_group_lines(others, em)), split, em), flows, em):
        table = _read_table(run, em, level, upright, split, is_drawn=False, area=None)
        if table is not None:
            found.append(table)
    return sorted(found, key=lambda one: (one.y0, one.x0))


# --- lines of pieces --------------------------------------------------------------------------------------

Band = list[TextPiece]
"""Pieces on one line, from left to right."""


def _group_lines(pieces: Sequence[TextPiece], em: float) -> list[Band]:
    """Group pieces, ordered from top to bottom, into lines."""
    bands: list[Band] = []
    middle = -1e9
    for one in pieces:
        y0, y1 = one.y0, one.y1
        own = (y0 + y1) / 2
        if own - middle > 0.45 * min(em, y1 - y0 + 0.2 * em):
            band = [one]
            bands.append(band)
            middle = own
        else:
            middle += (own - middle) / (len(band) + 1)
            band.append(one)
    for band in bands:
        if len(band) > 1:
            band.sort()
    return bands


def _middle(band: Band) -> float:
    return sum([one.y0 + one.y1 for one in band]) / (2 * len(band))


def _prose_ids(pieces: Sequence[TextPiece], em: float) -> set[int]:
    """Return the ids of the pieces that are running text: lines that end where the next word did not fit."""
    stacks: list[list[TextPiece]] = []
    growing: list[list[TextPiece]] = []
    for one in pieces:
        x0, y0 = one.x0, one.y0
        highest, lowest = y0 - 2.2 * em, y0 - 0.5 * em
        best, nearest = None, 2.6 * em
        for stack in growing:
            last = stack[-1]
            if highest <= last.y0 < lowest and x0 < last.x1 and abs(x0 - last.x0) < nearest:
                best, nearest = stack, abs(x0 - last.x0)
        if best is None:
            # A stack that ended far above gets no more lines.
            growing = [stack for stack in growing if stack[-1].y1 > y0 - 4 * em]
            growing.append([one])
            stacks.append(growing[-1])
        else:
            best.append(one)
    found: set[int] = set()
    middles = [one.y0 + one.y1 for one in pieces]
    for stack in [stack for stack in stacks if len(stack) > 2]:
        for flow in _prose_runs(stack, em):
            if not _are_cells(flow, middles, em):
                found.update(map(id, flow))
    return found


def _are_cells(flow: Sequence[TextPiece], middles: Sequence[float], em: float) -> bool:
    """Return whether these are table cells of several lines each: every cell starts on a line with other pieces."""
    if len(flow) > 12:
        return False
    beside = [
        bisect_right(middles, one.y0 + one.y1 + 0.5 * em) - bisect_left(middles, one.y0 + one.y1 - 0.5 * em) > 1
        for one in flow
    ]
    return any(beside) and not all(beside) and beside == [one.text[:1].isupper() for one in flow]


def _prose_runs(stack: Sequence[TextPiece], em: float) -> Iterator[Sequence[TextPiece]]:
    if sum([len(one.text) for one in stack]) < 16 * len(stack):
        return
    right = max([one.x1 for one in stack])
    begin = lowers = 0
    for at in range(1, len(stack) + 1):
        wraps = False
        if at < len(stack):
            line, following = stack[at - 1], stack[at]
            first = following.text.split(" ", 1)[0]
            wide = (following.x1 - following.x0) * (len(first) + 1) / max(len(following.text), 1)
            wraps = line.x1 + wide > right - 0.3 * em and line.x0 - following.x0 > -1.2 * em
            lowers += wraps and not first[:1].isupper()
        if not wraps:
            pairs = at - 1 - begin
            if pairs > 1 and lowers >= (0.55 * pairs if pairs > 3 else pairs - 0.5):
                text = "".join([one.text for one in stack[begin:at]])
                if letters_in(text) > 0.5 * len(text):
                    yield stack[begin:at]
            begin, lowers = at, 0


def _table_runs(bands: Sequence[Band], flows: Sequence[TextPiece], em: float) -> list[list[Band]]:
    """Return runs of nearby lines with gaps, including a few single pieces between them."""
    runs: list[list[Band]] = []
    run: list[Band] = []
    alone = 0
    for band in bands:
        is_far = bool(run) and _middle(band) - _middle(run[-1]) > _ROW_DISTANCE_MOST * em
        if run and (is_far or alone > _ALONE_MOST or _has_prose_between(run[-1], band, flows)):
            runs.append(run)
            run, alone = [], 0
        run.append(band)
        alone = 0 if len(band) > 1 else alone + 1
    runs.append(run)
    return [kept for one in runs if (kept := _trim(one, em))]


def _lines_near_gaps(bands: Sequence[Band]) -> list[Band]:
    """Return the lines with gaps, and their neighbours, where several such lines are close together."""
    wide = [at for at, band in enumerate(bands) if len(band) > 1]
    kept: set[int] = set()
    for one, other in pairwise(wide):
        if other - one <= _ALONE_MOST + 1:
            kept.update(range(one - 1, other + _ALONE_MOST + 1))
    return [band for at, band in enumerate(bands) if at in kept]


def _has_prose_between(above: Band, below: Band, flows: Sequence[TextPiece]) -> bool:
    """Return whether prose lies between the two lines."""
    if not flows:
        return False
    top, bottom = _middle(above), _middle(below)
    left = min(above[0].x0, below[0].x0)
    right = max([one.x1 for one in (*above, *below)])
    return any(top < (one.y0 + one.y1) / 2 < bottom and one.x0 < right and one.x1 > left for one in flows)


def _trim(run: list[Band], em: float) -> list[Band]:
    """Drop lines without a gap above and below the table; keep those that continue a cell of the last row."""
    wide = [at for at, band in enumerate(run) if len(band) > 1]
    if len(wide) < 2:
        return []
    first, last = wide[0], wide[-1]
    steps = [_middle(run[at + 1]) - _middle(run[at]) for at in range(first, last)]
    while (
        last + 1 < len(run)
        and _continues_cell(run[last], run[last + 1][0], em)
        and (_middle(run[last + 1]) - _middle(run[last]) <= min([*steps, 1.6 * em]) * 1.05)
    ):
        last += 1
    # A column title of two lines begins above the other titles.
    while first and len(run[first - 1]) == 1 and _begins_above(run[first - 1][0], run[first], steps, em):
        steps.insert(0, _middle(run[first]) - _middle(run[first - 1]))
        first -= 1
    return run[first : last + 1]


def _begins_above(one: TextPiece, band: Band, steps: Sequence[float], em: float) -> bool:
    step = _middle(band) - (one.y0 + one.y1) / 2
    is_over = any(one.x0 < other.x1 and one.x1 > other.x0 for other in band[1:])
    return is_over and one.x0 > band[0].x1 and step <= min([*steps, 1.65 * em]) * 1.02 + 0.2 * em


def _continues_cell(band: Band, one: TextPiece, em: float) -> bool:
    """Return whether the piece lies below one of the band and looks like the rest of its sentence."""
    over = [other for other in band if abs(other.x0 - one.x0) < 0.5 * em]
    return bool(over) and not one.text[:1].isupper() and not _is_number(one.text)


# --- rules ------------------------------------------------------------------------------------------------


def _horizontal_and_vertical(rules: Sequence[RulingLine], em: float) -> tuple[list[RulingLine], list[RulingLine]]:
    """Return the horizontal and the vertical lines, with collinear segments joined."""
    thin, reach = 0.3 * em, 0.5 * em
    level = [one for one in rules if one.y1 - one.y0 <= thin and one.x1 - one.x0 > 0.7 * em]
    upright = [one for one in rules if one.x1 - one.x0 <= thin and one.y1 - one.y0 > 0.7 * em]
    return _join_segments(level, thin, reach), [
        _transpose(one) for one in _join_segments([_transpose(one) for one in upright], thin, reach)
    ]


def _transpose(one: RulingLine) -> RulingLine:
    return RulingLine(one.y0, one.x0, one.y1, one.x1)


def _join_segments(level: Sequence[RulingLine], thin: float, reach: float) -> list[RulingLine]:
    lines: list[list[RulingLine]] = []
    for one in sorted(level, key=lambda one: one.y0 + one.y1):
        if lines and (one.y0 + one.y1) - (lines[-1][0].y0 + lines[-1][0].y1) <= 2 * thin:
            lines[-1].append(one)
        else:
            lines.append([one])
    found: list[RulingLine] = []
    for line in lines:
        y = sum(one.y0 + one.y1 for one in line) / (2 * len(line))
        begin = end = None
        for one in sorted(line):
            if end is None or begin is None or one.x0 > end + reach:
                if end is not None and begin is not None:
                    found.append(RulingLine(begin, y, end, y))
                begin, end = one.x0, one.x1
            else:
                end = max(end, one.x1)
        if end is not None and begin is not None:
            found.append(RulingLine(begin, y, end, y))
    return found


def _drawn_areas(level: Sequence[RulingLine], upright: Sequence[RulingLine], em: float) -> list[RulingLine]:
    """Return the areas of crossing lines, and of horizontal lines stacked with the same ends; smallest first."""
    near = 0.6 * em
    group = list(range(len(level) + len(upright)))

    def head(at: int) -> int:
        while group[at] != at:
            group[at] = group[group[at]]
            at = group[at]
        return at

    for down, column in enumerate(upright, len(level)):
        for at, line in enumerate(level):
            if column.y0 - near <= line.y0 <= column.y1 + near and line.x0 - near <= column.x0 <= line.x1 + near:
                group[head(down)] = head(at)
    members: dict[int, list[RulingLine]] = {}
    for at, one in enumerate((*level, *upright)):
        members.setdefault(head(at), []).append(one)
    areas = [
        RulingLine(min(one.x0 for one in some), min(one.y0 for one in some),
             max(one.x1 for one in some), max(one.y1 for one in some))
        for some in members.values()
        if sum(one.x0 != one.x1 for one in some) >= 2 and sum(one.x0 == one.x1 for one in some) >= 1
    ]  # fmt: skip
    loose = [one for some in members.values() if len(some) == 1 for one in some if one.x0 != one.x1]
    areas += _stacked_areas(loose, em)
    # Smallest first: an area inside another is part of it, unless the other is the page's frame.
    areas.sort(key=lambda one: (one.x1 - one.x0) * (one.y1 - one.y0))
    return areas


def _stacked_areas(level: Sequence[RulingLine], em: float) -> list[RulingLine]:
    """Return areas between stacked horizontal lines: above the head, below it and at the end, as in books."""
    found: list[RulingLine] = []
    used: set[int] = set()
    ordered = sorted(level, key=lambda one: one.y0)
    for at, one in enumerate(ordered):
        if at in used or one.x1 - one.x0 < 6 * em:
            continue
        some = [one]
        for later in range(at + 1, len(ordered)):
            other = ordered[later]
            if later not in used and abs(other.x0 - one.x0) < em and abs(other.x1 - one.x1) < em:
                used.add(later)
                some.append(other)
        if len(some) >= 3 or (len(some) == 2 and some[1].y0 - one.y0 > 3 * em):
            found.append(RulingLine(one.x0, one.y0, one.x1, some[-1].y0))
    return found


def _is_inside(one: TextPiece, area: RulingLine) -> bool:
    return area.x0 <= (one.x0 + one.x1) / 2 <= area.x1 and area.y0 <= (one.y0 + one.y1) / 2 <= area.y1


# --- a table ----------------------------------------------------------------------------------------------


def _read_table(
    bands: Sequence[Band],
    em: float,
    level: Sequence[RulingLine],
    upright: Sequence[RulingLine],
    split: Split | None,
    *,
    is_drawn: bool,
    area: RulingLine | None,
) -> FoundTable | None:
    if sum(map(len, bands)) < 4:
        return None
    own = area or RulingLine(*_bounding_box([one for band in bands for one in band]))
    walls = _vertical_lines(upright, own, em)
    floors = _horizontal_lines(level, own, em)
    columns = _columns(bands, walls, em)
    if len(columns) < 2:
        return None
    if split is not None:
        bands = [_cut_at_columns(band, columns, split, em) for band in bands]
    columns = _merge_sign_columns(bands, columns)
    if len(columns) < 2:
        return None
    begins, ends = [begin for begin, _ in columns], [end for _, end in columns]
    lines = [_cells_of(band, columns, begins, ends) for band in bands]
    texts = [[text_of(cell) for cell in line] for line in lines]
    if (not is_drawn or len(walls) < 3) and not _is_table(lines, texts, em, floors, is_drawn=is_drawn):
        return None
    rows = [row for row in _rows(bands, lines, texts, em, floors) if any(row)]
    if len(rows) < 2 or sum([sum(map(bool, row)) > 1 for row in rows]) < 2:
        return None
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    if len(used) < 2:
        return None
    rows = [[row[at] for at in used] for row in rows]
    box = _bounding_box([one for row in rows for cell in row for one in cell])
    return FoundTable(*box, rows, [[text_of(cell) for cell in row] for row in rows])


def _bounding_box(pieces: Sequence[TextPiece]) -> tuple[float, float, float, float]:
    return (
        min([one.x0 for one in pieces]),
        min([one.y0 for one in pieces]),
        max([one.x1 for one in pieces]),
        max([one.y1 for one in pieces]),
    )


def _vertical_lines(upright: Sequence[RulingLine], area: RulingLine, em: float) -> list[float]:
    """Return the x positions of vertical lines along at least 40 % of the area, its own edges included."""
    xs: list[float] = []
    least = 0.4 * (area.y1 - area.y0)
    for one in sorted(upright):
        is_long = min(one.y1, area.y1) - max(one.y0, area.y0) > least
        if is_long and area.x0 - em <= one.x0 <= area.x1 + em and (not xs or one.x0 - xs[-1] > 0.5 * em):
            xs.append(one.x0)
    return xs


def _horizontal_lines(level: Sequence[RulingLine], area: RulingLine, em: float) -> list[RulingLine]:
    return [
        one for one in level
        if area.y0 - em <= one.y0 <= area.y1 + em
        and min(one.x1, area.x1) - max(one.x0, area.x0) > 0.1 * (area.x1 - area.x0)
    ]  # fmt: skip


Column = tuple[float, float]
Line = list[list[TextPiece]]
"""Cells by column."""


def _columns(bands: Sequence[Band], walls: Sequence[float], em: float) -> list[Column]:
    """Return the left and right edge of each column."""
    if len(walls) > 2:
        inner = list(pairwise(walls))
        left = min(one.x0 for band in bands for one in band)
        right = max(one.x1 for band in bands for one in band)
        if left < walls[0] - em:
            inner.insert(0, (left, walls[0]))
        if right > walls[-1] + em:
            inner.append((walls[-1], right))
        found: list[Column] = []
        for begin, end in inner:
            within = [
                some for band in bands
                if (some := [one for one in band if begin <= (one.x0 + one.x1) / 2 <= end])
            ]  # fmt: skip
            parts = _columns_by_gaps(within, em) if sum(len(band) > 1 for band in within) > 0.5 * len(within) else []
            if len(parts) > 1:
                middles = [(a[1] + b[0]) / 2 for a, b in pairwise(parts)]
                found += zip([begin, *middles], [*middles, end], strict=True)
            else:
                found.append((begin, end))
        return found
    return _columns_by_gaps(bands, em)


def _columns_by_gaps(bands: Sequence[Band], em: float) -> list[Column]:
    counts = sorted((len(band) for band in bands if len(band) > 1), reverse=True)
    if not counts:
        return []
    usual = counts[len(counts) // 4]
    whole = [[one for one in band if not _is_run_together(one, em)] for band in bands]
    full = [band for band in whole if len(band) >= max(2, 0.5 * usual)]
    best: list[Column] = []
    # A head may span several columns. The lines below it show the columns better.
    for skipped in range(min(3, len(full) - 1)):
        some = full[skipped:]
        tolerated = len(some) // 10 if len(some) > 5 else 0
        found = _covered_ranges(some, tolerated, em)
        if len(found) > len(best):
            best = found
        if len(best) >= usual:
            break
    return best


def _is_run_together(one: TextPiece, em: float) -> bool:
    """Return whether an engine has read across a column gap as one word."""
    text = one.text
    return one.x1 - one.x0 > 1.5 * em * len(text) > 1.5 * em or (
        text.count(".") > 1 and _TWO_NUMBERS.fullmatch(text) is not None
    )


def _covered_ranges(bands: Sequence[Band], tolerated: int, em: float) -> list[Column]:
    """Return the stretches covered by pieces, separated by gaps crossed by at most `tolerated` of them."""
    ends: list[tuple[float, int]] = []
    for band in bands:
        for one in band:
            ends.append((one.x0, 1))
            ends.append((one.x1, -1))
    ends.sort()
    found: list[Column] = []
    deep, begin = 0, None
    for x, step in ends:
        deep += step
        if deep > tolerated and begin is None:
            begin = found.pop()[0] if found and x - found[-1][1] < _GAP_LEAST * em else x
        elif deep <= tolerated and begin is not None:
            found.append((begin, x))
            begin = None
    return found


def _cut_at_columns(band: Band, columns: Sequence[Column], split: Split, em: float) -> Band:
    """Split pieces that cross a column boundary with a gap."""
    found: Band = []
    for one in band:
        x0, x1, text = one.x0, one.x1, one.text
        if " " not in text or not _spans_columns(x0 + 0.2 * em, x1 - 0.2 * em, columns):
            found.append(one)
            continue
        words = [word for word in split(one) if word.x0 >= x0 - 0.1 * em and word.x1 <= x1 + 0.1 * em]
        if len(words) < 2:
            found.append(one)
            continue
        spaces = [b.x0 - a.x1 for a, b in pairwise(words)]
        main_columns = [_main_column(word, columns) for word in words]
        usual = min(spaces)
        parts: list[list[TextPiece]] = [[words[0]]]
        for at, word in enumerate(words[1:]):
            is_parted = main_columns[at + 1] != main_columns[at] and (
                spaces[at] > max(0.42 * em, 1.25 * usual if len(spaces) > 1 else 0.0)
                or all(_is_number(one.text) for one in words)
            )
            if is_parted:
                parts.append([])
            parts[-1].append(word)
        found += [_join_words(part, one) for part in parts]
    return found


def _spans_columns(x0: float, x1: float, columns: Sequence[Column]) -> bool:
    """Return whether the range overlaps more than one column."""
    return sum([x0 < end and x1 > begin for begin, end in columns]) > 1


def _main_column(one: TextPiece, columns: Sequence[Column]) -> int:
    """Return the column that contains most of the piece."""
    best, main, x0, x1 = -1e9, 0, one.x0, one.x1
    for at, (begin, end) in enumerate(columns):
        shared = (x1 if x1 < end else end) - (x0 if x0 > begin else begin)
        if shared > best:
            best, main = shared, at
    return main


def _merge_sign_columns(bands: Sequence[Band], columns: list[Column]) -> list[Column]:
    """Merge a column of currency signs with the numbers after it, and one of percent signs with those before it."""
    if not any(one.text.strip() in _SIGNS for band in bands for one in band):
        return columns
    texts: list[set[str]] = [set() for _ in columns]
    for band in bands:
        for one in band:
            texts[_main_column(one, columns)].add(one.text.strip())
    found: list[Column] = []
    carried: float | None = None
    for at, (begin, end) in enumerate(columns):
        own = texts[at]
        if own and own <= _SIGNS_BEHIND and found:
            found[-1] = (found[-1][0], end)
        elif own and own <= _SIGNS_BEFORE and at + 1 < len(columns):
            carried = begin if carried is None else carried
        else:
            found.append((begin if carried is None else carried, end))
            carried = None
    return found


def _cells_of(band: Band, columns: Sequence[Column], begins: Sequence[float], ends: Sequence[float]) -> Line:
    line: Line = [[] for _ in columns]
    for one in band:
        x0, x1 = one.x0, one.x1
        first, last = bisect_right(ends, x0), bisect_left(begins, x1) - 1
        if first < last:
            over = [
                at for at in range(first, last + 1)
                if min(x1, ends[at]) - max(x0, begins[at]) > 0.3 * min(x1 - x0, ends[at] - begins[at])
            ]  # fmt: skip
            # A piece across several columns spans them and goes into the first.
            first = over[0] if len(over) > 1 else _main_column(one, columns)
        elif first > last:
            first = _main_column(one, columns)
        line[first].append(one)
    return line


@lru_cache(2048)
def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def _is_table(
    lines: Sequence[Line], texts: Sequence[Sequence[str]], em: float, floors: Sequence[RulingLine], *, is_drawn: bool
) -> bool:
    wide = [at for at, line in enumerate(lines) if sum(map(bool, line)) > 1]
    if len(wide) < 2 or len(wide) < 0.4 * len(lines):
        return False
    columns = range(len(lines[0]))
    cells = [[text for at in wide if (text := texts[at][column])] for column in columns]
    numeric = [sum(map(_is_number, column)) / len(column) if column else 0.0 for column in cells]
    words = [sum(len(text.split()) for text in column) / len(column) if column else 0.0 for column in cells]
    if any(len(column) < 2 for column in cells) and len(columns) == 2:
        return False
    if _BULLET.fullmatch(cells[0][0]) if cells[0] else False:
        marked = sum(bool(_BULLET.fullmatch(text)) for text in cells[0])
        if marked > 0.6 * len(cells[0]) and len(columns) == 2 and not is_drawn:
            return False
    filled = sum(map(len, cells)) / (len(wide) * len(columns))
    if filled < 0.35:
        return False
    if not is_drawn and max(numeric[1:-1], default=0.0) < 0.5 and _is_contents([texts[at] for at in wide]):
        return False
    aligned = _alignment([lines[at] for at in wide], em)
    if is_drawn:
        return aligned > 0.5
    if max(words) > _CELL_WORDS_MOST or aligned < _ALIGNED_SHARE:
        return False
    if len(columns) == 2:
        is_short = max(words) <= 6
        # As on an invoice: a label and its value.
        are_labels = sum(text.endswith(":") for text in cells[0]) >= 0.8 * len(cells[0])
        return len(wide) >= 3 and (
            numeric[1] >= 0.6 or (is_short and (are_labels or len(floors) >= 2 or numeric[0] > 0.6))
        )
    if sum(numeric[1:]) / (len(columns) - 1) >= 0.3:
        return True
    return len(wide) >= 3 and sum(words) / len(words) <= 4.5 and filled >= 0.6


def _is_contents(texts: Sequence[Sequence[str]]) -> bool:
    """Return whether the table is a table of contents: lines end in page numbers that never decrease."""
    ends = [next(filter(None, reversed(line))).split()[-1].lstrip(".") for line in texts]
    numbers = [int(end) for end in ends if end.isdecimal() and len(end) < 5]
    if len(numbers) < 3 or len(numbers) < 0.8 * len(ends) or numbers[0] >= numbers[-1]:
        return False
    return sum(b >= a for a, b in pairwise(numbers)) >= 0.9 * (len(numbers) - 1)


def _alignment(wide: Sequence[Line], em: float) -> float:
    """Return the share of cells aligned with their column by left edge, right edge, centre or decimal point."""
    good = total = 0
    for at in range(len(wide[0])):
        own = [line[at] for line in wide if line[at]]
        if len(own) < 2:
            continue
        best = 0
        for edge in (_left_edge, _right_edge, _centre, _decimal_point):
            places = sorted(edge(cell) for cell in own)
            best = max(best, _largest_cluster(places, _SNAP * em))
            if best == len(own):
                break
        good += best
        total += len(own)
    return good / total if total else 0.0


def _left_edge(cell: Sequence[TextPiece]) -> float:
    return cell[0].x0


def _right_edge(cell: Sequence[TextPiece]) -> float:
    return cell[-1].x1


def _centre(cell: Sequence[TextPiece]) -> float:
    return (cell[0].x0 + cell[-1].x1) / 2


def _decimal_point(cell: Sequence[TextPiece]) -> float:
    """Return the approximate x position of the decimal point, assuming digits of equal width."""
    last = cell[-1]
    whole, point, _ = last.text.partition(".")
    if not point:
        whole = last.text.rstrip(")%*† ")
    return last.x0 + (last.x1 - last.x0) * len(whole) / max(len(last.text), 1)


def _largest_cluster(places: Sequence[float], reach: float) -> int:
    best = begin = 0
    for end, place in enumerate(places):
        while place - places[begin] > 2 * reach:
            begin += 1
        best = max(best, end - begin + 1)
    return best


# --- its rows ---------------------------------------------------------------------------------------------


def _rows(
    bands: Sequence[Band],
    lines: Sequence[Line],
    texts: Sequence[Sequence[str]],
    em: float,
    floors: Sequence[RulingLine],
) -> list[Line]:
    """Merge the lines of each row: those between the same two ruling lines, and those that continue the line above."""
    middles = [_middle(band) for band in bands]
    ys = sorted({one.y0 for one in floors})
    sections = [sum(y < middle for y in ys) for middle in middles]
    inner = len(set(sections))
    # Ruling lines do not separate rows if most rows are between the same two, as in a body below a head.
    by_rules = inner >= 3 and max(map(sections.count, set(sections))) <= 0.5 * len(bands)
    steps = [b - a for a, b in pairwise(middles)]
    usual = median(steps) if steps else em
    numbers = [[bool(text) and _is_number(text) for text in line] for line in texts]
    numeric = [at > 0 and _is_mostly(column, filled) for at, (column, filled) in enumerate(
        zip(zip(*numbers, strict=True), zip(*texts, strict=True), strict=True))]  # fmt: skip
    head = _end_of_head(texts, numbers, numeric)
    rows: list[Line] = []
    begun = 0
    for at, line in enumerate(lines):
        if rows and by_rules:
            is_same = sections[at] == sections[at - 1]
        elif rows:
            is_same = sections[at] == sections[at - 1] and _continues_row(
                lines, texts, numbers, at, begun, head, numeric, steps, usual, em
            )
        else:
            is_same = False
        if is_same:
            for cell, more in zip(rows[-1], line, strict=True):
                cell += more
        else:
            begun = at
            rows.append([list(cell) for cell in line])
    return rows


def _is_mostly(are_so: Sequence[bool], texts: Sequence[str]) -> bool:
    return any(texts) and sum(are_so) >= 0.5 * sum(map(bool, texts))


def _continues_row(
    lines: Sequence[Line], texts: Sequence[Sequence[str]], numbers: Sequence[Sequence[bool]], at: int, begun: int,
    head: int, numeric: Sequence[bool], steps: Sequence[float], usual: float, em: float,
) -> bool:  # fmt: skip
    """Return whether the line at `at` continues the row above it, which began at line `begun`."""
    filled = [column for column, text in enumerate(texts[at]) if text]
    before = {column for one in texts[begun:at] for column, text in enumerate(one) if text}
    if steps[at - 1] > 2.1 * em or not filled:
        return False
    if at <= head:
        # A text alone in the first column, below the titles of the others, begins a row and is no title.
        return (filled != [0] or 0 in before) and _is_wrapped_head(lines, at, head, steps, em)
    is_tight = steps[at - 1] < 0.8 * max(steps[at] if at < len(steps) else usual, usual)
    values = any(number and is_numeric for number, is_numeric in zip(numbers[at], numeric, strict=True))
    values_above = any(
        number and is_numeric for one in numbers[begun:at] for number, is_numeric in zip(one, numeric, strict=True)
    )
    text = texts[at][filled[0]]
    if values and values_above:
        return False
    if values:
        # A label of two lines, with its numbers beside the last of them.
        return before == {0} and filled[0] == 0 and (text[:1].islower() or _ends_open(texts[at - 1][0]))
    if filled[0] == 0 and len(filled) == len(numeric) and not is_tight:
        return False
    if filled[0]:
        return set(filled) <= before or is_tight
    if any(numeric):
        return values_above and filled == [0] and (text[:1].islower() or (is_tight and not text[:1].isupper()))
    return is_tight and len(filled) <= len(before)


def _ends_open(text: str) -> bool:
    return text.endswith((",", "-", "/", "(")) or text.rpartition(" ")[2] in {
        "and",
        "of",
        "the",
        "for",
        "in",
        "to",
        "or",
        "from",
        "on",
        "by",
        "with",
    }


def _end_of_head(
    texts: Sequence[Sequence[str]], numbers: Sequence[Sequence[bool]], numeric: Sequence[bool]
) -> int:  # fmt: skip
    """Return the index of the head's last line: the next line has values in most of the numeric columns."""
    for at, line in enumerate(texts):
        values = sum(
            number and is_numeric and not _YEAR.fullmatch(text)
            for text, number, is_numeric in zip(line, numbers[at], numeric, strict=True)
        )
        if values and values >= 0.5 * sum(numeric):
            return at - 1
    return 0


def _is_wrapped_head(
    lines: Sequence[Line], at: int, head: int, steps: Sequence[float], em: float
) -> bool:  # fmt: skip
    """Return whether a line of the head continues the line above it.

    Column titles of two lines are one row; a title that spans several columns is a row of its own.
    """
    above, line = lines[at - 1], lines[at]
    if not all(_is_above(cell, below) for cell, below in zip(above, line, strict=True) if cell and below):
        return False
    body = median(steps[head:] or steps)
    if steps[at - 1] < 0.87 * body:
        return True
    if body > 1.75 * em:
        return False
    below = [[one for later in lines[at : head + 1] for one in later[column]] for column in range(len(line))]
    return not _is_spanning(above, below)


def _is_above(cell: Sequence[TextPiece], below: Sequence[TextPiece]) -> bool:
    return cell[0].x0 < below[-1].x1 and cell[-1].x1 > below[0].x0


def _is_spanning(above: Sequence[Sequence[TextPiece]], line: Sequence[Sequence[TextPiece]]) -> bool:
    """Return whether a title is above several of the titles below it, or few titles are above many."""
    if any(cell and sum(bool(below) and _is_above(cell, below) for below in line) > 1 for cell in above):
        return True
    filled = sum(map(bool, above))
    return 0 < filled <= sum(map(bool, line)) / 2 and filled < 3
