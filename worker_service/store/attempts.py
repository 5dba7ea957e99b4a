"""Checkpoints, pages, crawls and questions of running attempts."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from worker_service.base.divided_words import divided_words
from worker_service.base.errors import BadInput
from worker_service.jobs.attempts import Checkpoint
from worker_service.jobs.documents import (
    CrawlItem,
    CrawlItems,
    CrawlMemory,
    CrawlPage,
    DocumentPages,
    DocumentsToEmbed,
    Files,
    IsCurrent,
    IsCurrentAnswer,
    KnownDigests,
    KnownDocument,
    KnownPages,
    KnownVectors,
    PageResult,
    PagesAnswer,
    PagesToEmbed,
    PublishedFile,
    Question,
    QuestionAnswer,
    SameContent,
)
from worker_service.jobs.job import Lease
from worker_service.store.completions import ParentJob, parent_job_from
from worker_service.store.database import Row, StorePart
from worker_service.store.leases import lease_error
from worker_service.store.library import page_from
from worker_service.store.removal import mark_unused_results
from worker_service.store.settling import settle

_CRAWL_ITEMS_MAX = 1000

A = TypeVar("A", bound=QuestionAnswer)


class PageTarget(Struct, frozen=True):
    document_id: int | None = None
    generation: int | None = None
    is_current: bool = False
    """False: pages are stored only under their digest, for later attempts to reuse."""
    must_stop: bool = True

    @property
    def can_store_pages(self) -> bool:
        # Without the lease, and for a job without a document, there is no generation.
        return self.generation is not None

    @property
    def generation_key(self) -> dict[str, object]:
        return {"document_id": self.document_id, "generation": self.generation}


class Attempts(StorePart):
    def checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        with self._db.transaction():
            parent = self._parent_under_lease(lease)
            if parent is None:
                raise lease_error(self._db, lease)
            now = self._db.now()
            self._db.write("save_checkpoint", **lease._asdict(), state=checkpoint.state, now=now)
            if checkpoint.crawl is not None:
                self._save_crawl(checkpoint.crawl, parent.owner, parent.platform, now)
            if checkpoint.embeddings is not None:
                self._store.embeddings.save(lease, checkpoint.embeddings)
            self._store.completions.insert_follow_ups(parent, checkpoint.follow_ups)
            if checkpoint.follow_ups:
                settle(self._db)

    def checkpoint_of(self, job_id: int) -> str | None:
        for (state,) in self._db.read("last_checkpoint", job_id=job_id):
            return str(state)
        return None

    def save_pages(self, pages: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        """Return the leases of the attempts that must stop.

        Pages of a cancelled job are stored too, for the next attempt.
        """
        # Compress before the transaction, so that no other writer waits for it.
        compressed = [(lease, page, _result_row(page)) for lease, page in pages]
        with self._db.transaction():
            now = self._db.now()
            target_by_lease = {lease: self._target_of(lease) for lease in dict.fromkeys(lease for lease, _ in pages)}
            stored = [
                (lease, page, result) for lease, page, result in compressed if target_by_lease[lease].can_store_pages
            ]
            results = [(*result, now) for _, _, result in stored if result]
            added = [result_id for (result_id,) in self._db.write_each("add_page_results", results)]
            self._db.write("index_results", result_ids=json.dumps(added))
            if aliases := [(page.alias_digest, page.digest) for _, page, _ in stored if page.alias_digest]:
                self._db.write("add_page_aliases", aliases=_as_json(aliases))
            for lease, target in target_by_lease.items():
                own_pages = [(page.number, page.digest) for page_lease, page, _ in stored if page_lease == lease]
                if target.is_current:
                    self._save_pages_of(target, own_pages, now)
                elif own_pages:
                    self._db.write("mark_results_without_page", digests=_as_json([digest for _, digest in own_pages]))
        return [lease for lease, target in target_by_lease.items() if target.must_stop]

    def _save_pages_of(self, target: PageTarget, pages: Sequence[tuple[int, str]], now: str) -> None:
        values = {**target.generation_key, "pages": _as_json(pages)}
        replaced = self._db.read_locked("pages_to_replace", **values)
        self._db.write("save_pages", **values)
        self._db.write("unmark_used_results", **values)
        mark_unused_results(self._db, replaced)
        self._db.write("touch_document", **target.generation_key, now=now)

    def _save_crawl(self, page: CrawlPage, owner: str, platform: str, now: str) -> None:
        self._db.write("save_crawl", crawl=page.crawl, owner=owner, state=page.state, now=now)
        seen_items = [item for item in page.items if not item.is_gone]
        places = json.dumps([(item.id, item.name, item.parent_id) for item in seen_items])
        self._db.write("mark_workspace_links_due_after_moves", crawl=page.crawl, places=places)
        walk = {"crawl": page.crawl, "walk": page.walk, "now": now}
        self._db.write_each("save_crawl_item", [asdict(item) | walk for item in seen_items])
        for item in page.items:
            document = {"owner": owner, "platform": platform, "id": item.id, "now": now}
            if not item.is_gone:
                self._db.write("unmark_document_gone", **document)
                continue
            self._db.write("mark_crawl_item_gone", crawl=page.crawl, id=item.id, now=now)
            folder = {"id": item.id, "owner": owner, "crawl": page.crawl, "parent_id": item.parent_id}
            if not self._db.read_locked("item_in_other_crawl", **folder):
                self._db.write("mark_document_gone", **document)
                if page.unique_key_prefix:
                    prefix = f"{page.unique_key_prefix}{item.id}:"
                    # No key with this prefix comes after the prefix and the greatest character.
                    self._db.write("cancel_jobs_of_gone_item", first=prefix, beyond=f"{prefix}\U0010ffff", **document)

    # ── Questions ──

    def known_digests(self, job_id: int) -> Sequence[str]:
        return [digest for (digest,) in self._db.read("known_digests", job_id=job_id)]

    def answer(self, lease: Lease, question: Question[A]) -> A:
        return cast(A, self._answer(lease, question))

    def _answer(self, lease: Lease, question: object) -> QuestionAnswer:
        match question:
            case KnownPages(digests):
                rows = self._db.read("known_pages", digests=json.dumps(list(digests)))
                is_stale = bool(self._db.read("stale_work", job_id=lease.job_id))
                return KnownDigests([digest for (digest,) in rows], is_stale)
            case DocumentPages(first, last, with_layout):
                values = {"job_id": lease.job_id, "first": first, "last": last, "with_layout": with_layout}
                return PagesAnswer([page_from(row) for row in self._db.read("document_pages", **values)])
            case SameContent():
                return Files(self._same_content(lease, question))
            case IsCurrent():
                return IsCurrentAnswer(not self._db.read("stale_work", job_id=lease.job_id))
            case DocumentsToEmbed() | PagesToEmbed() | KnownVectors():
                return self._store.embeddings.answer(lease, question)
            case CrawlItems():
                return self._crawl_memory(question)
            case _:
                raise BadInput(f"{type(question).__name__} is not a question that can be asked")

    def _same_content(self, lease: Lease, question: SameContent) -> Sequence[PublishedFile]:
        asked = {"sha256": question.sha256, "job_id": lease.job_id}
        rows = self._db.read("files_with_sha256", **asked) if question.sha256 else []
        if not rows and question.md5:
            rows = self._db.read("files_with_md5", md5=question.md5, size=question.size, job_id=lease.job_id)
        return [PublishedFile(*row) for row in rows]

    def _crawl_memory(self, question: CrawlItems) -> CrawlMemory:
        crawl = question.crawl
        page = {"crawl": crawl, "after": question.after, "most": _CRAWL_ITEMS_MAX}
        if question.not_seen_in is not None:
            rows = self._db.read("crawl_items_not_seen", walk=question.not_seen_in, **page)
        elif question.with_note is not None:
            rows = self._db.read("crawl_items_with_note", note=question.with_note, **page)
        else:
            rows = self._db.read("crawl_items", crawl=crawl, ids=json.dumps(list(question.ids)))
        state = next((state for (state,) in self._db.read("crawl_state", crawl=crawl)), None)
        return CrawlMemory(state, [_crawl_item_from(row) for row in rows])

    def inputs(self, document_id: int) -> Sequence[PublishedFile]:
        return [PublishedFile(*row) for row in self._db.read("newest_inputs", document_id=document_id)]

    def known_document(self, document_id: int) -> KnownDocument:
        for row in self._db.read("known_document", document_id=document_id):
            return KnownDocument(*row)
        return KnownDocument()

    # ── The lease ──

    def _parent_under_lease(self, lease: Lease) -> ParentJob | None:
        for row in self._db.read_locked("parent_under_lease", **lease._asdict()):
            return parent_job_from(row)
        return None

    def _target_of(self, lease: Lease) -> PageTarget:
        for document_id, generation, is_current, must_stop in self._db.read_locked("page_target", **lease._asdict()):
            return PageTarget(document_id, generation, bool(is_current), bool(must_stop))
        return PageTarget()


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _result_row(page: PageResult) -> tuple[object, ...] | None:
    # The parameters of `add_page_results`, without the time. None: the text is stored already.
    if page.text is None:
        return None
    # The text comes from a child process. Replace what SQLite cannot store, so that the other pages are still stored.
    text = page.text.encode("utf-8", "replace").decode()
    layout = None if page.layout is None else zlib.compress(page.layout.encode("utf-8", "replace"))
    confidence = None if page.confidence is None else min(100.0, max(0.0, page.confidence))
    joined_words = "\n".join(whole for _, _, whole in divided_words(text))
    return page.digest, text, page.method, confidence, joined_words, layout


def _crawl_item_from(row: Row) -> CrawlItem:
    item_id, parent_id, name, kind, revision, size, note, is_gone, detail, walk = row
    return CrawlItem(item_id, parent_id, name, kind, revision, size, note, bool(is_gone), detail, walk)
