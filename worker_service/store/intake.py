"""Insert jobs, request documents, and update jobs, documents and batches that wait for other jobs.

A document request is decided by the rules of `jobs/generations.py`, under the same write lock as the INSERT.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from worker_service.base.clock import as_text, from_text
from worker_service.jobs.digest import canonical
from worker_service.jobs.documents import Decision, DeferredAction, DocumentRequest, IndexStatus, filled
from worker_service.jobs.generations import TakeoverTimeouts, decide, way_to_read
from worker_service.jobs.job import Enqueued, NewJob
from worker_service.jobs.retries import RetryRule, retries_of
from worker_service.store.database import Database, Row, chunks
from worker_service.store.errors import rule_broken

_CONVERTED_FIELDS = (
    "run_at", "max_retries", "name", "after", "after_any", "after_earlier", "on_failure", "document", "brings",
)  # fmt: skip
"""Fields of `NewJob` that are not stored unchanged in a column of the same name."""
_PLAIN_FIELDS = tuple(name for name in NewJob.__struct_fields__ if name not in _CONVERTED_FIELDS)
_plain_values = attrgetter(*_PLAIN_FIELDS)
NEW_COLUMNS = (*_PLAIN_FIELDS, "run_at", "created_at", "max_retries", "parent_id", "name")

# Most jobs set only these fields. Binding the defaults of the others would cost an eighth of an INSERT
# (`enqueue_many` in benchmarks).
_USUAL_FIELDS = ("job_type", "platform", "account", "payload", "priority", "owner")
_usual_values = attrgetter(*_USUAL_FIELDS)
_unusual_values = attrgetter(*(name for name in NewJob.__struct_fields__ if name not in _USUAL_FIELDS))
_UNUSUAL_DEFAULTS = _unusual_values(NewJob(""))
USUAL_COLUMNS = (*_USUAL_FIELDS, "created_at", "max_retries", "parent_id")

# Fields of `NewJob` in the order of the statement `left_behind`.
_LEFT_BEHIND_FIELDS = tuple(
    "platform owner batch_id priority job_type account payload source timeout_seconds max_retries source_key".split()
)

# Twice as fast as a statement per job, because AUTOINCREMENT updates its sequence once per statement.
_ROWS_AT_ONCE = 50

NAME_CHARACTERS_MAX = 1000

_SETTLED_MAX = 1000


class Intake:
    def __init__(self, database: Database, patience: TakeoverTimeouts) -> None:
        self._db = database
        self._patience = patience

    def enqueue(self, job: NewJob) -> Enqueued:
        """Insert a job, or return the live job with the same unique_key."""
        [enqueued] = self.enqueue_many([job])
        return enqueued

    def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert all of these jobs, or none.

        A job with a `document` is inserted only if the document has to be read, and takes the next generation. A job
        that `brings` a document is inserted only if that revision has not been read with the requested settings.
        """
        with self._db.transaction():
            inserted = self.insert_many(jobs)
            if any(job.after or job.after_earlier for job in jobs):
                settle(self._db)
            return inserted

    def insert_many(self, jobs: Sequence[NewJob], parent_id: int | None = None) -> list[Enqueued]:
        """Insert jobs within the caller's transaction.

        The caller must call `settle` after its last write: earlier, it would fail a document whose job has completed
        and whose follow-up jobs are inserted next.
        """
        inserted: list[Enqueued] = []
        for statement, some in groupby(jobs, key=_statement_of):
            if statement:
                inserted += self._insert_together(statement, list(some), parent_id)
                continue
            for job in some:
                earlier = [each.job_id for each in inserted if each.job_id] if job.after_earlier else []
                inserted.append(self._insert(job, parent_id, earlier))
        return inserted

    def _insert_together(self, statement: str, jobs: Sequence[NewJob], parent_id: int | None) -> list[Enqueued]:
        now, rules = self._db.now(), self._db.retries
        rows: list[Row]
        if statement == "enqueue_usual":
            rows = [(*_usual_values(job), now, retries_of(job, rules) if rules else None, parent_id) for job in jobs]
        else:
            rows = [_row_of(job, now, parent_id, rules) for job in jobs]
        for some in chunks(rows, _ROWS_AT_ONCE):
            self._db.write_rows(statement, some)
        # AUTOINCREMENT under the write lock: the ids of one transaction are consecutive.
        last = self._db.writer.last_insert_rowid()
        return list(map(Enqueued, range(last - len(jobs) + 1, last + 1)))

    def _insert(self, job: NewJob, parent_id: int | None = None, earlier: Sequence[int] = ()) -> Enqueued:
        if job.document is not None:
            return self._insert_for_document(job, job.document, parent_id, earlier)
        if job.brings is not None and job.brings.revision:
            known = self._find_known(job, job.brings, parent_id)
            if known is not None:
                return known
        broken_rule = self._db.try_to_write("enqueue", _row_of(job, self._db.now(), parent_id, self._db.retries))
        if broken_rule is not None:
            for (live_id,) in self._db.write("live_with_unique_key", unique_key=job.unique_key):
                return Enqueued(live_id, existing=True)
            raise rule_broken(broken_rule)
        job_id = self._db.writer.last_insert_rowid()
        for action in job.on_failure:
            self._db.write("add_rule", scope="job", name=str(job_id), **_action_values(action) | {"on_end": "failure"})
        if job.after or earlier:
            needs = "ended" if job.after_any else "completed"
            waits = [(job_id, other, needs) for other in job.after] + [
                (job_id, other, "completed") for other in earlier
            ]
            self._db.write_each("wait_for", waits)
        return Enqueued(job_id)

    # ── Documents ──

    def _insert_for_document(
        self, job: NewJob, request: DocumentRequest, parent_id: int | None, earlier: Sequence[int]
    ) -> Enqueued:
        """Ignore the unique_key: the document itself is the key."""
        document_id, new_settings, decision = self._decide(job, request)
        if decision in (Decision.UNDER_WAY, Decision.UNCHANGED):
            return self._record_known_document(job, request, document_id, decision, parent_id)
        if job.batch_id is not None:
            self._db.write("add_to_batch", batch_id=job.batch_id, document_id=document_id)
        [(generation,)] = self._db.write(
            "next_generation",
            document_id=document_id,
            settings=new_settings,
            content=request.content,
            revision=request.revision,
            name=request.name,
            now=self._db.now(),
        )
        self._db.write("actions_stand", document_id=document_id, generation=generation)
        if decision is Decision.TAKEN_OVER:
            self._db.write("actions_move", document_id=document_id, generation=generation)
        self._ask_for_actions(document_id, request)
        if decision is Decision.TAKEN_OVER:
            self._db.write("tell_of_takeover", document_id=document_id, batch_id=job.batch_id, now=self._db.now())
        # P11: work of older generations becomes stale in the same transaction.
        newest: dict[str, object] = {"document_id": document_id, "generation": generation, "now": self._db.now()}
        self._db.write("link_is_due", document_id=document_id)
        self._db.write("stop_older", **newest)
        self._db.write("cancel_older", **newest)
        work = replace(
            job,
            document=None,
            document_id=document_id,
            generation=generation,
            name=job.name or request.name,
            unique_key=None,
        )
        return self._insert(work, parent_id, earlier)._replace(document_id=document_id, decision=decision)

    def _find_known(self, job: NewJob, request: DocumentRequest, parent_id: int | None) -> Enqueued | None:
        if (found := self.decide_by_revision(job, request)) is None:
            return None
        known, document_id, decision = found
        if decision not in (Decision.UNCHANGED, Decision.UNDER_WAY):
            return None
        return self._record_known_document(job, known, document_id, decision, parent_id)

    def decide_by_revision(self, job: NewJob, request: DocumentRequest) -> tuple[DocumentRequest, int, Decision] | None:
        """Decide a request without downloading. Return None if no document has this revision."""
        named = {"owner": job.owner, "platform": job.platform, "source_key": request.source_key}
        for content, name in self._db.write("brought_in_already", **named, revision=request.revision):
            known = replace(request, content=content, name=name)
            document_id, _, decision = self._decide(job, known)
            return known, document_id, decision
        return None

    def _record_known_document(
        self, job: NewJob, request: DocumentRequest, document_id: int, decision: Decision, parent_id: int | None
    ) -> Enqueued:
        if job.batch_id is not None:
            self._db.write("add_to_batch", batch_id=job.batch_id, document_id=document_id)
        self._db.write("note_revision", document_id=document_id, revision=request.revision)
        if self._db.write("rename_document", document_id=document_id, name=request.name):
            self._db.write("link_is_due", document_id=document_id)
        live = self._db.write("live_work", document_id=document_id) if decision is Decision.UNDER_WAY else []
        self._ask_for_actions(document_id, request)
        if request.actions and decision is Decision.UNCHANGED:
            fire_actions(self._db, [document_id], ParentFacts(parent_id, job.batch_id, job.priority))
        return Enqueued(live[0][0] if live else 0, bool(live), document_id, decision)

    def _decide(self, job: NewJob, request: DocumentRequest) -> tuple[int, str, Decision]:
        named = {"owner": job.owner, "platform": job.platform, "source_key": request.source_key}
        for document_id, state, content, settings, before, updated_at in self._db.write("document_named", **named):
            status = IndexStatus(state)
            new_settings = way_to_read(request, status, settings, before)
            decision = decide(
                status,
                still_seconds=(self._db.clock() - from_text(updated_at)).total_seconds(),
                same_content=request.content in ("", content),
                same_settings=new_settings == canonical(json.loads(settings or "{}")),
                is_held_up=self._db.write("held_up", document_id=document_id, batch_id=job.batch_id) == [(1,)],
                is_forced=request.is_forced,
                patience=self._patience,
            )
            return document_id, new_settings, decision
        new_settings = way_to_read(request, IndexStatus.NOT_INDEXED, "", None)
        return self._add_document(request, named), new_settings, Decision.ACCEPTED

    def _ask_for_actions(self, document_id: int, request: DocumentRequest) -> None:
        for action in request.actions:
            standing = {"standing": action.is_standing}
            self._db.write("ask_for_action", document_id=document_id, **_action_values(action), **standing)

    def ask_always(self, owner: str, action: DeferredAction) -> bool:
        with self._db.transaction():
            return bool(self._db.write("add_rule", scope="owner", name=owner, **_action_values(action)))

    def ask_no_more(self, owner: str, action: DeferredAction) -> bool:
        with self._db.transaction():
            return bool(self._db.write("remove_rule", name=owner, **_action_values(action)))

    def record_document(self, request: DocumentRequest, *, platform: str, owner: str = "") -> int:
        """Insert a document that is not to be read yet, unless it exists."""
        named = {"owner": owner, "platform": platform, "source_key": request.source_key}
        with self._db.transaction():
            for document_id, *_ in self._db.write("document_named", **named):
                return int(document_id)
            return self._add_document(request, named)

    def _add_document(self, request: DocumentRequest, named: dict[str, str]) -> int:
        facts = {"name": request.name, "content": request.content, "now": self._db.now()}
        [(document_id,)] = self._db.write("add_document", **named, **facts)
        return int(document_id)


def _statement_of(job: NewJob) -> str:
    """Return the statement for several such jobs, or "" if the job must be inserted alone."""
    if _unusual_values(job) == _UNUSUAL_DEFAULTS:
        return "enqueue_usual"
    goes_alone = job.unique_key or job.after or job.after_earlier or job.on_failure or job.document or job.brings
    return "" if goes_alone else "enqueue"


def _row_of(job: NewJob, now: str, parent_id: int | None, rules: Mapping[str, RetryRule]) -> tuple[object, ...]:
    """Return the values of `NEW_COLUMNS`. A tuple binds faster than a dict."""
    run_at = None if job.run_at is None else as_text(job.run_at)
    name = job.name and job.name[:NAME_CHARACTERS_MAX]
    retries = retries_of(job, rules) if rules else job.max_retries
    return (*_plain_values(job), run_at, now, retries, parent_id, name)


def _action_values(action: DeferredAction) -> dict[str, object]:
    return {"on_end": action.on_end, "job_type": action.job_type, "payload": action.payload}


# ── Deferred actions ──


class ParentFacts(NamedTuple):
    job_id: int | None = None
    batch_id: int | None = None
    priority: int | None = None


def fire_actions(db: Database, document_ids: Sequence[int], asked_by: ParentFacts | None = None) -> None:
    """Insert the jobs of deferred actions that are due for these documents, once per generation.

    They inherit batch and priority from `asked_by`, by default the newest job of the generation. Only then the actions
    that the owner has requested for every document are included.
    """
    ids = json.dumps(list(document_ids))
    if asked_by is None:
        db.write("rules_of_owners", document_ids=ids)
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


def _insert_action_job(db: Database, job: NewJob, parent: ParentFacts, facts: Mapping[str, object]) -> int:
    document_id = facts.get("document_id")
    job = replace(
        job,
        payload=filled(job.payload, facts) if job.payload else None,
        batch_id=parent.batch_id,
        priority=parent.priority,
        document_id=document_id if isinstance(document_id, int) else None,
    )
    db.write_each("enqueue", [_row_of(job, db.now(), parent.job_id, db.retries)])
    job_id = db.writer.last_insert_rowid()
    place = {"document_id": job.document_id, "batch_id": facts["batch_id"]}
    db.write("tell_of_action", job_id=job_id, code=job.job_type, owner=job.owner, now=db.now(), **place)
    return job_id


# ── Jobs that wait for others ──


def settle(db: Database) -> None:
    """Update the jobs, documents and batches that wait for jobs that have ended.

    First fail, revive or free dependent jobs, in waves; then set the status of documents; then end batches. A call
    handles about `_SETTLED_MAX` rows; the next claim continues.
    """
    if db.write("is_settled") == [(1,)]:
        return
    moved = 0
    while moved < _SETTLED_MAX and (settled := db.write("settled")):
        [(needs_id,)] = settled
        values = {"needs_id": needs_id, "most": _SETTLED_MAX - moved}
        wave = len(db.write("settle_fail", now=db.now(), **values))
        wave += sum(
            db.try_to_write("revive", {"job_id": job_id}) is None for (job_id,) in db.write("to_revive", **values)
        )
        wave += len(db.write("settle_meet", **values))
        _fire_failure_actions(db, needs_id)
        if wave < _SETTLED_MAX - moved:
            db.write("forget_settled", needs_id=needs_id)
        moved += 1 + wave
    if documents := db.write("unsettled_documents", most=_SETTLED_MAX):
        document_ids = json.dumps([document_id for (document_id,) in documents])
        before: dict[int, str] = dict(db.write("states_of_documents", document_ids=document_ids))
        after = db.write("documents_follow", document_ids=document_ids, now=db.now())
        db.write("forget_unsettled", document_ids=document_ids)
        documents_changed(db, [document_id for document_id, state in after if before[document_id] != state])
    # A batch that starts because another has ended may have nothing to do, and then ends as well: hence the loop.
    while batches := db.write("unsettled_batches", most=_SETTLED_MAX):
        batch_ids = json.dumps([batch_id for (batch_id,) in batches])
        for (batch_id,) in db.write("end_batches", batch_ids=batch_ids, now=db.now()):
            [(state, owner, actions)] = db.write("end_of_batch", batch_id=batch_id)
            _fire_batch_actions(db, {"batch_id": batch_id, "state": state}, owner, actions)
        db.write("forget_unsettled_batches", batch_ids=batch_ids)
        db.write("begin_next_batches", batch_ids=batch_ids)
        _hand_over_documents(db, batch_ids)


def _hand_over_documents(db: Database, batch_ids: str) -> None:
    """Move documents from idle batches to active batches that have requested them too.

    Otherwise an active batch would wait for a stopped one, and possibly each for the other.
    """
    for key, name, *columns in db.write("left_behind", batch_ids=batch_ids):
        request = DocumentRequest(key, name, is_standing=True)
        job = NewJob(**dict(zip(_LEFT_BEHIND_FIELDS, columns, strict=True)), document=request)
        # Infinite patience: do not take over other work, however long it has not advanced.
        Intake(db, TakeoverTimeouts(math.inf, math.inf)).insert_many([job])


def _fire_failure_actions(db: Database, job_id: int) -> None:
    for job_type, payload in db.write("rules_of_job", job_id=job_id):
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


def _fire_batch_actions(db: Database, facts: dict[str, object], owner: str, actions: str) -> None:
    # These jobs do not belong to the batch, because a new job would start the batch again.
    for action in json.loads(actions):
        payload = canonical(action["payload"]) if action.get("payload") else ""
        job = NewJob(action["job_type"], payload=payload, owner=owner, name=f"batch {facts['batch_id']}")
        _insert_action_job(db, job, ParentFacts(), facts)


def documents_changed(db: Database, document_ids: Sequence[int]) -> None:
    """Write notices, fire actions and check batches."""
    if document_ids:
        moved = json.dumps(list(document_ids))
        db.write("tell_of_documents", document_ids=moved, now=db.now())
        fire_actions(db, document_ids)
        db.write("batches_may_have_ended", document_ids=moved)
