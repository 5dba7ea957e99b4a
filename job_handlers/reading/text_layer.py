"""Decide whether a page needs OCR: its text is missing, garbage, or another OCR program's, invisible under an image."""

from __future__ import annotations

import re
import string
from collections import Counter
from enum import StrEnum

from msgspec import Struct

_SCAN_COVERS_LEAST = 0.5  # Of the page.
_INVISIBLE_MOST = 0.5  # Of the text.
_FEW_CHARACTERS = 50  # Fewer on a scan are a stamp or a page number.
_GARBAGE_SHARE = 0.1  # Of bad characters in a text.
_LETTERS_LEAST = 100  # With fewer, the share of vowels says nothing.
_VOWELS_LEAST = 0.18  # Of the letters of a to z.
_OTHER_LETTERS_MOST = 0.1  # Per letter of a to z. With more, such as accented vowels, the share says nothing.
_WORDLESS_SHARE = 0.4  # A text with a smaller share of letters and digits has no words.

# Characters that no text contains on purpose: unknown, private, unassigned, control.
_BAD = re.compile("[\ufffd\ufffe\uffff\ue000-\uf8ff\x80-\x9f]")
_ASCII = re.compile("[\x00-\x7f]+")
_UNMAPPED = re.compile(r"\(cid:\d+\)")


def _membership_table(characters: str) -> bytes:
    """Return a table for `bytes.translate` that maps the characters to 1, and others to 0."""
    return bytes(chr(code) in characters for code in range(256))


_BAD_ASCII = _membership_table("".join(map(chr, {*range(32), 127} - {9, 10, 12, 13})))
_LETTERS = _membership_table(string.ascii_letters)
_VOWELS = _membership_table("aeiouyAEIOUY")
_DIGITS = _membership_table(string.digits)
_SPACES = _membership_table(" \n\t")
_LEADERS = re.compile(r"(?:[.·…_]\s*){4,}")
_WORD = re.compile(r"\w+")
_SAME_WORDS_LEAST = 0.5  # Of the recognised words, in the page's own text.


class Verdict(StrEnum):
    LAYER = "layer"
    OCR = "ocr"
    BLANK = "blank"


class PageInk(Struct, frozen=True):
    covered: float = 0.0
    """Share of the page that images cover."""
    invisible: float = 0.0
    """Share of the text that is invisible."""
    is_empty: bool = False


def classify_page(text: str, ink: PageInk) -> Verdict:
    character_count = len(text) - _count_marked(text.encode("ascii", "ignore"), _SPACES)
    if not character_count or text.isspace():
        return Verdict.BLANK if ink.is_empty else Verdict.OCR
    is_scan = ink.covered >= _SCAN_COVERS_LEAST
    if is_scan and (character_count < _FEW_CHARACTERS or ink.invisible > _INVISIBLE_MOST):
        return Verdict.OCR
    return Verdict.OCR if _is_garbage_without_leaders(text, character_count) else Verdict.LAYER


def _is_garbage_without_leaders(text: str, character_count: int) -> bool:
    if not is_garbage(text, character_count):
        return False
    # A table of contents may have more dots than letters.
    remaining = _LEADERS.sub("", text)
    remaining_characters = len("".join(remaining.split()))
    has_leaders = len(remaining) < len(text)
    return not has_leaders or not remaining_characters or is_garbage(remaining, remaining_characters)


def is_worth_comparing(text: str, ink: PageInk) -> bool:
    """Return whether the page's own text may be better than recognised text."""
    character_count = len("".join(text.split()))
    if not character_count or ink.invisible > _INVISIBLE_MOST:
        return False
    return _count_bad(text) <= character_count * _GARBAGE_SHARE


def is_fuller(own: str, recognised: str) -> bool:
    """Return whether the page's own text has as many words as the recognised text, and at least half are the same."""
    own_words, recognised_words = (Counter(_WORD.findall(text.casefold())) for text in (own, recognised))
    if not recognised_words:
        return bool(own_words) and not is_garbage(own, len("".join(own.split())))
    same_count = (own_words & recognised_words).total()
    return own_words.total() >= recognised_words.total() and same_count >= _SAME_WORDS_LEAST * recognised_words.total()


def is_garbage(text: str, character_count: int) -> bool:
    """`character_count` is the number of characters except spaces."""
    plain, beyond_ascii = _split_ascii(text)
    if _count_bad(text) > character_count * _GARBAGE_SHARE:
        return True
    letters = _count_marked(plain, _LETTERS)
    other_letters = sum(map(str.isalpha, beyond_ascii))
    if letters >= _LETTERS_LEAST and letters > character_count * _WORDLESS_SHARE:
        # A font without a character map shifts letters along the alphabet, which leaves few vowels.
        is_ascii = other_letters < letters * _OTHER_LETTERS_MOST
        return is_ascii and _count_marked(plain, _VOWELS) < letters * _VOWELS_LEAST
    digits = _count_marked(plain, _DIGITS) + sum(map(str.isdigit, beyond_ascii))
    return character_count >= _FEW_CHARACTERS and letters + other_letters + digits < character_count * _WORDLESS_SHARE


def _count_bad(text: str) -> int:
    plain, beyond_ascii = _split_ascii(text)
    unmapped = sum(map(len, _UNMAPPED.findall(text))) if "(cid:" in text else 0
    return _count_marked(plain, _BAD_ASCII) + len(_BAD.findall(beyond_ascii)) + unmapped


def letters_in(text: str) -> int:
    plain, beyond_ascii = _split_ascii(text)
    return _count_marked(plain, _LETTERS) + sum(map(str.isalpha, beyond_ascii))


def _split_ascii(text: str) -> tuple[bytes, str]:
    """Return the ASCII characters, to be counted in bulk, and the others."""
    plain = text.encode("ascii", "ignore")
    return plain, "" if len(plain) == len(text) else _ASCII.sub("", text)


def _count_marked(plain: bytes, marked: bytes) -> int:
    """Count the characters that the table `marked` maps to 1."""
    # Counting the bits of one large number takes half the time of testing each byte.
    return int.from_bytes(plain.translate(marked), "little").bit_count()
