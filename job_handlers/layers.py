"""Does a page's own text do, or has the page to be looked at? Pure: facts in, verdict out.

Text will not do where it is missing, where it is garbage, or where it is invisible under an image that covers the page,
for then somebody else's OCR wrote it. A page on which nothing is drawn is blank.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from enum import StrEnum

_COVERS = 0.5
"""Of the page: so much under images makes it a scan."""
_FEW_CHARACTERS = 50
"""On a scan: a stamp or a page number, and not its text."""
_GARBAGE_SHARE = 0.1
_LETTERS_LEAST = 100
_VOWELS_LEAST = 0.18
_WORDLESS_SHARE = 0.4

# What no text has on purpose: unknown, private, unassigned, control.
_BAD = re.compile("[\ufffd\ufffe\uffff\ue000-\uf8ff\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
_UNMAPPED = re.compile(r"\(cid:\d+\)")
_ASCII_LETTERS = string.ascii_letters.encode()
_NO_LETTERS = bytes(set(range(256)) - set(_ASCII_LETTERS))
_NO_VOWELS = bytes(set(range(256)) - set(b"aeiouyAEIOUY"))


class Verdict(StrEnum):
    LAYER = "layer"
    OCR = "ocr"
    BLANK = "blank"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What lies on a page, without its text being read."""

    covered: float = 0.0
    """Share of the page that images cover."""
    invisible: float = 0.0
    """Share of its text that is not shown."""
    is_empty: bool = False


def judge(text: str, drawn: Drawn) -> Verdict:
    characters = len(text) - text.count(" ") - text.count("\n")
    if not characters or text.isspace():
        return Verdict.BLANK if drawn.is_empty else Verdict.OCR
    is_scan = drawn.covered >= _COVERS
    if is_scan and (characters < _FEW_CHARACTERS or drawn.invisible > 0.5):
        return Verdict.OCR
    return Verdict.OCR if is_garbage(text, characters) else Verdict.LAYER


def is_garbage(text: str, characters: int) -> bool:
    """`characters`: how many are not spaces."""
    # Most pages have only a few characters beyond ASCII, and no letters to doubt.
    bad = 0 if text.isascii() and text.isprintable() else len(_BAD.findall(text))
    if "(cid:" in text:
        bad += sum(map(len, _UNMAPPED.findall(text)))
    if bad > characters * _GARBAGE_SHARE:
        return True
    plain = text.encode("ascii", "ignore")
    letters = len(plain.translate(None, _NO_LETTERS))
    if letters >= _LETTERS_LEAST and letters > characters * _WORDLESS_SHARE:
        # Letters moved along the alphabet, as by a font without its table, lose their vowels.
        accented = sum(one.isalpha() for one in text) - letters if not text.isascii() else 0
        if accented < letters * 0.1:
            return len(plain.translate(None, _NO_VOWELS)) < letters * _VOWELS_LEAST
        return False
    words = letters + sum(one.isdigit() for one in text)
    if not text.isascii():
        words += sum(one.isalpha() and not one.isascii() for one in text)
    return characters >= _FEW_CHARACTERS and words < characters * _WORDLESS_SHARE
