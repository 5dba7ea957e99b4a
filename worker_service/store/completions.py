"""Effects of a completed job: published files and pages, facts about its document, and follow-up jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from worker_service.base.errors import PublishedFileRemoved, RuleBroken
from worker_service.jobs.attempts import Completion
from worker_service.jobs.batches import unique_key_in_batch
from worker_service.jobs.documents import NewFile, RepublishedFile
from worker_service.jobs.job import Enqueued, Lease, NewJob
from worker_service.store.database import Row, StorePart
from worker_service.store.removal import forget_files
from worker_service.store.settling import follow_document_changes


class Work(Struct, frozen=True):
    """Values that follow-up jobs inherit."""

    document_id: int | None
    generation: int | None
    owner: str
    platform: str
    name: str | None
    batch_id: int | None
    priority: int

    @property
    def generation_key(self) -> dict[str, object]:
        return {"document_id": self.document_id, "generation": self.generation}


class Completions(StorePart):
    """Its methods run in the caller's transaction."""

    def write(self, completions: Sequence[Completion]) -> None:
        now = self._db.now()
        works = [self._work_of(done.lease.job_id) for done in completions]
        for done, work in zip(completions, works, strict=True):
            self._write_one(done, work, now)
        # Check only after every follow-up job of this transaction is in the queue: it may publish the document.
        for done, work in zip(completions, works, strict=True):
            self._fail_unpublished_document(done, work, now)

    def _work_of(self, job_id: int) -> Work:
        [row] = self._db.write("work_of", job_id=job_id)
        return work_from(row)

    def _write_one(self, done: Completion, work: Work, now: str) -> None:
        if done.publishes and work.generation is None:
            raise RuleBroken("only a job that works for a document can publish one: publishes was set without")
        for file in done.files:
            self._add_file(done.lease, work, file, now)
        if done.files:
            self._db.write("unmark_files_gone", **done.lease._asdict())
        if done.document is not None and work.generation is not None:
            self._db.write("save_document_facts", **asdict(done.document), document_id=work.document_id, now=now)
        inserted = self.insert_follow_ups(done.lease.job_id, work, done.follow_ups)
        self._assign_originals(done.lease, done.follow_ups, inserted)
        if work.generation is not None and work.document_id is not None:
            if done.publishes:
                self._publish(work, work.document_id, now)
            else:
                self._db.write("touch_document", **work.generation_key, now=now)

    def _publish(self, work: Work, document_id: int, now: str) -> None:
        forget_files(self._db, "forget_older_files", **work.generation_key)
        if not self._db.write("publish", **work.generation_key, now=now):
            raise RuleBroken(f"generation {work.generation} of document {document_id} is no longer the newest")
        follow_document_changes(self._db, [document_id])
        self._db.write("mark_link_due", document_id=document_id)

    def _fail_unpublished_document(self, done: Completion, work: Work, now: str) -> None:
        if done.publishes or work.generation is None:
            return
        values = {**work.generation_key, "now": now, "job_id": done.lease.job_id, "skipped": _skip_reason(done.result)}
        failed = [document_id for (document_id,) in self._db.write("fail_unpublished_document", **values)]
        follow_document_changes(self._db, failed)

    def _add_file(self, lease: Lease, work: Work, file: NewFile | RepublishedFile, now: str) -> None:
        row = {**lease._asdict(), "document_id": work.document_id, "owner": work.owner, "now": now}
        row |= asdict(file)
        if isinstance(file, NewFile):
            self._db.write("add_file", **row)
        elif not self._db.write("add_file_again", **row):
            raise PublishedFileRemoved(f"there is no file {file.file_id} any more: publish the content itself")

    def insert_follow_ups(self, parent_id: int, work: Work, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._store.intake.insert_many([_inherit(job, work) for job in jobs], parent_id)

    def _assign_originals(self, lease: Lease, jobs: Sequence[NewJob], inserted: Sequence[Enqueued]) -> None:
        requests = [
            (job.document, enqueued.document_id) for job, enqueued in zip(jobs, inserted, strict=True) if job.document
        ]
        for request, document_id in requests:
            # Of several originals, assign to each document the one with its content.
            content = request.content or None if len(requests) > 1 else None
            if self._db.write("assign_originals", **lease._asdict(), document_id=document_id, content=content):
                self._db.write("mark_link_due", document_id=document_id)


def work_from(row: Row) -> Work:
    document_id, generation, *rest = row
    return Work(document_id if generation is not None else None, generation, *rest)


def _inherit(job: NewJob, work: Work) -> NewJob:
    key = job.unique_key
    if key is not None and work.batch_id is not None:
        key = unique_key_in_batch(key, work.batch_id)
    job = replace(
        job,
        owner=job.owner or work.owner,
        batch_id=work.batch_id if job.batch_id is None else job.batch_id,
        priority=job.priority or work.priority,
        unique_key=key,
    )
    if job.document is not None:
        return job
    job = replace(job, name=job.name or work.name)
    return job if work.generation is None else replace(job, document_id=work.document_id, generation=work.generation)


def _skip_reason(result: str | None) -> str | None:
    decoded = json.loads(result) if result else None
    reason = decoded.get("skipped") if isinstance(decoded, dict) else None
    return None if reason is None else str(reason)
