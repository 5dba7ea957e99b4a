"""Inserts of jobs, and of the documents that jobs have to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from worker_service.base.clock import from_text
from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import Decision, DeferredAction, DocumentRequest, IndexStatus, TakeoverPatience
from worker_service.jobs.generations import decide, settings_for_reading
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.store.database import StorePart, chunks
from worker_service.store.errors import rule_broken
from worker_service.store.job_rows import common_row_of_job, row_of_job, shared_statement
from worker_service.store.settling import ParentFacts, fire_actions, settle, tag_documents

# Twice as fast as a statement per job, because AUTOINCREMENT updates its sequence once per statement.
_ROWS_AT_ONCE = 50


class Intake(StorePart):
    def enqueue(self, job: NewJob) -> Enqueued:
        [enqueued] = self.enqueue_many([job])
        return enqueued

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert all jobs or none, except jobs whose document need not be read."""
        with self._db.transaction():
            inserted = self.insert_many(jobs)
            if any(job.after or job.after_earlier for job in jobs):
                settle(self._db)
            return inserted

    def insert_many(self, jobs: Sequence[NewJob], parent_id: int | None = None) -> list[Enqueued]:
        """Insert jobs in the caller's transaction.

        The caller calls `settle` after its last write: earlier, documents without their follow-up jobs would fail.
        """
        inserted: list[Enqueued] = []
        for statement, similar_jobs in groupby(jobs, key=shared_statement):
            if statement is not None:
                inserted += self._insert_together(statement, list(similar_jobs), parent_id)
                continue
            for job in similar_jobs:
                earlier_ids: list[int] = []
                if job.after_earlier:
                    earlier_ids = [enqueued.job_id for enqueued in inserted if enqueued.job_id]
                inserted.append(self._insert(job, parent_id, earlier_ids))
        return inserted

    def _insert_together(self, statement: str, jobs: Sequence[NewJob], parent_id: int | None) -> list[Enqueued]:
        now = self._db.now()
        make_row = common_row_of_job if statement == "enqueue_common" else row_of_job
        rows = [make_row(job, now, parent_id, self._db.retries) for job in jobs]
        for chunk in chunks(rows, _ROWS_AT_ONCE):
            self._db.write_rows(statement, chunk)
        # No other writer inserts meanwhile, so AUTOINCREMENT gives consecutive ids.
        last_id = self._db.writer.last_insert_rowid()
        first_id = last_id - len(jobs) + 1
        return [Enqueued(job_id) for job_id in range(first_id, last_id + 1)]

    def _insert(self, job: NewJob, parent_id: int | None = None, earlier_ids: Sequence[int] = ()) -> Enqueued:
        if job.document is not None:
            return self._insert_for_document(job, job.document, parent_id, earlier_ids)
        if job.adds_document is not None and job.adds_document.revision:
            enqueued = self._record_if_known_revision(job, job.adds_document, parent_id)
            if enqueued is not None:
                return enqueued
        broken_rule = self._db.try_to_write("enqueue", row_of_job(job, self._db.now(), parent_id, self._db.retries))
        if broken_rule is not None:
            for (live_id,) in self._db.read_locked("live_with_unique_key", unique_key=job.unique_key):
                return Enqueued(live_id, existing=True)
            raise rule_broken(broken_rule)
        job_id = self._db.writer.last_insert_rowid()
        for action in job.on_failure:
            values = {"job_type": action.job_type, "payload": action.payload}
            self._db.write("add_failure_action", job_id=job_id, **values)
        if job.after or earlier_ids:
            needs = "ended" if job.after_any else "completed"
            dependencies = [(job_id, other_id, needs) for other_id in job.after]
            dependencies += [(job_id, other_id, "completed") for other_id in earlier_ids]
            self._db.write_each("add_dependency", dependencies)
        return Enqueued(job_id)

    # ── Documents ──

    def _insert_for_document(
        self, job: NewJob, request: DocumentRequest, parent_id: int | None, earlier_ids: Sequence[int]
    ) -> Enqueued:
        """Insert the job if its document has to be read. The document takes the place of a unique_key."""
        document_id, new_settings, decision = self._decide(job, request)
        if decision in (Decision.UNDER_WAY, Decision.UNCHANGED):
            return self._record_known_document(job, request, document_id, decision, parent_id)
        if job.batch_id is not None:
            self._db.write("add_to_batch", batch_id=job.batch_id, document_id=document_id)
        facts = {"content": request.content, "revision": request.revision, "name": request.name}
        place = {"document_id": document_id, "now": self._db.now()}
        [(generation,)] = self._db.write("next_generation", **place, **facts, settings=new_settings)
        self._db.write("copy_standing_actions", document_id=document_id, generation=generation)
        if decision is Decision.TAKEN_OVER:
            self._db.write("move_actions", document_id=document_id, generation=generation)
        self._add_actions(document_id, request)
        if generation == 1 or not request.is_standing:
            tag_documents(self._db, [document_id], request.tags)
        if generation == 1 and parent_id is not None:
            self._db.write("tag_like_container", document_id=document_id, parent_id=parent_id)
        if decision is Decision.TAKEN_OVER:
            self._db.write("add_takeover_notice", document_id=document_id, batch_id=job.batch_id, now=self._db.now())
        # P11: work of older generations becomes stale in the same transaction.
        newest: dict[str, object] = {"document_id": document_id, "generation": generation, "now": self._db.now()}
        self._db.write("mark_workspace_link_due", document_id=document_id)
        self._db.write("stop_older_work", **newest)
        self._db.write("cancel_older_work", **newest)
        work = replace(
            job,
            document=None,
            document_id=document_id,
            generation=generation,
            name=job.name or request.name,
            unique_key=None,
        )
        return self._insert(work, parent_id, earlier_ids)._replace(document_id=document_id, decision=decision)

    def _record_if_known_revision(
        self, job: NewJob, request: DocumentRequest, parent_id: int | None
    ) -> Enqueued | None:
        if (decided := self.decide_by_revision(job, request)) is None:
            return None
        completed_request, document_id, decision = decided
        if decision not in (Decision.UNCHANGED, Decision.UNDER_WAY):
            return None
        return self._record_known_document(job, completed_request, document_id, decision, parent_id)

    def decide_by_revision(self, job: NewJob, request: DocumentRequest) -> tuple[DocumentRequest, int, Decision] | None:
        """Return (request with content and name, document id, decision), or None if no document has this revision."""
        document_key = {"owner": job.owner, "platform": job.platform, "source_key": request.source_key}
        for content, name in self._db.read_locked("document_with_revision", **document_key, revision=request.revision):
            completed_request = replace(request, content=content, name=name)
            document_id, _, decision = self._decide(job, completed_request)
            return completed_request, document_id, decision
        return None

    def _record_known_document(
        self, job: NewJob, request: DocumentRequest, document_id: int, decision: Decision, parent_id: int | None
    ) -> Enqueued:
        if job.batch_id is not None:
            self._db.write("add_to_batch", batch_id=job.batch_id, document_id=document_id)
        self._db.write("set_revision", document_id=document_id, revision=request.revision)
        if self._db.write("rename_document", document_id=document_id, name=request.name):
            self._db.write("mark_workspace_link_due", document_id=document_id)
        live_id = 0
        if decision is Decision.UNDER_WAY:
            live_id = next((job_id for (job_id,) in self._db.read_locked("live_work", document_id=document_id)), 0)
        self._add_actions(document_id, request)
        new_tags = [] if request.is_standing else tag_documents(self._db, [document_id], request.tags)
        if (request.actions or new_tags) and decision is Decision.UNCHANGED:
            fire_actions(self._db, [document_id], new_tags, ParentFacts(parent_id, job.batch_id, job.priority))
        return Enqueued(live_id, existing=live_id != 0, document_id=document_id, decision=decision)

    def _decide(self, job: NewJob, request: DocumentRequest) -> tuple[int, str, Decision]:
        """Return (document id, settings for the new generation, decision). Insert an unknown document."""
        document_key = {"owner": job.owner, "platform": job.platform, "source_key": request.source_key}
        rows = self._db.read_locked("document_named", **document_key)
        for document_id, state, content, settings, settings_before, updated_at in rows:
            status = IndexStatus(state)
            new_settings = settings_for_reading(request, status, settings, settings_before)
            has_same_content = request.content in ("", content)
            decision = decide(
                status,
                seconds_without_progress=(self._db.clock() - from_text(updated_at)).total_seconds(),
                is_same=has_same_content and new_settings == canonical(json.loads(settings or "{}")),
                is_held_up=self._db.read_flag_locked("is_held_up", document_id=document_id, batch_id=job.batch_id),
                is_forced=request.is_forced,
                patience=self._store.patience or TakeoverPatience(),
            )
            return document_id, new_settings, decision
        new_settings = settings_for_reading(request, IndexStatus.NOT_INDEXED, "", None)
        return self._add_document(request, document_key), new_settings, Decision.ACCEPTED

    def _add_actions(self, document_id: int, request: DocumentRequest) -> None:
        for action in request.actions:
            values = action_values(action) | {"standing": action.is_standing}
            self._db.write("add_deferred_action", document_id=document_id, **values)

    def record_document(self, request: DocumentRequest, *, platform: str, owner: str = "") -> int:
        """Insert a document that need not be read yet, unless it exists. Return its id."""
        document_key = {"owner": owner, "platform": platform, "source_key": request.source_key}
        with self._db.transaction():
            for document_id, *_ in self._db.read_locked("document_named", **document_key):
                return int(document_id)
            return self._add_document(request, document_key)

    def _add_document(self, request: DocumentRequest, document_key: dict[str, str]) -> int:
        facts = {"name": request.name, "content": request.content, "now": self._db.now()}
        [(document_id,)] = self._db.write("add_document", **document_key, **facts)
        return int(document_id)


def action_values(action: DeferredAction) -> dict[str, object]:
    return {"on_end": action.on_end, "job_type": action.job_type, "payload": action.payload}
