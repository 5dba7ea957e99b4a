"""Effects of ended jobs on waiting jobs, documents and batches; actions of ended jobs, documents and batches.

Triggers in schema.sql record what is affected in worker_job_settled, document_unsettled and batch_unsettled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import DocumentRequest, TakeoverPatience
from worker_service.jobs.follow_ups import fill_placeholders
from worker_service.jobs.job import NewJob
from worker_service.store.database import Database, Row
from worker_service.store.job_rows import row_of_job

# Fields of `NewJob` in the order of the statement `documents_to_hand_over`.
_HAND_OVER_FIELDS = tuple(
    "platform owner batch_id priority job_type account payload source timeout_seconds max_retries source_key".split()
)

_SETTLED_MAX = 1000


def settle(db: Database) -> None:
    """Free or fail waiting jobs, update documents and end batches after jobs have ended.

    One call settles about `_SETTLED_MAX` jobs and documents; the next claim continues.
    """
    if db.read_flag_locked("nothing_to_settle"):
        return
    _settle_jobs(db)
    _settle_documents(db)
    _settle_batches(db)


def _settle_jobs(db: Database) -> None:
    rows_left = _SETTLED_MAX
    while rows_left > 0 and (next_settled := db.read_locked("next_settled_job")):
        [(needs_id,)] = next_settled
        values = {"needs_id": needs_id, "most": rows_left}
        changed = len(db.write("fail_broken_dependents", now=db.now(), **values))
        # These failed because the needed job had failed or was cancelled. It is live or completed again.
        for (job_id,) in db.read_locked("dependents_to_revive", **values):
            # Refused if another job that was revived here has the same unique key.
            refusal = db.try_to_write("revive_job", {"job_id": job_id})
            if refusal is None:
                changed += 1
        changed += len(db.write("free_met_dependents", **values))
        fire_actions_of_job(db, needs_id)
        # If the limit was reached, more dependents may be left: keep the entry.
        if changed < rows_left:
            db.write("forget_settled", needs_id=needs_id)
        rows_left -= 1 + changed


def _settle_documents(db: Database) -> None:
    if documents := db.read_locked("unsettled_documents", most=_SETTLED_MAX):
        document_ids = json.dumps([document_id for (document_id,) in documents])
        old_states: dict[int, str] = dict(db.read_locked("states_of_documents", document_ids=document_ids))
        updated = db.write("update_document_states", document_ids=document_ids, now=db.now())
        db.write("forget_unsettled", document_ids=document_ids)
        changed_ids = [document_id for document_id, state in updated if old_states[document_id] != state]
        announce_document_changes(db, changed_ids)


def _settle_batches(db: Database) -> None:
    # A batch that starts because another has ended may have nothing to do, and then ends as well: hence the loop.
    while batches := db.read_locked("unsettled_batches", most=_SETTLED_MAX):
        batch_ids = json.dumps([batch_id for (batch_id,) in batches])
        for (batch_id,) in db.write("end_batches", batch_ids=batch_ids, now=db.now()):
            [(state, owner, actions)] = db.read_locked("ended_batch", batch_id=batch_id)
            fire_actions_of_batch(db, {"batch_id": batch_id, "state": state}, owner, actions)
        db.write("forget_unsettled_batches", batch_ids=batch_ids)
        db.write("begin_next_batches", batch_ids=batch_ids)
        _hand_over_documents(db, batch_ids)


def _hand_over_documents(db: Database, batch_ids: str) -> None:
    """Move documents from stopped and waiting batches to active batches that have requested them too."""
    from worker_service.store.store import Store  # imports this module

    for key, name, *columns in db.read_locked("documents_to_hand_over", batch_ids=batch_ids):
        request = DocumentRequest(key, name, is_standing=True)
        job = NewJob(**dict(zip(_HAND_OVER_FIELDS, columns, strict=True)), document=request)
        # Infinite patience: do not take over other work, however long it has not advanced.
        Store(db, TakeoverPatience(math.inf, math.inf)).intake.insert_many([job])


def announce_document_changes(db: Database, document_ids: Sequence[int]) -> None:
    """Write notices of documents whose state has changed, fire their actions, and mark their batches as unsettled."""
    if document_ids:
        ids = json.dumps(list(document_ids))
        db.write("add_document_notices", document_ids=ids, now=db.now())
        fire_actions(db, document_ids, db.read_locked("tags_of_documents", document_ids=ids))
        db.write("mark_batches_unsettled", document_ids=ids)


# ── Actions ──


class ParentFacts(NamedTuple):
    """What the job of an action inherits."""

    job_id: int | None = None
    batch_id: int | None = None
    priority: int | None = None


def tag_documents(db: Database, document_ids: Sequence[int], tags: Sequence[str]) -> Sequence[Row]:
    """Return each new (document id, tag)."""
    if not tags:
        return []
    return db.write("tag_documents", document_ids=json.dumps(list(document_ids)), tags=json.dumps(list(tags)))


def fire_actions(
    db: Database, document_ids: Sequence[int], tag_pairs: Sequence[Row], parent: ParentFacts | None = None
) -> None:
    """Insert the jobs of due actions, once per generation.

    Without `parent`, these jobs inherit batch and priority from the newest job of the generation.
    """
    ids = json.dumps(list(document_ids))
    if tag_pairs:
        db.write("request_tag_actions", pairs=json.dumps(list(tag_pairs)))
    for row in db.read_locked("actions_due", document_ids=ids):
        action_id, job_type, payload, document_id, owner, name, state, error_code, generation, *inherited = row
        job_parent = parent or ParentFacts(*inherited)
        document = {"document_id": document_id, "generation": generation, "owner": owner, "name": name}
        facts = document | {"batch_id": job_parent.batch_id, "state": state, "error_code": error_code}
        job_id = _insert_action_job(db, NewJob(job_type, payload=payload, owner=owner, name=name), job_parent, facts)
        db.write("mark_action_fired", action_id=action_id, job_id=job_id, now=db.now())


def fire_actions_of_job(db: Database, job_id: int) -> None:
    for job_type, payload in db.write("mark_failure_actions_fired", job_id=job_id):
        [(owner, name, error_code, *inherited)] = db.read_locked("failed_job", job_id=job_id)
        parent = ParentFacts(job_id, *inherited)
        place = {"document_id": None, "generation": None, "batch_id": parent.batch_id}
        facts = place | {"job_id": job_id, "owner": owner, "name": name, "state": "failed", "error_code": error_code}
        # Bytes, because RETURNING raises where text is not UTF-8.
        job_type, payload = job_type.decode(errors="replace"), payload.decode(errors="replace")
        job = NewJob(job_type, payload=payload, owner=owner, name=name)
        _insert_action_job(db, job, parent, facts)


def fire_actions_of_batch(db: Database, facts: dict[str, object], owner: str, actions: str) -> None:
    # These jobs do not belong to the batch, because a new job would start the batch again.
    for action in json.loads(actions):
        payload = canonical(action["payload"]) if action.get("payload") else ""
        job = NewJob(action["job_type"], payload=payload, owner=owner, name=f"batch {facts['batch_id']}")
        _insert_action_job(db, job, ParentFacts(), facts)


def _insert_action_job(db: Database, job: NewJob, parent: ParentFacts, facts: Mapping[str, object]) -> int:
    document_id = facts.get("document_id")
    job = replace(
        job,
        payload=fill_placeholders(job.payload, facts) if job.payload else None,
        batch_id=parent.batch_id,
        priority=parent.priority,
        document_id=document_id if isinstance(document_id, int) else None,
    )
    db.write_each("enqueue", [row_of_job(job, db.now(), parent.job_id, db.retries)])
    job_id = db.writer.last_insert_rowid()
    place = {"document_id": job.document_id, "batch_id": facts["batch_id"]}
    db.write("add_action_notice", job_id=job_id, code=job.job_type, owner=job.owner, now=db.now(), **place)
    return job_id
