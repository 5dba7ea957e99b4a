"""A page for viewing: its words, their confidence, and the places of the matches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from worker_service.base.errors import BadInput
from worker_service.jobs.documents import CONFIDENCE_LEAST, PageResult
from worker_service.jobs.markdown import page_markdown
from worker_service.jobs.page_structure import StructuredPage, TableOnPage, structure_of, tables_on_page
from worker_service.services.page_images import NoPageImage, PageRenderer, PlacedWord, page_image
from worker_service.services.session import Session
from worker_service.web.views.page_text import SheetCell, TextBlock, TextRange, marked_cells, marks_of, text_blocks

DOUBTFUL = 70
"""Per cent below which a word is doubtful, and a page was hard to read."""

_BOXES_MAX = 8000
_RENDER_SECONDS_MAX = 3.0
"""The text is shown without positions if the renderer takes longer."""

_PAGES_AROUND = 2
"""Pages before and after, which show what headers and footers are."""


class WordBox(Struct, frozen=True):
    """Position in points from the top left of the page."""

    x: float
    y: float
    width: float
    height: float
    match: int = 0
    """Number of the match, from 1; 0: no match, but a doubtful word."""


class PageView(Struct, frozen=True):
    number: int
    method: str
    confidence: float | None
    blocks: Sequence[TextBlock]
    boxes: Sequence[WordBox]
    size: tuple[float, float] | None
    match_count: int
    sheet: str = ""
    first_row: int = 1
    rows: Sequence[Sequence[SheetCell]] = ()
    tables: Sequence[TableOnPage] = ()
    doubtful_words: int = 0
    note: str = ""
    markdown: str = ""
    lacks_boxes: bool = False


class TextArea(NamedTuple):
    x0: float
    y0: float
    x1: float
    y1: float
    begin: int
    end: int


def page_view(
    session: Session, document_id: int, number: int, renderer: PageRenderer, *, query: str = ""
) -> PageView | None:
    """Return None if the page has no readable text."""
    nearby_pages = session.library.page_texts(
        document_id, max(1, number - _PAGES_AROUND), number + _PAGES_AROUND, with_layout=True
    )
    for page, structured in zip(nearby_pages, structure_of(iter(nearby_pages)), strict=True):
        if page.number == number:
            matches = _find_matches(session, document_id, number, query) if query else []
            return _page_view(session, document_id, page, structured, matches, renderer)
    return None


def _page_view(
    session: Session,
    document_id: int,
    page: PageResult,
    structured: StructuredPage,
    matches: Sequence[TextRange],
    renderer: PageRenderer,
) -> PageView:
    layout, text = json.loads(page.layout or "{}"), page.text or ""
    # A line of the layout is a list of words.
    recognised = [
        PlacedWord(x0, y0, x1, y1, word_text, confidence)
        for line in layout.get("lines", ())
        for x0, y0, x1, y1, confidence, *_, word_text in line
    ]
    doubtful: list[TextRange] = []
    boxes: list[WordBox] = []
    lacks_boxes = False
    if recognised:
        for word, text_range in _locate_words(text, recognised):
            is_doubtful = word.confidence < DOUBTFUL
            box = _box(word, text_range, matches)
            if is_doubtful:
                doubtful.append(text_range)
            if box.match or (is_doubtful and word.text.strip()):
                boxes.append(box)
    elif matches and "blocks" in layout:
        match_boxes = _match_boxes(session, renderer, document_id, page, layout, matches)
        boxes, lacks_boxes = match_boxes or [], match_boxes is None
    size, marks = layout.get("size"), marks_of(text, doubtful, matches)
    return PageView(
        number=page.number,
        method=page.method,
        confidence=page.confidence,
        blocks=list(text_blocks(structured, marks)),
        boxes=boxes[:_BOXES_MAX],
        size=(size[0], size[1]) if size else None,
        match_count=len(matches),
        sheet=layout.get("sheet", ""),
        first_row=layout.get("first", 1),
        rows=marked_cells(layout.get("values", ()), text, marks),
        tables=tables_on_page(page.number, page.layout),
        doubtful_words=len(doubtful),
        note=_note(page, layout),
        markdown=page_markdown(structured),
        lacks_boxes=lacks_boxes,
    )


# ── Matches ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _find_matches(session: Session, document_id: int, number: int, query: str) -> Sequence[TextRange]:
    try:
        return session.search.match_ranges(document_id, number, query)
    except BadInput:  # the query has no letter and no digit
        return []


def _match_number(text_range: TextRange, matches: Sequence[TextRange]) -> int:
    """Return the number from 1 of the match that overlaps the range; 0 if there is none."""
    begin, end = text_range
    for number, (match_begin, match_end) in enumerate(matches, 1):
        if match_begin < end and begin < match_end:
            return number
    return 0


# ── Words and their positions ─────────────────────────────────────────────────────────────────────────────────────────


def _locate_words(text: str, words: Sequence[PlacedWord]) -> Iterator[tuple[PlacedWord, TextRange]]:
    """Yield each word with its range. Text and words have the same order."""
    end_of_previous = 0
    for word in words:
        begin = text.find(word.text, end_of_previous)
        if begin >= 0:
            end_of_previous = begin + len(word.text)
            yield word, (begin, end_of_previous)


def _locate_in_areas(
    text: str, words: Sequence[PlacedWord], areas: Sequence[TextArea]
) -> Iterator[tuple[PlacedWord, TextRange]]:
    """Yield the words of the areas with their ranges. Words and text have the same order only within an area."""
    end_of_previous = [area.begin for area in areas]
    for word in words:
        x, y = (word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2
        for number, area in enumerate(areas):
            is_inside = area.x0 <= x <= area.x1 and area.y0 <= y <= area.y1
            begin = text.find(word.text, end_of_previous[number], area.end) if is_inside else -1
            if begin >= 0:
                end_of_previous[number] = begin + len(word.text)
                yield word, (begin, end_of_previous[number])
                break


def _box(word: PlacedWord, text_range: TextRange, matches: Sequence[TextRange]) -> WordBox:
    width, height = round(word.x1 - word.x0, 1), round(word.y1 - word.y0, 1)
    return WordBox(round(word.x0, 1), round(word.y0, 1), width, height, _match_number(text_range, matches))


def _match_boxes(
    session: Session,
    renderer: PageRenderer,
    document_id: int,
    page: PageResult,
    layout: Any,
    matches: Sequence[TextRange],
) -> list[WordBox] | None:
    """Return None if the page is not rendered in time: the stored text has boxes of paragraphs only."""
    try:
        image = page_image(session, renderer, document_id, page.number, wait_seconds=_RENDER_SECONDS_MAX)
    except NoPageImage:
        return None
    areas = [TextArea(*block[:6]) for block in layout["blocks"]]
    areas += [TextArea._make([*table["box"], table["begin"], table["end"]]) for table in layout.get("tables", ())]
    located = _locate_in_areas(page.text or "", image.words, areas)
    boxes = [_box(word, text_range, matches) for word, text_range in located]
    return [box for box in boxes if box.match]


def _note(page: PageResult, layout: Any) -> str:
    notes = ["A part of this page is damaged or could not be read."] if page.method == "partial" else []
    if unread := layout.get("unread"):
        script = unread["script"].replace("_", " ")
        advice = f"{unread['install']}, then read" if unread["install"] else "Read"
        notes.append(f"It seems to be in {script} letters. {advice} it again in {unread['language']}.")
    elif page.confidence is not None and page.confidence < CONFIDENCE_LEAST:
        notes.append("Recognised with little confidence: compare the text with the image.")
    return " ".join(notes)
