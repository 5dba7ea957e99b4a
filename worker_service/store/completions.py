"""Effects of a completed job: published files and pages, facts about its document, and follow-up jobs.

`Leases` and `Attempts` call this module in their own transactions.
"""

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
from worker_service.store.settling import announce_document_changes


class ParentJob(Struct, frozen=True):
    """The job whose effects are written. Its follow-up jobs inherit these values."""

    id: int
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
    def write(self, completions: Sequence[Completion]) -> None:
        now = self._db.now()
        parents = [self._parent_job(done.lease.job_id) for done in completions]
        for done, parent in zip(completions, parents, strict=True):
            self._write_effects(done, parent, now)
        # Check only after every follow-up job of this transaction is in the queue: it may publish the document.
        for done, parent in zip(completions, parents, strict=True):
            if not done.publishes and parent.document_id is not None:
                self._fail_document_without_publisher(done, parent, now)

    def _parent_job(self, job_id: int) -> ParentJob:
        [row] = self._db.read_locked("parent_job", job_id=job_id)
        return parent_job_from(row)

    def _write_effects(self, done: Completion, parent: ParentJob, now: str) -> None:
        if done.publishes and parent.document_id is None:
            raise RuleBroken("this job set `publishes`, and has no document that it could publish")
        for file in done.files:
            self._add_file(done.lease, parent, file, now)
        if done.files:
            # A path that was marked for deletion has a file again.
            self._db.write("unmark_files_gone", **done.lease._asdict())
        if done.document is not None and parent.document_id is not None:
            self._db.write("save_document_facts", **asdict(done.document), document_id=parent.document_id, now=now)
        inserted = self.insert_follow_ups(parent, done.follow_ups)
        self._assign_originals(done.lease, done.follow_ups, inserted)
        if parent.document_id is not None:
            if done.publishes:
                self._publish(parent, parent.document_id, now)
            else:
                self._db.write("touch_document", **parent.generation_key, now=now)

    def _publish(self, parent: ParentJob, document_id: int, now: str) -> None:
        # Before `publish`, which changes the generation by which `forget_older_files` knows older files.
        forget_files(self._db, "forget_older_files", **parent.generation_key)
        if not self._db.write("publish", **parent.generation_key, now=now):
            raise RuleBroken(f"generation {parent.generation} of document {document_id} is no longer the newest")
        announce_document_changes(self._db, [document_id])
        self._db.write("mark_workspace_link_due", document_id=document_id)

    def _fail_document_without_publisher(self, done: Completion, parent: ParentJob, now: str) -> None:
        """Fail the document of this job if no live job is left that may publish it."""
        reason = {"job_id": done.lease.job_id, "skipped": _skip_reason(done.result)}
        rows = self._db.write("fail_document_without_publisher", **parent.generation_key, **reason, now=now)
        announce_document_changes(self._db, [document_id for (document_id,) in rows])

    def _add_file(self, lease: Lease, parent: ParentJob, file: NewFile | RepublishedFile, now: str) -> None:
        row = {**lease._asdict(), "document_id": parent.document_id, "owner": parent.owner, "now": now}
        row |= asdict(file)
        if isinstance(file, NewFile):
            self._db.write("add_file", **row)
        elif not self._db.write("add_file_again", **row):
            raise PublishedFileRemoved(f"there is no file {file.file_id} any more: publish the content itself")

    def insert_follow_ups(self, parent: ParentJob, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._store.intake.insert_many([_inherit(job, parent) for job in jobs], parent.id)

    def _assign_originals(self, lease: Lease, jobs: Sequence[NewJob], inserted: Sequence[Enqueued]) -> None:
        """Assign the published originals to the documents that the follow-up jobs read."""
        pairs = zip(jobs, inserted, strict=True)
        requests = [(job.document, enqueued.document_id) for job, enqueued in pairs if job.document]
        for request, document_id in requests:
            # Of several originals, assign to each document the one with its content.
            content = request.content if len(requests) > 1 else ""
            if self._db.write("assign_originals", **lease._asdict(), document_id=document_id, content=content):
                self._db.write("mark_workspace_link_due", document_id=document_id)


def parent_job_from(row: Row) -> ParentJob:
    job_id, document_id, generation, *columns = row
    # A job that has a document without a generation, such as an action, does not read the document.
    return ParentJob(job_id, None if generation is None else document_id, generation, *columns)


def _inherit(job: NewJob, parent: ParentJob) -> NewJob:
    key = job.unique_key
    if key is not None and parent.batch_id is not None:
        key = unique_key_in_batch(key, parent.batch_id)
    job = replace(
        job,
        owner=job.owner or parent.owner,
        batch_id=parent.batch_id if job.batch_id is None else job.batch_id,
        priority=job.priority or parent.priority,
        unique_key=key,
    )
    if job.document is not None:
        # The request names another document and has its own name.
        return job
    job = replace(job, name=job.name or parent.name)
    if parent.document_id is None:
        return job
    return replace(job, document_id=parent.document_id, generation=parent.generation)


def _skip_reason(result: str | None) -> str | None:
    decoded = json.loads(result) if result else None
    reason = decoded.get("skipped") if isinstance(decoded, dict) else None
    return None if reason is None else str(reason)
