"""Reading order of the blocks on a page.

The given order is kept unless it moves up within a column, or jumps between columns and back. Otherwise an X-Y cut
splits the page at gaps and separating lines into columns and rows. The line height is that of the lowest box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf

from job_handlers.reading.layout import Box

_ACROSS, _DOWN = 0, 1  # Indices of x0 and y0 in a box; x1 and y1 are two places further.

BLOCKS_MOST = 400
_RULES_MOST = 1000
_THIN = 0.4  # In line heights. A thicker rule is an area.
_RUNNING_LINE_HEIGHT_MOST, _RUNNING_LINE_DISTANCE_LEAST = 1.6, 1.5  # In line heights.
_SIDEBAR_WIDTH_MOST = 0.6  # Share of the main text's width.
_SIDEBAR_HEIGHT_LEAST = 3  # In line heights, of its highest box.
_NESTED_SHARE = 0.6  # Of the smaller box's width and height, above which it is inside the other.
_TOUCH = 0.2  # Share of a box by which the box before it may overlap it, and yet is separate.


@dataclass(slots=True)
class OrderedPart:
    box: Box
    lines: list[int]
    table: int | None = None


def arrange_blocks(
    blocks: Sequence[Sequence[int]],
    lines: Sequence[Box],
    tables: Sequence[Box],
    table_of_line: Mapping[int, int],
    *,
    is_from_author: bool = True,
    find_rules: Callable[[], Sequence[Box]] = tuple,
) -> list[OrderedPart]:
    """Split blocks where their lines jump to another column, and put the parts in reading order.

    `blocks` are numbers of lines; `table_of_line` maps lines to their table, which replaces the first of them. A text
    layer's order, `is_from_author`, is trusted more than an OCR engine's. `find_rules` is called only to compute the
    order.
    """
    parts: list[OrderedPart] = []
    placed_tables: set[int] = set()
    for block in blocks:
        last: Box | None = None
        for at in block:
            table = table_of_line.get(at)
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
                # A number and the line beside it count as one line.
                last = _union(last, line) if is_beside else line
    for part in parts:
        if len(part.lines) > 1:
            x0, y0, x1, y1 = zip(*[lines[at] for at in part.lines], strict=True)
            part.box = min(x0), min(y0), max(x1), max(y1)
    order = block_order([part.box for part in parts], is_from_author=is_from_author, find_rules=find_rules)
    return [parts[at] for at in order]


def _is_in_other_column(last: Box, line: Box) -> bool:
    """Return False if the line beside `last` is the text after a paragraph number."""
    height = line[3] - line[1]
    is_close_behind = line[1] < (last[1] + last[3]) / 2 < line[3] and 0 <= line[0] - last[2] < 3 * height
    may_be_number = last[2] - last[0] < 4 * height
    return not (is_close_behind and may_be_number)


def _union(box: Box, other: Box) -> Box:
    return min(box[0], other[0]), min(box[1], other[1]), max(box[2], other[2]), max(box[3], other[3])


def block_order(
    boxes: Sequence[Box], *, is_from_author: bool = True, find_rules: Callable[[], Sequence[Box]] = tuple
) -> list[int]:
    original = list(range(len(boxes)))
    if not 2 < len(boxes) <= BLOCKS_MOST or _is_top_to_bottom(boxes):
        return original
    if not is_from_author and _has_nested_boxes(boxes):
        return original
    line_height = min(box[3] - box[1] for box in boxes)
    head, body, foot = _split_running_lines(boxes, line_height)
    separators = _separators(find_rules(), [boxes[at] for at in body], line_height)
    cut_order = _xy_cut([*body, *range(len(boxes), len(boxes) + len(separators))], [*boxes, *separators], line_height)
    # Separators only guide the cut: their numbers follow those of the boxes.
    order = [*head, *(at for at in cut_order if at < len(boxes)), *foot]
    if not is_from_author:
        return order
    return order if _moves_up_in_column(boxes) or _interleaves_columns(order, boxes) else original


def _has_nested_boxes(boxes: Sequence[Box]) -> bool:
    """Return whether a box is mostly inside another, so that no gap shows their order."""
    return any(_is_nested(box, other) for box, other in combinations(boxes, 2))


def _is_nested(box: Box, other: Box) -> bool:
    (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = box, other
    is_beside = min(ax1, bx1) - max(ax0, bx0) <= _NESTED_SHARE * min(ax1 - ax0, bx1 - bx0)
    is_below = min(ay1, by1) - max(ay0, by0) <= _NESTED_SHARE * min(ay1 - ay0, by1 - by0)
    return not (is_beside or is_below)


def _separators(rules: Sequence[Box], boxes: Sequence[Box], line_height: float) -> list[Box]:
    """Return the horizontal rules across several columns, moved into the gaps between boxes."""
    separators: list[Box] = []
    for rule in _join_segments(rules, line_height):
        crossed = [box for box in boxes if box[0] < rule[2] and box[2] > rule[0]]
        are_columns = len(crossed) > 1 and max(x0 for x0, _, _, _ in crossed) >= min(x1 for _, _, x1, _ in crossed)
        separator = _move_into_gap(rule, crossed, line_height) if are_columns else None
        if separator is not None:
            separators.append(separator)
    return separators


def _join_segments(rules: Sequence[Box], line_height: float) -> list[Box]:
    thickest = _THIN * line_height
    horizontal = sorted((x0, y0, x1, y1) for x0, y0, x1, y1 in rules if y1 - y0 < min(thickest, x1 - x0))
    lines_and_last_segments: list[tuple[Box, Box]] = []
    for segment in horizontal[:_RULES_MOST]:
        for at, (line, last) in enumerate(lines_and_last_segments):
            if segment[0] <= line[2] + line_height and abs(segment[1] - last[1]) < thickest:
                lines_and_last_segments[at] = _union(line, segment), segment
                break
        else:
            lines_and_last_segments.append((segment, segment))
    # Shorten them, so that a line that reaches a little into the next column does not cross it.
    return [(x0 + line_height / 2, y0, x1 - line_height / 2, y1) for (x0, y0, x1, y1), _ in lines_and_last_segments]


def _move_into_gap(rule: Box, crossed: Sequence[Box], line_height: float) -> Box | None:
    """Return the rule between the boxes above and below it; None if it is within a box."""
    y = (rule[1] + rule[3]) / 2
    above = max((box[3] for box in crossed if box[1] + box[3] < 2 * y), default=y)
    below = min((box[1] for box in crossed if box[1] + box[3] >= 2 * y), default=y)
    if above > y + _THIN * line_height or below < y - _THIN * line_height:
        return None
    y = min(max(y, above), below)
    return rule[0], y, rule[2], y


def _split_running_lines(boxes: Sequence[Box], line_height: float) -> tuple[list[int], list[int], list[int]]:
    """Return the boxes of running heads, of the body, and of running feet."""
    body = sorted(range(len(boxes)), key=lambda at: boxes[at][1])
    head: list[int] = []
    foot: list[int] = []
    height_most = _RUNNING_LINE_HEIGHT_MOST * line_height
    distance_least = _RUNNING_LINE_DISTANCE_LEAST * line_height

    def is_line(at: int) -> bool:
        return boxes[at][3] - boxes[at][1] < height_most

    while len(body) > 2 and is_line(body[0]) and boxes[body[1]][1] - boxes[body[0]][3] > distance_least:
        head.append(body.pop(0))
    while len(body) > 2 and is_line(body[-1]):
        if boxes[body[-1]][1] - max(boxes[at][3] for at in body[:-1]) <= distance_least:
            break
        foot.insert(0, body.pop())
    return head, body, foot


def _is_top_to_bottom(boxes: Sequence[Box]) -> bool:
    return all(above[3] <= below[1] + 1 for above, below in pairwise(boxes))


def _moves_up_in_column(boxes: Sequence[Box]) -> bool:
    return any(_is_above_in_column(later, earlier) for earlier, later in combinations(boxes, 2))


def _is_above_in_column(upper: Box, lower: Box) -> bool:
    (ux0, uy0, ux1, uy1), (lx0, ly0, lx1, ly1) = upper, lower
    if uy0 >= ly0 or uy1 > ly0 + _TOUCH * (ly1 - ly0):
        return False
    return min(ux1, lx1) - max(ux0, lx0) > 0.5 * min(ux1 - ux0, lx1 - lx0)


def _interleaves_columns(order: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Return whether the given order leaves a column and returns to it, more than once. `order` is the computed one."""
    interruptions = 0
    for at, following in pairwise(order):
        x0, y0, x1, y1 = boxes[at]
        next_x0, next_y0, next_x1, next_y1 = boxes[following]
        left, right = min(x0, next_x0), max(x1, next_x1)
        is_below = next_y0 >= y1 - 1 and min(x1, next_x1) - max(x0, next_x0) > 0
        # Boxes beside these two that the given order puts between them.
        interruptions += is_below and any(
            (box[0] >= right - 1 or box[2] <= left + 1) and box[1] < next_y1 and box[3] > y0
            for box in boxes[at + 1 : following]
        )
    return interruptions > 1


def _xy_cut(numbers: list[int], boxes: Sequence[Box], line_height: float) -> list[int]:
    """Return the numbers of boxes in reading order."""
    if len(numbers) < 2:
        return numbers
    columns = _split_at_gaps(numbers, boxes, _ACROSS)
    if len(columns) > 1:
        if len(columns) == 2 and _is_sidebar(columns[0], columns[1], boxes, line_height):
            columns.reverse()
        return [at for column in columns for at in _xy_cut(column, boxes, line_height)]
    rows = _split_at_gaps(numbers, boxes, _DOWN)
    if len(rows) < 2:
        return sorted(numbers, key=lambda at: (boxes[at][1], boxes[at][0]))
    # Adjacent rows that share a vertical gap are parts of columns.
    groups: list[list[int]] = []
    for row in rows:
        if groups and len(_split_at_gaps([*groups[-1], *row], boxes, _ACROSS)) > 1:
            groups[-1] += row
        else:
            groups.append(list(row))
    return [at for group in groups for at in _xy_cut(group, boxes, line_height)]


def _is_sidebar(left: Sequence[int], right: Sequence[int], boxes: Sequence[Box], line_height: float) -> bool:
    """Return whether the left column is read last: it is much narrower, and not only labels of one line."""
    left_width, right_width = (
        max(boxes[at][2] for at in column) - min(boxes[at][0] for at in column) for column in (left, right)
    )
    highest = max(boxes[at][3] - boxes[at][1] for at in left)
    return left_width < _SIDEBAR_WIDTH_MOST * right_width and highest > _SIDEBAR_HEIGHT_LEAST * line_height


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
