"""Search in the text of pages (SQLite's FTS5), and counts of words.

An operand is a word or phrase of a query. A divided word is one that a line end or a soft hyphen divides; the index
also has it as a whole.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from worker_service.base.divided_words import divided_words
from worker_service.base.errors import BadInput
from worker_service.jobs.documents import CONFIDENCE_LEAST
from worker_service.jobs.search import FoundCopy, FoundDocument, FoundPage, KeywordCount, SearchRequest, SearchResult
from worker_service.store.connection import register_occurrences_function
from worker_service.store.database import Row, StorePart
from worker_service.store.search_query import any_of, fts_phrase, fts_query, plain_operands, with_spellings, word_edits
from worker_service.store.search_ranking import (
    RERANKED_PAGES_MAX,
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

if TYPE_CHECKING:
    from worker_service.base.embedding import Vectors

# If more pages match, those stored last are ranked.
PAGES_WITH_ALL_WORDS_RANKED_MAX = 2000
PAGES_WITH_SOME_WORDS_RANKED_MAX = 10_000
PAGES_WITH_SOME_WORDS_LISTED_MAX = 500
# A word on more pages is left out of the search for pages with some of the words.
RARE_WORD_PAGES_MAX = 1000
NAMED_DOCUMENTS_MAX = 200
_LANGUAGE_SAMPLE_PAGES = 12

_TAGS_MAX = 5000
_LAST_PAGE_NUMBER = (1 << 63) - 1
_SIMILAR_WORDS_MAX = 5
_SNIPPET_CHARACTERS_OF_PAGE_WITHOUT_WORDS = 200
_SNIPPET_CHARACTERS_BEFORE_DIVIDED_WORD, _SNIPPET_CHARACTERS_AFTER_DIVIDED_WORD = 80, 120


class ChosenTerms(Struct, frozen=True):
    query_for_any: str
    pages_with: Mapping[Term, int]
    words_on_no_page: Sequence[str]
    stem: Stem


class Match(NamedTuple):
    result_id: int
    document_id: int
    number: int
    content_digest: str
    """Digest of the document's file; may be empty."""


# Stands for `result_id` and `number` if the match is in the document's name and tags.
_NAME_AND_TAGS = 0


class MatchGroup(Struct):
    """The matching pages of a document, best first, and its copies."""

    document_id: int
    query: str
    missing_words: Mapping[int, Sequence[str]]
    """By `result_id`, where known; empty for a page with all words."""
    has_all_words: bool
    is_named: bool = False
    is_similar: bool = False
    matches: list[Match] = field(default_factory=list)
    copies: set[int] = field(default_factory=set)


class Meaning(Struct, frozen=True):
    """The vector of a query, by a model that has vectors of all documents."""

    model: str
    vector: Vectors


class PageSearch(StorePart):
    def find(self, request: SearchRequest, find_meaning: Callable[[], Meaning | None] = lambda: None) -> SearchResult:
        """Return documents with their best pages.

        Documents with all words in their name and tags or on one page come first, then documents with some of the words
        or with a similar meaning. A query with operators finds only pages that match all of it. `find_meaning` is slow,
        so it is called only if pages with all words do not fill the list.
        """
        query, operands = _fts_query(request.text), plain_operands(request.text)
        most = PAGES_WITH_ALL_WORDS_RANKED_MAX
        matches, is_partial = self._matches(query, request, ranked_most=most, most=most)
        matches += self._match_names_and_tags(query, operands, request)
        all_words = _group(matches, query, {match.result_id: () for match in matches})
        end = request.skip + request.documents
        some_words: dict[int, MatchGroup] = {}
        if operands and not request.needs_all and not is_partial and _has_too_few(all_words, end, request):
            some_words, is_partial = self._find_some_words(operands, request, find_meaning)
        groups = _merge(all_words, some_words)
        pages_with_all = sum(len(group.matches) for group in groups if group.has_all_words)
        documents_with_all = sum(group.has_all_words for group in groups)
        return SearchResult(
            items=self._found_documents(groups[request.skip : end], request),
            documents_with_all=documents_with_all,
            pages_with_all=pages_with_all,
            documents_with_some=len(groups) - documents_with_all,
            pages_with_some=sum(len(group.matches) for group in groups) - pages_with_all,
            next=end if len(groups) > end else None,
            is_partial=is_partial,
            suggestion=self._suggest(operands, request) if not documents_with_all else None,
        )

    def _find_some_words(
        self, operands: Sequence[str], request: SearchRequest, find_meaning: Callable[[], Meaning | None]
    ) -> tuple[dict[int, MatchGroup], bool]:
        terms = self._choose_terms(operands)
        matches, is_partial = self._matches(
            terms.query_for_any,
            request,
            ranked_most=PAGES_WITH_SOME_WORDS_RANKED_MAX,
            most=PAGES_WITH_SOME_WORDS_LISTED_MAX,
        )
        ranked, missing = self._rank(matches, terms)
        groups = _group(self._with_similar(ranked, find_meaning(), request), terms.query_for_any, missing)
        with_words = {match.document_id for match in ranked}
        for document_id, group in groups.items():
            group.is_similar = document_id not in with_words
        return groups, is_partial

    def page_numbers(self, document_id: int, text: str) -> Sequence[int]:
        found = self.find(SearchRequest(text, document_id=document_id, pages_each=0))
        return [number for document in found.items for number in document.page_numbers]

    def _matches(self, query: str, request: SearchRequest, *, ranked_most: int, most: int) -> tuple[list[Match], bool]:
        """Return up to `most` pages, best first, and whether there may be more than the `ranked_most` pages ranked."""
        statement = "matching_pages" if request.document_id is None else "matching_pages_of"
        values = {**_filters(request), "document_id": request.document_id}
        rows = self._db.read(statement, **values, query=query, ranked=ranked_most, most=most)
        # Each row ends with the number of ranked pages.
        is_partial = any(total >= ranked_most for *_, total in rows)
        return [Match(*row) for *row, _ in rows], is_partial

    def _match_names_and_tags(self, query: str, operands: Sequence[str], request: SearchRequest) -> list[Match]:
        """Find documents with all words of the query in their name and tags."""
        if request.document_id is not None:
            return []
        values = {**_filters(request), "most": NAMED_DOCUMENTS_MAX}
        rows = self._db.read("named_documents", query=query, **values)
        # By the word without accents.
        words = {fold(operand.strip('"')): operand for operand in operands}
        for tag in self._store.tags.names(request.owner, most=_TAGS_MAX) if words else ():
            tag_words = {fold(part) for part in tag.split()}
            if tag_words <= words.keys():
                # The query has all words of the tag, so the document's name must have the other words.
                words_of_name = [operand for word, operand in words.items() if word not in tag_words]
                rows += self._db.read("tagged_documents", found_tag=tag, query=" AND ".join(words_of_name), **values)
        return [Match(_NAME_AND_TAGS, document_id, _NAME_AND_TAGS, digest) for document_id, digest in rows]

    def _suggest(self, operands: Sequence[str], request: SearchRequest) -> str | None:
        """Return the text with similar words in place of words that are on no visible page."""
        text = request.text
        for word in (operand.strip('"') for operand in operands):
            if word.isalnum() and not self._is_on_a_page(word, request):
                rows = self._db.read("similar_words", words=json.dumps(word_edits(fold(word))), most=_SIMILAR_WORDS_MAX)
                similar = (term for (term,) in rows if self._is_on_a_page(term, request))
                text = re.sub(rf"\b{re.escape(word)}\b", next(similar, word), text)
        return text if text != request.text else None

    def _is_on_a_page(self, word: str, request: SearchRequest) -> bool:
        query = with_spellings(fts_phrase(word))
        return self._db.read_flag("is_anywhere", query=query, most=PAGES_WITH_ALL_WORDS_RANKED_MAX, **_filters(request))

    def _choose_terms(self, operands: Sequence[str]) -> ChosenTerms:
        """Return the rarer words of a query, in all their forms. If all words are common, return all."""
        sample = self._db.read("texts_with", query=any_of(operands), most=_LANGUAGE_SAMPLE_PAGES)
        sample = sample or self._db.read("newest_texts", most=_LANGUAGE_SAMPLE_PAGES)
        language = language_for([text for (text,) in sample])
        stem = stemmer_for(language)
        terms = [term_of(operand, stem) for operand in without_small_words(operands, language)]
        counts = {term: self._count_pages(term.query) for term in terms}
        chosen = {term: count for term, count in counts.items() if 0 < count < RARE_WORD_PAGES_MAX} or counts
        lacking = [term.word for term, count in counts.items() if not count]
        return ChosenTerms(any_of([term.query for term in chosen]), chosen, lacking, stem)

    def _count_pages(self, query: str) -> int:
        return int(self._db.read_value("pages_with", query=query, most=RARE_WORD_PAGES_MAX))

    def _rank(
        self, matches: Sequence[Match], terms: ChosenTerms
    ) -> tuple[Sequence[Match], Mapping[int, Sequence[str]]]:
        """Rank the first pages again by their text. Return all pages, and the words that each lacks."""
        # Documents may share a page. The last one in a dict wins, so reverse: the best match gives the name and tags.
        documents = {match.result_id: match.document_id for match in reversed(matches[:RERANKED_PAGES_MAX])}
        texts: dict[int, str] = dict(self._db.read("texts", pages=json.dumps([*documents.items()])))
        # The last id stands for the number of stored pages: it is at least as high, and is faster to find.
        [(last_id,)] = self._db.read("last_result")
        ranked = rank_pages(texts, terms.pages_with, last_id or 0, terms.stem)
        missing = {page: (*words, *terms.words_on_no_page) for page, words in ranked.items()}
        # `rank_pages` returns the best page first.
        positions = {page: position for position, page in enumerate(ranked)}
        return sorted(matches, key=lambda match: positions.get(match.result_id, RERANKED_PAGES_MAX)), missing

    def _with_similar(
        self, matches: Sequence[Match], meaning: Meaning | None, request: SearchRequest
    ) -> Sequence[Match]:
        if meaning is None:
            return matches
        values = {**_filters(request), "document_id": request.document_id}
        best = [match.result_id for match in matches]
        rows = self._store.embeddings.similar(meaning.model, meaning.vector, best, values)
        # A page may have several similar passages, and may belong to several documents, which share its rank.
        ranks: dict[int, int] = {}
        similar = dict.fromkeys(Match(*row) for row in rows)
        ranked = [(match, ranks.setdefault(match.result_id, len(ranks) + 1)) for match in similar]
        return fuse_ranks(matches, ranked)

    def _found_documents(self, groups: Sequence[MatchGroup], request: SearchRequest) -> list[FoundDocument]:
        ids = [document_id for group in groups for document_id in (group.document_id, *group.copies)]
        rows = self._db.read("found_documents", document_ids=json.dumps(ids))
        columns_by_document = {document_id: columns for document_id, *columns in rows}
        shown_by_query: dict[str, set[int]] = {}
        for group in groups:
            shown = {match.result_id for match in group.matches[: request.pages_each]}
            shown_by_query.setdefault(group.query, set()).update(shown)
        snippets: dict[int, str] = {}
        for query, result_ids in shown_by_query.items():
            snippets |= self._snippets(sorted(result_ids), query, request.marks)
        return [_found_document(group, columns_by_document, snippets, request.pages_each) for group in groups]

    def _snippets(self, result_ids: Sequence[int], query: str, marks: tuple[str, str]) -> dict[int, str]:
        if not result_ids:
            return {}
        pages = {"first": result_ids[0], "last": result_ids[-1], "result_ids": json.dumps(result_ids)}
        rows = self._db.read("snippets", query=query, open=marks[0], close=marks[1], **pages)
        snippets = {result_id: text for result_id, text, _ in rows}
        # Pages without any of the words, such as those of similar meaning: show how they begin.
        for result_id, text in self._texts_of({*result_ids} - snippets.keys()):
            snippets[result_id] = text[:_SNIPPET_CHARACTERS_OF_PAGE_WITHOUT_WORDS]
        # Snippets without marks: only a divided word of the page matches, so show the text around it.
        divided = {result_id: words for result_id, text, words in rows if words and marks[0] not in text}
        for result_id, text in self._texts_of(divided):
            snippets[result_id] = _snippet(text, _divided_matches(text, divided[result_id], marks[0]), marks)
        return snippets

    def _texts_of(self, result_ids: Collection[int]) -> list[Row]:
        return self._db.read("page_text_of", result_ids=json.dumps([*result_ids])) if result_ids else []

    def match_ranges(self, document_id: int, number: int, query: str) -> Sequence[tuple[int, int]]:
        """Return the start and end of each match in the text of a page."""
        return next((ranges for _, ranges in self._matches_in(document_id, query, number, number)), ())

    def match_counts(self, document_id: int, query: str) -> Mapping[int, int]:
        return {number: len(ranges) for number, ranges in self._matches_in(document_id, query, 1, _LAST_PAGE_NUMBER)}

    def _matches_in(
        self, document_id: int, query: str, first: int, last: int
    ) -> Iterator[tuple[int, Sequence[tuple[int, int]]]]:
        # Random marks, which cannot occur in the text.
        begin, end = f"\x02{secrets.token_hex(8)}", f"\x03{secrets.token_hex(8)}"
        values = {"document_id": document_id, "first": first, "last": last, "open": begin, "close": end}
        rows = self._db.read("marked_pages", **values, query=_fts_query(query))
        if not rows and (operands := plain_operands(query)):
            # No page has all words, so mark some of them, as the search does.
            rows = self._db.read("marked_pages", **values, query=self._choose_terms(operands).query_for_any)
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
        register_occurrences_function(self._db.reader)
        counts: list[KeywordCount] = []
        for term in terms:
            query = with_spellings(fts_phrase(term))
            if not query:
                raise _no_words(term)
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


def _has_too_few(groups: Mapping[int, MatchGroup], end: int, request: SearchRequest) -> bool:
    """Return True if there is no document after position `end`. Within one document, any match is enough."""
    return len(groups) <= end if request.document_id is None else not groups


def _group(matches: Iterable[Match], query: str, missing: Mapping[int, Sequence[str]]) -> dict[int, MatchGroup]:
    """Group matches by document. A document with the same content and page as an earlier one becomes its copy."""
    groups: dict[int, MatchGroup] = {}
    # Also has the copies.
    group_of_document: dict[int, MatchGroup] = {}
    group_of_page: dict[tuple[str, int], MatchGroup] = {}
    for match in matches:
        group = group_of_document.get(match.document_id)
        if group is None and match.content_digest:
            group = group_of_page.get((match.content_digest, match.result_id))
        if group is None:
            group = MatchGroup(match.document_id, query, missing, has_all_words=_match_has_all_words(match, missing))
            groups[match.document_id] = group
        group_of_document[match.document_id] = group
        group.is_named |= match.number == _NAME_AND_TAGS
        if match.document_id != group.document_id:
            group.copies.add(match.document_id)
        elif _match_has_all_words(match, missing) or not group.has_all_words:
            # A document with all words shows only its pages that have them all.
            if match.number != _NAME_AND_TAGS:
                group.matches.append(match)
            group_of_page[match.content_digest, match.result_id] = group
    return groups


def _match_has_all_words(match: Match, missing: Mapping[int, Sequence[str]]) -> bool:
    # A page that was not ranked is not in `missing`: its missing words are not known.
    return match.result_id in missing and not missing[match.result_id]


def _merge(all_words: Mapping[int, MatchGroup], some_words: Mapping[int, MatchGroup]) -> list[MatchGroup]:
    """Return each document once. If only its name has all words, its pages with some of the words are added."""
    for document_id, group in all_words.items():
        if not group.matches and (more := some_words.get(document_id)):
            group.query, group.missing_words, group.matches = more.query, more.missing_words, more.matches
    others = (group for document_id, group in some_words.items() if document_id not in all_words)
    return sorted([*all_words.values(), *others], key=lambda group: (not group.has_all_words, not group.is_named))


def _ranges_between(marked: str, begin: str, end: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without marks, and the marked ranges."""
    before, *pieces = marked.split(begin)
    parts, ranges, position = [before], list[tuple[int, int]](), len(before)
    for piece in pieces:
        match, _, plain = piece.partition(end)
        ranges.append((position, position + len(match)))
        position += len(match) + len(plain)
        parts += [match, plain]
    return "".join(parts), ranges


def _divided_matches(text: str, marked_words: str, mark: str) -> list[tuple[int, int]]:
    """Return the ranges of the marked divided words; `marked_words` has all divided words, one per line."""
    words = zip(divided_words(text), marked_words.split("\n"), strict=False)
    return [(begin, end) for (begin, end, _), word in words if mark in word]


def _snippet(text: str, ranges: Sequence[tuple[int, int]], marks: tuple[str, str]) -> str:
    begin, end = next(iter(ranges), (0, 0))
    before = text[max(0, begin - _SNIPPET_CHARACTERS_BEFORE_DIVIDED_WORD) : begin]
    after = text[end : end + _SNIPPET_CHARACTERS_AFTER_DIVIDED_WORD]
    return f"…{before}{marks[0]}{text[begin:end]}{marks[1]}{after}…"


def _found_document(
    group: MatchGroup, columns_by_document: Mapping[int, Sequence[Any]], snippets: Mapping[int, str], pages_each: int
) -> FoundDocument:
    name, owner, kind, pages, created_at, tags = columns_by_document[group.document_id]
    copies = []
    for copy_id in sorted(group.copies & columns_by_document.keys()):
        copy_name, copy_owner, *_ = columns_by_document[copy_id]
        copies.append(FoundCopy(copy_id, copy_name, copy_owner))
    return FoundDocument(
        document_id=group.document_id,
        name=name,
        owner=owner,
        kind=kind,
        pages=pages,
        created_at=created_at,
        tags=json.loads(tags),
        has_all_words=group.has_all_words,
        is_named=group.is_named,
        is_similar=group.is_similar,
        best_pages=[
            FoundPage(match.number, snippets.get(match.result_id, ""), group.missing_words.get(match.result_id, ()))
            for match in group.matches[:pages_each]
        ],
        page_numbers=sorted(match.number for match in group.matches),
        copies=copies,
    )


def _fts_query(text: str) -> str:
    query = with_spellings(fts_query(text))
    if not query:
        raise _no_words(text)
    return query


def _no_words(text: str) -> BadInput:
    return BadInput(f"{text!r} cannot be searched for: it has no letter and no digit")
