"""What people read: documents, pages, files, and what a search finds. SQLite's FTS5, on the reader's connection."""

from __future__ import annotations

import json
from collections.abc import Sequence

from worker_service.errors import BadInput, DocumentNotFound
from worker_service.jobs.documents import IndexStatus, PageResult, PublishedFile
from worker_service.jobs.library import Document, DocumentSelector, Found, Hit, KeywordCount, PageSummary
from worker_service.jobs.model import Job
from worker_service.store.fts5 import phrase_of, query_of
from worker_service.store.sqlite_asking import page_from
from worker_service.store.sqlite_connection import Row, teach_to_count
from worker_service.store.sqlite_reading import Reading, job_from

RANKED_MOST = 2000
"""Of so many hits, the pages stored last, the best are found."""


class Library(Reading):
    def documents(
        self, selector: DocumentSelector, *, most: int = 50, before_id: int | None = None
    ) -> Sequence[Document]:
        condition, values = _where(selector)
        if before_id is not None:
            condition, values = f"{condition} AND d.id < ?", [*values, before_id]
        sql = f"{self._statements['documents_begin']} {condition} ORDER BY d.id DESC LIMIT ?"
        return [_document_from(row) for row in self._read_sql(sql, [*values, most])]

    def document(self, document_id: int) -> Document:
        for document in self.documents(DocumentSelector(ids=(document_id,)), most=1):
            return document
        raise DocumentNotFound(f"there is no document {document_id}: `pagemill documents` shows those that are there")

    def not_brought_in(self, selector: DocumentSelector, *, most: int = 50) -> Sequence[Job]:
        if selector.ids or (selector.statuses and IndexStatus.FAILED not in selector.statuses):
            return []
        values = {"owners": json.dumps(list(selector.owners)), "name": selector.name, "most": most}
        return [job_from(row) for row in self._read("not_brought_in", **values)]

    def page_summaries(self, document_id: int) -> Sequence[PageSummary]:
        return [PageSummary(*row) for row in self._read("page_summaries", document_id=document_id)]

    def page_texts(
        self, document_id: int, first: int = 1, last: int | None = None, *, with_layout: bool = False
    ) -> Sequence[PageResult]:
        values = {"first": first, "last": last if last is not None else 2**31, "with_layout": with_layout}
        return [page_from(row) for row in self._read("page_texts", document_id=document_id, **values)]

    def files(self, document_id: int) -> Sequence[PublishedFile]:
        return [PublishedFile(*row) for row in self._read("files", document_id=document_id)]

    def job_files(self, job_id: int) -> Sequence[PublishedFile]:
        return [PublishedFile(*row) for row in self._read("job_files", job_id=job_id)]

    def search(
        self,
        query: str,
        *,
        owner: str | None = None,
        document_id: int | None = None,
        most: int = 20,
        marks: tuple[str, str] = ("[", "]"),
    ) -> Found:
        query = query_of(query) or _refused(query)
        values: dict[str, object] = {"query": query, "owner": owner, "most": most}
        if document_id is not None:
            rows = self._read("search_document", **values, document_id=document_id)
        else:
            rows = self._read("search", **values, ranked=RANKED_MOST)
        snippets = self._snippets([row[0] for row in rows], query, marks)
        hits = [
            Hit(document_id, name, number, snippets.get(result_id, ""), rank)
            for result_id, document_id, number, name, rank, _ in rows
        ]
        return Found(hits, is_partial=bool(rows) and rows[0][5] >= RANKED_MOST)

    def _snippets(self, result_ids: Sequence[int], query: str, marks: tuple[str, str]) -> dict[int, str]:
        if not result_ids:
            return {}
        stretch = {"first": min(result_ids), "last": max(result_ids), "result_ids": json.dumps(result_ids)}
        return dict(self._read("snippets", query=query, open=marks[0], close=marks[1], **stretch))

    def keyword_counts(self, terms: Sequence[str], *, owner: str | None = None) -> Sequence[KeywordCount]:
        teach_to_count(self._reader)
        counts: list[KeywordCount] = []
        for term in terms:
            rows = self._read("keyword_counts", query=phrase_of(term) or _refused(term), owner=owner)
            counts += (KeywordCount(term, *row) for row in sorted(rows))
        return counts


def _refused(said: str) -> str:
    raise BadInput(f"{said!r} cannot be searched for: it has no letter and no digit")


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
    if selector.name:
        terms.append("instr(lower(d.name), lower(?)) > 0")
        values.append(selector.name)
    if selector.is_readable:
        terms.append("d.current_generation IS NOT NULL")
    return " AND ".join(terms), values


def _document_from(row: Row) -> Document:
    return Document(*(*row[:8], IndexStatus(row[8]), *row[9:]))
