"""Measures of the distance between recognised text and the truth.

Runs of white space count as one space, and all kinds of quotation marks as the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

_STRAIGHT = str.maketrans("‘’“”″", '\'\'"""')


def character_errors(read: Sequence[str], truth: Sequence[str]) -> float:
    """Return the characters to insert, remove or change, as a percentage of the true ones, over all pages."""
    pairs = [(_plain(one), _plain(other)) for one, other in zip(read, truth, strict=True)]
    return 100 * sum(edits(one, other) for one, other in pairs) / sum(len(other) for _, other in pairs)


def word_f1(read: Sequence[str], truth: Sequence[str]) -> float:
    """Return the F1 score of the words of each page in any order."""
    common = total = 0
    for one, other in zip(read, truth, strict=True):
        words, wanted = Counter(_plain(one).split()), Counter(_plain(other).split())
        common += (words & wanted).total()
        total += words.total() + wanted.total()
    return 2 * common / total


def edits(one: str, other: str) -> int:
    """Return the Levenshtein distance, computed a column at a time in the bits of a number (Myers 1999, Hyyrö 2003)."""
    if not one:
        return len(other)
    places: dict[str, int] = defaultdict(int)
    for at, character in enumerate(one):
        places[character] |= 1 << at
    every, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    more, less, distance = every, 0, len(one)
    for character in other:
        same = places.get(character, 0)
        kept = same | less
        across = (((same & more) + more) ^ more) | same
        up, down = less | (~(across | more) & every), more & across
        distance += 1 if up & last else -1 if down & last else 0
        up, down = (up << 1 | 1) & every, (down << 1) & every
        more, less = down | (~(kept | up) & every), up & kept
    return distance


def _plain(text: str) -> str:
    return " ".join(text.translate(_STRAIGHT).replace("''", '"').split())
