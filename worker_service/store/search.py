"""Search in the text of pages (SQLite's FTS5), and counts of words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

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
from worker_service.store.database import Database, Row
from worker_service.store.search_query import any_of, fts_phrase, fts_query, plain_operands
from worker_service.store.search_ranking import (
    RERANKED_MOST,
    Stem,
    Term,
    language_for,
    rank_pages,
    stemmer_for,
    term_of,
    without_small_words,
)

RANKED_MOST = 2000
"""Maximum number of pages with all words that are ranked. If there are more, only the pages stored last are ranked."""

SOME_RANKED_MOST = 10_000
"""Maximum number of ranked pages that have some of the words."""

SOME_LISTED_MOST = 500
"""Maximum number of pages with some of the words that are returned."""

COMMON_MOST = 1000
"""A word on more pages than this is left out when pages with some of the words are looked for."""

_SAMPLE = 12
"""Number of pages by which the language of a query is chosen."""


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


class MatchGroup(Struct):
    """The matching pages of a document, best first, and its copies."""

    document_id: int
    query: str
    """The FTS5 query that found the pages."""
    missing: Mapping[int, Sequence[str]]
    """Missing words by `result_id`, as far as they are known. Empty for pages with all words."""
    has_all: bool
    matches: list[Match] = field(default_factory=list)
    copies: set[int] = field(default_factory=set)


class PageSearch:
    def __init__(self, database: Database) -> None:
        self._db = database

    def find(self, request: SearchRequest) -> SearchResult:
        """Return documents with the best of their pages: first those with all words, then those with some of them.

        Syntax: words, "a phrase", a NEAR b, a OR b, a NOT b, prefix*. Accents, case and punctuation are ignored; any
        text with a letter or digit is a valid query. A query with operators finds only pages that match all of it;
        within one document, pages with some of the words are returned only if none has all.
        """
        query, operands = fts_query(request.text) or _raise_no_words(request.text), plain_operands(request.text)
        matches, is_partial = self._matches(query, request, RANKED_MOST, RANKED_MOST)
        all_words = _group(matches, query, {one.result_id: () for one in matches})
        until = request.skip + request.documents
        some_words: dict[int, MatchGroup] = {}
        if operands and not request.needs_all and not is_partial and _needs_more(all_words, until, request):
            terms = self._choose_terms(operands)
            matches, is_partial = self._matches(terms.query, request, SOME_RANKED_MOST, SOME_LISTED_MOST)
            some_words = _group(*self._rank(matches, terms))
        groups = [*all_words.values(), *(one for key, one in some_words.items() if key not in all_words)]
        groups.sort(key=lambda one: not one.has_all)
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
    ) -> tuple[Sequence[Match], str, Mapping[int, Sequence[str]]]:
        """Rank the first pages again, by their text, and find out which words they lack."""
        first = list(dict.fromkeys(match.result_id for match in matches))[:RERANKED_MOST]
        texts: dict[int, str] = dict(self._db.read("texts", result_ids=json.dumps(first)))
        [(pages,)] = self._db.read("last_result")
        ranked = rank_pages(texts, terms.pages_with, pages or 0, terms.stem)
        missing = {page: (*words, *terms.lacking) for page, words in ranked.items()}
        order = {page: at for at, page in enumerate(missing)}
        return sorted(matches, key=lambda one: order.get(one.result_id, RERANKED_MOST)), terms.query, missing

    def _found_documents(self, groups: Sequence[MatchGroup], request: SearchRequest) -> list[FoundDocument]:
        ids = [each for one in groups for each in (one.document_id, *one.copies)]
        facts = {row[0]: row[1:] for row in self._db.read("found_documents", document_ids=json.dumps(ids))}
        snippets: dict[int, str] = {}
        for query in {one.query for one in groups}:
            best = [group.matches[: request.pages_each] for group in groups if group.query == query]
            shown = [match.result_id for matches in best for match in matches]
            snippets |= self._snippets(shown, query, request.marks)
        return [_found_document(group, facts, snippets, request.pages_each) for group in groups]

    def _snippets(self, result_ids: Sequence[int], query: str, marks: tuple[str, str]) -> dict[int, str]:
        if not result_ids:
            return {}
        stretch = {"first": min(result_ids), "last": max(result_ids), "result_ids": json.dumps(result_ids)}
        return dict(self._db.read("snippets", query=query, open=marks[0], close=marks[1], **stretch))

    def marked(self, document_id: int, number: int, query: str, marks: tuple[str, str]) -> str | None:
        """Return the text of a page with each match between `marks`, or None if the page has none."""
        place = {"document_id": document_id, "number": number, "open": marks[0], "close": marks[1]}
        rows = self._db.read("marked_page", **place, query=fts_query(query) or _raise_no_words(query))
        if not rows and (operands := plain_operands(query)):
            rows = self._db.read("marked_page", **place, query=self._choose_terms(operands).query)
        return next((str(text) for (text,) in rows), None)

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
            query = fts_phrase(term) or _raise_no_words(term)
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
        if match.document_id != group.document_id:
            group.copies.add(match.document_id)
        elif missing.get(match.result_id) == () or not group.has_all:
            group.matches.append(match)
            by_page[match.content, match.result_id] = group
    return groups


def _found_document(
    group: MatchGroup, facts: Mapping[int, Row], snippets: Mapping[int, str], pages_each: int
) -> FoundDocument:
    name, owner, kind, pages, created_at = facts[group.document_id]
    return FoundDocument(
        group.document_id,
        name,
        owner,
        kind,
        pages,
        created_at,
        group.has_all,
        [
            FoundPage(one.number, snippets.get(one.result_id, ""), group.missing.get(one.result_id, ()))
            for one in group.matches[:pages_each]
        ],
        sorted(one.number for one in group.matches),
        [FoundCopy(each, *facts[each][:2]) for each in sorted(group.copies & facts.keys())],
    )


def _raise_no_words(text: str) -> str:
    raise BadInput(f"{text!r} cannot be searched for: it has no letter and no digit")
