"""Rank pages by the stems of a query's words (BM25), then again with frequent words of the best pages (RM3)."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from worker_service.base.language_id import KNOWN_LANGUAGES, language_of, small_words
from worker_service.store.search_query import with_spellings

Page = TypeVar("Page", bound=Hashable)

# Returns the stem of each word: "flood" for "flooding".
Stem = Callable[[list[str]], list[str]]

# More pages did not improve the order.
RERANKED_PAGES_MAX = 30

_SNOWBALL_NAMES = {
    "ces": "czech", "dan": "danish", "deu": "german", "ell": "greek", "eng": "english", "est": "estonian",
    "fin": "finnish", "fra": "french", "hun": "hungarian", "ita": "italian", "lit": "lithuanian", "nld": "dutch",
    "nor": "norwegian", "pol": "polish", "por": "portuguese", "ron": "romanian", "rus": "russian", "spa": "spanish",
    "srp": "serbian", "swe": "swedish", "tur": "turkish",
}  # fmt: skip
_WORD = re.compile(r"[^\W_]+")
_PLAIN = re.compile(r'"([^\W_]+)"')
# Shorter stems begin too many other words.
_STEM_LETTERS_MIN = 4
_TEXT_CHARACTERS_MAX = 20_000

# BM25's saturation and length normalisation, and RM3's parameters, chosen on half of the Cranfield questions.
_K1, _B = 1.6, 0.75
_FEEDBACK_PAGES, _FEEDBACK_STEMS, _FEEDBACK_LETTERS_MIN, _ORIGINAL_SHARE = 5, 15, 3, 0.5
# Constant of reciprocal rank fusion, and the weight of the rank by meaning, chosen in the same way.
_FUSION, _MEANING_SHARE = 10, 0.7


def language_for(texts: Sequence[str]) -> str | None:
    """Return the language of the texts, if there is a stemmer for it."""
    return language_of("\n".join(texts), sorted(KNOWN_LANGUAGES.intersection(_SNOWBALL_NAMES)))


def stemmer_for(language: str | None) -> Stem:
    if language is None:
        return list
    import Stemmer  # only needed for queries of several words

    stem: Stem = Stemmer.Stemmer(_SNOWBALL_NAMES[language]).stemWords
    return stem


def without_small_words(operands: Sequence[str], language: str | None) -> Sequence[str]:
    """Leave out words that are in nearly every paragraph, unless the query has no other."""
    if language is None:
        return operands
    small = small_words(language)
    return [operand for operand in operands if operand.strip('"').casefold() not in small] or operands


class Term(Struct, frozen=True):
    word: str
    query: str
    """The term in FTS5's syntax. A plain word finds all words with its stem."""
    stems: tuple[str, ...]


def term_of(operand: str, stem: Stem) -> Term:
    stems = tuple(stem(_words(operand)))
    plain = _PLAIN.fullmatch(operand)
    if plain is None or len(stems[0]) < _STEM_LETTERS_MIN or not fold(plain[1]).startswith(fold(stems[0])):
        return Term(operand.strip('"'), with_spellings(operand), stems)
    return Term(plain[1], with_spellings(f'"{stems[0]}" *'), stems)


def fold(word: str) -> str:
    """Remove accents, as the index does; some stemmers do so, too."""
    characters = unicodedata.normalize("NFD", word.casefold())
    return "".join(character for character in characters if not unicodedata.combining(character))


def rank_pages(
    texts: Mapping[int, str], pages_with: Mapping[Term, int], pages: int, stem: Stem
) -> dict[int, list[str]]:
    """Return the pages, best first, and the words that each lacks.

    `pages_with` is the number of pages with each term, `pages` the number of all pages.
    """
    rarity = {word: _rarity(count, pages) for term, count in pages_with.items() for word in term.stems}
    stems = {page: Counter(stem(_words(text[:_TEXT_CHARACTERS_MAX]))) for page, text in texts.items()}
    scores = _bm25(stems, rarity)
    order = sorted(scores, key=lambda page: (-scores[page], page))
    scores = _bm25(stems, _with_feedback(rarity, stems, {page: scores[page] for page in order[:_FEEDBACK_PAGES]}))
    order.sort(key=lambda page: -scores[page])
    return {page: [term.word for term in pages_with if not stems[page].keys() >= set(term.stems)] for page in order}


def _with_feedback(
    rarity: Mapping[str, float], stems: Mapping[int, Counter[str]], best: Mapping[int, float]
) -> dict[str, float]:
    """Return weights of the query's words and of frequent words on the best pages."""
    shares: defaultdict[str, float] = defaultdict(float)
    for page, score in best.items():
        for word, count in stems[page].items():
            if len(word) >= _FEEDBACK_LETTERS_MIN:
                shares[word] += score * count / stems[page].total()
    added = {word: shares[word] for word in sorted(shares, key=lambda word: -shares[word])[:_FEEDBACK_STEMS]}
    total = sum(added.values()) or 1.0
    pages_with = Counter(word for counts in stems.values() for word in counts)
    weights = {word: rarity_of_word * _ORIGINAL_SHARE / len(rarity) for word, rarity_of_word in rarity.items()}
    for word, share in added.items():
        # The rarity of an added word among these pages will do: counting it in the whole index costs time.
        rarity_of_word = rarity.get(word) or _rarity(pages_with[word], len(stems))
        weights[word] = weights.get(word, 0.0) + rarity_of_word * (1 - _ORIGINAL_SHARE) * share / total
    return weights


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _rarity(pages_with: int, pages: int) -> float:
    return math.log(1 + (max(pages, pages_with) - pages_with + 0.5) / (pages_with + 0.5))


def _bm25(stems: Mapping[int, Counter[str]], weights: Mapping[str, float]) -> dict[int, float]:
    lengths = {page: counts.total() for page, counts in stems.items()}
    mean = sum(lengths.values()) / max(1, len(lengths)) or 1.0
    return {
        page: sum(
            weight * counts[word] * (_K1 + 1) / (counts[word] + _K1 * (1 - _B + _B * lengths[page] / mean))
            for word, weight in weights.items()
            if word in counts
        )
        for page, counts in stems.items()
    }


def fuse_ranks(by_words: Sequence[Page], by_meaning: Iterable[tuple[Page, int]]) -> list[Page]:
    """Merge two orders by reciprocal rank fusion. Ranks by meaning start at 1."""
    scores = {page: 1 / (_FUSION + rank) for rank, page in enumerate(by_words, 1)}
    for page, rank in by_meaning:
        scores[page] = scores.get(page, 0.0) + _MEANING_SHARE / (_FUSION + rank)
    return sorted(scores, key=lambda page: -scores[page])
