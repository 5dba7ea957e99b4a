"""Footnotes of a page, and where its text refers to them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from job_handlers.reading.pdf.library import pymupdf
from worker_service.handlers import Block, NoteMark, Role

_MARK = re.compile(r"(\()?(\d{1,3}|[*†‡§]{1,3})((?(1)\)|[.)]?))\s*")
_AFTER_WORD = r"[^\W_][.,;:!?)\]\"'”“’»]*[ \xa0]?\(?"
_BEFORE = re.compile(r"(?:[^\W\d_]{3}|\b(?:19|20)\d\d)[.,;:!?)\]\"'”“’»]*\s?$")
"""What stands before a reference: a word. After a unit or a name in a formula, it is an exponent."""
_SUPERSCRIPT = 1


def notes_of(read: Any, blocks: Sequence[Block], text: str) -> list[NoteMark]:
    """Return the marks of the footnotes with exactly one reference."""
    found = [(one, mark) for one in blocks if one.role is Role.FOOTNOTE and (mark := _MARK.match(text, one.begin))]
    # Most numbers follow no word: asking for the letters' sizes takes as long as a tenth of reading the page.
    may_refer = any(re.search(rf"{_AFTER_WORD}{re.escape(mark[2])}(?!\d)", text) for _, mark in found)
    references = list(_references(read, blocks, text)) if may_refer else []
    marks: list[NoteMark] = []
    for block, mark in found:
        own = [one for one in references if one.note == mark[2]]
        if len(own) == 1 and sum(other[2] == mark[2] for _, other in found) == 1:
            marks += (*own, NoteMark(block.begin, mark.end(), mark[2]))
    return marks


def _references(read: Any, blocks: Sequence[Block], text: str) -> Iterator[NoteMark]:
    """Yield the superscripts after a word, in lines that the text has once."""
    for line in [line for one in pymupdf.TextPage(read).extractDICT()["blocks"] for line in one.get("lines", ())]:
        whole = "".join(span["text"] for span in line["spans"])
        at = 0
        for before, span in zip([None, *line["spans"]], line["spans"], strict=False):
            begin, at = at, at + len(span["text"])
            mark = _MARK.fullmatch(span["text"].strip())
            if not (before and mark and span["flags"] & _SUPERSCRIPT and span["size"] < 0.85 * before["size"]):
                continue
            if whole[:begin].endswith("(") and whole[at : at + 1] == ")":
                begin, at_end = begin - 1, at + 1
            else:
                at_end = begin + len(span["text"].rstrip())
            if _BEFORE.search(whole[:begin]) and text.count(whole) == 1:
                place = text.index(whole)
                owner = next((one for one in blocks if one.begin <= place + begin < one.end), None)
                if owner is not None and owner.role not in (Role.FOOTNOTE, Role.TABLE):
                    yield NoteMark(place + begin, place + at_end, mark[2])
