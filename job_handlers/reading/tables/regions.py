"""Find the regions of tables: between ruling lines, and in runs of lines with gaps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from job_handlers.reading.tables.text_pieces import Band, RulingLine, TextPiece, is_number, middle
from job_handlers.reading.text_layer import letters_in

_ROW_DISTANCE_MOST = 3.4  # Em between the middles of two rows.
_LINES_BETWEEN_MOST = 2  # Lines without gaps between two lines of a table.
_PROSE_CHARACTERS_LEAST = 16  # Mean length of the lines of prose.
_CELL_LINES_MOST = 12


# --- prose ------------------------------------------------------------------------------------------------


def prose_ids(pieces: Sequence[TextPiece], em: float) -> set[int]:
    """Return the ids of running text: lines that end where the next word did not fit."""
    found: set[int] = set()
    # Twice the middles, to save a division for each.
    double_middles = [one.y0 + one.y1 for one in pieces]
    for stack in _stacks(pieces, em):
        if len(stack) > 2 and sum([len(one.text) for one in stack]) >= _PROSE_CHARACTERS_LEAST * len(stack):
            for run in _prose_runs(stack, em):
                if not _are_cells(run, double_middles, em):
                    found.update(map(id, run))
    return found


def _stacks(pieces: Sequence[TextPiece], em: float) -> list[list[TextPiece]]:
    """Group pieces below each other, as in a column of text."""
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
    return stacks


def _are_cells(lines: Sequence[TextPiece], double_middles: Sequence[float], em: float) -> bool:
    """Return whether exactly the lines with a capital letter, where cells begin, have other pieces beside them."""
    if len(lines) > _CELL_LINES_MOST:
        return False
    have_neighbours: list[bool] = []
    for line in lines:
        double_middle = line.y0 + line.y1
        first = bisect_left(double_middles, double_middle - 0.5 * em)
        have_neighbours.append(bisect_right(double_middles, double_middle + 0.5 * em) - first > 1)
    has_both = any(have_neighbours) and not all(have_neighbours)
    return has_both and have_neighbours == [line.text[:1].isupper() for line in lines]


def _prose_runs(stack: Sequence[TextPiece], em: float) -> Iterator[Sequence[TextPiece]]:
    """Yield runs of wrapped lines, most of which begin in the middle of a sentence."""
    right = max([one.x1 for one in stack])
    wraps = [_is_wrapped(line, following, right, em) for line, following in pairwise(stack)]
    begin = lower_count = 0
    for at, is_wrapped in enumerate([*wraps, False], 1):
        if is_wrapped:
            lower_count += not stack[at].text[:1].isupper()
            continue
        wrapped_count = at - 1 - begin
        # All of two or three lines, or somewhat more than half of more.
        lower_least = 0.55 * wrapped_count if wrapped_count > 3 else wrapped_count
        if wrapped_count > 1 and lower_count >= lower_least:
            text = "".join([one.text for one in stack[begin:at]])
            if letters_in(text) > 0.5 * len(text):
                yield stack[begin:at]
        begin, lower_count = at, 0


def _is_wrapped(line: TextPiece, following: TextPiece, right: float, em: float) -> bool:
    """Return whether the next line's first word had no room before the right edge."""
    first_word = following.text.split(" ", 1)[0]
    width = (following.x1 - following.x0) * (len(first_word) + 1) / max(len(following.text), 1)
    is_indented = following.x0 - line.x0 >= 1.2 * em
    return line.x1 + width > right - 0.3 * em and not is_indented


# --- lines with gaps --------------------------------------------------------------------------------------


def lines_near_gaps(bands: Sequence[Band]) -> list[Band]:
    """Return the lines with gaps that are near each other, and the lines between and beside them."""
    wide = [at for at, band in enumerate(bands) if len(band) > 1]
    kept: set[int] = set()
    for above, below in pairwise(wide):
        if below - above <= _LINES_BETWEEN_MOST + 1:
            kept.update(range(above - 1, below + _LINES_BETWEEN_MOST + 1))
    return [band for at, band in enumerate(bands) if at in kept]


def table_runs(bands: Sequence[Band], prose: Sequence[TextPiece], em: float) -> list[list[Band]]:
    """Return runs of lines that may be a table: most have gaps, and no prose is between them."""
    runs: list[list[Band]] = []
    run: list[Band] = []
    lines_since_gap = 0
    for band in bands:
        is_far = bool(run) and middle(band) - middle(run[-1]) > _ROW_DISTANCE_MOST * em
        if run and (is_far or lines_since_gap > _LINES_BETWEEN_MOST or _has_prose_between(run[-1], band, prose)):
            runs.append(run)
            run, lines_since_gap = [], 0
        run.append(band)
        lines_since_gap = 0 if len(band) > 1 else lines_since_gap + 1
    runs.append(run)
    return [trimmed for run in runs if (trimmed := _trim(run, em))]


def _has_prose_between(above: Band, below: Band, prose: Sequence[TextPiece]) -> bool:
    if not prose:
        return False
    top, bottom = middle(above), middle(below)
    left = min(above[0].x0, below[0].x0)
    right = max([one.x1 for one in (*above, *below)])
    return any(top < (one.y0 + one.y1) / 2 < bottom and one.x0 < right and one.x1 > left for one in prose)


def _trim(run: list[Band], em: float) -> list[Band]:
    """Drop the single pieces at both ends, except those that belong to a cell beside them."""
    wide = [at for at, band in enumerate(run) if len(band) > 1]
    if len(wide) < 2:
        return []
    first, last = wide[0], wide[-1]
    steps = [middle(run[at + 1]) - middle(run[at]) for at in range(first, last)]
    while (
        last + 1 < len(run)
        and _continues_cell(run[last], run[last + 1][0], em)
        and (middle(run[last + 1]) - middle(run[last]) <= min([*steps, 1.6 * em]) * 1.05)
    ):
        last += 1
    # A column title of two lines begins above the other titles.
    while first and len(run[first - 1]) == 1 and _begins_above(run[first - 1][0], run[first], steps, em):
        steps.insert(0, middle(run[first]) - middle(run[first - 1]))
        first -= 1
    return run[first : last + 1]


def _begins_above(one: TextPiece, band: Band, steps: Sequence[float], em: float) -> bool:
    step = middle(band) - (one.y0 + one.y1) / 2
    is_above_title = any(one.x0 < other.x1 and one.x1 > other.x0 for other in band[1:])
    return is_above_title and one.x0 > band[0].x1 and step <= min([*steps, 1.65 * em]) * 1.02 + 0.2 * em


def _continues_cell(band: Band, one: TextPiece, em: float) -> bool:
    is_below_cell = any(abs(other.x0 - one.x0) < 0.5 * em for other in band)
    return is_below_cell and not one.text[:1].isupper() and not is_number(one.text)


# --- ruling lines -----------------------------------------------------------------------------------------


def horizontal_and_vertical(rules: Sequence[RulingLine], em: float) -> tuple[list[RulingLine], list[RulingLine]]:
    """Join the segments of each line."""
    thin, reach, shortest = 0.3 * em, 0.5 * em, 0.7 * em
    level = [one for one in rules if one.y1 - one.y0 <= thin and one.x1 - one.x0 > shortest]
    upright = [_transpose(one) for one in rules if one.x1 - one.x0 <= thin and one.y1 - one.y0 > shortest]
    return _join_segments(level, thin, reach), [_transpose(one) for one in _join_segments(upright, thin, reach)]


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
        spans: list[tuple[float, float]] = []
        for one in sorted(line):
            if spans and one.x0 <= spans[-1][1] + reach:
                spans[-1] = spans[-1][0], max(spans[-1][1], one.x1)
            else:
                spans.append((one.x0, one.x1))
        found += [RulingLine(begin, y, end, y) for begin, end in spans]
    return found


def drawn_areas(level: Sequence[RulingLine], upright: Sequence[RulingLine], em: float) -> list[RulingLine]:
    groups = _crossing_groups(level, upright, 0.6 * em)
    areas = [_area_of(lines) for lines in groups if sum(map(_is_level, lines)) >= 2 and not all(map(_is_level, lines))]
    areas += _stacked_areas([lines[0] for lines in groups if len(lines) == 1 and _is_level(lines[0])], em)
    # Smallest first: the largest may be the frame of the page.
    return sorted(areas, key=lambda one: (one.x1 - one.x0) * (one.y1 - one.y0))


def _is_level(line: RulingLine) -> bool:
    return line.x0 != line.x1


def _area_of(lines: Sequence[RulingLine]) -> RulingLine:
    return RulingLine(
        min(one.x0 for one in lines),
        min(one.y0 for one in lines),
        max(one.x1 for one in lines),
        max(one.y1 for one in lines),
    )


def _crossing_groups(
    level: Sequence[RulingLine], upright: Sequence[RulingLine], near: float
) -> list[list[RulingLine]]:  # fmt: skip
    """Group lines that cross, or nearly touch, directly or by way of other lines."""
    # Union-find: each line points to another of its group, and the group's root to itself.
    parents = list(range(len(level) + len(upright)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    for down, column in enumerate(upright, len(level)):
        for across, line in enumerate(level):
            if column.y0 - near <= line.y0 <= column.y1 + near and line.x0 - near <= column.x0 <= line.x1 + near:
                parents[root(down)] = root(across)
    groups: dict[int, list[RulingLine]] = {}
    for at, one in enumerate((*level, *upright)):
        groups.setdefault(root(at), []).append(one)
    return list(groups.values())


def _stacked_areas(level: Sequence[RulingLine], em: float) -> list[RulingLine]:
    """Return areas between lines of equal length: above the head, below it and at the end, as in books."""
    found: list[RulingLine] = []
    used: set[int] = set()
    ordered = sorted(level, key=lambda one: one.y0)
    for at, one in enumerate(ordered):
        if at in used or one.x1 - one.x0 < 6 * em:
            continue
        stack = [one]
        for later, other in enumerate(ordered[at + 1 :], at + 1):
            if later not in used and abs(other.x0 - one.x0) < em and abs(other.x1 - one.x1) < em:
                used.add(later)
                stack.append(other)
        bottom = stack[-1].y0
        if len(stack) >= 3 or (len(stack) == 2 and bottom - one.y0 > 3 * em):
            found.append(RulingLine(one.x0, one.y0, one.x1, bottom))
    return found


def is_inside(one: TextPiece, area: RulingLine) -> bool:
    return area.x0 <= (one.x0 + one.x1) / 2 <= area.x1 and area.y0 <= (one.y0 + one.y1) / 2 <= area.y1


def vertical_lines(upright: Sequence[RulingLine], area: RulingLine, em: float) -> list[float]:
    """Return the x positions of lines along at least 40 % of the area."""
    xs: list[float] = []
    least = 0.4 * (area.y1 - area.y0)
    for one in sorted(upright):
        is_long = min(one.y1, area.y1) - max(one.y0, area.y0) > least
        if is_long and area.x0 - em <= one.x0 <= area.x1 + em and (not xs or one.x0 - xs[-1] > 0.5 * em):
            xs.append(one.x0)
    return xs


def horizontal_lines(level: Sequence[RulingLine], area: RulingLine, em: float) -> list[RulingLine]:
    return [
        one for one in level
        if area.y0 - em <= one.y0 <= area.y1 + em
        and min(one.x1, area.x1) - max(one.x0, area.x0) > 0.1 * (area.x1 - area.x0)
    ]  # fmt: skip
