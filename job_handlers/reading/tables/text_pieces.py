"""Pieces of text with their positions, grouped into lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import NamedTuple

import msgspec

_NUMBER = re.compile(
    r"[-+–—(<>~±$€£¥%*†\[]*\s*(?:[A-Z]{2,3}\s?)?\d[\d\s.,'’:/-]*[-+%)*†\]a-z°]{0,3}|[-–—.*†]+|n/?a|nil|n\.m\.", re.I
)
_GROUPS = re.compile(r"[-+(]?\d{1,3}(?: \d{3})+(?:[.,]\d+)?\)?")  # 1 204 350,5
_DOTS = re.compile(r"[.·…]+")
_LEADER_DOTS = re.compile(r"\s*(?:\.\s?){4,}\s*$")
_SENTENCE_ENDS = frozenset(".?!:")
SIGNS_BEFORE = frozenset("$€£¥(<>+-–~") | {"US$", "EUR", "USD", "GBP", "CHF", "C$", "A$", "($", "($)", "Rs", "Rs."}
SIGNS_BEHIND = frozenset(")%*†‡]") | {")%", "%)", "**", "pp", "x"}
_GAP_LEAST = 0.55  # In em. A narrower space does not separate cells.
_GAP_WIDER = 1.4  # A gap is this many times as wide as the usual spaces of its piece.
_SENTENCE_GAP_WIDER = 1.7  # Between sentences, a gap is this many times as wide as another gap.


class TextPiece(msgspec.Struct, frozen=True, order=True, gc=False):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    at: int
    """Index of its line or word on the page."""


class RulingLine(NamedTuple):
    """A ruling line, or the area between ruling lines."""

    x0: float
    y0: float
    x1: float
    y1: float


Band = list[TextPiece]
"""The pieces of a line, from left to right."""
Split = Callable[[TextPiece], Sequence[TextPiece]]
"""Returns the words of a piece."""


def text_of(cell: Sequence[TextPiece]) -> str:
    if not cell:
        return ""
    text = " ".join((cell[0].text if len(cell) == 1 else " ".join([one.text for one in cell])).split())
    return _LEADER_DOTS.sub("", text) if ".." in text or ". ." in text else text


@lru_cache(2048)
def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def ends_sentence(word: str, following: str) -> bool:
    # The space after a sentence is wider, and no gap between cells.
    return word[-1] in _SENTENCE_ENDS and following[0].isupper()


def bounding_box(pieces: Sequence[TextPiece]) -> tuple[float, float, float, float]:
    return (
        min([one.x0 for one in pieces]),
        min([one.y0 for one in pieces]),
        max([one.x1 for one in pieces]),
        max([one.y1 for one in pieces]),
    )


def group_lines(pieces: Sequence[TextPiece], em: float) -> list[Band]:
    """Group pieces that are ordered from top to bottom."""
    bands: list[Band] = []
    band_y = -inf
    for one in pieces:
        y = (one.y0 + one.y1) / 2
        if y - band_y > 0.45 * min(em, one.y1 - one.y0 + 0.2 * em):
            band = [one]
            bands.append(band)
            band_y = y
        else:
            # Keep `band_y` the mean of the band.
            band_y += (y - band_y) / (len(band) + 1)
            band.append(one)
    for band in bands:
        if len(band) > 1:
            band.sort()
    return bands


def middle(band: Band) -> float:
    return sum([one.y0 + one.y1 for one in band]) / (2 * len(band))


def split_narrow_columns(bands: Sequence[Band], split: Split | None, em: float) -> Sequence[Band]:
    """Split adjacent numbers, and words with wide gaps."""
    if split is None:
        return bands
    return [[part for one in band for part in _split_piece(one, split, em)] for band in bands]


def _split_piece(one: TextPiece, split: Split, em: float) -> Sequence[TextPiece]:
    words = split(one) if " " in one.text.strip() else ()
    if "." in one.text or "·" in one.text or "…" in one.text:
        words = [word for word in words if not _DOTS.fullmatch(word.text)]
    if len(words) < 2:
        return [one]
    spaces = [word.x0 - before.x1 for before, word in pairwise(words)]
    are_numbers = all(is_number(word.text) or word.text in SIGNS_BEFORE for word in words)
    if not are_numbers and max(spaces) <= _GAP_LEAST * em:
        return [one]
    usual_space = sorted(spaces)[len(spaces) // 4] if len(spaces) > 1 else 0.0
    gap = max(_GAP_LEAST * em, _GAP_WIDER * usual_space)
    are_several_numbers = are_numbers and _GROUPS.fullmatch(one.text.strip()) is None
    parts: Band = []
    begin = 0
    for at, space in enumerate(spaces, 1):
        before, word = words[at - 1].text, words[at].text
        is_sign_of_number = before in SIGNS_BEFORE and at - 1 == begin
        is_gap = space > (_SENTENCE_GAP_WIDER * gap if ends_sentence(before, word) else gap)
        if not is_sign_of_number and (is_gap or are_several_numbers):
            parts.append(join_words(words[begin:at], one))
            begin = at
    return [*parts, join_words(words[begin:], one)] if parts else [one]


def join_words(words: Sequence[TextPiece], piece: TextPiece) -> TextPiece:
    """Return a piece of some words of another."""
    return TextPiece(
        words[0].x0, piece.y0, words[-1].x1, piece.y1, " ".join([word.text for word in words]), words[0].at
    )
