"""Pieces of text with their positions, grouped into lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

_NUMBER = re.compile(
    r"[-+–—(<>~±$€£¥%*†\[]*\s*(?:[A-Z]{2,3}\s?)?\d[\d\s.,'’:/-]*[-+%)*†\]a-z°]{0,3}|[-–—.*†]+|n/?a|nil|n\.m\.", re.I
)
_GROUPS = re.compile(r"[-+(]?\d{1,3}(?: \d{3})+(?:[.,]\d+)?\)?")
_DOTS = re.compile(r"[.·…]+")
_LEADS = re.compile(r"\s*(?:\.\s?){4,}\s*$")
_ENDS = frozenset(".?!:")
SIGNS_BEFORE = frozenset("$€£¥(<>+-–~") | {"US$", "EUR", "USD", "GBP", "CHF", "C$", "A$", "($", "($)", "Rs", "Rs."}
SIGNS_BEHIND = frozenset(")%*†‡]") | {")%", "%)", "**", "pp", "x"}
_SPACE = 0.55
"""In em, inside a piece."""
_WIDER, _SENTENCE = 1.4, 1.7


class TextPiece(msgspec.Struct, frozen=True, order=True, gc=False):
    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    at: int


class RulingLine(NamedTuple):
    """Or an area."""

    x0: float
    y0: float
    x1: float
    y1: float


Band = list[TextPiece]
Split = Callable[[TextPiece], Sequence[TextPiece]]
"""Returns the words of a piece that may cross a column boundary."""


def text_of(cell: Sequence[TextPiece]) -> str:
    if not cell:
        return ""
    text = " ".join((cell[0].text if len(cell) == 1 else " ".join([one.text for one in cell])).split())
    return _LEADS.sub("", text) if ".." in text or ". ." in text else text


@lru_cache(2048)
def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def ends_sentence(word: str, following: str) -> bool:
    # The gap after a sentence is wider.
    return word[-1] in _ENDS and following[0].isupper()


def bounding_box(pieces: Sequence[TextPiece]) -> tuple[float, float, float, float]:
    return (
        min([one.x0 for one in pieces]),
        min([one.y0 for one in pieces]),
        max([one.x1 for one in pieces]),
        max([one.y1 for one in pieces]),
    )


def group_lines(pieces: Sequence[TextPiece], em: float) -> list[Band]:
    bands: list[Band] = []
    line = -1e9
    for one in pieces:
        y0, y1 = one.y0, one.y1
        own = (y0 + y1) / 2
        if own - line > 0.45 * min(em, y1 - y0 + 0.2 * em):
            band = [one]
            bands.append(band)
            line = own
        else:
            line += (own - line) / (len(band) + 1)
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
    spaces = [b.x0 - a.x1 for a, b in pairwise(words)]
    are_numbers = all(is_number(word.text) or word.text in SIGNS_BEFORE for word in words)
    if not are_numbers and max(spaces) <= _SPACE * em:
        return [one]
    wide = max(_SPACE * em, _WIDER * sorted(spaces)[len(spaces) // 4] if len(spaces) > 1 else 0.0)
    are_columns = are_numbers and _GROUPS.fullmatch(one.text.strip()) is None
    found: Band = []
    begin = 0
    for at, space in enumerate(spaces, 1):
        is_sign = words[at - 1].text in SIGNS_BEFORE and at - 1 == begin
        least = _SENTENCE * wide if ends_sentence(words[at - 1].text, words[at].text) else wide
        if not is_sign and (space > least or are_columns):
            found.append(join_words(words[begin:at], one))
            begin = at
    return [*found, join_words(words[begin:], one)] if begin else [one]


def join_words(words: Sequence[TextPiece], one: TextPiece) -> TextPiece:
    return TextPiece(words[0].x0, one.y0, words[-1].x1, one.y1, " ".join([word.text for word in words]), words[0].at)
