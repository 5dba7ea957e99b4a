"""Decide whether a page needs OCR: its text is missing, garbage, or another OCR program's, invisible under an image."""

from __future__ import annotations

import re
import string
from collections import Counter
from enum import StrEnum

from msgspec import Struct

_COVERS = 0.5
_FEW_CHARACTERS = 50
"""Fewer on a scan are a stamp or a page number."""
_GARBAGE_SHARE = 0.1
_LETTERS_LEAST = 100
_VOWELS_LEAST = 0.18
_WORDLESS_SHARE = 0.4

# Characters that no text contains on purpose: unknown, private, unassigned, control.
_BAD = re.compile("[\ufffd\ufffe\uffff\ue000-\uf8ff\x80-\x9f]")
_ASCII = re.compile("[\x00-\x7f]+")
_UNMAPPED = re.compile(r"\(cid:\d+\)")


def _membership_table(characters: str) -> bytes:
    return bytes(chr(one) in characters for one in range(256))


_BAD_ASCII = _membership_table("".join(map(chr, {*range(32), 127} - {9, 10, 12, 13})))
_LETTERS = _membership_table(string.ascii_letters)
_VOWELS = _membership_table("aeiouyAEIOUY")
_DIGITS = _membership_table(string.digits)
_SPACES = _membership_table(" \n\t")
_LEADERS = re.compile(r"(?:[.·…_]\s*){4,}")
_WORD = re.compile(r"\w+")
_AGREES = 0.5


class Verdict(StrEnum):
    LAYER = "layer"
    OCR = "ocr"
    BLANK = "blank"


class PageInk(Struct, frozen=True):
    covered: float = 0.0
    invisible: float = 0.0
    is_empty: bool = False


def classify_page(text: str, drawn: PageInk) -> Verdict:
    characters = len(text) - _count_marked(text.encode("ascii", "ignore"), _SPACES)
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


def is_worth_comparing(text: str, drawn: PageInk) -> bool:
    characters = len("".join(text.split()))
    return characters > 0 and drawn.invisible <= 0.5 and _count_bad(text) <= characters * _GARBAGE_SHARE


def is_fuller(own: str, recognised: str) -> bool:
    mine, seen = Counter(_WORD.findall(own.casefold())), Counter(_WORD.findall(recognised.casefold()))
    if not seen:
        return bool(mine) and not is_garbage(own, len("".join(own.split())))
    return mine.total() >= seen.total() and (mine & seen).total() >= _AGREES * seen.total()


def is_garbage(text: str, characters: int) -> bool:
    plain, beyond = _split_ascii(text)
    if _count_bad(text) > characters * _GARBAGE_SHARE:
        return True
    letters = _count_marked(plain, _LETTERS)
    accented = sum(map(str.isalpha, beyond))
    if letters >= _LETTERS_LEAST and letters > characters * _WORDLESS_SHARE:
        # A font without a character map shifts letters along the alphabet, which leaves few vowels.
        return accented < letters * 0.1 and _count_marked(plain, _VOWELS) < letters * _VOWELS_LEAST
    words = letters + accented + _count_marked(plain, _DIGITS) + sum(map(str.isdigit, beyond))
    return characters >= _FEW_CHARACTERS and words < characters * _WORDLESS_SHARE


def _count_bad(text: str) -> int:
    plain, beyond = _split_ascii(text)
    unmapped = sum(map(len, _UNMAPPED.findall(text))) if "(cid:" in text else 0
    return _count_marked(plain, _BAD_ASCII) + len(_BAD.findall(beyond)) + unmapped


def letters_in(text: str) -> int:
    plain, beyond = _split_ascii(text)
    return _count_marked(plain, _LETTERS) + sum(map(str.isalpha, beyond))


def _split_ascii(text: str) -> tuple[bytes, str]:
    """Return the ASCII characters, to be counted in bulk, and the others."""
    plain = text.encode("ascii", "ignore")
    return plain, "" if len(plain) == len(text) else _ASCII.sub("", text)


def _count_marked(plain: bytes, marked: bytes) -> int:
    """Count bits of one large number, in half the time of testing each."""
    return int.from_bytes(plain.translate(marked), "little").bit_count()
