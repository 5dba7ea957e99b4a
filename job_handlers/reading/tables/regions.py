"""Find the regions of tables: between ruling lines, and in runs of lines with gaps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from job_handlers.reading.layout import bounds_of
from job_handlers.reading.tables.text_pieces import Area, Band, RulingLine, TextPiece, is_number, middle
from job_handlers.reading.text_layer import letters_in

_ROW_DISTANCE_MOST = 3.4  # Em between the middles of two rows.
_LINES_BETWEEN_MOST = 2  # Lines without gaps between two lines of a table.
_PROSE_CHARACTERS_LEAST = 16  # Mean length of the lines of prose.
_SMALL_LETTERS_IN_PROSE_SHARE = 0.55  # Share of the lines after a wrapped line that begin with a small letter.
_CELL_LINES_MOST = 12  # A run of more lines is no column of cells.
# In em. Lines further apart are not of one cell, or of one column title.
_CELL_STEP_MOST, _TITLE_STEP_MOST = 1.6, 1.65
_CROSSING_DISTANCE_MOST = 0.6  # In em. Lines nearer to each other cross.
_STACKED_WIDTH_LEAST, _STACKED_HEIGHT_LEAST = 6, 3  # In em. The height is required only of areas with two lines.


# --- prose ------------------------------------------------------------------------------------------------


def prose_ids(pieces: Sequence[TextPiece], em: float) -> set[int]:
    """Return the `id()`s of pieces of running text: lines that end where the next word did not fit."""
    ids: set[int] = set()
    # Twice the middles, to save a division for each.
    double_middles = [piece.y0 + piece.y1 for piece in pieces]
    for stack in _stacks(pieces, em):
        if len(stack) > 2 and sum([len(piece.text) for piece in stack]) >= _PROSE_CHARACTERS_LEAST * len(stack):
            for run in _prose_runs(stack, em):
                if not _are_cells(run, double_middles, em):
                    ids.update(map(id, run))
    return ids


def _stacks(pieces: Sequence[TextPiece], em: float) -> list[list[TextPiece]]:
    """Group pieces that are below each other, as in a column of text. `pieces` are ordered from top to bottom."""
    stacks: list[list[TextPiece]] = []
    growing_stacks: list[list[TextPiece]] = []
    for piece in pieces:
        x0, y0 = piece.x0, piece.y0
        top_from, top_before = y0 - 2.2 * em, y0 - 0.5 * em
        nearest_stack, nearest_distance = None, 2.6 * em
        for stack in growing_stacks:
            last = stack[-1]
            if top_from <= last.y0 < top_before and x0 < last.x1 and abs(x0 - last.x0) < nearest_distance:
                nearest_stack, nearest_distance = stack, abs(x0 - last.x0)
        if nearest_stack is None:
            # A stack that ended far above gets no more lines.
            growing_stacks = [stack for stack in growing_stacks if stack[-1].y1 > y0 - 4 * em]
            growing_stacks.append([piece])
            stacks.append(growing_stacks[-1])
        else:
            nearest_stack.append(piece)
    return stacks


def _are_cells(lines: Sequence[TextPiece], double_middles: Sequence[float], em: float) -> bool:
    """Return whether the lines with pieces beside them are those that begin with a capital letter, as cells do."""
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
    right = max([line.x1 for line in stack])
    wraps = [_is_wrapped(line, following, right, em) for line, following in pairwise(stack)]
    begin = small_letter_count = 0
    for following, is_wrapped in enumerate([*wraps, False], 1):
        if is_wrapped:
            small_letter_count += not stack[following].text[:1].isupper()
            continue
        wrapped_count = following - 1 - begin
        # All of two or three wrapped lines, or somewhat more than half of a greater number.
        small_letters_least = _SMALL_LETTERS_IN_PROSE_SHARE * wrapped_count if wrapped_count > 3 else wrapped_count
        if wrapped_count > 1 and small_letter_count >= small_letters_least:
            text = "".join([line.text for line in stack[begin:following]])
            if letters_in(text) > 0.5 * len(text):
                yield stack[begin:following]
        begin, small_letter_count = following, 0


def _is_wrapped(line: TextPiece, following: TextPiece, right: float, em: float) -> bool:
    """Return whether the next line's first word had no room before the right edge."""
    first_word = following.text.split(" ", 1)[0]
    width = (following.x1 - following.x0) * (len(first_word) + 1) / max(len(following.text), 1)
    is_indented = following.x0 - line.x0 >= 1.2 * em
    return line.x1 + width > right - 0.3 * em and not is_indented


# --- lines with gaps --------------------------------------------------------------------------------------


def lines_near_gaps(bands: Sequence[Band]) -> list[Band]:
    """Return the lines with gaps that are near each other, and the lines between and beside them."""
    with_gaps = [at for at, band in enumerate(bands) if len(band) > 1]
    near: set[int] = set()
    for above, below in pairwise(with_gaps):
        if below - above <= _LINES_BETWEEN_MOST + 1:
            # The line above may begin a column title, those below may continue a cell.
            near.update(range(above - 1, below + _LINES_BETWEEN_MOST + 1))
    return [band for at, band in enumerate(bands) if at in near]


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
    right = max([piece.x1 for piece in (*above, *below)])
    return any(top < (piece.y0 + piece.y1) / 2 < bottom and piece.x0 < right and piece.x1 > left for piece in prose)


def _trim(run: list[Band], em: float) -> list[Band]:
    """Drop the single pieces at both ends, except those that belong to a cell beside them."""
    with_gaps = [at for at, band in enumerate(run) if len(band) > 1]
    if len(with_gaps) < 2:
        return []
    first, last = with_gaps[0], with_gaps[-1]
    steps = [middle(run[at + 1]) - middle(run[at]) for at in range(first, last)]
    while (
        last + 1 < len(run)
        and _continues_cell(run[last], run[last + 1][0], em)
        and middle(run[last + 1]) - middle(run[last]) <= min([*steps, _CELL_STEP_MOST * em]) * 1.05
    ):
        last += 1
    # A column title of two lines begins above the other titles.
    while first and len(run[first - 1]) == 1 and _begins_title(run[first - 1][0], run[first], steps, em):
        steps.insert(0, middle(run[first]) - middle(run[first - 1]))
        first -= 1
    return run[first : last + 1]


def _begins_title(piece: TextPiece, band: Band, steps: Sequence[float], em: float) -> bool:
    step = middle(band) - (piece.y0 + piece.y1) / 2
    is_above_title = any(piece.x0 < other.x1 and piece.x1 > other.x0 for other in band[1:])
    return is_above_title and piece.x0 > band[0].x1 and step <= min([*steps, _TITLE_STEP_MOST * em]) * 1.02 + 0.2 * em


def _continues_cell(band: Band, piece: TextPiece, em: float) -> bool:
    is_below_cell = any(abs(other.x0 - piece.x0) < 0.5 * em for other in band)
    return is_below_cell and not piece.text[:1].isupper() and not is_number(piece.text)


# --- ruling lines -----------------------------------------------------------------------------------------


def horizontal_and_vertical(rules: Sequence[RulingLine], em: float) -> tuple[list[RulingLine], list[RulingLine]]:
    """Return the thin rules of both directions, with the segments of each line joined."""
    thin, reach, shortest = 0.3 * em, 0.5 * em, 0.7 * em
    horizontal = [rule for rule in rules if rule.y1 - rule.y0 <= thin and rule.x1 - rule.x0 > shortest]
    vertical = [_transpose(rule) for rule in rules if rule.x1 - rule.x0 <= thin and rule.y1 - rule.y0 > shortest]
    return _join_segments(horizontal, thin, reach), [_transpose(rule) for rule in _join_segments(vertical, thin, reach)]


def _transpose(rule: RulingLine) -> RulingLine:
    return RulingLine(rule.y0, rule.x0, rule.y1, rule.x1)


def _join_segments(segments: Sequence[RulingLine], thin: float, reach: float) -> list[RulingLine]:
    rows: list[list[RulingLine]] = []
    for segment in sorted(segments, key=lambda segment: segment.y0 + segment.y1):  # By their double middles.
        if rows and (segment.y0 + segment.y1) - (rows[-1][0].y0 + rows[-1][0].y1) <= 2 * thin:
            rows[-1].append(segment)
        else:
            rows.append([segment])
    joined: list[RulingLine] = []
    for row in rows:
        y = sum(segment.y0 + segment.y1 for segment in row) / (2 * len(row))
        spans: list[tuple[float, float]] = []
        for segment in sorted(row):
            if spans and segment.x0 <= spans[-1][1] + reach:
                spans[-1] = spans[-1][0], max(spans[-1][1], segment.x1)
            else:
                spans.append((segment.x0, segment.x1))
        joined += [RulingLine(begin, y, end, y) for begin, end in spans]
    return joined


def drawn_areas(horizontal: Sequence[RulingLine], vertical: Sequence[RulingLine], em: float) -> list[Area]:
    areas: list[Area] = []
    single_lines: list[RulingLine] = []
    for group in _crossing_groups(horizontal, vertical, _CROSSING_DISTANCE_MOST * em):
        horizontal_count = sum(rule.x0 < rule.x1 for rule in group)
        vertical_count = len(group) - horizontal_count
        if horizontal_count >= 2 and vertical_count > 0:
            areas.append(Area(*bounds_of(group)))
        elif horizontal_count == 1 and vertical_count == 0:
            single_lines += group
    areas += _stacked_areas(single_lines, em)
    # The largest last, because it may be the frame of the page.
    return sorted(areas, key=lambda area: (area.x1 - area.x0) * (area.y1 - area.y0))


def _crossing_groups(
    horizontal: Sequence[RulingLine], vertical: Sequence[RulingLine], near: float
) -> list[list[RulingLine]]:  # fmt: skip
    """Group lines that cross, or nearly touch, directly or by way of other lines."""
    # Union-find: each line points to another of its group, and the group's root to itself.
    parents = list(range(len(horizontal) + len(vertical)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    for vertical_index, wall in enumerate(vertical, len(horizontal)):
        for horizontal_index, line in enumerate(horizontal):
            if wall.y0 - near <= line.y0 <= wall.y1 + near and line.x0 - near <= wall.x0 <= line.x1 + near:
                parents[root(vertical_index)] = root(horizontal_index)
    group_of_root: dict[int, list[RulingLine]] = {}
    for at, rule in enumerate((*horizontal, *vertical)):
        group_of_root.setdefault(root(at), []).append(rule)
    return list(group_of_root.values())


def _stacked_areas(horizontal: Sequence[RulingLine], em: float) -> list[Area]:
    """Return areas between lines of equal length: above the head, below it and at the end, as in books."""
    areas: list[Area] = []
    used: set[int] = set()
    from_top = sorted(horizontal, key=lambda rule: rule.y0)
    for at, top in enumerate(from_top):
        if at in used or top.x1 - top.x0 < _STACKED_WIDTH_LEAST * em:
            continue
        line_count, bottom = 1, top.y0
        for later, rule in enumerate(from_top[at + 1 :], at + 1):
            if later not in used and abs(rule.x0 - top.x0) < em and abs(rule.x1 - top.x1) < em:
                used.add(later)
                line_count, bottom = line_count + 1, rule.y0
        if line_count >= 3 or (line_count == 2 and bottom - top.y0 > _STACKED_HEIGHT_LEAST * em):
            areas.append(Area(top.x0, top.y0, top.x1, bottom))
    return areas


def is_inside(piece: TextPiece, area: Area) -> bool:
    return area.x0 <= (piece.x0 + piece.x1) / 2 <= area.x1 and area.y0 <= (piece.y0 + piece.y1) / 2 <= area.y1


def wall_positions(vertical: Sequence[RulingLine], area: Area, em: float) -> list[float]:
    """Return the x of rules along at least 40 % of the area's height."""
    positions: list[float] = []
    length_least = 0.4 * (area.y1 - area.y0)
    for rule in sorted(vertical):
        is_long = min(rule.y1, area.y1) - max(rule.y0, area.y0) > length_least
        is_new = not positions or rule.x0 - positions[-1] > 0.5 * em
        if is_long and is_new and area.x0 - em <= rule.x0 <= area.x1 + em:
            positions.append(rule.x0)
    return positions


def horizontal_lines(horizontal: Sequence[RulingLine], area: Area, em: float) -> list[RulingLine]:
    return [
        rule for rule in horizontal
        if area.y0 - em <= rule.y0 <= area.y1 + em
        and min(rule.x1, area.x1) - max(rule.x0, area.x0) > 0.1 * (area.x1 - area.x0)
    ]  # fmt: skip
