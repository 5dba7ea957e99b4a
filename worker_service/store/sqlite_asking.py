"""Answers to the questions of handlers (`jobs/documents.py`). Reads only, on the reader's connection."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import TypeVar, cast

from worker_service.errors import BadInput
from worker_service.jobs.documents import (
    Answer,
    CrawlItem,
    CrawlItems,
    CrawlMemory,
    Currency,
    DocumentPages,
    Files,
    IsCurrent,
    KnownDigests,
    KnownDocument,
    KnownPages,
    PageResult,
    Pages,
    PublishedFile,
    Question,
    SameContent,
)
from worker_service.jobs.model import Lease
from worker_service.store.sqlite_connection import Row
from worker_service.store.sqlite_reading import Reading

A = TypeVar("A", bound=Answer)

_ITEMS_MOST = 1000


class Asking(Reading):
    def answer(self, lease: Lease, question: Question[A]) -> A:
        return cast(A, self._answer(lease, question))

    def _answer(self, lease: Lease, question: object) -> Answer:
        match question:
            case KnownPages(digests):
                rows = self._read("known_pages", digests=json.dumps(list(digests)))
                return KnownDigests([digest for (digest,) in rows])
            case DocumentPages(first, last, with_layout):
                values = {"job_id": lease.job_id, "first": first, "last": last, "with_layout": with_layout}
                return Pages([page_from(row) for row in self._read("document_pages", **values)])
            case SameContent():
                return Files(self._same_content(lease, question))
            case IsCurrent():
                return Currency(not self._read("stale_work", job_id=lease.job_id))
            case CrawlItems():
                return self._crawl_memory(question)
            case _:
                raise BadInput(f"{type(question).__name__} is not a question that can be asked")

    def _same_content(self, lease: Lease, question: SameContent) -> Sequence[PublishedFile]:
        asked = {"sha256": question.sha256, "job_id": lease.job_id}
        by_sha256 = self._read("same_sha256", **asked) if question.sha256 else []
        if by_sha256 or not question.md5:
            return [PublishedFile(*row) for row in by_sha256]
        rows = self._read("same_md5", md5=question.md5, size=question.size, job_id=lease.job_id)
        return [PublishedFile(*row) for row in rows]

    def _crawl_memory(self, question: CrawlItems) -> CrawlMemory:
        crawl = question.crawl
        page = {"crawl": crawl, "after": question.after, "most": _ITEMS_MOST}
        if question.not_seen_in is not None:
            rows = self._read("crawl_items_not_seen", walk=question.not_seen_in, **page)
        elif question.with_note is not None:
            rows = self._read("crawl_items_with_note", note=question.with_note, **page)
        else:
            rows = self._read("crawl_items", crawl=crawl, ids=json.dumps(list(question.ids)))
        state = next((state for (state,) in self._read("crawl_state", crawl=crawl)), None)
        return CrawlMemory(state, [CrawlItem(*(*row[:7], bool(row[7]), *row[8:])) for row in rows])

    def inputs(self, document_id: int) -> Sequence[PublishedFile]:
        return [PublishedFile(*row) for row in self._read("inputs", document_id=document_id)]

    def known_document(self, document_id: int) -> KnownDocument:
        for row in self._read("known_document", document_id=document_id):
            return KnownDocument(*row)
        return KnownDocument()


def page_from(row: Row) -> PageResult:
    number, digest, text, method, confidence, layout = row
    return PageResult(number, digest, text, method, confidence, layout and zlib.decompress(layout).decode())
