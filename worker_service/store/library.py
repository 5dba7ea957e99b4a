from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from worker_service.base.errors import DocumentNotFound
from worker_service.jobs.documents import CONFIDENCE_LEAST, IndexStatus, OnEnd, PageResult, PublishedFile, StoredAction
from worker_service.jobs.job import Job
from worker_service.jobs.library import (
    NEWEST_FIRST,
    Document,
    DocumentChange,
    DocumentOrder,
    DocumentSelector,
    DocumentSort,
    DocumentTotals,
    PageSummary,
    Provenance,
    ReadingSpeed,
)
from worker_service.store.database import Row, StorePart

_SORTED_BY = {
    DocumentSort.DATE: "d.id",
    DocumentSort.NAME: "d.name COLLATE NOCASE",
    DocumentSort.PAGES: "ifnull(d.pages, -1)",
    DocumentSort.STATE: "d.index_status",
}


class Library(StorePart):
    def documents(
        self,
        selector: DocumentSelector,
        *,
        most: int = 50,
        before_id: int | None = None,
        order: DocumentOrder = NEWEST_FIRST,
    ) -> Sequence[Document]:
        """Except in the default order, the document `before_id` must still exist."""
        from_clause, condition, values = _conditions(selector, order)
        direction, comparison = ("DESC", "<") if order.is_descending else ("ASC", ">")
        column = _SORTED_BY[order.sort]
        if before_id is not None and column == "d.id":
            condition, values = f"{condition} AND d.id {comparison} ?", [*values, before_id]
        elif before_id is not None:
            last = f"SELECT {column}, d.id FROM document d WHERE d.id = ?"
            condition, values = f"{condition} AND ({column}, d.id) {comparison} ({last})", [*values, before_id]
        order_by = f"ORDER BY {column} {direction}, d.id {direction}"
        ids = f"SELECT d.id FROM {from_clause} WHERE {condition} {order_by} LIMIT ?"
        sql = f"{self._db.statements['documents_begin']} d.id IN ({ids}) {order_by}"
        return [_document_from(row) for row in self._db.read_sql(sql, [*values, most])]

    def totals(self, selector: DocumentSelector) -> DocumentTotals:
        from_clause, condition, values = _conditions(selector)
        sql = f"SELECT count(*), total(d.pages) FROM {from_clause} WHERE {condition}"
        [(documents, pages)] = self._db.read_sql(sql, values)
        return DocumentTotals(documents, int(pages))

    def document_ids(self, selector: DocumentSelector) -> Sequence[int]:
        _, condition, values = _conditions(selector, NEWEST_FIRST)
        sql = f"SELECT d.id FROM document d WHERE {condition} ORDER BY d.id"
        return [document_id for (document_id,) in self._db.read_sql(sql, values)]

    def document(self, document_id: int) -> Document:
        for document in self.documents(DocumentSelector(ids=(document_id,)), most=1):
            return document
        raise DocumentNotFound(f"there is no document {document_id}", "`pagemill documents` shows those that are there")

    def provenance(self, documents: Sequence[Document]) -> Mapping[int, Provenance]:
        document_by_id = {document.id: document for document in documents}
        rows = self._db.read("provenance", ids=json.dumps(list(document_by_id)))
        return {
            document_id: Provenance(self._folder_at_source(document_by_id[document_id]), *columns)
            for document_id, *columns in rows
        }

    def _folder_at_source(self, document: Document) -> str:
        values = {"owner": document.owner, "source_key": document.source_key}
        crawled = [name for (name,) in self._db.read("crawled_folders", **values)]
        from worker_service.jobs.workspace_names import folder_at_source  # not needed for lists

        return folder_at_source(document.source_key, crawled)

    def not_brought_in(self, selector: DocumentSelector, *, most: int = 50) -> Sequence[Job]:
        """Return the last failed job of each source that never became a document."""
        if selector.ids or selector.tags or selector.kinds:
            return []
        if selector.statuses and IndexStatus.FAILED not in selector.statuses:
            return []
        values = {"owners": json.dumps(list(selector.owners)), "name": selector.name, "most": most}
        values |= {"batches": json.dumps(list(selector.batch_ids)), "since": selector.since, "until": selector.until}
        return [Job.from_row(row) for row in self._db.read("not_brought_in", **values)]

    def reading_speed(self, *, most: int = 200) -> ReadingSpeed | None:
        rows = self._db.read("newest_reading_times", most=most)
        documents = {document_id: (pages, size) for document_id, pages, size, _, _ in rows}
        size = sum(size for _, size in documents.values())
        seconds = _total_length((begin, end) for *_, begin, end in rows)
        if not size or seconds <= 0:
            return None
        return ReadingSpeed(len(documents), sum(pages for pages, _ in documents.values()), size, seconds)

    def counts_by_state(self) -> Mapping[str, int]:
        return dict(self._db.read("counts_by_state"))

    def count(self, status: IndexStatus, *, owner: str | None = None) -> int:
        return int(self._db.read_value("count_documents", status=status.value, owner=owner))

    def pages_read(self, ids: Sequence[int], *, since: str, now: str) -> Mapping[int, tuple[int, int, float]]:
        """Return by document: pages of the newest generation, pages read since `since`, and their seconds."""
        rows = self._db.read("pages_read", ids=json.dumps(list(ids)), since=since, now=now)
        return {document_id: (read, since_then, seconds) for document_id, read, since_then, seconds in rows}

    def document_changes(self, after: int, *, owner: str | None, most: int) -> Sequence[DocumentChange]:
        """Return each document's last change after the number `after`, in the order of commits."""
        return [DocumentChange(*row) for row in self._db.read("document_changes", after=after, owner=owner, most=most)]

    def database_identity(self) -> str:
        """Return a text that changes when a backup is restored."""
        [row] = self._db.read("database_identity")
        return json.dumps(row)

    def page_summaries(self, document_id: int) -> Sequence[PageSummary]:
        return [PageSummary(*row) for row in self._db.read("page_summaries", document_id=document_id)]

    def doubtful_layouts(self, *, documents: int, most: int) -> Sequence[tuple[int, str]]:
        """Return (document id, layout) of pages below `CONFIDENCE_LEAST`."""
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
        """Return source key → path below the workspace."""
        asked = {"owner": owner, "platform": platform, "source_keys": json.dumps([*source_keys])}
        return dict(self._db.read("copies", **asked))

    def actions_of(self, document_id: int) -> Sequence[StoredAction]:
        rows = self._db.read("actions_of", document_id=document_id)
        return [
            StoredAction(job_type, payload, OnEnd(on_end), bool(is_standing), *columns)
            for job_type, payload, on_end, is_standing, *columns in rows
        ]

    def job_files(self, job_id: int) -> Sequence[PublishedFile]:
        return [PublishedFile(*row) for row in self._db.read("job_files", job_id=job_id)]


def _total_length(intervals: Iterable[tuple[float, float]]) -> float:
    """Count times in which intervals overlap once."""
    total, counted_until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, counted_until))
        counted_until = max(counted_until, end)
    return total


def _conditions(selector: DocumentSelector, order: DocumentOrder | None = None) -> tuple[str, str, list[object]]:
    """Return the FROM clause, the WHERE condition and its values."""
    is_by_id = order is not None and order.sort is DocumentSort.DATE
    # Starting from the tag takes half as long as searching the list, and matters most for a tag of many documents.
    is_by_tag = bool(selector.tags) and not selector.owners and not is_by_id
    terms, values = ["1"], list[object]()
    for column, wanted in (
        ("d.id", selector.ids),
        ("d.index_status", [str(status) for status in selector.statuses]),
        ("d.owner", selector.owners),
        ("d.platform", selector.platforms),
        ("d.source_key", selector.source_keys),
        ("d.kind", selector.kinds),
    ):
        if wanted:
            terms.append(f"{column} IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(list(wanted)))
    if selector.batch_ids:
        terms.append(
            "d.id IN (SELECT b.document_id FROM json_each(?) w CROSS JOIN batch_document b ON b.batch_id = w.value)"
        )
        values.append(json.dumps(list(selector.batch_ids)))
    if is_by_tag:
        terms.append("first.tag = ?")
        values.append(selector.tags[0])
    for tag in selector.tags[1:] if is_by_tag else selector.tags:
        terms.append("d.id IN (SELECT t.document_id FROM document_tag t WHERE t.tag = ?)")
        values.append(tag)
    for column, limit in (("d.created_at >= ?", selector.since), ("d.created_at < ?", selector.until)):
        if limit is not None:
            terms.append(column)
            values.append(limit)
    if selector.name:
        terms.append("instr(lower(d.name), lower(?)) > 0")
        values.append(selector.name)
    if selector.is_readable:
        terms.append("d.current_generation IS NOT NULL")
    # The index has all columns of a list, but some conditions find fewer rows, or read them anyway.
    finds_few = selector.ids or selector.batch_ids or selector.source_keys or (selector.tags and not selector.owners)
    reads_rows = selector.platforms or selector.is_readable
    from_clause = "document d" if finds_few or is_by_id or reads_rows else "document d INDEXED BY document_list"
    if is_by_tag:
        from_clause = "document_tag first CROSS JOIN document d ON d.id = first.document_id"
    return from_clause, " AND ".join(terms), values


def _document_from(row: Row) -> Document:
    columns = dict(zip(Document.__struct_fields__, row, strict=True))
    columns["status"] = IndexStatus(columns["status"])
    columns["is_locked"] = bool(columns["is_locked"])
    columns["tags"] = json.loads(columns["tags"])
    return Document(**columns)


def page_from(row: Row) -> PageResult:
    number, digest, text, method, confidence, layout = row
    return PageResult(number, digest, text, method, confidence, layout and zlib.decompress(layout).decode())
