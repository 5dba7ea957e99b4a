"""Find the regions of tables: between ruling lines, and in runs of lines with gaps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from job_handlers.reading.tables.pieces import Band, RulingLine, TextPiece, is_number, middle
from job_handlers.reading.text_layer import letters_in

_ROW_DISTANCE_MOST = 3.4
"""Between the middles of two rows."""
_ALONE_MOST = 2
_PROSE_CHARACTERS_LEAST = 16


# --- prose ------------------------------------------------------------------------------------------------


def prose_ids(pieces: Sequence[TextPiece], em: float) -> set[int]:
    """Return the ids of running text: lines that end where the next word did not fit."""
    found: set[int] = set()
    middles = [one.y0 + one.y1 for one in pieces]
    for stack in _stacks(pieces, em):
        if len(stack) > 2 and sum([len(one.text) for one in stack]) >= _PROSE_CHARACTERS_LEAST * len(stack):
            for flow in _prose_runs(stack, em):
                if not _are_cells(flow, middles, em):
                    found.update(map(id, flow))
    return found


def _stacks(pieces: Sequence[TextPiece], em: float) -> list[list[TextPiece]]:
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


def _are_cells(flow: Sequence[TextPiece], middles: Sequence[float], em: float) -> bool:
    """Return whether every cell of several lines starts on a line with other pieces."""
    if len(flow) > 12:
        return False
    beside = [
        bisect_right(middles, one.y0 + one.y1 + 0.5 * em) - bisect_left(middles, one.y0 + one.y1 - 0.5 * em) > 1
        for one in flow
    ]
    return any(beside) and not all(beside) and beside == [one.text[:1].isupper() for one in flow]


def _prose_runs(stack: Sequence[TextPiece], em: float) -> Iterator[Sequence[TextPiece]]:
    right = max([one.x1 for one in stack])
    wraps = [_wraps(line, following, right, em) for line, following in pairwise(stack)]
    begin = lowers = 0
    for at, is_wrapped in enumerate([*wraps, False], 1):
        if is_wrapped:
            lowers += not stack[at].text.split(" ", 1)[0][:1].isupper()
            continue
        pairs = at - 1 - begin
        if pairs > 1 and lowers >= (0.55 * pairs if pairs > 3 else pairs - 0.5):
            text = "".join([one.text for one in stack[begin:at]])
            if letters_in(text) > 0.5 * len(text):
                yield stack[begin:at]
        begin, lowers = at, 0


def _wraps(line: TextPiece, following: TextPiece, right: float, em: float) -> bool:
    first = following.text.split(" ", 1)[0]
    width = (following.x1 - following.x0) * (len(first) + 1) / max(len(following.text), 1)
    return line.x1 + width > right - 0.3 * em and line.x0 - following.x0 > -1.2 * em


# --- lines with gaps --------------------------------------------------------------------------------------


def lines_near_gaps(bands: Sequence[Band]) -> list[Band]:
    wide = [at for at, band in enumerate(bands) if len(band) > 1]
    kept: set[int] = set()
    for one, other in pairwise(wide):
        if other - one <= _ALONE_MOST + 1:
            kept.update(range(one - 1, other + _ALONE_MOST + 1))
    return [band for at, band in enumerate(bands) if at in kept]


def table_runs(bands: Sequence[Band], flows: Sequence[TextPiece], em: float) -> list[list[Band]]:
    # Runs may include a few single pieces. `flows` is the prose.
    runs: list[list[Band]] = []
    run: list[Band] = []
    alone = 0
    for band in bands:
        is_far = bool(run) and middle(band) - middle(run[-1]) > _ROW_DISTANCE_MOST * em
        if run and (is_far or alone > _ALONE_MOST or _has_prose_between(run[-1], band, flows)):
            runs.append(run)
            run, alone = [], 0
        run.append(band)
        alone = 0 if len(band) > 1 else alone + 1
    runs.append(run)
    return [kept for one in runs if (kept := _trim(one, em))]


def _has_prose_between(above: Band, below: Band, flows: Sequence[TextPiece]) -> bool:
    if not flows:
        return False
    top, bottom = middle(above), middle(below)
    left = min(above[0].x0, below[0].x0)
    right = max([one.x1 for one in (*above, *below)])
    return any(top < (one.y0 + one.y1) / 2 < bottom and one.x0 < right and one.x1 > left for one in flows)


def _trim(run: list[Band], em: float) -> list[Band]:
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
    is_over = any(one.x0 < other.x1 and one.x1 > other.x0 for other in band[1:])
    return is_over and one.x0 > band[0].x1 and step <= min([*steps, 1.65 * em]) * 1.02 + 0.2 * em


def _continues_cell(band: Band, one: TextPiece, em: float) -> bool:
    over = [other for other in band if abs(other.x0 - one.x0) < 0.5 * em]
    return bool(over) and not one.text[:1].isupper() and not is_number(one.text)


# --- ruling lines -----------------------------------------------------------------------------------------


def horizontal_and_vertical(rules: Sequence[RulingLine], em: float) -> tuple[list[RulingLine], list[RulingLine]]:
    """Join collinear segments."""
    thin, reach = 0.3 * em, 0.5 * em
    level = [one for one in rules if one.y1 - one.y0 <= thin and one.x1 - one.x0 > 0.7 * em]
    upright = [_transpose(one) for one in rules if one.x1 - one.x0 <= thin and one.y1 - one.y0 > 0.7 * em]
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
    areas = [
        RulingLine(min(one.x0 for one in some), min(one.y0 for one in some),
                   max(one.x1 for one in some), max(one.y1 for one in some))
        for some in groups
        if sum(one.x0 != one.x1 for one in some) >= 2 and sum(one.x0 == one.x1 for one in some) >= 1
    ]  # fmt: skip
    areas += _stacked_areas([some[0] for some in groups if len(some) == 1 and some[0].x0 != some[0].x1], em)
    # An area inside another is part of it, unless the other is the page's frame.
    return sorted(areas, key=lambda one: (one.x1 - one.x0) * (one.y1 - one.y0))


def _crossing_groups(
    level: Sequence[RulingLine], upright: Sequence[RulingLine], near: float
) -> list[list[RulingLine]]:  # fmt: skip
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
    return list(members.values())


def _stacked_areas(level: Sequence[RulingLine], em: float) -> list[RulingLine]:
    """Lines above the head, below it and at the end, as in books."""
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
