"""What people type into a search, in the language of SQLite's FTS5. Nothing that they type is an error of syntax.

A word is what stands between blanks, signs and all: `scope-3` finds what FTS5 takes for scope and 3 side by side.
AND, OR, NOT and NEAR are operators in capitals and between two operands; everywhere else they are words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

NEAR_WORDS = 10
"""How many words may stand between two that are near."""

_DEPTH_MOST = 8
"""Of brackets; further in they mean nothing. FTS5 itself ends a little later."""
_QUOTES = str.maketrans("“”„\0", '""" ')
_TOKEN = re.compile(
    r'NEAR\((?=[^()]*[^\W_])(?P<near>(?:[^()"]|"[^"]*")*?)(?:,\s*(?P<within>\d{1,6})\s*)?\)(?=[\s()]|$)'
    r'|"(?P<phrase>[^"]*"\*?)'
    r'|(?P<word>[^\s"()]+(?:\([^\s"()]*\)[^\s"()]*)*)'
    r"|(?P<bracket>[()])"
)
_NEAR = re.compile(r"NEAR(?:/(\d{1,6}))?")
_OPERATORS = ("AND", "OR", "NOT")


def query_of(said: str) -> str:
    """Empty: it has no letter and no digit."""
    return _group(_TOKEN.finditer(_readable(said)), 0)


def phrase_of(said: str) -> str:
    """Its words side by side; a star at its end makes the last one the beginning of a word. Empty: it has none."""
    whole = _readable(said).replace('"', " ").rstrip()
    words = whole.rstrip("*")
    if not any(one.isalnum() for one in words):
        return ""
    return f'"{words}" *' if len(words) < len(whole) else f'"{words}"'


def _readable(said: str) -> str:
    # Halves of pairs, such as an argument holds that is not UTF-8.
    return said.encode("utf-8", "replace").decode().translate(_QUOTES)


def _group(tokens: Iterator[re.Match[str]], depth: int) -> str:
    """Up to the bracket that closes it, or the end."""
    terms: list[str] = []
    for token in tokens:
        if token["bracket"] == "(":
            terms.append(_group(tokens, depth + 1) if depth < _DEPTH_MOST else "")
        elif token["bracket"] and depth:
            break
        elif token["near"] is not None:
            terms.append(_near_group(token))
        else:
            terms.append(token["word"] if _is_operator(token["word"] or "") else _operand(token))
    return _any_of(_settled([term for term in terms if term]))


def _near_group(token: re.Match[str]) -> str:
    """As FTS5 itself writes it."""
    operands = [_operand(one) for one in _TOKEN.finditer(token["near"])]
    return _near(operands, int(token["within"] or NEAR_WORDS))


def _operand(token: re.Match[str]) -> str:
    return phrase_of(token["phrase"] or token["word"] or "")


def _is_operator(term: str) -> bool:
    return term in _OPERATORS or _NEAR.fullmatch(term) is not None


def _settled(terms: Sequence[str]) -> list[str]:
    """Operators where they are meant, and their words where they are not."""
    # FTS5's NOT is an AND NOT already.
    terms = [term for term, after in zip(terms, [*terms, ""][1:], strict=True) if (term, after) != ("AND", "NOT")]
    around = zip(["", *terms], terms, [*terms, ""][1:], strict=False)
    return [term if _is_meant(term, (before, after)) else phrase_of(term) for before, term, after in around]


def _is_meant(term: str, neighbours: tuple[str, str]) -> bool:
    if term in _OPERATORS:
        return all(one and not _is_operator(one) for one in neighbours)
    # Only words and phrases are near each other.
    return not _is_operator(term) or all(one.startswith('"') for one in neighbours)


# --- from the loosest to the tightest -----------------------------------------------------------------


def _any_of(terms: Sequence[str]) -> str:
    return _joined([_all_of(part) for part in _parted(terms, "OR")], "OR")


def _all_of(terms: Sequence[str]) -> str:
    return _joined([_without(part) for part in _parted(terms, "AND")], "AND")


def _without(terms: Sequence[str]) -> str:
    wanted, *unwanted = (_side_by_side(part) for part in _parted(terms, "NOT"))
    return _joined([wanted, _joined(unwanted, "OR")] if unwanted else [wanted], "NOT")


def _side_by_side(terms: Sequence[str]) -> str:
    chains: list[list[str]] = []
    for before, term in zip(["", *terms], terms, strict=False):
        if _NEAR.fullmatch(before) or _NEAR.fullmatch(term):
            chains[-1].append(term)
        else:
            chains.append([term])
    return _joined([_chained(chain) for chain in chains], "AND")


def _chained(terms: Sequence[str]) -> str:
    distances = [found[1] or NEAR_WORDS for found in map(_NEAR.fullmatch, terms[1::2]) if found]
    return _near(terms[::2], max(map(int, distances), default=0))


def _near(operands: Sequence[str], within: int) -> str:
    operands = [one for one in operands if one]
    return f"NEAR({' '.join(operands)}, {within})" if len(operands) > 1 else "".join(operands)


def _parted(terms: Sequence[str], operator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for term in terms:
        if term == operator:
            parts.append([])
        else:
            parts[-1].append(term)
    return parts


def _joined(terms: Sequence[str], operator: str) -> str:
    return f"({f' {operator} '.join(terms)})" if len(terms) > 1 else "".join(terms)
