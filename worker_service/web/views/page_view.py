"""A page of a document for viewing: its words, the engine's confidence in each, and the search hits.

Positions come from the page's stored layout: recognised words each with a box, a text layer in paragraphs, a
spreadsheet in rows. The positions of the words of a text layer come from the renderer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.documents import CONFIDENCE_LEAST, PageResult
from worker_service.services.database import Session
from worker_service.services.page_images import NoPageImage, PageRenderer, page_image
from worker_service.services.page_layouts import TableOnPage, tables_in

SURE, FAIR = 90, 70
"""Least confidence in per cent at which a word is called sure or fair; below both it is doubtful."""

_BOXES_MAX = 8000
_PATIENCE_SECONDS = 3.0
"""Longest wait for the renderer to provide word positions; the text is shown without them."""

TextRange = tuple[int, int]
"""Start and end of a range in a page's text."""


class TextRun(Struct, frozen=True):
    """Consecutive words with the same markup."""

    text: str
    doubt: str = ""
    """sure, fair or doubtful for recognised words; otherwise empty."""
    is_hit: bool = False


class WordBox(Struct, frozen=True):
    """A rectangle in points from the top left of the page."""

    x: float
    y: float
    width: float
    height: float
    doubt: str = ""
    is_hit: bool = False


class SheetCell(Struct, frozen=True):
    value: str | int | float | bool | None
    is_hit: bool = False


class PageView(Struct, frozen=True):
    number: int
    method: str
    confidence: float | None
    lines: Sequence[Sequence[TextRun]]
    boxes: Sequence[WordBox]
    """All recognised words; of a text layer only the hits."""
    size: tuple[float, float] | None
    """Page size in points; None if unknown."""
    hits: int
    sheet: str = ""
    first_row: int = 1
    rows: Sequence[Sequence[SheetCell]] = ()
    tables: Sequence[TableOnPage] = ()
    note: str = ""
    """Reason why the text is doubtful or incomplete."""
    lacks_boxes: bool = False
    """True if the positions of some hits on the image are not known yet."""


def page_view(
    session: Session, document_id: int, number: int, renderer: PageRenderer, *, query: str = ""
) -> PageView | None:
    """Return a page for viewing, or None if it has no readable text.

    Positions of hits in a text layer come from the renderer; until the page is rendered there are none.
    """
    for page in session.library.page_texts(document_id, number, number, with_layout=True):
        layout = json.loads(page.layout or "{}")
        hits = _find_hits(session, document_id, number, query) if query else []
        words = [word for line in layout.get("lines", ()) for word in line]
        lacks_boxes = False
        text = page.text or ""
        if words:
            places = list(_locate_words(text, words))
            boxes = [_box(word, where, hits, doubt=_doubt(word[4])) for word, where in places]
            lines = _lines(text, [(where, _doubt(word[4])) for word, where in places], hits)
        else:
            found = (
                _hit_boxes(session, renderer, document_id, page, layout, hits) if hits and "blocks" in layout else []
            )
            boxes, lacks_boxes = found or [], found is None
            lines = _lines(text, [], hits)
        size = layout.get("size")
        return PageView(
            number,
            page.method,
            page.confidence,
            lines,
            boxes[:_BOXES_MAX],
            (size[0], size[1]) if size else None,
            len(hits),
            layout.get("sheet", ""),
            layout.get("first", 1),
            _cells(layout.get("values", ()), lines),
            tables_in(number, page.layout),
            _note(page, layout),
            lacks_boxes,
        )
    return None


# ── Search hits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _find_hits(session: Session, document_id: int, number: int, query: str) -> Sequence[TextRange]:
    try:
        return session.search.match_ranges(document_id, number, query)
    except BadInput:  # the query has no letter and no digit
        return []


def _is_hit(where: TextRange, hits: Sequence[TextRange]) -> bool:
    return any(begin < where[1] and where[0] < end for begin, end in hits)


# ── Words and their positions ─────────────────────────────────────────────────────────────────────────────────────────


def _locate_words(text: str, words: Sequence[Any]) -> Iterator[tuple[Any, TextRange]]:
    """Yield each word (x0, y0, x1, y1, …, text) with its range in the text; both are in the same order."""
    at = 0
    for word in words:
        found = text.find(word[-1], at)
        if found >= 0:
            at = found + len(word[-1])
            yield word, (found, at)


def _locate_in_areas(
    text: str, words: Sequence[Any], areas: Sequence[Sequence[Any]]
) -> Iterator[tuple[Any, TextRange]]:
    """Yield the words (x0, y0, x1, y1, text) in the areas (x0, y0, x1, y1, begin, end) with their ranges in the text.

    The renderer may return the areas in another order than the text has them; within an area the orders agree.
    """
    reached = [area[4] for area in areas]
    for word in words:
        x, y = (word[0] + word[2]) / 2, (word[1] + word[3]) / 2
        for number, (x0, y0, x1, y1, _, end) in enumerate(areas):
            if x0 <= x <= x1 and y0 <= y <= y1 and (found := text.find(word[-1], reached[number], end)) >= 0:
                reached[number] = found + len(word[-1])
                yield word, (found, reached[number])
                break


def _box(corners: Any, where: TextRange, hits: Sequence[TextRange], *, doubt: str = "") -> WordBox:
    x0, y0, x1, y1 = corners[:4]
    return WordBox(round(x0, 1), round(y0, 1), round(x1 - x0, 1), round(y1 - y0, 1), doubt, _is_hit(where, hits))


def _hit_boxes(
    session: Session,
    renderer: PageRenderer,
    document_id: int,
    page: PageResult,
    layout: Any,
    hits: Sequence[TextRange],
) -> list[WordBox] | None:
    """Return the boxes of the hits, or None if the page is not rendered yet.

    The box of a whole paragraph is no substitute: it would mark words that are not hits.
    """
    try:
        drawn = page_image(session, renderer, document_id, page.number, wait_seconds=_PATIENCE_SECONDS)
    except NoPageImage:
        return None
    words = [(one.x0, one.y0, one.x1, one.y1, one.text) for one in drawn.words]
    areas = [
        *(one[:6] for one in layout["blocks"]),
        *([*one["box"], one["begin"], one["end"]] for one in layout.get("tables", ())),
    ]
    placed = _locate_in_areas(page.text or "", words, areas)
    return [box for corners, where in placed if (box := _box(corners, where, hits)).is_hit]


def _note(page: PageResult, layout: Any) -> str:
    notes = ["A part of this page is damaged or could not be read."] if page.method == "partial" else []
    if unread := layout.get("unread"):
        how = f"{unread['install']}, then read" if unread["install"] else "Read"
        letters = unread["script"].replace("_", " ")
        notes.append(f"It seems to be in {letters} letters. {how} it again in {unread['language']}.")
    elif page.confidence is not None and page.confidence < CONFIDENCE_LEAST:
        notes.append("Recognised with little confidence: compare the text with the image.")
    return " ".join(notes)


def _doubt(confidence: float) -> str:
    return "sure" if confidence >= SURE else "fair" if confidence >= FAIR else "doubtful"


# ── Text and cells ────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(text: str, doubts: Sequence[tuple[TextRange, str]], hits: Sequence[TextRange]) -> list[list[TextRun]]:
    """Split each line of the text into pieces with the same markup."""
    kinds: list[tuple[str, bool]] = [("", False)] * len(text)
    for (begin, end), doubt in doubts:
        # Include the space after a word, so that words with the same markup form one piece.
        kinds[begin : end + 1] = [(doubt, False)] * len(kinds[begin : end + 1])
    for begin, end in hits:
        kinds[begin:end] = [(doubt, True) for doubt, _ in kinds[begin:end]]
    lines, at = list[list[TextRun]](), 0
    for line in text.splitlines(keepends=True):
        here = zip(line, kinds[at : at + len(line)], strict=True)
        pieces = [
            TextRun("".join(letter for letter, _ in some).rstrip("\r\n"), *kind)
            for kind, some in groupby(here, lambda one: one[1])
        ]
        lines.append([piece for piece in pieces if piece.text])
        at += len(line)
    return lines


def _cells(values: Sequence[Sequence[Any]], lines: Sequence[Sequence[TextRun]]) -> list[list[SheetCell]]:
    """Return the cells. Each row is a line of the text, whose tabs separate the cells."""
    rows: list[list[SheetCell]] = []
    for number, row in enumerate(values):
        found, at = set[int](), 0
        for piece in lines[number] if number < len(lines) else ():
            tabs = piece.text.count("\t")
            if piece.is_hit:
                found.update(range(at, at + tabs + 1))
            at += tabs
        rows.append([SheetCell(value, column in found) for column, value in enumerate(row)])
    return rows
