from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the most similar choice, or '' if none is similar."""
    import difflib  # only needed after a mistake

    return next(iter(difflib.get_close_matches(word, list(choices), 1, cutoff)), "")


def did_you_mean(word: str, choices: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    near = nearest(word, choices, cutoff)
    return f"did you mean {near}?" if near else otherwise
