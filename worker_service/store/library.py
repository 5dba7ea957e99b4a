"""Documents, pages, files and full-text search (SQLite's FTS5), read on the reader connection."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from worker_service.base.errors import BadInput, DocumentNotFound
from worker_service.jobs.documents import (
    CONFIDENCE_LEAST,
    AskedAction,
    IndexStatus,
    OnEnd,
    PageResult,
    PublishedFile,
)
from worker_service.jobs.job import Job
from worker_service.jobs.library import (
    Document,
    DocumentSelector,
    Hit,
    KeywordCount,
    PageSummary,
    Provenance,
    ReadingSpeed,
    SearchResult,
)
from worker_service.jobs.names import folder_at_source
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
"""Maximum number of hits that are ranked. With more hits, only the pages stored last are ranked."""

ANY_RANKED_MOST = 10_000
"""Maximum number of ranked hits among pages that have some of the words."""

COMMON_MOST = 1000
"""A word on more pages than this is left out when pages with some of the words are looked for."""

_SAMPLE = 12
"""Number of pages by which the language of a query is chosen."""


class ChosenTerms(Struct, frozen=True):
    query: str
    """FTS5 query for any of the terms."""
    pages_with: Mapping[Term, int]
    are_all_found: bool
    """False if a word of the query is on no page."""
    stem: Stem


class Library:
    def __init__(self, database: Database) -> None:
        self._db = database

    def documents(
        self, selector: DocumentSelector, *, most: int = 50, before_id: int | None = None
    ) -> Sequence[Document]:
        """Return documents, newest first. `before_id` is the last id of the previous page."""
        condition, values = _where(selector)
        if before_id is not None:
            condition, values = f"{condition} AND d.id < ?", [*values, before_id]
        sql = f"{self._db.statements['documents_begin']} {condition} ORDER BY d.id DESC LIMIT ?"
        return [_document_from(row) for row in self._db.read_sql(sql, [*values, most])]

    def document_ids(self, selector: DocumentSelector) -> Sequence[int]:
        condition, values = _where(selector)
        return [
            row[0] for row in self._db.read_sql(f"SELECT d.id FROM document d WHERE {condition} ORDER BY d.id", values)
        ]

    def document(self, document_id: int) -> Document:
        for document in self.documents(DocumentSelector(ids=(document_id,)), most=1):
            return document
        raise DocumentNotFound(f"there is no document {document_id}", "`pagemill documents` shows those that are there")

    def provenance(self, documents: Sequence[Document]) -> Mapping[int, Provenance]:
        by_id = {one.id: one for one in documents}
        rows = self._db.read("provenance", ids=json.dumps(list(by_id)))
        return {row[0]: Provenance(self._folder(by_id[row[0]]), *row[1:]) for row in rows}

    def _folder(self, document: Document) -> str:
        values = {"owner": document.owner, "source_key": document.source_key}
        crawled = [name for (name,) in self._db.read("crawled_folders", **values)]
        return folder_at_source(document.source_key, crawled)

    def not_brought_in(self, selector: DocumentSelector, *, most: int = 50) -> Sequence[Job]:
        """Return the last failed job of each source that never became a document."""
        if selector.ids or (selector.statuses and IndexStatus.FAILED not in selector.statuses):
            return []
        values = {"owners": json.dumps(list(selector.owners)), "name": selector.name, "most": most}
        values |= {"batches": json.dumps(list(selector.batch_ids))}
        return [Job.from_row(row) for row in self._db.read("not_brought_in", **values)]

    def pace(self, *, most: int = 200) -> ReadingSpeed | None:
        rows = self._db.read("read_lately", most=most)
        documents = {document_id: (pages, size) for document_id, pages, size, _, _ in rows}
        size = sum(size for _, size in documents.values())
        seconds = _total_length((begin, end) for *_, begin, end in rows)
        if not size or seconds <= 0:
            return None
        return ReadingSpeed(len(documents), sum(pages for pages, _ in documents.values()), size, seconds)

    def counts_by_state(self) -> Mapping[str, int]:
        return dict(self._db.read("counts_by_state"))

    def count(self, status: IndexStatus, *, owner: str | None = None) -> int:
        [(number,)] = self._db.read("count_documents", status=status.value, owner=owner)
        return int(number)

    def page_summaries(self, document_id: int) -> Sequence[PageSummary]:
        return [PageSummary(*row) for row in self._db.read("page_summaries", document_id=document_id)]

    def doubtful_layouts(self, *, documents: int, most: int) -> Sequence[tuple[int, str]]:
        """Return (document id, layout) of up to `most` pages below `CONFIDENCE_LEAST` in the newest documents."""
        values = {"documents": documents, "most": most, "confidence_least": CONFIDENCE_LEAST}
        rows = self._db.read("doubtful_layouts", **values)
        return [(document_id, zlib.decompress(layout).decode()) for document_id, layout in rows]

    def page_texts(
        self, document_id: int, first: int = 1, last: int | None = None, *, with_layout: bool = False
    ) -> Sequence[PageResult]:
        values = {"first": first, "last": last if last is not None else 2**31, "with_layout": with_layout}
        return [page_from(row) for row in self._db.read("page_texts", document_id=document_id, **values)]

    def files(self, document_id: int) -> Sequence[PublishedFile]:
        return [PublishedFile(*row) for row in self._db.read("files", document_id=document_id)]

    def copies(self, owner: str, platform: str, source_keys: Collection[str]) -> Mapping[str, str]:
        """Return source key → path of its copy below the workspace."""
        asked = {"owner": owner, "platform": platform, "source_keys": json.dumps([*source_keys])}
        return dict(self._db.read("copies", **asked))

    def actions_of(self, document_id: int) -> Sequence[AskedAction]:
        rows = self._db.read("actions_of", document_id=document_id)
        return [AskedAction(kind, payload, OnEnd(end), bool(stands), *of) for kind, payload, end, stands, *of in rows]

    def job_files(self, job_id: int) -> Sequence[PublishedFile]:
        """Return the files of the newest attempt that published any."""
        return [PublishedFile(*row) for row in self._db.read("job_files", job_id=job_id)]

    def search(
        self,
        query: str,
        *,
        owner: str | None = None,
        document_id: int | None = None,
        batch_id: int | None = None,
        most: int = 20,
        marks: tuple[str, str] = ("[", "]"),
        is_sure: bool = False,
        needs_all: bool = False,
    ) -> SearchResult:
        """Return the best pages for a query: first those with all its words, then those with some of them.

        Syntax: words, "a phrase", a NEAR b, a OR b, a NOT b, prefix*. Accents, case and punctuation are ignored; any
        text with a letter or digit is a valid query. A query with operators, or with `needs_all`, finds only pages
        that match all of it; within one document, pages with some of the words are returned only if none has all.
        With more than `RANKED_MOST` hits (`ANY_RANKED_MOST` with some of the words), only the pages stored last are
        ranked and the result has `is_partial` set. `is_sure` leaves out pages below `CONFIDENCE_LEAST`.
        """
        values: dict[str, object] = {"owner": owner, "batch_id": batch_id, "document_id": document_id}
        values["confidence_least"] = CONFIDENCE_LEAST if is_sure else 0
        expression, operands = fts_query(query) or _raise_no_words(query), plain_operands(query)
        rows = self._best_pages(expression, values, most=most, ranked=RANKED_MOST)
        is_partial = bool(rows) and rows[0][5] >= RANKED_MOST
        hits = self._hits(rows, expression, marks)
        if operands and not (needs_all or is_partial) and len(rows) < (most if document_id is None else 1):
            terms = self._choose_terms(operands)
            others = self._pages_with_some(terms, values, most)
            is_partial = bool(others) and others[0][0][5] >= ANY_RANKED_MOST
            found = {row[0] for row in rows}
            others = [(row, has_all) for row, has_all in others if row[0] not in found][: most - len(rows)]
            more = self._hits([row for row, _ in others], terms.query, marks)
            hits += [replace(hit, has_all_words=has_all) for hit, (_, has_all) in zip(more, others, strict=True)]
        return SearchResult(hits, is_partial)

    def _best_pages(self, query: str, values: Mapping[str, object], *, most: int, ranked: int) -> list[Row]:
        statement = "search" if values["document_id"] is None else "search_document"
        return self._db.read(statement, **values, query=query, most=most, ranked=ranked)

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
        counts = {term: self._db.read("pages_with", query=term.query, most=COMMON_MOST)[0][0] for term in terms}
        chosen = {term: count for term, count in counts.items() if 0 < count < COMMON_MOST} or counts
        return ChosenTerms(any_of([term.query for term in chosen]), chosen, all(counts.values()), stem)

    def _pages_with_some(self, terms: ChosenTerms, values: Mapping[str, object], most: int) -> list[tuple[Row, bool]]:
        """Return the pages with some of the terms, best first, each with whether it has all words of the query."""
        rows = self._best_pages(terms.query, values, most=max(most, RERANKED_MOST), ranked=ANY_RANKED_MOST)
        candidates = {row[0]: row for row in rows[:RERANKED_MOST]}
        texts: dict[int, str] = dict(self._db.read("texts", result_ids=json.dumps([*candidates])))
        [(pages,)] = self._db.read("last_result")
        ranked = rank_pages(texts, terms.pages_with, pages or 0, terms.stem)
        return [
            *((candidates[result_id], has_all and terms.are_all_found) for result_id, has_all in ranked),
            *((row, False) for row in rows[RERANKED_MOST:]),
        ]

    def _hits(self, rows: Sequence[Row], query: str, marks: tuple[str, str]) -> list[Hit]:
        snippets = self._snippets([row[0] for row in rows], query, marks)
        return [
            Hit(document_id, name, number, snippets.get(result_id, ""), rank)
            for result_id, document_id, number, name, rank, _ in rows
        ]

    def _snippets(self, result_ids: Sequence[int], query: str, marks: tuple[str, str]) -> dict[int, str]:
        if not result_ids:
            return {}
        stretch = {"first": min(result_ids), "last": max(result_ids), "result_ids": json.dumps(result_ids)}
        return dict(self._db.read("snippets", query=query, open=marks[0], close=marks[1], **stretch))

    def marked(self, document_id: int, number: int, query: str, marks: tuple[str, str]) -> str | None:
        """Return the text of a page with each hit between `marks`, or None if the page has no hit."""
        place = {"document_id": document_id, "number": number, "open": marks[0], "close": marks[1]}
        rows = self._db.read("marked_page", **place, query=fts_query(query) or _raise_no_words(query))
        if not rows and (operands := plain_operands(query)):
            rows = self._db.read("marked_page", **place, query=self._choose_terms(operands).query)
        return str(rows[0][0]) if rows else None

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
                rows = self._db.read("keyword_counts", query=query, owner=owner, batch_id=batch_id)
            else:
                rows = self._db.read("keyword_counts_of", query=query, document_ids=json.dumps(list(document_ids)))
            counts += (KeywordCount(term, *row) for row in sorted(rows))
        return counts


def _total_length(stretches: Iterable[tuple[float, float]]) -> float:
    total, until = 0.0, float("-inf")
    for begin, end in sorted(stretches):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _raise_no_words(text: str) -> str:
    raise BadInput(f"{text!r} cannot be searched for: it has no letter and no digit")


def _where(selector: DocumentSelector) -> tuple[str, list[object]]:
    terms, values = ["1"], list[object]()
    for column, wanted in (
        ("d.id", selector.ids),
        ("d.index_status", [str(status) for status in selector.statuses]),
        ("d.owner", selector.owners),
        ("d.platform", selector.platforms),
        ("d.source_key", selector.source_keys),
    ):
        if wanted:
            terms.append(f"{column} IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(list(wanted)))
    if selector.batch_ids:
        terms.append(
            "d.id IN (SELECT b.document_id FROM json_each(?) w CROSS JOIN batch_document b ON b.batch_id = w.value)"
        )
        values.append(json.dumps(list(selector.batch_ids)))
    for tag in selector.tags:
        terms.append("EXISTS (SELECT 1 FROM document_tag t WHERE t.document_id = d.id AND t.tag = ?)")
        values.append(tag)
    if selector.name:
        terms.append("instr(lower(d.name), lower(?)) > 0")
        values.append(selector.name)
    if selector.is_readable:
        terms.append("d.current_generation IS NOT NULL")
    return " AND ".join(terms), values


def _document_from(row: Row) -> Document:
    return Document(*(*row[:8], IndexStatus(row[8]), *row[9:-1], json.loads(row[-1])))


def page_from(row: Row) -> PageResult:
    number, digest, text, method, confidence, layout = row
    return PageResult(number, digest, text, method, confidence, layout and zlib.decompress(layout).decode())
