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
_GAP_LEAST = 0.55  # In em, the usual height of a piece. A narrower space does not separate cells.
_GAP_WIDER = 1.4  # A gap is at least this many times as wide as the usual spaces of its piece.
_SENTENCE_GAP_WIDER = 1.7  # Between sentences, a gap is at least this many times as wide as elsewhere.


class TextPiece(msgspec.Struct, frozen=True, order=True, gc=False):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    source_index: int
    """Index of its line or word on the page."""


class RulingLine(NamedTuple):
    x0: float
    y0: float
    x1: float
    y1: float


class Area(NamedTuple):
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
    text = " ".join((cell[0].text if len(cell) == 1 else " ".join([piece.text for piece in cell])).split())
    return _LEADER_DOTS.sub("", text) if ".." in text or ". ." in text else text


@lru_cache(2048)
def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def ends_sentence(word: str, following: str) -> bool:
    # The space after a sentence is wider than others, though it is no gap between cells.
    return word[-1] in _SENTENCE_ENDS and following[0].isupper()


def group_lines(pieces: Sequence[TextPiece], em: float) -> list[Band]:
    """Group pieces that are ordered from top to bottom."""
    bands: list[Band] = []
    # Mean middle of the last band.
    band_y = -inf
    for piece in pieces:
        y = (piece.y0 + piece.y1) / 2
        if y - band_y > 0.45 * min(em, piece.y1 - piece.y0 + 0.2 * em):
            band = [piece]
            bands.append(band)
            band_y = y
        else:
            band_y += (y - band_y) / (len(band) + 1)
            band.append(piece)
    for band in bands:
        if len(band) > 1:
            band.sort()
    return bands


def middle(band: Band) -> float:
    return sum([piece.y0 + piece.y1 for piece in band]) / (2 * len(band))


def split_narrow_columns(bands: Sequence[Band], split: Split | None, em: float) -> Sequence[Band]:
    """Split adjacent numbers, and words with wide gaps."""
    if split is None:
        return bands
    return [[part for piece in band for part in _split_piece(piece, split, em)] for band in bands]


def _split_piece(piece: TextPiece, split: Split, em: float) -> Sequence[TextPiece]:
    words = split(piece) if " " in piece.text.strip() else ()
    if "." in piece.text or "·" in piece.text or "…" in piece.text:
        words = [word for word in words if not _DOTS.fullmatch(word.text)]
    if len(words) < 2:
        return [piece]
    spaces = [word.x0 - before.x1 for before, word in pairwise(words)]
    are_numbers = all(is_number(word.text) or word.text in SIGNS_BEFORE for word in words)
    if not are_numbers and max(spaces) <= _GAP_LEAST * em:
        return [piece]
    usual_space = sorted(spaces)[len(spaces) // 4] if len(spaces) > 1 else 0.0
    gap = max(_GAP_LEAST * em, _GAP_WIDER * usual_space)
    are_several_numbers = are_numbers and _GROUPS.fullmatch(piece.text.strip()) is None
    parts: Band = []
    begin = 0
    for at, space in enumerate(spaces, 1):
        before, word = words[at - 1].text, words[at].text
        is_sign_of_number = before in SIGNS_BEFORE and at - 1 == begin
        is_gap = space > (_SENTENCE_GAP_WIDER * gap if ends_sentence(before, word) else gap)
        if not is_sign_of_number and (is_gap or are_several_numbers):
            parts.append(join_words(words[begin:at], piece))
            begin = at
    return [*parts, join_words(words[begin:], piece)] if parts else [piece]


def join_words(words: Sequence[TextPiece], piece: TextPiece) -> TextPiece:
    """Return a piece of some of the words of `piece`."""
    return TextPiece(
        words[0].x0, piece.y0, words[-1].x1, piece.y1, " ".join([word.text for word in words]), words[0].source_index
    )
