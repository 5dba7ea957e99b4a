from __future__ import annotations

import re
from collections.abc import Iterator

_DIVISION = r"(?:\u00ad\s*|[-\u2010][ \t]*\r?\n[ \t]*)"
_LETTERS = r"[^\W\d_]++"
_DIVIDED = re.compile(rf"{_LETTERS}(?:{_DIVISION}{_LETTERS})+")
_DIVISIONS = re.compile(_DIVISION)


def divided_words(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and whole word of each word divided by a line end or soft hyphen."""
    if _DIVISIONS.search(text):
        for match in _DIVIDED.finditer(text):
            yield match.start(), match.end(), _DIVISIONS.sub("", match[0])
