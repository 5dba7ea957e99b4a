"""Suggest words of the index that are one edit away from a misspelled word."""

from __future__ import annotations

import string
from collections.abc import Iterator

_LETTERS_LEAST, _LETTERS_MOST = 4, 24
"""Shorter words are one edit away from too many others."""


def one_edit_away(word: str) -> list[str]:
    """Return all words with one letter more, less or changed, or two neighbours swapped."""
    return [*dict.fromkeys(_edits(word))] if _LETTERS_LEAST <= len(word) <= _LETTERS_MOST else []


def _edits(word: str) -> Iterator[str]:
    # English letters and those of the word are enough: the index has no accents.
    letters = sorted({*string.ascii_lowercase, *word})
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for letter in letters:
            yield before + letter + after
            yield before + letter + after[1:]
