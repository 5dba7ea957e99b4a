"""Pictures of a page: images of some size, and figures that the structure tree states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from job_handlers.reading.pdf.library import mupdf, pymupdf, round_box
from worker_service.handlers import SAID, Block, Role

_LEAST = 50.0
"""Points. Anything lower or narrower is a sign or an ornament."""
_COVERS_MOST = 0.85
"""Share of the page. A larger picture is its background, or a scan."""
_TEXT_MOST = 200
"""Characters inside. A picture with more is the background of a text."""
_EDGE = 0.11
_TOUCH = 3.0
"""Points between the strips into which some programs cut a picture."""
_IMAGES_MAX = 500
_TREE_DEPTH_MAX = 20

Box = tuple[float, float, float, float]


class StatedFigure(NamedTuple):
    alt: str
    box: Box | None


def with_pictures(
    page: Any, own: Any, blocks: Sequence[Block], text: str, tree: Any, images: Sequence[Box] | None
) -> list[Block]:
    """Return the blocks and pictures in reading order.

    `tree` is the root of the structure tree, or None; `images` are the places of the images, if they are known.
    """
    whole = mupdf.fz_bound_page(page)
    placed = _image_boxes(page) if images is None else images[:_IMAGES_MAX]
    shown = [(max(x0, whole.x0), max(y0, whole.y0), min(x1, whole.x1), min(y1, whole.y1)) for x0, y0, x1, y1 in placed]
    boxes = [one for one in _joined(shown) if _is_picture(one, whole, blocks)]
    figures = _stated_figures(own, tree) if tree is not None else []
    found = [(box, "") for box in boxes]
    if any(one.box for one in figures):
        found = [(one.box, one.alt) for one in figures if one.box and _is_large(one.box)]
    elif len(figures) == len(boxes):
        found = [(box, one.alt) for box, one in zip(boxes, figures, strict=True)]
    made = list(blocks)
    for box, alt in sorted(found):
        at = _place(made, box)
        begin = made[at].begin if at < len(made) else len(text)
        made.insert(at, Block(*round_box(box), begin, begin, Role.PICTURE, style=SAID if figures else 0, alt=alt))
    return made


def _image_boxes(page: Any) -> list[Box]:
    identity = pymupdf.Matrix(1, 1)
    read = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, pymupdf.TEXT_PRESERVE_IMAGES, identity))
    found: list[Box] = []
    block = read.m_internal.first_block
    while block and len(found) < _IMAGES_MAX:
        if block.type == mupdf.FZ_STEXT_BLOCK_IMAGE:
            box = block.bbox
            found.append((box.x0, box.y0, box.x1, box.y1))
        block = block.next
    return found


def _joined(boxes: Sequence[Box]) -> list[Box]:
    found: list[Box] = []
    for box in boxes:
        for at, one in enumerate(found):
            is_beside = min(box[2], one[2]) - max(box[0], one[0]) > -_TOUCH
            if is_beside and min(box[3], one[3]) - max(box[1], one[1]) > -_TOUCH:
                box = min(box[0], one[0]), min(box[1], one[1]), max(box[2], one[2]), max(box[3], one[3])
                del found[at]
                break
        found.append(box)
    return found


def _is_large(box: Box) -> bool:
    return min(box[2] - box[0], box[3] - box[1]) >= _LEAST


def _is_picture(box: Box, whole: Any, blocks: Sequence[Block]) -> bool:
    area = (whole.x1 - whole.x0) * (whole.y1 - whole.y0)
    inside = sum(one.end - one.begin for one in blocks if _is_inside(one, box))
    covers = (box[2] - box[0]) * (box[3] - box[1]) / (area or 1.0)
    is_page_mark = box[3] < _EDGE * whole.y1 or box[1] > (1 - _EDGE) * whole.y1
    return _is_large(box) and covers <= _COVERS_MOST and inside <= _TEXT_MOST and not is_page_mark


def _is_inside(one: Block, box: Box) -> bool:
    return box[0] <= (one.x0 + one.x1) / 2 <= box[2] and box[1] <= (one.y0 + one.y1) / 2 <= box[3]


def _place(blocks: Sequence[Block], box: Box) -> int:
    """Return the index of the first block below the picture in its column, or the one after the last above it."""
    middle = (box[1] + box[3]) / 2
    beside = [(at, one) for at, one in enumerate(blocks) if min(one.x1, box[2]) > max(one.x0, box[0])]
    below = [at for at, one in beside if one.y0 >= middle]
    above = [at + 1 for at, one in beside if one.y0 < middle]
    return min(below, default=max(above, default=len(blocks)))


# --- the structure tree -----------------------------------------------------------------------------------------------


def _stated_figures(own: Any, tree: Any) -> list[StatedFigure]:
    """Return the figures of the page, in their order. Its marked content refers to them by the parent tree."""
    number = own.obj().pdf_dict_gets("StructParents")
    if not number.pdf_is_int():
        return []
    elements = _in_number_tree(tree.pdf_dict_gets("ParentTree"), number.pdf_to_int(), 0)
    found: dict[int, StatedFigure] = {}
    whole, shown = mupdf.FzRect(mupdf.FzRect.Fixed_UNIT), mupdf.FzMatrix()
    mupdf.pdf_page_transform(own, whole, shown)
    seen: set[int] = set()
    for at in range(elements.pdf_array_len() if elements is not None else 0):
        element = _figure_above(elements.pdf_array_get(at), seen)
        if element is not None:
            alt = " ".join(element.pdf_dict_gets("Alt").pdf_to_text_string().split())
            found[element.pdf_to_num()] = StatedFigure(alt, _stated_box(element.pdf_dict_gets("A"), shown))
    return list(found.values())


def _in_number_tree(node: Any, number: int, depth: int) -> Any:
    numbers, kids = node.pdf_dict_gets("Nums"), node.pdf_dict_gets("Kids")
    for at in range(0, numbers.pdf_array_len(), 2):
        if numbers.pdf_array_get(at).pdf_to_int() == number:
            return numbers.pdf_array_get(at + 1)
    for at in range(kids.pdf_array_len() if depth < _TREE_DEPTH_MAX else 0):
        kid = kids.pdf_array_get(at)
        limits = kid.pdf_dict_gets("Limits")
        if limits.pdf_array_get(0).pdf_to_int() <= number <= limits.pdf_array_get(1).pdf_to_int():
            return _in_number_tree(kid, number, depth + 1)
    return None


def _figure_above(element: Any, seen: set[int]) -> Any:
    """Return None if there is none, or if it was seen before."""
    for _ in range(3):
        if (number := element.pdf_to_num()) in seen:
            return None
        seen.add(number)
        if element.pdf_dict_gets("S").pdf_to_name() == "Figure":
            return element
        element = element.pdf_dict_gets("P")
    return None


def _stated_box(attributes: Any, shown: Any) -> Box | None:
    several = [attributes.pdf_array_get(at) for at in range(attributes.pdf_array_len())] or [attributes]
    for one in several:
        box = one.pdf_dict_gets("BBox")
        if box.pdf_array_len() == 4:
            corners = mupdf.fz_transform_rect(box.pdf_to_rect(), shown)
            return corners.x0, corners.y0, corners.x1, corners.y1
    return None
