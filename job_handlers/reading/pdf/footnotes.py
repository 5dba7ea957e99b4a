"""Find the references of a page's text to its footnotes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from job_handlers.reading.pdf.library import pymupdf
from worker_service.handlers import Block, NoteMark, Role

_MARK = re.compile(r"(\()?(\d{1,3}|[*†‡§]{1,3})((?(1)\)|[.)]?))\s*")
_WORD_BEFORE_MARK = r"[^\W_][.,;:!?)\]\"'”“’»]*[ \xa0]?\(?"
_ENDS_WITH_WORD = re.compile(r"(?:[^\W\d_]{3}|\b(?:19|20)\d\d)[.,;:!?)\]\"'”“’»]*\s?$")
"""A reference follows a word or a year. After a unit, or a name in a formula, a superscript is an exponent."""
_SUPERSCRIPT_FLAG = 1
_SUPERSCRIPT_SIZE_MAX = 0.85  # Share of the size of the text before it.


def notes_of(text_page: Any, blocks: Sequence[Block], text: str) -> list[NoteMark]:
    """Return the reference and the mark of each footnote that has exactly one reference."""
    footnotes = [
        NoteMark(block.begin, mark.end(), mark[2])
        for block in blocks
        if block.role is Role.FOOTNOTE and (mark := _MARK.match(text, block.begin))
    ]
    # Look for superscripts only if a number follows a word: it takes a tenth of the time of reading the page.
    if not any(re.search(rf"{_WORD_BEFORE_MARK}{re.escape(footnote.note)}(?!\d)", text) for footnote in footnotes):
        return []
    footnotes_per_mark = Counter(footnote.note for footnote in footnotes)
    references_by_mark: dict[str, list[NoteMark]] = {}
    for reference in _superscripts_after_words(text_page, blocks, text):
        references_by_mark.setdefault(reference.note, []).append(reference)
    marks: list[NoteMark] = []
    for footnote in footnotes:
        references = references_by_mark.get(footnote.note, [])
        if len(references) == 1 and footnotes_per_mark[footnote.note] == 1:
            marks += (*references, footnote)
    return marks


def _superscripts_after_words(text_page: Any, blocks: Sequence[Block], text: str) -> Iterator[NoteMark]:
    page_blocks = pymupdf.TextPage(text_page).extractDICT()["blocks"]
    for line in chain.from_iterable(block.get("lines", ()) for block in page_blocks):
        line_text = "".join(span["text"] for span in line["spans"])
        span_end = len(line["spans"][0]["text"]) if line["spans"] else 0
        for span_before, span in pairwise(line["spans"]):
            begin, span_end = span_end, span_end + len(span["text"])
            mark = _MARK.fullmatch(span["text"].strip())
            is_small = span["size"] < _SUPERSCRIPT_SIZE_MAX * span_before["size"]
            if mark is None or not is_small or not span["flags"] & _SUPERSCRIPT_FLAG:
                continue
            end = begin + len(span["text"].rstrip())
            if line_text[:begin].endswith("(") and line_text[span_end : span_end + 1] == ")":
                # The parentheses are not superscripts.
                begin, end = begin - 1, span_end + 1
            # The place of a line that the text repeats is not certain.
            if _ENDS_WITH_WORD.search(line_text[:begin]) and text.count(line_text) == 1:
                line_begin = text.index(line_text)
                mark_begin = line_begin + begin
                block_of_mark = next((block for block in blocks if block.begin <= mark_begin < block.end), None)
                if block_of_mark is not None and block_of_mark.role not in (Role.FOOTNOTE, Role.TABLE):
                    yield NoteMark(mark_begin, line_begin + end, mark[2])
