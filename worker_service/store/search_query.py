"""Translate a user's search query into FTS5's query language, so that no input is a syntax error.

A word extends from blank to blank: `scope-3` becomes the phrase "scope 3". AND, OR, NOT and NEAR are operators only in
capitals between two operands.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence

# Default maximum number of words between the operands of NEAR.
NEAR_WORDS = 10

# Maximum nesting of brackets; deeper groups are dropped. FTS5's own limit is slightly higher.
_DEPTH_MAX = 8
_QUOTES = str.maketrans("“”„\0", '""" ')
_TOKEN = re.compile(
    r'NEAR\((?=[^()]*[^\W_])(?P<near>(?:[^()"]|"[^"]*")*?)(?:,\s*(?P<within>\d{1,6})\s*)?\)(?=[\s()]|$)'
    r'|"(?P<phrase>[^"]*"\*?)'
    r'|(?P<word>[^\s"()]+(?:\([^\s"()]*\)[^\s"()]*)*)'
    r"|(?P<bracket>[()])"
)
_LETTERS = re.compile(r"[^\W_]+")
_NEAR = re.compile(r"NEAR(?:/(\d{1,6}))?")
_OPERATORS = ("AND", "OR", "NOT")
_PHRASE_OR_NEAR = re.compile(r'NEAR\((?:[^()"]|"[^"]*")*\)|"[^"]*"(?: \*)?')
_SHARP_S = re.compile("[ßẞ]")
# Shorter words are one edit away from too many others.
_SUGGESTION_LETTERS_MIN, _SUGGESTION_LETTERS_MAX = 4, 24


def fts_query(text: str) -> str:
    """Return the FTS5 query for a user's query, or "" if it has no letter and no digit."""
    return _parse_group(_TOKEN.finditer(_clean_query(text)), 0)


def plain_operands(text: str) -> list[str]:
    """Return the words and phrases of a query, or nothing if it has operators.

    Among several words, `high-speed` is returned as two words.
    """
    tokens = [token for token in _TOKEN.finditer(_clean_query(text)) if not token["bracket"]]
    if any(token["near"] is not None or _is_operator(token["word"] or "") for token in tokens):
        return []
    operands = [operand for token in tokens if (operand := _operand(token))]
    if len(operands) > 1:
        operands = [part for token in tokens for part in _operands_of(token)]
    return [*dict.fromkeys(operands)]


def _operands_of(token: re.Match[str]) -> list[str]:
    if token["word"] is None or token["word"].endswith("*"):
        return [operand] if (operand := _operand(token)) else []
    return [fts_phrase(word) for word in _LETTERS.findall(token["word"])]


def with_spellings(query: str) -> str:
    """Let an FTS5 query also match spellings with ß for ss, and ss for ß."""
    return _PHRASE_OR_NEAR.sub(lambda found: any_of(_spellings(found[0])), query)


def _spellings(phrase: str) -> list[str]:
    return [*dict.fromkeys((phrase, _SHARP_S.sub("ss", phrase), re.sub("ss", "ß", phrase, flags=re.IGNORECASE)))]


def any_of(operands: Sequence[str]) -> str:
    return _join(operands, "OR")


def fts_phrase(text: str) -> str:
    """Return an FTS5 phrase, or "" if `text` has no letter and no digit. A star at the end makes it a prefix query."""
    whole = _clean_query(text).replace('"', " ").rstrip()
    words = whole.rstrip("*")
    if not any(character.isalnum() for character in words):
        return ""
    return f'"{words}" *' if len(words) < len(whole) else f'"{words}"'


def _clean_query(text: str) -> str:
    # Replace lone surrogates, which a command-line argument contains if it is not UTF-8.
    return text.encode("utf-8", "replace").decode().translate(_QUOTES)


def _parse_group(tokens: Iterator[re.Match[str]], depth: int) -> str:
    """Consume tokens up to the closing bracket or the end."""
    terms: list[str] = []
    for token in tokens:
        if token["bracket"] == "(":
            terms.append(_parse_group(tokens, depth + 1) if depth < _DEPTH_MAX else "")
        elif token["bracket"] and depth:
            break
        elif token["near"] is not None:
            terms.append(_near_group(token))
        else:
            terms.append(token["word"] if _is_operator(token["word"] or "") else _operand(token))
    return _or_group(_resolve_operators([term for term in terms if term]))


def _near_group(token: re.Match[str]) -> str:
    """Translate `NEAR(a b, 10)`, the form that FTS5 itself uses."""
    operands = [_operand(inner) for inner in _TOKEN.finditer(token["near"])]
    return _near_query(operands, int(token["within"] or NEAR_WORDS))


def _operand(token: re.Match[str]) -> str:
    return fts_phrase(token["phrase"] or token["word"] or "")


def _is_operator(term: str) -> bool:
    return term in _OPERATORS or _NEAR.fullmatch(term) is not None


def _resolve_operators(terms: Sequence[str]) -> list[str]:
    """Turn operators without two operands into words."""
    # FTS5's NOT means AND NOT, so drop an AND before it.
    terms = [term for term, after in zip(terms, [*terms, ""][1:], strict=True) if (term, after) != ("AND", "NOT")]
    around = zip(["", *terms], terms, [*terms, ""][1:], strict=False)
    return [term if _has_operands(term, (before, after)) else fts_phrase(term) for before, term, after in around]


def _has_operands(term: str, neighbours: tuple[str, str]) -> bool:
    if term in _OPERATORS:
        return all(neighbour and not _is_operator(neighbour) for neighbour in neighbours)
    # FTS5's NEAR takes words and phrases, not groups.
    return not _is_operator(term) or all(neighbour.startswith('"') for neighbour in neighbours)


# ── Operators, from the lowest precedence to the highest ──


def _or_group(terms: Sequence[str]) -> str:
    return _join([_and_group(part) for part in _split_at(terms, "OR")], "OR")


def _and_group(terms: Sequence[str]) -> str:
    return _join([_not_group(part) for part in _split_at(terms, "AND")], "AND")


def _not_group(terms: Sequence[str]) -> str:
    wanted, *unwanted = (_near_chains(part) for part in _split_at(terms, "NOT"))
    return _join([wanted, _join(unwanted, "OR")] if unwanted else [wanted], "NOT")


def _near_chains(terms: Sequence[str]) -> str:
    chains: list[list[str]] = []
    for before, term in zip(["", *terms], terms, strict=False):
        if _NEAR.fullmatch(before) or _NEAR.fullmatch(term):
            chains[-1].append(term)
        else:
            chains.append([term])
    return _join([_near_chain(chain) for chain in chains], "AND")


def _near_chain(terms: Sequence[str]) -> str:
    distances = [found[1] or NEAR_WORDS for found in map(_NEAR.fullmatch, terms[1::2]) if found]
    return _near_query(terms[::2], max(map(int, distances), default=0))


def _near_query(operands: Sequence[str], within: int) -> str:
    operands = [operand for operand in operands if operand]
    return f"NEAR({' '.join(operands)}, {within})" if len(operands) > 1 else "".join(operands)


def _split_at(terms: Sequence[str], operator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for term in terms:
        if term == operator:
            parts.append([])
        else:
            parts[-1].append(term)
    return parts


def _join(terms: Sequence[str], operator: str) -> str:
    return f"({f' {operator} '.join(terms)})" if len(terms) > 1 else "".join(terms)


# ── Suggestions for a word that occurs nowhere ──


def word_edits(word: str) -> list[str]:
    # The words with one letter more, less or changed, or two neighbours swapped.
    return [*dict.fromkeys(_edits(word))] if _SUGGESTION_LETTERS_MIN <= len(word) <= _SUGGESTION_LETTERS_MAX else []


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
