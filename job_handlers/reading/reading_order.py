"""Reading order of the blocks on a page.

The given order is kept unless it moves up within a column, or jumps between columns and back. Otherwise an X-Y cut
splits the page at gaps and separating lines into columns and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from operator import itemgetter

Box = tuple[float, float, float, float]

BLOCKS_MOST = 400
_RULES_MOST = 1000
_THIN = 0.4
"""Share of the lowest box."""
_TOUCH = 0.2
"""Share of the smaller box by which boxes beside each other may overlap."""


@dataclass(slots=True)
class OrderedPart:
    box: Box
    lines: list[int]
    table: int | None = None


def arrange_blocks(
    blocks: Sequence[Sequence[int]],
    lines: Sequence[Box],
    tables: Sequence[Box],
    of_table: Mapping[int, int],
    *,
    is_given: bool = True,
    rules: Callable[[], Sequence[Box]] = tuple,
) -> list[OrderedPart]:
    """Split blocks where their lines jump to another column.

    The first line of each table (`of_table`) is replaced by the table. `rules` is called only if the order has to be
    computed.
    """
    parts: list[OrderedPart] = []
    met: set[int] = set()
    for block in blocks:
        last: Box | None = None
        for at in block:
            table = of_table.get(at)
            if table is None:
                own = lines[at]
                is_beside = last is not None and (own[0] >= last[2] or own[2] <= last[0])
                if last is None or (is_beside and _is_in_other_column(last, own)):
                    parts.append(OrderedPart(own, [at]))
                else:
                    parts[-1].lines.append(at)
                    # Side by side, as a number and its paragraph, they count as one line.
                    own = _union(last, own) if is_beside else own
                last = own
                continue
            last = None
            if table not in met:
                met.add(table)
                parts.append(OrderedPart(tables[table], [], table))
    for part in parts:
        if len(part.lines) > 1:
            x0, y0, x1, y1 = zip(*[lines[at] for at in part.lines], strict=True)
            part.box = min(x0), min(y0), max(x1), max(y1)
    return [parts[at] for at in block_order([part.box for part in parts], is_given=is_given, rules=rules)]


def _is_in_other_column(last: Box, own: Box) -> bool:
    # The text after a paragraph number is not.
    height = own[3] - own[1]
    is_behind = own[1] < (last[1] + last[3]) / 2 < own[3] and 0 <= own[0] - last[2] < 3 * height
    return not (is_behind and last[2] - last[0] < 4 * height)


def _union(one: Box, other: Box) -> Box:
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def block_order(
    boxes: Sequence[Box], *, is_given: bool = True, rules: Callable[[], Sequence[Box]] = tuple
) -> list[int]:
    """`is_given`: the order of a text layer is trusted more than an OCR engine's."""
    given = list(range(len(boxes)))
    if not 2 < len(boxes) <= BLOCKS_MOST or _is_top_to_bottom(boxes):
        return given
    if not is_given and _has_nested_boxes(boxes):
        return given
    lowest = min(one[3] - one[1] for one in boxes)
    head, body, foot = _split_running_lines(boxes, lowest)
    separators = _separators(rules(), [boxes[at] for at in body], lowest)
    cut_order = _xy_cut([*body, *range(len(boxes), len(boxes) + len(separators))], [*boxes, *separators], lowest)
    read = [*head, *(at for at in cut_order if at < len(boxes)), *foot]
    return read if not is_given or _moves_up_in_column(boxes) or _interleaves_columns(read, boxes) else given


def _has_nested_boxes(boxes: Sequence[Box]) -> bool:
    """No gap shows the order of a box inside another."""
    return any(
        min(a[2], b[2]) - max(a[0], b[0]) > 0.6 * min(a[2] - a[0], b[2] - b[0])
        and min(a[3], b[3]) - max(a[1], b[1]) > 0.6 * min(a[3] - a[1], b[3] - b[1])
        for at, a in enumerate(boxes)
        for b in boxes[at + 1 :]
    )


def _separators(rules: Sequence[Box], boxes: Sequence[Box], lowest: float) -> list[Box]:
    return [
        wall
        for rule in _join_segments(rules, lowest)
        if len(over := [one for one in boxes if one[0] < rule[2] and one[2] > rule[0]]) > 1
        and max(one[0] for one in over) >= min(one[2] for one in over)
        and (wall := _move_into_gap(rule, over, lowest)) is not None
    ]


def _join_segments(rules: Sequence[Box], lowest: float) -> list[Box]:
    lines: list[tuple[Box, Box]] = []
    for one in sorted(one for one in rules if one[3] - one[1] < min(_THIN * lowest, one[2] - one[0]))[:_RULES_MOST]:
        for at, (whole, last) in enumerate(lines):
            if one[0] <= whole[2] + lowest and abs(one[1] - last[1]) < _THIN * lowest:
                lines[at] = _union(whole, one), one
                break
        else:
            lines.append((one, one))
    return [(x0 + lowest / 2, y0, x1 - lowest / 2, y1) for (x0, y0, x1, y1), _ in lines]


def _move_into_gap(rule: Box, over: Sequence[Box], lowest: float) -> Box | None:
    y = (rule[1] + rule[3]) / 2
    above = max((one[3] for one in over if one[1] + one[3] < 2 * y), default=y)
    below = min((one[1] for one in over if one[1] + one[3] >= 2 * y), default=y)
    if above > y + _THIN * lowest or below < y - _THIN * lowest:
        return None
    y = min(max(y, above), below)
    return rule[0], y, rule[2], y


def _split_running_lines(boxes: Sequence[Box], lowest: float) -> tuple[list[int], list[int], list[int]]:
    body = sorted(range(len(boxes)), key=lambda at: boxes[at][1])
    head: list[int] = []
    foot: list[int] = []

    def is_line(at: int) -> bool:
        return boxes[at][3] - boxes[at][1] < 1.6 * lowest

    while len(body) > 2 and is_line(body[0]) and boxes[body[1]][1] - boxes[body[0]][3] > 1.5 * lowest:
        head.append(body.pop(0))
    while len(body) > 2 and is_line(body[-1]):
        if boxes[body[-1]][1] - max(boxes[at][3] for at in body[:-1]) <= 1.5 * lowest:
            break
        foot.insert(0, body.pop())
    return head, body, foot


def _is_top_to_bottom(boxes: Sequence[Box]) -> bool:
    return all(above[3] <= below[1] + 1 for above, below in pairwise(boxes))


def _moves_up_in_column(boxes: Sequence[Box]) -> bool:
    return any(
        later[1] < earlier[1] and later[3] <= earlier[1] + _TOUCH * (earlier[3] - earlier[1])
        and min(later[2], earlier[2]) - max(later[0], earlier[0])
        > 0.5 * min(later[2] - later[0], earlier[2] - earlier[0])
        for at, earlier in enumerate(boxes)
        for later in boxes[at + 1 :]
    )  # fmt: skip


def _interleaves_columns(read: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Return whether the order leaves a column and returns to it, more than once."""
    breaks = 0
    for one, following in pairwise(read):
        a, b = boxes[one], boxes[following]
        is_below = b[1] >= a[3] - 1 and min(a[2], b[2]) - max(a[0], b[0]) > 0
        between = range(one + 1, following)
        breaks += is_below and any(
            (boxes[at][0] >= max(a[2], b[2]) - 1 or boxes[at][2] <= min(a[0], b[0]) + 1)
            and boxes[at][1] < b[3] and boxes[at][3] > a[1]
            for at in between
        )  # fmt: skip
    return breaks > 1


def _xy_cut(some: list[int], boxes: Sequence[Box], lowest: float) -> list[int]:
    if len(some) < 2:
        return some
    columns = _split_at_gaps(some, boxes, 0)
    if len(columns) > 1:
        if len(columns) == 2 and _is_sidebar(columns[0], columns[1], boxes, lowest):
            columns.reverse()
        return [one for column in columns for one in _xy_cut(column, boxes, lowest)]
    storeys = _split_at_gaps(some, boxes, 1)
    if len(storeys) < 2:
        return sorted(some, key=lambda at: (boxes[at][1], boxes[at][0]))
    # Adjacent rows with the same vertical gap are columns.
    groups: list[list[int]] = []
    for row in storeys:
        if groups and len(_split_at_gaps([*groups[-1], *row], boxes, 0)) > 1:
            groups[-1] += row
        else:
            groups.append(list(row))
    return [one for group in groups for one in _xy_cut(group, boxes, lowest)]


def _is_sidebar(left: Sequence[int], right: Sequence[int], boxes: Sequence[Box], lowest: float) -> bool:
    """Return whether the left column, much narrower, is read after the main text. Single lines are labels."""
    wide, narrow = (max(boxes[at][2] for at in some) - min(boxes[at][0] for at in some) for some in (right, left))
    return narrow < 0.6 * wide and max(boxes[at][3] - boxes[at][1] for at in left) > 3 * lowest


def _split_at_gaps(some: Sequence[int], boxes: Sequence[Box], axis: int) -> list[list[int]]:
    parts: list[list[int]] = []
    end = -inf
    for begin, own_end, one in sorted([(boxes[at][axis], boxes[at][axis + 2], at) for at in some], key=_begin):
        if begin < end - min(2.0, _TOUCH * (own_end - begin)):
            parts[-1].append(one)
        else:
            parts.append([one])
        end = max(end, own_end)
    return parts


_begin = itemgetter(0)
