from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from worker_service.jobs.digest import canonical
from worker_service.jobs.follow_ups import filled
from worker_service.jobs.job import NewJob
from worker_service.store.database import Database, Row
from worker_service.store.job_rows import row_of_job


class ParentFacts(NamedTuple):
    job_id: int | None = None
    batch_id: int | None = None
    priority: int | None = None


def tag_documents(db: Database, document_ids: Sequence[int], tags: Sequence[str]) -> Sequence[Row]:
    """Return each new (document id, tag)."""
    if not tags:
        return []
    return db.write("tag_documents", document_ids=json.dumps(list(document_ids)), tags=json.dumps(list(tags)))


def fire_actions(
    db: Database, document_ids: Sequence[int], tags: Sequence[Row], asked_by: ParentFacts | None = None
) -> None:
    """Insert the due jobs of documents and (document, tag) pairs, once per generation.

    Without `asked_by` they inherit batch and priority from the generation's newest job.
    """
    ids = json.dumps(list(document_ids))
    if tags:
        db.write("actions_of_tags", pairs=json.dumps(list(tags)))
    for action_id, job_type, payload, document_id, owner, name, state, error_code, generation, *inherited in db.write(
        "actions_due", document_ids=ids
    ):
        parent = asked_by or ParentFacts(*inherited)
        facts = {
            "document_id": document_id,
            "batch_id": parent.batch_id,
            "generation": generation,
            "owner": owner,
            "name": name,
            "state": state,
            "error_code": error_code,
        }
        job_id = _insert_action_job(db, NewJob(job_type, payload=payload, owner=owner, name=name), parent, facts)
        db.write("action_fired", action_id=action_id, job_id=job_id, now=db.now())


def fire_actions_of_job(db: Database, job_id: int) -> None:
    for job_type, payload in db.write("actions_of_failure", job_id=job_id):
        [(owner, name, error_code, *inherited)] = db.write("failed_job", job_id=job_id)
        facts = {
            "job_id": job_id,
            "document_id": None,
            "batch_id": inherited[0],
            "generation": None,
            "owner": owner,
            "name": name,
            "state": "failed",
            "error_code": error_code,
        }
        parent = ParentFacts(job_id, *inherited)
        kind, text = (value.decode(errors="replace") for value in (job_type, payload))
        _insert_action_job(db, NewJob(kind, payload=text, owner=owner, name=name), parent, facts)


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
        payload=filled(job.payload, facts) if job.payload else None,
        batch_id=parent.batch_id,
        priority=parent.priority,
        document_id=document_id if isinstance(document_id, int) else None,
    )
    db.write_each("enqueue", [row_of_job(job, db.now(), parent.job_id, db.retries)])
    job_id = db.writer.last_insert_rowid()
    place = {"document_id": job.document_id, "batch_id": facts["batch_id"]}
    db.write("tell_of_action", job_id=job_id, code=job.job_type, owner=job.owner, now=db.now(), **place)
    return job_id
