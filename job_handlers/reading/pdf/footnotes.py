"""Find the references of a page's text to its footnotes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from job_handlers.reading.pdf.library import pymupdf
from worker_service.handlers import Block, NoteMark, Role

_MARK = re.compile(r"(\()?(\d{1,3}|[*†‡§]{1,3})((?(1)\)|[.)]?))\s*")
_AFTER_WORD = r"[^\W_][.,;:!?)\]\"'”“’»]*[ \xa0]?\(?"
_ENDS_WITH_WORD = re.compile(r"(?:[^\W\d_]{3}|\b(?:19|20)\d\d)[.,;:!?)\]\"'”“’»]*\s?$")
"""A reference follows a word or a year. After a unit, or a name in a formula, a superscript is an exponent."""
_SUPERSCRIPT_FLAG = 1
_SMALLER = 0.85  # Share of the size of the text before it that a superscript does not reach.


def notes_of(read: Any, blocks: Sequence[Block], text: str) -> list[NoteMark]:
    """Return the reference and the mark of each footnote that has exactly one reference."""
    footnotes = [
        NoteMark(block.begin, mark.end(), mark[2])
        for block in blocks
        if block.role is Role.FOOTNOTE and (mark := _MARK.match(text, block.begin))
    ]
    # Look for superscripts only if a number follows a word: it takes a tenth of the time of reading the page.
    if not any(re.search(rf"{_AFTER_WORD}{re.escape(one.note)}(?!\d)", text) for one in footnotes):
        return []
    footnote_counts = Counter(one.note for one in footnotes)
    references: dict[str, list[NoteMark]] = {}
    for reference in _references(read, blocks, text):
        references.setdefault(reference.note, []).append(reference)
    marks: list[NoteMark] = []
    for footnote in footnotes:
        own_references = references.get(footnote.note, [])
        if len(own_references) == 1 and footnote_counts[footnote.note] == 1:
            marks += (*own_references, footnote)
    return marks


def _references(read: Any, blocks: Sequence[Block], text: str) -> Iterator[NoteMark]:
    """Yield the superscripts after a word, in lines that the text has once."""
    for line in [line for one in pymupdf.TextPage(read).extractDICT()["blocks"] for line in one.get("lines", ())]:
        line_text = "".join(span["text"] for span in line["spans"])
        span_end = len(line["spans"][0]["text"]) if line["spans"] else 0
        for span_before, span in pairwise(line["spans"]):
            begin, span_end = span_end, span_end + len(span["text"])
            mark = _MARK.fullmatch(span["text"].strip())
            is_small = span["size"] < _SMALLER * span_before["size"]
            if mark is None or not is_small or not span["flags"] & _SUPERSCRIPT_FLAG:
                continue
            end = begin + len(span["text"].rstrip())
            if line_text[:begin].endswith("(") and line_text[span_end : span_end + 1] == ")":
                # The parentheses are not superscripts.
                begin, end = begin - 1, span_end + 1
            if _ENDS_WITH_WORD.search(line_text[:begin]) and text.count(line_text) == 1:
                line_begin = text.index(line_text)
                block = next((one for one in blocks if one.begin <= line_begin + begin < one.end), None)
                if block is not None and block.role not in (Role.FOOTNOTE, Role.TABLE):
                    yield NoteMark(line_begin + begin, line_begin + end, mark[2])
