"""Does a page's own text do, or has the page to be looked at? Pure: facts in, verdict out.

Text will not do where it is missing, where it is garbage, or where it is invisible under an image that covers the page,
for then somebody else's OCR wrote it. A page on which nothing is drawn is blank.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from enum import StrEnum

from msgspec import Struct

_COVERS = 0.5
"""Of the page: so much under images makes it a scan."""
_FEW_CHARACTERS = 50
"""On a scan: a stamp or a page number, and not its text."""
_GARBAGE_SHARE = 0.1
_LETTERS_LEAST = 100
_VOWELS_LEAST = 0.18
_WORDLESS_SHARE = 0.4

# What no text has on purpose: unknown, private, unassigned, control.
_BAD = re.compile("[\ufffd\ufffe\uffff\ue000-\uf8ff\x80-\x9f]")
_ASCII = re.compile("[\x00-\x7f]+")
_UNMAPPED = re.compile(r"\(cid:\d+\)")


def _marked(characters: str) -> bytes:
    """A table that turns these into ones and everything else into zeros."""
    return bytes(chr(one) in characters for one in range(256))


_BAD_ASCII = _marked("".join(map(chr, {*range(32), 127} - {9, 10, 12, 13})))
_LETTERS = _marked(string.ascii_letters)
_VOWELS = _marked("aeiouyAEIOUY")
_DIGITS = _marked(string.digits)
_SPACES = _marked(" \n\t")
_LEADERS = re.compile(r"(?:[.·…_]\s*){4,}")
"""The dots of a contents page between a title and its number."""
_WORD = re.compile(r"\w+")
_AGREES = 0.5
"""Of recognised words: so many have to be in a page's own text, for both to be the same text."""


class Verdict(StrEnum):
    LAYER = "layer"
    OCR = "ocr"
    BLANK = "blank"


class Drawn(Struct, frozen=True):
    """What lies on a page, without its text being read."""

    covered: float = 0.0
    """Share of the page that images cover."""
    invisible: float = 0.0
    """Share of its text that is not shown."""
    is_empty: bool = False


def judge(text: str, drawn: Drawn) -> Verdict:
    characters = len(text) - _count(text.encode("ascii", "ignore"), _SPACES)
    if not characters or text.isspace():
        return Verdict.BLANK if drawn.is_empty else Verdict.OCR
    is_scan = drawn.covered >= _COVERS
    if is_scan and (characters < _FEW_CHARACTERS or drawn.invisible > 0.5):
        return Verdict.OCR
    return Verdict.OCR if _is_garbage_without_leaders(text, characters) else Verdict.LAYER


def _is_garbage_without_leaders(text: str, characters: int) -> bool:
    if not is_garbage(text, characters):
        return False
    rest = _LEADERS.sub("", text)
    letters = len("".join(rest.split()))
    return len(rest) == len(text) or not letters or is_garbage(rest, letters)


def may_be_fuller(text: str, drawn: Drawn) -> bool:
    """Return whether a page's own text is worth a comparison: it is shown, and its characters have a meaning."""
    characters = len("".join(text.split()))
    return characters > 0 and drawn.invisible <= 0.5 and _count_bad(text) <= characters * _GARBAGE_SHARE


def is_fuller(own: str, recognised: str) -> bool:
    """Return whether a page's own text has as many words as were recognised, and is the same text."""
    mine, seen = Counter(_WORD.findall(own.casefold())), Counter(_WORD.findall(recognised.casefold()))
    if not seen:
        return bool(mine) and not is_garbage(own, len("".join(own.split())))
    return mine.total() >= seen.total() and (mine & seen).total() >= _AGREES * seen.total()


def is_garbage(text: str, characters: int) -> bool:
    """`characters`: how many are not spaces."""
    plain, beyond = _parted(text)
    if _count_bad(text) > characters * _GARBAGE_SHARE:
        return True
    letters = _count(plain, _LETTERS)
    accented = sum(map(str.isalpha, beyond))
    if letters >= _LETTERS_LEAST and letters > characters * _WORDLESS_SHARE:
        # Letters moved along the alphabet, as by a font without its table, lose their vowels.
        return accented < letters * 0.1 and _count(plain, _VOWELS) < letters * _VOWELS_LEAST
    words = letters + accented + _count(plain, _DIGITS) + sum(map(str.isdigit, beyond))
    return characters >= _FEW_CHARACTERS and words < characters * _WORDLESS_SHARE


def _count_bad(text: str) -> int:
    plain, beyond = _parted(text)
    unmapped = sum(map(len, _UNMAPPED.findall(text))) if "(cid:" in text else 0
    return _count(plain, _BAD_ASCII) + len(_BAD.findall(beyond)) + unmapped


def letters_in(text: str) -> int:
    plain, beyond = _parted(text)
    return _count(plain, _LETTERS) + sum(map(str.isalpha, beyond))


def _parted(text: str) -> tuple[bytes, str]:
    """Most pages have only a few characters beyond ASCII: they are looked at one by one, the others all at once."""
    plain = text.encode("ascii", "ignore")
    return plain, "" if len(plain) == len(text) else _ASCII.sub("", text)


def _count(plain: bytes, marked: bytes) -> int:
    """As the bits of one large number: to look at each character takes twice the time and more, and to delete them half
    as much again, for no processor guesses which character comes next."""
    return int.from_bytes(plain.translate(marked), "little").bit_count()
