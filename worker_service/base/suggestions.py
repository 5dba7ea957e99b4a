from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib  # only needed after a mistake

    return next(iter(difflib.get_close_matches(word, list(known), 1, cutoff)), "")


def did_you_mean(word: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    near = nearest(word, known, cutoff)
    return f"did you mean {near}?" if near else otherwise
