"""Pictures of a page: images of some size, and figures that the structure tree states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from job_handlers.reading.layout import Box
from job_handlers.reading.pdf.library import mupdf, pdf_space_to_shown_page, pymupdf, round_box_to_tenths
from worker_service.handlers import STATED_BY_FILE, Block, Role

_SIDE_POINTS_MIN = 50.0  # Anything lower or narrower is a sign or an ornament.
_PAGE_SHARE_MAX = 0.85  # A larger picture is the background of the page, or a scan.
_CHARACTERS_MAX = 200  # A picture with more text inside is the background of the text.
_MARGIN = 0.11  # Share of the page's height at its top and bottom, where pictures are logos of headers and footers.
_STRIP_GAP_POINTS_MAX = 3.0  # Between the strips into which some programs cut a picture.
_IMAGES_MAX = 500
_TREE_DEPTH_MAX = 20


class StatedFigure(NamedTuple):
    alt: str
    box: Box | None


def with_pictures(
    page: Any,
    pdf_page: Any,
    blocks: Sequence[Block],
    text: str,
    structure_root: Any,
    known_image_boxes: Sequence[Box] | None,
) -> list[Block]:
    """Return the blocks and pictures in reading order."""
    page_box = mupdf.fz_bound_page(page)
    image_boxes = _image_boxes(page) if known_image_boxes is None else known_image_boxes[:_IMAGES_MAX]
    visible_boxes = [
        (max(x0, page_box.x0), max(y0, page_box.y0), min(x1, page_box.x1), min(y1, page_box.y1))
        for x0, y0, x1, y1 in image_boxes
    ]
    boxes = [box for box in _join_strips(visible_boxes) if _is_picture(box, page_box, blocks)]
    figures = _stated_figures_in_order(pdf_page, structure_root) if structure_root is not None else []
    # Prefer the boxes that the file states. Figures without boxes get those of the images if there are as many, so that
    # each keeps its alternative text. Otherwise only the images are known, without text.
    if any(figure.box for figure in figures):
        pictures = [(figure.box, figure.alt) for figure in figures if figure.box and _is_large(figure.box)]
    elif len(figures) == len(boxes):
        pictures = [(box, figure.alt) for box, figure in zip(boxes, figures, strict=True)]
    else:
        pictures = [(box, "") for box in boxes]
    style = STATED_BY_FILE if figures else 0
    ordered = list(blocks)
    # By box: from left to right, then from top to bottom.
    for box, alt in sorted(pictures):
        at = _index_in_reading_order(ordered, box)
        begin = ordered[at].begin if at < len(ordered) else len(text)
        ordered.insert(at, Block(*round_box_to_tenths(box), begin, begin, Role.PICTURE, style=style, alt=alt))
    return ordered


def _image_boxes(page: Any) -> list[Box]:
    identity = pymupdf.Matrix(1, 1)
    text_page = mupdf.FzStextPage(pymupdf.extra.page_get_textpage(page, None, pymupdf.TEXT_PRESERVE_IMAGES, identity))
    boxes: list[Box] = []
    block = text_page.m_internal.first_block
    while block and len(boxes) < _IMAGES_MAX:
        if block.type == mupdf.FZ_STEXT_BLOCK_IMAGE:
            box = block.bbox
            boxes.append((box.x0, box.y0, box.x1, box.y1))
        block = block.next
    return boxes


def _join_strips(boxes: Sequence[Box]) -> list[Box]:
    joined: list[Box] = []
    for box in boxes:
        x0, y0, x1, y1 = box
        for at, (left, top, right, bottom) in enumerate(joined):
            gap_across, gap_down = max(x0, left) - min(x1, right), max(y0, top) - min(y1, bottom)
            if max(gap_across, gap_down) < _STRIP_GAP_POINTS_MAX:
                box = min(x0, left), min(y0, top), max(x1, right), max(y1, bottom)
                del joined[at]
                break
        joined.append(box)
    return joined


def _is_large(box: Box) -> bool:
    return min(box[2] - box[0], box[3] - box[1]) >= _SIDE_POINTS_MIN


def _is_picture(box: Box, page_box: Any, blocks: Sequence[Block]) -> bool:
    x0, y0, x1, y1 = box
    page_area = (page_box.x1 - page_box.x0) * (page_box.y1 - page_box.y0)
    characters = sum(block.end - block.begin for block in blocks if _is_inside(block, box))
    page_share = (x1 - x0) * (y1 - y0) / (page_area or 1.0)
    is_in_margin = y1 < _MARGIN * page_box.y1 or y0 > (1 - _MARGIN) * page_box.y1
    return _is_large(box) and page_share <= _PAGE_SHARE_MAX and characters <= _CHARACTERS_MAX and not is_in_margin


def _is_inside(block: Block, box: Box) -> bool:
    return box[0] <= (block.x0 + block.x1) / 2 <= box[2] and box[1] <= (block.y0 + block.y1) / 2 <= box[3]


def _index_in_reading_order(blocks: Sequence[Block], box: Box) -> int:
    """Return the index of the first block below the picture in its column, or the one after the last above it."""
    middle = (box[1] + box[3]) / 2
    in_column = [(at, block) for at, block in enumerate(blocks) if min(block.x1, box[2]) > max(block.x0, box[0])]
    below = [at for at, block in in_column if block.y0 >= middle]
    above = [at + 1 for at, block in in_column if block.y0 < middle]
    return min(below, default=max(above, default=len(blocks)))


# --- the structure tree -----------------------------------------------------------------------------------------------


def _stated_figures_in_order(pdf_page: Any, structure_root: Any) -> list[StatedFigure]:
    key = pdf_page.obj().pdf_dict_gets("StructParents")
    if not key.pdf_is_int():
        return []
    # The parent tree has the structure elements of all marked content of the page.
    elements = _value_in_number_tree(structure_root.pdf_dict_gets("ParentTree"), key.pdf_to_int(), depth=0)
    if elements is None:
        return []
    figures: list[StatedFigure] = []
    matrix = pdf_space_to_shown_page(pdf_page)
    visited: set[int] = set()
    for at in range(elements.pdf_array_len()):
        figure = _figure_around(elements.pdf_array_get(at), visited)
        if figure is not None:
            alt = " ".join(figure.pdf_dict_gets("Alt").pdf_to_text_string().split())
            figures.append(StatedFigure(alt, _stated_box(figure.pdf_dict_gets("A"), matrix)))
    return figures


def _value_in_number_tree(node: Any, number: int, *, depth: int) -> Any:
    numbers, kids = node.pdf_dict_gets("Nums"), node.pdf_dict_gets("Kids")
    for at in range(0, numbers.pdf_array_len(), 2):
        if numbers.pdf_array_get(at).pdf_to_int() == number:
            return numbers.pdf_array_get(at + 1)
    for at in range(kids.pdf_array_len() if depth < _TREE_DEPTH_MAX else 0):
        kid = kids.pdf_array_get(at)
        limits = kid.pdf_dict_gets("Limits")
        if limits.pdf_array_get(0).pdf_to_int() <= number <= limits.pdf_array_get(1).pdf_to_int():
            return _value_in_number_tree(kid, number, depth=depth + 1)
    return None


def _figure_around(element: Any, visited: set[int]) -> Any:
    """Return the first figure among the element, its parent and its grandparent, unless it was visited before."""
    for _ in range(3):
        if (number := element.pdf_to_num()) in visited:
            return None
        visited.add(number)
        if element.pdf_dict_gets("S").pdf_to_name() == "Figure":
            return element
        element = element.pdf_dict_gets("P")
    return None


def _stated_box(attributes: Any, matrix: Any) -> Box | None:
    # An element has one dictionary of attributes, or an array of them.
    dictionaries = [attributes.pdf_array_get(at) for at in range(attributes.pdf_array_len())] or [attributes]
    for dictionary in dictionaries:
        box = dictionary.pdf_dict_gets("BBox")
        if box.pdf_array_len() == 4:
            corners = mupdf.fz_transform_rect(box.pdf_to_rect(), matrix)
            return corners.x0, corners.y0, corners.x1, corners.y1
    return None
