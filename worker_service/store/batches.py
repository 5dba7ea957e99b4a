"""Changes of batches. Triggers hold the jobs of a stopped batch and write notices; `settle` ends batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from datetime import timedelta
from functools import partial

from msgspec.structs import asdict, replace

from worker_service.base.clock import as_text
from worker_service.base.errors import BatchNotFound, Refused
from worker_service.base.humanize import counted
from worker_service.jobs.batches import (
    Batch,
    BatchAdded,
    BatchFacts,
    BatchMoved,
    BatchState,
    InBatch,
    LiveWork,
    NewBatch,
    OwnerPolicy,
    WorkToSubmit,
    unique_key_in_batch,
)
from worker_service.jobs.documents import Decision, IndexStatus
from worker_service.jobs.job import Enqueued, NewJob, Status
from worker_service.jobs.selector import Selector
from worker_service.store.database import Row, StorePart
from worker_service.store.job_control import begin_action
from worker_service.store.settling import settle

_READING_SPEED_PERIOD = timedelta(minutes=5)
_JOBS_PER_TRANSACTION = 500


class Batches(StorePart):
    # ── Queries ──

    def get(self, batch_id: int) -> Batch:
        return _single_batch(self._db.read("batch", batch_id=batch_id), batch_id)

    def list(
        self,
        *,
        owners: Sequence[str] = (),
        states: Sequence[BatchState] = (),
        most: int = 50,
        before_id: int | None = None,
    ) -> Sequence[Batch]:
        chosen = {"owners": json.dumps(list(owners)), "states": json.dumps(list(states))}
        return [_batch_from(row) for row in self._db.read("batches", **chosen, most=most, before_id=before_id)]

    def addresses(self, batch_ids: Sequence[int]) -> Mapping[int, str]:
        return dict(self._db.read("batches_with_address", batch_ids=json.dumps(list(batch_ids))))

    def count_replaced(self) -> int:
        return int(self._db.read_value("batches_replaced"))

    def facts(self, batch_id: int) -> BatchFacts:
        now = self._db.clock()
        key = {"batch_id": batch_id}
        lately = {"now": as_text(now), "since": as_text(now - _READING_SPEED_PERIOD)}
        with self._db.snapshot():
            jobs = {Status(status): number for status, number in self._db.read("batch_jobs", **key)}
            documents = {IndexStatus(state): number for state, number in self._db.read("batch_documents", **key)}
            [(on_the_way, not_brought_in, files_cancelled)] = self._db.read("batch_sources", **key)
            documents_cancelled = self._db.read_value("batch_documents_cancelled", **key)
            may_find_more = bool(self._db.read_value("batch_may_find_more", **key))
            [(pages, pages_read, pages_left, uncounted, size)] = self._db.read("batch_pages", **key)
            [(pages_lately, seconds)] = self._db.read("batch_pages_lately", **key, **lately)
            current = next(iter(self._db.read("document_being_read", **key)), None)
        return BatchFacts(
            jobs,
            documents,
            files_on_the_way=on_the_way,
            files_not_brought_in=not_brought_in,
            files_cancelled=files_cancelled,
            documents_cancelled=documents_cancelled,
            may_find_more=may_find_more,
            pages=pages,
            pages_read=pages_read,
            pages_left=pages_left,
            uncounted=uncounted,
            size=size,
            pages_lately=pages_lately,
            lately_seconds=seconds or 0.0,
            current=current,
        )

    def find_work(self, jobs: Sequence[NewJob]) -> WorkToSubmit:
        """Find out which jobs are new and which repeat live work. Work of a stopped batch is new."""
        new: list[int] = []
        live: dict[int, LiveWork] = {}
        for start in range(0, len(jobs), _JOBS_PER_TRANSACTION):
            with self._db.transaction():
                for index, job in enumerate(jobs[start : start + _JOBS_PER_TRANSACTION], start):
                    is_done, live_work = self._find_work_of(job)
                    if live_work is not None:
                        live[index] = live_work
                    elif not is_done:
                        new.append(index)
        return WorkToSubmit(new, live)

    def _find_work_of(self, job: NewJob) -> tuple[bool, LiveWork | None]:
        """Return whether no job is needed, and the live job that does the same work."""
        if job.unique_key is not None:
            for row in self._db.read_locked("live_for_submission", key=job.unique_key, owner=job.owner):
                return False, LiveWork(*row)
        if job.adds_document is None or not job.adds_document.revision:
            return False, None
        decided = self._store.intake.decide_by_revision(job, job.adds_document)
        if decided is None:
            return False, None
        _, document_id, decision = decided
        if decision is Decision.TAKEN_OVER and not job.adds_document.actions:
            for job_id, batch_id in self._db.read_locked("live_for_document", document_id=document_id):
                return False, LiveWork(job_id, batch_id, document_id)
        return decision in (Decision.UNCHANGED, Decision.UNDER_WAY), None

    # ── Changes ──

    def add(self, new: NewBatch, jobs: Sequence[NewJob], *, policy: OwnerPolicy = OwnerPolicy.REPLACE) -> BatchAdded:
        """Insert a batch, which takes over its documents from stopped and waiting batches."""
        with self._db.transaction():
            return self.insert(new, jobs, policy)

    def insert(self, new: NewBatch, jobs: Sequence[NewJob], policy: OwnerPolicy) -> BatchAdded:
        other_ids = self._other_active(new.owner, policy)
        state = BatchState.WAITING if other_ids and policy is OwnerPolicy.QUEUE else BatchState.ACTIVE
        [(batch_id,)] = self._db.write("add_batch", **asdict(new), state=state, now=self._db.now())
        # Replace the other batches first, so that the new jobs can take over their documents.
        replaced = self._replace(other_ids, policy, batch_id)
        inserted = self._store.intake.insert_many([_with_batch(job, new, batch_id) for job in jobs])
        self._db.write("mark_batch_unsettled", batch_id=batch_id)
        settle(self._db)
        return BatchAdded(self._get_locked(batch_id), _results_of(inserted), replaced)

    def extend(self, batch_id: int, jobs: Sequence[NewJob]) -> BatchAdded:
        with self._db.transaction():
            batch = self._get_locked(batch_id)
            if batch.state.is_ended:
                raise Refused(f"{batch.title} is {batch.state.word}, and takes nothing more: begin a new one")
            inserted = self._store.intake.insert_many([_with_batch(job, batch, batch_id) for job in jobs])
            settle(self._db)
            return BatchAdded(self._get_locked(batch_id), _results_of(inserted))

    def stop(self, batch_id: int, *, actor: str) -> Batch:
        with self._db.transaction():
            batch = self._get_locked(batch_id)
            if batch.state.is_ended:
                raise Refused(f"{batch.title} is {batch.state.word}: there is nothing to stop")
            self._set_state(batch_id, BatchState.STOPPED, f"stopped by {actor}")
            begin_action(self._db, "stop_batch", actor, batch_id)
            settle(self._db)
            return self._get_locked(batch_id)

    def resume(self, batch_id: int, *, actor: str, policy: OwnerPolicy = OwnerPolicy.REPLACE) -> BatchMoved:
        return self._restart(batch_id, "resume_batch", actor, policy)

    def retry(self, batch_id: int, *, actor: str, policy: OwnerPolicy = OwnerPolicy.REPLACE) -> BatchMoved:
        return self._restart(batch_id, "retry_batch", actor, policy)

    def _restart(self, batch_id: int, verb: str, actor: str, policy: OwnerPolicy) -> BatchMoved:
        # The first jobs are retried in the transaction that activates the batch, which would end at once otherwise.
        is_resume = verb == "resume_batch"
        statuses = (Status.FAILED, Status.CANCELLED) if is_resume else (Status.FAILED,)
        retried: list[int] = []
        refused: dict[int, str] = {}
        replaced: Sequence[int] = []
        with self._db.transaction():
            batch = self._get_locked(batch_id)
            if batch.state is BatchState.STOPPED and not is_resume:
                raise Refused(f"{batch.title} is stopped", f"`pagemill batch resume {batch_id}` goes on with all of it")
            if batch.state.is_ended and not self._to_retry(batch_id, statuses, 0):
                raise Refused(f"{batch.title} is {batch.state.word}, and nothing of it is left to do")
            starts_early = is_resume and batch.state is BatchState.WAITING and policy is not OwnerPolicy.QUEUE
            if batch.state is BatchState.STOPPED or batch.state.is_ended or starts_early:
                replaced = self._activate(batch, f"{'resumed' if is_resume else 'retried'} by {actor}", policy)
            begin_action(self._db, verb, actor, batch_id)
            last_id = self._retry_some(batch_id, statuses, 0, retried, refused)
            settle(self._db)
        while last_id:
            with self._db.transaction():
                last_id = self._retry_some(batch_id, statuses, last_id, retried, refused)
                settle(self._db)
        return BatchMoved(self.get(batch_id), retried, (), refused, replaced)

    def _activate(self, batch: Batch, note: str, policy: OwnerPolicy) -> Sequence[int]:
        """Return the batches that this one replaces."""
        other_ids = self._other_active(batch.owner, policy, batch.id)
        replaced = self._replace(other_ids, policy, batch.id)
        must_wait = bool(other_ids) and policy is OwnerPolicy.QUEUE
        self._set_state(batch.id, BatchState.WAITING if must_wait else BatchState.ACTIVE, note)
        return replaced

    def undo_cancel(self, action_id: int, *, actor: str, policy: OwnerPolicy = OwnerPolicy.REPLACE) -> Batch | None:
        """Return None if the action has cancelled no batch, or the batch has changed since."""
        with self._db.transaction():
            for (batch_id,) in self._db.read_locked("batch_left_cancelled", action_id=action_id):
                self._activate(self._get_locked(batch_id), f"cancel undone by {actor}", policy)
                self._db.write("mark_undone", action_id=action_id, now=self._db.now(), actor=actor)
                settle(self._db)
                return self._get_locked(batch_id)
        return None

    def _retry_some(
        self,
        batch_id: int,
        statuses: Sequence[Status],
        after_id: int,
        retried: MutableSequence[int],
        refused: MutableMapping[int, str],
    ) -> int:
        """Return the id of the last job, or 0 if none is left."""
        job_ids = self._to_retry(batch_id, statuses, after_id)
        for job_id in job_ids:
            reason = self._db.try_to_write("retry", {"job_id": job_id})
            if reason is None:
                retried.append(job_id)
            else:
                refused[job_id] = reason
        return job_ids[-1] if job_ids else 0

    def _to_retry(self, batch_id: int, statuses: Sequence[Status], after_id: int) -> Sequence[int]:
        values = {"batch_id": batch_id, "statuses": json.dumps(list(statuses)), "after_id": after_id}
        return [job_id for (job_id,) in self._db.read_locked("to_retry_in_batch", **values, most=_JOBS_PER_TRANSACTION)]

    def cancel(self, batch_id: int, *, actor: str) -> BatchMoved:
        with self._db.transaction():
            batch = self._get_locked(batch_id)
            if batch.state.is_ended:
                raise Refused(f"{batch.title} is {batch.state.word}: there is nothing to cancel")
            # Stop the batch first, so that nothing more starts.
            self._set_state(batch_id, BatchState.STOPPED, f"cancelled by {actor}")
            action_id = begin_action(self._db, "cancel", actor, batch_id)
            settle(self._db)
        cancel = partial(self._store.job_control.cancel, actor=actor, action_id=action_id)
        changed = cancel(Selector(batch_ids=(batch_id,)))
        cancelled_ids = [*changed.job_ids]
        # Jobs that have completed meanwhile may have inserted follow-up jobs.
        while follow_up_ids := cancel(Selector(batch_ids=(batch_id,), statuses=(Status.PENDING,))).job_ids:
            cancelled_ids += follow_up_ids
        return BatchMoved(self.get(batch_id), cancelled_ids, changed.asked)

    def remove(self, batch_id: int, *, actor: str) -> Batch:
        with self._db.transaction():
            batch = self._get_locked(batch_id)
            if live := self._db.read_locked("live_in_batch", batch_id=batch_id):
                live_jobs = counted(len(live), "live job")
                raise Refused(f"{batch.title} has {live_jobs}", f"`pagemill batch cancel {batch_id}`")
            if not batch.state.is_ended:
                # Batches that wait for this one can start now.
                self._set_state(batch_id, BatchState.STOPPED, "removed")
                settle(self._db)
            begin_action(self._db, "forget_batch", actor, batch_id)
            self._db.write("forget_batch_documents", batch_id=batch_id)
            self._db.write("remove_batch", batch_id=batch_id)
            return batch

    # ── The owner's other batches ──

    def apply_policy(self, job_ids: Sequence[int], policy: OwnerPolicy, *, actor: str) -> Sequence[int]:
        """Apply the policy to the active batches of these jobs. Return the batches that now wait."""
        waiting: list[int] = []
        with self._db.transaction():
            for (batch_id,) in self._db.read_locked("active_batches_of", job_ids=json.dumps(list(job_ids))):
                batch = self._get_locked(batch_id)
                # An earlier batch of this loop may have replaced it.
                if batch.state is not BatchState.ACTIVE:
                    continue
                other_ids = self._other_active(batch.owner, policy, batch_id)
                if other_ids and policy is OwnerPolicy.QUEUE:
                    self._set_state(batch_id, BatchState.WAITING, f"retried by {actor}")
                    waiting.append(batch_id)
                waiting += self._replace(other_ids, policy, batch_id)
            settle(self._db)
        return waiting

    def _other_active(self, owner: str, policy: OwnerPolicy, batch_id: int | None = None) -> Sequence[int]:
        if policy is OwnerPolicy.OFF:
            return []
        rows = self._db.read_locked("other_active_batches", owner=owner, batch_id=batch_id)
        return [other_id for (other_id,) in rows]

    def _replace(self, other_ids: Sequence[int], policy: OwnerPolicy, batch_id: int) -> Sequence[int]:
        # The other policies leave these batches active.
        if policy is not OwnerPolicy.REPLACE:
            return []
        for other_id in other_ids:
            self._db.write("replace_batch", batch_id=other_id, by=batch_id)
        return other_ids

    def _set_state(self, batch_id: int, state: BatchState, note: str) -> None:
        self._db.write("set_batch_state", batch_id=batch_id, state=state, note=note)

    def _get_locked(self, batch_id: int) -> Batch:
        return _single_batch(self._db.read_locked("batch", batch_id=batch_id), batch_id)


def _with_batch(job: NewJob, batch: NewBatch | Batch, batch_id: int) -> NewJob:
    return replace(
        job,
        batch_id=batch_id,
        owner=batch.owner,
        priority=batch.priority if job.priority is None else job.priority,
        unique_key=None if job.unique_key is None else unique_key_in_batch(job.unique_key, batch_id),
    )


def _results_of(inserted: Sequence[Enqueued]) -> list[InBatch]:
    return [InBatch.from_enqueued(enqueued) for enqueued in inserted]


def _single_batch(rows: Sequence[Row], batch_id: int) -> Batch:
    for row in rows:
        return _batch_from(row)
    raise BatchNotFound(f"there is no batch {batch_id}", "`pagemill batch ls` shows those that are there")


def _batch_from(row: Row) -> Batch:
    batch_id, owner, name, priority, state, *rest = row
    return Batch(batch_id, owner, name, priority, BatchState(state), *rest)
