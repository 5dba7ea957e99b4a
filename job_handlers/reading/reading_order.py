"""Reading order of the blocks on a page.

The given order is kept unless it moves up within a column, or jumps between columns and back. Otherwise an X-Y cut
splits the page at gaps and separating lines into columns and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

Box = tuple[float, float, float, float]
_ACROSS, _DOWN = 0, 1  # Indices of x0 and y0 in a box; x1 and y1 are two places further.

BLOCKS_MOST = 400
_RULES_MOST = 1000
_THIN = 0.4  # Share of the lowest box's height; a thicker rule is an area.
_RUNNING_LINE_HEIGHT, _RUNNING_LINE_DISTANCE = 1.6, 1.5
"""Shares of the lowest box's height: how high a running head is at most, and how far from the text at least."""
_NESTED_SHARE = 0.6
_TOUCH = 0.2  # Share of the smaller box by which boxes beside each other may overlap.


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
    """Split blocks where their lines jump to another column, and put the parts in reading order.

    `blocks` are numbers of lines; `of_table` maps lines to their table, which replaces the first of them. `rules` is
    called only if the order has to be computed.
    """
    parts: list[OrderedPart] = []
    placed_tables: set[int] = set()
    for block in blocks:
        last: Box | None = None
        for at in block:
            table = of_table.get(at)
            if table is not None:
                last = None
                if table not in placed_tables:
                    placed_tables.add(table)
                    parts.append(OrderedPart(tables[table], [], table))
                continue
            line = lines[at]
            is_beside = last is not None and (line[0] >= last[2] or line[2] <= last[0])
            if last is None or (is_beside and _is_in_other_column(last, line)):
                parts.append(OrderedPart(line, [at]))
                last = line
            else:
                parts[-1].lines.append(at)
                # Side by side, as a number and its paragraph, they count as one line.
                last = _union(last, line) if is_beside else line
    for part in parts:
        if len(part.lines) > 1:
            x0, y0, x1, y1 = zip(*[lines[at] for at in part.lines], strict=True)
            part.box = min(x0), min(y0), max(x1), max(y1)
    return [parts[at] for at in block_order([part.box for part in parts], is_given=is_given, rules=rules)]


def _is_in_other_column(last: Box, line: Box) -> bool:
    """Return whether the line beside `last` is more than the text after a paragraph number."""
    height = line[3] - line[1]
    is_close_behind = line[1] < (last[1] + last[3]) / 2 < line[3] and 0 <= line[0] - last[2] < 3 * height
    may_be_number = last[2] - last[0] < 4 * height
    return not (is_close_behind and may_be_number)


def _union(one: Box, other: Box) -> Box:
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def block_order(
    boxes: Sequence[Box], *, is_given: bool = True, rules: Callable[[], Sequence[Box]] = tuple
) -> list[int]:
    """`is_given`: the order is that of a text layer, which is trusted more than an OCR engine's."""
    given = list(range(len(boxes)))
    if not 2 < len(boxes) <= BLOCKS_MOST or _is_top_to_bottom(boxes):
        return given
    if not is_given and _has_nested_boxes(boxes):
        return given
    lowest = min(one[3] - one[1] for one in boxes)
    head, body, foot = _split_running_lines(boxes, lowest)
    separators = _separators(rules(), [boxes[at] for at in body], lowest)
    cut_order = _xy_cut([*body, *range(len(boxes), len(boxes) + len(separators))], [*boxes, *separators], lowest)
    # Numbers beyond the boxes are separators.
    order = [*head, *(at for at in cut_order if at < len(boxes)), *foot]
    if not is_given:
        return order
    return order if _moves_up_in_column(boxes) or _interleaves_columns(order, boxes) else given


def _has_nested_boxes(boxes: Sequence[Box]) -> bool:
    """Return whether a box is mostly inside another, so that no gap shows their order."""
    return any(
        min(a[2], b[2]) - max(a[0], b[0]) > _NESTED_SHARE * min(a[2] - a[0], b[2] - b[0])
        and min(a[3], b[3]) - max(a[1], b[1]) > _NESTED_SHARE * min(a[3] - a[1], b[3] - b[1])
        for at, a in enumerate(boxes)
        for b in boxes[at + 1 :]
    )


def _separators(rules: Sequence[Box], boxes: Sequence[Box], lowest: float) -> list[Box]:
    """Return the horizontal rules across several columns, moved into the gaps between boxes."""
    found: list[Box] = []
    for rule in _join_segments(rules, lowest):
        crossed = [one for one in boxes if one[0] < rule[2] and one[2] > rule[0]]
        are_columns = len(crossed) > 1 and max(one[0] for one in crossed) >= min(one[2] for one in crossed)
        separator = _move_into_gap(rule, crossed, lowest) if are_columns else None
        if separator is not None:
            found.append(separator)
    return found


def _join_segments(rules: Sequence[Box], lowest: float) -> list[Box]:
    thickest = _THIN * lowest
    horizontal = sorted(one for one in rules if one[3] - one[1] < min(thickest, one[2] - one[0]))
    # Each line so far, with its last segment.
    lines: list[tuple[Box, Box]] = []
    for segment in horizontal[:_RULES_MOST]:
        for at, (line, last) in enumerate(lines):
            if segment[0] <= line[2] + lowest and abs(segment[1] - last[1]) < thickest:
                lines[at] = _union(line, segment), segment
                break
        else:
            lines.append((segment, segment))
    # Shortened, so that a line that reaches a little into the next column does not cross it.
    return [(x0 + lowest / 2, y0, x1 - lowest / 2, y1) for (x0, y0, x1, y1), _ in lines]


def _move_into_gap(rule: Box, crossed: Sequence[Box], lowest: float) -> Box | None:
    """Return the rule between the boxes above and below it; None if it is within a box."""
    y = (rule[1] + rule[3]) / 2
    above = max((one[3] for one in crossed if one[1] + one[3] < 2 * y), default=y)
    below = min((one[1] for one in crossed if one[1] + one[3] >= 2 * y), default=y)
    if above > y + _THIN * lowest or below < y - _THIN * lowest:
        return None
    y = min(max(y, above), below)
    return rule[0], y, rule[2], y


def _split_running_lines(boxes: Sequence[Box], lowest: float) -> tuple[list[int], list[int], list[int]]:
    """Return the boxes of running heads, of the body, and of running feet."""
    body = sorted(range(len(boxes)), key=lambda at: boxes[at][1])
    head: list[int] = []
    foot: list[int] = []
    highest, distance = _RUNNING_LINE_HEIGHT * lowest, _RUNNING_LINE_DISTANCE * lowest

    def is_line(at: int) -> bool:
        return boxes[at][3] - boxes[at][1] < highest

    while len(body) > 2 and is_line(body[0]) and boxes[body[1]][1] - boxes[body[0]][3] > distance:
        head.append(body.pop(0))
    while len(body) > 2 and is_line(body[-1]):
        if boxes[body[-1]][1] - max(boxes[at][3] for at in body[:-1]) <= distance:
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


def _interleaves_columns(order: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Return whether the given order leaves a column and returns to it, more than once. `order` is the computed one."""
    interruptions = 0
    for one, following in pairwise(order):
        a, b = boxes[one], boxes[following]
        is_below = b[1] >= a[3] - 1 and min(a[2], b[2]) - max(a[0], b[0]) > 0
        # Boxes that the given order has between the two, beside them.
        interruptions += is_below and any(
            (box[0] >= max(a[2], b[2]) - 1 or box[2] <= min(a[0], b[0]) + 1) and box[1] < b[3] and box[3] > a[1]
            for box in boxes[one + 1 : following]
        )
    return interruptions > 1


def _xy_cut(numbers: list[int], boxes: Sequence[Box], lowest: float) -> list[int]:
    """Return the numbers of boxes in reading order."""
    if len(numbers) < 2:
        return numbers
    columns = _split_at_gaps(numbers, boxes, _ACROSS)
    if len(columns) > 1:
        if len(columns) == 2 and _is_sidebar(columns[0], columns[1], boxes, lowest):
            columns.reverse()
        return [at for column in columns for at in _xy_cut(column, boxes, lowest)]
    rows = _split_at_gaps(numbers, boxes, _DOWN)
    if len(rows) < 2:
        return sorted(numbers, key=lambda at: (boxes[at][1], boxes[at][0]))
    # Adjacent rows with the same vertical gap are columns.
    groups: list[list[int]] = []
    for row in rows:
        if groups and len(_split_at_gaps([*groups[-1], *row], boxes, _ACROSS)) > 1:
            groups[-1] += row
        else:
            groups.append(list(row))
    return [at for group in groups for at in _xy_cut(group, boxes, lowest)]


def _is_sidebar(left: Sequence[int], right: Sequence[int], boxes: Sequence[Box], lowest: float) -> bool:
    """Return whether the left column is read last: it is much narrower, and not only labels of one line."""
    left_width, right_width = (
        max(boxes[at][2] for at in column) - min(boxes[at][0] for at in column) for column in (left, right)
    )
    return left_width < 0.6 * right_width and max(boxes[at][3] - boxes[at][1] for at in left) > 3 * lowest


def _split_at_gaps(numbers: Sequence[int], boxes: Sequence[Box], axis: int) -> list[list[int]]:
    parts: list[list[int]] = []
    parts_end = -inf
    for at in sorted(numbers, key=lambda at: boxes[at][axis]):
        begin, end = boxes[at][axis], boxes[at][axis + 2]
        if begin < parts_end - min(2.0, _TOUCH * (end - begin)):
            parts[-1].append(at)
        else:
            parts.append([at])
        parts_end = max(parts_end, end)
    return parts
