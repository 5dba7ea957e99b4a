"""How far a text that was read is from the truth.

White space is one thing, however much of it there is; a quotation mark is one thing, whichever way it is bent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

_STRAIGHT = str.maketrans("‘’“”″", '\'\'"""')


def character_errors(read: Sequence[str], truth: Sequence[str]) -> float:
    """Characters to insert, remove or change, in percent of those that stand there; over all pages."""
    pairs = [(_plain(one), _plain(other)) for one, other in zip(read, truth, strict=True)]
    return 100 * sum(edits(one, other) for one, other in pairs) / sum(len(other) for _, other in pairs)


def word_f1(read: Sequence[str], truth: Sequence[str]) -> float:
    """Of the words as they stand, in any order: 1 is all of them and no other."""
    common = total = 0
    for one, other in zip(read, truth, strict=True):
        words, wanted = Counter(_plain(one).split()), Counter(_plain(other).split())
        common += (words & wanted).total()
        total += words.total() + wanted.total()
    return 2 * common / total


def edits(one: str, other: str) -> int:
    """Levenshtein's distance, a whole column at a time in the bits of a number (Myers 1999, Hyyrö 2003)."""
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
