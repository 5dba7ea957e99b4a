"""Search in the text of pages (SQLite's FTS5), and counts of words."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from worker_service.base.divided_words import divided_words
from worker_service.base.errors import BadInput
from worker_service.jobs.documents import CONFIDENCE_LEAST
from worker_service.jobs.search import (
    FoundCopy,
    FoundDocument,
    FoundPage,
    KeywordCount,
    SearchRequest,
    SearchResult,
)
from worker_service.store.connection import register_fts_count
from worker_service.store.database import Row, StorePart
from worker_service.store.search_query import any_of, fts_phrase, fts_query, plain_operands, with_spellings
from worker_service.store.search_ranking import (
    RERANKED_MOST,
    Stem,
    Term,
    fold,
    fuse_ranks,
    language_for,
    rank_pages,
    stemmer_for,
    term_of,
    without_small_words,
)
from worker_service.store.search_suggestions import one_edit_away

if TYPE_CHECKING:
    from worker_service.base.embedding import Vectors

RANKED_MOST = 2000
"""Maximum number of pages with all words that are ranked. If there are more, only the pages stored last are ranked."""

SOME_RANKED_MOST = 10_000
"""Maximum number of ranked pages that have some of the words."""

SOME_LISTED_MOST = 500
"""Maximum number of pages with some of the words that are returned."""

COMMON_MOST = 1000
"""A word on more pages than this is left out when pages with some of the words are looked for."""

NAMED_MOST = 200
"""Maximum number of documents that are found by name and tags."""

_SAMPLE = 12
"""Number of pages by which the language of a query is chosen."""

_TAGS_MOST = 5000
_NUMBER_MOST = (1 << 63) - 1
_SIMILAR_MOST = 5
_SNIPPET = 200
"""Characters of a page without any of the words."""
_BEFORE, _AFTER = 80, 120
"""Characters of a snippet around a divided word."""


class ChosenTerms(Struct, frozen=True):
    query: str
    """FTS5 query for any of the terms."""
    pages_with: Mapping[Term, int]
    lacking: Sequence[str]
    """Words of the query that are on no page."""
    stem: Stem


class Match(NamedTuple):
    """A page that matches a query."""

    result_id: int
    document_id: int
    number: int
    content: str
    """Digest of the document's file; may be empty."""


_NAME_AND_TAGS = 0
"""`result_id` and `number` of a match of the document's name and tags."""


class MatchGroup(Struct):
    """The matching pages of a document, best first, and its copies."""

    document_id: int
    query: str
    """The FTS5 query that found the pages."""
    missing: Mapping[int, Sequence[str]]
    """Missing words by `result_id`, as far as they are known. Empty for pages with all words."""
    has_all: bool
    is_named: bool = False
    is_similar: bool = False
    matches: list[Match] = field(default_factory=list)
    copies: set[int] = field(default_factory=set)


class Meaning(Struct, frozen=True):
    """The vector of a query, by a model that has vectors of all documents."""

    model: str
    vector: Vectors


class PageSearch(StorePart):
    def find(self, request: SearchRequest, meaning_of: Callable[[], Meaning | None] = lambda: None) -> SearchResult:
        """Return documents with the best of their pages.

        First those with all words in their name and tags or on one page, then those with some of them. `meaning_of`
        returns the vector of the query, to find pages with a similar meaning among the latter.

        Syntax: words, "a phrase", a NEAR b, a OR b, a NOT b, prefix*. Accents, case and punctuation are ignored; any
        text with a letter or digit is a valid query. A query with operators finds only pages that match all of it;
        within one document, pages with some of the words are returned only if none has all.
        """
        query, operands = _fts_query(request.text), plain_operands(request.text)
        matches, is_partial = self._matches(query, request, RANKED_MOST, RANKED_MOST)
        matches += self._match_names_and_tags(query, operands, request)
        all_words = _group(matches, query, {one.result_id: () for one in matches})
        until = request.skip + request.documents
        some_words: dict[int, MatchGroup] = {}
        if operands and not request.needs_all and not is_partial and _needs_more(all_words, until, request):
            terms = self._choose_terms(operands)
            matches, is_partial = self._matches(terms.query, request, SOME_RANKED_MOST, SOME_LISTED_MOST)
            ranked, missing = self._rank(matches, terms)
            some_words = _group(self._with_similar(ranked, meaning_of(), request), terms.query, missing)
            with_words = {match.document_id for match in ranked}
            for document_id, group in some_words.items():
                group.is_similar = document_id not in with_words
        groups = _merge(all_words, some_words)
        pages_with_all = sum(len(one.matches) for one in groups if one.has_all)
        documents_with_all = sum(one.has_all for one in groups)
        return SearchResult(
            self._found_documents(groups[request.skip : until], request),
            documents_with_all,
            pages_with_all,
            len(groups) - documents_with_all,
            sum(len(one.matches) for one in groups) - pages_with_all,
            until if len(groups) > until else None,
            is_partial,
            self._suggest(operands, request) if not documents_with_all else None,
        )

    def page_numbers(self, document_id: int, text: str) -> Sequence[int]:
        """Return the pages of a document that match a query."""
        found = self.find(SearchRequest(text, document_id=document_id, pages_each=0))
        return [number for one in found.items for number in one.page_numbers]

    def _matches(self, query: str, request: SearchRequest, ranked: int, most: int) -> tuple[list[Match], bool]:
        """Return pages, best first, and whether there were more than `ranked`."""
        statement = "matching_pages" if request.document_id is None else "matching_pages_of"
        values = {**_filters(request), "document_id": request.document_id}
        rows = self._db.read(statement, **values, query=query, ranked=ranked, most=most)
        return [Match(*row) for *row, _ in rows], any(total >= ranked for *_, total in rows[:1])

    def _match_names_and_tags(self, query: str, operands: Sequence[str], request: SearchRequest) -> list[Match]:
        """Find documents with all words of the query in their name and tags."""
        if request.document_id is not None:
            return []
        values = {**_filters(request), "most": NAMED_MOST}
        rows = self._db.read("named_documents", query=query, **values)
        words = {fold(operand.strip('"')): operand for operand in operands}
        for tag in self._store.tags.names(request.owner, most=_TAGS_MOST) if words else ():
            if words.keys() >= (parts := {fold(part) for part in tag.split()}):
                others = " AND ".join(operand for word, operand in words.items() if word not in parts)
                rows += self._db.read("tagged_documents", found_tag=tag, query=others, **values)
        return [Match(_NAME_AND_TAGS, document_id, _NAME_AND_TAGS, content) for document_id, content in rows]

    def _suggest(self, operands: Sequence[str], request: SearchRequest) -> str | None:
        """Replace words that are on no page that the asker may see with similar words that are on one."""
        text = request.text
        for word in (operand.strip('"') for operand in operands):
            if word.isalnum() and not self._is_anywhere(word, request):
                rows = self._db.read("similar_words", words=json.dumps(one_edit_away(fold(word))), most=_SIMILAR_MOST)
                similar = (term for (term,) in rows if self._is_anywhere(term, request))
                text = re.sub(rf"\b{re.escape(word)}\b", next(similar, word), text)
        return text if text != request.text else None

    def _is_anywhere(self, word: str, request: SearchRequest) -> bool:
        query = with_spellings(fts_phrase(word))
        [(is_there,)] = self._db.read("is_anywhere", query=query, most=RANKED_MOST, **_filters(request))
        return bool(is_there)

    def _choose_terms(self, operands: Sequence[str]) -> ChosenTerms:
        """Return the words of a query that choose pages, in all their forms.

        Words on many pages cost much and say little, so they are left out unless all are common.
        """
        sample = self._db.read("texts_with", query=any_of(operands), most=_SAMPLE) or self._db.read(
            "newest_texts", most=_SAMPLE
        )
        language = language_for([text for (text,) in sample])
        stem = stemmer_for(language)
        terms = [term_of(operand, stem) for operand in without_small_words(operands, language)]
        counts = {term: self._count_pages(term.query) for term in terms}
        chosen = {term: count for term, count in counts.items() if 0 < count < COMMON_MOST} or counts
        lacking = [term.word for term, count in counts.items() if not count]
        return ChosenTerms(any_of([term.query for term in chosen]), chosen, lacking, stem)

    def _count_pages(self, query: str) -> int:
        [(count,)] = self._db.read("pages_with", query=query, most=COMMON_MOST)
        return int(count)

    def _rank(
        self, matches: Sequence[Match], terms: ChosenTerms
    ) -> tuple[Sequence[Match], Mapping[int, Sequence[str]]]:
        """Rank the first pages again, by their text, and find out which words they lack."""
        first = {match.result_id: match.document_id for match in reversed(matches[:RERANKED_MOST])}
        texts: dict[int, str] = dict(self._db.read("texts", pages=json.dumps([*first.items()])))
        [(pages,)] = self._db.read("last_result")
        ranked = rank_pages(texts, terms.pages_with, pages or 0, terms.stem)
        missing = {page: (*words, *terms.lacking) for page, words in ranked.items()}
        order = {page: at for at, page in enumerate(missing)}
        return sorted(matches, key=lambda one: order.get(one.result_id, RERANKED_MOST)), missing

    def _with_similar(
        self, matches: Sequence[Match], meaning: Meaning | None, request: SearchRequest
    ) -> Sequence[Match]:
        """Merge pages found by words with pages of similar meaning, by reciprocal rank."""
        if meaning is None:
            return matches
        values = {**_filters(request), "document_id": request.document_id}
        best = [match.result_id for match in matches]
        rows = self._store.embeddings.similar(meaning.model, meaning.vector, best, values)
        # A page may have several of the passages, and be a page of several documents.
        ranks: dict[int, int] = {}
        similar = dict.fromkeys(Match(*row) for row in rows)
        return fuse_ranks(matches, [(one, ranks.setdefault(one.result_id, len(ranks) + 1)) for one in similar])

    def _found_documents(self, groups: Sequence[MatchGroup], request: SearchRequest) -> list[FoundDocument]:
        ids = [each for one in groups for each in (one.document_id, *one.copies)]
        facts = {row[0]: row[1:] for row in self._db.read("found_documents", document_ids=json.dumps(ids))}
        snippets: dict[int, str] = {}
        for query in {one.query for one in groups}:
            best = [group.matches[: request.pages_each] for group in groups if group.query == query]
            shown = sorted({match.result_id for matches in best for match in matches})
            snippets |= self._snippets(shown, query, request.marks)
        return [_found_document(group, facts, snippets, request.pages_each) for group in groups]

    def _snippets(self, result_ids: Sequence[int], query: str, marks: tuple[str, str]) -> dict[int, str]:
        if not result_ids:
            return {}
        stretch = {"first": result_ids[0], "last": result_ids[-1], "result_ids": json.dumps(result_ids)}
        rows = self._db.read("snippets", query=query, open=marks[0], close=marks[1], **stretch)
        divided = {result_id: words for result_id, text, words in rows if words and marks[0] not in text}
        texts: dict[int, str] = dict(self._texts_of(divided))
        without = {*result_ids} - {row[0] for row in rows}
        rows += [(one, text[:_SNIPPET], None) for one, text in self._texts_of(without)]
        return {result_id: text for result_id, text, _ in rows} | {
            result_id: _snippet(texts[result_id], _divided_matches(texts[result_id], words, marks[0]), marks)
            for result_id, words in divided.items()
        }

    def _texts_of(self, result_ids: Collection[int]) -> list[Row]:
        return self._db.read("page_text_of", result_ids=json.dumps([*result_ids])) if result_ids else []

    def match_ranges(self, document_id: int, number: int, query: str) -> Sequence[tuple[int, int]]:
        """Return start and end of each match in the text of a page."""
        return next((ranges for _, ranges in self._matches_in(document_id, query, number, number)), ())

    def match_counts(self, document_id: int, query: str) -> Mapping[int, int]:
        """Return the number of matches on each page that has some."""
        return {number: len(ranges) for number, ranges in self._matches_in(document_id, query, 1, _NUMBER_MOST)}

    def _matches_in(
        self, document_id: int, query: str, first: int, last: int
    ) -> Iterator[tuple[int, Sequence[tuple[int, int]]]]:
        # Random marks, which cannot occur in the text.
        begin, end = f"\x02{secrets.token_hex(8)}", f"\x03{secrets.token_hex(8)}"
        place = {"document_id": document_id, "first": first, "last": last, "open": begin, "close": end}
        rows = self._db.read("marked_pages", **place, query=_fts_query(query))
        if not rows and (operands := plain_operands(query)):
            rows = self._db.read("marked_pages", **place, query=self._choose_terms(operands).query)
        for number, marked, divided in rows:
            text, ranges = _ranges_between(marked, begin, end)
            yield number, sorted([*ranges, *_divided_matches(text, divided, begin)])

    def keyword_counts(
        self,
        terms: Sequence[str],
        *,
        owner: str | None = None,
        batch_id: int | None = None,
        document_ids: Sequence[int] | None = None,
    ) -> Sequence[KeywordCount]:
        """Count each word, phrase or prefix* on each page that has it."""
        register_fts_count(self._db.reader)
        counts: list[KeywordCount] = []
        for term in terms:
            query = with_spellings(fts_phrase(term)) or _raise_no_words(term)
            if document_ids is None:
                filters = _filters(SearchRequest(term, owner=owner, batch_id=batch_id))
                rows = self._db.read("keyword_counts", query=query, **filters)
            else:
                rows = self._db.read("keyword_counts_of", query=query, document_ids=json.dumps(list(document_ids)))
            counts += (KeywordCount(term, *row) for row in sorted(rows))
        return counts


def _filters(request: SearchRequest) -> dict[str, object]:
    return {
        "owner": request.owner,
        "batch_id": request.batch_id,
        "kind": request.kind,
        "tags": json.dumps(list(request.tags)),
        "since": request.since,
        "until": request.until,
        "confidence_least": CONFIDENCE_LEAST if request.is_sure else 0,
    }


def _needs_more(found: Mapping[int, MatchGroup], until: int, request: SearchRequest) -> bool:
    return len(found) <= until if request.document_id is None else not found


def _group(matches: Iterable[Match], query: str, missing: Mapping[int, Sequence[str]]) -> dict[int, MatchGroup]:
    """Group matches by document. `missing`: missing words by `result_id`.

    A document with the same content and the same page as an earlier one is a copy of that one.
    """
    groups: dict[int, MatchGroup] = {}
    by_document: dict[int, MatchGroup] = {}
    by_page: dict[tuple[str, int], MatchGroup] = {}
    for match in matches:
        group = by_document.get(match.document_id)
        if group is None and match.content:
            group = by_page.get((match.content, match.result_id))
        if group is None:
            has_all = missing.get(match.result_id) == ()
            group = groups[match.document_id] = MatchGroup(match.document_id, query, missing, has_all)
        by_document[match.document_id] = group
        group.is_named |= match.number == _NAME_AND_TAGS
        if match.document_id != group.document_id:
            group.copies.add(match.document_id)
        elif missing.get(match.result_id) == () or not group.has_all:
            if match.number != _NAME_AND_TAGS:
                group.matches.append(match)
            by_page[match.content, match.result_id] = group
    return groups


def _merge(all_words: Mapping[int, MatchGroup], some_words: Mapping[int, MatchGroup]) -> list[MatchGroup]:
    """Return each document once. One that is found by its name alone gets its pages with some of the words."""
    for document_id, group in all_words.items():
        if not group.matches and (more := some_words.get(document_id)):
            group.query, group.missing, group.matches = more.query, more.missing, more.matches
    groups = [*all_words.values(), *(one for key, one in some_words.items() if key not in all_words)]
    return sorted(groups, key=lambda one: (not one.has_all, not one.is_named))


def _ranges_between(marked: str, begin: str, end: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without marks, and the ranges that they marked."""
    first, *others = marked.split(begin)
    parts, ranges, at = [first], list[tuple[int, int]](), len(first)
    for one in others:
        match, _, plain = one.partition(end)
        ranges.append((at, at + len(match)))
        at += len(match) + len(plain)
        parts += [match, plain]
    return "".join(parts), ranges


def _divided_matches(text: str, marked_words: str, mark: str) -> list[tuple[int, int]]:
    """Return the places of the divided words that are marked; `marked_words` has all of them, one per line."""
    words = zip(divided_words(text), marked_words.split("\n"), strict=False)
    return [(begin, end) for (begin, end, _), word in words if mark in word]


def _snippet(text: str, ranges: Sequence[tuple[int, int]], marks: tuple[str, str]) -> str:
    """Return the text around the first range."""
    begin, end = next(iter(ranges), (0, 0))
    before, after = text[max(0, begin - _BEFORE) : begin], text[end : end + _AFTER]
    return f"…{before}{marks[0]}{text[begin:end]}{marks[1]}{after}…"


def _found_document(
    group: MatchGroup, facts: Mapping[int, Row], snippets: Mapping[int, str], pages_each: int
) -> FoundDocument:
    name, owner, kind, pages, created_at, tags = facts[group.document_id]
    return FoundDocument(
        group.document_id,
        name,
        owner,
        kind,
        pages,
        created_at,
        json.loads(tags),
        group.has_all,
        group.is_named,
        group.is_similar,
        [
            FoundPage(one.number, snippets.get(one.result_id, ""), group.missing.get(one.result_id, ()))
            for one in group.matches[:pages_each]
        ],
        sorted(one.number for one in group.matches),
        [FoundCopy(each, *facts[each][:2]) for each in sorted(group.copies & facts.keys())],
    )


def _fts_query(text: str) -> str:
    return with_spellings(fts_query(text)) or _raise_no_words(text)


def _raise_no_words(text: str) -> str:
    raise BadInput(f"{text!r} cannot be searched for: it has no letter and no digit")
