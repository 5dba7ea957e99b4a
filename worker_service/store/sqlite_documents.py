"""What an attempt writes of its document: checkpoints, pages, files, crawls; and what its completion makes of it (P5).

Pages are written ahead, in transactions of their own, where nobody reads them; a completion only turns to them.
How a document then follows its jobs is told in `schema.sql`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from worker_service.errors import CancelRequested, FileForgotten, LeaseLost, RuleBroken
from worker_service.jobs.documents import CrawlItem, CrawlPage, FileAgain, NewFile, PageResult
from worker_service.jobs.model import Checkpoint, Completion, Enqueued, Lease, NewJob, Status
from worker_service.store.sqlite_connection import Row
from worker_service.store.sqlite_intake import Intake
from worker_service.store.sqlite_reading import job_from

STALE = "STALE_GENERATION"

_SMALL_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class Work:
    """What a job works for."""

    document_id: int | None
    generation: int | None
    owner: str
    platform: str
    name: str | None

    @property
    def place(self) -> dict[str, object]:
        return {"document_id": self.document_id, "generation": self.generation}


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the pages go that an attempt has read."""

    document_id: int | None = None
    generation: int | None = None
    is_current: bool = False
    """They are pages of its document; else they are kept by their digest, for whoever asks next."""
    is_wanted: bool = False
    """Nobody has asked it to stop, and its lease holds."""

    @property
    def is_kept(self) -> bool:
        return self.generation is not None

    @property
    def place(self) -> dict[str, object]:
        return {"document_id": self.document_id, "generation": self.generation}


class Documents(Intake):
    # ── While an attempt runs ──

    def checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        with self._transaction():
            work = self._work_of(lease)
            if work is None:
                raise self._why_lost(lease)
            now = self._now()
            self._write("keep_checkpoint", **of(lease), state=checkpoint.state, now=now)
            if checkpoint.crawl is not None:
                self._save_crawl(checkpoint.crawl, work, now)
            self._insert_follow_ups(lease.job_id, work, checkpoint.follow_ups)

    def checkpoint_of(self, job_id: int) -> str | None:
        for (state,) in self._read("checkpoint_of", job_id=job_id):
            return str(state)
        return None

    def save_pages(self, pages: Sequence[tuple[Lease, PageResult]]) -> list[Lease]:
        # Made ready before anybody has to wait for the lock.
        ready = [(lease, page, None if page.text is None else _result_of(page, page.text)) for lease, page in pages]
        with self._transaction():
            now = self._now()
            readings = {lease: self._reading_of(lease) for lease in dict.fromkeys(lease for lease, _ in pages)}
            kept = [(lease, page, result) for lease, page, result in ready if readings[lease].is_kept]
            results = b"[%s]" % b",".join(result for _, _, result in kept if result)
            self._write("add_page_results", results=results.decode(), now=now)
            for lease, reading in readings.items():
                own = [(page.number, page.digest) for each, page, _ in kept if each == lease]
                if reading.is_current:
                    self._write("save_pages", **reading.place, pages=msgspec.json.encode(own).decode())
                    self._write("document_moved", **reading.place, now=now)
                elif own:
                    self._write("leave_to_anybody", digests=msgspec.json.encode([digest for _, digest in own]).decode())
        return [lease for lease, reading in readings.items() if not reading.is_wanted]

    def _save_crawl(self, crawl: CrawlPage, work: Work, now: str) -> None:
        self._write("save_crawl", crawl=crawl.crawl, owner=work.owner, state=crawl.state, now=now)
        gone = [{"crawl": crawl.crawl, "id": item.id, "now": now} for item in crawl.items if item.is_gone]
        seen = [(crawl.crawl, *_facts_of(item), crawl.walk, now) for item in crawl.items if not item.is_gone]
        self._write_each("lose_crawl_item", gone)
        self._write_each("save_crawl_item", seen)
        for item in crawl.items:
            named = {"owner": work.owner, "platform": work.platform, "id": item.id, "now": now}
            if not item.is_gone:
                self._write("document_back", **named)
                continue
            place = {"id": item.id, "owner": work.owner, "crawl": crawl.crawl, "parent_id": item.parent_id}
            if not self._write("crawled_elsewhere", **place):
                self._write("document_gone", **named)
                if crawl.keys:
                    key = f"{crawl.keys}{item.id}:"
                    self._write("cancel_what_went", first=key, beyond=f"{key}\U0010ffff", **named)

    # ── What a completion brings ──

    def _land(self, done: Completion, work: Work, now: str) -> None:
        """After the job's row has moved: files, facts, follow-ups, and what becomes of the document."""
        if done.publishes and work.generation is None:
            raise RuleBroken("only a job that works for a document can publish one: publishes was set without")
        lease = done.lease
        for file in done.files:
            self._add_file(lease, work, file, now)
        if done.document is not None and work.generation is not None:
            facts = done.document
            self._write(
                "learn",
                document_id=work.document_id,
                kind=facts.kind,
                pages=facts.pages,
                content=facts.content,
                note=facts.note,
                now=now,
            )
        inserted = self._insert_follow_ups(lease.job_id, work, done.follow_ups)
        self._tie_files(lease, done.follow_ups, inserted)
        if work.generation is None:
            return
        if done.publishes:
            self._write("forget_older_files", **work.place)
            if not self._write("publish", **work.place, now=now):
                raise RuleBroken(f"generation {work.generation} of document {work.document_id} is no longer the newest")
            return
        self._write("document_moved", **work.place, now=now)
        self._write("led_nowhere", **work.place, now=now, job_id=lease.job_id, skipped=_skipped(done.result))

    def _add_file(self, lease: Lease, work: Work, file: NewFile | FileAgain, now: str) -> None:
        row = {**of(lease), "document_id": work.document_id, "owner": work.owner, "now": now}
        row |= {"role": file.role, "name": file.name}
        if isinstance(file, NewFile):
            facts = {"path": file.path, "size": file.size, "sha256": file.sha256, "md5": file.md5, "note": file.note}
            self._write("add_file", **row, **facts)
        elif not self._write("add_file_again", **row, file_id=file.file_id):
            raise FileForgotten(f"there is no file {file.file_id} any more: publish the content itself")

    def _insert_follow_ups(self, parent_id: int, work: Work, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """They belong to what their parent works for, unless they ask for a document of their own; and to its owner."""
        if work.generation is not None or work.owner or work.name:
            jobs = [_inheriting(job, work) for job in jobs]
        return self._insert_many(jobs, parent_id)

    def _tie_files(self, lease: Lease, jobs: Sequence[NewJob], inserted: Sequence[Enqueued]) -> None:
        """What a download has published is the original of the document that it asks to be read."""
        asked = [(job.document, each.document_id) for job, each in zip(jobs, inserted, strict=True) if job.document]
        for request, document_id in asked:
            content = request.content or None if len(asked) > 1 else None
            self._write("tie_files", **of(lease), document_id=document_id, content=content)

    # ── The lease ──

    def _work_of(self, lease: Lease) -> Work | None:
        """None: the lease is lost, or may write nothing any more."""
        for row in self._write("lease_held", **by(lease)):
            return work_from(row)
        return None

    def _reading_of(self, lease: Lease) -> Reading:
        for document_id, generation, is_current, is_wanted in self._write("reading_of", **by(lease)):
            return Reading(document_id, generation, bool(is_current), bool(is_wanted))
        return Reading()

    def _why_lost(self, lease: Lease) -> LeaseLost:
        for row in self._write("get", job_id=lease.job_id):
            job = job_from(row)
            is_its = job.worker_id == lease.worker_id and job.fence == lease.fence
            if is_its and job.status == Status.RUNNING and job.cancel_requested_at:
                if self._write("stale_work", job_id=job.id):
                    return CancelRequested(f"job {job.id} works for an older generation: it can only end as cancelled")
                return CancelRequested(f"job {job.id} was asked to stop: it can only end as cancelled")
        return LeaseLost(f"job {lease.job_id}: fence {lease.fence} is no longer current")


def work_from(row: Row) -> Work:
    document_id, generation, owner, platform, name = row
    return Work(document_id if generation is not None else None, generation, owner, platform, name)


def of(lease: Lease) -> dict[str, object]:
    return {"job_id": lease.job_id, "fence": lease.fence}


def by(lease: Lease) -> dict[str, object]:
    return {"job_id": lease.job_id, "fence": lease.fence, "worker_id": lease.worker_id}


def _result_of(page: PageResult, said: str) -> bytes:
    """A page comes from a child: what SQLite could not take is mended rather than let it spoil the pages beside it."""
    text = said.encode("utf-8", "replace").decode()
    layout = None if page.layout is None else _packed(page.layout.encode("utf-8", "replace")).hex()
    confidence = None if page.confidence is None else min(100.0, max(0.0, page.confidence))
    result = {"digest": page.digest, "text": text, "method": page.method, "confidence": confidence, "layout": layout}
    return msgspec.json.encode(result)


def _packed(layout: bytes) -> bytes:
    """Most layouts have a few hundred bytes: to make zlib's usual tables ready takes longer than to pack them."""
    window, memory = (12, 5) if len(layout) <= _SMALL_BYTES else (zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL)
    packer = zlib.compressobj(6, zlib.DEFLATED, window, memory)
    return packer.compress(layout) + packer.flush()


def _inheriting(job: NewJob, work: Work) -> NewJob:
    job = replace(job, owner=job.owner or work.owner)
    if job.document is not None:
        return job
    job = replace(job, name=job.name or work.name)
    return job if work.generation is None else replace(job, document_id=work.document_id, generation=work.generation)


def _facts_of(item: CrawlItem) -> tuple[object, ...]:
    """In the order of the statement's names."""
    return (item.id, item.parent_id, item.name, item.kind, item.revision, item.size, item.note, item.detail)


def _skipped(result: str | None) -> str | None:
    """Why a handler says that there was nothing to do."""
    found = json.loads(result) if result else None
    reason = found.get("skipped") if isinstance(found, dict) else None
    return None if reason is None else str(reason)
